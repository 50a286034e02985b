"""A snapshot whose parent has damaged nodes stores these again."""

import os

import pytest

from ciuic.ids import ChunkId
from tests.kit.box import Box
from tests.kit.damage import flip_node

MIB = 1024 * 1024


@pytest.fixture
def nested(box: Box) -> Box:
    """Directories in directories and a file with a recipe, in a snapshot."""
    below = box.source / "a" / "b" / "c"
    below.mkdir(parents=True)
    for directory in (box.source, box.source / "a", box.source / "a" / "b", below):
        (directory / "small").write_bytes(os.fsencode(directory))
    (below / "large").write_bytes(os.urandom(3 * MIB))
    box.take()
    return box


def test_damaged_trees_are_stored_again(nested: Box) -> None:
    """All nodes are in one frame: those below the source are damaged, but nothing names them."""
    source = nested.entries()[os.fsencode(nested.source)]
    assert flip_node(nested.store, ChunkId(source.content)) > 3
    assert not nested.verify().ok

    nested.take()

    report = nested.verify()
    assert report.ok, report.as_json()


def test_a_damaged_recipe_is_stored_again(nested: Box) -> None:
    large = nested.entries()[os.fsencode(nested.source / "a" / "b" / "c" / "large")]
    flip_node(nested.store, ChunkId(large.content))
    assert not nested.verify().ok

    assert nested.take().read_bytes == 3 * MIB

    report = nested.verify()
    assert report.ok, report.as_json()
