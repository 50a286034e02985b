"""The real ``ciuic`` in a process of its own, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit import warm

__all__ = [
    "CIUIC",
    "NOBODY",
    "REPOSITORY",
    "Outcome",
    "as_nobody",
    "ciuic",
    "command_of",
    "environment",
]

REPOSITORY = Path(__file__).parents[2]
CIUIC = (
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'ciuic'; from ciuic.cli import main; main()",
)
"""The code of the entry point, so that no test depends on where pip puts scripts."""
NOBODY = 65534
_AS_SOMEBODY = """
import contextlib, ctypes, difflib, grp, importlib, os, pathlib, pwd, sys, urllib.parse
import ciuic
top = pathlib.Path(ciuic.__file__).parents[1]
for path in (top / "ciuic").rglob("*.py"):
    name = ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")
    # No command imports torch, which takes two seconds; these do, or the packages of a web server.
    if not {"dcp", "integrations", "web"} & set(name.split(".")):
        # Without libfuse, or without one of the packages that ciuic can be used with.
        with contextlib.suppress(OSError, ImportError):
            importlib.import_module(name)
from ciuic.config.load import load_settings
from ciuic.errors import ConfigError
(user, *groups), config = map(int, sys.argv[1].split(",")), sys.argv[3]
with contextlib.suppress(ConfigError):  # root refuses the configuration of another user
    load_settings(config)
os.setgroups(groups)
os.setgid(user)
os.setuid(user)
# As after an exec: the process owns its entries in /proc/self again.
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
sys.argv = ["ciuic", *sys.argv[2:]]
from ciuic.cli import main
main()
"""
# All modules are loaded before the rights are dropped: no other user can run a Python in root's
# home, and these tests are about the rights on the source and the store.
_LIMIT_S = 120


class Outcome(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)


_NOT_FOR_COMMANDS = {"CIUIC_CONFIG", "CIUIC_LONG", "CIUIC_NO_SKIPS", "CIUIC_SEED"}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without a configuration and variables for tests."""
    environ = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_COMMANDS}
    return {**environ, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "error", **(extra or {})}


def command_of(user: int | None, groups: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the command that runs ``ciuic`` as a user; None for this process's user."""
    if user is None:
        return CIUIC
    return (sys.executable, "-c", _AS_SOMEBODY, ",".join(map(str, (user, *groups))))


def ciuic(
    *arguments: str | bytes | Path,
    wrapper: Sequence[str] = (),
    user: int | None = None,
    groups: Sequence[int] = (),
    cwd: str | Path | None = None,
    more: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command to its end; a traceback always fails the test.

    Args:
        arguments: The arguments of ``ciuic``; with ``user`` the first two are ``--config FILE``.
        wrapper: A program to run it under, and its arguments.
        user: The user to run as; None for this process's user.
        groups: The groups that the user is in, besides that of the same number.
        cwd: Its working directory.
        more: More environment variables.
    """
    environ = environment(more)
    if not wrapper and user is None and warm.suits(environ):
        done = warm.run(arguments, environ, cwd or "/", _LIMIT_S)
    else:
        done = subprocess.run(
            [*wrapper, *command_of(user, groups), *arguments],
            capture_output=True,
            env=environ,
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
    """Return the user to run as so that permissions apply; None if the test is not root."""
    return NOBODY if os.geteuid() == 0 else None
