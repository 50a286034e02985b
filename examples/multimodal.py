"""Pictures and captions, matched by two encoders with a contrastive loss; it goes on to the bit.

    python multimodal.py STORE

Each encoder is a model of its own, with an optimizer of its own. The pairs are made up: eight
patterns with noise, and a caption of four words for each pattern. Stop it at any moment, and run it
again to go on. Each step prints a line with the step and the exact loss.
"""

import sys

import torch

from ciuic import SnapshotManager

STEPS = 200
KINDS = 8
WORDS = 32
WIDTH = 24


class Pictures(torch.nn.Module):
    """Encodes pictures of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = torch.nn.Conv2d(1, 8, 3, stride=2)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8 * 9, WIDTH)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return unit vectors, of shape (count, WIDTH)."""
        found = self.norm(self.filters(pictures)).relu().flatten(1)
        return torch.nn.functional.normalize(self.head(found), dim=1)


class Captions(torch.nn.Module):
    """Encodes captions of four words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.EmbeddingBag(WORDS, WIDTH)
        self.head = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, captions: torch.Tensor) -> torch.Tensor:
        """Return unit vectors, of shape (count, WIDTH)."""
        return torch.nn.functional.normalize(self.head(self.words(captions)), dim=1)


class Pairs:
    """An endless source of pairs, with a generator of its own, and a state as a data loader has."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(2)
        self.patterns = torch.randn(KINDS, 1, 8, 8, generator=self.generator)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a picture and a caption of each kind."""
        noise = torch.randn(KINDS, 1, 8, 8, generator=self.generator)
        first = torch.arange(KINDS)[:, None] * 4
        return self.patterns + 0.5 * noise, first + torch.arange(4)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return where the source is; the patterns come from the seed."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Go on where the source was."""
        self.generator.set_state(state["generator"])


def main(store: str = "./snapshots") -> None:
    """Train both encoders, from the latest snapshot if there is one."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    pairs = Pairs()
    models = {"pictures": Pictures(), "captions": Captions()}
    optimizers = {
        "pictures": torch.optim.SGD(models["pictures"].parameters(), lr=0.05, momentum=0.9),
        "captions": torch.optim.AdamW(models["captions"].parameters(), lr=3e-3),
    }
    with SnapshotManager(store, "25 steps", max_snapshots=3) as manager:
        first = 0
        latest = manager.load_latest_snapshot(model=models, optimizer=optimizers)
        if latest is not None:
            pairs.load_state_dict(latest["dataloader_state_dict"])
            first = latest["step"] + 1
            latest.restore_rng()
        for step in range(first, STEPS):
            pictures, captions = pairs.batch()
            likeness = models["pictures"](pictures) @ models["captions"](captions).T * 10
            right = torch.arange(KINDS)
            loss = torch.nn.functional.cross_entropy(likeness, right)
            loss = loss + torch.nn.functional.cross_entropy(likeness.T, right)
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers.values():
                optimizer.step()
            print(step, loss.item().hex(), flush=True)
            manager.step(step, models, optimizers, dataloader=pairs)


if __name__ == "__main__":
    main(*sys.argv[1:])
