"""``ciuic checkout`` saves all that it replaces, or refuses: files, links and metadata."""

import os
import shutil
from pathlib import Path

import pytest

from ciuic.errors import TargetError
from ciuic.restore import restore as restoring
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.box import Box
from tests.kit.filesystems import tmpfs
from tests.kit.program import NOBODY
from tests.kit.trees import photograph

PRECIOUS = b"precious"


@pytest.fixture
def taken(box: Box) -> Box:
    (box.source / "a").write_bytes(b"first")
    (box.source / "b").write_bytes(b"second")
    (box.source / "sub").mkdir()
    (box.source / "sub" / "s").write_bytes(b"inner")
    box.take()
    return box


def put_file(place: Path) -> None:
    place.write_bytes(PRECIOUS)


def put_link_to_file(place: Path) -> None:
    place.with_name("elsewhere").write_bytes(PRECIOUS)
    place.symlink_to("elsewhere")


@pytest.mark.parametrize("put", [put_file, os.mkfifo, put_link_to_file])
@pytest.mark.parametrize("option", [(), ("--delete",), ("--dry-run",)])
def test_what_has_the_place_of_a_root_is_refused(taken: Box, put, option) -> None:
    shutil.rmtree(taken.source)
    put(taken.source)
    before = photograph(taken.directory)

    outcome = taken.ciuic("checkout", "latest", taken.source, *option)

    assert outcome.code == 1
    assert f"{taken.source} is not a directory now, so a snapshot cannot save" in outcome.err
    assert "Move it away, and try again." in outcome.err
    assert photograph(taken.directory) == before


def test_a_symlink_below_the_root_is_refused_on_the_way_and_replaced_by_its_name(
    taken: Box,
) -> None:
    sub, other = taken.source / "sub", taken.directory / "other"
    shutil.rmtree(sub)
    other.mkdir()
    (other / "s").write_bytes(PRECIOUS)
    sub.symlink_to("../other")
    before = photograph(taken.directory)

    for option in ((), ("--dry-run",)):
        outcome = taken.ciuic("checkout", "latest", sub / "s", *option)
        assert outcome.code == 1
        assert f"{sub} is a symlink now" in outcome.err
        assert f"cannot save {other / 's'}" in outcome.err
        assert photograph(taken.directory) == before

    outcome = taken.ciuic("checkout", "latest", sub)
    assert outcome.code == 0, outcome.err
    assert (sub / "s").read_bytes() == b"inner"
    assert (other / "s").read_bytes() == PRECIOUS


@pytest.mark.parametrize("path", [".", "sub/s"])
def test_what_comes_after_the_check_is_not_replaced_either(
    taken: Box, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    other = taken.directory / "other"
    other.mkdir()
    (other / "s").write_bytes(PRECIOUS)

    def swap(*_) -> list:
        if path == "sub/s":
            shutil.rmtree(taken.source / "sub")
            (taken.source / "sub").symlink_to("../other")
        else:
            shutil.rmtree(taken.source)
            taken.source.write_bytes(PRECIOUS)
        return []

    monkeypatch.setattr(restoring, "space_warnings", swap)
    request = RestoreRequest(
        (os.fsencode(taken.source / path),), overwrite=True, stays_in_roots=True
    )
    with open_store(str(taken.store)) as store:
        manifest = store.manifest(taken.snapshots()[0].id)
        if path == "sub/s":
            with pytest.raises(TargetError, match="Not a directory"):
                restore(store, manifest, request, clock=SystemClock())
            assert (other / "s").read_bytes() == PRECIOUS
        else:
            report = restore(store, manifest, request, clock=SystemClock())
            assert [failure.what for failure in report.failed] == ["Not a directory"]
            assert taken.source.read_bytes() == PRECIOUS


def test_metadata_alone_is_saved_and_counted(taken: Box) -> None:
    good = photograph(taken.source)
    os.setxattr(taken.source / "a", "user.x", b"mine")
    (taken.source / "b").chmod(0o600)
    taken.source.chmod(0o711)
    mine = photograph(taken.source)

    planned = taken.ciuic("checkout", "latest", taken.source, "--dry-run")
    assert "would take a snapshot of what is there" in planned.out
    assert "would write 0 files (0 B), keep 3, correct the metadata of 3 paths" in planned.out
    assert photograph(taken.source) == mine
    done = taken.ciuic("checkout", "latest", taken.source)
    assert "wrote 0 files (0 B), kept 3, corrected the metadata of 3 paths" in done.out
    assert photograph(taken.source) == good
    again = taken.ciuic("checkout", "latest", taken.source, "--json").document
    assert again["before"] is None
    assert again["restore"]["corrected"] == 0

    back = taken.ciuic("checkout", "before-checkout", taken.source)
    assert back.code == 0, back.err
    assert photograph(taken.source) == mine


def test_a_file_that_an_empty_directory_replaces_is_saved_and_counted(box: Box) -> None:
    (box.source / "empty").mkdir()
    os.utime(box.source, ns=(10**18, 10**18))
    box.take()
    (box.source / "empty").rmdir()
    (box.source / "empty").write_bytes(PRECIOUS)
    os.utime(box.source, ns=(10**18, 10**18))

    planned = box.ciuic("checkout", "latest", box.source, "--dry-run", "--json").document
    done = box.ciuic("checkout", "latest", box.source, "--json").document

    assert planned["restore"]["would_delete"] == [str(box.source / "empty")]
    assert planned["restore"]["deleted_files"] == done["restore"]["deleted_files"] == 1
    assert box.read(box.source / "empty", done["before"]["id"]) == PRECIOUS


def test_a_missing_root_counts_the_same_in_a_dry_run(taken: Box) -> None:
    shutil.rmtree(taken.source)

    planned = taken.ciuic("checkout", "latest", taken.source, "--dry-run")
    done = taken.ciuic("checkout", "latest", taken.source)

    assert "would take" not in planned.out
    assert "would write 3 files (16 B), keep 0, " in planned.out
    assert "wrote 3 files (16 B), kept 0, " in done.out
    assert "metadata" not in planned.out + done.out
    assert len(taken.snapshots()) == 1


@pytest.mark.root
def test_a_full_disk_leaves_the_name_of_what_was_saved(tmp_path: Path) -> None:
    box = Box(tmp_path)
    with tmpfs(box.source, size_mib=4) as source:
        source.joinpath("big").write_bytes(os.urandom(3 << 20))
        box.take()
        source.joinpath("big").write_bytes(b"small")
        source.joinpath("fill").write_bytes(bytes(2 << 20))

        outcome = box.ciuic("checkout", "latest", source, "--json")

        assert outcome.code == 1
        assert "No space left" in outcome.err
        before = outcome.document["before"]["id"]
        assert outcome.document["restore"]["written_files"] == 0
        assert {one.id: one.tags for one in box.snapshots()}[before] == ("before-checkout",)
        assert f"{before}: what was there before" in outcome.err
        hint = outcome.document["error"]["hint"]
        assert "free space there" in hint
        assert "restore -s ID -p PATH -d DIR'" in hint
        assert "restore' with --overwrite" in hint


@pytest.mark.root
def test_a_file_that_the_user_may_not_read_is_a_matter_of_rights(public_box: Box) -> None:
    box = public_box
    (box.source / "a").write_bytes(b"first")
    box.take()
    (box.source / "a").write_bytes(PRECIOUS)
    (box.source / "a").chmod(0o600)
    for path in (box.store, *box.store.rglob("*")):
        os.chown(path, NOBODY, NOBODY)

    outcome = box.ciuic("checkout", "latest", box.source, user=NOBODY)

    assert outcome.code == 1
    assert "could not be read: Permission denied; nothing was restored" in outcome.err
    assert "Run it as a user who may read there" in outcome.err
    assert "Stop the program" not in outcome.err
    assert (box.source / "a").read_bytes() == PRECIOUS
