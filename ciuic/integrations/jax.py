"""States of JAX, Flax and Optax: any pytree as arrays under the names of its leaves, and back."""

from typing import Any

import jax
import numpy as np

from ciuic.errors import UsageError
from ciuic.training.values.pickles import refuse_pickles

__all__ = ["restored_tree", "tree_state"]

_BITS = "bits of "
"""Before the name of an element type that numpy itself lacks, such as bfloat16."""


def tree_state(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by their paths, such as ``['layer']['kernel']``.

    It can be given to ``SnapshotManager.save_snapshot`` as a model or an optimizer.

    Args:
        tree: Arrays, typed keys of ``jax.random`` and numbers, in containers that JAX knows: for
            example parameters, the state of an Optax optimizer, or ``flax.nnx.state(model)``.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): _written(leaf) for path, leaf in leaves}


def restored_tree(like: Any, state: dict[str, Any]) -> Any:
    """Return a pytree of the form of another one, with the leaves of ``tree_state``.

    Args:
        like: The form: each leaf gives the shape, the element type and the devices.
        state: What ``tree_state`` returned, from a snapshot.

    Raises:
        UsageError: A leaf is missing, left over, or of another shape or element type; the message
            names it.
        TypeError: A leaf is a pickle.
    """
    refuse_pickles(
        state, "state", "replace it by the result of its load() first, if you trust the store"
    )
    leaves, form = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    if set(names) != set(state):
        missing = [f"the snapshot lacks {name}" for name in names if name not in state]
        left_over = [f"it has {name} as well" for name in state if name not in names]
        raise UsageError(
            f"the pytree differs in form from the saved one: {', '.join(missing + left_over)}",
            hint="Give the pytree of the same program, or take the leaves from the state yourself.",
        )
    values = [_read(name, leaf, state[name]) for name, (_, leaf) in zip(names, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(form, values)


def _written(leaf: Any) -> Any:
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if not hasattr(leaf, "dtype"):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind == "V":
        width = f"u{array.dtype.itemsize}"
        return {f"{_BITS}{array.dtype.name}": array.view(width)}
    return array


def _read(name: str, leaf: Any, saved: Any) -> Any:
    if not hasattr(leaf, "dtype"):
        return saved
    wanted = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if isinstance(saved, dict):
        ((kind, bits),) = saved.items()
        saved = np.asarray(bits).view(jax.numpy.dtype(kind.removeprefix(_BITS)))
    saved = np.asarray(saved)
    if (saved.shape, saved.dtype) != (wanted.shape, wanted.dtype):
        raise UsageError(
            f"{name} is {saved.dtype.name}{list(saved.shape)} in the snapshot, and"
            f" {np.dtype(wanted.dtype).name}{list(wanted.shape)} in the program",
            hint="Give a pytree whose leaves have the shapes and element types of the saved one.",
        )
    if not isinstance(leaf, jax.Array):
        return saved
    if _is_key(leaf):
        return jax.random.wrap_key_data(saved, impl=jax.random.key_impl(leaf))
    return jax.device_put(saved, leaf.sharding)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
