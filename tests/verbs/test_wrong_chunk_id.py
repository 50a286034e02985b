"""A frame with right checksums but the bytes of another chunk: only the ID shows the damage."""

from pathlib import Path

import pytest

from ciuic.errors import CorruptionError
from ciuic.store.adding import new_writer
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from tests.kit.box import Box

RIGHT, WRONG = b"right" * 1000, b"wrong" * 1000


@pytest.fixture
def lying(box: Box) -> Box:
    """The store has wrong bytes under the ID of the right ones, so the file is not stored again."""
    (box.source / "file").write_bytes(RIGHT)
    (box.source / "other").write_bytes(b"other")
    with open_store(str(box.store), write=True) as store:
        writer = new_writer(store)
        writer.add_data([(data_id(RIGHT), WRONG)])
        writer.finish()
    assert box.take().new_bytes == len(b"other")
    return box


def test_a_chunk_under_another_ones_name_is_found_by_verify(lying: Box) -> None:
    (snapshot,) = lying.verify().snapshots
    assert [one.path for one in snapshot.damaged] == [bytes(lying.source / "file")]


def test_a_chunk_under_another_ones_name_is_never_given_out(lying: Box) -> None:
    with pytest.raises(CorruptionError):
        lying.read(lying.source / "file")


def test_a_chunk_under_another_ones_name_is_never_restored(lying: Box, tmp_path: Path) -> None:
    report = lying.restore(to=tmp_path / "out")
    assert [one.path for one in report.failed] == [bytes(lying.source / "file")]
    assert sorted(one.name for one in (tmp_path / "out" / "source").iterdir()) == ["other"]
