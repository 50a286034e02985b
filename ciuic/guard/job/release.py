"""A small process that lets a paused job go on if ciuic is killed meanwhile.

SIGKILL gives ciuic no chance to resume the job, and a paused job holds its GPUs for good. The
process waits at a pipe whose other end only ciuic has: the kernel closes it when ciuic ends. It is
in a session of its own, so that a signal to ciuic's process group does not reach it.
"""

import contextlib
import os
import signal
from collections.abc import Iterable
from typing import Final

__all__ = ["Release"]

_DONE: Final = b"done\n"
_THAW: Final = 'read said; [ "$said" = done ] || echo 0 > "$1"'
_CONTINUE: Final = (
    'while read said; do [ "$said" = done ] && exit 0; pids="$pids $said"; done;'
    ' [ -z "$pids" ] || kill -CONT $pids'
)
"""Shells that end when they read "done", and act at the end of the pipe."""


class Release:
    """The process, from before a pause until ``cancel``.

    If it cannot be started, ``pid`` is 0, and the job is paused anyway.

    Args:
        freezer: The file of the cgroup that freezes and thaws it; empty: processes are stopped one
            by one, and ``add`` names them.

    Attributes:
        pid: The process, a child of this one; 0: there is none.
    """

    def __init__(self, freezer: str = "") -> None:
        self.pid = 0
        self._end = -1
        self._named: set[int] = set()
        script = _THAW if freezer else _CONTINUE
        try:
            read_end, self._end = os.pipe()
        except OSError:
            return
        quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_WRONLY, 0) for fd in (1, 2)]
        try:
            self.pid = os.posix_spawn(
                "/bin/sh",
                ["/bin/sh", "-c", script, "sh", freezer],
                {"PATH": "/usr/bin:/bin"},
                file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0), *quiet],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except (OSError, NotImplementedError):
            os.close(self._end)
            self._end = -1
        finally:
            os.close(read_end)

    def add(self, pids: Iterable[int]) -> list[int]:
        """Name processes before they are stopped; returns them."""
        found = list(pids)
        new = [pid for pid in found if pid not in self._named]
        self._named.update(new)
        self._say(b"".join(b"%d\n" % pid for pid in new))
        return found

    def cancel(self) -> None:
        """End the process: the job goes on by itself."""
        self._say(_DONE)
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def _say(self, text: bytes) -> None:
        # Without the process, only the release is missing: the pause itself works.
        with contextlib.suppress(OSError):
            while text and self._end >= 0:
                text = text[os.write(self._end, text) :]
