"""``ciuic cat --tar``: GNU tar and Python can read the stream, and what it never contains."""

import io
import os
import random
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.errors import CorruptionError
from ciuic.model import Entry
from ciuic.restore.archive import Archive
from ciuic.store.store import open_store
from ciuic.view.locator import locate
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.program import CIUIC, environment
from tests.kit.trees import Photo, differences, photograph
from tests.verbs.test_restore import hostile

MIB = 1024 * 1024
_LITTLE_MEMORY = ("prlimit", f"--data={300 * MIB}")


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def archived(box: Box, path: Path | bytes, code: int = 0) -> tuple[bytes, str]:
    """The stream of the command, and its stderr."""
    done = subprocess.run(
        [*CIUIC, "--config", str(box.config), "cat", "latest", path, "--tar"],
        capture_output=True,
        env=environment(),
        check=False,
    )
    err = done.stderr.decode("utf-8", "surrogateescape")
    assert done.returncode == code, err
    return done.stdout, err


def extracted(stream: bytes, out: Path) -> Path:
    """Extract a stream with GNU tar, which must not complain."""
    out.mkdir()
    done = subprocess.run(
        ["tar", "-x", "-p", "--xattrs", "--xattrs-include=*", "-C", str(out)],
        input=stream,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return out


def members(stream: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        return archive.getnames()


def plain(top: Path) -> dict[bytes, Photo]:
    return photograph(top, holes=False)  # in the stream they are zeros


# Content


def test_gnu_tar_extracts_what_a_restore_writes(box: Box, tmp_path: Path) -> None:
    top = os.fsencode(box.source)
    write(box.source / "file", b"content").chmod(0o640)
    write(box.source / "empty", b"")
    write(box.source / "ünï cöde", b"u")
    write(box.source / "new\nline", b"n")
    write(box.source / ("d" * 200) / ("f" * 200), b"long")
    write(box.source / "large", random.Random(1).randbytes(33 * MIB + 5))
    for name in (b"odd\xff\xfe", b"odd\xff" * 40):
        with open(top + b"/" + name, "wb") as file:
            file.write(name)
    os.link(box.source / "file", box.source / ("d" * 200) / "another name")
    (box.source / "link").symlink_to("file")
    os.symlink(b"../" * 60 + b"q\xff", top + b"/long link")
    os.mkfifo(box.source / "pipe")
    with (box.source / "holes").open("wb") as file:
        file.truncate(5 * MIB)
        file.seek(2 * MIB)
        file.write(b"x" * 10_000)
    (box.source / "hollow").mkdir()
    os.utime(box.source / "hollow", ns=(10**18 + 7, 10**18 + 7))
    os.utime(box.source / "file", ns=(10**18 + 123_456_789, 10**18 + 123_456_789))
    box.take()
    box.restore(to=tmp_path / "restored")
    stream, err = archived(box, box.source)
    assert err == ""
    out = extracted(stream, tmp_path / "extracted")
    assert os.listdir(out) == ["source"]
    expected = plain(tmp_path / "restored" / "source")
    assert len(expected) > 15
    assert differences(expected, plain(out / "source")) == []


@pytest.mark.root
def test_owners_devices_and_attributes_come_along(box: Box, tmp_path: Path) -> None:
    file = write(box.source / "file", b"content")
    os.setxattr(file, "user.odd=%name", b"\x00\xff=\n")
    os.chown(file, 1234, 3_000_000)
    file.chmod(0o4755)
    subprocess.run(["setfacl", "-m", "u:1000:r", box.source], check=True)
    os.mknod(box.source / "null", 0o20666, os.makedev(1, 3))
    os.mknod(box.source / "disk", 0o60600, os.makedev(259, 200_000))
    box.take()
    box.restore(to=tmp_path / "restored")
    out = extracted(archived(box, box.source)[0], tmp_path / "extracted")
    expected = plain(tmp_path / "restored" / "source")
    assert expected[b"file"].xattrs, "the test is of something"
    assert differences(expected, plain(out / "source")) == []


@pytest.mark.parametrize("mtime_ns", [-1, -1_500_000_000, 0, 2**62, 8**11 * 10**9])
def test_times_come_along_whatever_they_are(box: Box, mtime_ns: int) -> None:
    file = write(box.source / "file", b"content")
    os.utime(file, ns=(mtime_ns, mtime_ns))
    kept = file.stat().st_mtime_ns
    box.take()
    with tarfile.open(fileobj=io.BytesIO(archived(box, file)[0])) as archive:
        member = archive.getmember("file")
        told = member.pax_headers.get("mtime", str(int(member.mtime)))
    seconds, _, rest = told.lstrip("-").partition(".")
    magnitude = int(seconds) * 10**9 + int(rest.ljust(9, "0") if rest else 0)
    assert magnitude == abs(kept)
    assert told.startswith("-") == (kept < 0)


def test_a_single_file_is_an_archive_of_one_member(box: Box) -> None:
    file = write(box.source / "deep" / "file", b"content")
    box.take()
    stream, _ = archived(box, file)
    assert members(stream) == ["file"]
    assert len(stream) % tarfile.RECORDSIZE == 0


def test_sixty_thousand_files_take_little_memory_and_are_the_same(box: Box, tmp_path: Path) -> None:
    for directory in range(60):
        inner = box.source / f"{directory}"
        inner.mkdir()
        for number in range(1000):
            (inner / f"{number}").write_bytes(b"%d %d\n" % (directory, number) * 20)
    box.take()
    with (tmp_path / "tar").open("wb") as file:
        subprocess.run(
            [*_LITTLE_MEMORY, *CIUIC, "--config", box.config, "cat", "latest", box.source, "--tar"],
            stdout=file,
            env=environment(),
            check=True,
        )
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-x", "-f", tmp_path / "tar", "-C", tmp_path / "out"], check=True)
    done = subprocess.run(
        ["diff", "-r", box.source, tmp_path / "out" / "source"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_huge_file_takes_no_more_memory_than_a_chunk_or_two(box: Box) -> None:
    with (box.source / "huge").open("wb") as file:
        file.truncate(3 * 1024 * MIB)
        file.write(b"data")
    box.take()
    command = [*CIUIC, "--config", str(box.config), "cat", "latest", box.source, "--tar"]
    with subprocess.Popen(
        [*_LITTLE_MEMORY, *command], stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            sizes = [member.size for member in archive]
    assert process.returncode == 0
    assert sizes == [0, 3 * 1024 * MIB]


# Missing paths


def test_a_damaged_file_is_left_out_and_named_and_the_rest_is_there(
    box: Box, tmp_path: Path
) -> None:
    rng = random.Random(2)
    small, tail = rng.randbytes(1 * MIB), rng.randbytes(1 * MIB)
    write(box.source / "a", b"whole")
    write(box.source / "b", small)
    write(box.source / "c", rng.randbytes(40 * MIB) + tail)
    os.link(box.source / "b", box.source / "d")
    write(box.source / "e", b"whole too")
    box.take()
    flip_content(box.store, small)
    flip_content(box.store, tail)
    stream, err = archived(box, box.source, code=4)
    assert members(stream) == ["source", "source/a", "source/e"]
    for name in "bcd":
        assert f"not in the archive: {box.source}/{name}: " in err
    out = extracted(stream, tmp_path / "out")
    assert (out / "source" / "e").read_bytes() == b"whole too"


def test_a_large_file_that_is_lost_meanwhile_ends_the_stream_and_tar_says_so(
    box: Box, tmp_path: Path
) -> None:
    rng = random.Random(3)
    tail = rng.randbytes(1 * MIB)
    write(box.source / "a", b"whole")
    write(box.source / "b", rng.randbytes(80 * MIB) + tail)
    write(box.source / "c", b"never reached")
    box.take()
    stream = bytearray()

    def read() -> None:
        with open_store(str(box.store)) as store:
            manifest = store.manifest(find_snapshot(store, "latest").id)
            archive = Archive(store, locate(store, manifest, os.fsencode(box.source)))
            for block in archive.blocks():
                stream.extend(block)
                if len(stream) > 2 * MIB and not is_damaged:
                    is_damaged.append(True)
                    flip_content(box.store, tail)

    is_damaged: list[bool] = []
    with pytest.raises(CorruptionError, match="was lost while it was written"):
        read()
    assert len(stream) < 81 * MIB
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        ["tar", "-x", "-C", tmp_path / "out"], input=stream, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"Unexpected EOF" in done.stderr


def test_an_unreadable_file_is_left_out_and_a_file_that_was_being_written_is_marked(
    box: Box,
) -> None:
    own = {"uid": 0, "gid": 0, "mtime_ns": 1, "ctime_ns": 1, "ino": 1}
    hostile(
        box,
        [
            Entry(b"a", 0o100644, state=1, **own),
            Entry(b"b", 0o100644, size_bytes=3, state=2, **own),
            Entry(b"c", 0o40755, state=2, **own),
            Entry(b"d", 0o40755, state=3, **own),
        ],
        root=box.source,
    )
    stream, err = archived(box, box.source, code=3)
    assert members(stream) == ["source", "source/a", "source/c", "source/d"]
    assert f"{box.source}/a: was in flux" in err
    assert f"{box.source}/b: could not be read" in err
    assert f"{box.source}/c: could not be read" in err


@pytest.mark.parametrize(
    "entries",
    [
        [(b"..", 0o100644, b"")],
        [(b"../../etc/x", 0o100644, b"")],
        [(b"/etc/x", 0o100644, b"")],
        [(b"", 0o100644, b"")],
        [(b"x", 0o120777, b"/etc"), (b"x", 0o40755, b"")],
        [(b"b", 0o100644, b""), (b"a", 0o100644, b"")],
        [(b"link", 0o120777, b"")],
        [(b"link", 0o120777, b"a\0b")],
        [(b"what", 0o170000, b"")],
        [(b"long", 0o100644, None)],
    ],
)
def test_wrong_entries_of_a_hostile_store_are_named_and_not_written(
    box: Box, entries: list[tuple[bytes, int, bytes | None]]
) -> None:
    own = {"uid": 0, "gid": 0, "mtime_ns": 1, "ctime_ns": 1, "ino": 1}
    hostile(
        box,
        [
            Entry(
                name,
                mode,
                content=content or b"",
                size_bytes=0 if content is not None else 9,
                **own,
            )
            for name, mode, content in entries
        ],
        root=box.source,
    )
    stream, err = archived(box, box.source, code=4)
    assert "not in the archive: " in err
    # Either of the two names can be the first.
    assert len(members(stream)) <= len(entries)
    assert all(name.split("/")[0] == "source" for name in members(stream))
    assert all(".." not in name.split("/") for name in members(stream))


# The command


def test_a_closed_pipe_ends_it_quietly(box: Box) -> None:
    for number in range(200):
        write(box.source / str(number), os.urandom(30_000))
    box.take()
    command = shutil.which("bash")
    assert command is not None
    stream = shlex.join([*CIUIC, "--config", str(box.config), "cat", "latest", str(box.source)])
    line = f"{stream} --tar | head -c 99"
    done = subprocess.run(
        [command, "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr, len(done.stdout)) == (141, b"", 99)


def test_a_terminal_is_refused(box: Box) -> None:
    import pty

    write(box.source / "file", b"content")
    box.take()
    leader, follower = pty.openpty()
    done = subprocess.run(
        [*CIUIC, "--config", str(box.config), "cat", "latest", box.source, "--tar"],
        stdout=follower,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(follower)
    os.close(leader)
    assert done.returncode == 2
    assert b"a tar stream is not for a terminal" in done.stderr


def test_a_directory_without_tar_is_refused_with_a_hint(box: Box) -> None:
    box.take()
    refused = box.ciuic("cat", "latest", box.source)
    assert refused.code == 2
    assert "--tar" in refused.err
