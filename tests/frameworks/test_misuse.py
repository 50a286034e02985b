"""A load names what does not fit the objects of a framework, and refuses it."""

import os
import subprocess

import pytest

ENVIRONMENTS = os.environ.get("CIUIC_FRAMEWORKS", "")
pytestmark = pytest.mark.skipif(not ENVIRONMENTS, reason="needs scripts/test-frameworks")

OTHER_TREES = """
import jax, jax.numpy as jnp
from ciuic import PickledLeaf
from ciuic.errors import UsageError
from ciuic.integrations.jax import restored_tree, tree_state
tree = {"a": jnp.ones((2, 3)), "b": (jnp.arange(2, dtype=jnp.bfloat16), 3), "k": jax.random.key(5)}
state = tree_state(tree)
again = restored_tree(jax.tree_util.tree_map(lambda leaf: leaf, tree), state)
assert again["b"][0].dtype == jnp.bfloat16 and again["b"][0].tolist() == [0, 1]
assert jax.random.normal(again["k"]) == jax.random.normal(tree["k"])
for other, what in (
    ({key: tree[key] for key in "ak"}, "it has ['b'][0] as well"),
    ({**tree, "c": 1}, "the snapshot lacks ['c']"),
    ({**tree, "a": jnp.ones((3, 2))}, "['a'] is float32[2, 3] in the snapshot"),
    ({**tree, "b": (jnp.zeros(2), 3)}, "['b'][0] is bfloat16[2] in the snapshot"),
):
    try:
        restored_tree(other, state)
    except UsageError as error:
        assert what in error.message, error.message
    else:
        raise AssertionError(what)
try:
    restored_tree({"f": len}, {"['f']": PickledLeaf("builtins.len", b"")})
except TypeError as error:
    assert "is a pickle of a 'builtins.len'" in str(error)
    assert "load_state_dict" not in str(error)
else:
    raise AssertionError("a leaf became a pickle")
"""
OTHER_MODELS = """
import sys, keras, numpy as np
from ciuic import SnapshotManager
from ciuic.errors import UsageError
from ciuic.integrations.keras import SnapshotCallback

def model_of(width, name):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width, name=name)])
    model.compile("adam", "mse")
    return model

with SnapshotManager(sys.argv[1]) as manager:
    callback = SnapshotCallback(manager)
    model = model_of(2, "one")
    assert callback.restore(model) == 0
    model.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0, callbacks=[callback])
    assert callback.restore(model_of(2, "one")) == 1
    for other, what in (
        (model_of(2, "two"), "only one has"),
        (model_of(3, "one"), "has the shape"),
    ):
        before = [weight.copy() for weight in other.get_weights()]
        try:
            callback.restore(other)
        except UsageError as error:
            assert what in error.message, error.message
        else:
            raise AssertionError(what)
        assert all(map(np.array_equal, before, other.get_weights()))
"""


@pytest.mark.parametrize("program", [OTHER_TREES, OTHER_MODELS])
def test_another_model_is_refused_by_name_and_not_changed(tmp_path, program):
    done = subprocess.run(
        [f"{ENVIRONMENTS}/jax/bin/python", "-c", program, tmp_path / "store"],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
