"""Forgets snapshots, brings them back, and deletes them for good.

A forgotten snapshot keeps its manifest; its newest mark says that it is forgotten. Each change is a
mark that is created if its number is free, so of two changes at once one happens first, and the
other sees it. Nothing is replaced. Deleting for good has this order, each step durable before the
next (docs/format.md, "Trash"):

    1  a mark says that the snapshot is purged: from here on, it cannot be brought back
    2  its ID is retired
    3  the copy of its manifest goes
    4  its manifest goes
    5  its marks go
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ciuic.errors import (
    BusyError,
    CommitUncertainError,
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
    UsageError,
)
from ciuic.ids import SessionId, SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.directory.faults import uncertain_commit, uncertain_forget
from ciuic.store.place.packs import Bucket
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.mark import Mark
from ciuic.store.snapshots.manifests import Manifests
from ciuic.store.snapshots.marks import Marks, NewMark, with_mark
from ciuic.store.snapshots.retired import Retired

__all__ = ["Forgotten", "Trash"]


class Forgotten(NamedTuple):
    """A snapshot in the trash.

    Attributes:
        id: The snapshot.
        forgotten_ns: When it was forgotten.
        manifest: Its manifest, with its present tags.
    """

    id: SnapshotId
    forgotten_ns: int
    manifest: Manifest


class _State(NamedTuple):
    """The newest mark of a snapshot."""

    number: int
    mark: Mark


class Trash:
    """The forgotten snapshots of one store.

    Args:
        store_path: The store's directory, or the cache directory of a store in a bucket.
        manifests: Its manifests.
        marks: Its marks.
        known_marks: Returns the greatest number that a mark of a snapshot is known to have had.
        session_id: The session of the process that opened the store.
        bucket: Has the store; None: it is in the directory.
    """

    def __init__(
        self,
        store_path: str,
        manifests: Manifests,
        marks: Marks,
        *,
        known_marks: Callable[[], Mapping[SnapshotId, int]],
        session_id: SessionId,
        bucket: Bucket | None = None,
    ) -> None:
        self._manifests = manifests
        self._marks = marks
        self._known_marks = known_marks
        self.retired = Retired(store_path, session_id, bucket)

    def ids(self) -> list[SnapshotId]:
        """Return the forgotten snapshots that can be brought back, oldest ID first."""
        return sorted([one for one, state in self._states() if not state.mark.purged])

    def unlisted(self, snapshot_ids: Collection[SnapshotId] | None = None) -> set[SnapshotId]:
        """Return the forgotten and the purged snapshots whose manifest is there.

        Args:
            snapshot_ids: Only among these; None: all.
        """
        return {snapshot_id for snapshot_id, _ in self._states(snapshot_ids)}

    def purged(self) -> set[SnapshotId]:
        """Return the purged snapshots whose manifest is there: a prune was cut short."""
        return {snapshot_id for snapshot_id, state in self._states() if state.mark.purged}

    def used_ids(self) -> set[SnapshotId]:
        """Return every ID in the trash or retired: no new snapshot may get one of them."""
        return self.unlisted() | self.retired.ids()

    def read(self) -> list[Forgotten]:
        """Return the forgotten snapshots that can be brought back, oldest first.

        Raises:
            CorruptionError: The manifest of a forgotten snapshot is damaged.
            UnknownFormatError: A later version wrote the manifest of a forgotten snapshot.
        """
        found, damaged = self.survey()
        for error in damaged.values():
            raise error
        return found

    def survey(
        self,
    ) -> tuple[list[Forgotten], dict[SnapshotId, CorruptionError | UnknownFormatError]]:
        """Return the forgotten snapshots, oldest first, and the errors of unreadable ones."""
        found: list[Forgotten] = []
        damaged: dict[SnapshotId, CorruptionError | UnknownFormatError] = {}
        for snapshot_id, (number, mark) in self._states():
            if mark.forgotten_ns is None or mark.purged:
                continue
            try:
                manifest = self._manifests.read(snapshot_id)
            except (CorruptionError, UnknownFormatError) as error:
                damaged[snapshot_id] = error
            except SnapshotNotFoundError:
                continue  # another process has deleted it for good meanwhile
            else:
                marked = manifest.with_summary(with_mark(manifest.summary, mark, number))
                found.append(Forgotten(snapshot_id, mark.forgotten_ns, marked))
        found.sort(key=lambda entry: (entry.manifest.summary.taken_ns, entry.id))
        return found, damaged

    def forget(self, snapshot_ids: Sequence[SnapshotId], now_ns: int) -> list[SnapshotSummary]:
        """Durably forget snapshots; what is forgotten already stays so.

        Their manifests and chunks stay until a prune.

        Returns:
            The new state of each.

        Raises:
            SnapshotNotFoundError: A snapshot does not exist.
            UsageError: A snapshot is pinned.
            CorruptionError: A manifest is damaged.
            CommitUncertainError: They are forgotten, and a power cut may bring them back.
            StoreError: The store failed; some may be forgotten, and the others are listed.
        """
        now_ns = max(0, now_ns)  # readers refuse a time before 1970
        copied = self._manifests.copies.ids()
        done: dict[SnapshotId, SnapshotSummary] = {}
        created: list[NewMark] = []
        while len(done) < len(set(snapshot_ids)):
            numbers, known = self._marks.newest(), self._known_marks()
            wanted: dict[SnapshotId, tuple[SnapshotSummary, NewMark]] = {}
            for snapshot_id in snapshot_ids:
                if snapshot_id in done:
                    continue
                old = self._marks.labelled(
                    self._manifests.read(snapshot_id).summary, numbers, known.get(snapshot_id, 0)
                )
                if old.forgotten_ns is not None:
                    done[snapshot_id] = old
                    continue
                _refuse_pinned(old)
                new = NewMark(
                    snapshot_id,
                    old.mark + 1,
                    Mark(old.tags, old.pinned, now_ns, note=old.note),
                    snapshot_id in copied,
                )
                wanted[snapshot_id] = old, new
            marks = [new for _, new in wanted.values()]
            for snapshot_id in self._create_marks(marks) if marks else ():
                old, new = wanted[snapshot_id]
                done[snapshot_id] = with_mark(old, new.mark, new.number)
                created.append(new)
        if not done:
            return []
        try:
            self._marks.sync()
        except StoreError as error:
            raise uncertain_forget(snapshot_ids, error.message) from error
        self._marks.keep_copies([new for new in created if new.has_copy])
        return [done[snapshot_id] for snapshot_id in dict.fromkeys(snapshot_ids)]

    def _create_marks(self, marks: Sequence[NewMark]) -> set[SnapshotId]:
        """Create marks that forget snapshots; returns those whose mark was created."""
        try:
            return self._marks.create_all(marks)
        except CommitUncertainError as error:
            raise uncertain_forget([mark.id for mark in marks], error.message) from error

    def bring_back(self, snapshot_id: SnapshotId) -> Manifest:
        """Durably list a forgotten snapshot again.

        Returns:
            Its manifest, with its present tags.

        Raises:
            SnapshotNotFoundError: It is not in the trash.
            CorruptionError: Its manifest is damaged.
            UnknownFormatError: A later version wrote its mark.
            CommitUncertainError: It is listed, and after a power cut may be in the trash again.
            StoreError: The mark cannot be written; the snapshot stays in the trash.
        """
        while True:
            state = self._state(snapshot_id)
            if state is None or state.mark.forgotten_ns is None or state.mark.purged:
                raise self._not_there(snapshot_id)
            manifest = self._manifests.read(snapshot_id)
            mark = state.mark._replace(forgotten_ns=None)
            old = with_mark(manifest.summary, state.mark, state.number)
            has_copy = snapshot_id in self._manifests.copies.ids()
            try:
                new = self._marks.add(old, mark, copy=has_copy)
            except CommitUncertainError as error:
                raise uncertain_commit(snapshot_id, error.message) from error
            if new is None:
                continue
            if not self._manifests.is_there(snapshot_id):
                # A prune had removed the marks already, so that this number was free again.
                raise self._not_there(snapshot_id)
            return manifest.with_summary(new)

    def empty(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete forgotten snapshots for good; no new snapshot gets their IDs.

        Raises:
            BusyError: Another process brought one back; it is listed, and none of it is deleted.
            StoreError: Some are not deleted; those can still be brought back, or the next prune
                deletes the rest of them.
        """
        self.retired.check()
        left = [snapshot_id for snapshot_id in snapshot_ids if self._manifests.has(snapshot_id)]
        while left:
            states = dict(self._states(left))
            new = [mark for mark in (self._purge(one, states.get(one)) for one in left) if mark]
            created = self._marks.create_all(new) if new else set()
            left = [found.id for found in new if found.id not in created]
        if snapshot_ids:
            self._delete(snapshot_ids)

    def finish_purges(self) -> None:
        """Delete what a prune that was cut short has left of purged snapshots.

        Raises:
            StoreError: It cannot be deleted.
        """
        purged = self.purged()
        if purged:
            self._delete(purged)
        marked = self._marks.newest().keys() | self._marks.newest_copies().keys()
        self._marks.remove_all((marked & self.retired.ids()) - self._manifests.ids())

    def delete_lost(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete snapshots whose manifests are lost; a prune may then remove their chunks.

        A damaged manifest is moved to ``quarantine/``.

        Raises:
            StoreError: They still count as lost.
        """
        self.retired.add(snapshot_ids)
        self._manifests.set_aside(snapshot_ids)
        self._manifests.copies.remove_all(snapshot_ids)
        self._marks.remove_all(snapshot_ids)

    def orphaned_copies(self) -> dict[SnapshotId, bool]:
        """Find copies of manifests whose snapshots have no manifest.

        Returns:
            For each snapshot whether its ID is retired. If not, its manifest is lost.
        """
        orphans = self._manifests.copies.ids().difference(self._manifests.files())
        retired = self.retired.ids()
        return {snapshot_id: snapshot_id in retired for snapshot_id in orphans}

    def find_missing(self, snapshot_ids: Iterable[SnapshotId]) -> set[SnapshotId]:
        """Return the IDs that have no manifest and are not retired.

        Raises:
            StoreError: The store cannot be read.
        """
        # Most often, none is missing: names alone take half the time of files and their statuses.
        left = set(snapshot_ids).difference(self._manifests.ids())
        # The manifests first: a snapshot that goes meanwhile is retired before its manifest goes.
        left = left.difference(self._manifests.files()) if left else left
        return left - self.retired.ids() if left else left

    def _states(
        self, snapshot_ids: Collection[SnapshotId] | None = None
    ) -> Iterator[tuple[SnapshotId, _State]]:
        """Yield the newest mark of each snapshot that is forgotten and has a manifest.

        A snapshot whose mark cannot be read counts as listed.
        """
        # The marks first: a purge deletes a manifest before the marks, without which the snapshot
        # would seem listed.
        numbers, known = self._marks.newest(), self._known_marks()
        marked = (numbers.keys() | known.keys()) & self._manifests.ids()
        if snapshot_ids is not None:
            marked = marked.intersection(snapshot_ids)
        for snapshot_id in sorted(marked):
            number = max(numbers.get(snapshot_id, 0), known.get(snapshot_id, 0))
            try:
                mark = self._marks.read(snapshot_id, number)
            except (CorruptionError, UnknownFormatError):
                continue
            if mark.forgotten_ns is not None:
                yield snapshot_id, _State(number, mark)

    def _state(self, snapshot_id: SnapshotId) -> _State | None:
        """Return the newest mark of a snapshot; None if it has none, or that is damaged."""
        number = max(
            self._marks.newest().get(snapshot_id, 0), self._known_marks().get(snapshot_id, 0)
        )
        if not number or not self._manifests.has(snapshot_id):
            return None
        try:
            return _State(number, self._marks.read(snapshot_id, number))
        except CorruptionError:
            return None

    def _purge(self, snapshot_id: SnapshotId, state: _State | None) -> NewMark | None:
        """Return the mark that purges a forgotten snapshot; None if it is purged already.

        Args:
            snapshot_id: The snapshot.
            state: Its newest mark, if that says that it is forgotten.
        """
        if state is None:
            if not self._manifests.has(snapshot_id):
                return None
            raise BusyError(
                f"{snapshot_id} was brought back meanwhile, so nothing of it was removed",
                hint="Run the command again.",
            )
        if state.mark.purged:
            return None
        purged = state.mark._replace(purged=True)
        return NewMark(snapshot_id, state.number + 1, purged, has_copy=False)

    def _delete(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete purged snapshots: step 2 and later."""
        if any(self._manifests.has(snapshot_id) for snapshot_id in snapshot_ids):
            self._marks.sync()
        self.retired.add(snapshot_ids)
        # The copies go before the manifests: a copy alone means that a manifest was lost.
        self._manifests.copies.remove_all(snapshot_ids)
        self._manifests.remove(snapshot_ids)
        self._manifests.sync()
        self._marks.remove_all(snapshot_ids)

    def _not_there(self, snapshot_id: SnapshotId) -> SnapshotNotFoundError:
        if snapshot_id in self.retired.ids() | self.purged():
            return SnapshotNotFoundError(
                f"{snapshot_id} is gone for good: a prune has taken it from the trash",
                hint="'ciuic list' and 'ciuic list --trash' show the snapshots that are left.",
            )
        return SnapshotNotFoundError(
            f"{snapshot_id} is not in the trash",
            hint="'ciuic list --trash' shows what can be brought back.",
        )


def _refuse_pinned(summary: SnapshotSummary) -> None:
    if summary.pinned:
        raise UsageError(
            f"{summary.id} is pinned", hint=f"Run 'ciuic pin --remove {summary.id}' first."
        )
