"""Writes a path of a snapshot as a tar stream: ``ciuic cat --tar``.

The format is POSIX pax (IEEE 1003.1, "pax"), which GNU tar, bsdtar and Python read. The stream
never contains wrong bytes: a file's content is read and checked before its header is written. A
small file stays in memory meanwhile. A large file is read twice. If the second read finds damage,
the stream ends in the middle of the file, and tar reports an unexpected end.
"""

import os
import stat
import tarfile
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import BEING_WRITTEN, SKIPPED, UNREADABLE, Entry, PathWarning
from ciuic.progress import Progress
from ciuic.restore.tar_headers import DEVICE_MAX, SPECIAL_KINDS, device, header
from ciuic.store.store import Store
from ciuic.view.content import read_file
from ciuic.view.located import Located, inner_path
from ciuic.view.tree_walk import KEPT_MAX, Cursor, PathBudget, relax

__all__ = ["Archive"]

_KEPT_BYTES: Final = 32 * 1024 * 1024
_GATHERED_BYTES: Final = 1024 * 1024
_LINKS_MAX: Final = 100_000
"""Files with several names that are remembered, in about 40 MB."""
_UNREADABLE: Final = "could not be read when the snapshot was taken"
_IN_FLUX: Final = "was in flux when the snapshot was taken: it may hold a mixture of two states"


class _Member(NamedTuple):
    """One member of the archive."""

    name: bytes
    located: Located


class _Level:
    """A directory on the way down."""

    def __init__(self, member: _Member, cursor: Cursor) -> None:
        self.member = member
        self.cursor = cursor
        self.last_name = b""


class Archive:
    """One path with everything below it, as a tar stream.

    The names of members begin with the path's last name. Owners are numbers, hard links are links
    to the first name, holes are written as zeros.

    Attributes:
        damaged: Paths that are missing from the stream because the store is damaged.
        marked: Paths that could not be read when the snapshot was taken, which are missing, and
            files that were being written, which are not.
        notes: Other messages for the user.
    """

    def __init__(self, store: Store, top: Located, progress: Progress | None = None) -> None:
        self._store = store
        self._top = top
        self._progress = progress
        self._files = 0
        self._bytes = 0
        self._links: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._budget = PathBudget(store.pack_lengths)
        self.damaged: list[PathWarning] = []
        self.marked: list[PathWarning] = []
        self.notes: list[PathWarning] = []

    def blocks(self) -> Iterator[bytes | memoryview]:
        """Yield the stream, in parts of any length. After an error it is incomplete.

        Raises:
            CorruptionError: A large file was lost after its header was written.
            StoreError: The store cannot be used.
        """
        gathered = bytearray()
        length = 0
        for part in self._parts():
            length += len(part)
            if len(part) >= _GATHERED_BYTES:
                yield bytes(gathered)
                gathered.clear()
                yield part
                continue
            gathered += part
            if len(gathered) >= _GATHERED_BYTES:
                yield bytes(gathered)
                gathered.clear()
        end = 2 * tarfile.BLOCKSIZE
        yield bytes(gathered) + bytes(end + -(length + end) % tarfile.RECORDSIZE)

    def _parts(self) -> Iterator[bytes | memoryview]:
        """Yield all members. Not by recursion: trees can be deeper than the stack."""
        top = _Member(os.path.basename(self._top.path) or b".", self._top)
        yield from self._member(top)
        levels: list[_Level] = []
        self._enter(levels, top)
        while levels:
            level = levels[-1]
            member = self._next(level)
            if self._budget.is_spent:
                return
            if member is None:
                levels.pop()
                continue
            yield from self._member(member)
            self._enter(levels, member)

    def _enter(self, levels: list[_Level], member: _Member) -> None:
        entry = member.located.entry
        if not entry.is_directory or not entry.content:
            return
        get = self._store.reader.node
        cursor = Cursor(get, entry, depth=len(levels), budget=self._budget)
        levels.append(_Level(member, cursor))
        relax([level.cursor for level in levels[-KEPT_MAX:]])

    def _next(self, level: _Level) -> _Member | None:
        """Return the next valid name of a directory."""
        while True:
            try:
                entry = level.cursor.next()
            except (CorruptionError, UnknownFormatError) as error:
                what = f"the directory cannot be read: {error.message}"
                # Too many paths are not damage of the one directory that holds the last of them.
                bad = self._top if self._budget.is_spent else level.member.located
                self.damaged.append(PathWarning(bad.path, what))
                return None
            if entry is None:
                return None
            found = Located(inner_path(level.member.located.path, entry.name), entry)
            name, before = entry.name, level.last_name
            # If a name occurs twice, the first may be a symlink that leads out of the target.
            if _is_valid(name) and (not before or name > before):
                level.last_name = name
                return _Member(level.member.name + b"/" + name, found)
            what = "the store gives it an invalid name, or the same name twice"
            self.damaged.append(PathWarning(found.path, what))

    def _member(self, member: _Member) -> Iterator[bytes | memoryview]:
        path, entry = member.located
        if self._progress is not None:
            self._progress.update(self._files, self._bytes, path)
        if entry.state == UNREADABLE:
            self.marked.append(PathWarning(path, _UNREADABLE))
        if entry.is_file:
            if entry.state not in {UNREADABLE, SKIPPED}:
                yield from self._file(member)
        elif entry.is_directory:
            yield header(member.name + b"/", entry, tarfile.DIRTYPE)
        else:
            yield from self._special(member)

    def _special(self, member: _Member) -> Iterator[bytes]:
        path, entry = member.located
        kind = SPECIAL_KINDS.get(stat.S_IFMT(entry.mode))
        target = entry.content if entry.is_symlink else b""
        is_sound = b"\0" not in target and bool(target) == entry.is_symlink
        if kind is None or not is_sound or max(device(entry)) > DEVICE_MAX:
            self.damaged.append(PathWarning(path, "its entry in the store describes no valid file"))
            return
        if self._is_further_name(member):
            yield self._link(member)
            return
        yield header(member.name, entry, kind, link=target)
        self._remember(member)

    def _file(self, member: _Member) -> Iterator[bytes | memoryview]:
        path, entry = member.located
        if entry.state == BEING_WRITTEN:
            self.marked.append(PathWarning(path, _IN_FLUX))
        if self._is_further_name(member):
            yield self._link(member)
            return
        kept: list[bytes | memoryview] = []
        try:
            if entry.size_bytes <= _KEPT_BYTES:
                kept.extend(self._content(entry))
            else:
                for _ in self._content(entry):
                    pass
        except (CorruptionError, UnknownFormatError) as error:
            self.damaged.append(PathWarning(path, error.message))
            return
        yield header(member.name, entry, tarfile.REGTYPE, size_bytes=entry.size_bytes)
        yield from kept if entry.size_bytes <= _KEPT_BYTES else self._again(member)
        yield bytes(-entry.size_bytes % tarfile.BLOCKSIZE)
        self._files += 1
        self._bytes += entry.size_bytes
        self._remember(member)

    def _content(self, entry: Entry) -> Iterator[bytes | memoryview]:
        """Yield a file's bytes; their number is checked against the entry."""
        length = 0
        for part in read_file(self._store, entry):
            length += len(part)
            if length > entry.size_bytes:
                break
            yield part
        if length != entry.size_bytes:
            raise CorruptionError("its content does not have the length of the file")

    def _again(self, member: _Member) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a file that has just been checked."""
        path, entry = member.located
        done = 0
        try:
            for part in self._content(entry):
                yield part
                done += len(part)
                if self._progress is not None:
                    self._progress.update(self._files, self._bytes + done, path)
        except (CorruptionError, UnknownFormatError) as error:
            raise CorruptionError(
                f"{os.fsdecode(path)} was lost while it was written: {error.message}",
                hint="The archive ends in the middle of this file. Run the command again.",
            ) from error

    def _is_further_name(self, member: _Member) -> bool:
        entry = member.located.entry
        first = self._links.get((entry.link_dev, entry.ino)) if entry.link_dev else None
        return first is not None and first[1] == _likeness(entry)

    def _link(self, member: _Member) -> bytes:
        entry = member.located.entry
        first = self._links[entry.link_dev, entry.ino][0]
        return header(member.name, entry, tarfile.LNKTYPE, link=first)

    def _remember(self, member: _Member) -> None:
        entry = member.located.entry
        key = (entry.link_dev, entry.ino)
        if not entry.link_dev or key in self._links:
            return
        if len(self._links) < _LINKS_MAX:
            self._links[key] = member.name, _likeness(entry)
        elif not self.notes:
            what = (
                f"is a separate copy, and so are further hard links: more than"
                f" {_LINKS_MAX:,} files have several names"
            )
            self.notes.append(PathWarning(member.located.path, what))


def _is_valid(name: bytes) -> bool:
    """Return whether this is a single file name. Other names mean a damaged or hostile store."""
    return bool(name) and name not in {b".", b".."} and b"/" not in name and b"\0" not in name


def _likeness(entry: Entry) -> int:
    """Return a hash of what all names of an inode have in common. A hostile store may differ."""
    content = (entry.content, entry.level, entry.size_bytes, entry.rdev)
    return hash((content, entry.mode, entry.uid, entry.gid, entry.mtime_ns, entry.xattrs))
