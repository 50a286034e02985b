"""Says before a restore that its target may be too small.

It is a warning and no refusal: the target may compress what is written, and files may have holes. A
restore that fails for lack of space leaves each file old or new, and can be run again.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.model import UNREADABLE, Entry, PathWarning
from ciuic.restore.passes import Run, copies_of, open_directory
from ciuic.restore.place.target import RUN_AGAIN
from ciuic.restore.selection import Verdict
from ciuic.restore.targets import Target
from ciuic.source.directory import DirectoryHandle
from ciuic.source.freeze.interface import OpensCopies
from ciuic.system.key_set import KeySet
from ciuic.units import format_bytes
from ciuic.view.listing import walk
from ciuic.view.located import Located

__all__ = ["space_warnings"]


def space_warnings(run: Run, targets: list[Target]) -> list[PathWarning]:
    """Return a warning for each file system that has less space than a restore may write there.

    A file that is there with the same size and time does not count, nor does the space of a file
    that would be replaced, nor what shares the blocks of a reflink copy. What goes to a file system
    that is mounted inside a target counts as if it went to the target's.

    Args:
        run: The restore.
        targets: All targets.

    Raises:
        CancelledError: The user interrupts; nothing was changed.
    """
    needs: dict[int, _Need] = {}
    for target in targets:
        # The target may be a mount point itself.
        is_entered = target.entry.is_directory and _is_directory(target.place)
        above = target.place if is_entered else target.parent
        while not os.path.isdir(above) and above != os.path.dirname(above):
            above = os.path.dirname(above)
        with contextlib.suppress(OSError):  # the restore says what is wrong with a directory
            device = os.stat(above).st_dev
            if device not in needs:
                needs[device] = _Need(run, above)
            needs[device].targets.append(target)
    # Most restores fit whatever is there already: no directory is listed for them.
    most_bytes = run.manifest.summary.logical_bytes * len(targets)
    return [
        PathWarning(need.place, need.text)
        for need in needs.values()
        if need.available_bytes < most_bytes and need.available_bytes < need.measure()
    ]


def _is_directory(place: bytes) -> bool:
    """Return whether a restore enters a place: it replaces a symlink."""
    return os.path.isdir(place) and not os.path.islink(place)


class _Need:
    """What a restore needs of one file system.

    Attributes:
        targets: Those on this file system.
        place: A directory there.
        available_bytes: What this user may still write there.
    """

    def __init__(self, run: Run, place: bytes) -> None:
        self._run = run
        self._needed_bytes = 0
        self.targets: list[Target] = []
        self.place = place
        free = os.statvfs(place)
        # Only root may write to the reserved blocks of ext4.
        blocks = free.f_bavail if os.geteuid() else free.f_bfree
        self.available_bytes = blocks * free.f_frsize

    @property
    def text(self) -> str:
        """The warning, after ``measure``."""
        return (
            f"has {format_bytes(self.available_bytes)} available, and up to"
            f" {format_bytes(self._needed_bytes)} will be written there: it may not fit"
        )

    def measure(self) -> int:
        """Return how much more the targets may take after the restore than before."""
        run = self._run
        copies = copies_of(run.store, run.manifest) if run.request.hot else None
        try:
            directory = open_directory(self.place)
            linked = KeySet()
            for target in self.targets:
                for path, entry in _files(run, target):
                    inode = b"%d %d" % (entry.link_dev, entry.ino)
                    if entry.link_dev and not linked.add(inode):
                        continue
                    if not _is_shared(copies, path, entry, directory):
                        self._needed_bytes += _more_bytes(target, path, entry)
        except OSError:
            return 0  # the restore says what is wrong with the directory
        finally:
            if copies is not None:
                copies.close()
        return self._needed_bytes


def _files(run: Run, target: Target) -> Iterator[Located]:
    """Yield the files of a target that a restore places; none after a damaged directory."""

    def is_left_out(found: Located) -> bool:
        if run.cancelled():
            raise CancelledError("the restore was interrupted", hint=RUN_AGAIN)
        return run.selection.any and run.selection.verdict(found.path) is Verdict.LEFT_OUT

    # The restore names the damage.
    with contextlib.suppress(CorruptionError, UnknownFormatError):
        for path, entry in walk(run.store, Located(target.path, target.entry), skips=is_left_out):
            is_taken = not run.selection.any or run.selection.verdict(path) is Verdict.TAKEN
            if entry.is_file and is_taken and entry.state != UNREADABLE:
                yield Located(path, entry)


def _is_shared(
    copies: OpensCopies | None, path: bytes, entry: Entry, directory: DirectoryHandle
) -> bool:
    """Return whether a restored file shares the blocks of a reflink copy."""
    copy_fd = copies.open(path, entry) if copies is not None else None
    if copies is None or copy_fd is None:
        return False
    try:
        return copies.shares_blocks(copy_fd, directory)
    finally:
        os.close(copy_fd)


def _more_bytes(target: Target, path: bytes, entry: Entry) -> int:
    """Return how much more space a file may take than what is in its place now."""
    inside = path[len(target.path) :].lstrip(b"/")
    try:
        present = os.lstat(os.path.join(target.place, inside) if inside else target.place)
    except OSError:
        return entry.size_bytes
    if not stat.S_ISREG(present.st_mode):
        return entry.size_bytes
    if (present.st_size, present.st_mtime_ns) == (entry.size_bytes, entry.mtime_ns):
        return 0
    freed_bytes = present.st_blocks * 512 if present.st_nlink == 1 else 0
    return max(0, entry.size_bytes - freed_bytes)
