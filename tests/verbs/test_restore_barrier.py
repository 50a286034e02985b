"""A restore gives thousands of files their names together, but only after a sync."""

import errno
import os
import stat
from pathlib import Path

import pytest

from ciuic.errors import TargetError
from ciuic.restore.place.temporary_files import TemporaryFiles, Written
from ciuic.system import durable
from tests.kit.box import Box
from tests.kit.trees import differences, photograph, walk

FILES = 4500
"""More than two barriers."""


@pytest.fixture
def many(box: Box) -> Box:
    """A snapshot of many small files, some of them empty, and of a hard link among them."""
    for number in range(FILES):
        path = box.source / f"{number % 3}" / f"{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"%d" % number if number % 2 else b"")
    os.link(box.source / "0" / "0", box.source / "1" / "link")
    box.take()
    return box


def leftovers(top: Path) -> list[bytes]:
    return [path for _, path, _ in walk(top) if b".ciuic-restore-" in path]


def test_a_file_gets_its_name_only_after_a_sync_that_began_when_it_was_complete(
    many: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete: set[bytes] = set()
    synced: set[bytes] = set()
    early: list[bytes] = []
    completed, sync, publish = (
        TemporaryFiles._complete,
        durable.sync_file_system,
        durable.publish_names,
    )

    def noted_complete(files: TemporaryFiles, file: Written) -> None:
        complete.add(file.temporary)
        completed(files, file)

    def noted_sync(fd: int) -> None:
        before = set(complete)
        sync(fd)
        synced.update(before)

    def noted_publish(names: list[tuple[int, bytes, bytes]]) -> tuple[int, int]:
        early.extend(temporary for _, temporary, _ in names if temporary not in synced)
        return publish(names)

    monkeypatch.setattr(TemporaryFiles, "_complete", noted_complete)
    monkeypatch.setattr(durable, "sync_file_system", noted_sync)
    monkeypatch.setattr(durable, "publish_names", noted_publish)
    report = many.restore(to=many.directory / "out")

    assert report.failed == []
    assert early == []
    found = photograph(many.directory / "out" / "source")
    assert differences(photograph(many.source), found) == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENODATA])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_sync_that_fails_ends_the_restore_and_leaves_no_temporary_file(
    many: Box, monkeypatch: pytest.MonkeyPatch, failing: int, error: int
) -> None:
    sync, calls = durable.sync_file_system, []

    def sync_or_fail(fd: int) -> None:
        calls.append(fd)
        # Once: the kernel reports a failed write to one sync, and the next one succeeds.
        if len(calls) == failing:
            raise OSError(error, os.strerror(error))
        sync(fd)

    monkeypatch.setattr(durable, "sync_file_system", sync_or_fail)
    out = many.directory / "out"
    with pytest.raises(TargetError, match=os.strerror(error)):
        many.restore(to=out)

    assert leftovers(out) == []
    named = [path for _, path, status in walk(out) if stat.S_ISREG(status.st_mode)]
    assert (len(named) > 0) == (failing > 1), "what was synced before has its name"
    assert len(named) < FILES
    monkeypatch.undo()
    assert many.restore(to=out, overwrite=True).failed == []
