"""Keeps a copy up to date, and records what it has."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from ciuic.catalog import list_snapshots
from ciuic.copy.choose import differences
from ciuic.copy.labels import NOTHING_SENT
from ciuic.copy.record import UNSENT, read_record, write_record
from ciuic.copy.report import CopyReport
from ciuic.errors import CiuicError, StoreError
from ciuic.ids import SnapshotId
from ciuic.store.directory.ownership import is_foreign
from ciuic.store.place.location import PlaceOptions
from ciuic.store.records.copy_record import CopyRecord
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.units import counted, inflected

__all__ = ["Keeping"]

_NS: Final = 1e9


class Keeping:
    """The record of one copy while snapshots are copied to it.

    Args:
        source: The store that is copied.
        address: The copy's directory or URL.
        options: How the copy is reached, if it is in a bucket.
        clock: Tells the time.
        is_configured: The copy follows changes of marks here. Any other copy keeps the marks that
            it has, and no record is written if another user owns the store.

    Attributes:
        record: What is known of the copy.
        is_other: The store there is not the one that was there before.
        failure: Why the record could not be written.
    """

    def __init__(
        self,
        source: Store,
        address: str,
        options: PlaceOptions,
        clock: Clock,
        *,
        is_configured: bool = True,
    ) -> None:
        self._source = source
        self._options = options
        self._is_configured = is_configured
        is_own = is_configured or not is_foreign(source.path)
        self._writes = is_own and not source.header.problem_for_writers
        self._clock = clock
        self._marks = {snapshot.id: snapshot.mark for snapshot in list_snapshots(source)}
        now_ns = clock.now_ns()
        self.record = read_record(source.path, address) or CopyRecord.new(address, now_ns)
        self.record.tried_ns = now_ns
        self.is_other = False
        self.failure: StoreError | None = None

    @contextlib.contextmanager
    def recorded(self, report: CopyReport, *, is_all: bool) -> Iterator[None]:
        """Record what the report has at the end of a ``with`` block, even if an error ends it.

        Args:
            report: The report of the copy.
            is_all: All snapshots are copied, and not only some that were named.
        """
        try:
            yield
        except CiuicError as error:
            self._note(report, error.message, is_complete=False, is_failed=True)
            raise
        else:
            self._note(report, _refusals(report), is_complete=is_all)

    def note_store(self, copy: Store) -> None:
        """Record which store is at the address, and how it was reached.

        If it is another one than before, this begins a new record.
        """
        store_id = copy.header.store_id
        self.is_other = self.record.store_id not in {"", store_id}
        if self.is_other:
            self.record = CopyRecord.new(self.record.address, self.record.tried_ns)
        self.record.store_id = store_id
        if copy.bucket is not None:
            # The library, which reads no configuration, opens the copy with these.
            self.record.endpoint = self._options.endpoint
            self.record.region = self._options.region
            self.record.credentials_file = self._options.credentials_file
            self.record.path_style = self._options.path_style

    def note_differences(self, copy: Store, report: CopyReport) -> list[str]:
        """Record which snapshots of the copy this store has never had: see ``differences``.

        Returns:
            What the last copy did not say.

        Raises:
            StoreError: One of the stores cannot be read.
        """
        known = self.record.differences
        self.record.differences = differences(self._source, copy, report.copy)
        return [what for what in self.record.differences if what not in known]

    def sent(self) -> Mapping[SnapshotId, int]:
        """Return which states the copy has got: see ``label_present``."""
        return self.record.sent() if self._is_configured else NOTHING_SENT

    def is_current(self, within_s: float) -> bool:
        """Return whether a copy did everything less than ``within_s`` ago, and nothing is new."""
        record = self.record
        since_s = (self._clock.now_ns() - (record.done_ns or 0)) / _NS
        known = {one: number for one, number in record.marks.items() if one not in record.followed}
        return not record.problem and 0 <= since_s < within_s and known == self._marks

    def is_outdated(self) -> bool:
        """Return whether the listed snapshots or marks here have changed since the copy began."""
        marks = {snapshot.id: snapshot.mark for snapshot in list_snapshots(self._source)}
        return marks != self._marks

    def _note(
        self, report: CopyReport, problem: str, *, is_complete: bool, is_failed: bool = False
    ) -> None:
        record, old = self.record, self.record.marks
        there = [*[copied.id for copied in report.copied], *report.present, *report.forgotten]
        found: dict[str, int] = {one: self._marks.get(one, UNSENT) for one in there}
        found |= dict.fromkeys(report.unlabelled, UNSENT)
        if not self._is_configured:
            found |= {one: old[one] for one in report.present if one in old}
        if is_complete:
            # A user may bring back what is in the trash here, and the copy may still have it.
            kept = {one: number for one, number in old.items() if one not in self._marks}
        else:
            # A copy sends the states of snapshots that were there last, so not this one.
            kept = old
            found = {one: found[one] for one in found if one not in report.present}
        known = self._marks.keys() | set(self._source.trash.ids())
        record.marks = {one: n for one, n in {**kept, **found}.items() if SnapshotId(one) in known}
        record.followed = [
            followed for followed in record.followed if SnapshotId(followed) in known
        ]
        record.problem = problem
        if not is_failed:
            record.damaged = len(report.damaged_there)
        if is_complete and not problem:
            record.done_ns = self._clock.now_ns()
        if self._writes:
            self.failure = write_record(self._source.path, record)


def _refusals(report: CopyReport) -> str:
    if not report.refused:
        count = len(report.damaged_there)
        if not count:
            return ""
        stay = inflected(count, "stays", "stay")
        lacks = "this store lacks the lost chunks too"
        return f"{counted(count, 'snapshot')} in it {stay} damaged: {lacks}"
    name, what = next(iter(report.refused.items()))
    others = len(report.refused) - 1
    more = f", and {counted(others, 'other')}" if others else ""
    return f"{name} could not be copied: {what}{more}"
