"""A DDP training with layers, which torchrun starts and restarts.

In the first attempt, the process that stores the states is killed between two layers of step 2, and
each rank ends with the error that its save raised. In the second attempt, the ranks load the
remaining state.

Arguments: the store, and a prefix of files that get a line from each rank and attempt.
"""

import json
import os
import sys

import torch
import torch.distributed as dist

from ciuic import Layer, SnapshotManager
from ciuic.errors import CiuicError, UsageError
from ciuic.training import client

LAYERS = [Layer("first", r"^0\."), Layer("second", r"^1\.", every=100)]
KILLED = """\
import os, signal
from ciuic.training.layers import commits
from ciuic.training.writer import main
take, done = commits.take_from_memory, []
def limited(*args, **more):
    done.append(more)
    # Step 1: three layers and the complete snapshot. Then the first layer of step 2.
    if len(done) == 6: os.kill(os.getpid(), signal.SIGKILL)
    return take(*args, **more)
commits.take_from_memory = limited
"""


def digest(state: dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: value.double().sum().item().hex() for name, value in state.items()}


def main(store: str, prefix: str) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    meeting = dist.FileStore(f"{prefix}-meeting-{attempt}", ranks)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=ranks)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: dict[str, object] = {"rank": rank}
    if attempt == 0:
        client._PROGRAM = client._PROGRAM.replace(
            "from ciuic.training.writer import main\n", KILLED
        )
    with SnapshotManager(store, layers=LAYERS, ranks="torchrun") as manager:
        first = 1
        if attempt:
            latest = manager.load_latest_snapshot(model=model.module, optimizer=optimizer)
            assert latest is not None
            first = latest["step"] + 1
            found["resumed"] = [latest["step"], latest["extra"], digest(model.module.state_dict())]
            partial = max(
                (one for one in manager.list() if not one.complete),
                key=lambda one: (one.taken_ns, one.logical_bytes),
            )
            state = manager.load_snapshot(partial.id)
            found["partial"] = [state["step"], digest(state["model_state_dict"])]
            try:
                manager.load_latest_snapshot(fill_layers=True)
            except UsageError as error:
                found["refused"] = error.message
        for step in range(first, 4):
            loss = model(torch.ones(2, 64) * (rank + 1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found[f"step {step}"] = digest(model.module.state_dict())
            try:
                manager.save_snapshot(
                    model.module, optimizer, 0, step=step, extra={"rank": rank}
                ).wait()
            except CiuicError as error:
                found["error"] = error.message
                break
    with open(f"{prefix}-{attempt}-{rank}", "w") as log:
        log.write(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    if "error" in found:
        sys.exit(1)


main(sys.argv[1], sys.argv[2])
