"""Copies snapshots to another store.

For each snapshot, parents first:

send     walk its trees, and send the chunks that the copy lacks, as the frames that they are in
seal     after every 64 MiB: everything that was sent is durable
commit   write the manifest, byte for byte: this is the commit

A copy that is stopped, killed or out of space can be run again: it does not send again what is in
the copy, with or without a manifest. A snapshot whose chunks cannot be read is refused and named,
and the others are copied.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from ciuic.catalog import remember
from ciuic.catalog.removed import REMOVED, was_removed
from ciuic.copy.choose import announce_copies, choose_snapshots
from ciuic.copy.labels import NOTHING_SENT, label, label_present
from ciuic.copy.limit import BandwidthLimit
from ciuic.copy.lost_packs import lacks_packs, note_damaged_there
from ciuic.copy.report import CopiedSnapshot, CopyReport
from ciuic.errors import (
    CancelledError,
    CiuicError,
    CorruptionError,
    SnapshotNotFoundError,
    UnknownFormatError,
)
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.store.transfer.receiver import CountingReceiver, StoreReceiver
from ciuic.store.transfer.sender import Sender
from ciuic.store.transfer.trees import TreeSender
from ciuic.system.buffers import prepare_for_bulk
from ciuic.system.clock import Clock

__all__ = [
    "CopyRequest",
    "OnCopied",
    "OnProgress",
    "copy_snapshots",
    "foresee_copy",
    "send_again",
    "shows_nothing",
]

_COMMIT_BYTES: Final = 64 * 1024 * 1024
"""Snapshots are committed together until this much was sent: each commit costs several syncs."""

OnCopied = Callable[[CopiedSnapshot], None]
OnProgress = Callable[[SnapshotId, int, int, int], None]
"""Receives the snapshot, how many were walked before it, how many there are, and bytes sent."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What to copy.

    Attributes:
        named: The snapshots; empty: all.
        parity: The share of each new pack that its parity takes, 0 to 1.
        limit_bytes_per_s: The bandwidth limit; 0: none.
        is_checked: Every chunk is decoded, and compared with its ID, before it is sent.
    """

    named: frozenset[SnapshotId] = frozenset()
    parity: float = 0.0
    limit_bytes_per_s: int = 0
    is_checked: bool = False


class _Ready(NamedTuple):
    """A snapshot whose chunks were sent.

    Attributes:
        copied: What was sent for it.
        summary: The summary of its manifest.
        state: The summary with its newest mark.
        data: The bytes of its manifest.
    """

    copied: CopiedSnapshot
    summary: SnapshotSummary
    state: SnapshotSummary
    data: bytes


def shows_nothing(_snapshot_id: SnapshotId, _done: int, _total: int, _sent_bytes: int) -> None:
    """Show no progress."""


def foresee_copy(
    source: Store, copy: Store | None, request: CopyRequest, report: CopyReport, *, clock: Clock
) -> None:
    """Add to the report what ``copy_snapshots`` would do. Changes nothing, and reads only trees.

    Args:
        source: The store that has the snapshots.
        copy: The copy, open for reading; None if it does not exist yet.
        request: What to copy.
        report: Receives the result. The bytes of chunks that would be encoded again are counted
            with their plain length.
        clock: Measures.
    """
    sender = Sender(source, CountingReceiver(copy), lambda _size_bytes: None)
    trees = TreeSender(source, sender, lambda: None)
    run = _Run(source, report, sender, trees)
    began_s = clock.monotonic_s()
    there = set() if copy is None else copy.listed_ids()
    again = copy is not None and lacks_packs(copy)
    if copy is not None:
        run.send_lost(copy)
    for snapshot in choose_snapshots(source, copy, request.named, report, again=again):
        ready = run.send(snapshot)
        if ready is None:
            continue
        if snapshot.id in there and (not request.named or not ready.copied.chunks):
            report.add_present(ready.copied)
        else:
            report.copied.append(ready.copied)
    report.sent_bytes = sender.sent.size_bytes
    report.total_s = clock.monotonic_s() - began_s


def copy_snapshots(
    source: Store,
    copy: Store,
    request: CopyRequest,
    report: CopyReport,
    *,
    clock: Clock,
    sent: Mapping[SnapshotId, int] = NOTHING_SENT,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = shows_nothing,
    on_copied: OnCopied = lambda _copied: None,
) -> None:
    """Copy snapshots to a store that is open for writing.

    Args:
        source: The store that has the snapshots.
        copy: The store that gets them.
        request: What to copy.
        report: Receives what was done, even if an error ends the copy.
        clock: Measures, and waits for the bandwidth limit.
        sent: See ``label_present``.
        cancelled: Asked often.
        progress: Called often.
        on_copied: Receives each snapshot when it is committed.

    Raises:
        StoreError: One of the stores failed, or the copy is full. What the report has stays.
        CancelledError: ``cancelled`` turned true; the same.
    """
    prepare_for_bulk()
    began_s = clock.monotonic_s()
    again = lacks_packs(copy)
    chosen = choose_snapshots(source, copy, request.named, report, again=again)
    chosen = announce_copies(copy, chosen, request.named, report)
    ids = [snapshot.id for snapshot in chosen]
    watch = _Watch(ids, request.limit_bytes_per_s, clock, cancelled, progress)
    receiver = StoreReceiver(copy, parity=request.parity)
    sender = Sender(source, receiver, watch.spend, is_checked=request.is_checked)
    run = _Run(source, report, sender, TreeSender(source, sender, watch.check))
    has_parity = bool(request.parity) and copy.bucket is None
    commits = _Commits(copy, receiver, report, on_copied, request, has_parity=has_parity)
    try:
        run.send_lost(copy)
        for snapshot in chosen:
            ready = run.send(snapshot)
            watch.snapshot_done()
            if ready is not None:
                commits.add(ready)
        commits.commit()
        note_damaged_there(copy, request.named, report)
    except BaseException:
        receiver.abort()
        raise
    else:
        label_present(source, copy, report, sent)
    finally:
        report.sent_bytes = sender.sent.size_bytes
        report.total_s = clock.monotonic_s() - began_s


def send_again(
    source: Store,
    copy: Store,
    lost: Collection[ChunkId],
    request: CopyRequest,
    report: CopyReport,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
) -> int:
    """Note chunks of a copy as lost, and send them again; returns how many were sent.

    Args:
        source: The store that has the snapshots.
        copy: The store that gets them, open for writing.
        lost: Chunks that cannot be read there.
        request: What was copied.
        report: Receives what was done, in addition to what it has.
        clock: Measures, and waits for the bandwidth limit.
        cancelled: Asked often.

    Raises:
        StoreError: One of the stores failed, or the copy is full. The chunks stay noted.
        CancelledError: ``cancelled`` turned true; the same.
    """
    began_s = clock.monotonic_s()
    copy.index.drop_damaged(sorted(lost))
    watch = _Watch([], request.limit_bytes_per_s, clock, cancelled, shows_nothing)
    receiver = StoreReceiver(copy, parity=request.parity)
    sender = Sender(source, receiver, watch.spend, is_checked=request.is_checked)
    run = _Run(source, report, sender, TreeSender(source, sender, watch.check))
    try:
        run.send_lost(copy)
        report.stored_bytes += receiver.finish()
        note_damaged_there(copy, request.named, report)
    except BaseException:
        receiver.abort()
        raise
    finally:
        report.sent_bytes += sender.sent.size_bytes
        report.total_s += clock.monotonic_s() - began_s
    return sender.sent.chunks


class _Watch:
    """Watches a copy: ends it if it is cancelled, shows how far it is, and limits its bandwidth.

    Args:
        snapshot_ids: The snapshots, in the order in which they are sent.
        limit_bytes_per_s: The bandwidth limit; 0: none.
        clock: Measures, and waits for the bandwidth limit.
        cancelled: Asked at each check.
        progress: Called at each check.
    """

    def __init__(
        self,
        snapshot_ids: Sequence[SnapshotId],
        limit_bytes_per_s: int,
        clock: Clock,
        cancelled: Callable[[], bool],
        progress: OnProgress,
    ) -> None:
        self._ids = snapshot_ids
        self._limit = BandwidthLimit(limit_bytes_per_s, clock, self.check)
        self._cancelled = cancelled
        self._progress = progress
        self._done = 0
        self._sent_bytes = 0

    def check(self) -> None:
        """Show how far the copy is.

        Raises:
            CancelledError: It is cancelled.
        """
        if self._cancelled():
            raise CancelledError("the copy was stopped", hint="Run it again: it continues.")
        if self._ids:
            # What is sent after the last snapshot belongs to it.
            now = min(self._done, len(self._ids) - 1)
            self._progress(self._ids[now], now, len(self._ids), self._sent_bytes)

    def spend(self, size_bytes: int) -> None:
        """Wait until the limit allows what was sent before, then count these bytes."""
        self._limit.spend(size_bytes)
        self._sent_bytes += size_bytes

    def snapshot_done(self) -> None:
        """Note that a snapshot was sent, or refused."""
        self._done += 1


class _Run:
    """Sends snapshots, and refuses those that cannot be read."""

    def __init__(
        self, source: Store, report: CopyReport, sender: Sender, trees: TreeSender
    ) -> None:
        self._source = source
        self._report = report
        self._sender = sender
        self._trees = trees

    def send_lost(self, copy: Store) -> None:
        """Send the chunks that a scrub of the copy has found to be lost, if the source has them."""
        lost = list(copy.index.lost_chunks())
        here = self._source.reader.places(lost) if lost else {}
        before = self._sender.sent.chunks
        for chunk_id in sorted(here, key=lambda one: (here[one].pack_id, here[one].offset_bytes)):
            with suppress(CorruptionError, UnknownFormatError):
                self._sender.send([chunk_id])
                self._sender.finish()
        self._report.resent_chunks += self._sender.sent.chunks - before

    def send(self, summary: SnapshotSummary) -> _Ready | None:
        """Send all chunks of a snapshot; returns None if it is refused."""
        before = self._sender.sent
        try:
            manifest, data = self._source.manifests.read_file(summary.id)
            for root in manifest.roots:
                if root.tree:
                    self._trees.send(root.tree)
        except (CorruptionError, SnapshotNotFoundError, UnknownFormatError) as error:
            if was_removed(self._source, summary.id):
                what, is_damage = f"it {REMOVED}", False
            else:
                what, is_damage = error.message, isinstance(error, CorruptionError)
            self._report.refuse({summary.id: what}, is_damage=is_damage)
            return None
        sent = self._sender.sent
        copied = CopiedSnapshot(
            summary.id,
            summary.taken_ns,
            sent.chunks - before.chunks,
            sent.size_bytes - before.size_bytes,
        )
        return _Ready(copied, manifest.summary, summary, data)


class _Commits:
    """Commits snapshots whose chunks were sent, several at a time."""

    def __init__(
        self,
        copy: Store,
        receiver: StoreReceiver,
        report: CopyReport,
        on_copied: OnCopied,
        request: CopyRequest,
        *,
        has_parity: bool,
    ) -> None:
        self._copy = copy
        self._receiver = receiver
        self._report = report
        self._on_copied = on_copied
        self._is_named = bool(request.named)
        self._has_parity = has_parity
        self._ready: list[_Ready] = []
        self._ready_bytes = 0

    def add(self, ready: _Ready) -> None:
        """Commit a snapshot, now or with those that follow."""
        self._ready.append(ready)
        self._ready_bytes += ready.copied.sent_bytes
        if self._ready_bytes >= _COMMIT_BYTES:
            self.commit()

    def commit(self) -> None:
        """Make everything that was sent durable, then write the manifests."""
        self._report.stored_bytes += self._receiver.finish()
        ready, self._ready, self._ready_bytes = self._ready, [], 0
        for one in ready:
            # The ID is taken if the snapshot was there before; it may have lacked chunks.
            if self._copy.adopt(one.copied.id, one.data):
                self._note_failures(one)
            elif not (self._is_named and one.copied.chunks):
                self._report.add_present(one.copied)
                continue
            self._report.copied.append(one.copied)
            self._on_copied(one.copied)

    def _note_failures(self, one: _Ready) -> None:
        """Do what may fail after a commit; the snapshot is in the copy even if it fails."""
        snapshot_id = one.copied.id
        remembering = remember(self._copy, one.summary)
        labelling = label(self._copy, one.summary, one.state, has_copy=self._has_parity)
        failures: Collection[CiuicError | None] = (
            remembering,
            self._copy.manifests.copies.keep(snapshot_id, self._copy.header)
            if self._has_parity
            else None,
            labelling,
        )
        if labelling is not None:
            self._report.unlabelled.append(snapshot_id)
        for error in failures:
            if error is not None:
                self._report.notes.append(f"{snapshot_id} was copied, but {error.message}")
