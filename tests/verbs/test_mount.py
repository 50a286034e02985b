"""``ciuic mount``: what a mounted snapshot shows is what a restore writes."""

import contextlib
import filecmp
import os
import random
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from ciuic.source.mounts import PseudoMounts
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.mounted import LIMIT_S, is_mounted, mounted, needs_fuse, wait_for
from tests.kit.program import as_nobody
from tests.kit.trees import differences, has_holes, photograph

MiB = 1024 * 1024


def noise(length: int) -> bytes:
    """Return bytes that no codec shortens."""
    return random.Random(drawn_seed()).randbytes(length)


def populate(top: Path) -> None:
    """Write a tree with everything that a snapshot can hold."""
    (top / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir(mode=0o700)
    (top / "large.bin").write_bytes(noise(5 * MiB + 17))
    (top / "small.txt").write_text("step 1\n")
    (top / "none").write_bytes(b"")
    (top / "deep" / "er" / "x").write_bytes(b"x" * 300_000)
    os.link(top / "small.txt", top / "deep" / "again.txt")
    os.link(top / "small.txt", top / "deep" / "er" / "third.txt")
    (top / "lone").symlink_to("small.txt")
    (top / "absolute").symlink_to("/nowhere/at/all")
    os.mkfifo(top / "pipe", 0o640)
    with (top / "sparse").open("wb") as file:
        file.truncate(40 * MiB)
        os.pwrite(file.fileno(), b"end of a hole", 32 * MiB)
    for name in (b"not-\xff-utf8", b"new\nline", b"<b>bold&amp;", b"\x1b[31mred", b"-rf", b"~"):
        (top / os.fsdecode(name)).write_bytes(name)
    os.setxattr(top / "small.txt", "user.note", b"kept\0whole")
    os.setxattr(top / "deep", "user.empty", b"")
    (top / "small.txt").chmod(0o4711)
    os.utime(top / "none", ns=(1, -5_000_000_123))
    os.utime(top / "deep", ns=(7, 1_234_567_890_123_456_789))
    if os.geteuid() == 0:
        os.chown(top / "large.bin", 1234, 4321)
        os.mknod(top / "zero", stat.S_IFCHR | 0o600, os.makedev(1, 5))


def test_a_mounted_snapshot_is_what_a_restore_writes(box: Box, tmp_path: Path) -> None:
    populate(box.source)
    taken = box.take()
    box.restore(to=tmp_path / "restored")
    restored = tmp_path / "restored" / "source"

    with mounted(box) as shown:
        seen = shown.at(box.source)
        # A file system that does not report holes exactly (XFS) gives the mount's holes nothing to
        # match.
        holes = has_holes(restored)
        assert differences(photograph(restored), photograph(seen, holes=holes)) == []
        assert differences(photograph(seen), photograph(shown.at(box.source, taken.id))) == []
        names = [seen / "small.txt", seen / "deep/again.txt", seen / "deep/er/third.txt"]
        assert {(path.stat().st_ino, path.stat().st_nlink) for path in names} == {
            (names[0].stat().st_ino, 3)
        }
        assert (seen / "sparse").stat().st_blocks * 512 < 2 * MiB
        inodes = [path.lstat().st_ino for path in (seen, *seen.rglob("*"))]
        assert len(inodes) - len(set(inodes)) == 2, "only hard links share a number"


def test_the_usual_programs_read_it(box: Box, tmp_path: Path) -> None:
    populate(box.source)
    box.take()

    with mounted(box) as shown:
        seen, copy = shown.at(box.source), tmp_path / "copy"
        holes = has_holes(box.source)
        assert differences(photograph(box.source), photograph(seen, holes=holes)) == []
        subprocess.run(["cp", "-a", seen, copy], check=True, timeout=LIMIT_S)
        subprocess.run(
            ["diff", "-r", "-x", "pipe", "-x", "zero", "-x", "absolute", copy, seen],
            check=True,
            timeout=LIMIT_S,
        )
        sizes = [
            subprocess.run(
                ["du", "-a", "--apparent-size", "-b", "."],
                cwd=top,
                check=True,
                capture_output=True,
                timeout=LIMIT_S,
            ).stdout.splitlines()
            for top in (seen / "deep" / "er", copy / "deep" / "er")
        ]
        files = [{line for line in found if not line.endswith(b"\t.")} for found in sizes]
        assert files[0] == files[1]
        assert len(files[0]) == 2
        found = subprocess.run(
            ["grep", "-rl", "step 1", "."],
            cwd=seen,
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        ).stdout
        assert sorted(found.split()) == [
            b"./deep/again.txt",
            b"./deep/er/third.txt",
            b"./small.txt",
        ]
        packed = subprocess.run(
            ["tar", "-c", "--sparse", "."],
            cwd=seen,
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        ).stdout
        unpacked = tmp_path / "unpacked"
        unpacked.mkdir()
        subprocess.run(["tar", "-x", "-p"], cwd=unpacked, input=packed, check=True, timeout=LIMIT_S)
        assert (unpacked / "deep/again.txt").stat().st_nlink == 3
    assert differences(photograph(box.source, holes=False), photograph(copy, holes=False)) == []


def test_rsync_copies_from_it_what_a_restore_writes(box: Box, tmp_path: Path) -> None:
    populate(box.source)
    box.take()
    box.restore(to=tmp_path / "restored")
    # Without the last one, rsync takes times within one second for equal.
    options = ["-aHXS", "--numeric-ids", "--modify-window=-1"]

    with mounted(box) as shown:
        source = f"{shown.at(box.source)}/"
        subprocess.run(["rsync", *options, source, tmp_path / "copy"], check=True, timeout=LIMIT_S)
        again = subprocess.run(
            ["rsync", *options, "-n", "-i", "--checksum", source, tmp_path / "copy"],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        ).stdout
    assert again == b"", "rsync would copy again what it has copied"
    restored, copy = tmp_path / "restored" / "source", tmp_path / "copy"
    # rsync writes holes where a file has zeros.
    assert differences(photograph(restored, holes=False), photograph(copy, holes=False)) == []


def test_torch_and_safetensors_map_files_of_a_snapshot(box: Box) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    state = {"layer.weight": torch.randn(300, 1000), "layer.bias": torch.arange(1000)}
    torch.save(state, box.source / "model.pt")
    safetensors.save_file(state, box.source / "model.safetensors")
    box.take()

    with mounted(box) as shown:
        by_map = torch.load(shown.at(box.source / "model.pt"), mmap=True, weights_only=True)
        by_file = safetensors.load_file(shown.at(box.source / "model.safetensors"))
        for name, tensor in state.items():
            assert torch.equal(by_map[name], tensor)
            assert torch.equal(by_file[name], tensor)
        del by_map, by_file


def test_a_mount_is_read_only_and_says_so_to_the_kernel(box: Box) -> None:
    populate(box.source)
    box.take()

    with mounted(box) as shown:
        options = os.statvfs(shown.point).f_flag
        assert options & os.ST_RDONLY and options & os.ST_NOSUID and options & os.ST_NODEV
        for change in (
            lambda: (shown.at(box.source) / "new").write_text("x"),
            (shown.at(box.source) / "small.txt").unlink,
            lambda: (shown.at(box.source) / "small.txt").write_text("x"),
            lambda: shown.at(box.source).joinpath("small.txt").chmod(0o777),
            (shown.point / "by-id" / "cs-0").mkdir,
        ):
            with pytest.raises(OSError, match="Read-only"):
                change()


def test_snapshots_have_names_by_id_time_and_tag_and_new_ones_appear(box: Box) -> None:
    (box.source / "a").write_text("first")
    first = box.take(tags=("best", "50%/half")).id

    with mounted(box) as shown:
        top = shown.point
        assert sorted(os.listdir(top)) == ["by-id", "by-tag", "by-time", "latest", "latest-valid"]
        assert os.listdir(top / "by-id") == [first]
        assert os.readlink(top / "latest") == f"by-id/{first}"
        assert sorted(os.listdir(top / "by-tag")) == ["50%25%2Fhalf", "best"]
        (box.source / "a").write_text("second")
        second = box.take().id

        assert os.readlink(top / "latest") == f"by-id/{second}"
        assert os.readlink(top / "latest-valid") == f"by-id/{second}"
        assert sorted(os.listdir(top / "by-id")) == sorted([first, second])
        assert len(os.listdir(top / "by-time")) == 2
        times = {os.path.basename(os.readlink(one)) for one in (top / "by-time").iterdir()}
        assert times == {first, second}
        inside = os.fspath(box.source).lstrip("/")
        for path in (top / "by-tag/best" / first, top / "by-tag/50%25%2Fhalf" / first):
            assert (path / inside / "a").read_text() == "first"
        assert (top / "latest" / inside / "a").read_text() == "second"
        assert not filecmp.cmp(
            shown.at(box.source / "a", first), shown.at(box.source / "a", second), shallow=False
        )
        assert box.ciuic("tag", second, "--add", "later").code == 0
        assert os.listdir(top / "by-tag" / "later") == [second]
        assert box.ciuic("forget", first).code == 0
        assert os.listdir(top / "by-id") == [second]
        assert sorted(os.listdir(top / "by-tag")) == ["later"]


def test_a_mount_of_one_snapshot_has_its_roots_at_the_top(box: Box, tmp_path: Path) -> None:
    other = tmp_path / "other" / "root"
    other.mkdir(parents=True)
    (other / "b").write_text("beside")
    (box.source / "a").write_text("old")
    old = box.take(box.source, other).id
    (box.source / "a").write_text("new")
    box.take()

    with mounted(box, "-s", old[:9]) as shown:
        assert (shown.point / os.fspath(box.source / "a").lstrip("/")).read_text() == "old"
        assert (shown.point / os.fspath(other / "b").lstrip("/")).read_text() == "beside"
        assert not (shown.point / "by-id").exists()
        assert sorted(os.listdir(shown.point / os.fspath(tmp_path).lstrip("/"))) == [
            "other",
            "source",
        ]


def test_a_name_that_is_not_there_is_not_found(box: Box) -> None:
    (box.source / "a").write_text("x")
    box.take()

    with mounted(box) as shown:
        for path in ("none", "by-id/cs-1", "by-tag/x", "by-time/never", "latest/none/x"):
            with pytest.raises(FileNotFoundError):
                os.lstat(shown.point / path)
        with pytest.raises(NotADirectoryError):
            os.lstat(shown.at(box.source / "a" / "b"))
        with pytest.raises(OSError, match="No data"):
            os.getxattr(shown.at(box.source / "a"), "user.none")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts_even_while_a_file_is_open(box: Box, number: signal.Signals) -> None:
    (box.source / "a").write_bytes(noise(3 * MiB))
    box.take()

    with mounted(box) as shown:
        fd = os.open(shown.at(box.source / "a"), os.O_RDONLY)
        os.read(fd, 10)
        shown.process.send_signal(number)
        assert shown.process.wait(LIMIT_S) == 0
        wait_for(lambda: not is_mounted(shown.point), "it is still mounted")
        with contextlib.suppress(OSError):  # no file system is left to receive it
            os.close(fd)
        assert os.listdir(shown.point) == []


def test_a_killed_process_leaves_no_dead_mount(box: Box) -> None:
    (box.source / "a").write_text("x")
    box.take()

    with mounted(box) as shown:
        shown.process.kill()
        shown.process.wait(LIMIT_S)
        wait_for(lambda: not is_mounted(shown.point), "a dead mount is left")
        assert os.listdir(shown.point) == []


def test_fusermount_ends_the_process(box: Box) -> None:
    (box.source / "a").write_text("x")
    box.take()

    with mounted(box) as shown:
        subprocess.run(["fusermount3", "-u", shown.point], check=True, timeout=LIMIT_S)
        assert shown.process.wait(LIMIT_S) == 0


def test_in_the_background_it_returns_when_everything_is_there(box: Box) -> None:
    needs_fuse()
    (box.source / "a").write_text("here")
    box.take()
    point = box.directory / "mounted"
    point.mkdir()

    outcome = box.ciuic("mount", point, "--background")
    try:
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
        assert (point / "latest" / os.fspath(box.source / "a").lstrip("/")).read_text() == "here"
        again = box.ciuic("mount", point, "--background")
        assert again.code == 1
        assert "mounted" in again.err and "fusermount3 -u" in again.err
    finally:
        subprocess.run(["fusermount3", "-u", point], check=True, timeout=LIMIT_S)
    wait_for(lambda: not is_mounted(point), "it is still mounted")


def test_a_mount_point_that_cannot_be_used_is_refused(box: Box, tmp_path: Path) -> None:
    needs_fuse()
    (box.source / "a").write_text("x")
    box.take()
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    (box.store / "in").mkdir()

    for point, what in (
        (tmp_path / "none", "does not exist"),
        (full / "x", "not a directory"),
        (full, "not empty"),
        (tmp_path, "hide the store"),
        (box.store / "in", "inside the store"),
    ):
        for mode in ((), ("--background",)):
            outcome = box.ciuic("mount", point, *mode)
            assert outcome.code == 1
            assert what in outcome.err
            assert not is_mounted(point)
    assert box.ciuic("mount", tmp_path / "full", "-s", "cs-0000").code == 1


@pytest.mark.root
def test_a_sequential_reader_asks_for_a_megabyte_at_a_time(box: Box) -> None:
    content = noise(24 * MiB)
    (box.source / "a").write_bytes(content)
    box.take()

    def answers(process: int) -> int:
        """Return how often a process has written so far."""
        return int(Path(f"/proc/{process}/io").read_text().split()[7])

    with mounted(box) as shown, shown.at(box.source / "a").open("rb", buffering=0) as file:
        before = answers(shown.process.pid)
        read = b"".join(iter(lambda: file.read(MiB), b""))
        assert answers(shown.process.pid) - before < 24 * 3, "in requests of 128 KiB, it is 192"
    assert read == content


@pytest.mark.root
def test_a_user_without_rights_mounts_what_the_user_can_read(public_box: Box) -> None:
    box, user = public_box, as_nobody()
    populate(box.source)
    box.take()
    subprocess.run(["chown", "-R", f"{user}:{user}", box.store], check=True, timeout=LIMIT_S)

    with mounted(box, user=user) as shown:
        # Only that user can look into it: root cannot.
        with pytest.raises(PermissionError):
            os.listdir(shown.point)
        reading = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        done = subprocess.run(
            [
                *reading,
                "sha256sum",
                shown.at(box.source / "large.bin"),
                shown.at(box.source / "empty" / ".." / "small.txt"),
            ],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
        wanted = subprocess.run(
            ["sha256sum", box.source / "large.bin", box.source / "small.txt"],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
        assert [line.split()[0] for line in done.stdout.splitlines()] == [
            line.split()[0] for line in wanted.stdout.splitlines()
        ]


def test_a_snapshot_leaves_a_mount_out(box: Box) -> None:
    """Otherwise each snapshot would hold all earlier ones."""
    (box.source / "a").write_text("x")
    box.take()

    with mounted(box) as shown:
        assert PseudoMounts().holds(os.stat(shown.point))
        taken = box.take(box.directory, exclude=("store",))
    assert b"latest" not in {os.path.basename(path) for path in box.entries(taken.id)}
    assert os.fsencode(box.directory / "mounted") in box.entries(taken.id)
    (said,) = [one for one in taken.trouble if one.path == os.fsencode(shown.point)]
    assert said.what.startswith("is on a mount of ciuic: left out")
    assert said.harmless


@pytest.mark.parametrize("inside", [".", "latest", "by-id"])
def test_a_root_on_a_mount_is_named_as_left_out(box: Box, inside: str) -> None:
    (box.source / "a").write_text("x")
    box.take()

    with mounted(box) as shown:
        outcome = box.ciuic("snapshot", shown.point / inside, box.source, "--json")

    assert outcome.code == 3
    (said,) = outcome.document["trouble"]
    assert said["path"] == str(shown.point / inside)
    assert said["what"].startswith("the root: is on a mount of ciuic: left out")
    assert outcome.document["files"] == 1


def test_a_socket_beside_the_files_is_no_trouble(box: Box) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(box.source / "s"))
        (box.source / "a").write_text("x")
        box.take()
    with mounted(box) as shown:
        assert os.listdir(shown.at(box.source)) == ["a"]
