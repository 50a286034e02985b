"""Remember when each live directory was listed, to find those that may lack a name.

A name that moves from one directory to another during the walk is in neither listing if it arrives
after its new directory was listed and leaves before its old directory is. That takes a directory
that has changed since its listing, and one listed later that a rename had changed by then. If a
name had gone between its listing and its capture, or led to another file, the second one may have
been listed at any time.
"""

import errno
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.source.directory import DirectoryHandle, storable_ns
from ciuic.source.stability import is_settled

__all__ = ["NOT_LISTED", "Listings"]

NOT_LISTED: Final = -1
"""The number of a directory that is frozen: nothing can move in it."""

_RECORD: Final = struct.Struct("<qQQqq")
_pack: Final = _RECORD.pack


class _Listing(NamedTuple):
    parent: int
    name_end: int
    inode: int
    before_ns: int
    changed_ns: int


class Listings:
    """The listings of a walk, in 40 bytes each and the name.

    Args:
        began_ns: When the snapshot began.
    """

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        # One buffer with whole records: every directory is added, and an array for each field
        # would take several times as long.
        self._records = bytearray()
        self._names = bytearray()
        self._count = 0
        self._is_quiet = True
        # Those listed since one was listed again, in the order of their last listing.
        self._later: dict[int, None] = {}

    def add(self, parent: int, name: bytes, before: os.stat_result, changed_ns: int) -> int:
        """Add a directory that has been listed; returns its number.

        Args:
            parent: The number of the directory above it; ``NOT_LISTED``: ``name`` is a path.
            name: Its name.
            before: Its status before it was listed.
            changed_ns: Its ctime after that; 0: it is as the parent snapshot has it, so nothing
                has left it since.
        """
        number = self._count
        self._count = number + 1
        self._names += name
        self._records += self._packed(parent, len(self._names), before, changed_ns)
        if self._later:
            self._later[number] = None
        return number

    def renew(self, number: int, before: os.stat_result, changed_ns: int) -> None:
        """Replace the listing of a directory by a later one."""
        old = self._record(number)
        start = number * _RECORD.size
        record = self._packed(old.parent, old.name_end, before, changed_ns)
        self._records[start : start + _RECORD.size] = record
        self._later.pop(number, None)
        self._later[number] = None

    def path(self, number: int) -> bytes:
        """Return the path of a directory."""
        return b"/".join([self._name(above).rstrip(b"/") for above in self.line(number)]) or b"/"

    def line(self, number: int) -> list[int]:
        """Return the numbers of the directories from the top down to this one."""
        line = []
        while number != NOT_LISTED:
            line.append(number)
            number = self._record(number).parent
        return line[::-1]

    def doubtful(self, *, has_vanished: bool, is_first: bool) -> Iterator[int]:
        """Yield the directories that may lack a name that moved into them.

        Args:
            has_vanished: A name was gone between its listing and its capture, or may have led to
                another file.
            is_first: Also yield directories that changed so late before their listing that a later
                change may not show.
        """
        if not has_vanished and self._is_quiet:
            return
        later_ns = -1
        for number in self._last_first():
            listing = self._record(number)
            if has_vanished or later_ns >= listing.before_ns:
                is_late = is_first and not is_settled(
                    listing.before_ns, listing.before_ns, self._began_ns
                )
                if self._is_doubtful(number, listing, is_late=is_late):
                    yield number
            later_ns = max(later_ns, listing.changed_ns)

    def _last_first(self) -> Iterator[int]:
        yield from reversed(self._later)
        for number in range(self._count - 1, -1, -1):
            if number not in self._later:
                yield number

    def _is_doubtful(self, number: int, listing: _Listing, *, is_late: bool) -> bool:
        try:
            now = self._status(number, listing)
        except OSError as error:
            # If it has moved, that shows in the directory that it went to. Anything else is no
            # reason to trust its listing.
            return error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
        if now.st_ino != listing.inode:
            return False
        return is_late or storable_ns(now.st_ctime_ns) != listing.before_ns

    def _status(self, number: int, listing: _Listing) -> os.stat_result:
        # A root may be a symlink, which ``open_root`` follows.
        is_top = listing.parent == NOT_LISTED
        try:
            return os.stat(self.path(number), follow_symlinks=is_top)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG or is_top:
                raise
        # The walk goes from directory to directory, so the path may be too long for one call.
        top, *names = [self._name(at) for at in self.line(number)]
        handle = DirectoryHandle(os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), top)
        for name in names:
            handle = handle.child(name)
        return os.fstat(handle.fd)

    def _packed(self, parent: int, name_end: int, before: os.stat_result, changed_ns: int) -> bytes:
        if changed_ns:
            self._is_quiet = False
        before_ns = storable_ns(before.st_ctime_ns)
        return _pack(parent, name_end, before.st_ino, before_ns, storable_ns(changed_ns))

    def _record(self, number: int) -> _Listing:
        return _Listing(*_RECORD.unpack_from(self._records, number * _RECORD.size))

    def _name(self, number: int) -> bytes:
        start = self._record(number - 1).name_end if number else 0
        return bytes(self._names[start : self._record(number).name_end])
