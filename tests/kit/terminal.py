"""A command on a terminal of a known width, and its screen."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kit.installed import environment

__all__ = ["Shown", "on_terminal", "resize"]

DEADLINE_S = 60
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


class Shown(NamedTuple):
    """The exit code of a command, and all its terminal output as text."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """The output without escapes."""
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """Each line, and each state of an overwritten line."""
        return re.split(r"[\r\n]+", self.text)


def resize(fd: int, columns: int) -> None:
    """Set the width of the terminal; its process gets SIGWINCH."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def on_terminal(
    columns: int,
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    meanwhile: Callable[[int, str], None] = lambda _leader, _shown: None,
) -> Shown:
    """Run a command with a terminal as its three streams.

    Args:
        columns: How wide it is.
        command: The program and its arguments.
        env: More of the environment.
        meanwhile: Called after each part of the output, with the terminal and all output so far.
    """
    leader, follower = pty.openpty()
    resize(leader, columns)
    process = subprocess.Popen(
        [os.fsencode(part) for part in command],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment(env),
        start_new_session=True,
    )
    os.close(follower)
    shown = b""
    try:
        while select.select([leader], [], [], DEADLINE_S)[0]:
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
            meanwhile(leader, shown.decode(errors="replace"))
        return Shown(process.wait(DEADLINE_S), shown.decode(errors="surrogateescape"))
    finally:
        process.kill()
        process.wait()
        os.close(leader)
