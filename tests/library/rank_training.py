"""A small DDP training with every kind of randomness, which torchrun starts and restarts.

Arguments: the store, a prefix of files that get a line for each step, and the step before which
rank 1 kills itself in the first attempt; -1: it does not.
"""

import json
import os
import random
import signal
import sys

import numpy as np
import torch
import torch.distributed as dist

from ciuic import SnapshotManager

STEPS = 14


def main(store: str, losses: str, death: int) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    # Not through the store of torchrun: after a restart, gloo sometimes finds dead ranks in it.
    meeting = dist.FileStore(f"{losses}-meeting-{attempt}", ranks)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=ranks)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(16, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 16)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(rank)
    with SnapshotManager(store, "3 steps", max_snapshots=3, ranks="torchrun") as manager:
        first = 0
        latest = manager.load_latest_snapshot(model=model.module, optimizer=optimizer)
        if latest is not None:
            first = latest["step"] + 1
            assert latest["extra"] == {"rank": rank}
            latest.restore_rng()
        with open(f"{losses}-{rank}", "a", buffering=1) as log:
            for step in range(first, STEPS):
                if step == death and rank == 1 and attempt == "0":
                    manager.wait()
                    os.kill(os.getpid(), signal.SIGKILL)
                noise = np.random.normal(scale=random.random(), size=(8, 16))
                batch = torch.randn(8, 16) + torch.from_numpy(noise).float()
                loss = (model(batch) - batch).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                log.write(json.dumps({"step": step, "first": first, "loss": loss.item().hex()}))
                log.write("\n")
                manager.step(step, model.module, optimizer, 0, extra={"rank": rank})
    dist.destroy_process_group()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
