"""Q-learning with a replay buffer, in a corridor; it goes on to the bit.

    python reinforcement.py STORE

The agent walks in a corridor of ten cells, and slips at times. The right end pays. What the
training needs besides its network is saved as well: the target network, the replay buffer, the
environment in the middle of an episode, and the generator that both draw from. Stop it at any
moment, and run it again to go on. Each step prints a line with the step and the exact loss.
"""

import random
import sys
from collections import deque

import torch

from ciuic import SnapshotManager

STEPS = 800
CELLS = 10
LONGEST = 40


class Corridor:
    """The environment: the agent goes left (0) or right (1), and slips once in ten steps."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.cell = 0
        self.walked = 0

    def walk(self, action: int) -> tuple[float, bool]:
        """Take a step; returns the reward, and whether the agent has reached the end."""
        if self.chance.random() < 0.1:
            action = 1 - action
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        self.walked += 1
        is_there = self.cell == CELLS - 1
        return (1.0 if is_there else -0.01), is_there

    def begin_again(self) -> None:
        """Put the agent at the left end."""
        self.cell = self.walked = 0


def network() -> torch.nn.Module:
    """Return a network that values both actions in a cell."""
    return torch.nn.Sequential(
        torch.nn.Embedding(CELLS, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )


def main(store: str = "./snapshots") -> None:
    """Train the agent, from the latest snapshot if there is one."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    chance = random.Random(1)  # noqa: S311 - a simulation
    corridor = Corridor(chance)
    replay: deque[list[float]] = deque(maxlen=500)
    models = {"online": network(), "target": network()}
    models["target"].load_state_dict(models["online"].state_dict())
    optimizer = torch.optim.Adam(models["online"].parameters(), lr=5e-3)
    with SnapshotManager(store, "100 steps", max_snapshots=3) as manager:
        first = 0
        latest = manager.load_latest_snapshot(model=models, optimizer=optimizer)
        if latest is not None:
            saved = latest["extra"]
            replay.extend(saved["replay"].tolist())
            corridor.cell, corridor.walked = saved["corridor"]
            chance.setstate(saved["chance"])
            first = latest["step"] + 1
            latest.restore_rng()
        for step in range(first, STEPS):
            cell = corridor.cell
            with torch.no_grad():
                values = models["online"](torch.tensor(cell))
            is_curious = chance.random() < max(0.05, 1 - step / 400)
            action = chance.randrange(2) if is_curious else int(values.argmax())
            reward, is_there = corridor.walk(action)
            replay.append([cell, action, reward, corridor.cell, float(is_there)])
            if is_there or corridor.walked == LONGEST:
                corridor.begin_again()
            batch = torch.tensor(chance.choices(replay, k=32), dtype=torch.float64)
            loss = temporal_difference(models, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                models["target"].load_state_dict(models["online"].state_dict())
            print(step, loss.item().hex(), flush=True)
            extra = {
                "replay": torch.tensor(list(replay), dtype=torch.float64),
                "corridor": (corridor.cell, corridor.walked),
                "chance": chance.getstate(),
            }
            manager.step(step, models, optimizer, extra=extra)


def temporal_difference(models: dict[str, torch.nn.Module], batch: torch.Tensor) -> torch.Tensor:
    """Return the loss of the online network; rows: cell, action, reward, next cell, at the end."""
    cells, actions, after = batch[:, 0].long(), batch[:, 1].long(), batch[:, 3].long()
    rewards, ends = batch[:, 2].float(), batch[:, 4].float()
    with torch.no_grad():
        wanted = rewards + 0.95 * (1 - ends) * models["target"](after).amax(1)
    valued = models["online"](cells).gather(1, actions[:, None])[:, 0]
    return torch.nn.functional.smooth_l1_loss(valued, wanted)


if __name__ == "__main__":
    main(*sys.argv[1:])
