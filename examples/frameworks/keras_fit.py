"""A Keras training that goes on to the same bit: KERAS_BACKEND=jax python keras_fit.py STORE."""

import sys

import keras
import numpy as np

from ciuic import SnapshotManager
from ciuic.integrations.keras import SnapshotCallback

EPOCHS = 24


class Printed(keras.callbacks.Callback):
    """Prints the loss of each epoch, to the last bit."""

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        """Print it."""
        print(epoch, float(logs["loss"]).hex(), flush=True)


def main(store: str) -> None:
    """Train, from the latest snapshot if there is one."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(32, "relu", name="inner"),
            keras.layers.Dropout(0.2, name="dropout"),
            keras.layers.Dense(8, name="outer"),
        ]
    )
    model.compile(keras.optimizers.AdamW(1e-3), "mse")
    batches = np.random.default_rng(3).normal(size=(256, 8)).astype(np.float32)
    with SnapshotManager(store, max_snapshots=3) as manager:
        snapshots = SnapshotCallback(manager)
        first = snapshots.restore(model)
        if first:
            print("resumed", first, flush=True)
        model.fit(
            batches,
            batches,
            batch_size=32,
            epochs=EPOCHS,
            initial_epoch=first,
            shuffle=False,
            verbose=0,
            callbacks=[Printed(), snapshots],
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
