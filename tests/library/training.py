"""A small training with every kind of randomness, which saves every few steps and can be killed.

Arguments: the store, and a file that gets a line for each step.
"""

import json
import random
import sys

import numpy as np
import torch

from ciuic import SnapshotManager

STEPS = 60


def main(store: str, losses: str) -> None:
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.BatchNorm1d(256),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(256, 64),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1)
    with SnapshotManager(store, max_snapshots=3) as manager:
        first = 0
        latest = manager.load_latest_snapshot(model=model, optimizer=optimizer)
        if latest is not None:
            scheduler.load_state_dict(latest["scheduler_state_dict"])
            first = latest["step"] + 1
            latest.restore_rng()
        with open(losses, "a", buffering=1) as log:
            for step in range(first, STEPS):
                noise = np.random.normal(scale=random.random(), size=(32, 64))
                batch = torch.randn(32, 64) + torch.from_numpy(noise).float()
                loss = (model(batch) - batch).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                log.write(json.dumps({"step": step, "loss": loss.item().hex()}) + "\n")
                if step % 3 == 2:
                    manager.save_snapshot(model, optimizer, 0, step=step, scheduler=scheduler)


main(*sys.argv[1:])
