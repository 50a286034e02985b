"""Frozen captures on real file systems: the content of the snapshot, and no leftovers."""

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciuic.catalog import find_snapshot
from ciuic.model import BEING_WRITTEN, CONSISTENT, ExcludeRules
from ciuic.snapshot.observers import CaptureTime
from ciuic.snapshot.read.small_files import SmallFiles
from ciuic.snapshot.read.source_file import SourceFile
from ciuic.source.directory import open_root
from ciuic.source.freeze.area import Area
from ciuic.source.freeze.early import EarlyCopies
from ciuic.source.freeze.freezer import Freezer
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.source.freeze.methods import choose
from ciuic.source.freeze.places import remove_copies
from ciuic.source.freeze.trust import open_frozen
from ciuic.source.freeze.views import FrozenFile, ReflinkView
from ciuic.store.records.layout import HEADER
from ciuic.store.store import open_store
from ciuic.system import kernel
from ciuic.system.clock import SystemClock
from ciuic.system.kernel import remove_subvolume, snapshot_subvolume
from tests.kit.box import Box, settle, wait_until_settled
from tests.kit.filesystems import Disk, disk
from tests.kit.program import ciuic
from tests.kit.trees import differences, photograph

MIB = 1024 * 1024
HOW = {"ext4": "in place", "xfs": "reflink", "btrfs": "subvolume"}

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def any_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system of each kind."""
    with disk(request.param, tmp_path) as made:
        yield made


@pytest.fixture(params=["xfs", "btrfs"])
def cow_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system that can freeze."""
    with disk(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Disk]:
    with disk("btrfs", tmp_path) as made:
        yield made


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Disk]:
    with disk("xfs", tmp_path) as made:
        yield made


def box_on(place: Disk) -> Box:
    """Return a source and a store on one file system, with files of every size class."""
    home = place.path / "home"
    home.mkdir()
    box = Box(home)
    (box.source / "run").mkdir()
    (box.source / "run" / "model.pt").write_bytes(os.urandom(5 * MIB + 77))
    (box.source / "run" / "shard.bin").write_bytes(os.urandom(40_000))
    (box.source / "run" / "log.txt").write_text("step 1\n")
    os.link(box.source / "run" / "model.pt", box.source / "best.pt")
    return box


def area_of(place: Disk, box: Box) -> Area:
    with open_store(str(box.store)) as store:
        area = Area.find(os.fsencode(place.path), store.header.store_id)
    assert area is not None
    return area


def frozen_files(place: Disk, box: Box) -> set[str]:
    """Return all files and subvolumes in the area; subvolumes are not entered."""
    area = Path(os.fsdecode(area_of(place, box).path))
    parts = [area / name for name in ("copies", "trees", "records")]
    return {f"{part.name}/{one.name}" for part in parts for one in part.iterdir()}


def captures(box: Box) -> list[str]:
    with open_store(str(box.store)) as store:
        return [root.capture for root in store.manifest(find_snapshot(store, "latest").id).roots]


def test_each_file_system_is_captured_by_its_best_method(any_disk: Disk, tmp_path: Path) -> None:
    box = box_on(any_disk)
    before = photograph(box.source, holes=False)

    box.take()
    box.restore(to=tmp_path)

    assert captures(box) == [HOW[any_disk.kind]]
    assert choose(os.fsencode(box.source)).how == HOW[any_disk.kind]
    assert differences(before, photograph(tmp_path / "source", holes=False)) == []
    assert box.verify().ok


def test_changes_after_the_freeze_are_not_in_the_snapshot(cow_disk: Disk, tmp_path: Path) -> None:
    box = box_on(cow_disk)
    model = box.source / "run" / "model.pt"
    before = model.read_bytes()
    changed = threading.Event()

    def overwrite() -> bool:
        # A reading thread asks for the first time when every file is frozen.
        if threading.current_thread().name.startswith("read") and not changed.is_set():
            changed.set()
            with model.open("r+b") as file:
                file.write(bytes(5 * MIB))
        return False

    report = box.take(cancelled=overwrite)
    box.restore(box.source / "run", to=tmp_path)

    assert changed.is_set()
    assert report.trouble_count == 0
    assert (tmp_path / "run" / "model.pt").read_bytes() == before
    assert box.entries()[os.fsencode(model)].state == CONSISTENT


def test_a_writer_is_found_and_named(any_disk: Disk) -> None:
    box = box_on(any_disk)
    model = box.source / "run" / "model.pt"
    program = f"import signal; f = open({str(model)!r}, 'r+b'); print(flush=True); signal.pause()"
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        os.utime(model)
        report = box.take()
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()

    entries = box.entries()
    assert report.trouble_count == 1
    assert report.flux == (os.fsencode(report.trouble[0].path),)
    assert f"(pid {writer.pid})" in report.trouble[0].what
    assert entries[os.fsencode(model)].state == BEING_WRITTEN
    assert entries[os.fsencode(box.source / "run" / "shard.bin")].state == CONSISTENT

    again = box.take()
    assert again.trouble_count == 0
    assert again.read_bytes >= 0
    assert box.entries()[os.fsencode(model)].state == CONSISTENT


def test_a_writer_is_named_even_if_its_name_is_not_utf8(box: Box) -> None:
    path = box.source / "model.pt"
    path.write_bytes(b"model")
    program = (
        "import signal; open('/proc/self/comm', 'wb').write(b'x\\xff');"
        f" f = open({str(path)!r}, 'r+b'); print(flush=True); signal.pause()"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        outcome = box.ciuic("snapshot", "--json")
    finally:
        writer.kill()
        writer.communicate()

    assert outcome.code == 3, outcome.err
    (trouble,) = outcome.document["trouble"]
    assert trouble["what"] == rf"in flux: open for writing by x\xff (pid {writer.pid})"
    assert rf"x\xff (pid {writer.pid})" in box.ciuic("show", "latest").out


def test_many_roots_are_frozen_within_the_limit_of_descriptors(xfs: Disk) -> None:
    box = Box(xfs.path)
    roots = [box.source / f"root{number}" for number in range(5)]
    for root in roots:
        root.mkdir()
        for number in range(100):
            (root / f"{number}").write_bytes(os.urandom(20_000))
    box.configure(*roots)
    limited = ("sh", "-c", 'ulimit -n 300; exec "$@"', "sh")

    outcome = ciuic("--config", box.config, "snapshot", "--json", wrapper=limited)

    assert outcome.code == 0, outcome.err
    assert outcome.document["files"] == 500
    with open_store(str(box.store)) as store:
        manifest = store.manifest(outcome.document["id"])
    assert [root.capture for root in manifest.roots] == ["reflink"] * 5


def test_the_area_is_never_part_of_a_snapshot(cow_disk: Disk) -> None:
    box = Box(cow_disk.path)
    (cow_disk.path / "model.pt").write_bytes(os.urandom(MIB))

    for _ in range(3):
        box.take(cow_disk.path)

    names = [path for path in box.entries() if AREA_NAME in path or b"store/" in path]
    assert names == []
    assert box.verify().ok


def test_only_the_newest_reflink_copies_are_kept(cow_disk: Disk) -> None:
    box = box_on(cow_disk)
    box.take()
    newest = box.take().id

    found = frozen_files(cow_disk, box)

    assert {one for one in found if one.startswith("records/")} == {f"records/{newest}"}
    assert len([one for one in found if one.startswith("trees/")]) == (cow_disk.kind == "btrfs")
    assert len([one for one in found if one.startswith("copies/")]) == (
        2 if cow_disk.kind == "xfs" else 0
    )


def test_a_snapshot_of_another_directory_does_not_remove_reflink_copies(cow_disk: Disk) -> None:
    """The next snapshot compares with them, and a rollback clones from them."""
    box = box_on(cow_disk)
    other = cow_disk.path / "home" / "other"
    other.mkdir()
    (other / "file").write_bytes(os.urandom(40_000))
    mine = box.take().id
    box.take(other)
    newest = box.take(other).id

    found = frozen_files(cow_disk, box)

    records = {f"records/{mine}", f"records/{newest}"}
    assert {one for one in found if one.startswith("records/")} == records


def test_files_excluded_by_size_and_marks_are_not_copied_early(xfs: Disk) -> None:
    box = box_on(xfs)
    for name in ("cache/CACHEDIR.TAG", "cache/wheel", "huge"):
        path = box.source / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"Signature: 8a477f597d28d172789f06886806bc55" + os.urandom(40_000))
    (box.source / "huge").write_bytes(os.urandom(6 * MIB))
    wait_until_settled(box.source)

    box.take(exclude=ExcludeRules(larger_than_bytes=5 * MIB + 77, caches=True), clock=SystemClock())

    names = {os.path.basename(path) for path in box.entries()}
    assert names >= {b"model.pt", b"shard.bin", b"CACHEDIR.TAG"}
    assert not names & {b"huge", b"wheel"}
    assert clones_of(xfs, box) == 3


def test_an_unchanged_file_keeps_its_reflink_copy_and_gets_a_missing_one(xfs: Disk) -> None:
    box = box_on(xfs)
    box.take()
    before = frozen_files(xfs, box)
    box.take()
    kept = {one for one in frozen_files(xfs, box) if one.startswith("copies/")}
    assert kept == {one for one in before if one.startswith("copies/")}

    copies = Path(os.fsdecode(area_of(xfs, box).path)) / "copies"
    for one in copies.iterdir():
        one.unlink()
    box.take()

    entry = box.entries()[os.fsencode(box.source / "run" / "model.pt")]
    with open_store(str(box.store)) as store:
        newest = find_snapshot(store, "latest").id
        frozen = open_frozen(store.header.store_id, newest, os.fsencode(box.source))
    assert frozen is not None
    fd = frozen.open(os.fsencode(box.source / "run" / "model.pt"), entry)
    frozen.close()
    assert fd is not None
    with open(fd, "rb") as file:
        assert file.read() == (box.source / "run" / "model.pt").read_bytes()


def clones_of(place: Disk, box: Box) -> int:
    """Return the number of clones in the area."""
    return len([one for one in frozen_files(place, box) if one.startswith("copies/")])


@pytest.fixture
def clones(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the clones that a snapshot makes before the freeze begins, and during it."""
    made = {"before": 0, "frozen": 0}
    phase = ["before"]
    clone, prepare, begin = kernel.clone_file, Freezer.prepare, Freezer.begin

    def noted_clone(source_fd: int, target_fd: int) -> None:
        made[phase[0]] += 1
        clone(source_fd, target_fd)

    def noted_prepare(freezer: Freezer, *arguments: Any, **named: Any) -> None:
        phase[0] = "before"
        made.update(before=0, frozen=0)
        prepare(freezer, *arguments, **named)

    def noted_begin(freezer: Freezer) -> object:
        phase[0] = "frozen"
        return begin(freezer)

    monkeypatch.setattr(kernel, "clone_file", noted_clone)
    monkeypatch.setattr(Freezer, "prepare", noted_prepare)
    monkeypatch.setattr(Freezer, "begin", noted_begin)
    return made


def test_only_files_that_look_changed_are_copied_before_the_freeze(
    xfs: Disk, clones: dict[str, int]
) -> None:
    box = box_on(xfs)
    (box.source / "cache").mkdir()
    for number in range(30):
        (box.source / "run" / f"left-out-{number}").write_bytes(bytes(20_000))
        (box.source / "run" / f"part-{number}").write_bytes(os.urandom(20_000))
        (box.source / "cache" / f"{number}").write_bytes(os.urandom(20_000))
    exclude = ("left-out-*", os.fsdecode(box.source / "cache"))
    descriptors = len(os.listdir("/proc/self/fd"))
    wait_until_settled(box.source)

    box.take(exclude=exclude, clock=SystemClock())

    # One more: on a loop device, ciuic tries a clone to find out whether they are supported.
    assert clones == {"before": 32 + 1, "frozen": 0}
    assert clones_of(xfs, box) == 32
    assert len(os.listdir("/proc/self/fd")) == descriptors

    (box.source / "run" / "part-7").write_bytes(os.urandom(20_000))
    wait_until_settled(box.source)
    box.take(exclude=exclude, clock=SystemClock())
    assert clones == {"before": 1 + 1, "frozen": 0}
    assert clones_of(xfs, box) == 32


def test_a_store_inside_the_root_is_not_copied(xfs: Disk, clones: dict[str, int]) -> None:
    box = Box(xfs.path)
    (box.source / "model.pt").write_bytes(os.urandom(MIB))
    for expected in (1, 0):
        wait_until_settled(box.source)
        box.take(xfs.path, clock=SystemClock())
        assert clones == {"before": expected + 1, "frozen": 0}
        assert clones_of(xfs, box) == 1


def _written(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"later")


def _written_and_dated_back(path: Path) -> None:
    times = path.stat()
    _written(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"later")


def _cut(path: Path) -> None:
    os.truncate(path, 70_000)


def _replaced(path: Path) -> None:
    other = path.with_suffix(".tmp")
    other.write_bytes(os.urandom(MIB))
    other.rename(path)


def _other_mode(path: Path) -> None:
    path.chmod(0o640)


def _labelled(path: Path) -> None:
    os.setxattr(path, "user.note", b"later")


@pytest.mark.parametrize(
    "change",
    [_written, _written_and_dated_back, _appended, _cut, _replaced, _other_mode, _labelled],
)
def test_a_file_that_changes_after_its_early_copy_is_copied_by_the_freeze(
    change: Callable[[Path], None],
    xfs: Disk,
    tmp_path: Path,
    clones: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = Box(xfs.path)
    model = box.source / "model.pt"
    model.write_bytes(os.urandom(MIB))
    (box.source / "other.pt").write_bytes(os.urandom(MIB))
    begin = Freezer.begin

    def changed_meanwhile(freezer: Freezer) -> object:
        change(model)
        return begin(freezer)

    monkeypatch.setattr(Freezer, "begin", changed_meanwhile)
    wait_until_settled(box.source)
    report = box.take(clock=SystemClock())
    expected = photograph(box.source, holes=False)
    box.restore(to=tmp_path)

    assert clones == {"before": 2 + 1, "frozen": 1}
    assert report.trouble_count == 0
    assert differences(expected, photograph(tmp_path / "source", holes=False)) == []
    assert clones_of(xfs, box) == 2


def test_writes_through_a_memory_map_after_the_early_copy_are_noticed(
    xfs: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(xfs.path)
    model = box.source / "model.pt"
    model.write_bytes(bytes(MIB))
    begin = Freezer.begin
    with model.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        # The page is already dirty, so a further write changes the times only after writeback.
        mapped[4096:4101] = b"early"

        def changed_meanwhile(freezer: Freezer) -> object:
            mapped[4096:4101] = b"later"
            return begin(freezer)

        monkeypatch.setattr(Freezer, "begin", changed_meanwhile)
        # Cloning must write the page out by itself.
        monkeypatch.setattr(Freezer, "_write_out", lambda *_: None)
        wait_until_settled(box.source)
        box.take(clock=SystemClock())

    assert box.read(model)[4096:4101] == b"later"


def test_a_file_that_changed_within_the_last_clock_tick_is_left_to_the_freeze(xfs: Disk) -> None:
    box = box_on(xfs)
    changed_ns = (box.source / "run" / "model.pt").stat().st_ctime_ns
    with open_store(str(box.store)) as store:
        header_path, store_id = os.path.join(store.path, HEADER), store.header.store_id
    for taken_ns, expected in ((changed_ns + 10_000_000, None), (changed_ns + 10**9, int)):
        area = Area.make(os.fsencode(xfs.path), header_path, store_id)
        area.begin("cs-0a1b2c")
        early = EarlyCopies(area, taken_ns)
        early.make(open_root(os.fsencode(box.source)), None, lambda *_: False)
        found = early.take((box.source / "run" / "model.pt").stat())
        area.end()
        area.clean([])
        area.close()
        assert found is None if expected is None else isinstance(found, int)


def test_a_disk_that_runs_full_before_the_freeze_loses_no_file(
    xfs: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = box_on(xfs)
    before = photograph(box.source, holes=False)
    clone = kernel.clone_file
    answers = iter([errno.ETXTBSY, errno.ENOSPC])

    def failing(source_fd: int, target_fd: int) -> None:
        error = next(answers, 0) if os.fstat(source_fd).st_size > 4096 else 0
        if error:
            raise OSError(error, os.strerror(error))
        clone(source_fd, target_fd)

    monkeypatch.setattr(kernel, "clone_file", failing)
    report = box.take()
    box.restore(to=tmp_path)

    assert next(answers, None) is None
    assert report.trouble_count == 0
    assert captures(box) == ["reflink"]
    assert differences(before, photograph(tmp_path / "source", holes=False)) == []


class StoppedClock(SystemClock):
    """A clock on which an hour passes at the end of the walk, and no time otherwise."""

    is_walked = False

    def monotonic_s(self) -> float:
        return 3600.0 if self.is_walked else 0.0


def test_a_freeze_does_not_wait_for_the_readers_of_copies(
    xfs: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(xfs.path)
    for number in range(200):
        (box.source / f"{number}.bin").write_bytes(os.urandom(20_000))
    (box.source / "large.bin").write_bytes(os.urandom(3 * MIB))
    clock = StoppedClock()
    walked, store_small = CaptureTime.walked, SmallFiles.store
    reads: list[bool] = []

    def noted_walked(capture: CaptureTime) -> None:
        walked(capture)
        clock.is_walked = True

    def noted_store(reader: SmallFiles, files: list[SourceFile]) -> Any:
        reads.extend([clock.is_walked] * len(files))
        return store_small(reader, files)

    monkeypatch.setattr(CaptureTime, "walked", noted_walked)
    monkeypatch.setattr(SmallFiles, "store", noted_store)
    wait_until_settled(box.source)
    report = box.take(clock=clock)

    assert reads == [True] * 200
    assert report.freeze_s == 0
    assert box.verify().ok


def test_the_next_run_removes_the_leftovers_of_a_killed_one(cow_disk: Disk) -> None:
    box = box_on(cow_disk)
    box.take()
    area = Path(os.fsdecode(area_of(cow_disk, box).path))
    (area / "copies" / "00000000000000ff").write_bytes(b"left over")
    (area / "records" / "cs-abcdef").write_bytes(b"left over")
    if cow_disk.kind == "btrfs":
        top, trees = os.open(cow_disk.path, os.O_RDONLY), os.open(area / "trees", os.O_RDONLY)
        snapshot_subvolume(top, trees, b"cs-abcdef.0")
        os.close(top)
        os.close(trees)

    newest = box.take().id

    found = frozen_files(cow_disk, box)
    assert "copies/00000000000000ff" not in found
    assert {one for one in found if one.startswith("records/")} == {f"records/{newest}"}
    assert "trees/cs-abcdef.0" not in found


def test_a_cancelled_run_removes_its_reflink_copies(cow_disk: Disk) -> None:
    box = box_on(cow_disk)
    box.take()
    before = frozen_files(cow_disk, box)
    (box.source / "run" / "model.pt").write_bytes(os.urandom(3 * MIB))

    with pytest.raises(Exception, match="interrupted"):
        box.take(cancelled=lambda: threading.current_thread().name.startswith("read"))

    assert frozen_files(cow_disk, box) == before


def test_other_file_systems_and_subvolumes_inside_are_read_in_place(
    btrfs: Disk, tmp_path: Path
) -> None:
    box = box_on(btrfs)
    subprocess.run(
        ["btrfs", "-q", "subvolume", "create", box.source / "inner"], check=True, timeout=60
    )
    (box.source / "inner" / "weights.pt").write_bytes(os.urandom(MIB))
    inside = box.source / "mounted"
    inside.mkdir()
    with disk("ext4", tmp_path, size_mib=64) as other:
        subprocess.run(["mount", "--bind", other.path, inside], check=True, timeout=60)
        try:
            (inside / "data.bin").write_bytes(os.urandom(MIB))
            report = box.take()
            entries = box.entries()
            box.restore(box.source / "inner", box.source / "mounted", to=tmp_path / "out")
            weights = (tmp_path / "out" / "inner" / "weights.pt").read_bytes()
            data = (tmp_path / "out" / "mounted" / "data.bin").read_bytes()
            assert weights == (box.source / "inner" / "weights.pt").read_bytes()
            assert data == (inside / "data.bin").read_bytes()
        finally:
            subprocess.run(["umount", inside], check=True, timeout=60)

    assert captures(box) == ["subvolume"]
    assert os.fsencode(inside / "data.bin") in entries
    named = {one.path for one in report.trouble if "captured in place" in one.what}
    assert named == {os.fsencode(box.source / "inner"), os.fsencode(inside)}
    assert report.trouble_count == 0


def test_roots_of_one_subvolume_are_frozen_together(btrfs: Disk) -> None:
    box = box_on(btrfs)
    other = btrfs.path / "other"
    other.mkdir()
    (other / "x").write_bytes(os.urandom(MIB))

    box.take(box.source, other)

    assert captures(box) == ["subvolume", "subvolume"]
    assert len([one for one in frozen_files(btrfs, box) if one.startswith("trees/")]) == 1


def test_a_frozen_subvolume_that_a_user_made_writable_is_not_trusted(btrfs: Disk) -> None:
    box = box_on(btrfs)
    snapshot = box.take().id
    model = box.source / "run" / "model.pt"
    entry = box.entries()[os.fsencode(model)]
    tree = next((Path(os.fsdecode(area_of(btrfs, box).path)) / "trees").iterdir())
    subprocess.run(["btrfs", "property", "set", tree, "ro", "false"], check=True, timeout=60)
    frozen_model = tree / "home" / "source" / "run" / "model.pt"
    times = frozen_model.stat()
    with frozen_model.open("r+b") as file:
        file.write(b"tampered")
    os.utime(frozen_model, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.sync()
    subprocess.run(["btrfs", "property", "set", "-f", tree, "ro", "true"], check=True, timeout=60)

    with open_store(str(box.store)) as store:
        frozen = open_frozen(store.header.store_id, snapshot, os.fsencode(box.source))
    assert frozen is not None
    assert frozen.open(os.fsencode(model), entry) is None
    frozen.close()


@pytest.mark.parametrize("harm", ["write", "truncate", "replace", "touch"])
def test_a_changed_reflink_copy_is_not_trusted(xfs: Disk, harm: str) -> None:
    box = box_on(xfs)
    snapshot = box.take().id
    model = os.fsencode(box.source / "run" / "model.pt")
    entry = box.entries()[model]
    copies = Path(os.fsdecode(area_of(xfs, box).path)) / "copies"
    clone = max(copies.iterdir(), key=lambda one: one.stat().st_size)
    if harm == "write":
        with clone.open("r+b") as file:
            file.write(b"tampered")
    elif harm == "truncate":
        os.truncate(clone, 100)
    elif harm == "replace":
        data = clone.read_bytes()
        clone.unlink()
        clone.write_bytes(data)
    else:
        os.utime(clone)

    with open_store(str(box.store)) as store:
        frozen = open_frozen(store.header.store_id, snapshot, os.fsencode(box.source))
    assert frozen is not None
    assert frozen.open(model, entry) is None
    frozen.close()


def test_reflink_copies_can_be_released(cow_disk: Disk) -> None:
    box = box_on(cow_disk)
    snapshot = box.take().id
    with open_store(str(box.store)) as store:
        removed = remove_copies(store.header.store_id, [os.fsencode(box.source)], keep=0)

    assert removed == [snapshot]
    assert frozen_files(cow_disk, box) == set()
    box.take()
    assert box.verify().ok


def test_an_area_of_another_user_is_not_used(xfs: Disk) -> None:
    box = box_on(xfs)
    area = xfs.path / os.fsdecode(AREA_NAME)
    area.mkdir(mode=0o777)
    os.chown(area, 65534, 65534)

    report = box.take()

    assert captures(box) == ["in place"]
    assert report.trouble_count == 0
    assert list(area.iterdir()) == []
    assert box.verify().ok


def test_a_subvolume_whose_freeze_failed_does_not_stay(btrfs: Disk) -> None:
    top = os.open(btrfs.path, os.O_RDONLY)
    snapshot_subvolume(top, top, b"one")
    remove_subvolume(top, b"one")
    os.close(top)

    assert not (btrfs.path / "one").exists()


def test_the_areas_of_removed_stores_are_removed(cow_disk: Disk) -> None:
    box = box_on(cow_disk)
    box.take()
    gone = Path(os.fsdecode(area_of(cow_disk, box).path))
    box.store.rename(box.directory / "moved")

    other_home = cow_disk.path / "other"
    other_home.mkdir()
    other = Box(other_home)
    other.take(box.source)

    assert not gone.exists()
    assert frozen_files(cow_disk, other) != set()
    other.take(box.source)
    assert frozen_files(cow_disk, other) != set()


@pytest.mark.parametrize("size", [20_000, 300_000, 3 * MIB])
@pytest.mark.parametrize("old_size", [20_000, 3 * MIB])
def test_a_file_replaced_before_its_reflink_copy_is_whole(
    xfs: Disk, old_size: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cloned file may differ in length from the file that the walk saw."""
    box = Box(xfs.path)
    model, new = box.source / "model.pt", os.urandom(size)
    model.write_bytes(os.urandom(old_size))
    (xfs.path / "next").write_bytes(new)
    copy = ReflinkView.copy

    def replace_and_copy(view: ReflinkView, directory_fd: int, name: bytes) -> FrozenFile:
        (xfs.path / "next").rename(model)
        return copy(view, directory_fd, name)

    monkeypatch.setattr(ReflinkView, "copy", replace_and_copy)
    assert box.take().trouble == ()
    assert box.read(model) == new
    assert box.verify().ok


def test_a_file_replaced_during_its_reflink_copy_is_whole(
    xfs: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replacement changes the ctime of the file that is being cloned, by its link count."""
    box = Box(xfs.path)
    model = box.source / "model.pt"
    model.write_bytes(os.urandom(MIB))
    names = iter(range(100))

    def clone_and_link(source_fd: int, target_fd: int) -> None:
        clone_file(source_fd, target_fd)
        os.link(model, xfs.path / f"name {next(names)}")

    clone_file = kernel.clone_file
    monkeypatch.setattr(kernel, "clone_file", clone_and_link)
    assert box.take().trouble == ()
    assert box.read(model) == model.read_bytes()


@pytest.mark.parametrize("ends", ["renamed", "removed", "renamed over"])
def test_a_file_half_written_at_the_freeze_is_marked_whatever_happens_to_it_later(
    btrfs: Disk, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time of the walk, no program has it open, and its name belongs to another file."""
    box = Box(btrfs.path)
    temporary, model = box.source / "model.tmp", box.source / "model.pt"
    model.write_bytes(b"old version")
    begin = Freezer.begin

    def half_written(freezer: Freezer) -> object:
        with temporary.open("wb", buffering=0) as file:
            file.write(b"first half")
            views = begin(freezer)
            file.write(b" and second half")
        temporary.unlink() if ends == "removed" else temporary.replace(model)
        if ends == "renamed over":
            temporary.write_bytes(b"the next version")
        return views

    monkeypatch.setattr(Freezer, "begin", half_written)
    box.take(clock=SystemClock())
    found = {os.path.basename(path): one for path, one in box.entries().items() if one.is_file}
    assert found[b"model.pt"].state == CONSISTENT
    if ends == "renamed over":
        assert found[b"model.tmp"].state == CONSISTENT
        assert box.read(temporary) == b"the next version"
    else:
        assert found[b"model.tmp"].state == BEING_WRITTEN


def test_a_file_that_changed_after_the_freeze_is_marked_for_that_reason(
    btrfs: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time of the walk no program has it open, but one may have had it at the freeze."""
    box = Box(btrfs.path)
    model = box.source / "model.pt"
    model.write_bytes(b"first")
    settle()
    begin = Freezer.begin

    def written_after(freezer: Freezer) -> object:
        views = begin(freezer)
        with model.open("r+b") as file:
            file.write(b"later")
        return views

    monkeypatch.setattr(Freezer, "begin", written_after)
    report = box.take(clock=SystemClock())
    assert [warning.what for warning in report.trouble] == [
        "in flux: it changed after the freeze, so a program may have been writing it then"
    ]
    assert box.entries()[os.fsencode(model)].state == BEING_WRITTEN
    assert box.read(model) == b"first"


def test_a_file_written_right_before_the_freeze_is_read_from_the_live_file(
    btrfs: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reflink copy may lack bytes, so ciuic neither compares with it nor restores from it."""
    box = Box(btrfs.path)
    old, new = box.source / "old.pt", box.source / "new.pt"
    old.write_bytes(os.urandom(MIB))
    settle()
    begin = Freezer.begin

    def written_before(freezer: Freezer) -> object:
        new.write_bytes(os.urandom(MIB))
        views = begin(freezer)
        whole = box.directory / "whole"
        whole.write_bytes(b"whole")
        whole.replace(new)
        return views

    monkeypatch.setattr(Freezer, "begin", written_before)
    report = box.take(clock=SystemClock())
    assert report.trouble == ()
    assert box.read(new) == b"whole"
    with open_store(str(box.store)) as store:
        frozen = open_frozen(store.header.store_id, report.id, os.fsencode(box.source))
    assert frozen is not None
    entries = box.entries()
    fd = frozen.open(os.fsencode(old), entries[os.fsencode(old)])
    assert fd is not None
    os.close(fd)
    assert frozen.open(os.fsencode(new), entries[os.fsencode(new)]) is None
    assert old.stat().st_ino not in frozen.record.doubtful
    assert frozen.record.doubtful
    frozen.close()
