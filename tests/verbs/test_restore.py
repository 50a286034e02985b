"""Restoring paths: what is written, what is left alone, and what is never touched."""

import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ciuic.errors import (
    CancelledError,
    CiuicError,
    CorruptionError,
    PathNotFoundError,
    TargetError,
    UsageError,
)
from ciuic.model import Entry, ExcludeRules, Root, SnapshotSummary
from ciuic.restore.place import temporary_files
from ciuic.restore.place.temporary_files import TOGETHER, TemporaryFiles
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.adding import new_writer
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.tree_nodes import TreeBuilder
from ciuic.store.store import open_store
from tests.kit.box import Box, settle
from tests.kit.daemon import wait_until
from tests.kit.damage import flip_byte, flip_content, pack_of, packs
from tests.kit.filesystems import disk, tmpfs
from tests.kit.program import CIUIC, Outcome, as_nobody, ciuic, environment
from tests.kit.strace import strace
from tests.kit.trees import differences, photograph, status_tree, walk

MIB = 1024 * 1024


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def inode(path: Path) -> int:
    return path.lstat().st_ino


@pytest.fixture
def taken(box: Box) -> Iterator[Box]:
    """A small tree of everything that an ordinary user may make, and a snapshot of it."""
    write(box.source / "small", b"small")
    write(box.source / "empty", b"")
    write(box.source / "large", os.urandom(3 * MIB + 5))
    write(box.source / "sub" / "deep" / "file", b"file")
    write(box.source / "sub" / "other", b"other")
    os.link(box.source / "small", box.source / "sub" / "small too")
    (box.source / "link").symlink_to("sub/other")
    os.mkfifo(box.source / "pipe")
    (box.source / "hollow").mkdir()
    with (box.source / "holes").open("wb") as file:
        file.truncate(5 * MIB)
        file.seek(2 * MIB)
        file.write(b"x" * 10_000)
    box.take()
    yield box


def assert_equal(one: Path, other: Path) -> None:
    assert differences(photograph(one), photograph(other)) == []


# Places


def test_a_path_goes_into_the_destination_under_its_last_name(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "made" / "on the way"
    taken.restore(taken.source / "sub" / "other", taken.source / "sub" / "deep", to=out)
    assert sorted(os.listdir(out)) == ["deep", "other"]
    assert (out / "other").read_bytes() == b"other"
    assert (out / "deep" / "file").read_bytes() == b"file"


def test_without_a_destination_a_path_goes_back_to_its_old_place(taken: Box) -> None:
    before = photograph(taken.source)
    shutil.rmtree(taken.source)
    report = taken.restore()
    assert report.failed == []
    assert differences(before, photograph(taken.source)) == []


def test_parents_that_are_gone_are_made(taken: Box) -> None:
    shutil.rmtree(taken.source)
    taken.restore(taken.source / "sub" / "deep" / "file")
    assert (taken.source / "sub" / "deep" / "file").read_bytes() == b"file"


@pytest.mark.parametrize("what", ["file", "directory", "symlink", "dangling symlink", "fifo"])
def test_a_target_that_exists_is_refused_and_nothing_is_touched(
    taken: Box, tmp_path: Path, what: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write(tmp_path / "victim", b"victim")
    place = out / "other"
    if what == "file":
        place.write_bytes(b"mine")
    elif what == "directory":
        place.mkdir()
    elif what == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / ("victim" if what == "symlink" else "nowhere"))
    before = status_tree(tmp_path / "out"), status_tree(tmp_path / "victim")
    # The second target does not exist; restore must not write there either.
    outcome = taken.ciuic(
        "restore",
        "-s",
        "latest",
        "-p",
        taken.source / "small",
        "-p",
        taken.source / "sub" / "other",
        "-d",
        out,
        "--json",
    )
    assert outcome.code == 1
    assert outcome.document["error"]["kind"] == "target"
    assert "--overwrite" in outcome.document["error"]["hint"]
    assert (status_tree(tmp_path / "out"), status_tree(tmp_path / "victim")) == before


def test_a_destination_that_is_a_file_is_refused(taken: Box, tmp_path: Path) -> None:
    write(tmp_path / "out", b"mine")
    with pytest.raises(TargetError, match="not a directory"):
        taken.restore(taken.source / "small", to=tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"mine"


def test_a_path_that_the_snapshot_does_not_have_stops_all_of_them(
    taken: Box, tmp_path: Path
) -> None:
    with pytest.raises(PathNotFoundError) as caught:
        taken.restore(taken.source / "small", taken.source / "larg", to=tmp_path / "out")
    assert "large" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_two_paths_of_one_name_are_refused(taken: Box, tmp_path: Path) -> None:
    write(taken.source / "sub" / "small", b"another small")
    taken.take()
    with pytest.raises(UsageError, match="both"):
        taken.restore(taken.source / "small", taken.source / "sub" / "small", to=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_path_given_twice_is_restored_once(taken: Box, tmp_path: Path) -> None:
    report = taken.restore(
        taken.source / "small", taken.source / "sub" / ".." / "small", to=tmp_path / "out"
    )
    assert report.written_files == 1


def test_a_path_inside_another_is_restored_with_it_at_the_old_place(taken: Box) -> None:
    before = photograph(taken.source)
    shutil.rmtree(taken.source)
    report = taken.restore(taken.source / "sub" / "deep", taken.source, taken.source / "sub")
    assert report.failed == []
    assert differences(before, photograph(taken.source)) == []


def test_a_path_inside_another_gets_its_own_place_in_a_destination(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    taken.restore(taken.source, taken.source / "sub" / "deep", to=out)
    assert_equal(taken.source, out / "source")
    assert_equal(taken.source / "sub" / "deep", out / "deep")


def test_symlinks_on_the_way_to_the_destination_are_the_users_own(
    taken: Box, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "real")
    taken.restore(taken.source / "small", to=tmp_path / "way")
    assert (tmp_path / "real" / "small").read_bytes() == b"small"


def test_a_root_that_is_a_symlink_stays_one_when_it_is_restored_to_its_old_place(
    box: Box, tmp_path: Path
) -> None:
    write(box.source / "file", b"x")
    link = tmp_path / "link"
    link.symlink_to(box.source)
    box.take(link)
    (box.source / "file").write_bytes(b"broken")
    box.restore(link, overwrite=True)
    assert link.is_symlink(), "the root's own link was replaced by a directory"
    assert (box.source / "file").read_bytes() == b"x"


@pytest.mark.parametrize("inside", [False, True])
def test_the_store_is_never_restored_into(taken: Box, inside: bool) -> None:
    before = status_tree(taken.store)
    with pytest.raises(TargetError, match="inside the store"):
        taken.restore(
            taken.source / "small",
            to=taken.store / "packs" if inside else taken.store,
            overwrite=True,
        )
    assert status_tree(taken.store) == before


# Files that are kept


def test_right_files_keep_their_inode_and_are_not_written(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    inodes = {path: status.st_ino for path, _, status in walk(out)}
    report = taken.restore(to=out, overwrite=True)
    assert (report.written_files, report.written_bytes) == (0, 0)
    assert {path: status.st_ino for path, _, status in walk(out)} == inodes
    assert_equal(taken.source, out / "source")


def test_right_files_at_the_old_place_are_not_touched_at_all(taken: Box) -> None:
    before = {
        path: one
        for path, one in status_tree(taken.source).items()
        if not (taken.source / os.fsdecode(path)).is_dir()
    }
    report = taken.restore(overwrite=True)
    assert report.written_files == 0
    after = status_tree(taken.source)
    assert {path: after[path] for path in before} == before


@pytest.mark.parametrize("name", ["small", "large", "holes", "empty"])
@pytest.mark.parametrize("same_stamp", [True, False])
def test_wrong_bytes_are_found_even_with_the_right_times(
    taken: Box, tmp_path: Path, name: str, same_stamp: bool
) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    victim = out / "source" / name
    status = victim.stat()
    with victim.open("r+b") as file:
        file.seek(max(0, status.st_size - 3))
        file.write(b"BAD"[: max(1, min(3, status.st_size))])
    if same_stamp:
        os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
    report = taken.restore(to=out, overwrite=True)
    assert report.failed == []
    assert_equal(taken.source, out / "source")


def test_wrong_bytes_at_the_old_place_are_found_with_the_old_time_and_size(taken: Box) -> None:
    for name in ("small", "large"):
        victim = taken.source / name
        status = victim.stat()
        before = victim.read_bytes()
        with victim.open("r+b") as file:
            file.write(b"BAD")
        os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
        taken.restore(overwrite=True)
        assert victim.read_bytes() == before


def test_metadata_that_differs_is_put_right_in_place(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    top = out / "source"
    inodes = {name: inode(top / name) for name in ("large", "sub", "hollow", "sub/other")}
    (top / "small").chmod(0o777)
    os.utime(top / "large", ns=(1, 1))
    os.setxattr(top / "sub" / "other", "user.extra", b"1")
    os.setxattr(top / "sub", "user.extra", b"1")
    (top / "hollow").chmod(0o700)
    if shutil.which("setfacl"):
        subprocess.run(["setfacl", "-m", "u:1234:rwx", top / "hollow"], check=True)
    os.utime(top, ns=(7, 7))
    report = taken.restore(to=out, overwrite=True)
    # An inode with several names may have more names elsewhere: restore makes a new file.
    assert report.written_files == 2
    assert inode(top / "small") == inode(top / "sub" / "small too")
    assert_equal(taken.source, top)
    assert {name: inode(top / name) for name in inodes} == inodes


def test_metadata_of_a_file_with_several_names_is_put_right_and_it_stays_one_file(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    (out / "source" / "small").chmod(0o777)
    taken.restore(to=out, overwrite=True)
    assert_equal(taken.source, out / "source")


def test_files_that_the_snapshot_does_not_have_stay(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    write(out / "source" / "mine", b"mine")
    write(out / "source" / "sub" / "new" / "mine", b"mine")
    report = taken.restore(to=out, overwrite=True)
    assert report.deleted_files == 0
    assert (out / "source" / "mine").read_bytes() == b"mine"
    assert (out / "source" / "sub" / "new" / "mine").read_bytes() == b"mine"


# Delete


def test_delete_removes_what_the_snapshot_does_not_have(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    top = out / "source"
    write(out / "beside", b"not inside a restored directory")
    write(top / "mine", b"mine")
    write(top / "sub" / "new" / "mine", b"mine")
    write(tmp_path / "victim" / "file", b"victim")
    (top / "way out").symlink_to(tmp_path / "victim")
    report = taken.restore(to=out, overwrite=True, delete=True)
    assert report.deleted_files == 3
    assert_equal(taken.source, top)
    assert (out / "beside").exists()
    assert (tmp_path / "victim" / "file").read_bytes() == b"victim"


def test_delete_keeps_the_store_sockets_and_what_the_snapshot_leaves_out(
    tmp_path: Path,
) -> None:
    box = Box(tmp_path / "all") if (tmp_path / "all").mkdir() is None else None
    assert box is not None
    root = tmp_path / "all"
    write(root / "file", b"x")
    write(root / "cache.tmp", b"left out")
    write(root / "skip" / "inner", b"left out")
    exclude = ("*.tmp", f"{root}/skip", "part/only")
    write(root / "part" / "only", b"left out")
    write(root / "part" / "taken", b"taken")
    box.take(root, exclude=exclude)
    write(root / "extra", b"goes")
    write(root / "later.tmp", b"stays")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))
        before = status_tree(box.store)
        report = box.restore(root, overwrite=True, delete=True)
        assert (root / "s").is_socket()
    assert report.deleted_files == 1
    assert not (root / "extra").exists()
    after = status_tree(box.store)
    assert {path: one for path, one in after.items() if path.startswith(b"packs")} == {
        path: one for path, one in before.items() if path.startswith(b"packs")
    }
    for name in ("cache.tmp", "skip/inner", "later.tmp", "part/only", "part/taken", "ciuic.conf"):
        assert (root / name).exists(), name
    assert box.verify().ok


def test_nothing_is_deleted_by_a_manifest_whose_patterns_have_no_meaning(box: Box) -> None:
    write(box.source / "file", b"x")
    box.take()
    write(box.source / "step_7", b"was left out, for all that can be known")
    request = RestoreRequest((bytes(box.source),), overwrite=True, delete=True)
    with open_store(str(box.store)) as store:
        manifest = store.manifest(box.snapshots()[0].id)
        hostile = msgspec.structs.replace(manifest, exclude=ExcludeRules(("step_[5-10]*",)))
        with pytest.raises(CorruptionError, match="is reversed"):
            restore(store, hostile, request, clock=box.clock)
    assert (box.source / "step_7").exists()


def test_delete_spares_excluded_files_inside_a_directory_that_goes(box: Box) -> None:
    """A directory that the snapshot does not have may contain files that no snapshot stores."""
    write(box.source / "file", b"x")
    box.take(exclude=("*.keep",))
    write(box.source / "new" / "data.keep", b"in no snapshot")
    write(box.source / "new" / "other", b"goes")
    box.restore(overwrite=True, delete=True)
    assert (box.source / "new" / "data.keep").exists()
    assert not (box.source / "new" / "other").exists()


@pytest.mark.slow
def test_delete_goes_a_thousand_levels_deep(box: Box) -> None:
    write(box.source / "file", b"x")
    box.take()
    fd = os.open(box.source, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    try:
        options = ("restore", "-s", "latest", "-p", box.source, "--overwrite", "--delete")
        planned = box.ciuic(*options, "--dry-run", "--json")
        assert planned.document["deleted_files"] == 1
        assert box.ciuic(*options).code == 0
        assert os.listdir(box.source) == ["file"]
    finally:
        subprocess.run(["rm", "-rf", box.source], check=True)


def test_delete_keeps_everything_in_a_directory_that_cannot_be_read_from_the_store(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    nodes = next(one for one in packs(taken.store) if one != pack_of(taken.store, b"other"))
    write(out / "source" / "sub" / "mine", b"mine")
    for offset in range(200, nodes.stat().st_size - 100, 300):
        flip_byte(nodes, offset)
    outcome = taken.ciuic(
        "restore", "-s", "latest", "-p", taken.source, "-d", out, "--overwrite", "--delete"
    )
    assert outcome.code == 4
    assert (out / "source" / "sub" / "mine").exists()
    assert (out / "source" / "sub" / "deep" / "file").exists()


# Dry run


def make_a_mess(top: Path) -> None:
    """A target that differs from the snapshot in every way."""
    (top / "small").write_bytes(b"SMALL")
    with (top / "large").open("r+b") as file:
        file.seek(MIB + 7)
        file.write(b"torn")
    (top / "empty").unlink()
    (top / "empty").mkdir()
    write(top / "empty" / "in the way", b"x")
    write(top / "empty" / "too", b"x")
    shutil.rmtree(top / "hollow")
    write(top / "hollow", b"a file in the place of a directory")
    (top / "link").unlink()
    (top / "link").symlink_to("elsewhere")
    (top / "pipe").unlink()
    write(top / "extra" / "one", b"1")
    write(top / "extra" / "two", b"2")
    shutil.rmtree(top / "sub" / "deep")


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("delete", [True, False])
def test_a_dry_run_changes_nothing_and_predicts_the_numbers(
    taken: Box, tmp_path: Path, fresh: bool, delete: bool
) -> None:
    out = tmp_path / "out"
    if not fresh:
        taken.restore(to=out)
        make_a_mess(out / "source")
    before = status_tree(tmp_path)
    planned = taken.restore(to=out, overwrite=True, delete=delete, dry_run=True)
    after = status_tree(tmp_path)
    assert {path: one for path, one in after.items() if not path.startswith(b"store")} == {
        path: one for path, one in before.items() if not path.startswith(b"store")
    }
    done = taken.restore(to=out, overwrite=True, delete=delete)
    numbers = ("written_files", "kept_files", "deleted_files", "written_bytes", "cloned_bytes")
    assert {one: getattr(planned, one) for one in numbers} == {
        one: getattr(done, one) for one in numbers
    }
    assert [one.path for one in planned.failed] == [one.path for one in done.failed]


def test_a_dry_run_predicts_hard_links_that_must_be_made_again(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    (out / "source" / "small").write_bytes(b"WRONG")
    planned = taken.restore(to=out, overwrite=True, dry_run=True)
    done = taken.restore(to=out, overwrite=True)
    assert (planned.written_files, planned.kept_files) == (done.written_files, done.kept_files)
    assert_equal(taken.source, out / "source")


# Hostile targets


@pytest.mark.parametrize("delete", [True, False])
def test_a_wrong_target_is_corrected(taken: Box, tmp_path: Path, delete: bool) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    make_a_mess(out / "source")
    report = taken.restore(to=out, overwrite=True, delete=delete)
    if delete:
        assert report.failed == []
        assert_equal(taken.source, out / "source")
        return
    assert [one.path for one in report.failed] == [os.fsencode(taken.source / "empty")]
    assert (out / "source" / "empty" / "in the way").exists()
    left = differences(photograph(taken.source), photograph(out / "source"))
    assert all("empty" in one or "extra" in one for one in left), left


def test_symlinks_in_the_target_are_replaced_and_never_followed(taken: Box, tmp_path: Path) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    taken.restore(to=out)
    top = out / "source"
    write(victim / "deep" / "file", b"victim")
    write(victim / "other", b"victim")
    write(victim / "extra", b"victim")
    shutil.rmtree(top / "sub")
    (top / "sub").symlink_to(victim)
    (top / "small").unlink()
    (top / "small").symlink_to(victim / "other")
    (top / "large").unlink()
    (top / "large").symlink_to(victim / "new")
    (top / "hollow").rmdir()
    (top / "hollow").symlink_to(victim)
    (top / "pipe").unlink()
    (top / "pipe").symlink_to(victim / "other")
    before = status_tree(victim)
    report = taken.restore(to=out, overwrite=True, delete=True)
    assert report.failed == []
    assert status_tree(victim) == before
    assert_equal(taken.source, top)


def test_a_symlink_in_the_place_of_the_target_itself_is_replaced(
    taken: Box, tmp_path: Path
) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    write(victim / "small", b"victim")
    (out / "source").symlink_to(victim)
    (out / "large").symlink_to(victim / "small")
    before = status_tree(victim)
    taken.restore(taken.source, taken.source / "large", to=out, overwrite=True, delete=True)
    assert status_tree(victim) == before
    assert_equal(taken.source, out / "source")


def test_a_hard_link_in_the_target_does_not_carry_changes_to_its_other_names(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    victim = write(tmp_path / "victim", b"other")
    victim.chmod(0o600)
    os.utime(victim, ns=(5, 5))
    place = out / "source" / "sub" / "other"
    place.unlink()
    os.link(victim, place)
    before = victim.stat()
    taken.restore(to=out, overwrite=True)
    after = victim.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert victim.read_bytes() == b"other"
    assert_equal(taken.source, out / "source")


def test_files_that_are_not_links_in_the_snapshot_are_parted(box: Box, tmp_path: Path) -> None:
    write(box.source / "a", b"same").chmod(0o600)
    write(box.source / "b", b"same").chmod(0o644)
    box.take()
    out = tmp_path / "out"
    box.restore(to=out)
    (out / "source" / "b").unlink()
    os.link(out / "source" / "a", out / "source" / "b")
    box.restore(to=out, overwrite=True)
    assert_equal(box.source, out / "source")


def test_only_the_changed_ranges_of_a_large_file_come_from_the_store(
    box: Box, tmp_path: Path
) -> None:
    data = os.urandom(8 * MIB + 123)
    write(box.source / "model", data)
    box.take()
    out = tmp_path / "out"
    box.restore(to=out)
    with (out / "source" / "model").open("r+b") as file:
        file.seek(3 * MIB + 5)
        file.write(b"torn")
    report = box.restore(to=out, overwrite=True)
    assert (report.written_files, report.cloned_bytes) == (1, 7 * MIB + 123)
    assert (out / "source" / "model").read_bytes() == data


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_large_files_of_any_layout_come_back_fresh_and_over_what_is_there(
    box: Box, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    model = box.source / "model"
    with model.open("wb") as file:
        file.truncate(rng.randrange(9 * MIB, 20 * MIB))
        for _ in range(rng.randrange(1, 40)):
            file.seek(rng.randrange(18 * MIB))
            file.write(rng.randbytes(rng.randrange(1, 900_000)))
    box.take()
    out = tmp_path / "out"
    box.restore(to=out)
    assert_equal(box.source, out / "source")
    for _ in range(3):
        with (out / "source" / "model").open("r+b") as file:
            for _ in range(rng.randrange(1, 6)):
                file.seek(rng.randrange(20 * MIB))
                file.write(rng.randbytes(rng.randrange(1, 200_000)))
            file.truncate(rng.choice((model.stat().st_size, rng.randrange(20 * MIB))))
        box.restore(to=out, overwrite=True)
        assert_equal(box.source, out / "source")


@pytest.mark.parametrize("length", [0, 1, 2 * MIB + 1, 20 * MIB])
def test_a_large_file_of_another_length_is_put_right(box: Box, tmp_path: Path, length: int) -> None:
    data = os.urandom(4 * MIB + 1)
    write(box.source / "model", data)
    box.take()
    out = tmp_path / "out"
    box.restore(to=out)
    os.truncate(out / "source" / "model", length)
    box.restore(to=out, overwrite=True)
    assert_equal(box.source, out / "source")


def test_holes_are_put_back_into_a_file_that_has_zeros_there(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    (out / "source" / "holes").write_bytes((taken.source / "holes").read_bytes())
    taken.restore(to=out, overwrite=True)
    assert_equal(taken.source, out / "source")


# Hostile stores


def hostile(
    box: Box, entries: list[Entry], *, root: Path, inner: dict[bytes, list[Entry]] | None = None
) -> None:
    """Commit a snapshot of ``root`` whose directory has these entries, in this order."""
    with open_store(str(box.store), write=True) as store:
        writer = new_writer(store)

        def tree(items: list[Entry]) -> tuple[bytes, int]:
            builder = TreeBuilder(writer.put_node)
            for item in items:
                builder.add(item)
            return builder.finish()

        for name, items in (inner or {}).items():
            content, level = tree(items)
            for entry in entries:
                if entry.name == name:
                    entry.content, entry.level = content, level
        content, level = tree(entries)
        top = Entry(b".", 0o40755, os.getuid(), os.getgid(), 1, 1, 1, content=content, level=level)
        tree_id = tree([top])[0]
        writer.finish()
        summary = SnapshotSummary(
            id="cs-bad000",
            kind="base",
            parent=None,
            taken_ns=2**62,
            files=1,
            logical_bytes=1,
            new_bytes=0,
            stored_bytes=0,
            tags=(),
            trouble_count=0,
            roots=(os.fsencode(root),),
        )
        store.commit(
            Manifest(
                summary=summary,
                roots=(Root(os.fsencode(root), tree_id),),
                host=os.uname().nodename,
                writer="w",
                read_bytes=0,
                capture_s=0.0,
                exclude=ExcludeRules(),
                trouble=(),
            )
        )


def file_entry(name: bytes, box: Box, *, mode: int = 0o100644) -> Entry:
    """An entry whose content is the box's file ``evil``."""
    known = box.entries()[os.fsencode(box.source / "evil")]
    return Entry(
        name,
        mode,
        os.getuid(),
        os.getgid(),
        1,
        1,
        999,
        size_bytes=known.size_bytes,
        content=known.content,
    )


@pytest.mark.parametrize(
    "name", [b"..", b".", b"", b"a/b", b"../escaped", b"/abs", b"nul\0x", b"x" * 1024]
)
@pytest.mark.parametrize("kind", [0o100644, 0o040755, 0o120777, 0o010644])
def test_names_that_no_file_can_have_are_named_and_write_nothing(
    box: Box, tmp_path: Path, name: bytes, kind: int
) -> None:
    write(box.source / "evil", b"evil")
    box.take()
    entry = file_entry(name, box, mode=kind)
    if kind == 0o120777:
        entry.content = b"target"
    good = file_entry(b"good", box)
    inner = {name: [file_entry(b"below", box)]} if kind == 0o040755 else None
    ordered = sorted([entry, good], key=lambda one: one.name)  # else only the order would be wrong
    hostile(box, ordered, root=box.source, inner=inner)
    out = tmp_path / "a" / "out"
    report = box.restore(snapshot="cs-bad000", to=out)
    assert len(report.failed) == 1
    assert sorted(os.listdir(tmp_path / "a")) == ["out"]
    assert os.listdir(out) == ["source"]
    assert os.listdir(out / "source") == []
    assert not os.path.exists("/abs")


def test_a_fallback_follows_no_name_that_leads_out_of_the_target(box: Box, tmp_path: Path) -> None:
    write(box.source / "evil", b"evil")
    write(box.source / "up" / "victim", b"evil")
    write(box.source / "sub" / "file", b"file")
    box.take()
    directory = Entry(b"sub", 0o040755, os.getuid(), os.getgid(), 1, 1, 6)
    inner = {b"sub": [file_entry(b"../up/victim", box)]}
    hostile(box, [directory], root=box.source, inner=inner)
    out = tmp_path / "out"
    victim = write(out / "up" / "victim", b"mine")
    report = box.restore(box.source / "sub", snapshot="cs-bad000", to=out, fallback=True)
    assert report.damaged
    assert (out / "sub" / "file").read_bytes() == b"file"
    assert victim.read_bytes() == b"mine"


def test_a_hostile_store_crashes_no_command(box: Box, tmp_path: Path) -> None:
    write(box.source / "evil", b"evil")
    box.take()
    names = [b"", b"..", b"/abs", b"a/b", b"nul\0x", b"\x1b[31m"]
    hostile(box, [file_entry(name, box) for name in sorted(names)], root=box.source)
    out = tmp_path / "out"
    restored = box.ciuic("restore", "-s", "cs-bad000", "-p", box.source, "-d", out, "--json")
    assert restored.code == 4
    assert [one["path"] for one in restored.document["failed"]] == [str(box.source)]
    commands = ["ls -R cs-bad000", "ls -R --json cs-bad000", "verify cs-bad000", "find *"]
    commands += ["show cs-bad000 --chunks", "stats --detail", "diff cs-bad000 latest --tensors"]
    for command in commands:
        outcome = box.ciuic(*command.split())
        assert outcome.code in {0, 1, 4}
        assert "\x1b" not in outcome.out + outcome.err


def test_a_symlink_with_entries_below_it_of_the_same_name_writes_nothing_outside(
    box: Box, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    write(box.source / "evil", b"evil")
    box.take()
    link = Entry(b"d", 0o120777, 0, 0, 1, 1, 5, content=os.fsencode(victim))
    directory = Entry(b"d", 0o040755, os.getuid(), os.getgid(), 1, 1, 6)
    for number, order in enumerate(([link, directory], [directory, link])):
        with open_store(str(box.store), write=True) as store:
            path = Path(store.path) / "snapshots" / "cs-bad000.json"
            path.unlink(missing_ok=True)
        hostile(box, order, root=box.source, inner={b"d": [file_entry(b"below", box)]})
        box.restore(to=tmp_path / f"out{number}", snapshot="cs-bad000")
        assert os.listdir(victim) == []


def test_a_directory_entry_that_is_its_own_child_does_not_hang(box: Box, tmp_path: Path) -> None:
    """A tree cannot contain its own ID, but an entry of a symlink or file may have a tree."""
    write(box.source / "evil", b"evil")
    box.take()
    directory = Entry(b"d", 0o040755, os.getuid(), os.getgid(), 1, 1, 6)
    hostile(box, [directory], root=box.source, inner={b"d": [file_entry(b"below", box)]})
    entry = box.entries("cs-bad000")[os.fsencode(box.source / "d")]
    disguised = Entry(
        b"f",
        0o100644,
        os.getuid(),
        os.getgid(),
        1,
        1,
        7,
        size_bytes=5,
        content=entry.content,
        level=1,
    )
    (Path(box.store) / "snapshots" / "cs-bad000.json").unlink()
    hostile(box, [disguised], root=box.source)
    outcome = box.ciuic("restore", "-s", "cs-bad000", "-p", box.source, "-d", tmp_path / "out")
    assert outcome.code == 4
    assert os.listdir(tmp_path / "out" / "source") == []


def test_hard_link_entries_of_different_content_never_give_one_file_the_bytes_of_another(
    box: Box, tmp_path: Path
) -> None:
    write(box.source / "evil", b"evil")
    write(box.source / "good", b"good!")
    box.take()
    entries = box.entries()
    pair = []
    for name in (b"evil", b"good"):
        entry = entries[os.fsencode(box.source) + b"/" + name]
        entry.link_dev, entry.ino = 1, 77
        pair.append(entry)
    hostile(box, pair, root=box.source)
    outcome = box.ciuic(
        "restore", "-s", "cs-bad000", "-p", box.source, "-d", tmp_path / "out", "--no-hot", "--json"
    )
    good = tmp_path / "out" / "source" / "good"
    if outcome.code == 0:
        assert good.read_bytes() == b"good!"
    else:
        assert not good.exists() or good.read_bytes() == b"good!"
        assert [one["path"] for one in outcome.document["failed"]] == [str(box.source / "good")]


# Targets that refuse


def test_a_destination_that_is_read_only_is_refused_with_one_sentence(
    public_box: Box,
) -> None:
    box = public_box
    user = as_nobody()
    write(box.source / "file", b"x")
    box.take()
    box.store.chmod(0o755)
    for path in box.store.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    out = box.directory / "out"
    out.mkdir(mode=0o555)
    outcome = box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", out, user=user)
    assert outcome.code in {1, 3}
    assert "Permission denied" in outcome.err
    assert os.listdir(out) == []


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("large", [True, False])
def test_a_full_target_is_one_sentence_and_a_second_run_finishes(
    box: Box, tmp_path: Path, large: bool
) -> None:
    write(box.source / "first", b"first")
    if large:
        write(box.source / "z", os.urandom(12 * MIB))
    else:
        for number in range(60):
            write(box.source / f"z{number}", os.urandom(200_000))
    box.take()
    with tmpfs(tmp_path / "tiny", size_mib=8) as tiny:
        options = ("restore", "-s", "latest", "-p", box.source, "-d", tiny)
        outcome = box.ciuic(*options, "--json")
        assert outcome.code == 1
        assert outcome.document["error"]["kind"] == "target"
        assert "No space left" in outcome.document["error"]["message"]
        assert "free space" in outcome.document["error"]["hint"]
        known = photograph(box.source)
        for inside, path, _ in walk(tiny / "source"):
            assert b".ciuic" not in path
            if inside != b"." and os.path.isfile(path):
                assert photograph(tiny / "source")[inside].content == known[inside].content
        subprocess.run(["mount", "-o", "remount,size=64m", tiny], check=True)
        again = box.ciuic(*options, "--overwrite")
        assert again.code == 0, again.err
        assert_equal_contents(box.source, tiny / "source")


def assert_equal_contents(one: Path, other: Path) -> None:
    """As ``assert_equal``, for two kinds of file systems, which place holes differently."""
    assert differences(photograph(one, holes=False), photograph(other, holes=False)) == []


@pytest.mark.root
def test_a_read_only_file_system_is_one_sentence(box: Box, tmp_path: Path) -> None:
    write(box.source / "file", b"x")
    box.take()
    with disk("ext4", tmp_path, size_mib=16) as target:
        target.remount("ro")
        outcome = box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", target.path)
        assert outcome.code == 1
        assert "Read-only file system" in outcome.err


def test_another_user_gets_what_he_may_have_and_the_rest_named(public_box: Box) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make files of several owners")
    box = public_box
    write(box.source / "theirs", b"theirs").chmod(0o4755)
    write(box.source / "sub" / "file", b"file")
    write(box.source / "sub" / "a", b"linked")
    os.link(box.source / "sub" / "a", box.source / "sub" / "b")
    (box.source / "link").symlink_to("theirs")
    os.mkfifo(box.source / "pipe")
    os.mknod(box.source / "null", 0o20666, os.makedev(1, 3))
    (box.source / "sub").chmod(0o555)
    box.take()
    box.store.chmod(0o755)
    for path in box.store.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    out = box.directory / "out"
    out.mkdir()
    out.chmod(0o777)
    user = as_nobody()
    outcome = box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", out, "--json", user=user)
    assert outcome.code == 1, outcome.err
    top = out / "source"
    placed = [path for path in top.rglob("*") if not path.is_dir()]
    assert outcome.document["written_files"] == len(placed)
    assert (top / "theirs").read_bytes() == b"theirs"
    assert (top / "sub" / "file").read_bytes() == b"file"
    assert not (top / "theirs").stat().st_mode & 0o6000, "set-uid for another user than before"
    assert (top / "theirs").stat().st_uid == user
    assert (top / "sub" / "a").read_bytes() == b"linked"
    assert (top / "sub" / "b").read_bytes() == b"linked"
    assert inode(top / "sub" / "a") == inode(top / "sub" / "b")
    assert (top / "link").is_symlink()
    assert not (top / "null").exists()
    named = {one["path"] for one in outcome.document["failed"]}
    assert named == {str(box.source / "null")}, "what belongs to its restorer now is no failure"
    assert outcome.document["owner_refused"] > 0
    assert not any(".ciuic" in one for one in os.listdir(top))


@pytest.mark.root
def test_root_without_the_right_to_give_files_away_is_told_so_in_one_line(
    box: Box, tmp_path: Path
) -> None:
    """As in a container: the content is right, so the restore and a drill succeed."""
    for name in ("one", "two"):
        write(box.source / name, os.urandom(1000))
        os.chown(box.source / name, 65534, 65534)
    box.take()
    no_chown = ("setpriv", "--bounding-set", "-chown")
    arguments = ("--config", box.config, "restore", "-s", "latest", "-p", box.source)
    restored = ciuic(*arguments, "-d", tmp_path / "out", wrapper=no_chown)
    assert restored.code == 0, restored.err
    assert "2 paths had other owners" in restored.err
    assert "CAP_CHOWN" in restored.err
    assert len(restored.err.splitlines()) == 1
    drilled = ciuic("--config", box.config, "drill", "--json", wrapper=no_chown)
    assert drilled.code == 0, drilled.err
    assert drilled.document["files"] == 2


@pytest.mark.root
def test_an_ordinary_user_owns_the_files_of_others_that_it_restores(public_box: Box) -> None:
    """As with tar, cp and restic, it succeeds, and one line reports it."""
    box = public_box
    user = as_nobody()
    for name in ("a", "b"):
        write(box.source / name, b"theirs")
    box.take()
    box.store.chmod(0o755)
    for path in box.store.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    out = box.directory / "out"
    out.mkdir()
    out.chmod(0o777)
    outcome = box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", out, user=user)
    assert outcome.code == 0, outcome.err
    said = "ciuic: 3 paths had other owners and now belong to you; only root can restore the owner"
    assert outcome.err.splitlines() == [said]
    assert (out / "source" / "a").stat().st_uid == user


@pytest.mark.root
def test_an_owner_that_means_unchanged_to_the_kernel_is_named_and_not_passed_over(
    box: Box, tmp_path: Path
) -> None:
    """chown takes the ID 2**32-1 for "leave it": the file would silently belong to root."""
    box.take()
    entry = Entry(b"file", 0o100644, 0xFFFFFFFF, 0, 1, 1, 1)
    hostile(box, [entry], root=box.source)
    out = tmp_path / "out"
    what = ("-s", "cs-bad000", "-p", box.source / "file", "-d", out)
    outcome = box.ciuic("restore", *what)
    assert outcome.code == 1
    assert "owner 4294967295:0 not restored: the kernel has no such owner" in outcome.err


def test_an_ordinary_users_own_files_come_back_without_a_word(public_box: Box) -> None:
    box = public_box
    user = as_nobody()
    write(box.source / "sub" / "a", b"linked")
    os.link(box.source / "sub" / "a", box.source / "sub" / "b")
    write(box.source / "sub" / "c", b"read only").chmod(0o444)
    (box.source / "sub").chmod(0o555)
    if user is not None:
        for _, path, _ in walk(box.source):
            os.lchown(path, user, user)
    box.take()
    box.store.chmod(0o755)
    for path in box.store.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    out = box.directory / "out"
    out.mkdir()
    out.chmod(0o777)
    outcome = box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", out, "--json", user=user)
    assert outcome.document["failed"] == []
    assert outcome.code == 0
    assert_equal(box.source, out / "source")
    (box.source / "sub").chmod(0o755)
    (out / "source" / "sub").chmod(0o755)


# Interrupted


def leftovers(top: Path) -> list[bytes]:
    return [path for _, path, _ in walk(top) if b".ciuic-restore-" in path]


def end_in_the_middle(command: list[str | bytes | Path], out: Path, number: signal.Signals) -> int:
    """Start a restore and send it a signal as soon as a file is under way; its exit code."""
    process = subprocess.Popen(
        command, env=environment(), cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while process.poll() is None:
        try:
            found = leftovers(out) if out.exists() else []
        except FileNotFoundError:
            continue  # renamed while we looked
        if found:
            break
        assert time.monotonic() < deadline, "the restore does not begin"
    process.send_signal(number)
    return process.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_restore_that_is_asked_to_stop_leaves_nothing_behind(
    box: Box, tmp_path: Path, number: signal.Signals
) -> None:
    write(box.source / "large", os.urandom(60 * MIB))
    box.take()
    out = tmp_path / "out"
    command = [*CIUIC, "--config", box.config, "restore", "-s", "latest", "-p", box.source]
    code = end_in_the_middle([*command, "-d", out], out, number)
    assert code in {0, 128 + number}
    assert leftovers(out) == []
    if code:
        assert not (out / "source" / "large").exists()
    assert box.restore(to=out, overwrite=True).failed == []


@pytest.mark.parametrize("step", [1, 700, 2048, 4000, 4990])
def test_little_is_left_to_do_for_a_restore_that_is_asked_to_stop(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """It writes no other file, and removes the few that wait for their names."""
    for number in range(5000):
        write(box.source / f"{number % 7}" / f"{number}", b"%d" % number if number % 2 else b"")
    box.take()
    out = tmp_path / "out"
    written: list[bytes] = []
    waiting: list[int] = []
    completed, discarded = TemporaryFiles._complete, temporary_files.discard

    def counting(files: TemporaryFiles, file: temporary_files.Written) -> None:
        completed(files, file)
        written.append(file.job.path)
        waiting.append(len(files.written))

    removed: list[bytes] = []

    def removing(file: temporary_files.Written) -> None:
        removed.append(file.temporary)
        discarded(file)

    monkeypatch.setattr(TemporaryFiles, "_complete", counting)
    monkeypatch.setattr(temporary_files, "discard", removing)
    with open_store(str(box.store)) as store, pytest.raises(CancelledError):
        restore(
            store,
            store.manifest(box.snapshots()[0].id),
            RestoreRequest((os.fsencode(box.source),), destination=os.fsencode(out)),
            clock=box.clock,
            cancelled=lambda: len(written) >= step,
        )
    assert len(written) <= step + 8 * TOGETHER, "more than each thread's files under way"
    assert max(waiting) <= 2048
    assert len(removed) <= 2048
    assert leftovers(out) == []
    whole = [path for _, path, status in walk(out) if stat.S_ISREG(status.st_mode)]
    assert len(whole) == len(written) - len(removed)


def test_a_restore_that_deletes_or_links_ends_between_two_names(box: Box, tmp_path: Path) -> None:
    write(box.source / "first", b"x")
    for number in range(50):
        os.link(box.source / "first", box.source / f"link{number}")
    box.take()
    extra = tmp_path / "out" / "source" / "extra"
    for number in range(50):
        write(extra / f"{number}", b"")

    def names() -> int:
        return len(list((tmp_path / "out").rglob("link*"))) + 50 - len(list(extra.glob("*")))

    for done in (5, 70):
        with open_store(str(box.store)) as store, pytest.raises(CancelledError):
            restore(
                store,
                store.manifest(box.snapshots()[0].id),
                RestoreRequest(
                    (os.fsencode(box.source),),
                    destination=os.fsencode(tmp_path / "out"),
                    overwrite=True,
                    delete=True,
                ),
                clock=box.clock,
                cancelled=lambda done=done: names() >= done,
            )
        assert names() == done
    assert leftovers(tmp_path / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize("single", [True, False])
def test_a_killed_restore_leaves_files_old_or_new_and_can_be_run_again(
    box: Box, tmp_path: Path, single: bool
) -> None:
    for number in range(4):
        write(box.source / f"large{number}", os.urandom(12 * MIB))
    for number in range(50):
        write(box.source / "sub" / f"s{number}", os.urandom(1000))
    box.take()
    out = tmp_path / "out"
    path = box.source / "large0" if single else box.source
    options: list[str | bytes | Path] = [
        "--config",
        box.config,
        "restore",
        "-s",
        "latest",
        "-p",
        path,
        "-d",
        out,
        "--overwrite",
    ]
    end_in_the_middle([*CIUIC, *options], out, signal.SIGKILL)
    known = photograph(box.source)
    for inside, place, _ in walk(out):
        if b".ciuic-restore-" in place or not os.path.isfile(place):
            continue
        name = inside.removeprefix(b"source/")
        with (
            open(place, "rb") as new,
            open(os.path.join(os.fsencode(box.source), name), "rb") as it,
        ):
            assert new.read() == it.read()
    settle()
    assert box.ciuic(*options[2:]).code == 0
    assert leftovers(out) == []
    if not single:
        assert differences(known, photograph(out / "source")) == []
    else:
        assert (out / "large0").read_bytes() == path.read_bytes()


def test_a_restore_leaves_the_temporary_files_of_one_that_still_runs_alone(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    start = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    running = out / "source" / f".ciuic-restore-{os.getpid()}-{start}-{'0' * 16}"
    gone = out / "source" / f".ciuic-restore-{os.getpid()}-1-{'0' * 16}"
    running.write_bytes(b"half")
    gone.write_bytes(b"half")
    taken.restore(to=out, overwrite=True)
    assert running.exists()
    assert not gone.exists()


def test_a_killed_restore_that_its_parent_does_not_wait_for_leaves_nothing(
    taken: Box, tmp_path: Path
) -> None:
    """As in a container whose first process waits for no child."""
    out = tmp_path / "out"
    taken.restore(to=out)
    with subprocess.Popen(["sleep", "600"]) as zombie:
        status = Path(f"/proc/{zombie.pid}/stat")
        start = status.read_bytes().rpartition(b")")[2].split()[19].decode()
        half = out / "source" / f".ciuic-restore-{zombie.pid}-{start}-{'0' * 16}"
        half.write_bytes(b"half")
        try:
            taken.restore(to=out, overwrite=True)
            assert half.exists()
        finally:
            zombie.kill()
        wait_until("it is a zombie", lambda: status.read_bytes().rpartition(b")")[2][1:2] == b"Z")
        taken.restore(to=out, overwrite=True)
        assert not half.exists()


# Damage


def test_damage_costs_the_damaged_files_only_and_they_are_named(taken: Box, tmp_path: Path) -> None:
    flip_content(taken.store, (taken.source / "large").read_bytes()[MIB : 2 * MIB])
    outcome = taken.ciuic(
        "restore", "-s", "latest", "-p", taken.source, "-d", tmp_path / "out", "--no-hot", "--json"
    )
    assert outcome.code == 4
    assert [one["path"] for one in outcome.document["failed"]] == [str(taken.source / "large")]
    before = photograph(taken.source)
    del before[b"large"]
    assert differences(before, photograph(tmp_path / "out" / "source")) == []


def test_a_damaged_file_that_is_there_already_is_left_as_it_is(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    (out / "source" / "large").write_bytes(b"an older version")
    flip_content(taken.store, (taken.source / "large").read_bytes()[:MIB])
    report = taken.restore(to=out, overwrite=True)
    assert report.damaged
    assert (out / "source" / "large").read_bytes() == b"an older version"


def test_damage_in_the_store_does_not_matter_where_the_file_is_right_already(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    taken.restore(to=out)
    flip_content(taken.store, (taken.source / "large").read_bytes()[:MIB])
    report = taken.restore(to=out, overwrite=True)
    assert not report.damaged
    assert_equal(taken.source, out / "source")


@pytest.mark.parametrize("names", [1, 40])
def test_every_name_of_a_damaged_file_is_named(box: Box, tmp_path: Path, names: int) -> None:
    data = os.urandom(1000)
    write(box.source / "a", data)
    write(box.source / "fine", os.urandom(300_000))
    for number in range(names):
        os.link(box.source / "a", box.source / f"link{number}")
        write(box.source / f"copy{number}", data)
    box.take()
    flip_content(box.store, data)
    outcome = box.ciuic(
        "restore", "-s", "latest", "-p", box.source, "-d", tmp_path / "out", "--no-hot", "--json"
    )
    assert outcome.code == 4
    named = [one["path"] for one in outcome.document["failed"]]
    assert sorted(named) == sorted(str(one) for one in box.source.iterdir() if one.name != "fine")
    assert os.listdir(tmp_path / "out" / "source") == ["fine"]


def test_fallback_takes_the_newest_older_version_that_is_whole_and_says_so(
    box: Box, tmp_path: Path
) -> None:
    versions = [os.urandom(2 * MIB) for _ in range(3)]
    ids = []
    write(box.source / "other", b"other")
    for version in versions:
        write(box.source / "sub" / "model", version)
        ids.append(box.take().id)
    flip_content(box.store, versions[2][:MIB])
    out = tmp_path / "out"
    outcome = box.ciuic(
        "restore", "-s", "latest", "-p", box.source, "-d", out, "--fallback", "--no-hot", "--json"
    )
    assert outcome.code == 4
    assert outcome.document["failed"] == []
    assert (out / "source" / "sub" / "model").read_bytes() == versions[1]
    assert [one["path"] for one in outcome.document["notes"]] == [str(box.source / "sub" / "model")]
    assert ids[1] in outcome.document["notes"][0]["what"]
    assert (out / "source" / "other").read_bytes() == b"other"


def test_fallback_skips_versions_that_are_damaged_too(box: Box, tmp_path: Path) -> None:
    versions = [os.urandom(2 * MIB) for _ in range(3)]
    for version in versions:
        write(box.source / "model", version)
        box.take()
    flip_content(box.store, versions[2][:MIB])
    flip_content(box.store, versions[1][MIB:])
    report = box.restore(to=tmp_path / "out", fallback=True)
    assert report.failed == []
    assert (tmp_path / "out" / "source" / "model").read_bytes() == versions[0]


def test_fallback_with_nothing_older_names_the_path_once(box: Box, tmp_path: Path) -> None:
    data = os.urandom(2 * MIB)
    write(box.source / "model", data)
    box.take()
    write(box.source / "other", b"x")
    box.take()
    flip_content(box.store, data[:MIB])
    report = box.restore(to=tmp_path / "out", fallback=True)
    assert [one.path for one in report.failed] == [os.fsencode(box.source / "model")]


def test_fallback_puts_a_damaged_directory_back_from_the_older_snapshot(
    box: Box, tmp_path: Path
) -> None:
    write(box.source / "sub" / "file", b"file")
    write(box.source / "top", b"top")
    box.take()
    first = set(packs(box.store))
    write(box.source / "sub" / "new", b"new")
    second = box.take().id
    nodes = [one for one in packs(box.store) if one not in first]
    tree = box.entries(second)[os.fsencode(box.source / "sub")].content
    with open_store(str(box.store)) as store:
        place = store.reader.places([tree])[tree]
    assert any(one.name == place.pack_id.hex() for one in nodes)
    # Remove the whole node by hand: its frame may contain other nodes too.
    end = place.offset_bytes + place.frame_bytes
    flip_byte(box.store / "packs" / place.pack_id.hex(), end - 1)
    outcome = box.ciuic(
        "restore",
        "-s",
        second,
        "-p",
        box.source,
        "-d",
        tmp_path / "out",
        "--fallback",
        "--no-hot",
        "--json",
    )
    assert outcome.code == 4
    if (tmp_path / "out").exists():
        assert (tmp_path / "out" / "source" / "sub" / "file").read_bytes() == b"file"


def take_in_flux(box: Box, *paths: Path) -> str:
    """A snapshot while a program has these files open for writing."""
    with contextlib.ExitStack() as open_files:
        for path in paths:
            open_files.enter_context(path.open("r+b"))
        return box.take().id


@pytest.mark.parametrize("size", [5, 200_000, 2 * MIB])
def test_fallback_takes_a_file_that_was_being_written_from_the_newest_older_whole_version(
    box: Box, tmp_path: Path, size: int
) -> None:
    model = write(box.source / "sub" / "model", os.urandom(size))
    write(box.source / "sub" / "other", b"first")
    box.take()
    whole = write(model, os.urandom(size)).read_bytes()
    good = box.take()
    write(model, os.urandom(size))
    take_in_flux(box, model)
    write(box.source / "sub" / "other", b"last")
    write(model, os.urandom(size))
    take_in_flux(box, model)
    directory = photograph(box.source, holes=False)[b"sub"]
    out = tmp_path / "out"
    arguments = ("restore", "-s", "latest", "-p", box.source, "-d", out, "--overwrite", "--json")
    warned = box.ciuic(*arguments)
    assert warned.code == 3
    assert warned.document["flux"] == [str(model)]
    assert "in flux" in warned.document["notes"][0]["what"]
    assert (out / "source" / "sub" / "model").read_bytes() == model.read_bytes()
    helped = box.ciuic(*arguments, "--fallback")
    assert helped.code == 0
    assert helped.document["failed"] == helped.document["flux"] == []
    [note] = helped.document["notes"]
    assert note["path"] == str(model)
    assert f"taken from {good.id}" in note["what"]
    assert (out / "source" / "sub" / "model").read_bytes() == whole
    assert (out / "source" / "sub" / "other").read_bytes() == b"last"
    assert photograph(out / "source", holes=False)[b"sub"] == directory


def test_fallback_without_a_whole_version_restores_the_file_that_was_being_written_and_warns(
    box: Box, tmp_path: Path
) -> None:
    model = write(box.source / "model", os.urandom(MIB))
    take_in_flux(box, model)
    write(model, os.urandom(MIB))
    take_in_flux(box, model)
    helped = box.ciuic(
        "restore",
        "-s",
        "latest",
        "-p",
        model,
        "-d",
        tmp_path / "out",
        "--fallback",
        "--no-hot",
        "--json",
    )
    assert helped.code == 3
    assert helped.document["flux"] == [str(model)]
    assert (tmp_path / "out" / "model").read_bytes() == model.read_bytes()


def test_fallback_from_a_damaged_store_prefers_whole_versions(box: Box, tmp_path: Path) -> None:
    model = write(box.source / "model", os.urandom(MIB))
    first = model.read_bytes()
    good = box.take()
    write(model, os.urandom(MIB))
    take_in_flux(box, model)
    last = write(model, os.urandom(MIB)).read_bytes()
    box.take()
    flip_content(box.store, last)
    helped = box.ciuic(
        "restore",
        "-s",
        "latest",
        "-p",
        model,
        "-d",
        tmp_path / "out",
        "--fallback",
        "--no-hot",
        "--json",
    )
    assert helped.code == 4
    assert [good.id in one["what"] for one in helped.document["notes"]] == [True]
    assert (tmp_path / "out" / "model").read_bytes() == first


def test_fallback_skips_damaged_older_versions_of_a_file_that_was_being_written(
    box: Box, tmp_path: Path
) -> None:
    versions = [os.urandom(MIB) for _ in range(3)]
    model = box.source / "model"
    for version in versions[:2]:
        write(model, version)
        box.take()
    write(model, versions[2])
    take_in_flux(box, model)
    flip_content(box.store, versions[1])
    report = box.restore(to=tmp_path / "out", fallback=True)
    assert (report.failed, report.flux, report.damaged) == ([], [], True)
    assert (tmp_path / "out" / "source" / "model").read_bytes() == versions[0]


def test_fallback_keeps_hard_links_of_files_that_were_being_written(
    box: Box, tmp_path: Path
) -> None:
    model = write(box.source / "model", os.urandom(MIB))
    os.link(model, box.source / "model too")
    box.take()
    before = photograph(box.source)
    with model.open("r+b") as file:
        file.write(b"torn")
        file.flush()
        box.take()
    report = box.restore(to=tmp_path / "out", fallback=True)
    assert report.failed == []
    found = photograph(tmp_path / "out" / "source")
    assert differences(before, found) == []


def test_a_dry_run_of_fallback_counts_files_that_were_being_written(box: Box) -> None:
    model = write(box.source / "model", os.urandom(MIB))
    box.take()
    write(model, os.urandom(MIB))
    take_in_flux(box, model)
    before = status_tree(box.source)
    foretold = box.restore(overwrite=True, dry_run=True, fallback=True)
    assert status_tree(box.source) == before
    done = box.restore(overwrite=True, fallback=True)
    assert (foretold.written_files, foretold.written_bytes) == (done.written_files, MIB)
    assert [one.what for one in foretold.notes] == [one.what for one in done.notes]


def test_a_dry_run_of_fallback_into_a_new_place_is_right(box: Box, tmp_path: Path) -> None:
    model = write(box.source / "sub" / "model", os.urandom(MIB))
    box.take()
    write(model, os.urandom(MIB))
    take_in_flux(box, model)
    out = tmp_path / "out"
    out.mkdir()
    foretold = box.restore(to=out, dry_run=True, fallback=True)
    assert list(out.iterdir()) == []
    done = box.restore(to=out, fallback=True)
    assert (foretold.written_files, foretold.written_bytes) == (done.written_files, MIB)
    assert foretold.notes == done.notes


# Disks that cannot be read


def failing(box: Box, pack: Path, when: str, *arguments: str | Path) -> Outcome:
    """Run a command whose reads of a pack fail: strace injects the errors."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    wrapper = strace("pread64", "-P", str(pack), inject=f"error=EIO:when={when}")
    return ciuic("--config", box.config, *arguments, wrapper=wrapper)


@pytest.mark.parametrize("when", ["1+", "3+", "2+3"])
def test_a_sector_that_cannot_be_read_costs_the_files_that_lie_on_it(
    box: Box, tmp_path: Path, when: str
) -> None:
    for number in range(6):
        write(box.source / f"file {number}", os.urandom(2 * MIB))
    for number in range(4):
        write(box.source / f"small {number}", os.urandom(50_000))
    write(box.source / "empty", b"")
    (box.source / "link").symlink_to("empty")
    box.take()
    pack = pack_of(box.store, (box.source / "small 0").read_bytes())
    out = tmp_path / "out"
    arguments = ("restore", "-s", "latest", "-p", box.source, "-d", out, "--no-hot", "--json")
    outcome = failing(box, pack, when, *arguments)
    named = {Path(one["path"]).name for one in outcome.document["failed"]}
    assert outcome.code == (4 if named else 0), outcome.err
    # A chunk is read again after a read that failed: if that succeeds, it costs nothing.
    assert named or when == "2+3"
    assert all(one["what"] for one in outcome.document["failed"])
    for path in box.source.iterdir():
        assert (path.name in named) != os.path.lexists(out / "source" / path.name)
    for path in (out / "source").iterdir():
        assert path.read_bytes() == (box.source / path.name).read_bytes()
    # The disk works again.
    assert box.ciuic(*arguments, "--overwrite").code == 0
    assert_equal(box.source, out / "source")


def test_verify_names_each_path_that_the_disk_cannot_read(box: Box) -> None:
    for number in range(4):
        write(box.source / f"file {number}", os.urandom(2 * MIB))
    box.take()
    pack = pack_of(box.store, (box.source / "file 0").read_bytes()[:MIB])
    outcome = failing(box, pack, "1+", "verify", "--checksum", "--json")
    assert outcome.code == 4, outcome.err
    [snapshot] = outcome.document["snapshots"]
    named = sorted(one["path"] for one in snapshot["damaged"])
    assert named == sorted(str(one) for one in box.source.iterdir())


def test_a_restore_names_paths_that_could_not_be_read_when_the_snapshot_was_taken(
    live_box: Box, tmp_path: Path
) -> None:
    first = write(live_box.source / "victim", b"first version")
    live_box.take()
    first.write_bytes(b"second version, longer")
    with open_store(str(live_box.store)):
        pass

    def turn() -> bool:
        if first.is_file() and not first.is_symlink():
            asked.append(1)
            if len(asked) == 2:
                first.unlink()
                first.mkdir()
        return False

    asked: list[int] = []
    report = live_box.take(cancelled=turn)
    assert report.trouble_count == 1
    back = live_box.restore(to=tmp_path / "out")
    assert [one.path for one in back.failed] == [os.fsencode(first)]
    helped = live_box.restore(to=tmp_path / "fallback", fallback=True)
    assert helped.failed == []
    assert (tmp_path / "fallback" / "source" / "victim").read_bytes() == b"first version"


@pytest.mark.slow
def test_everything_can_be_restored_without_a_sound_chunk_index(taken: Box, tmp_path: Path) -> None:
    catalog = taken.store / "catalog.sqlite"
    good = catalog.read_bytes()
    damages = {
        "gone": None,
        "garbage": os.urandom(len(good)),
        "torn": good[: len(good) // 2],
        "pages": good[:4096] + os.urandom(len(good) - 4096),
        "a text": b"not a database at all",
    }
    for name, damaged in damages.items():
        if damaged is None:
            catalog.unlink()
        else:
            catalog.write_bytes(damaged)
        listed = taken.ciuic("list", "--json")
        assert listed.code == 0, (name, listed.err)
        assert len(listed.document) == 1, name
        out = tmp_path / f"out {name}"
        back = taken.ciuic("restore", "-s", "latest", "-p", taken.source, "-d", out)
        assert back.code == 0, (name, back.err)
        assert_equal(taken.source, out / "source")
        assert taken.ciuic("verify", "--checksum").code == 0, name
        assert taken.ciuic("snapshot").code == 0, name
        with open_store(str(taken.store), write=True) as store:
            store.trash.forget([one.id for one in taken.snapshots()[:-1]], 1)


# Resources


@pytest.mark.root
def test_a_closed_store_lets_its_disk_be_unmounted(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "mount", size_mib=16) as mounted:
        import gc

        box = Box(mounted)
        write(box.source / "file", b"x")
        gc.disable()
        try:
            box.take()
            box.verify()
            box.restore(to=tmp_path / "out")
            opened = [
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if os.path.lexists(f"/proc/self/fd/{fd}")
            ]
        finally:
            gc.enable()
        assert [one for one in opened if one.startswith(str(mounted))] == []


def with_few_descriptors(box: Box, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command that may open 256 files at a time."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    return subprocess.run(
        [*CIUIC, "--config", box.config, *arguments],
        env=environment(),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )


def test_a_restore_needs_no_more_descriptors_than_a_usual_limit_allows(
    box: Box, tmp_path: Path
) -> None:
    for number in range(400):
        write(box.source / f"d{number}" / "file", b"%d" % number)
    box.take()
    out = tmp_path / "out"
    done = with_few_descriptors(box, "restore", "-s", "latest", "-p", box.source, "-d", out)
    assert done.returncode == 0, done.stderr[-1000:]
    assert_equal(box.source, out / "source")


@pytest.mark.parametrize("place", ["d{}/file", "d/file{}"], ids=["directories", "files"])
def test_a_fallback_needs_no_more_descriptors_either(box: Box, tmp_path: Path, place: str) -> None:
    """For any number of paths from an older snapshot. It changes no times either."""
    files = [box.source / place.format(number) for number in range(400)]
    for version in (b"older", b"newer"):
        for number, file in enumerate(files):
            write(file, version + b"%d" % number)
        box.take()
    pack_of(box.store, b"newer0").unlink()
    out = tmp_path / "out"
    arguments = ("-s", "latest", "-p", box.source, "-d", out, "--fallback", "--no-hot")
    done = with_few_descriptors(box, "restore", *arguments)
    assert done.returncode == 4, done.stderr[-1000:]
    for number, file in enumerate(files):
        restored = out / "source" / file.relative_to(box.source)
        assert restored.read_bytes() == b"older%d" % number
        assert restored.parent.stat().st_mtime_ns == file.parent.stat().st_mtime_ns


def test_the_request_of_a_library_user_is_checked(taken: Box) -> None:
    with open_store(str(taken.store)) as store:
        manifest = store.manifest(taken.snapshots()[0].id)
        with pytest.raises(CiuicError):
            restore(store, manifest, RestoreRequest(()), clock=taken.clock)
