"""The real ``ciuic`` in a process of its own, as a user types it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CIUIC", "NOBODY", "REPOSITORY", "Outcome", "as_nobody", "ciuic", "environment"]

REPOSITORY = Path(__file__).parents[2]
CIUIC = (
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'ciuic'; from ciuic.cli import main; main()",
)
"""What the entry point runs, so that no test depends on where pip puts scripts."""
NOBODY = 65534
_AS_SOMEBODY = """
import ctypes, difflib, importlib, os, pkgutil, sys, urllib.parse
import ciuic
for module in pkgutil.walk_packages(ciuic.__path__, "ciuic."):
    importlib.import_module(module.name)
from ciuic.config import load_settings
user, config = int(sys.argv[1]), sys.argv[3]
load_settings(config)
os.setgroups([])
os.setgid(user)
os.setuid(user)
# As after an exec: what lies in /proc/self is the process's own again.
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
sys.argv = ["ciuic", *sys.argv[2:]]
from ciuic.cli import main
main()
"""
# Everything is loaded before the rights are given up: a Python that lies in root's home can't be
# run by anybody else, and these tests are about the rights on the source and the store.
_LIMIT_S = 120


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: this one, without a configuration of its own."""
    environ = {key: value for key, value in os.environ.items() if key != "CIUIC_CONFIG"}
    return {**environ, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "error", **(extra or {})}


def ciuic(
    *arguments: str | bytes | Path,
    wrapper: Sequence[str] = (),
    user: int | None = None,
    cwd: str | Path | None = None,
) -> Outcome:
    """Run a command to its end. A traceback is a failure of the test, whatever the test is.

    Args:
        arguments: Those of ``ciuic``; with ``user`` the first two are ``--config FILE``.
        wrapper: A program to run it under, and its arguments.
        user: Whose rights it has; None for this process's own.
        cwd: Its working directory.
    """
    command = CIUIC if user is None else (sys.executable, "-c", _AS_SOMEBODY, str(user))
    done = subprocess.run(
        [*wrapper, *command, *arguments],
        capture_output=True,
        env=environment(),
        cwd=cwd or "/",
        timeout=_LIMIT_S,
        check=False,
    )
    out = done.stdout.decode("utf-8", "surrogateescape")
    err = done.stderr.decode("utf-8", "surrogateescape")
    if done.returncode >= 0 and done.returncode != 128 + signal.SIGINT:
        assert "Traceback" not in err, f"{arguments}: a traceback, at its end: {err[-1500:]}"
    return Outcome(done.returncode, out, err)


def as_nobody() -> int | None:
    """The user to run as so that permissions count; None when the test is no root already."""
    return NOBODY if os.geteuid() == 0 else None
