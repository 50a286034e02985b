"""``SnapshotManager.diff``: the changes between two states, as the command reports them."""

import json

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import SnapshotNotFoundError
from tests.kit.program import ciuic


def test_a_comparison_is_that_of_the_command_and_names_each_tensor(tmp_path):
    store = tmp_path / "store"
    frozen, moving = np.arange(4_000.0), np.ones(4_000)
    with SnapshotManager(store) as manager:
        manager.save_snapshot({"frozen": frozen, "moving": moving}, step=1)
        moving[:1_000] = 2.0
        after = {"frozen": frozen, "moving": moving, "new": np.zeros(5)}
        newest = manager.save_snapshot(after, step=2, channel="full").wait()
        found = manager.diff(1, newest)
        command = [manager.list()[1].id, newest, "--tensors", "--quick", "--json"]
        assert manager.diff(2, 2) == ()
        with pytest.raises(SnapshotNotFoundError):
            manager.diff(1, 3)

    (weights,) = [one for one in found if one["path"] == "/state/weights.safetensors"]
    changed, added = weights["tensors"]["changes"]
    assert weights["tensors"]["same"] == 1
    assert (changed["name"], changed["change"]) == ("moving", "changed")
    assert changed["equal_share"] == 0.75
    assert changed["relative_distance"] == 0.5
    assert (added["name"], added["change"]) == ("new", "added")
    printed = ciuic("--store", store, "diff", *command)
    assert printed.code == 0, printed.err
    assert printed.document == json.loads(json.dumps(found))
