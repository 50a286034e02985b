"""Taking snapshots: their content, what is read, and failures during the run."""

import contextlib
import mmap
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciuic.codec import get_ready
from ciuic.errors import BusyError, CancelledError, UsageError
from ciuic.model import BEING_WRITTEN, CONSISTENT, SKIPPED, UNREADABLE
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.snapshot.walk.visitor import Visitor
from ciuic.store.directory.pack_file import read_footer
from ciuic.store.format.pack import PackedFrame
from ciuic.store.packs import pack_writer
from ciuic.store.packs.writer import StoreWriter, WriteTotals
from ciuic.store.store import open_store
from tests.kit.box import Box, settle
from tests.kit.clock import ManualClock
from tests.kit.damage import pack_of, packs
from tests.kit.filesystems import disk, tmpfs
from tests.kit.program import CIUIC, Outcome, as_nobody, ciuic, environment
from tests.kit.strace import strace
from tests.kit.trees import differences, photograph

MIB = 1024 * 1024
ODD_NAMES = (
    b"new\nline",
    b"escape \x1b[31m",
    b"pipe | bar",
    b"not utf-8 \xff\xfe",
    b"caf\xc3\xa9",
    b"back\\slash \\x41",
    b" leading and trailing ",
    b"-rf",
    b"...",
    b"x" * 255,
    b"\x01\x02\x7f",
    b"*?[a]",
)


class Hook:
    """Replaces the check whether to stop, and does something at a chosen call of it.

    ciuic makes the check before every entry of a directory and before every block of a file. So the
    hook does at one chosen time what another process may do at any time.
    """

    def __init__(self, when: Callable[[], bool], action: Callable[[], object], times: int = 1):
        self._when, self._action, self.left = when, action, times
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        with self._lock:
            if self.left and self._when():
                self.left -= 1
                self._action()
        return False


def reading(path: Path) -> Callable[[], bool]:
    """The calling thread is reading the file, and no other thread is looking at it."""
    wanted = str(path)

    def is_open() -> bool:
        if not threading.current_thread().name.startswith("read"):
            return False
        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{fd}") == wanted:
                    return True
            except OSError:
                continue
        return False

    return is_open


def asked(count: int) -> Callable[[], bool]:
    """Return a function that is true from the call of this number on."""
    seen = iter(range(1_000_000))
    return lambda: next(seen) >= count


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def random_bytes(size: int) -> bytes:
    return os.urandom(size)


def restored(box: Box, target: Path) -> Path:
    """The source of the newest snapshot, put into a fresh place."""
    report = box.restore(to=target)
    assert report.failed == []
    return target / box.source.name


def assert_comes_back(box: Box, tmp_path: Path) -> None:
    """Everything in the source is taken and restored exactly, and verifies."""
    before = photograph(box.source)
    report = box.take()
    assert report.trouble_count == 0, report.trouble
    assert differences(before, photograph(restored(box, tmp_path / "out"))) == []
    assert differences(before, photograph(box.source)) == []
    assert box.verify().ok


# What there is in a directory


def test_every_kind_of_entry_comes_back_exactly(box: Box, tmp_path: Path) -> None:
    write(box.source / "a" / "file", b"content")
    write(box.source / "empty", b"")
    (box.source / "hollow").mkdir()
    (box.source / "link").symlink_to("a/file")
    (box.source / "dangling").symlink_to(b"nowhere \xff".decode("utf-8", "surrogateescape"))
    os.mkfifo(box.source / "pipe", 0o640)
    os.link(box.source / "a" / "file", box.source / "second name")
    write(box.source / "large", random_bytes(3 * MIB + 17))
    write(box.source / "just a chunk", random_bytes(MIB))
    write(box.source / "a chunk and a byte", random_bytes(MIB + 1))
    assert_comes_back(box, tmp_path)


@pytest.mark.root
def test_device_nodes_come_back(box: Box, tmp_path: Path) -> None:
    os.mknod(box.source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(box.source / "disk", stat.S_IFBLK | 0o600, os.makedev(259, 250_000))
    assert_comes_back(box, tmp_path)


def test_names_come_back_whatever_bytes_they_are(box: Box, tmp_path: Path) -> None:
    base = os.fsencode(box.source)
    for name in ODD_NAMES:
        os.mkdir(base + b"/d" + name[:254])
        for place in (base + b"/" + name, base + b"/d" + name[:254] + b"/" + name):
            with open(place, "wb") as file:
                file.write(name)
        os.symlink(name, base + b"/l" + name[:254])
    assert_comes_back(box, tmp_path)
    assert base + b"/not utf-8 \xff\xfe" in box.entries()


def test_modes_come_back_with_their_special_bits(box: Box, tmp_path: Path) -> None:
    for mode in (0o0, 0o400, 0o644, 0o777, 0o4755, 0o2755, 0o6711, 0o1644, 0o7777):
        write(box.source / f"f{mode:o}", b"x").chmod(mode)
        (box.source / f"d{mode:o}").mkdir()
        (box.source / f"d{mode:o}").chmod(mode | 0o700)
    if os.geteuid() != 0:
        (box.source / "f0").chmod(0o400)
    box.source.chmod(0o751)
    assert_comes_back(box, tmp_path)


@pytest.mark.root
def test_owners_come_back_on_files_directories_and_symlinks(box: Box, tmp_path: Path) -> None:
    write(box.source / "file", b"x").chmod(0o4711)
    (box.source / "dir").mkdir()
    (box.source / "link").symlink_to("file")
    os.mkfifo(box.source / "pipe")
    for number, name in enumerate(("file", "dir", "link", "pipe")):
        os.lchown(box.source / name, 1000 + number, 4_000_000_000 + number)
    (box.source / "file").chmod(0o4711)  # a change of owner has cleared the bit
    assert_comes_back(box, tmp_path)


def test_times_come_back_to_the_nanosecond_also_before_1970(box: Box, tmp_path: Path) -> None:
    for number, time_ns in enumerate(
        (
            0,
            1,
            -1,
            -1_000_000_000,
            -999_999_999,
            -1_500_000_000_123_456_789,
            1_234_567_890_987_654_321,
        )
    ):
        for name in (f"file{number}", f"dir{number}"):
            path = box.source / name
            path.mkdir() if name.startswith("dir") else path.write_bytes(b"x")
            os.utime(path, ns=(time_ns, time_ns))
        link = box.source / f"link{number}"
        link.symlink_to("x")
        os.utime(link, ns=(time_ns, time_ns), follow_symlinks=False)
    os.utime(box.source, ns=(5, 5))
    assert_comes_back(box, tmp_path)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("seconds", [2**33, 99_999_999_999, -99_999_999_999, 2**55])
def test_times_beyond_what_64_bits_of_nanoseconds_hold_spoil_nothing(
    tmp_path: Path, seconds: int
) -> None:
    with tmpfs(tmp_path / "far", size_mib=16) as far:
        box = Box(far)
        write(box.source / "far.txt", b"far")
        write(box.source / "near.txt", b"near")
        subprocess.run(["touch", "-d", f"@{seconds}", box.source / "far.txt"], check=True)
        stamped = (box.source / "far.txt").stat().st_mtime_ns
        outcome = box.ciuic("snapshot", "--json")
        assert outcome.code in {0, 3}, outcome.err
        assert box.ciuic("ls", "-R", "latest").code == 0
        assert box.ciuic("ls", "-R", "--json", "latest").code == 0
        out = restored(box, far / "out")
        assert (out / "near.txt").read_bytes() == b"near"
        assert (out / "far.txt").read_bytes() == b"far"
        if outcome.code == 0:
            assert (out / "far.txt").stat().st_mtime_ns == stamped
        else:
            assert "far.txt" in outcome.document["trouble"][0]["path"]


def test_extended_attributes_come_back(box: Box, tmp_path: Path) -> None:
    write(box.source / "file", b"x")
    (box.source / "dir").mkdir()
    for path in (box.source / "file", box.source / "dir", box.source):
        os.setxattr(path, "user.empty", b"")
        os.setxattr(path, "user.bytes", bytes(range(256)) * 8)
    assert_comes_back(box, tmp_path)


@pytest.mark.root
def test_attributes_that_only_root_may_set_come_back(box: Box, tmp_path: Path) -> None:
    write(box.source / "file", b"x")
    (box.source / "link").symlink_to("file")
    os.setxattr(box.source / "file", "trusted.thing", b"1")
    os.setxattr(box.source / "link", "trusted.thing", b"2", follow_symlinks=False)
    # Version 2, effective, CAP_NET_BIND_SERVICE permitted: capabilities(7).
    capability = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
    os.setxattr(box.source / "file", "security.capability", capability)
    os.chown(box.source / "file", 1000, 1000)
    os.setxattr(box.source / "file", "security.capability", capability)
    assert_comes_back(box, tmp_path)


def test_posix_acls_come_back(box: Box, tmp_path: Path) -> None:
    if shutil.which("setfacl") is None:
        pytest.skip("setfacl is not installed")
    write(box.source / "file", b"x").chmod(0o640)
    (box.source / "dir").mkdir()
    for arguments in (
        ("u:1234:rwx,g:99:r,m::rx", "file"),
        ("u:1234:rw,d:u:77:rwx,d:g::---,d:o::r", "dir"),
    ):
        subprocess.run(["setfacl", "-m", *arguments], cwd=box.source, check=True)
    write(box.source / "dir" / "inherits", b"y")
    before = subprocess.run(
        ["getfacl", "-Rn", "."], cwd=box.source, capture_output=True, check=True
    ).stdout
    assert_comes_back(box, tmp_path)
    after = subprocess.run(
        ["getfacl", "-Rn", "."], cwd=tmp_path / "out" / "source", capture_output=True, check=True
    ).stdout
    # Blocks come in the order of the directory, which depends on the file system.
    assert sorted(before.split(b"\n\n")) == sorted(after.split(b"\n\n"))
    assert b"user:1234:rwx" in after


def test_holes_come_back_as_holes(box: Box, tmp_path: Path) -> None:
    layouts: dict[str, tuple[int, tuple[tuple[int, bytes], ...]]] = {
        "nothing but a hole": (64 * MIB, ()),
        "at the start": (9 * MIB, ((8 * MIB + 4096, b"data"),)),
        "at the end": (50 * MIB, ((0, b"data" * 5000),)),
        "small and hollow": (100_000, ((90_000, b"end"),)),
        "many": (40 * MIB, tuple((at * 3 * MIB + 8192, b"x" * 4096) for at in range(13))),
        "a terabyte": (1 << 40, ((1 << 39, b"middle"),)),
    }
    for name, (size, writes) in layouts.items():
        with open(box.source / name, "wb") as file:
            for offset, data in writes:
                os.pwrite(file.fileno(), data, offset)
            os.ftruncate(file.fileno(), size)
    report = box.take()
    (box.source / "a terabyte").rename(tmp_path / "a terabyte")
    before = photograph(box.source)
    out = restored(box, tmp_path / "out")
    assert (out / "a terabyte").stat().st_size == 1 << 40
    assert (out / "a terabyte").stat().st_blocks * 512 < MIB
    (out / "a terabyte").unlink()
    os.utime(out, ns=(before[b"."].mtime_ns, before[b"."].mtime_ns))
    assert differences(before, photograph(out)) == []
    assert report.logical_bytes > 1 << 40
    assert report.read_bytes < 2 * MIB
    assert sum(one.stat().st_size for one in packs(box.store)) < MIB


def test_hard_links_stay_one_file(box: Box, tmp_path: Path) -> None:
    write(box.source / "sub" / "z", random_bytes(2 * MIB))
    os.link(box.source / "sub" / "z", box.source / "a")
    os.link(box.source / "sub" / "z", box.source / "sub" / "m")
    write(box.source / "small", b"small")
    os.link(box.source / "small", box.source / "sub" / "small too")
    (box.source / "symlink").symlink_to("a")
    os.link(box.source / "symlink", box.source / "symlink too", follow_symlinks=False)
    # The same bytes are not the same file.
    write(box.source / "copy", (box.source / "a").read_bytes())
    before = photograph(box.source)
    report = box.take()
    assert report.read_bytes == 4 * MIB + 5
    out = restored(box, tmp_path / "out")
    assert (out / "a").stat().st_ino == (out / "sub" / "m").stat().st_ino
    assert (out / "a").stat().st_ino != (out / "copy").stat().st_ino
    after = photograph(out)
    # Only links between symlinks are not guaranteed.
    wanted = {
        path: photo._replace(names=()) if b"symlink" in path else photo
        for path, photo in before.items()
    }
    found = {
        path: photo._replace(names=()) if b"symlink" in path else photo
        for path, photo in after.items()
    }
    assert differences(wanted, found) == []


def test_hard_links_stay_one_file_in_a_later_snapshot_that_reads_nothing(
    box: Box, tmp_path: Path
) -> None:
    write(box.source / "a", b"shared")
    os.link(box.source / "a", box.source / "b")
    box.take()
    assert box.take().read_bytes == 0
    assert differences(photograph(box.source), photograph(restored(box, tmp_path / "out"))) == []


def test_a_name_that_is_another_file_by_now_does_not_speak_for_its_former_other_name(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(box.source / "latest", b"the last save")
    os.link(box.source / "latest", box.source / "previous")
    saved = write(box.directory / "saved", b"the new one")
    visit = Visitor._visit_file
    as_it_was = {"latest": b"the last save", "previous": b"the last save"}
    in_between = {"latest": b"the new one", "previous": b"the last save"}

    def after_a_save(self: Visitor, parent: Any, name: bytes, *seen: Any) -> None:
        if name == b"previous":
            os.rename(saved, box.source / "latest")
        visit(self, parent, name, *seen)

    monkeypatch.setattr(Visitor, "_visit_file", after_a_save)
    box.take()
    with open_store(str(box.store)) as store:
        (root,) = store.manifest(box.snapshots()[0].id).roots
    # A snapshot of the whole subvolume shows the moment before.
    atomic = root.capture == "subvolume"
    found = {name: box.read(box.source / name) for name in as_it_was}
    assert found == (as_it_was if atomic else in_between)


def test_a_socket_is_left_out_and_named_without_spoiling_the_run(box: Box) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(box.source / "control.sock"))
        report = box.take()
        assert report.trouble_count == 0
        assert [(one.path, one.harmless) for one in report.trouble] == [
            (os.fsencode(box.source / "control.sock"), True)
        ]
        assert "socket" in report.trouble[0].what
        outcome = box.ciuic("snapshot")
        assert outcome.code == 0
        assert "control.sock" in outcome.err
    assert os.fsencode(box.source / "control.sock") not in box.entries()


def test_a_root_that_is_a_symlink_is_followed(box: Box, tmp_path: Path) -> None:
    write(box.source / "file", b"x")
    link = tmp_path / "link"
    link.symlink_to(box.source)
    box.take(link)
    assert box.read(link / "file") == b"x"


def test_an_empty_root_is_a_snapshot(box: Box, tmp_path: Path) -> None:
    report = box.take()
    assert (report.files, report.logical_bytes, report.trouble_count) == (0, 0, 0)
    assert list(restored(box, tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_a_directory_of_many_names_comes_back(box: Box, tmp_path: Path) -> None:
    for number in range(2500):
        (box.source / f"{number * 7919 % 2500:05}").write_bytes(b"%d" % (number % 50))
    assert_comes_back(box, tmp_path)
    (box.source / "01200").write_bytes(b"changed")
    (box.source / "01201").unlink()
    (box.source / "01200b").write_bytes(b"new")
    report = box.take()
    assert report.read_bytes == len(b"changed") + len(b"new")
    assert report.files == 2500


# What is read


@pytest.fixture
def three(box: Box) -> Iterator[Box]:
    """Three files and a first snapshot of them."""
    write(box.source / "small", b"small")
    write(box.source / "large", random_bytes(2 * MIB + 5))
    write(box.source / "sub" / "other", b"other")
    box.take()
    yield box


def test_unchanged_files_are_not_read(three: Box) -> None:
    for _ in range(2):
        report = three.take()
        assert (report.read_bytes, report.new_bytes, report.kind) == (0, 0, "delta")
        assert report.files == 3
        assert report.logical_bytes == 2 * MIB + 15


def test_unchanged_files_are_not_even_opened(three: Box, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    settle()
    trace = tmp_path / "trace"
    outcome = ciuic(
        "--config",
        three.config,
        "snapshot",
        "--json",
        wrapper=strace("openat", to=trace),
    )
    assert outcome.code == 0, outcome.err
    assert outcome.document["read_bytes"] == 0
    opened = trace.read_text()
    assert '"sub"' in opened
    for name in ("small", "large", "other"):
        assert f'"{name}"' not in opened


def test_a_touched_file_stores_nothing(three: Box) -> None:
    """It is read, unless its extents show that it is the same."""
    os.utime(three.source / "large")
    report = three.take()
    assert report.read_bytes in {0, 2 * MIB + 5}
    assert report.new_bytes == 0


def test_a_changed_file_with_the_old_time_and_size_is_read(three: Box) -> None:
    status = (three.source / "small").stat()
    (three.source / "small").write_bytes(b"SMALL")
    os.utime(three.source / "small", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert three.take().read_bytes == 5
    assert three.read(three.source / "small") == b"SMALL"


def test_a_file_of_another_inode_with_the_old_time_and_size_is_read(three: Box) -> None:
    status = (three.source / "small").stat()
    twin = write(three.source / "twin", b"SMALL")
    os.utime(twin, ns=(status.st_atime_ns, status.st_mtime_ns))
    twin.rename(three.source / "small")
    assert three.take().read_bytes == 5
    assert three.read(three.source / "small") == b"SMALL"


def test_files_that_swap_their_names_swap_their_content(three: Box) -> None:
    status = (three.source / "small").stat()
    other = three.source / "sub" / "other"
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    three.take()
    other.rename(three.source / "spare")
    (three.source / "small").rename(other)
    (three.source / "spare").rename(three.source / "small")
    three.take()
    assert three.read(three.source / "small") == b"other"
    assert three.read(other) == b"small"


def test_a_changed_mode_is_seen_and_an_old_snapshot_keeps_the_old_one(
    three: Box, tmp_path: Path
) -> None:
    old = three.snapshots()[0].id
    (three.source / "small").chmod(0o600)
    os.setxattr(three.source / "sub", "user.x", b"1")
    before = photograph(three.source)
    three.take()
    assert differences(before, photograph(restored(three, tmp_path / "new"))) == []
    three.restore(to=tmp_path / "old", snapshot=old)
    assert (tmp_path / "old" / "source" / "small").stat().st_mode & 0o777 != 0o600


def test_a_file_written_just_before_a_snapshot_is_read_again_by_the_next(box: Box) -> None:
    fresh = write(box.source / "fresh", b"fresh")
    clock = ManualClock(fresh.stat().st_ctime_ns + 1_000_000)
    box.take(clock=clock)
    clock.advance(60)
    assert box.take(clock=clock).read_bytes == 5
    clock.advance(60)
    assert box.take(clock=clock).read_bytes == 0


def test_a_base_snapshot_reads_everything_and_stores_nothing_twice(three: Box) -> None:
    report = three.take(base=True)
    assert (report.kind, report.read_bytes, report.new_bytes) == ("base", 2 * MIB + 15, 0)
    assert three.verify().ok


def test_the_same_bytes_are_stored_once_whatever_file_they_are_in(three: Box) -> None:
    shutil.copy(three.source / "large", three.source / "copy")
    report = three.take()
    assert (report.read_bytes, report.new_bytes) == (2 * MIB + 5, 0)


def test_growing_a_large_file_stores_only_what_is_new(box: Box) -> None:
    write(box.source / "log", random_bytes(5 * MIB))
    box.take()
    with (box.source / "log").open("ab") as file:
        file.write(random_bytes(100))
    assert box.take().new_bytes == 100


def test_the_next_snapshot_repairs_what_the_store_lost(three: Box, tmp_path: Path) -> None:
    first = three.snapshots()[0].id
    for pack in packs(three.store):
        pack.unlink()
    assert not three.verify().ok
    report = three.take()
    assert report.read_bytes == 2 * MIB + 15
    assert three.verify().ok
    out = restored(three, tmp_path / "out")
    assert differences(photograph(three.source), photograph(out)) == []
    assert three.restore(to=tmp_path / "first", snapshot=first).failed == []


@pytest.mark.parametrize("which", ["data", "nodes"])
def test_the_next_snapshot_repairs_a_lost_pack(three: Box, which: str) -> None:
    data = pack_of(three.store, b"small")
    lost = [one for one in packs(three.store) if (one == data) == (which == "data")]
    assert len(lost) == 1
    lost[0].unlink()
    three.take()
    report = three.verify()
    assert report.ok, report.as_json()


def test_a_truncated_pack_is_repaired(three: Box) -> None:
    largest = packs(three.store)[0]
    os.truncate(largest, largest.stat().st_size // 2)
    three.take()
    assert three.verify().ok


# What changes while it is read


def test_a_file_that_vanishes_before_it_is_read_is_named_and_left_out(live_box: Box) -> None:
    victim = write(live_box.source / "a victim", b"gone soon")
    write(live_box.source / "b other", b"stays")
    report = live_box.take(cancelled=Hook(asked(2), victim.unlink))
    assert report.trouble_count == 1
    assert report.trouble[0].path == os.fsencode(victim)
    assert "vanished" in report.trouble[0].what
    assert os.fsencode(victim) not in live_box.entries()
    assert (report.files, report.logical_bytes) == (1, 5)
    assert live_box.read(live_box.source / "b other") == b"stays"
    assert live_box.verify().ok


def test_a_directory_that_vanishes_under_the_walk_is_named(live_box: Box) -> None:
    write(live_box.source / "a" / "file", b"x")
    write(live_box.source / "b", b"y")
    report = live_box.take(cancelled=Hook(asked(1), lambda: shutil.rmtree(live_box.source / "a")))
    assert report.trouble_count >= 1
    assert live_box.read(live_box.source / "b") == b"y"
    assert live_box.verify().ok


def test_another_name_of_a_file_survives_when_the_first_one_vanishes(live_box: Box) -> None:
    write(live_box.source / "a", b"shared")
    os.link(live_box.source / "a", live_box.source / "b")
    write(live_box.source / "c", b"other")
    report = live_box.take(cancelled=Hook(asked(3), (live_box.source / "a").unlink))
    entries = live_box.entries()
    assert os.fsencode(live_box.source / "b") in entries, report.trouble
    assert live_box.read(live_box.source / "b") == b"shared"
    assert report.logical_bytes == len(b"shared") + len(b"other")


@pytest.mark.parametrize("size", [100, 300_000, 6 * MIB])
@pytest.mark.parametrize("what", ["shrinks", "grows", "is emptied", "is rewritten"])
def test_a_file_that_changes_once_while_it_is_read_is_read_again(
    live_box: Box, size: int, what: str
) -> None:
    victim = write(live_box.source / "a victim", random_bytes(size))
    write(live_box.source / "b", b"")

    def change() -> None:
        if what == "is rewritten":
            with victim.open("r+b") as file:
                file.write(b"NEW")
        else:
            os.truncate(victim, {"shrinks": size // 2, "grows": size + 9, "is emptied": 0}[what])

    # Otherwise another thread may look at it while it is open for writing.
    hook = Hook(reading(victim) if size > 100 else asked(2), change)
    report = live_box.take(cancelled=hook)
    assert not hook.left
    assert report.trouble_count == 0, report.trouble
    assert live_box.read(victim) == victim.read_bytes()
    assert (report.files, report.logical_bytes) == (2, victim.stat().st_size)
    assert live_box.take().read_bytes <= victim.stat().st_size
    assert live_box.verify().ok


@pytest.mark.parametrize("size", [100, 200_000, 300_000, MIB, 3 * MIB])
@pytest.mark.parametrize("old_size", [100, 3 * MIB])
def test_a_file_that_is_replaced_by_one_of_another_size_before_it_is_read_is_whole(
    live_box: Box, old_size: int, size: int
) -> None:
    """The file that the walk saw may not be the one that the name leads to when it is opened."""
    versions = [random_bytes(old_size), random_bytes(size)]
    victim = write(live_box.source / "a victim", versions[0])
    write(live_box.source / "b", b"")
    write(live_box.directory / "next", versions[1])
    hook = Hook(asked(2), lambda: (live_box.directory / "next").rename(victim))
    report = live_box.take(cancelled=hook)
    assert report.trouble == ()
    assert live_box.entries()[os.fsencode(victim)].state == CONSISTENT
    assert live_box.read(victim) in versions
    assert live_box.verify().ok


@pytest.mark.parametrize("size", [100, 6 * MIB])
def test_a_file_whose_names_come_and_go_while_it_is_read_is_whole(live_box: Box, size: int) -> None:
    victim = write(live_box.source / "victim", random_bytes(size))
    numbers = iter(range(10_000))

    def link() -> None:
        os.link(victim, live_box.directory / f"name {next(numbers)}")

    when = reading(victim) if size > MIB else asked(1)
    assert live_box.take(cancelled=Hook(when, link, times=1000)).trouble == ()
    assert next(numbers) > 0
    assert live_box.read(victim) == victim.read_bytes()


def test_a_file_that_changes_all_the_time_is_marked_and_read_again(
    live_box: Box, tmp_path: Path
) -> None:
    victim = write(live_box.source / "victim", random_bytes(6 * MIB))

    def change() -> None:
        with victim.open("r+b") as file:
            file.seek(5 * MIB)
            file.write(random_bytes(16))

    report = live_box.take(cancelled=Hook(reading(victim), change, times=1000))
    assert report.trouble_count == 1
    assert "in flux" in report.trouble[0].what
    assert live_box.entries()[os.fsencode(victim)].state == BEING_WRITTEN
    assert live_box.verify().ok
    back = live_box.restore(to=tmp_path / "out")
    assert back.failed == []
    assert "in flux" in back.notes[0].what
    again = live_box.take()
    assert again.read_bytes == 6 * MIB
    assert live_box.entries()[os.fsencode(victim)].state == CONSISTENT
    assert live_box.read(victim) == victim.read_bytes()


def test_a_log_that_another_process_appends_to_is_taken_with_the_rest(box: Box) -> None:
    log = write(box.source / "train.log", random_bytes(20 * MIB))
    write(box.source / "still", b"still")
    writer = subprocess.Popen(
        ["/bin/sh", "-c", 'while :; do echo "step" >> "$1"; done', "sh", str(log)]
    )
    try:
        start = log.stat().st_size
        deadline = time.monotonic() + 120
        while log.stat().st_size == start:
            assert time.monotonic() < deadline, "the writer does not write"
            time.sleep(0.001)
        outcome = box.ciuic("snapshot", "--json")
    finally:
        writer.kill()
        writer.wait()
    assert outcome.code in {0, 3}, outcome.err
    for one in outcome.document["trouble"]:
        assert one["path"] == str(log)
        assert "in flux" in one["what"]
    assert box.read(box.source / "still") == b"still"
    assert log.read_bytes().startswith(box.read(log)[: 20 * MIB])
    assert box.verify().ok
    settle()
    assert box.ciuic("snapshot").code == 0
    assert box.read(log) == log.read_bytes()


@pytest.mark.parametrize("kind", ["directory", "fifo", "symlink", "device"])
def test_a_file_that_turns_into_something_else_is_named(live_box: Box, kind: str) -> None:
    victim = write(live_box.source / "a victim", b"plain")
    write(live_box.source / "b", b"other")
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("device nodes need root")

    def turn() -> None:
        victim.unlink()
        if kind == "directory":
            victim.mkdir()
        elif kind == "fifo":
            os.mkfifo(victim)
        elif kind == "symlink":
            victim.symlink_to("/etc/passwd")
        else:
            os.mknod(victim, stat.S_IFCHR | 0o600, os.makedev(1, 5))

    report = live_box.take(cancelled=Hook(asked(2), turn))
    assert [one.path for one in report.trouble] == [os.fsencode(victim)]
    assert report.trouble_count == 1
    assert live_box.read(live_box.source / "b") == b"other"
    assert live_box.verify().ok
    assert live_box.take().trouble_count == 0


def test_a_directory_that_turns_into_a_symlink_is_not_followed(
    live_box: Box, tmp_path: Path
) -> None:
    write(tmp_path / "secret" / "key", b"secret")
    write(live_box.source / "a" / "file", b"x")
    write(live_box.source / "b" / "file", b"y")

    def turn() -> None:
        shutil.rmtree(live_box.source / "b")
        (live_box.source / "b").symlink_to(tmp_path / "secret")

    live_box.take(cancelled=Hook(asked(1), turn))
    assert not any(path.endswith(b"key") for path in live_box.entries())


@contextlib.contextmanager
def dirty_mapping(path: Path) -> Iterator[mmap.mmap]:
    """A file on tmpfs, mapped and written to: more writes to that page change no time stamp.

    The kernel sets the time only at the first write to a clean page, and tmpfs never cleans one.
    """
    path.write_bytes(b"-" * 4096)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
        mapped[:5] = b"first"
        before = path.stat().st_ctime_ns
        yield mapped
        assert path.stat().st_ctime_ns == before


@pytest.mark.root
def test_a_doubtful_stamp_stays_doubtful_over_a_snapshot_that_missed_the_root(
    tmp_path: Path,
) -> None:
    """What matters is when the trusted tree was read, not when the last snapshot was taken."""
    with tmpfs(tmp_path / "memory", size_mib=16) as memory:
        box = Box(memory)
        victim = box.source / "victim"
        with dirty_mapping(victim) as mapped:
            clock = ManualClock(victim.stat().st_ctime_ns + 1_000_000)
            box.take(clock=clock)
            mapped[:5] = b"later"
            box.source.rename(memory / "away")
            clock.advance(60)
            assert box.take(clock=clock).trouble_count == 1
            (memory / "away").rename(box.source)
            clock.advance(60)
            box.take(clock=clock)
            assert box.read(victim)[:5] == b"later"


@pytest.mark.root
def test_a_base_snapshot_sees_what_the_kernel_has_not_stamped(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "memory", size_mib=16) as memory:
        box = Box(memory)
        victim = box.source / "victim"
        with dirty_mapping(victim) as mapped:
            box.take()
            mapped[:5] = b"later"
            box.take(base=True)
            assert box.read(victim)[:5] == b"later"


def test_a_snapshot_that_is_cancelled_after_its_last_byte_was_read_commits_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box.source / "file").write_bytes(b"content")
    asked_to_stop: list[bool] = []
    finish = StoreWriter.finish

    def stop_then_finish(writer: StoreWriter, *, index_waits: bool) -> WriteTotals:
        asked_to_stop.append(True)
        return finish(writer, index_waits=index_waits)

    monkeypatch.setattr(StoreWriter, "finish", stop_then_finish)
    with pytest.raises(CancelledError):
        box.take(cancelled=lambda: bool(asked_to_stop))
    assert box.snapshots() == []
    monkeypatch.undo()
    assert box.take().kind == "base"


def test_a_cancelled_snapshot_commits_nothing_and_the_next_one_reuses_its_packs(box: Box) -> None:
    write(box.source / "large", random_bytes(40 * MIB))
    calls = iter(range(1_000_000))
    with pytest.raises(CancelledError):
        box.take(cancelled=lambda: next(calls) > 6)
    assert box.snapshots() == []
    assert list((box.store / "tmp").iterdir()) == []
    assert box.take().trouble_count == 0
    assert box.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_snapshot_that_is_asked_to_stop_commits_nothing(box: Box, number: signal.Signals) -> None:
    write(box.source / "large", random_bytes(80 * MIB))
    process = subprocess.Popen(
        [*CIUIC, "--config", box.config, "snapshot", "--json"],
        env=environment(),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not os.listdir(box.store / "tmp") and process.poll() is None:
        assert time.monotonic() < deadline, "the snapshot does not begin"
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode in {0, 128 + number}
    assert b"Traceback" not in err
    assert len(box.snapshots()) == (process.returncode == 0)
    assert os.listdir(box.store / "tmp") == []
    assert box.take().trouble_count == 0
    assert box.verify().ok


def test_a_second_writer_is_refused_while_the_first_writes(box: Box) -> None:
    write(box.source / "a", b"x")
    with open_store(str(box.store), write=True), pytest.raises(BusyError):
        box.take()
    outcome: list[int] = []
    with open_store(str(box.store), write=True):
        outcome.append(box.ciuic("snapshot", "--wait", "0").code)
    assert outcome == [5]
    assert box.snapshots() == []


# What cannot be read


def test_an_unreadable_file_and_directory_are_named_and_the_rest_is_taken(
    public_box: Box,
) -> None:
    box = public_box
    user = as_nobody()
    box.source.chmod(0o755)
    write(box.source / "open", b"open").chmod(0o644)
    write(box.source / "secret", b"secret").chmod(0)
    write(box.source / "closed" / "inside", b"inside")
    (box.source / "closed").chmod(0)
    shutil.rmtree(box.store)
    box.store.mkdir()
    if user is not None:
        os.chown(box.store, user, user)
    assert box.ciuic("init", user=user).code == 0
    try:
        outcome = box.ciuic("snapshot", "--json", user=user)
        assert outcome.code == 3, outcome.err
        named = {one["path"]: one["what"] for one in outcome.document["trouble"]}
        assert set(named) == {str(box.source / "secret"), str(box.source / "closed")}
        assert all("Permission denied" in what for what in named.values())
        again = box.ciuic("snapshot", "--json", user=user)
        assert again.code == 3, "what is unreadable stays named"
    finally:
        (box.source / "closed").chmod(0o755)
        (box.source / "secret").chmod(0o644)
    entries = box.entries()
    assert entries[os.fsencode(box.source / "secret")].state == UNREADABLE
    assert entries[os.fsencode(box.source / "closed")].state == UNREADABLE
    assert os.fsencode(box.source / "closed" / "inside") not in entries
    assert box.read(box.source / "open") == b"open"
    last = box.ciuic("snapshot", "--json", user=user)
    assert last.code == 0, last.err
    assert box.read(box.source / "closed" / "inside") == b"inside"


def test_a_missing_root_is_named_and_costs_nothing_when_it_is_back(
    box: Box, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write(other / "file", random_bytes(2 * MIB))
    write(box.source / "here", b"here")
    box.configure(box.source, other)
    settle()
    first = box.ciuic("snapshot", "--json").document
    other.rename(tmp_path / "away")
    missed = box.ciuic("snapshot", "--json")
    assert missed.code == 3
    assert [one["path"] for one in missed.document["trouble"]] == [str(other)]
    assert "No such file" in missed.document["trouble"][0]["what"]
    again = box.ciuic("snapshot", "--json")
    assert again.code == 3
    outcome = box.ciuic("restore", "-s", "latest", "-p", other, "-d", tmp_path / "none")
    assert outcome.code == 1
    assert not (tmp_path / "none").exists()
    old = box.ciuic("restore", "-s", first["id"], "-p", other, "-d", tmp_path / "old")
    assert old.code == 0
    assert (tmp_path / "old" / "other" / "file").stat().st_size == 2 * MIB
    (tmp_path / "away").rename(other)
    back = box.ciuic("snapshot", "--json")
    assert back.code == 0
    assert back.document["read_bytes"] == 0
    assert box.verify().ok


def test_a_root_that_is_a_file_is_named(box: Box, tmp_path: Path) -> None:
    write(box.source / "a", b"x")
    report = box.take(box.source, write(tmp_path / "file", b"not a directory"))
    assert [one.path for one in report.trouble] == [os.fsencode(tmp_path / "file")]
    assert box.read(box.source / "a") == b"x"


def test_all_roots_missing_is_still_a_snapshot_that_says_so(box: Box) -> None:
    box.source.rmdir()
    report = box.take()
    assert report.trouble_count == 1
    outcome = box.ciuic("show", "latest")
    assert "No such file" in outcome.out


def test_roots_must_be_absolute_and_there_must_be_one(box: Box) -> None:
    with pytest.raises(UsageError, match="absolute"):
        box.take(b"relative")
    with pytest.raises(UsageError), open_store(str(box.store), write=True) as store:
        take_snapshot(store, TakeRequest(()), clock=ManualClock())


def test_a_root_inside_a_root_is_taken_once(box: Box) -> None:
    write(box.source / "sub" / "file", b"x")
    report = box.take(box.source / "sub", box.source, box.source / "sub" / ".." / "sub")
    assert report.files == 1
    assert box.snapshots()[0].roots == (os.fsencode(box.source),)


# What is left out


def test_the_store_inside_a_root_is_left_out_by_itself(tmp_path: Path) -> None:
    box = Box(tmp_path)
    write(tmp_path / "file", b"x")
    box.take(tmp_path)
    entries = box.entries()
    assert os.fsencode(tmp_path / "file") in entries
    assert not any(path.startswith(os.fsencode(box.store) + b"/") for path in entries)
    again = box.take(tmp_path)
    assert again.new_bytes == 0


@pytest.mark.parametrize(
    ("name", "call", "error"),
    [
        ("file", "newfstatat", "EIO"),
        ("mount", "newfstatat", "ENOTCONN"),
        ("link", "readlinkat", "EIO"),
    ],
)
def test_a_name_without_a_status_is_marked_and_survives_a_restore_that_deletes(
    box: Box, name: str, call: str, error: str
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    write(box.source / "file", b"live")
    write(box.source / "mount" / "inside", b"live")
    write(box.source / "other", b"other")
    (box.source / "link").symlink_to("nowhere")
    before = photograph(box.source)
    # The calls have names that are relative to an open directory.
    outcome = ciuic(
        "--config",
        box.config,
        "snapshot",
        "--json",
        wrapper=strace(call, "-P", name, inject=f"error={error}"),
    )
    assert outcome.code == 3, outcome.err
    path = box.source / name
    assert [one["path"] for one in outcome.document["trouble"]] == [str(path)]
    assert box.entries()[bytes(path)].state == UNREADABLE
    report = box.restore(overwrite=True, delete=True)
    assert [one.path for one in report.failed] == [bytes(path)]
    assert report.deleted_files == 0
    assert differences(before, photograph(box.source)) == []
    write(box.source / "other", b"changed")
    assert box.take().trouble_count == 0
    assert box.entries()[bytes(path)].state == CONSISTENT


def test_a_directory_that_vanishes_is_named_and_has_no_entry(box: Box, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    write(box.source / "gone" / "inside", b"x")
    write(box.source / "other", b"other")
    outcome = ciuic(
        "--config",
        box.config,
        "snapshot",
        "--json",
        wrapper=strace("openat", "-P", "gone", inject="error=ENOENT"),
    )
    assert outcome.code == 3, outcome.err
    (trouble,) = outcome.document["trouble"]
    assert trouble["path"] == str(box.source / "gone")
    assert "vanished" in trouble["what"]
    assert box.restore(to=tmp_path / "out").failed == []
    assert os.listdir(tmp_path / "out" / "source") == ["other"]


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [
        ("*.tmp", {"x.tmp", "sub/x.tmp", "sub/deep/x.tmp", "sub/deep/.tmp"}),
        (
            "{}/sub/*",
            {"sub/x.tmp", "sub/b", "sub/deep", "sub/deep/x.tmp", "sub/deep/.tmp", "sub/deep/b"},
        ),
        ("sub/b", {"sub/b"}),
        ("deep/b", {"sub/deep/b"}),
        ("sub/**/b", {"sub/b", "sub/deep/b"}),
        ("{}/**/x.tmp", {"x.tmp", "sub/x.tmp", "sub/deep/x.tmp"}),
        ("deep", {"sub/deep", "sub/deep/x.tmp", "sub/deep/.tmp", "sub/deep/b"}),
        ("deep/", {"sub/deep", "sub/deep/x.tmp", "sub/deep/.tmp", "sub/deep/b"}),
        ("?", {"[", "b", "sub/b", "sub/deep/b"}),
        ("[!b]", {"["}),
        ("[", {"["}),
        ("*[[]*", {"["}),
        ("[!]", set()),
        ("[]b]", {"b", "sub/b", "sub/deep/b"}),
        ("sub[/]b", set()),
        ("{}", set()),
        ("x.TMP", set()),
    ],
)
def test_patterns_leave_out_what_they_match(box: Box, pattern: str, left_out: set[str]) -> None:
    for name in (
        "x.tmp",
        "b",
        "[",
        "sub/x.tmp",
        "sub/b",
        "sub/deep/x.tmp",
        "sub/deep/b",
        "sub/deep/.tmp",
    ):
        write(box.source / name, b"x")
    everything = {os.fsdecode(inside) for inside in photograph(box.source)} - {"."}
    box.take(exclude=(pattern.format(box.source),))
    top = os.fsencode(box.source) + b"/"
    taken = {os.fsdecode(path.removeprefix(top)) for path in box.entries() if path + b"/" != top}
    assert everything - taken == left_out


def test_a_base_snapshot_taken_with_the_clock_ahead_stops_no_later_one(box: Box) -> None:
    write(box.source / "file", b"x")
    clock = ManualClock()

    def take(interval_s: float, base: bool = False) -> str:
        request = TakeRequest((bytes(box.source),), base=base, base_interval_s=interval_s)
        with open_store(str(box.store), write=True) as store:
            return take_snapshot(store, request, clock=clock).kind

    hour_s, year_s = 3600, 365 * 86_400
    assert take(12 * hour_s) == "base"
    clock.advance(year_s)
    assert take(12 * hour_s, base=True) == "base"
    clock.set_back(year_s - 11 * hour_s)
    assert take(12 * hour_s) == "delta"
    clock.advance(2 * hour_s)
    assert take(0) == "delta"
    assert take(12 * hour_s) == "base"
    clock.advance(11 * hour_s)
    assert take(12 * hour_s) == "delta"
    assert take(0, base=True) == "base"
    clock.set_back(30)
    assert take(hour_s) == "delta", "a clock may be ahead by seconds"


def test_a_pattern_without_a_meaning_is_refused(box: Box) -> None:
    with pytest.raises(UsageError, match=r"range 5-1 in .* is reversed"):
        box.take(exclude=("step_[5-10]*",))
    assert box.snapshots() == []


@pytest.mark.root
def test_pseudo_file_systems_are_not_entered(box: Box, tmp_path: Path) -> None:
    (box.source / "proc").mkdir()
    write(box.source / "real", b"x")
    subprocess.run(["mount", "-t", "proc", "proc", box.source / "proc"], check=True)
    try:
        report = box.take()
    finally:
        subprocess.run(["umount", box.source / "proc"], check=True)
    assert report.files == 1
    assert report.trouble_count == 0
    assert box.entries()[os.fsencode(box.source / "proc")].state == SKIPPED
    out = restored(box, tmp_path / "out")
    assert list((out / "proc").iterdir()) == []


@pytest.mark.root
def test_a_real_file_system_mounted_in_a_root_is_taken(box: Box, tmp_path: Path) -> None:
    with disk("ext4", tmp_path, size_mib=16) as mounted:
        inner = box.source / "data"
        inner.mkdir()
        subprocess.run(["mount", "--bind", mounted.path, inner], check=True)
        try:
            write(inner / "file", b"x")
            box.take()
            assert box.read(inner / "file") == b"x"
        finally:
            subprocess.run(["umount", inner], check=True)


# Extremes


def under_a_limit(box: Box, open_files: int, *arguments: str | Path) -> Outcome:
    """Run a command that cannot have more files open than this, whatever limit it asks for."""
    limited = ("sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh")
    return ciuic("--config", box.config, *arguments, wrapper=limited)


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [12, 40_000, 300_000])
def test_a_snapshot_needs_no_more_descriptors_than_it_may_have(box: Box, size_bytes: int) -> None:
    for number in range(400):
        write(box.source / f"d{number}" / "file", b"%4d" % number * (size_bytes // 4))
    settle()
    for _ in range(2):
        outcome = under_a_limit(box, 200, "snapshot", "--json")
        assert outcome.code == 0, outcome.err
        assert outcome.document["files"] == 400


@pytest.mark.slow
def test_hard_links_hold_no_more_directories_open_than_may_be(box: Box, tmp_path: Path) -> None:
    """As ``cp -al`` and rsnapshot make them: each name is in a directory of its own."""
    for number in range(400):
        write(box.source / "a" / f"{number}" / "file", b"%d" % number)
        (box.source / "b" / f"{number}").mkdir(parents=True)
        os.link(box.source / "a" / f"{number}" / "file", box.source / "b" / f"{number}" / "file")
    settle()
    for _ in range(2):
        outcome = under_a_limit(box, 200, "snapshot", "--json")
        assert outcome.code == 0, outcome.err
        assert outcome.document["files"] == 800
    out = tmp_path / "out"
    back = under_a_limit(box, 200, "restore", "-s", "latest", "-p", box.source, "-d", out)
    assert back.code == 0, back.err[-1000:]
    assert differences(photograph(box.source), photograph(out / "source")) == []


def make_deep(top: Path, levels: int) -> None:
    """Make nested directories whose path is longer than a path may be."""
    fd = os.open(top, os.O_RDONLY)
    for number in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
        if number % 100 == 0:
            os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


def remove_deep(top: Path) -> None:
    subprocess.run(["rm", "-rf", top], check=True)


@pytest.mark.slow
def test_directories_a_thousand_levels_deep_are_named_and_the_rest_is_taken(
    box: Box, tmp_path: Path
) -> None:
    write(box.source / "file", b"x")
    (box.source / "deep").mkdir()
    make_deep(box.source / "deep", 1200)
    try:
        outcome = box.ciuic("snapshot", "--json")
        assert outcome.code == 3, outcome.err
        assert len(outcome.document["trouble"]) == 1
        assert "deep" in outcome.document["trouble"][0]["what"]
        assert box.read(box.source / "file") == b"x"
        assert box.ciuic("verify", "--all", "--checksum").code == 0
        assert box.ciuic("ls", "-R", "latest").code == 0
        (box.source / "file").write_bytes(b"y")
        second = box.ciuic("snapshot", "--json")
        assert second.code == 3
        ids = [one.id for one in box.snapshots()]
        changes = box.ciuic("diff", ids[1], ids[0], "--json")
        assert [one["path"] for one in changes.document] == [str(box.source / "file")]
        back = box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", tmp_path / "out")
        assert back.code in {0, 3}, back.err
        assert (tmp_path / "out" / "source" / "file").read_bytes() == b"y"
    finally:
        remove_deep(box.source)
        remove_deep(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("levels", [300, 600, 850])
def test_directories_hundreds_of_levels_deep_come_back(
    box: Box, tmp_path: Path, levels: int
) -> None:
    make_deep(box.source, levels)
    try:
        assert box.ciuic("snapshot").code == 0
        assert box.ciuic("snapshot").code == 0
        assert box.ciuic("verify", "--all", "--checksum").code == 0
        back = box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", tmp_path / "out")
        assert back.code == 0, back.err
        done = subprocess.run(["diff", "-r", box.source, tmp_path / "out" / "source"], check=False)
        assert done.returncode == 0
    finally:
        remove_deep(box.source)
        remove_deep(tmp_path / "out")


@pytest.mark.slow
def test_paths_longer_than_the_system_allows_come_back(box: Box, tmp_path: Path) -> None:
    names = [f"{level:03}" + "n" * 240 for level in range(30)]

    def descend(top: Path, *, make: bool) -> int:
        fd = os.open(top, os.O_RDONLY)
        for name in names:
            if make:
                os.mkdir(name, dir_fd=fd)
            inner = os.open(name, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = inner
        return fd

    fd = descend(box.source, make=True)
    with os.fdopen(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "wb") as file:
        file.write(b"deep down")
    os.symlink("file", "link", dir_fd=fd)
    os.link("file", "second", src_dir_fd=fd, dst_dir_fd=fd)
    os.mkfifo("pipe", dir_fd=fd)
    os.close(fd)
    try:
        outcome = box.ciuic("snapshot", "--json")
        assert (outcome.code, outcome.document["trouble"]) == (0, [])
        assert box.ciuic("verify", "--checksum").code == 0
        for _ in range(2):
            back = box.ciuic(
                "restore", "-s", "latest", "-p", box.source, "-d", tmp_path / "out", "--overwrite"
            )
            assert back.code == 0, back.err
        fd = descend(tmp_path / "out" / "source", make=False)
        assert sorted(os.listdir(fd)) == ["file", "link", "pipe", "second"]
        with os.fdopen(os.open("second", os.O_RDONLY, dir_fd=fd), "rb") as file:
            assert file.read() == b"deep down"
        assert os.readlink("link", dir_fd=fd) == "file"
        os.close(fd)
    finally:
        remove_deep(box.source)
        remove_deep(tmp_path / "out")


@pytest.mark.root
def test_the_root_of_the_file_system_is_a_root_like_any_other(tmp_path: Path) -> None:
    """In a process whose root is a temporary directory, so that it can reach nothing else."""
    get_ready(numbers=True)  # nothing can be imported from there
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chroot(tmp_path)
            os.chdir("/")
            everything_from_the_top()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def everything_from_the_top() -> None:
    top = Path("/")
    box = Box(top)
    box.source = top
    write(top / "etc" / "conf", b"conf")
    (top / "proc").mkdir()
    top.chmod(0o751)
    first = box.take(top)
    assert first.trouble_count == 0
    entries = box.entries()
    assert b"/etc/conf" in entries
    assert not any(path.startswith(b"/store/") for path in entries)
    assert box.read(top / "etc" / "conf") == b"conf"
    assert box.verify().ok
    second = box.take(top)
    assert second.read_bytes == 0
    write(top / "etc" / "conf", b"broken")
    write(top / "etc" / "new", b"new")
    top.chmod(0o700)
    report = box.restore(top, overwrite=True, delete=True)
    assert report.failed == []
    assert (top / "etc" / "conf").read_bytes() == b"conf"
    assert not (top / "etc" / "new").exists()
    assert top.stat().st_mode & 0o777 == 0o751
    assert box.verify().ok
    (top / "out").mkdir()
    report = box.restore(top, to=top / "out", overwrite=True)
    assert report.failed == []
    assert (top / "out" / "etc" / "conf").read_bytes() == b"conf"
    report = box.restore(top, to=top / "fresh")
    assert (top / "fresh" / "etc" / "conf").read_bytes() == b"conf"


def test_a_pack_ends_before_its_footer_is_too_long_to_be_read_at_once(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_writer, "_PACK_CHUNKS", 100)
    for number in range(1_000):
        write(box.source / f"{number}", b"%d" % number)
    box.take()
    with open_store(str(box.store)) as store:
        packs = store.pack_files()
        held = [
            sum(len(one.frame.chunks) for one in frames_of(box.store / "packs" / name.hex(), name))
            for name in packs
        ]
    assert sum(held) >= 1_000
    assert len(held) >= 5
    assert box.verify().ok


def frames_of(path: Path, name: bytes) -> list[PackedFrame]:
    with path.open("rb") as file:
        return read_footer(file.fileno(), name)
