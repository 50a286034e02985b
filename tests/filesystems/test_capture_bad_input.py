"""Copy-on-write capture under bad conditions, on real file systems, through the command line.

The snapshot has the files, whatever happens to reflink copies. Each test restores its snapshot from
the store alone, and compares the result with the source.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.filesystems import Disk, disk, tmpfs
from tests.kit.program import CIUIC, NOBODY, Outcome, ciuic, environment
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024
KIB = 1024
AREA = ".ciuic-frozen"
HOW = {"btrfs": "subvolume", "xfs": "reflink", "ext4": "in place"}
WRITER = """
import sys
with open(sys.argv[1], "r+b", buffering=0) as file:
    print("open", flush=True)
    sys.stdin.readline()
    file.write(b"written late")
    print("written", flush=True)
    sys.stdin.readline()
"""

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(params=["xfs", "btrfs"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """An empty file system of each kind that supports reflinks."""
    with disk(request.param, tmp_path, size_mib=400) as made:
        yield made


@pytest.fixture
def place(mounted: Disk, tmp_path: Path) -> "Place":
    """A source on it that has files of every kind, and a store on another file system."""
    made = Place(mounted.path / "source", tmp_path)
    fill(made.source)
    return made


class Place:
    """A source on the file system of a test, a store on another one, and the command line."""

    def __init__(self, source: Path, directory: Path) -> None:
        self.source = source
        self.directory = directory
        self.store = directory / "store"
        self.config = directory / "ciuic.conf"
        self._outs = 0
        source.mkdir(exist_ok=True)
        self.configure()
        self.run("init")

    def configure(self, *roots: Path, hot_snapshots: int = 1) -> None:
        paths = ", ".join(str(root) for root in roots or (self.source,))
        self.config.write_text(
            f"snapshot_paths = {paths}\nsnapshot_dir = {self.store}\nbase_interval = 0\n"
            f"hot_snapshots = {hot_snapshots}\n"
        )

    def run(
        self, *arguments: str | Path, code: int | set[int] = 0, user: int | None = None
    ) -> Outcome:
        outcome = ciuic("--config", self.config, *arguments, user=user)
        codes = {code} if isinstance(code, int) else code
        assert outcome.code in codes, (arguments, outcome.code, outcome.out, outcome.err)
        return outcome

    def snapshot(self, *arguments: str, code: int = 0, user: int | None = None) -> Any:
        """Take a snapshot; return its report."""
        return self.run("snapshot", "--json", *arguments, code=code, user=user).document

    def how(self) -> list[str]:
        """Return how each root of the newest snapshot was captured."""
        return [root["capture"] for root in self.run("show", "latest", "--json").document["roots"]]

    def trouble(self) -> dict[str, str]:
        """Return what the newest snapshot says about single paths, harmless notes included."""
        found: dict[str, str] = {}
        for one in self.run("show", "latest", "--json").document["trouble"]:
            found[one["path"]] = f"{found.get(one['path'], '')}{one['what']}; "
        return found

    def kept(self, path: Path | None = None, code: int | set[int] = 0) -> dict[bytes, Photo]:
        """Return the content of a path in the newest snapshot, from the store alone."""
        self._outs += 1
        out = self.directory / f"out {self._outs}"
        chosen = path or self.source
        self.run("restore", "-s", "latest", "-p", chosen, "-d", out, "--no-hot", code=code)
        # Another file system may have other blocks, and so other holes.
        found = photograph(out / chosen.name, holes=False)
        shutil.rmtree(out)
        return found

    def require_whole(self, path: Path | None = None) -> None:
        """Check that the newest snapshot equals the source, and that the store is sound."""
        assert differences(photograph(path or self.source, holes=False), self.kept(path)) == []
        self.run("verify", "--all", "--checksum")


def fill(source: Path) -> None:
    """Write files that are cloned, files that are too small for that, links and holes."""
    (source / "runs").mkdir(parents=True, exist_ok=True)
    (source / "runs" / "model.pt").write_bytes(os.urandom(5 * MIB + 77))
    for number in range(20):
        (source / "runs" / f"shard {number}").write_bytes(os.urandom(60_000 + number))
    for number in range(30):
        (source / f"step {number}.log").write_bytes(b"loss %d\n" % number * number)
    os.link(source / "runs" / "model.pt", source / "best.pt")
    (source / "latest").symlink_to("runs/model.pt")
    with (source / "sparse").open("wb") as file:
        file.truncate(3 * MIB)
        os.pwrite(file.fileno(), os.urandom(50_000), MIB)


def frozen(mounted: Disk) -> list[str]:
    """Return the names of all reflink copies on a file system, of any owner."""
    area = mounted.path / AREA
    found = [*area.glob("*/copies/*"), *area.glob("*/trees/*"), *area.glob("*/records/*")]
    return sorted(str(one.relative_to(area)) for one in found)


def remove_frozen(mounted: Disk) -> None:
    """Remove the reflink copies, as a user does who needs the space."""
    for tree in (mounted.path / AREA).glob("*/trees/*"):
        subprocess.run(["btrfs", "subvolume", "delete", tree], check=True, capture_output=True)
    shutil.rmtree(mounted.path / AREA)


def change(path: Path, offset: int = 4096) -> None:
    """Overwrite bytes in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(os.urandom(5000))
        os.fsync(file.fileno())


def test_a_run_without_faults(place: Place, mounted: Disk) -> None:
    """The case without faults. The other tests deviate from it."""
    place.snapshot()
    assert place.how() == [HOW[mounted.kind]]
    assert frozen(mounted) != []
    place.require_whole()
    change(place.source / "runs" / "model.pt")
    assert 0 < place.snapshot()["read_bytes"] < MIB
    place.require_whole()


def test_without_reflinks_files_are_captured_in_place(tmp_path: Path) -> None:
    with disk("xfs", tmp_path, mkfs=("-m", "reflink=0")) as mounted:
        place = Place(mounted.path / "source", tmp_path)
        fill(place.source)
        place.snapshot()
        assert place.how() == ["in place"]
        assert frozen(mounted) == []
        place.require_whole()


def test_a_file_system_without_free_space(place: Place, mounted: Disk) -> None:
    mounted.leave_free(0)
    report = place.snapshot()
    assert report["trouble_count"] == 0
    place.require_whole()
    if mounted.kind == "xfs":  # a copy-on-write file system has no space for this
        change(place.source / "runs" / "shard 3")
        place.snapshot()
        place.require_whole()
    (mounted.path / "ballast").unlink()
    change(place.source / "runs" / "model.pt")
    place.snapshot()
    assert place.how() == [HOW[mounted.kind]]
    place.require_whole()


def test_a_file_system_that_runs_full_during_reflink_copies(tmp_path: Path) -> None:
    """There is space for some clones. ciuic reads the other files in place."""
    with disk("xfs", tmp_path, size_mib=320) as mounted:
        place = Place(mounted.path / "source", tmp_path)
        for number in range(3000):
            (place.source / f"{number}").write_bytes(os.urandom(17_000))
        for _ in range(5):  # XFS returns space late, so there may be more or less of it
            mounted.leave_free(300 * KIB)
            place.snapshot()
            place.require_whole()
            cloned = len([name for name in frozen(mounted) if "/copies/" in name])
            what = [one for one in place.trouble().values() if "No space left" in one]
            if what:
                break
        assert what, f"{cloned} files were cloned, and there was room for all of them"
        assert all("captured in place" in one for one in what)


def test_another_file_system_inside_a_root_is_taken(place: Place, mounted: Disk) -> None:
    with tmpfs(place.source / "runs" / "ram", size_mib=8) as inner:
        (inner / "log").write_bytes(b"loss 1")
        (inner / "shard").write_bytes(os.urandom(100_000))
        place.snapshot()
        assert str(inner) in place.trouble()
        place.require_whole()
        (inner / "log").write_bytes(b"loss 0.9")
        place.snapshot()
        place.require_whole()


def test_a_disk_of_the_same_kind_inside_a_root_is_taken(
    place: Place, mounted: Disk, tmp_path: Path
) -> None:
    """Each supports reflinks, but not with the other, and their inodes have the same numbers."""
    (tmp_path / "inner").mkdir()
    with disk(mounted.kind, tmp_path / "inner") as other:
        fill(other.path / "source")
        inside = place.source / "runs" / "data"
        inside.mkdir()
        subprocess.run(["mount", "--bind", other.path, inside], check=True)
        try:
            for _ in range(2):
                place.snapshot()
                assert str(inside) in place.trouble()
                place.require_whole()
                change(inside / "source" / "runs" / "model.pt")
                change(place.source / "runs" / "model.pt")
        finally:
            subprocess.run(["umount", inside], check=True)


def test_subvolumes_inside_a_subvolume_are_taken(tmp_path: Path) -> None:
    with disk("btrfs", tmp_path, size_mib=400) as mounted:
        source = mounted.path / "source"
        for path in (source, source / "inner", source / "inner" / "innermost"):
            subprocess.run(["btrfs", "subvolume", "create", path], check=True, capture_output=True)
        place = Place(source, tmp_path)
        fill(source)
        fill(source / "inner")
        fill(source / "inner" / "innermost")
        for _ in range(2):
            place.snapshot()
            assert place.how() == ["subvolume"]
            assert str(source / "inner") in place.trouble()
            place.require_whole()
            change(source / "inner" / "innermost" / "runs" / "model.pt")
        subprocess.run(
            ["btrfs", "subvolume", "delete", source / "inner" / "innermost"],
            check=True,
            capture_output=True,
        )
        place.snapshot()
        place.require_whole()


def test_a_root_below_the_top_of_a_subvolume(tmp_path: Path) -> None:
    with disk("btrfs", tmp_path, size_mib=400) as mounted:
        top = mounted.path / "home"
        subprocess.run(["btrfs", "subvolume", "create", top], check=True, capture_output=True)
        (top / "somebody").mkdir()
        place = Place(top / "somebody" / "source", tmp_path)
        fill(place.source)
        place.snapshot()
        assert place.how() == ["subvolume"]
        place.require_whole()


def test_several_roots_on_one_file_system(place: Place, mounted: Disk) -> None:
    other = mounted.path / "other"
    fill(other)
    place.configure(place.source, other)
    place.snapshot()
    assert place.how() == [HOW[mounted.kind]] * 2
    place.require_whole()
    place.require_whole(other)
    change(other / "runs" / "model.pt")
    assert place.snapshot()["read_bytes"] < MIB
    place.require_whole(other)


def test_a_root_that_is_a_symlink(place: Place, mounted: Disk, tmp_path: Path) -> None:
    """The root keeps its configured name, and the snapshot has the directory that it points to."""
    link = tmp_path / "training"
    link.symlink_to(place.source)
    place.configure(link)
    place.snapshot()
    assert place.how() == [HOW[mounted.kind]]
    assert differences(photograph(place.source, holes=False), place.kept(link)) == []
    change(place.source / "runs" / "model.pt")
    assert place.snapshot()["read_bytes"] < MIB
    assert differences(photograph(place.source, holes=False), place.kept(link)) == []
    elsewhere = mounted.path / "elsewhere"
    fill(elsewhere)
    link.unlink()
    link.symlink_to(elsewhere)
    place.snapshot()
    assert differences(photograph(elsewhere, holes=False), place.kept(link)) == []


def test_a_root_that_is_a_bind_mount(place: Place, tmp_path: Path) -> None:
    """It shows only a part of the file system, perhaps without the top of the subvolume."""
    bound = tmp_path / "bound"
    bound.mkdir()
    subprocess.run(["mount", "--bind", place.source / "runs", bound], check=True)
    try:
        place.configure(bound)
        for _ in range(2):
            place.snapshot()
            assert "in place" not in place.how()
            before = photograph(bound, holes=False)
            before.pop(os.fsencode(AREA), None)
            kept = {
                name: one
                for name, one in before.items()
                if not name.startswith(AREA.encode() + b"/")
            }
            # The other name of model.pt is outside, and the top directory holds the reflink copies.
            assert differences(kept, place.kept(bound)) == []
            change(bound / "model.pt")
        place.run("verify", "--all", "--checksum")
    finally:
        remove_all_frozen(bound)
        subprocess.run(["umount", bound], check=True)


def remove_all_frozen(top: Path) -> None:
    for tree in (top / AREA).glob("*/trees/*"):
        subprocess.run(["btrfs", "subvolume", "delete", tree], check=True, capture_output=True)


def test_a_read_only_mount_is_captured_in_place(place: Place, mounted: Disk) -> None:
    mounted.remount("ro")
    place.snapshot()
    assert place.how() == ["in place"]
    place.require_whole()
    mounted.remount("rw")
    place.snapshot()
    assert place.how() == [HOW[mounted.kind]]
    # Reflink copies that cannot be removed or replaced do no harm.
    mounted.remount("ro")
    place.snapshot()
    place.require_whole()


def open_to_all(directory: Path) -> None:
    """Let other users reach ``directory``, however deep the test runner puts it."""
    for one in [directory, *directory.parents]:
        if one.stat().st_uid == os.getuid() and one.is_relative_to(tempfile.gettempdir()):
            one.chmod(one.stat().st_mode | 0o055)


def test_a_user_without_write_access_beside_the_source(mounted: Disk, tmp_path: Path) -> None:
    """Reflink copies need a writable directory, and a source that is only readable has none."""
    open_to_all(tmp_path)
    place = Place(mounted.path / "source", tmp_path)
    fill(place.source)
    shutil.rmtree(place.store)
    place.store.mkdir()
    os.chown(place.store, NOBODY, NOBODY)
    place.run("init", user=NOBODY)
    place.snapshot(user=NOBODY)
    assert place.how() == ["in place"]
    assert frozen(mounted) == []
    place.require_whole()


def test_a_user_gets_reflink_copies_of_his_own_source(mounted: Disk, tmp_path: Path) -> None:
    """This holds on btrfs too, where only root may remove a frozen subvolume."""
    open_to_all(tmp_path)
    place = Place(mounted.path / "source", tmp_path)
    fill(place.source)
    for parent, directories, names in os.walk(place.source):
        for name in [".", *directories, *names]:
            os.chown(Path(parent, name), NOBODY, NOBODY, follow_symlinks=False)
    shutil.rmtree(place.store)
    place.store.mkdir()
    os.chown(place.store, NOBODY, NOBODY)
    place.run("init", user=NOBODY)
    for _ in range(2):
        place.snapshot(user=NOBODY)
        assert place.how() == ["reflink"]
        kept = {
            name: one
            for name, one in photograph(place.source, holes=False).items()
            if not name.startswith(AREA.encode())
        }
        assert differences(kept, place.kept()) == []
        change(place.source / "runs" / "model.pt")


def test_reflink_copies_that_were_deleted_by_hand(place: Place, mounted: Disk) -> None:
    place.snapshot()
    remove_frozen(mounted)
    change(place.source / "runs" / "model.pt")
    place.snapshot()
    place.require_whole()
    assert frozen(mounted) != []
    remove_frozen(mounted)
    before = photograph(place.source)
    change(place.source / "runs" / "model.pt")
    place.run("restore", "-s", "latest", "-p", place.source, "--overwrite")
    assert differences(before, photograph(place.source)) == []


def test_reflink_copies_that_were_partly_deleted(place: Place, mounted: Disk) -> None:
    place.snapshot()
    if mounted.kind == "btrfs":
        remove_all_frozen(mounted.path)
    else:
        for one in list((mounted.path / AREA).glob("*/copies/*"))[::2]:
            one.unlink()
    for path in (place.source / "runs").iterdir():
        change(path)
    place.snapshot()
    place.require_whole()
    before = photograph(place.source)
    for one in (mounted.path / AREA).glob("*/records/*"):
        one.write_bytes(b"")
    for path in (place.source / "runs").iterdir():
        change(path)
    place.run("restore", "-s", "latest", "-p", place.source, "--overwrite")
    assert differences(before, photograph(place.source)) == []


def test_a_file_in_place_of_the_directory_of_reflink_copies(place: Place, mounted: Disk) -> None:
    (mounted.path / AREA).write_bytes(b"mine")
    place.snapshot()
    place.require_whole()
    assert (mounted.path / AREA).read_bytes() == b"mine"


def test_a_symlink_in_place_of_the_directory_of_reflink_copies(
    place: Place, mounted: Disk, tmp_path: Path
) -> None:
    elsewhere = mounted.path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (mounted.path / AREA).symlink_to(elsewhere)
    place.snapshot()
    place.require_whole()
    assert list(elsewhere.iterdir()) == []


def test_a_writer_that_never_closes_its_file(place: Place, mounted: Disk) -> None:
    path = place.source / "runs" / "shard 7"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "open\n"
        first = place.snapshot(code=3)
        what = place.trouble()[str(path)]
        assert "in flux" in what
        assert f"pid {writer.pid}" in what
        assert "python" in what
        assert differences(photograph(place.source, holes=False), place.kept(code=3)) == []
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
        # ciuic does not trust the file, whatever its times are.
        place.snapshot(code=3)
        assert differences(photograph(place.source, holes=False), place.kept(code=3)) == []
    finally:
        writer.kill()
        writer.communicate()
    third = place.snapshot()
    assert third["trouble_count"] == 0
    place.require_whole()
    assert first["trouble_count"] >= 1


@pytest.mark.parametrize("count", [20_000])
def test_files_that_come_and_go_while_the_freeze_runs(
    place: Place, mounted: Disk, count: int
) -> None:
    busy = place.source / "busy"
    busy.mkdir()
    for number in range(300):
        (busy / f"there {number}").write_bytes(os.urandom(20_000))
    before = photograph(place.source, holes=False)
    done = threading.Event()
    made = 0

    def churn() -> None:
        nonlocal made
        content = os.urandom(20_000)
        while made < count:
            path = busy / f"{made % 500}"
            path.write_bytes(content)
            if made % 3:
                path.unlink()
            made += 1
        done.set()

    thread = threading.Thread(target=churn)
    thread.start()
    taken = 0
    try:
        while not done.is_set() or not taken:
            outcome = ciuic("--config", place.config, "snapshot", "--json")
            assert outcome.code in {0, 3}, outcome.err
            taken += 1
    finally:
        thread.join()
    place.run("verify", "--all", "--checksum")
    steady = {name for name in before if name.startswith(b"busy/there ")}
    # Files that vanished are not in the snapshot. Files that were being written are, with a
    # warning, or the file that had replaced one when its directory was listed again.
    newest = place.run("list", "--json").document[0]
    kept = place.kept(code={0, 3} if newest["flux_count"] else 0)
    assert {name: kept.get(name) for name in steady} == {name: before[name] for name in steady}
    place.snapshot()
    place.require_whole()


def test_hard_links(place: Place, mounted: Disk) -> None:
    """A second name causes no second clone, and hard links are restored as hard links."""
    path = place.source / "runs" / "model.pt"
    for number in range(50):
        os.link(path, place.source / f"link {number}")
    place.snapshot()
    place.require_whole()
    if mounted.kind == "xfs":
        large = [
            one for one in place.source.rglob("*") if one.is_file() and one.stat().st_size > 16_384
        ]
        inodes = {one.stat().st_ino for one in large}
        assert len([name for name in frozen(mounted) if "/copies/" in name]) == len(inodes)
    change(place.source / "link 7")
    assert place.snapshot()["read_bytes"] < MIB
    place.require_whole()
    (place.source / "link 7").unlink()
    (place.source / "link 7").write_bytes(os.urandom(30_000))
    place.snapshot()
    place.require_whole()


def test_a_file_of_thousands_of_extents(place: Place, mounted: Disk) -> None:
    """FIEMAP answers in several pages, and the last of them shows a change."""
    path = place.source / "database"
    blocks = 5000
    with path.open("wb") as file:
        for number in range(blocks):
            os.pwrite(file.fileno(), os.urandom(4096), number * 8192)
        os.fsync(file.fileno())
    place.snapshot()
    place.require_whole()
    for number in (0, 2500, blocks - 1):
        change(path, number * 8192)
    report = place.snapshot()
    assert 0 < report["read_bytes"] < 8 * MIB
    place.require_whole()
    with path.open("r+b") as file:
        for number in range(0, blocks, 2):
            os.pwrite(file.fileno(), os.urandom(4096), number * 8192 + 4096)
    place.snapshot()
    place.require_whole()


def test_a_swap_file(place: Place, mounted: Disk) -> None:
    """The kernel refuses to clone a swap file, and on btrfs to freeze its subvolume."""
    path = place.source / "swap"
    path.touch(mode=0o600)
    if mounted.kind == "btrfs":
        subprocess.run(["chattr", "+C", path], check=True)
    with path.open("r+b") as file:
        file.write(bytes(8 * MIB))
        os.fsync(file.fileno())
    subprocess.run(["mkswap", path], check=True, capture_output=True)
    done = subprocess.run(["swapon", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this machine cannot swap to a file: {done.stderr}")
    try:
        outcome = ciuic("--config", place.config, "snapshot", "--json")
        assert outcome.code in {0, 3}, outcome.err
        assert "in flux: open for writing" in place.trouble()[str(path)]
        # The kernel writes the swap file; all other files must be right.
        expected = photograph(place.source, holes=False)
        found = place.kept(code=outcome.code)
        expected.pop(b"swap")
        found.pop(b"swap")
        assert differences(expected, found) == []
        # The others are still cloned.
        assert place.how() == ["reflink"]
        change(place.source / "runs" / "model.pt")
        outcome = ciuic("--config", place.config, "snapshot", "--json")
        assert outcome.document["read_bytes"] < 9 * MIB
    finally:
        subprocess.run(["swapoff", path], check=True)
    # The kernel's writes do not change the times of the swap file, so ciuic reads it again. Its
    # pages in the cache may be older than its blocks, so the test compares only the other files.
    assert place.snapshot()["read_bytes"] >= 8 * MIB
    assert place.how() == [HOW[mounted.kind]]
    path.unlink()
    place.snapshot()
    place.require_whole()


def test_immutable_and_append_only_files(place: Place, mounted: Disk) -> None:
    fixed, growing = place.source / "runs" / "shard 1", place.source / "runs" / "shard 2"
    subprocess.run(["chattr", "+i", fixed], check=True)
    subprocess.run(["chattr", "+a", growing], check=True)
    try:
        place.snapshot()
        place.require_whole()
        with growing.open("ab") as file:
            file.write(os.urandom(10_000))
        change(place.source / "runs" / "model.pt")
        place.snapshot()
        place.require_whole()
        place.snapshot()
        assert len({name.split("/")[2] for name in frozen(mounted) if "/records/" in name}) == 1
    finally:
        subprocess.run(["chattr", "-i", fixed], check=True)
        subprocess.run(["chattr", "-a", growing], check=True)


def test_the_next_snapshot_removes_the_reflink_copies_of_a_killed_one(
    place: Place, mounted: Disk
) -> None:
    rng = random.Random(3)
    for number in range(400):
        (place.source / f"more {number}").write_bytes(os.urandom(40_000))
    began = time.monotonic()
    place.snapshot()
    longest_s = time.monotonic() - began
    clean = shape(frozen(mounted))
    ended = 0
    for _ in range(8):
        for number in range(0, 400, 3):
            change(place.source / f"more {number}")
        process = subprocess.Popen(
            [*CIUIC, "--config", place.config, "snapshot"],
            env=environment(),
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(longest_s * rng.uniform(0.2, 1.1))
        process.send_signal(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            ended += 1
        else:
            longest_s *= 0.7  # other tests had slowed down the first one
    assert ended, "every snapshot was quicker than the kill"
    place.snapshot()
    assert shape(frozen(mounted)) == clean
    place.require_whole()


def shape(names: list[str]) -> dict[str, int]:
    """Return the number of entries of each kind."""
    kinds = [name.split("/")[1] for name in names]
    return {kind: kinds.count(kind) for kind in set(kinds)}


def test_with_hot_snapshots_0_no_reflink_copy_stays(place: Place, mounted: Disk) -> None:
    place.snapshot()
    assert frozen(mounted) != []
    place.configure(hot_snapshots=0)
    for _ in range(2):
        change(place.source / "runs" / "model.pt")
        place.snapshot()
        assert place.how() == [HOW[mounted.kind]]
        assert frozen(mounted) == []
        place.require_whole()


def test_each_schedule_keeps_its_own_number_of_hot_snapshots(place: Place, mounted: Disk) -> None:
    text = f"snapshot_dir = {place.store}\nbase_interval = 0\n"
    for name, count in (("two", 2), ("one", 1), ("cold", 0)):
        text += f"[schedule {name}]\nsnapshot_paths = {place.source}\nhot_snapshots = {count}\n"
    place.config.write_text(text)
    taken: dict[str, list[str]] = {"two": [], "one": [], "cold": []}
    for _ in range(3):
        for name, ids in taken.items():
            ids.append(place.snapshot("--schedule", name)["id"])
    hot = frozenset(taken["two"][-2:] + taken["one"][-1:])
    records = [name for name in frozen(mounted) if "/records/" in name]
    assert {os.path.basename(name) for name in records} == hot


def test_reflink_copies_are_never_in_a_snapshot(place: Place, mounted: Disk) -> None:
    """Here, the root is the directory that holds them."""
    place.configure(mounted.path)
    for _ in range(3):
        report = place.snapshot()
        assert AREA not in place.run("ls", "-R", "latest").out
        assert frozen(mounted) != []
        change(place.source / "runs" / "model.pt")
    assert report["files"] == len(
        [one for one in place.source.rglob("*") if one.is_file() and not one.is_symlink()]
    )
    assert report["read_bytes"] < MIB
    place.snapshot()
    place.require_whole()


def test_a_restore_with_delete_spares_reflink_copies(place: Place, mounted: Disk) -> None:
    place.configure(mounted.path)
    place.snapshot()
    before = photograph(place.source)
    change(place.source / "runs" / "model.pt")
    (place.source / "new").write_bytes(b"new")
    place.run("restore", "-s", "latest", "-p", mounted.path, "--overwrite", "--delete")
    assert differences(before, photograph(place.source)) == []
    assert frozen(mounted) != []
