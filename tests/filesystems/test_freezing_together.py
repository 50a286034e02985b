"""Several snapshots of one store freeze on one file system at once.

A snapshot that is held stops when its files are frozen, and before it has read the larger ones.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.ids import SnapshotId
from ciuic.model import UNCHANGED
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.source.freeze.area import Area
from ciuic.source.freeze.freezer import Freezer
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.box import Box, wait_until_settled
from tests.kit.daemon import wait_until
from tests.kit.filesystems import Disk, disk
from tests.kit.program import NOBODY, environment

pytestmark = [pytest.mark.root, pytest.mark.slow]

MIB = 1024 * 1024
HOW = {"xfs": "reflink", "btrfs": "subvolume"}
FILES = {"model.pt": 3 * MIB, "a.bin": 300_000, "b.bin": 40_000}
STRAY = SnapshotId("cs-00000000000000ff")
LIMIT_S = 300
HOLD = """
import sys
from ciuic.snapshot.observers import CaptureTime
walked = CaptureTime.walked
def stop(capture):
    walked(capture)
    print("frozen", flush=True)
    sys.stdin.readline()
CaptureTime.walked = stop
sys.argv = ["ciuic", *sys.argv[1:]]
from ciuic.cli import main
main()
"""


@pytest.fixture(params=["xfs", "btrfs"])
def cow_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with disk(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def box(cow_disk: Disk, tmp_path: Path) -> Box:
    """A source with a file that stays as it is, and a snapshot of it; the store is elsewhere."""
    made = Box(cow_disk.path)
    if cow_disk.kind == "btrfs":
        made.source.rmdir()
        subprocess.run(["btrfs", "-q", "subvolume", "create", made.source], check=True, timeout=60)
    shutil.move(made.store, tmp_path / "store")
    made.store = tmp_path / "store"
    made.configure()
    (made.source / "kept.bin").write_bytes(os.urandom(200_000))
    write(made, 0)
    take(made)
    return made


def write(box: Box, version: int) -> None:
    """Write a version of each file in place."""
    for name, size in FILES.items():
        (box.source / name).touch()
        with (box.source / name).open("r+b") as file:
            file.write(bytes([version]) * size)
    wait_until_settled(box.source)


def take(box: Box, *roots: Path) -> str:
    done = box.ciuic("snapshot", *roots, "--wait", "0")
    assert done.code == 0, done.err
    return done.out.strip()


class Held:
    """A snapshot in a process of its own, which is held."""

    def __init__(self, box: Box, *roots: Path) -> None:
        command = [sys.executable, "-c", HOLD, "--config", box.config, "snapshot", *roots]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen([*command, "--wait", "0"], env=environment(), **pipes)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == b"frozen\n", self._process.communicate()

    def end(self) -> str:
        """Let it go on to its end; returns its ID."""
        out, err = self._process.communicate(b"\n", timeout=LIMIT_S)
        assert self._process.returncode == 0, err
        return out.decode().strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


def how(box: Box, *ids: str) -> set[str]:
    """Return how the roots of these snapshots were captured."""
    with open_store(str(box.store)) as store:
        found = {one.id: store.manifest(one.id) for one in box.snapshots()}
    return {
        root.capture
        for full_id, manifest in found.items()
        if any(full_id.startswith(short) for short in ids)
        for root in manifest.roots
    }


def versions(box: Box, snapshot: str) -> set[bytes]:
    """Return the first byte of each file in a snapshot; a file has the same byte throughout."""
    contents = {name: box.read(box.source / name, snapshot) for name in FILES}
    for name, content in contents.items():
        assert content == content[:1] * FILES[name]
    return {content[:1] for content in contents.values()}


def hot(box: Box, snapshot: str) -> int:
    """Return how many reflink copies a snapshot has; each has the content of its file."""
    done = box.ciuic("verify", snapshot, "--hot", "--json")
    assert done.code == 0, done.out
    return int(done.document["copies"])


def parts(place: Disk) -> dict[str, int]:
    """Return how many records, copies and trees the only area has."""
    (area,) = (place.path / os.fsdecode(AREA_NAME)).iterdir()
    return {name: len(os.listdir(area / name)) for name in ("records", "copies", "trees")}


def only_one(kind: str, files: int) -> dict[str, int]:
    """Return what an area has whose only snapshot is of this many large files."""
    is_tree = kind == "btrfs"
    return {"records": 1, "copies": 0 if is_tree else files, "trees": int(is_tree)}


def test_two_snapshots_of_the_same_files_are_each_exact_as_of_their_own_moment(
    cow_disk: Disk, box: Box
) -> None:
    write(box, 1)
    held = Held(box)
    (box.source / "kept.bin").write_bytes(os.urandom(200_000))
    write(box, 2)
    meanwhile = take(box)
    write(box, 3)
    first = held.end()

    assert how(box, first, meanwhile) == {HOW[cow_disk.kind]}
    assert versions(box, first) == {b"\1"}
    assert versions(box, meanwhile) == {b"\2"}
    assert hot(box, first) == hot(box, meanwhile) == 4, "also of the file that has not changed"

    last = take(box)
    assert versions(box, last) == {b"\3"}
    assert hot(box, last) == 4
    assert parts(cow_disk) == only_one(cow_disk.kind, 4)
    assert box.verify().ok


def test_a_snapshot_that_ends_before_another_freezes_keeps_its_reflink_copies(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one was planned before, so it does not know it."""
    prepare, between = Freezer.prepare, []

    def prepare_late(freezer: Freezer) -> None:
        between.append(take(box))
        prepare(freezer)

    monkeypatch.setattr(Freezer, "prepare", prepare_late)
    request = TakeRequest((os.fsencode(box.source),), base_interval_s=0)
    with open_store(str(box.store), write=True, only_adds=True) as store:
        # A record of a run that was killed before it committed its snapshot is a leftover.
        stray = Area.make(
            os.fsencode(box.source.parent), store.identity_path, store.header.store_id
        )
        stray.begin(STRAY)
        stray.write_record(1, [])
        stray.close()
        last = take_snapshot(store, request, clock=SystemClock()).id
    assert hot(box, between[0]) == hot(box, last) == 4
    assert stray.record(STRAY) is None


def test_snapshots_at_once_are_whole_while_files_are_replaced(cow_disk: Disk, box: Box) -> None:
    ends = threading.Event()

    def replace() -> None:
        version = 0
        while not ends.wait(0.01):
            version = (version + 1) % 256
            for name, size in FILES.items():
                new = box.source / "new"
                new.write_bytes(bytes([version]) * size)
                new.replace(box.source / name)

    def snapshots(taken: list[str]) -> None:
        for _ in range(2):
            done = box.ciuic("snapshot", "--wait", "60s", "--json")
            taken.append(done.document["id"] if done.code in {0, 3} else done.err)

    taken: list[str] = []
    writer = threading.Thread(target=replace)
    takers = [threading.Thread(target=snapshots, args=(taken,)) for _ in range(3)]
    for thread in (writer, *takers):
        thread.start()
    for thread in takers:
        thread.join()
    ends.set()
    writer.join()

    assert len(taken) == 6
    assert how(box, *taken) <= {HOW[cow_disk.kind], UNCHANGED}
    for one in taken:
        versions(box, one)
    assert take(box)
    assert hot(box, "latest") == 4
    assert parts(cow_disk) == only_one(cow_disk.kind, 4)
    assert box.verify().ok


def test_a_snapshot_that_is_killed_costs_the_others_nothing_and_the_next_one_cleans_up(
    cow_disk: Disk, box: Box
) -> None:
    write(box, 1)
    killed, held = Held(box), Held(box)
    write(box, 2)
    killed.kill()
    before = parts(cow_disk)
    meanwhile = take(box)
    after = parts(cow_disk)
    first = held.end()

    # The files of the parent's record stay, for the one that is held. What the killed one had is
    # gone, and as much came: its followers have as many files.
    assert before == after
    assert before["records"] == 3
    assert how(box, first, meanwhile) == {HOW[cow_disk.kind]}
    assert versions(box, first) == {b"\1"}
    assert versions(box, meanwhile) == {b"\2"}
    assert hot(box, first) == hot(box, meanwhile) == 4
    take(box)
    assert parts(cow_disk) == only_one(cow_disk.kind, 4)


def test_a_full_disk_ends_no_freeze_of_another_snapshot(box: Box, cow_disk: Disk) -> None:
    write(box, 1)
    held = Held(box)
    cow_disk.leave_free(0)
    assert box.ciuic("snapshot", "--wait", "0").code == 0
    assert parts(cow_disk)["records"] == 2, "those of the one that is held, and of its parent"
    (cow_disk.path / "ballast").unlink()
    subprocess.run(["sync", "-f", cow_disk.path], check=True, timeout=60)
    wait_until("the space is free", lambda: cow_disk.free_bytes() > 100 * MIB)
    first = held.end()

    assert how(box, first) == {HOW[cow_disk.kind]}
    assert versions(box, first) == {b"\1"}
    assert hot(box, first) == 4


def test_another_user_freezes_beside_root_in_an_area_of_their_own() -> None:
    with tempfile.TemporaryDirectory(prefix="ciuic-test-") as top, disk("xfs", Path(top)) as made:
        Path(top).chmod(0o755)
        mine, theirs = made.path / "mine", made.path / "theirs"
        mine.mkdir()
        theirs.mkdir()
        box, other = Box(mine), Box(theirs)
        for one in (box, other):
            write(one, 1)
        for path in (theirs, *theirs.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        held = Held(box)
        done = other.ciuic("snapshot", "--json", user=NOBODY)
        assert done.code == 0, done.err
        first = held.end()
        assert how(box, first) == how(other, done.document["id"]) == {"reflink"}
        owners = {path.stat().st_uid for path in made.path.rglob("copies/*")}
        assert owners == {0, NOBODY}
        assert parts(made) == only_one("xfs", 3), "root's area is still root's alone"
