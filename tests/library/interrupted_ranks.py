"""Two ranks save, and an exception ends the saves of one at one place after the other.

torchrun starts it. Arguments: the store, the rank that is interrupted, the first place, and the
distance to the next one. This rank prints the number of places.
"""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from interrupted_saves import interrupted, state

from ciuic import SnapshotManager
from ciuic.errors import StoreError
from ciuic.training.handle import SaveHandle

TIMEOUT_S = 60.0
"""No rank waits so long: the next save of the interrupted one ends every wait."""
TRIES = 3
"""Before the last one, a rank is told that the two interrupted saves have failed."""


def part(step: int) -> dict[str, np.ndarray]:
    """Return so much that the writer reads it for longer than an early save needs to replace it."""
    return {f"worker.{number}": np.full(500_000, step) for number in range(4)}


def saved(manager: SnapshotManager, step: int) -> bool:
    """Save until it succeeds, for the failures of earlier saves are raised first."""
    for _ in range(TRIES):
        handle = begun(manager, step)
        try:
            if handle is not None:
                return bool(handle.wait())
        except StoreError as error:
            print(f"step {step}: {error.message}", file=sys.stderr)
    return False


def begun(manager: SnapshotManager, step: int) -> SaveHandle | None:
    """Begin to save; None: an earlier save has failed."""
    try:
        return manager.save_snapshot(state(step), {}, 0, step=step, extra=part(step))
    except StoreError as error:
        print(f"before step {step}: {error.message}", file=sys.stderr)
        return None


def is_so_on_all(value: bool) -> bool:
    answer = torch.tensor(int(value))
    dist.all_reduce(answer, dist.ReduceOp.MIN)
    return bool(answer)


def checked(manager: SnapshotManager) -> None:
    """Find the newest states whole: that of rank 0, and the part of this rank."""
    for found in manager.list()[:3]:
        loaded = manager.load_snapshot(found.id)
        for name in ("model_state_dict", "extra"):
            for value in loaded[name].values():
                assert (value == found.step).all(), (name, value, found)


def main(store: str, victim: int, at: int, distance: int) -> None:
    rank = int(os.environ["RANK"])
    meeting = dist.FileStore(os.path.join(os.path.dirname(store), "meeting"), 2)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=2)
    step, count, goes_on = 0, 0, True
    with SnapshotManager(
        store, max_snapshots=3, ranks="torchrun", rank_timeout=TIMEOUT_S
    ) as manager:
        while goes_on:
            came = True
            if rank == victim:
                more = {"extra": part(step + 1)}
                came = interrupted(manager, step + 1, at, KeyboardInterrupt, **more)
                # The call that mends what the first one has left may be interrupted too.
                more = {"extra": part(step + 2)}
                interrupted(manager, step + 2, at // 2, MemoryError, **more)
            else:
                begun(manager, step + 1)
                begun(manager, step + 2)
            step += 3
            assert is_so_on_all(saved(manager, step)), step
            checked(manager)
            goes_on = is_so_on_all(came)
            at, count = at + distance, count + 1
    if rank == victim:
        print(count)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
