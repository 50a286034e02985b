"""The items of one rank as one safetensors file in shared memory."""

import io
import pickle
import re
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType

from ciuic.training.dcp.handover import Part
from ciuic.training.files import TensorFile, TensorRow, header
from ciuic.training.staging.buffer import StagingBuffer
from ciuic.training.values.arrays import (
    ArrayLeaf,
    UnstorableError,
    copy_arrays,
    describe,
    place_for,
)

__all__ = ["StagedShard", "check_bytes", "shard_name", "stage_shard"]

_ALIGNMENT_BYTES: Final = 64


class _Item(NamedTuple):
    """A tensor, or bytes, with its row in the file's header."""

    leaf: ArrayLeaf
    value: Any  # of torch or numpy: see below
    row: TensorRow


class StagedShard:
    """The items of one rank, copied.

    Attributes:
        buffer: The shared memory.
        parts: The bytes of the file there, in order.
        rows: For each item its name in the file and what ``rebuild`` needs; None: it is bytes.
    """

    def __init__(
        self,
        buffer: StagingBuffer,
        parts: tuple[Part, ...],
        rows: list[tuple[str, dict[str, Any] | None]],
    ) -> None:
        self.buffer, self.parts, self.rows = buffer, parts, rows


def shard_name(rank: int) -> str:
    """Return the path of a rank's file below the root of the snapshot."""
    return f"rank-{rank:05}/shards.safetensors"


def check_bytes(data: bytes, fqn: str) -> None:
    """Refuse bytes that run code when they are unpickled.

    Raises:
        TypeError: They hold more than tensors, numbers, text and containers.
    """
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Not the whole message: torch also advises the user to run the code.
        found = re.search(r"WeightsUnpickler error: *([^\n]*)", str(error))
        reason = found[1] if found is not None else "it is not a pickle of torch.save"
        raise TypeError(
            f"{fqn} cannot be stored or loaded without running code of its pickle: {reason}"
        ) from None


def stage_shard(plan: SavePlan, planner: SavePlanner) -> StagedShard:
    """Copy the items of a plan into new shared memory.

    Raises:
        TypeError: An item cannot be stored; the message names it. Nothing is kept.
        ResourceError: There is not enough memory.
    """
    table = TensorFile()
    rows: list[tuple[str, dict[str, Any] | None]] = []
    items: list[_Item] = []
    for item in plan.items:
        leaf, value = _leaf(item, planner)
        name = table.add(item.index.fqn, leaf.stored_dtype, leaf.stored_shape, leaf.size_bytes)
        is_bytes = item.type == WriteItemType.BYTE_IO
        rows.append((name, None if is_bytes else leaf.description))
        items.append(_Item(leaf, value, table.rows[-1]))
    # The widest elements first: every tensor is aligned in the file.
    items.sort(key=lambda one: -_element_bytes(one.leaf))
    head = header([one.row for one in items])
    placed: list[tuple[int, _Item]] = []
    end = _aligned(len(head))
    for one in items:
        placed.append((end, one))
        end += _aligned(one.leaf.size_bytes)
    buffer = StagingBuffer()
    try:
        memory = buffer.reserve(end)
        memory[: len(head)] = np.frombuffer(head, np.uint8)
        copy_arrays(
            (place_for(one.value, memory[at : at + one.leaf.size_bytes]), one.value)
            for at, one in placed
        )
        del memory
    except BaseException:
        buffer.close()
        raise
    parts = [(at, one.leaf.size_bytes) for at, one in placed if one.leaf.size_bytes]
    return StagedShard(buffer, ((0, len(head)), *parts), rows)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


# Any: torch is optional, so its types are unknown to the type checker.
def _leaf(item: Any, planner: SavePlanner) -> tuple[ArrayLeaf, Any]:
    data = planner.resolve_data(item)
    try:
        if item.type != WriteItemType.BYTE_IO:
            return describe(data.detach()), data.detach()
        # Copied: the planner may use its buffer again.
        plain = bytes(data.getbuffer())
        check_bytes(plain, item.index.fqn)
        array = np.frombuffer(plain, np.uint8)
        return describe(array), array
    except UnstorableError as error:
        raise TypeError(f"{item.index.fqn} cannot be stored: it {error}") from None


def _element_bytes(leaf: ArrayLeaf) -> int:
    count = int(np.prod(leaf.stored_shape, dtype=np.int64))
    return leaf.size_bytes // count if count else 1
