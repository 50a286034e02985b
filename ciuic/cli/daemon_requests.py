"""Requests to the daemon that serves the store of a command."""

import os
from typing import Literal

from ciuic.cli.addresses import place_options
from ciuic.cli.session import Session
from ciuic.control import request_done
from ciuic.errors import StoreError
from ciuic.store.addressed import control_directory
from ciuic.store.place.keys import is_url

__all__ = ["ask_daemon"]


def ask_daemon(session: Session, do: Literal["pause", "resume"]) -> None:
    """Have the daemon do something. The store is not opened: its disk may be slow or away.

    Raises:
        StoreError: No daemon serves the store, or it does not answer that it has done that.
    """
    path = session.store_path()
    control = control_directory(path, os.environ, place_options(session, path))
    status = None if control is None else request_done(control, do)
    if status is None:
        start = "'systemctl enable --now ciuicd'; without systemd, start ciuicd."
        if is_url(path):  # the socket is in the cache directory of the daemon's user
            raise StoreError(
                f"no daemon of this user serves {path}",
                hint=f"Run the command as the daemon's user; or, if none runs, start it: {start}",
            )
        raise StoreError(f"no daemon serves {path}", hint=f"Start it: {start}")
    # Not 1 or NaN, either: scripts rely on it, and another program may listen there.
    if status.get("paused") is not (do == "pause"):
        raise StoreError(
            f"the daemon of {path} did not confirm '{do}'",
            hint="'ciuic status' shows its state. Use the same version of ciuic as the daemon.",
        )
