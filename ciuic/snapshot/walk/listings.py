"""Remember when each live directory was listed, to find those that may lack a name.

A name that moves from one directory to another during the walk is in neither listing if it arrives
after its new directory was listed and leaves before its old directory is. That takes a directory
that has changed since its listing, and one listed later that a rename had changed by then. If a
name had gone between its listing and its capture, the second one may have been listed at any time.
"""

import os
from array import array
from collections.abc import Iterator
from typing import Final

__all__ = ["NOT_LISTED", "Listings"]

NOT_LISTED: Final = -1
"""The number of a directory that is frozen: nothing can move in it."""
_TICK_NS: Final = 20_000_000
"""Two changes within a tick of the kernel's clock may leave the same ctime; see ``stability``."""


class Listings:
    """The listings of a walk, in 48 bytes each and the name.

    Args:
        began_ns: When the snapshot began.
    """

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._parents = array("q")
        self._names = bytearray()
        self._ends = array("Q")
        self._places = array("Q")
        self._next_place = 0
        self._inodes = array("Q")
        self._before_ns = array("q")
        self._changed_ns = array("q")

    def add(self, parent: int, name: bytes, before: os.stat_result, changed_ns: int) -> int:
        """Add a directory that has been listed; returns its number.

        Args:
            parent: The number of the directory above it; ``NOT_LISTED``: ``name`` is a path.
            name: Its name.
            before: Its status before it was listed.
            changed_ns: Its ctime after that; 0: it is as the parent snapshot has it, so nothing
                has left it since.
        """
        number = len(self._ends)
        self._parents.append(parent)
        self._names += name
        self._ends.append(len(self._names))
        self._places.append(self._next_place)
        self._next_place += 1
        self._inodes.append(before.st_ino)
        self._before_ns.append(before.st_ctime_ns)
        self._changed_ns.append(changed_ns)
        return number

    def renew(self, number: int, before: os.stat_result, changed_ns: int) -> None:
        """Replace the listing of a directory by a later one."""
        self._places[number] = self._next_place
        self._next_place += 1
        self._inodes[number] = before.st_ino
        self._before_ns[number] = before.st_ctime_ns
        self._changed_ns[number] = changed_ns

    def path(self, number: int) -> bytes:
        """Return the path of a directory."""
        return b"/".join([self._name(above).rstrip(b"/") for above in self.line(number)]) or b"/"

    def line(self, number: int) -> list[int]:
        """Return the numbers of the directories from the top down to this one."""
        line = []
        while number != NOT_LISTED:
            line.append(number)
            number = self._parents[number]
        return line[::-1]

    def doubtful(self, *, has_vanished: bool, is_first: bool) -> Iterator[int]:
        """Yield the directories that may lack a name that moved into them.

        Args:
            has_vanished: A name was gone between its listing and its capture.
            is_first: Also yield directories that changed so late before their listing that a later
                change may not show.
        """
        if not has_vanished and not any(self._changed_ns):
            return  # a quiet tree
        later_ns = -1
        for number in sorted(range(len(self._places)), key=self._places.__getitem__, reverse=True):
            before_ns = self._before_ns[number]
            if has_vanished or later_ns >= before_ns:
                is_late = is_first and before_ns > self._began_ns - _TICK_NS
                if self._is_doubtful(number, is_late=is_late):
                    yield number
            later_ns = max(later_ns, self._changed_ns[number])

    def _is_doubtful(self, number: int, *, is_late: bool) -> bool:
        try:
            # A root may be a symlink, which ``open_root`` follows.
            is_top = self._parents[number] == NOT_LISTED
            now = os.stat(self.path(number), follow_symlinks=is_top)
        except OSError:
            return False  # moved or removed: a move shows in the directory that it went to
        if now.st_ino != self._inodes[number]:
            return False
        return is_late or now.st_ctime_ns != self._before_ns[number]

    def _name(self, number: int) -> bytes:
        start = self._ends[number - 1] if number else 0
        return bytes(self._names[start : self._ends[number]])
