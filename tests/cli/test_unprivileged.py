"""An ordinary user with files of their own: every command, from init to repair."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.program import NOBODY, Outcome, ciuic


class Mine:
    """A box that belongs to an ordinary user, and the commands that this user runs."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.user = NOBODY if os.geteuid() == 0 else None
        shutil.rmtree(box.store)
        self.own(box.directory)

    def own(self, path: Path) -> None:
        if self.user is not None:
            for one in [path, *path.rglob("*")]:
                os.chown(one, self.user, self.user, follow_symlinks=False)

    def write(self, name: str, content: bytes) -> None:
        path = self.box.source / name
        path.write_bytes(content)
        self.own(path)

    def run(self, *arguments: str | Path) -> Outcome:
        done = ciuic("--config", self.box.config, *arguments, user=self.user)
        assert done.code in {0, 4}, f"{arguments}: {done.err}"
        return done


@pytest.fixture
def mine(public_box: Box) -> Mine:
    return Mine(public_box)


def test_a_user_without_rights_takes_care_of_his_own_files(mine: Mine) -> None:
    box = mine.box
    mine.run("init")
    assert box.store.stat().st_mode & 0o7777 == 0o700
    mine.write("a", b"first")
    (box.source / "private").mkdir(mode=0o700)
    mine.own(box.source)
    first = mine.run("snapshot").out.strip()
    content = os.urandom(100_000)
    mine.write("a", content)
    second = mine.run("snapshot").out.strip()
    mine.write("a", b"third")
    third = mine.run("snapshot", "--base").out.strip()

    listed = [one["id"] for one in mine.run("list", "--json").document]
    assert listed == [third, second, first]
    assert mine.run("verify", "--all", "--checksum").code == 0
    assert mine.run("scrub").code == 0
    out = box.directory / "out"
    assert mine.run("restore", "-s", second, "-p", box.source, "-d", out).code == 0
    assert (out / "source" / "a").read_bytes() == content
    assert mine.run("restore", "-s", first, "-p", box.source / "a", "--overwrite").code == 0
    assert (box.source / "a").read_bytes() == b"first"

    flip_content(box.store, content)
    assert mine.run("scrub").code == 4
    mine.run("repair", "--apply")
    mine.run("pin", first)
    mine.run("forget", second)
    mine.run("prune", "--trash", "0")
    assert [one["id"] for one in mine.run("list", "--json").document] == [third, first]
    assert mine.run("verify", "--all", "--checksum").code == 0
    if mine.user is not None:
        assert {one.stat().st_uid for one in box.store.rglob("*")} == {mine.user}


@pytest.mark.root
def test_a_store_of_another_user_is_refused_with_the_reason(mine: Mine) -> None:
    box = mine.box
    mine.run("init")
    for path in [box.store, *box.store.rglob("*")]:
        os.chown(path, 0, 0)
    done = ciuic("--config", box.config, "snapshot", user=mine.user)
    assert done.code == 1
    assert "Permission denied" in done.err
    assert "Run ciuic as the user who owns the store" in done.err
    assert "chown -R" in done.err


@pytest.mark.root
def test_root_without_fowner_reads_files_of_other_users(tmp_path: Path) -> None:
    """As in a container: the kernel refuses O_NOATIME, but allows reading."""
    box = Box(tmp_path)
    for name, length in (("small", 10), ("large", 3_000_000)):
        (box.source / name).write_bytes(bytes(length))
        os.chown(box.source / name, NOBODY, NOBODY)
    lacking = ("setpriv", "--bounding-set=-fowner", "--inh-caps=-fowner")

    done = ciuic("--store", box.store, "snapshot", box.source, wrapper=lacking)

    assert done.code == 0, done.err
    assert ciuic("--store", box.store, "verify", "--all", "--checksum").code == 0
