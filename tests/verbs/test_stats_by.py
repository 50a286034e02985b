"""``ciuic stats --by``: which directory, kind of file or age takes the space of a store."""

import os
from pathlib import Path

import numpy as np
import pytest

from ciuic.store.store import open_store
from tests.kit.box import Box

MIB = 1024 * 1024


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def groups(box: Box, *arguments: str, by: str = "path") -> dict[str, dict[str, int]]:
    """Each group's numbers; directories by their names."""
    done = box.ciuic("stats", "--by", by, "--json", *arguments)
    assert done.code == 0, done.err
    assert done.document["by"] == by
    return {os.path.basename(one[by]): one for one in done.document["groups"]}


def put(box: Box, name: str, data: bytes) -> None:
    path = box.source / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_directory_has_the_bytes_that_only_it_needs(box):
    both = os.urandom(MIB)
    put(box, "one/both", both)
    put(box, "one/own", os.urandom(2 * MIB))
    put(box, "two/both", both)
    put(box, "top", b"t")
    box.take()

    found = groups(box)

    assert found.keys() == {"one", "two", "source"}
    assert (found["one"]["files"], found["one"]["logical_bytes"]) == (2, 3 * MIB)
    assert (found["one"]["unique_bytes"], found["two"]["unique_bytes"]) == (3 * MIB, 0)
    assert 3 * MIB <= found["one"]["stored_bytes"] < 3 * MIB + 4096
    assert 2 * MIB <= found["one"]["only_bytes"] < 2 * MIB + 4096
    assert (found["two"]["stored_bytes"], found["two"]["only_bytes"]) == (0, 0)
    assert found["source"]["unique_bytes"] == 1


def test_deleted_files_count_for_all_snapshots_and_not_for_the_last(box):
    put(box, "old/gone", os.urandom(MIB))
    put(box, "new/kept", os.urandom(MIB))
    box.take()
    (box.source / "old" / "gone").unlink()
    box.take()

    every, last = groups(box), groups(box, "-s", "latest")

    assert every["old"]["only_bytes"] >= MIB
    assert (every["new"]["files"], every["new"]["logical_bytes"]) == (2, 2 * MIB)
    assert every["new"]["unique_bytes"] == MIB
    assert "old" not in last
    assert last["new"]["files"] == 1


def test_renamed_files_count_at_their_new_place(box):
    put(box, "before/file", os.urandom(MIB))
    box.take()
    (box.source / "before").rename(box.source / "after")
    box.take()

    found = groups(box)

    assert (found["after"]["unique_bytes"], found["before"]["unique_bytes"]) == (MIB, 0)
    assert found["after"]["only_bytes"] == 0


def test_depth_sets_which_directories_count_by_themselves(box):
    put(box, "a/b/c/deep", os.urandom(5000))
    put(box, "a/shallow", os.urandom(3000))
    box.take()

    assert {name: one["unique_bytes"] for name, one in groups(box, "--depth", "0").items()} == {
        "source": 8000
    }
    assert groups(box, "--depth", "2")["b"]["unique_bytes"] == 5000
    assert groups(box, "--depth", "2")["a"]["unique_bytes"] == 3000
    assert groups(box, "--depth", "9")["c"]["unique_bytes"] == 5000


def test_kinds_are_ends_of_names_and_ages_times_of_modification(box):
    put(box, "a/one.PT", os.urandom(4000))
    put(box, "b/two.pt", os.urandom(4000))
    put(box, "b/log", os.urandom(100))
    os.utime(box.source / "b" / "two.pt", (1, 1))
    box.take()

    kinds, ages = groups(box, by="kind"), groups(box, by="age")

    assert {name: one["unique_bytes"] for name, one in kinds.items()} == {
        ".pt": 8000,
        "(none)": 100,
    }
    assert ages["older"]["unique_bytes"] == 4000
    assert ages["last day"]["unique_bytes"] == 4100


def test_a_delta_base_counts_for_the_groups_that_need_the_delta(box):
    numbers = np.random.default_rng(1).standard_normal(500_000).astype("<f4")
    put(box, "run/state.npy", b"")
    np.save(box.source / "run" / "state.npy", numbers)
    box.take()
    numbers[::1000] += 1
    np.save(box.source / "run" / "state.npy", numbers)
    box.take()
    (box.source / "run").rename(box.source / "later")
    box.take()
    with open_store(str(box.store)) as store:
        references = [one for rows in store.index.delta_bases() for one in rows]
        total = sum(taken for rows in store.index.stored_shares() for _, taken in rows)
    assert references, "the second version is no difference from the first"

    found = groups(box)

    assert sum(one["stored_bytes"] for one in found.values()) == total
    # The present directory needs all of the old version: to remove the old name frees nothing.
    assert found["run"]["only_bytes"] < total // 20


def test_a_snapshot_that_is_walked_again_adds_up_to_the_same(box):
    for number in range(300):
        put(box, f"d{number % 7}/e{number % 3}/f{number}", os.urandom(50))
    box.take()
    put(box, "d1/e1/f1", os.urandom(60))
    box.take()
    summaries = box.snapshots()

    for by in ("path", "kind", "age"):
        found = groups(box, by=by)
        assert sum(one["files"] for one in found.values()) == 600
        total = sum(one["logical_bytes"] for one in found.values())
        assert total == sum(one.logical_bytes for one in summaries)
        assert sum(one["unique_bytes"] for one in found.values()) == 300 * 50 + 60


def test_the_largest_are_shown_and_the_rest_is_counted(box):
    for number in range(4):
        put(box, f"d{number}/f", os.urandom(1000 * (number + 1)))
    box.take()

    done = box.ciuic("stats", "--by", "path", "--top", "2")

    lines = done.out.splitlines()
    assert [line.split()[0].rpartition("/")[2] for line in lines[1:]] == ["d3", "d2"]
    assert done.err.startswith("and 2 more with ")


@pytest.mark.parametrize(
    "arguments", [["-s", "latest"], ["--by", "kind", "--depth", "1"], ["--by", "path", "--detail"]]
)
def test_options_that_say_nothing_together_are_wrong_usage(box, arguments):
    box.take()

    assert box.ciuic("stats", *arguments).code == 2
