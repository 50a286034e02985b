"""Failures after the commit of a snapshot: the snapshot exists and is reported."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciuic.cli import main
from ciuic.errors import CommitUncertainError, StoreError
from ciuic.snapshot import take as take_module
from ciuic.source.freeze.freezer import Freezer
from ciuic.source.freeze.places import frozen_snapshots
from ciuic.store.snapshots.copies import ManifestCopies
from ciuic.store.store import open_store
from ciuic.system import durable
from ciuicd.control import Job
from tests.kit.box import Box
from tests.kit.filesystems import disk


@pytest.fixture
def filled(box: Box) -> Box:
    box.parity = 0.04
    (box.source / "file").write_bytes(os.urandom(3000))
    box.take()
    (box.source / "file").write_bytes(os.urandom(3000))
    return box


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("where", "name"), [(Freezer, "retain"), (ManifestCopies, "keep"), (take_module, "remember")]
)
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), StoreError("the disk is on fire"), OSError(5, "Input/output error")],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_after_the_commit_is_reported_as_a_note(
    filled: Box,
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    error: BaseException,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(where, name, failing(error))
        report = filled.take()
    assert report.id in [one.id for one in filled.snapshots()]
    (note,) = report.notes
    assert report.id in note.what
    assert (str(error) or "interrupted") in note.what
    assert report.trouble_count == 0
    assert report.as_json()["notes"][0]["what"] == note.what
    assert filled.verify().ok


def test_the_note_is_shown_and_the_command_succeeds(
    filled: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Freezer, "retain", failing(KeyboardInterrupt()))
    monkeypatch.setattr("sys.argv", ["ciuic", "--config", str(filled.config), "snapshot"])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 0
    assert shown.out.strip() in [one.id for one in filled.snapshots()]
    assert "older reflink copies could not be removed: interrupted" in shown.err


@pytest.fixture
def on_xfs(tmp_path: Path) -> Iterator[Box]:
    with disk("xfs", tmp_path, size_mib=320) as mounted:
        box = Box(mounted.path)
        (box.source / "model.pt").write_bytes(os.urandom(100_000))
        yield box


@pytest.mark.root
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_frozen_copies_stay_for_a_snapshot_that_the_disk_did_not_confirm(
    on_xfs: Box, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    first = on_xfs.take()
    (on_xfs.source / "model.pt").write_bytes(os.urandom(100_000))
    sync = durable.sync_directory

    def fail_at_commit(path: str) -> None:
        if path.endswith("/snapshots"):
            raise error(5, "Input/output error")
        sync(path)

    monkeypatch.setattr(durable, "sync_directory", fail_at_commit)
    with pytest.raises(CommitUncertainError) as raised:
        on_xfs.take()
    second = on_xfs.snapshots()[0]
    assert second.id != first.id
    assert second.id in raised.value.message
    assert second.id in raised.value.hint
    del raised  # its traceback holds files of the disk open
    with open_store(str(on_xfs.store)) as store:
        (found,) = frozen_snapshots(store.header.store_id, [os.fsencode(on_xfs.source)])
    assert set(found[1]) == {first.id, second.id}


def test_what_fails_before_the_commit_still_leaves_nothing(
    filled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [one.id for one in filled.snapshots()]
    monkeypatch.setattr(durable, "publish", failing(OSError(5, "Input/output error")))
    with pytest.raises(StoreError) as raised:
        filled.take()
    assert not isinstance(raised.value, CommitUncertainError)
    assert [one.id for one in filled.snapshots()] == before


def test_the_client_of_a_daemon_gets_the_first_outcome() -> None:
    """What fails after a snapshot was reported does not take the report back."""
    job = Job()
    first, second = StoreError("first"), StoreError("second")
    job.finish(first)
    job.finish(second)
    assert job.wait(0) is first


def test_a_snapshot_that_is_brought_back_is_listed_although_its_file_stays_in_the_trash(
    filled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.take()
    gone = filled.snapshots()[-1].id
    with open_store(str(filled.store), write=True) as store:
        store.trash.forget([gone], 1)
        monkeypatch.setattr(
            "ciuic.store.snapshots.trash_files.TrashFiles.remove", failing(StoreError("on fire"))
        )
        assert store.trash.bring_back(gone).summary.id == gone
        assert store.trash.ids() == []
    assert gone in [one.id for one in filled.snapshots()]
