"""A training loop with Accelerate that goes on to the same bit: python accelerate_loop.py STORE."""

import sys

import torch
from accelerate import Accelerator

from ciuic import SnapshotManager
from ciuic.integrations.accelerate import load_latest, save

STEPS = 60


def main(store: str) -> None:
    """Train, from the latest snapshot if there is one."""
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    with SnapshotManager(store, max_snapshots=3) as manager:
        first = 0
        latest = load_latest(manager, accelerator)
        if latest is not None:
            first = latest["step"] + 1
            latest.restore_rng()
            print("resumed", first, flush=True)
        for step in range(first, STEPS):
            batch = torch.randn(16, 8)
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            print(step, loss.item().hex(), flush=True)
            if step % 10 == 9:
                save(manager, accelerator, step)


if __name__ == "__main__":
    main(*sys.argv[1:])
