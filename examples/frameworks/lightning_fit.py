"""A Lightning training that goes on to the same bit: python lightning_fit.py STORE."""

import sys

import lightning.pytorch as pl
import torch

from ciuic import SnapshotManager
from ciuic.integrations.lightning import SnapshotCallback, SnapshotIO

EPOCHS = 24


class Model(pl.LightningModule):
    """Two layers with dropout, and a schedule of the learning rate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(width, 8),
        )

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss, and print it to the last bit."""
        loss = (self.layers(batch[0]) - batch[0]).square().mean()
        print(self.global_step, loss.item().hex(), flush=True)
        return loss

    def configure_optimizers(self) -> tuple[list, list]:
        """Return the optimizer and its schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 4)]


def main(store: str) -> None:
    """Train, from the latest snapshot if there is one."""
    pl.seed_everything(1, verbose=False)
    data = torch.utils.data.TensorDataset(torch.randn(128, 8))
    loader = torch.utils.data.DataLoader(data, 32, shuffle=True)
    model = Model(32)
    with SnapshotManager(store, max_snapshots=3) as manager:
        io = SnapshotIO(manager)
        if io.latest:
            print("resumed", io.latest, flush=True)
        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            plugins=[io],
            callbacks=[SnapshotCallback(manager, io)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
        )
        trainer.fit(model, loader, ckpt_path=io.latest)


if __name__ == "__main__":
    main(*sys.argv[1:])
