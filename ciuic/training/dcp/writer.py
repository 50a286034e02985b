"""``CiuicWriter``: saves checkpoints of ``torch.distributed.checkpoint`` to a store."""

import contextlib
import dataclasses
import mmap
import os
import warnings
from collections.abc import Iterator
from typing import Any, Final

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ciuic.catalog import check_tags
from ciuic.errors import CiuicError, UsageError
from ciuic.hints import aiming
from ciuic.ids import SnapshotId
from ciuic.snapshot.memory import MemoryRequest, take_from_memory
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.store.addressed import ensure_store, open_at_address
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock
from ciuic.training.dcp.document import DOCUMENT_NAME, Stored, write_document
from ciuic.training.dcp.handover import Connection, Shard, the_exchange
from ciuic.training.dcp.shards import shard_name, stage_shard
from ciuic.training.finding import DCP
from ciuic.training.retention.keeping import Keeper
from ciuic.training.retention.planning import Rules
from ciuic.training.retention.removing import remove_older
from ciuic.training.values.arguments import checked_address, shown

__all__ = ["CiuicWriter", "tag_of"]

_LOCK_WAIT_S: Final = 600.0


def tag_of(checkpoint_id: str | os.PathLike[str]) -> str:
    """Return the tag for a ``checkpoint_id``: the last part of a path.

    Raises:
        UsageError: It is not a path.
    """
    if not isinstance(checkpoint_id, str | os.PathLike):
        raise UsageError(
            f"checkpoint_id={shown(checkpoint_id)} is not text",
            hint="Give text, such as checkpoint_id='step-500'; its last part becomes a tag.",
        )
    return os.path.basename(os.fspath(checkpoint_id).rstrip("/"))


class CiuicWriter(StorageWriter):  # type: ignore[misc] # torch is optional: its types are unknown
    """Saves each checkpoint as a snapshot, which exists only when all ranks' parts are durable.

    All ranks must run on one machine. The rank that coordinates the save stores and commits.

    Args:
        save_dir: The store's directory, or the URL of its bucket, such as s3://bucket/prefix; it is
            created if it is missing.
        max_snapshots: Checkpoints that stay in the store, pinned ones not counted; None: all.
    """

    def __init__(
        self, save_dir: str | os.PathLike[str], *, max_snapshots: int | None = None
    ) -> None:
        super().__init__()
        self._path = checked_address(save_dir)
        self._rules = None if max_snapshots is None else Rules(max_snapshots)
        self._tags: tuple[str, ...] = (DCP,)
        self._rank = 0
        self._is_coordinator = False
        self._own: dict[str, Shard] = {}
        self._connection: Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the process that ``async_save`` may start."""
        return {**self.__dict__, "_own": {}, "_connection": None}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another checkpoint; the last part of ``checkpoint_id`` becomes its tag."""
        self._tags = (DCP,) if checkpoint_id is None else (DCP, tag_of(checkpoint_id))
        check_tags(self._tags)

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **kwargs: Any) -> None:
        """See ``StorageWriter``.

        Raises:
            UsageError: The ranks are to save without coordination.
            StoreError: The store cannot be created.
        """
        if not kwargs.get("use_collectives", True):
            raise UsageError(
                "with use_collectives=False no rank commits",
                hint="Leave it out: a snapshot exists when all ranks' parts are durable.",
            )
        self._is_coordinator = is_coordinator
        self._rank = kwargs.get("rank") or 0
        self._drop()
        if is_coordinator:
            with aiming(self._path):
                ensure_store(self._path, os.environ, SystemClock())

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """See ``StorageWriter``."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell each rank where to hand its part over."""
        address = the_exchange().address if len(plans) > 1 else None
        return [dataclasses.replace(plan, storage_data=address) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """Copy this rank's items, and hand them to the rank that commits.

        Raises:
            TypeError: An item cannot be stored; the message names it.
            StoreError: The rank that commits cannot be reached.
        """
        future: Future[list[WriteResult]] = Future()
        future.set_result(self._write(plan, planner) if plan.items else [])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Store the parts of all ranks, and commit them as one snapshot.

        Raises:
            StoreError: The store failed, or a rank has ended; nothing is committed, unless this
                failed to remove old checkpoints.
        """
        stored: dict[Any, Stored] = {}
        shards: dict[str, Shard] = {}
        for result in [result for of_rank in results for result in of_rank]:
            key, place = result.storage_data
            stored[result.index] = place
            if key not in shards:
                own = self._own.get(key)
                shards[key] = own if own is not None else the_exchange().take(key)
        try:
            files = [MemoryFile(os.fsencode(shard.name), shard.parts) for shard in shards.values()]
            document = write_document(metadata, stored)
            files.append(MemoryFile(DOCUMENT_NAME.encode(), (document,)))
            with aiming(self._path):
                snapshot_id = self._commit(tuple(files))
        finally:
            self._own = {}
        metadata.storage_data = stored
        metadata.storage_meta = StorageMeta(checkpoint_id=self._path, save_id=snapshot_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this can name a checkpoint: its last part becomes a tag."""
        return bool(tag_of(checkpoint_id))

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        shard = stage_shard(plan, planner)
        name = shard_name(self._rank)
        try:
            if self._is_coordinator:
                key = f"{self._rank}-own"
                size_bytes = os.fstat(shard.buffer.fd).st_size
                memory = memoryview(mmap.mmap(shard.buffer.fd, size_bytes, access=mmap.ACCESS_READ))
                parts = tuple([memory[begin : begin + size] for begin, size in shard.parts])
                self._own = {key: Shard(name, parts)}
            else:
                self._connection = Connection(plan.storage_data, self._rank)
                key = self._connection.hand_over(shard.buffer.fd, name, shard.parts)
        finally:
            # The mapping, here or in the process that commits, keeps the memory.
            shard.buffer.close()
        return [
            WriteResult(
                index=item.index,
                size_in_bytes=0 if array is None else item.tensor_storage_size() or 0,
                storage_data=(key, Stored(name, own_name, array)),
            )
            for item, (own_name, array) in zip(plan.items, shard.rows, strict=True)
        ]

    def _commit(self, files: tuple[MemoryFile, ...]) -> str:
        clock = SystemClock()
        request = MemoryRequest(files, clock.now_ns(), self._tags)
        overdue = None
        with open_at_address(
            self._path, os.environ, write=True, only_adds=True, wait_s=_LOCK_WAIT_S
        ) as store:
            report = take_from_memory(store, request, clock=clock)
            if self._rules is not None:
                overdue = self._remove_older(store, self._rules, report.id)
        if overdue is not None and self._rules is not None:
            with _warned(report.id), aiming(self._path):
                remove_older(self._path, Keeper(clock), DCP, self._rules, None, overdue=overdue)
        return str(report.id)

    def _remove_older(self, store: Store, rules: Rules, saved: SnapshotId) -> int | None:
        """Apply ``max_snapshots`` in a bucket; in a directory, return how many are overdue."""
        keeper = Keeper(SystemClock())
        with _warned(saved), aiming(self._path):
            if store.bucket is None:
                return keeper.overdue(store, DCP, rules)
            keeper.keep(store, DCP, rules)
        return None

    def _drop(self) -> None:
        """Forget what an earlier save of this writer has left."""
        self._own = {}
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextlib.contextmanager
def _warned(saved: SnapshotId) -> Iterator[None]:
    """Make a failure to remove older checkpoints a warning: the new one exists."""
    try:
        yield
    except CiuicError as error:
        warnings.warn(
            f"ciuic: {saved} was saved, but older checkpoints could not be removed: {error}",
            stacklevel=2,
        )
