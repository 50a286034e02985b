"""Find the snapshots of the library in a store, by step, tag, ID or time."""

from collections.abc import Collection
from dataclasses import dataclass

from ciuic.catalog import find_snapshot, list_snapshots
from ciuic.errors import SnapshotNotFoundError, UsageError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary, complete_ones, newest_first
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.store import Store
from ciuic.training.values.arguments import checked_ref

__all__ = [
    "DCP",
    "FULL",
    "WEIGHTS",
    "SavedSnapshot",
    "begun_snapshots",
    "dcp_snapshots",
    "find_saved",
    "run_of",
    "saved_snapshots",
    "tags_of",
]

FULL = "full"
WEIGHTS = "weights"
DCP = "dcp"
"""The tag of a checkpoint of ``torch.distributed.checkpoint``."""
_RUN = "run-"
"""The first part of the tag of a run."""


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """What a list says about a snapshot of the library.

    Attributes:
        id: Its ID.
        taken_ns: When the state was copied, in nanoseconds since 1970.
        channel: ``full``, or ``weights``: the weights alone.
        epoch: The epoch, if it was a whole number.
        step: The step, if one was given.
        pinned: It is never removed.
        logical_bytes: Length of its files.
        stored_bytes: What it added to the store.
        run: The name of the run that saved it; None for a run without a name.
        complete: False: a save has ended before all of its layers were durable.
    """

    id: SnapshotId
    taken_ns: int
    channel: str
    epoch: int | None
    step: int | None
    pinned: bool
    logical_bytes: int
    stored_bytes: int
    run: str | None
    complete: bool = True

    @classmethod
    def of(cls, summary: SnapshotSummary) -> "SavedSnapshot":
        """Return what a summary says."""
        return cls(
            summary.id,
            summary.taken_ns,
            WEIGHTS if WEIGHTS in summary.tags else FULL,
            _number(summary, "epoch"),
            _number(summary, "step"),
            summary.pinned,
            summary.logical_bytes,
            summary.stored_bytes,
            run_of(summary.tags),
            summary.is_complete,
        )


def tags_of(channel: str, run: str | None, epoch: object, step: int | None) -> tuple[str, ...]:
    """Return the tags of a snapshot: its channel, its run, its epoch and its step."""
    tags = [channel]
    if run is not None:
        tags.append(f"{_RUN}{run}")
    if type(epoch) is int:
        tags.append(f"epoch-{epoch}")
    if step is not None:
        tags.append(f"step-{step}")
    return tuple(tags)


def run_of(tags: Collection[str]) -> str | None:
    """Return the run that a snapshot with these tags belongs to; None: one without a name."""
    # The name of a distributed checkpoint is a tag as well, and may begin in the same way.
    found = [tag.removeprefix(_RUN) for tag in tags if tag.startswith(_RUN) and DCP not in tags]
    return found[0] if found else None


def saved_snapshots(store: Store) -> list[SnapshotSummary]:
    """Return the complete snapshots of ``SnapshotManager`` in a store, newest first."""
    return complete_ones(begun_snapshots(store))


def begun_snapshots(store: Store) -> list[SnapshotSummary]:
    """Return the snapshots of ``saved_snapshots`` and the incomplete ones, newest first."""
    return [summary for summary in _of_library(store) if DCP not in summary.tags]


def dcp_snapshots(store: Store) -> list[SnapshotSummary]:
    """Return the checkpoints of ``torch.distributed.checkpoint`` in a store, newest first."""
    return [summary for summary in _of_library(store) if DCP in summary.tags]


def find_saved(store: Store, ref: int | str, run: str | None) -> SnapshotSummary:
    """Return the snapshot that ``ref`` means: a step, a tag, an ID, its prefix, or a time.

    A step or tag means a snapshot of this run; of several, the newest with the full state, else the
    newest. An ID or a time means a snapshot of any run.

    Raises:
        SnapshotNotFoundError: There is none.
        UsageError: ``ref`` cannot mean a snapshot, or means a snapshot of files.
    """
    ref = checked_ref(ref)
    whose = "" if run is None else f" of the run {run}"
    tag = f"step-{ref}" if isinstance(ref, int) else ref
    tagged = [
        summary
        for summary in saved_snapshots(store)
        if tag in summary.tags and run_of(summary.tags) == run
    ]
    if tagged:
        return next((summary for summary in tagged if FULL in summary.tags), tagged[0])
    if isinstance(ref, int):
        raise SnapshotNotFoundError(f"there is no snapshot of step {ref}{whose} in {store.name}")
    untagged = f"no snapshot{whose} has this tag"
    summary = find_snapshot(store, ref, holding=[STATE_ROOT], untagged=untagged)
    if STATE_ROOT not in summary.roots:
        raise UsageError(f"{summary.id} is a snapshot of files, which 'ciuic restore' restores")
    if DCP in summary.tags:
        raise UsageError(
            f"{summary.id} is a checkpoint of torch.distributed.checkpoint",
            hint="Load it with ciuic.dcp.CiuicReader.",
        )
    return summary


def _number(summary: SnapshotSummary, name: str) -> int | None:
    for tag in summary.tags:
        head, _, text = tag.rpartition("-")
        if head == name and text.isascii() and text.isdigit():
            return int(text)
    return None


def _of_library(store: Store) -> list[SnapshotSummary]:
    return [
        summary for summary in newest_first(list_snapshots(store)) if STATE_ROOT in summary.roots
    ]
