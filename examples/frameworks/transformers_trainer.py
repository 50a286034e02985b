"""A training with the Trainer of Hugging Face that goes on to the same bit.

python transformers_trainer.py STORE
"""

import sys
import tempfile

import torch
import transformers

from ciuic import SnapshotManager
from ciuic.integrations.transformers import SnapshotCallback, checkpoint

STEPS = 60


class Printed(transformers.TrainerCallback):
    """Prints the norm of the weights after each step, to the last bit."""

    def on_step_end(self, args: object, state: object, control: object, **kwargs: object) -> None:
        """Print it."""
        norm = sum(weight.double().square().sum() for weight in kwargs["model"].parameters())
        print(state.global_step, norm.item().hex(), flush=True)


def main(store: str) -> None:
    """Train, from the latest snapshot if there is one."""
    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    )
    tokens = torch.randint(0, 64, (256, 16), generator=torch.Generator().manual_seed(2))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with (
        tempfile.TemporaryDirectory() as output,
        SnapshotManager(store, interval="10 steps", max_snapshots=3) as manager,
    ):
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                output,
                max_steps=STEPS,
                per_device_train_batch_size=8,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=data,
            callbacks=[Printed(), SnapshotCallback(manager)],
        )
        with checkpoint(manager) as latest:
            if latest:
                print("resumed", latest, flush=True)
            trainer.train(resume_from_checkpoint=latest)


if __name__ == "__main__":
    main(*sys.argv[1:])
