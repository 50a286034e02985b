"""A pack or manifest that its file system cannot read is damage of that file only."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.errors import CorruptionError, UnreachableError
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneReport
from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.plan import plan_repair
from ciuic.maintain.repair.report import RepairPlan
from ciuic.maintain.scrub.report import ScrubReport
from ciuic.maintain.scrub.scrub import scrub
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import pack_of
from tests.kit.filesystems import Disk, disk
from tests.kit.program import ciuic
from tests.kit.strace import strace
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024


class Home:
    """A store on an ext4 of its own, with three snapshots that share nothing.

    Attributes:
        place: The file system.
        ids: Oldest first; the files of the newest are still there.
        contents: The content of the one file of each.
    """

    def __init__(self, place: Disk, *, parity: float) -> None:
        self.place = place
        self.box = box = Box(place.path, parity=parity)
        self.contents: list[bytes] = []
        self.photos: dict[str, dict[bytes, Photo]] = {}
        for number in range(3):
            for old in box.source.iterdir():
                old.unlink()
            self.contents.append(os.urandom(MIB))
            (box.source / f"file{number}").write_bytes(self.contents[number])
            self.photos[box.take().id] = photograph(box.source)
        self.ids = list(self.photos)

    def lose_pack(self, number: int) -> str:
        """The pack of a snapshot's data loses its inode; returns its name."""
        pack = pack_of(self.box.store, self.contents[number])
        self.place.lose_inodes(pack)
        with pytest.raises(OSError) as caught:
            pack.lstat()
        assert caught.value.errno in {errno.EUCLEAN, errno.EBADMSG}
        return pack.name

    def lose_manifest(self, number: int) -> str:
        name = self.ids[number]
        self.place.lose_inodes(self.box.store / "snapshots" / f"{name}.json")
        return name

    def names(self) -> dict[str, list[str]]:
        """The names of everything that a prune could remove."""
        kinds = ("packs", "parity", "snapshots", "trash")
        places = [self.box.store / kind for kind in kinds]
        return {one.name: sorted(os.listdir(one)) for one in places if one.exists()}

    def comes_back(self, name: str) -> bool:
        out = self.place.path / "out"
        shutil.rmtree(out, ignore_errors=True)
        report = self.box.restore(snapshot=name, to=out)
        found = photograph(out / "source")
        return not report.failed and differences(self.photos[name], found) == []

    def forget(self, number: int) -> None:
        with open_store(str(self.box.store), write=True) as store:
            store.trash.forget([self.ids[number]], self.box.clock.now_ns())

    def prune(self) -> PruneReport:
        with open_store(str(self.box.store), write=True) as store:
            plan = plan_prune(store, trash_s=0, now_ns=self.box.clock.now_ns())
            return apply_prune(store, plan, clock=self.box.clock)

    def repair(self) -> RepairPlan:
        with open_store(str(self.box.store), write=True) as store:
            plan = plan_repair(store, parity=self.box.parity)
            apply_repair(store, plan, parity=self.box.parity, clock=self.box.clock)
        return plan

    def scrub(self) -> ScrubReport:
        return scrub(str(self.box.store), clock=self.box.clock)


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Disk]:
    with disk("ext4", tmp_path, size_mib=96) as place:
        yield place


@pytest.fixture
def home(ext4: Disk) -> Home:
    return Home(ext4, parity=0.04)


@pytest.mark.root
def test_a_pack_without_an_inode_affects_only_its_own_chunks(home: Home) -> None:
    name = home.lose_pack(0)

    taken = home.box.take().id

    report = home.box.verify()
    assert not report.ok
    assert [one.path for one in report.unreachable] == [f"packs/{name}".encode()]
    assert {one.id for one in report.snapshots if not one.ok} == {home.ids[0]}
    assert home.comes_back(home.ids[1])
    assert home.comes_back(home.ids[2])
    home.photos[taken] = home.photos[home.ids[2]]
    assert home.comes_back(taken)
    scrubbed = home.scrub()
    assert not scrubbed.ok
    assert [one.path for one in scrubbed.unreachable] == [f"packs/{name}".encode()]
    assert [one.snapshots for one in scrubbed.missing] == [(home.ids[0],)]
    listed = home.box.ciuic("list", "--machine-readable")
    assert listed.code == 0
    assert len(listed.out.splitlines()) == 4


@pytest.mark.root
def test_a_repair_names_an_unreachable_pack_and_stores_again_what_a_live_file_has(
    home: Home,
) -> None:
    name = home.lose_pack(2)

    plan = home.repair()

    assert list(plan.unreachable) == [f"packs/{name}"]
    assert plan.is_hopeless, "the repair of a file system is not ciuic's"
    assert home.comes_back(home.ids[2])
    again = home.repair()
    assert list(again.unreachable) == [f"packs/{name}"]
    assert not again.has_work
    told = home.box.ciuic("repair")
    assert told.code == 4
    assert f"packs/{name}" in told.out
    assert "fsck" in told.err


@pytest.mark.root
def test_prune_removes_nothing_because_of_an_unreachable_pack(home: Home) -> None:
    """The delta bases of its chunks are unknown, and an fsck may bring it back."""
    home.lose_pack(0)
    home.forget(1)
    before = home.names()

    with pytest.raises(UnreachableError, match="nothing was removed") as caught:
        home.prune()

    assert "fsck" in caught.value.hint
    assert home.names() == before


@pytest.mark.root
def test_the_copy_of_a_manifest_without_an_inode_is_read(home: Home) -> None:
    name = home.lose_manifest(0)

    taken = home.box.take().id

    assert [one.id for one in home.box.snapshots()] == [taken, *reversed(home.ids)]
    assert all(home.comes_back(one) for one in home.ids)
    assert [one.id for one in home.box.verify().snapshots if not one.ok] == [name]
    assert [one.path for one in home.scrub().manifests] == [f"snapshots/{name}.json".encode()]
    assert list(home.repair().unreachable) == [f"snapshots/{name}.json"]
    home.forget(1)
    assert home.prune().freed_bytes > MIB
    assert home.comes_back(name)


@pytest.mark.root
def test_without_a_copy_prune_keeps_what_it_may_refer_to(ext4: Disk) -> None:
    home = Home(ext4, parity=0)
    name = home.lose_manifest(0)
    home.forget(1)
    before = home.names()

    with pytest.raises(CorruptionError, match=name):
        home.prune()

    assert home.names() == before
    assert [one.id for one in home.box.snapshots()] == [home.ids[2]]
    assert home.box.take()
    verified = {one.id: one.ok for one in home.box.verify().snapshots}
    assert verified[name] is False
    assert list(home.repair().unreachable) == [f"snapshots/{name}.json"]


@pytest.mark.root
def test_an_unreachable_leftover_of_a_killed_writer_is_named_and_stops_no_command(
    home: Home,
) -> None:
    left = home.box.store / "tmp" / "pack-0123456789abcdef"
    left.write_bytes(b"unfinished")
    healthy = left.with_name("file-0123456789abcdef")
    home.place.lose_inodes(left)
    healthy.write_bytes(b"unfinished")
    with pytest.raises(OSError) as caught:
        left.unlink()
    assert caught.value.errno in {errno.EUCLEAN, errno.EBADMSG}
    place = f"tmp/{left.name}"

    for command in ("snapshot", f"pin {home.ids[0]}", f"forget {home.ids[1]}", "prune"):
        done = home.box.ciuic(*command.split())
        assert done.code == 0, done
        assert f"{left} cannot be removed" in done.err
        assert "fsck" in done.err

    assert os.listdir(left.parent) == [left.name]
    assert list(home.repair().unreachable) == [place]
    told = home.box.ciuic("repair", "--json")
    assert (told.code, [one["path"] for one in told.document["unreachable"]]) == (4, [place])
    found = home.box.ciuic("doctor", "--json").out
    assert str(left) in found
    assert home.box.verify().ok
    assert home.comes_back(home.ids[0])


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(("error", "code"), [("EIO", 0), ("EACCES", 1)])
def test_only_an_error_of_the_disk_lets_a_left_over_stay(box: Box, error: str, code: int) -> None:
    left = box.store / "tmp" / "pack-0123456789abcdef"
    left.write_bytes(b"unfinished")
    wrapper = strace("unlinkat", "-P", left.name, inject=f"error={error}")

    done = ciuic("--config", box.config, "snapshot", "--json", wrapper=wrapper)

    assert done.code == code, done
    assert len(box.snapshots()) == (code == 0)
    assert ("pack-0123456789abcdef cannot be removed" in done.err) is (code == 0)
    assert "cannot be removed" not in box.ciuic("snapshot").err
    assert os.listdir(left.parent) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("what", ["stat", "open", "read"])
@pytest.mark.parametrize(("when", "code"), [("1", 0), ("1+", 4)])
def test_a_manifest_that_cannot_be_read_is_read_again_before_it_is_called_damage(
    box: Box, what: str, when: str, code: int
) -> None:
    (box.source / "file").write_bytes(b"content")
    name = box.take().id
    path = box.store / "snapshots" / f"{name}.json"
    calls = {"stat": "newfstatat,?lstat,?statx", "open": "openat", "read": "read"}[what]
    at = ("-P", str(path), "-P", path.name)
    wrapper = strace(calls, *at, inject=f"error=EIO:when={when}")

    done = ciuic("--config", box.config, "verify", "--all", "--json", wrapper=wrapper)

    assert done.code == code, done
    assert done.document["ok"] is (code == 0)
    assert box.ciuic("verify", "--all").code == 0


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("what", ["stat", "open"])
@pytest.mark.parametrize("command", ["snapshot", "repair", "prune"])
def test_an_error_of_the_disk_on_one_pack_stops_no_writer_but_prune(
    box: Box, what: str, command: str
) -> None:
    content = os.urandom(100_000)
    (box.source / "file").write_bytes(content)
    box.take()
    pack = pack_of(box.store, content)
    before = sorted(os.listdir(box.store / "packs"))
    calls = {"stat": "newfstatat,?lstat,?statx", "open": "openat"}[what]
    wrapper = strace(calls, "-P", pack.name, inject="error=EIO")
    more = ("--apply",) if command == "repair" else ()

    done = ciuic("--config", box.config, command, *more, "--json", wrapper=wrapper)

    if command == "snapshot":
        assert done.code == 0, done
    else:
        assert done.code == 4, done
        assert pack.name in done.out
        assert ("nothing was removed" in done.out) is (command == "prune")
    assert set(before) <= set(os.listdir(box.store / "packs"))
    assert box.verify().ok
    assert box.ciuic("prune").code == 0
