"""Failures after the commit of a snapshot: the snapshot exists and is reported."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciuic.catalog import remember
from ciuic.cli import main
from ciuic.errors import CommitUncertainError, StoreError
from ciuic.model import SnapshotSummary
from ciuic.snapshot import take as take_module
from ciuic.source.freeze.freezer import Freezer
from ciuic.source.freeze.places import frozen_snapshots
from ciuic.store.directory.folder import Folder
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.packs import writer
from ciuic.store.records import layout
from ciuic.store.snapshots.copies import ManifestCopies
from ciuic.store.store import Store, open_store
from ciuic.system import durable
from ciuicd.jobs.job import Job
from tests.kit.box import Box
from tests.kit.damage import packs
from tests.kit.filesystems import disk
from tests.kit.program import ciuic
from tests.kit.strace import strace


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
    # Otherwise it would stay lowered for all later tests in this process.
    monkeypatch.setattr("ciuic.cli.taking.lower_priority", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 0
    assert shown.out.strip() in [one.id for one in filled.snapshots()]
    assert "older reflink copies could not be removed: interrupted" in shown.err


# The chunk index


def recorded_packs(box: Box) -> set[str]:
    """Names of the packs that the chunk index has on the disk."""
    index = ChunkIndex(str(box.store / layout.CATALOG), write=False)
    try:
        return {pack_id.hex() for pack_id in index.packs()}
    finally:
        index.close()


def test_a_small_snapshot_changes_the_chunk_index_in_one_transaction(
    filled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction costs three syncs, a quarter of all that such a snapshot makes."""
    transactions: list[bool] = []
    commit = ChunkIndex.commit

    def counted(self: ChunkIndex) -> None:
        transactions.append(self._db.in_transaction)
        commit(self)

    monkeypatch.setattr(ChunkIndex, "commit", counted)
    report = filled.take()

    assert report.new_bytes == 3000
    assert sum(transactions) == 1
    assert recorded_packs(filled) == {path.name for path in packs(filled.store)}


def test_a_small_snapshot_makes_only_the_syncs_that_its_promises_need(
    filled: Box, tmp_path: Path
) -> None:
    """docs/guarantees.md, G16, lists the purpose of each."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    filled.configure()
    trace = tmp_path / "trace"
    wrapper = strace("fsync,fdatasync", "-y", to=trace)
    done = ciuic("--config", filled.config, "snapshot", wrapper=wrapper)
    assert done.code == 0, done.err

    synced = re.findall(r"\bf(?:data)?sync\(\d+<([^>]*)>", trace.read_text())
    store = os.path.realpath(filled.store)
    inside = [os.path.relpath(path, store) for path in synced if path.startswith(store)]
    assert [re.sub("-[0-9a-f]{16}$", "", path) for path in inside] == [
        *("tmp/parity", "tmp/pack", "parity", "packs"),
        *("tmp/file", "snapshots"),
        *("tmp/file", "parity"),
        *("catalog.sqlite-journal", ".", "catalog.sqlite"),
    ]


def test_a_snapshot_of_many_packs_does_not_leave_their_rows_to_the_end(
    filled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_WAITING_PACKS", 0)
    monkeypatch.setattr(take_module, "remember", lambda *_: None)
    filled.take()

    assert recorded_packs(filled) == {path.name for path in packs(filled.store)}


def test_a_run_that_is_killed_before_its_index_rows_are_durable_loses_nothing(
    filled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(take_module, "remember", lambda *_: None)
        report = filled.take()
    assert recorded_packs(filled) < {path.name for path in packs(filled.store)}

    assert report.id in [one.id for one in filled.snapshots()]
    assert filled.verify().ok
    assert filled.read(filled.source / "file") == (filled.source / "file").read_bytes()
    # The next writer finds the chunks in the pack.
    assert filled.take(base=True).new_bytes == 0
    assert recorded_packs(filled) == {path.name for path in packs(filled.store)}
    assert filled.verify().ok


def test_a_reader_that_comes_before_the_index_rows_reads_the_snapshot(
    filled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def read_first(store: Store, summary: SnapshotSummary) -> StoreError | None:
        assert filled.verify().ok
        seen.append(filled.read(filled.source / "file", summary.id))
        return remember(store, summary)

    monkeypatch.setattr(take_module, "remember", read_first)
    filled.take()

    assert seen == [(filled.source / "file").read_bytes()]


# Reflink copies


@pytest.fixture
def on_xfs(tmp_path: Path) -> Iterator[Box]:
    with disk("xfs", tmp_path, size_mib=320) as mounted:
        box = Box(mounted.path)
        (box.source / "model.pt").write_bytes(os.urandom(100_000))
        yield box


@pytest.mark.root
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_reflink_copies_stay_for_a_snapshot_that_the_disk_did_not_confirm(
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


def test_a_failure_before_the_commit_leaves_no_snapshot(
    filled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [one.id for one in filled.snapshots()]
    monkeypatch.setattr(durable, "publish", failing(OSError(5, "Input/output error")))
    with pytest.raises(StoreError) as raised:
        filled.take()
    assert not isinstance(raised.value, CommitUncertainError)
    assert [one.id for one in filled.snapshots()] == before


def test_the_client_of_a_daemon_gets_the_first_outcome() -> None:
    """A failure after a snapshot was reported does not take the report back."""
    job = Job()
    first, second = StoreError("first"), StoreError("second")
    job.finish(first)
    job.finish(second)
    assert job.wait(0) is first


def test_a_snapshot_is_forgotten_and_brought_back_although_no_mark_can_be_copied(
    filled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.take()
    gone = filled.snapshots()[-1].id
    with open_store(str(filled.store), write=True) as store:
        store.manifests.copies.keep(gone, store.header)
        for name in ("put_all", "make_and_replace"):
            monkeypatch.setattr(Folder, name, failing(StoreError("on fire")))
        store.trash.forget([gone], 1)
        assert store.trash.ids() == [gone]
        assert store.trash.bring_back(gone).summary.id == gone
        assert store.trash.ids() == []
    assert gone in [one.id for one in filled.snapshots()]
