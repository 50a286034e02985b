"""Marks of snapshots: what was changed after the commit. Tags, the pin, and whether it is listed.

    marks/<id>-<number>.json    the whole present state; the greatest number counts
    parity/<id>-<number>.json   a copy

No mark is replaced. A change creates the next number if that name is free; if another process was
faster, the change is made again on what that process wrote. A mark that cannot be read may have
been a pin, so its snapshot counts as listed and pinned until there is a newer mark. Its tags and
its note are then those of the newest earlier mark that can be read.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ciuic.errors import (
    CommitUncertainError,
    CorruptionError,
    MissingError,
    StoreError,
    UnknownFormatError,
    UnreachableError,
    UsageError,
)
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.directory.faults import uncertain_change
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.reserve import with_reserve
from ciuic.store.place.packs import Bucket
from ciuic.store.records import layout
from ciuic.store.records.mark import MARK_BYTES_MAX, Mark, decode_mark, encode_mark

__all__ = ["Marks", "NewMark", "recorded_marks", "with_mark"]


_OLDER_MAX: Final = 100
"""The most marks that are read in place of one that is damaged."""


class _Row(msgspec.Struct):
    """The fields of a summary in the chunk index that matter here."""

    id: str
    mark: int = 0


_row_decoder = msgspec.msgpack.Decoder(_Row)


class NewMark(NamedTuple):
    """A mark that is to be created.

    Attributes:
        id: The snapshot.
        number: The number of the mark: the one after the present mark.
        mark: The new state.
        has_copy: It gets a copy.
    """

    id: SnapshotId
    number: int
    mark: Mark
    has_copy: bool


class Marks:
    """The marks of one store. The caller of a change in a directory holds the write locks.

    Args:
        store_path: The store's directory, or the cache directory of a store in a bucket.
        bucket: Has all marks, and the directory only the newest ones; None: the directory has
            all.
    """

    def __init__(self, store_path: str, bucket: Bucket | None = None) -> None:
        self._bucket = bucket
        self._store_path = store_path
        self._folder = Folder(store_path, layout.MARKS)
        self._copies = Folder(store_path, layout.PARITY)
        self._older: dict[tuple[SnapshotId, int], tuple[int, Mark] | None] = {}
        self._numbers: dict[SnapshotId, set[int]] | None = None

    def newest(self) -> dict[SnapshotId, int]:
        """Map each snapshot that has marks to the greatest number, from file names alone."""
        self._numbers = None  # marks may have come since
        return _greatest(self._folder.names(layout.parse_mark_name))

    def newest_copies(self) -> dict[SnapshotId, int]:
        """Like ``newest``, for copies of marks."""
        return _greatest(self._copies.names(layout.parse_mark_name))

    def labelled(
        self,
        summary: SnapshotSummary,
        newest: Mapping[SnapshotId, int],
        known: int = 0,
        *,
        to_change: bool = False,
    ) -> SnapshotSummary:
        """Return a summary with the state in the snapshot's newest mark.

        Args:
            summary: From the manifest, or of an earlier mark.
            newest: See ``newest``.
            known: The greatest number that the snapshot's marks are known to have had. If that mark
                is gone, this reads its copy.
            to_change: The caller adds a mark with this state, which must not lack the tags and the
                note of an earlier mark only because the store fails at this moment.

        Raises:
            StoreError: The mark cannot be read; with ``to_change``, nor can the marks that count if
                it is damaged.
        """
        there = newest.get(summary.id, 0)
        number = max(there, known, summary.mark)
        if there == number == summary.mark:
            return summary
        try:
            mark = self.read(summary.id, number)
        except (CorruptionError, UnknownFormatError) as error:
            problem = error.message
            older = None
            try:
                older = self._newest_older(summary.id, number)
            except StoreError as failure:
                if to_change:
                    raise
                problem += f"; its earlier marks cannot be read: {failure.message}"
            if older is not None and older[0] > summary.mark:
                summary = with_mark(summary, older[1], older[0])
            if summary.mark:
                problem += f"; its tags and its note are those of mark {summary.mark}"
            return msgspec.structs.replace(
                summary,
                pinned=True,
                mark=number,
                mark_problem=problem,
                forgotten_ns=None,
                purged=False,
            )
        return with_mark(summary, mark, number)

    def _newest_older(self, snapshot_id: SnapshotId, number: int) -> tuple[int, Mark] | None:
        """Return the newest mark before a damaged one that can be read, with its number.

        Raises:
            StoreError: The marks cannot be listed, or one that may be sound cannot be read.
        """
        key = (snapshot_id, number)
        if key not in self._older:
            self._older[key] = self._find_older(snapshot_id, number)
        return self._older[key]

    def _find_older(self, snapshot_id: SnapshotId, number: int) -> tuple[int, Mark] | None:
        for older in self._numbers_before(snapshot_id, number)[:_OLDER_MAX]:
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                return older, self.read(snapshot_id, older)
        return None

    def _numbers_before(self, snapshot_id: SnapshotId, number: int) -> list[int]:
        """Return the numbers of earlier marks, the greatest first."""
        if self._numbers is None:
            # All of them: many newest marks may be damaged.
            numbers: dict[SnapshotId, set[int]] = {}
            for one, mark in self._all_marks():
                numbers.setdefault(one, set()).add(mark)
            self._numbers = numbers
        found = self._numbers.get(snapshot_id, ())
        return sorted([one for one in found if one < number], reverse=True)

    def _all_marks(self) -> set[tuple[SnapshotId, int]]:
        parse = layout.parse_mark_name
        if self._bucket is not None:  # this machine has no copies of marks that no longer count
            return self._bucket.records(layout.MARKS).names(parse)
        return self._folder.names(parse) | self._copies.names(parse)

    def read(self, snapshot_id: SnapshotId, number: int, *, copy: bool = True) -> Mark:
        """Read a mark.

        Args:
            snapshot_id: The snapshot.
            number: The number of the mark.
            copy: Read the copy if the mark is damaged or gone.

        Raises:
            UnreachableError: The file system cannot read it.
            CorruptionError: It is damaged or gone, and so is its copy.
            UnknownFormatError: A later version wrote it.
        """
        name = layout.mark_name(snapshot_id, number)
        try:
            return _read(self._folder, name, snapshot_id, number)
        except CorruptionError as error:
            problem = error
        if self._bucket is not None:
            return self._fetched(self._bucket, snapshot_id, number)
        if copy:
            with contextlib.suppress(StoreError):
                return _read(self._copies, name, snapshot_id, number)
        message = f"mark {number} of {snapshot_id}: {problem.message}"
        if isinstance(problem, UnreachableError):
            raise UnreachableError(message) from problem
        raise CorruptionError(
            message, hint="'ciuic repair --apply' replaces it by its copy or by a pin."
        ) from problem

    def check(self, snapshot_id: SnapshotId, number: int) -> None:
        """Read a mark itself: in a bucket, not what this machine has fetched of it earlier.

        Raises:
            UnreachableError: The file system cannot read it.
            CorruptionError: It is damaged or gone.
            UnknownFormatError: A later version wrote it.
            StoreError: The bucket cannot be read.
        """
        if self._bucket is not None:
            self._from_bucket(self._bucket, snapshot_id, number)
        else:
            self.read(snapshot_id, number, copy=False)

    def has_copy(self, snapshot_id: SnapshotId, number: int) -> bool:
        """Return whether a mark has an undamaged copy; in a bucket: whether this machine has."""
        folder = self._copies if self._bucket is None else self._folder
        with contextlib.suppress(StoreError):
            _read(folder, layout.mark_name(snapshot_id, number), snapshot_id, number)
            return True
        return False

    def add(self, old: SnapshotSummary, mark: Mark, *, copy: bool) -> SnapshotSummary | None:
        """Durably create the mark that follows the one of a summary.

        Args:
            old: The present state.
            mark: The new state.
            copy: Also write a copy. An error of the copy is ignored.

        Returns:
            The new state; None if another process has created that mark: read it, and try again.

        Raises:
            UnknownFormatError: A later version wrote the present mark.
            UsageError: The tags take more than a mark can hold.
            CommitUncertainError: The mark is there, and a power cut may still undo that.
            StoreError: It cannot be created.
        """
        if old.mark:
            with contextlib.suppress(CorruptionError):
                self.read(old.id, old.mark)
        number = old.mark + 1
        data = _encoded(NewMark(old.id, number, mark, copy))
        try:
            if not with_reserve(self._store_path, lambda: self._create(old.id, number, data)):
                return None
        except CommitUncertainError as error:
            raise uncertain_change(old.id, error.message) from error
        if copy:
            with contextlib.suppress(StoreError):  # no change may fail because of a copy
                self._put_copy(old.id, number, data)
        return with_mark(old, mark, number)

    def create_all(self, new: Sequence[NewMark]) -> set[SnapshotId]:
        """Create a mark of each of these snapshots; ``sync`` makes that durable.

        Returns:
            The snapshots that have the new state. For the others, another process has created that
            mark: read it, and try again.

        Raises:
            UsageError: The tags take more than a mark can hold.
            StoreFullError: The disk has no space for all of them; usually, none is created.
            CommitUncertainError: The server has not answered, and some may be created.
            StoreError: They cannot be created; some may be.
        """
        files = {layout.mark_name(one.id, one.number): _encoded(one) for one in new}
        if self._bucket is not None:
            created = self._bucket.create_marks(files)
        else:
            self._make()
            created = with_reserve(self._store_path, lambda: self._folder.create_all(files))
        return {one.id for one in new if layout.mark_name(one.id, one.number) in created}

    def sync(self) -> None:
        """Make created marks durable.

        Raises:
            StoreError: A power cut may undo them.
        """
        if self._bucket is None:  # which makes each mark durable at once
            self._folder.sync()

    def keep_copies(self, new: Sequence[NewMark]) -> None:
        """Write the copies of new marks. An error is ignored: no change may fail because of it."""
        files = [(layout.mark_name(one.id, one.number), _encoded(one)) for one in new]
        if files:
            with contextlib.suppress(StoreError):
                self._copies.put_all(files)

    def copy(self, snapshot_id: SnapshotId, number: int) -> None:
        """Durably copy a mark.

        Raises:
            StoreError: It cannot be read, or the copy cannot be written.
        """
        mark = _read(self._folder, layout.mark_name(snapshot_id, number), snapshot_id, number)
        self._put_copy(snapshot_id, number, encode_mark(mark, snapshot_id, number))

    def put_back(self, snapshot_id: SnapshotId, number: int) -> None:
        """Durably create a mark that is gone, from its copy.

        Raises:
            StoreError: The copy cannot be read, or the mark cannot be created.
        """
        mark = _read(self._copies, layout.mark_name(snapshot_id, number), snapshot_id, number)
        self._create(snapshot_id, number, encode_mark(mark, snapshot_id, number))

    def remove_all(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Durably remove the marks of snapshots that are gone for good, and their copies.

        Raises:
            StoreError: They cannot be removed.
        """
        if self._bucket is not None:
            self._bucket.remove_marks(snapshot_ids)
        for folder in (self._copies, self._folder):
            names = _names_of(folder, frozenset(snapshot_ids))
            if names:
                folder.remove_durably(names)

    def _make(self) -> None:
        with_reserve(self._store_path, self._folder.make)

    def _create(self, snapshot_id: SnapshotId, number: int, data: bytes) -> bool:
        name = layout.mark_name(snapshot_id, number)
        if self._bucket is not None:
            return name in self._bucket.create_marks({name: data})
        self._folder.make()
        return self._folder.create(name, data)

    def _fetched(self, bucket: Bucket, snapshot_id: SnapshotId, number: int) -> Mark:
        """Read a mark from the bucket, and replace this machine's damaged copy of it."""
        data, mark = self._from_bucket(bucket, snapshot_id, number)
        with contextlib.suppress(StoreError):
            self._folder.make_and_replace(layout.mark_name(snapshot_id, number), data)
        return mark

    def _from_bucket(
        self, bucket: Bucket, snapshot_id: SnapshotId, number: int
    ) -> tuple[bytes, Mark]:
        message = f"mark {number} of {snapshot_id}"
        hint = "'ciuic repair --apply' replaces it by a pin with the last tags that can be read."
        try:
            data = bucket.mark(layout.mark_name(snapshot_id, number))
            return data, decode_mark(data, snapshot_id, number)
        except MissingError as error:
            raise CorruptionError(f"{message}: its object is gone", hint=hint) from error
        except UnreachableError as error:
            raise UnreachableError(f"{message}: {error.message}", hint=error.hint) from error
        except CorruptionError as error:
            raise CorruptionError(f"{message}: {error.message}", hint=hint) from error

    def _put_copy(self, snapshot_id: SnapshotId, number: int, data: bytes) -> None:
        self._copies.make_and_replace(layout.mark_name(snapshot_id, number), data)


def recorded_marks(rows: Mapping[SnapshotId, tuple[int, int, bytes]]) -> dict[SnapshotId, int]:
    """Map snapshots to the number of the mark that their rows in the chunk index remember.

    Args:
        rows: See ``ChunkIndex.snapshots``. A damaged row says nothing.
    """
    found = {}
    for snapshot_id, (_, _, summary) in rows.items():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            row = _row_decoder.decode(summary)
            if row.id == snapshot_id and row.mark > 0:
                found[snapshot_id] = row.mark
    return found


def with_mark(summary: SnapshotSummary, mark: Mark, number: int) -> SnapshotSummary:
    """Return a summary with the state that a mark says."""
    return msgspec.structs.replace(
        summary,
        tags=mark.tags,
        pinned=mark.pinned,
        mark=number,
        mark_problem="",
        forgotten_ns=mark.forgotten_ns,
        purged=mark.purged,
        note=mark.note,
    )


def _encoded(new: NewMark) -> bytes:
    if new.number > layout.MARK_NUMBER_MAX:
        raise StoreError(
            f"the marks of {new.id} have no number left",
            hint=f"Find out who made marks/{layout.mark_name(new.id, new.number - 1)}.",
        )
    data = encode_mark(new.mark, new.id, new.number)
    if len(data) > MARK_BYTES_MAX:
        raise UsageError(
            f"the tags of {new.id} take more than {MARK_BYTES_MAX // 1024:,} KiB",
            hint="Give fewer or shorter tags, or remove some.",
        )
    return data


def _greatest(names: Iterable[tuple[SnapshotId, int]]) -> dict[SnapshotId, int]:
    found: dict[SnapshotId, int] = {}
    for snapshot_id, number in names:
        if number > found.get(snapshot_id, 0):
            found[snapshot_id] = number
    return found


def _names_of(folder: Folder, snapshot_ids: frozenset[SnapshotId]) -> list[str]:
    return [
        layout.mark_name(snapshot_id, number)
        for snapshot_id, number in folder.names(layout.parse_mark_name)
        if snapshot_id in snapshot_ids
    ]


def _read(folder: Folder, name: str, snapshot_id: SnapshotId, number: int) -> Mark:
    try:
        return decode_mark(folder.read(name, MARK_BYTES_MAX), snapshot_id, number)
    except (CorruptionError, UnknownFormatError):
        raise
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise CorruptionError("its file is gone") from error
        raise
