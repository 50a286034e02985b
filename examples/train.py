"""A training that can be stopped at any moment, and goes on to the same bit.

    python train.py STORE

``kill -TERM`` ends it after the step that it is at, as a scheduler does. Run it again to go on.
Each step prints a line with the step and the exact loss.
"""

import sys

import torch

from ciuic import Best, SnapshotManager

STEPS = 2000


def main(store: str = "./snapshots") -> None:
    """Train, from the latest snapshot if there is one."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 16)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with SnapshotManager(
        store,
        interval="500 steps",
        max_snapshots=3,
        keep=[Best("loss")],
        preemption_grace="60s",
    ) as manager:
        first = 0
        latest = manager.load_latest_snapshot(model=model, optimizer=optimizer)
        if latest is not None:
            scheduler.load_state_dict(latest["scheduler_state_dict"])
            first = latest["step"] + 1
            # Last: what was loaded before may have drawn random numbers.
            latest.restore_rng()
        for step in range(first, STEPS):
            batch = torch.randn(32, 16)
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            sys.stdout.write(f"{step} {loss.item().hex()}\n")
            sys.stdout.flush()
            manager.step(
                step,
                model,
                optimizer,
                scheduler=scheduler,
                metrics={"loss": loss.item()},
            )
            if manager.should_stop:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
