"""Lost chunks stay known as long as a snapshot may need them, and no longer.

The bucket is a directory here, behind the same interface.
"""

import os
import shutil
from pathlib import Path

import pytest

from ciuic.catalog.lost import known_lost
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import pack_of
from tests.kit.program import ciuic
from tests.kit.strace import strace

KIB = 1024


@pytest.fixture
def model(box: Box) -> Path:
    """A file in a snapshot; its pack has only this file."""
    (box.source / "other").write_bytes(os.urandom(300 * KIB))
    box.take()
    path = box.source / "model"
    path.write_bytes(os.urandom(300 * KIB))
    box.take()
    return path


def lost(box: Box) -> int:
    with open_store(str(box.store)) as store:
        return len(known_lost(store))


def is_marked(box: Box) -> bool:
    return "damaged" in box.ciuic("list").out


def test_a_pack_that_is_there_again_has_lost_nothing(box: Box, model: Path) -> None:
    pack = pack_of(box.store, model.read_bytes())
    away = box.directory / "away"
    pack.rename(away)
    assert box.ciuic("scrub").code == 4
    assert is_marked(box)
    away.rename(pack)

    assert box.take().new_bytes == 0

    assert not lost(box)
    assert box.ciuic("scrub").code == 0
    assert not is_marked(box)
    assert box.ciuic("verify", "--all").code == 0


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_pack_that_could_not_be_read_for_a_while_has_lost_nothing(box: Box, model: Path) -> None:
    pack = pack_of(box.store, model.read_bytes())
    wrapper = strace("newfstatat,?lstat,?statx", "-P", pack.name, inject="error=EIO")
    model.rename(box.directory / "away")

    done = ciuic("--config", box.config, "scrub", "--json", wrapper=wrapper)

    assert [one["path"] for one in done.document["unreachable"]] == [f"packs/{pack.name}"]
    assert done.document["missing"]
    assert not lost(box)
    assert box.ciuic("scrub").code == 0
    assert not is_marked(box)
    assert box.ciuic("verify", "--all").code == 0
