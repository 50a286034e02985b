"""Stores from which tests of the command line start: made once, copied for each test."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kit.installed import Place

ODD_NAMES = (b"line\nbreak", b"pipe|name", b"\x1b[31mred\x1b]0;title\x07", b"caf\xe9 \xff.bin")
"""A newline, the field separator of a list, escapes that a terminal obeys, and no UTF-8."""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A tree with hostile names and three snapshots of it; no test may change it."""
    place = Place(tmp_path_factory.mktemp("template"))
    source = place.source
    (source / "checkpoints").mkdir()
    (source / "checkpoints" / "step-1.pt").write_bytes(os.urandom(3_000_000))
    (source / "train.log").write_text("step 1\n")
    (source / "gone.txt").write_text("here for a while\n")
    (source / "last.pt").symlink_to("checkpoints/step-1.pt")
    (source / "odd").mkdir()
    for name in ODD_NAMES:
        Path(os.fsdecode(os.fsencode(source / "odd") + b"/" + name)).write_bytes(name)
    assert place.run_here("init").code == 0
    place.snapshot("--tag", "first")
    (source / "checkpoints" / "step-2.pt").write_bytes(os.urandom(300_000))
    (source / "train.log").write_text("step 1\nstep 2\n")
    place.snapshot()
    (source / "gone.txt").unlink()
    (source / "last.pt").unlink()
    (source / "last.pt").mkdir()
    (source / "train.log").chmod(0o600)
    place.snapshot("--base", "--tag", "third", "--tag", "kept")
    return place


@pytest.fixture
def taken(template: Place, tmp_path: Path) -> Place:
    """The three snapshots of the template in a store of the test's own."""
    place = Place(tmp_path, source=template.source)
    shutil.copytree(template.store, place.store)
    return place


@pytest.fixture
def fresh(tmp_path: Path) -> Place:
    """A small tree of the test's own and a store without a snapshot."""
    place = Place(tmp_path)
    (place.source / "checkpoints").mkdir()
    (place.source / "checkpoints" / "step-1.pt").write_bytes(os.urandom(50_000))
    (place.source / "train.log").write_text("step 1\n")
    assert place.run_here("init").code == 0
    return place
