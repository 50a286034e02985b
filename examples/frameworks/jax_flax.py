"""A training with Flax and Optax that goes on to the same bit: python jax_flax.py STORE."""

import sys

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ciuic import SnapshotManager
from ciuic.integrations.jax import restored_tree, tree_state

STEPS = 60


class Model(nnx.Module):
    """Two layers with dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(8, 32, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.outer = nnx.Linear(32, 8, rngs=rngs, param_dtype=jnp.bfloat16)

    def __call__(self, batch: jax.Array) -> jax.Array:
        return self.outer(self.dropout(nnx.relu(self.inner(batch))))


def main(store: str) -> None:
    """Train, from the latest snapshot if there is one."""
    model = Model(nnx.Rngs(1))
    form, state = nnx.split(model)
    optimizer = optax.adamw(1e-3)
    slots = optimizer.init(nnx.state(model, nnx.Param))
    key = jax.random.key(2)

    def loss_of(model: Model, batch: jax.Array) -> jax.Array:
        return jnp.square(model(batch) - batch).mean().astype(jnp.float32)

    @jax.jit
    def train_step(state: nnx.State, slots: object, batch: jax.Array) -> tuple:
        model = nnx.merge(form, state)
        loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
        parameters = nnx.state(model, nnx.Param)
        updates, slots = optimizer.update(gradients, slots, parameters)
        nnx.update(model, optax.apply_updates(parameters, updates))
        return nnx.state(model), slots, loss

    with SnapshotManager(store, interval="10 steps", max_snapshots=3) as manager:
        first = 0
        latest = manager.load_latest_snapshot()
        if latest is not None:
            state = restored_tree(state, latest["model_state_dict"])
            slots = restored_tree(slots, latest["optimizer_state_dict"])
            key = restored_tree(key, latest["extra"])
            first = latest["step"] + 1
            print("resumed", first, flush=True)
        for step in range(first, STEPS):
            key, of_batch = jax.random.split(key)
            state, slots, loss = train_step(state, slots, jax.random.normal(of_batch, (16, 8)))
            print(step, float(loss).hex(), flush=True)
            manager.step(step, tree_state(state), tree_state(slots), extra=tree_state(key))


if __name__ == "__main__":
    main(*sys.argv[1:])
