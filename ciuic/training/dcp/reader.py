"""``CiuicReader``: loads checkpoints of ``torch.distributed.checkpoint`` from a store."""

import dataclasses
import io
import json
import os
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ciuic.catalog import find_snapshot
from ciuic.errors import CorruptionError, SnapshotNotFoundError, UsageError
from ciuic.hints import aiming
from ciuic.model import SnapshotSummary
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.store import Store
from ciuic.training.dcp.document import DOCUMENT_NAME, Stored, read_document
from ciuic.training.dcp.shards import check_bytes
from ciuic.training.dcp.writer import tag_of
from ciuic.training.finding import DCP, dcp_snapshots
from ciuic.training.loading.files import StateFiles
from ciuic.training.loading.opening import opened_with_copies
from ciuic.training.values.arguments import checked_address, shown
from ciuic.training.values.arrays import rebuild

__all__ = ["CiuicReader"]


class CiuicReader(StorageReader):  # type: ignore[misc] # torch is optional: its types are unknown
    """Loads a checkpoint that ``CiuicWriter`` saved; every byte that is read is checked.

    Args:
        save_dir: The store's directory, or the URL of its bucket.
        ref: The checkpoint: ``latest``, a tag, an ID, or a time.
    """

    def __init__(self, save_dir: str | os.PathLike[str], ref: str = "latest") -> None:
        super().__init__()
        self._path = checked_address(save_dir)
        if not isinstance(ref, str):
            raise UsageError(
                f"ref={shown(ref)} does not name a checkpoint",
                hint="Give 'latest', a tag, an ID or a time, as text.",
            )
        self._ref = ref
        self._summary: SnapshotSummary | None = None
        self._stored: dict[Any, Stored] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load; the last part of ``checkpoint_id`` is the checkpoint's tag."""
        self._summary, self._stored = None, {}
        if checkpoint_id is not None:
            self._ref = tag_of(checkpoint_id)

    def read_metadata(self, *_: Any) -> Metadata:
        """Find the checkpoint, and return its metadata.

        Raises:
            SnapshotNotFoundError: There is none.
            CorruptionError: It is damaged.
        """
        with aiming(self._path), opened_with_copies(self._path) as store:
            self._summary = _find(store, self._ref)
            data = StateFiles(store, self._summary).bytes_of(DOCUMENT_NAME)
        metadata = read_document(data.tobytes())
        metadata.storage_meta = StorageMeta(checkpoint_id=self._path, save_id=self._summary.id)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, *_: Any, **__: Any) -> None:
        """See ``StorageReader``."""
        self._stored = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Note which snapshot this rank has found."""
        return dataclasses.replace(plan, storage_data=self._found.id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Refuse a load whose ranks found different snapshots: one was committed meanwhile.

        Raises:
            UsageError: The ranks have found different snapshots.
        """
        found = sorted({str(plan.storage_data) for plan in plans})
        if len(found) > 1:
            raise UsageError(
                f"the ranks found different snapshots as {self._ref!r}: {', '.join(found)}",
                hint="A save was under way. Load again, or give the ID.",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Read the items of a plan into the places that the planner gives.

        Raises:
            CorruptionError: A byte of the snapshot is damaged or missing.
            TypeError: Bytes would run code when they are unpickled.
        """
        with aiming(self._path), opened_with_copies(self._path) as store:
            files = _Shards(StateFiles(store, self._found))
            # By file and tensor: the items that need one tensor come one after the other.
            for item in sorted(plan.items, key=lambda item: self._place(item)[:2]):
                place = self._place(item)
                if item.type == LoadItemType.BYTE_IO:
                    data = files.bytes_of(place).tobytes()
                    # The planner unpickles it without a check.
                    check_bytes(data, item.storage_index.fqn)
                    planner.load_bytes(item, io.BytesIO(data))
                else:
                    _load_tensor(files, place, item, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this can name a checkpoint."""
        return bool(tag_of(checkpoint_id))

    @property
    def _found(self) -> SnapshotSummary:
        if self._summary is None:
            raise UsageError("no metadata has been read", hint="Use torch.distributed.checkpoint.")
        return self._summary

    def _place(self, item: Any) -> Stored:
        try:
            return self._stored[item.storage_index]
        except KeyError:
            raise CorruptionError(
                f"{self._found.id} has no place for {item.storage_index.fqn}"
            ) from None


class _Shards:
    """The tensors of a snapshot's files, read by ranges."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._tables: dict[str, tuple[int, dict[str, Any]]] = {}

    def bytes_of(self, place: Stored, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Read a range of the bytes of a tensor; ``end`` None: to its last byte."""
        start, table = self._table(place.file)
        try:
            first, last = table[place.name]["data_offsets"]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"{place.file} lacks {place.name}") from error
        stop = last if end is None else first + end
        if not 0 <= first + begin <= stop <= last:
            raise CorruptionError(f"{place.name} in {place.file} is shorter than it should be")
        return self._files.bytes_of(place.file, start + first + begin, start + stop)

    def _table(self, file: str) -> tuple[int, dict[str, Any]]:
        if file not in self._tables:
            length = int.from_bytes(self._files.bytes_of(file, 0, 8).tobytes(), "little")
            text = self._files.bytes_of(file, 8, 8 + length).tobytes()
            try:
                self._tables[file] = 8 + length, json.loads(text)
            except ValueError as error:
                raise CorruptionError(f"{file} has no safetensors header") from error
        return self._tables[file]


def _load_tensor(files: _Shards, place: Stored, item: Any, planner: LoadPlanner) -> None:
    """Read the rows of a stored tensor that an item needs, and copy the item's part of them."""
    array = place.array
    if array is None:
        raise CorruptionError(f"{place.name} in {place.file} is not a tensor")
    shape = list(array["shape"])
    offsets, lengths = list(item.storage_offsets), list(item.lengths)
    fits = len(offsets) == len(lengths) == len(shape) and all(
        offset >= 0 and offset + length <= size
        for offset, length, size in zip(offsets, lengths, shape, strict=True)
    )
    if not fits:
        raise CorruptionError(f"{place.name} in {place.file} has the wrong shape")
    target = planner.resolve_tensor(item).detach()
    tensor = _rows(files, place, array, offsets, lengths)
    for dimension in range(1, len(shape)):
        tensor = tensor.narrow(dimension, offsets[dimension], lengths[dimension])
    if target.shape != tensor.shape:
        raise CorruptionError(
            f"{place.name} in {place.file} has the shape {tuple(tensor.shape)}, and"
            f" {tuple(target.shape)} is needed"
        )
    target.copy_(tensor)
    planner.commit_tensor(item, target)


def _rows(
    files: _Shards, place: Stored, array: dict[str, Any], offsets: list[int], lengths: list[int]
) -> Any:
    """Read the rows ``offsets[0]`` to ``offsets[0] + lengths[0]`` of a tensor."""
    shape = list(array["shape"])
    if not shape:
        return rebuild(array, files.bytes_of(place))
    wanted = [lengths[0], *shape[1:]]
    if not all(wanted):
        return rebuild({**array, "shape": wanted}, np.empty(0, np.uint8))
    row_bytes = getattr(torch, array["dtype"]).itemsize
    for size in shape[1:]:
        row_bytes *= size
    begin = offsets[0] * row_bytes
    data = files.bytes_of(place, begin, begin + lengths[0] * row_bytes)
    return rebuild({**array, "shape": wanted}, data)


def _find(store: Store, ref: str) -> SnapshotSummary:
    """Return the checkpoint that ``ref`` means."""
    saved = dcp_snapshots(store)
    if ref == "latest":
        if not saved:
            raise SnapshotNotFoundError(
                f"no snapshot is a checkpoint of torch.distributed.checkpoint in {store.name}",
                hint="Save one with CiuicWriter.",
            )
        return saved[0]
    tagged = [summary for summary in saved if ref in summary.tags]
    if tagged:
        return tagged[0]
    untagged = "no checkpoint has this tag"
    summary = find_snapshot(store, ref, holding=[STATE_ROOT], untagged=untagged)
    if STATE_ROOT not in summary.roots or DCP not in summary.tags:
        raise UsageError(f"{summary.id} is not a checkpoint of torch.distributed.checkpoint")
    return summary
