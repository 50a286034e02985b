"""Removes what is too old after a save: alone in the store, while a save itself only adds."""

import os
from typing import Final

from ciuic.errors import BusyError
from ciuic.store.addressed import open_at_address
from ciuic.training.retention.keeping import Keeper
from ciuic.training.retention.planning import Rules

__all__ = ["remove_older"]

_WAIT_S: Final = 2.0
"""How long to wait for other writers if little is overdue: the next save tries again."""
_OVERDUE_WAIT_S: Final = 600.0


def remove_older(
    store_path: str, keeper: Keeper, channel: str, rules: Rules, run: str | None, *, overdue: int
) -> None:
    """Have a keeper remove what is too old from a store in a directory.

    A writer that adds for hours, as a large snapshot does, must not hold up a training. So this
    leaves the removal to the next save, unless that would let the store grow without limit.

    Args:
        store_path: The store's directory.
        keeper: Decides, on what the store has when no other process writes to it.
        channel: See ``Keeper.keep``.
        rules: See ``Keeper.keep``.
        run: See ``Keeper.keep``.
        overdue: What ``Keeper.overdue`` has said.

    Raises:
        BusyError: More snapshots are overdue than the rules keep, and others still write.
        StoreError: See ``Keeper.keep``.
    """
    is_long = overdue > rules.keep_count
    wait_s = _OVERDUE_WAIT_S if is_long else _WAIT_S
    try:
        with open_at_address(store_path, os.environ, write=True, wait_s=wait_s) as store:
            keeper.keep(store, channel, rules, run)
    except BusyError:
        if is_long:
            raise
