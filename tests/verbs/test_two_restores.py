"""Two restores to one target at the same time."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.errors import TargetError
from ciuic.restore import holds
from ciuic.restore.report import RestoreReport
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.mounted import wait_for
from tests.kit.program import CIUIC, environment
from tests.kit.trees import photograph

FILES = 40


@pytest.fixture
def versions(box: Box) -> tuple[Box, list[str]]:
    """Two snapshots, whose files all differ."""
    found = []
    for version in range(2):
        for number in range(FILES):
            (box.source / f"file {number}").write_text(f"version {version}")
        found.append(str(box.take().id))
    return box, found


def versions_in(directory: Path) -> set[str]:
    return {path.read_text() for path in directory.iterdir()}


def restore_and_meanwhile(
    box: Box, snapshot: str, meanwhile: Callable[[], object], *paths: Path, **request: object
) -> RestoreReport:
    """Restore, and do something else once, when the restore is in its first directory."""
    waiting = [meanwhile]

    def cancelled() -> bool:
        if waiting:
            waiting.pop()()
        return False

    asked = RestoreRequest(
        tuple(map(os.fsencode, paths or (box.source,))),
        hot=False,
        **request,  # type: ignore[arg-type]
    )
    with open_store(str(box.store)) as store:
        manifest = store.manifest(find_snapshot(store, snapshot).id)
        report = restore(store, manifest, asked, clock=box.clock, cancelled=cancelled)
    assert not waiting
    return report


@pytest.mark.parametrize("where", ["in place", "elsewhere"])
def test_a_second_restore_into_a_directory_is_refused_and_the_first_ends_right(
    versions: tuple[Box, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    box, (old, new) = versions
    out = None if where == "in place" else tmp_path / "out"
    target = box.source if out is None else out / box.source.name
    destination = None if out is None else os.fsencode(out)
    refusals = []

    def again() -> None:
        with pytest.raises(TargetError) as refused:
            box.restore(snapshot=new, to=out, overwrite=True)
        refusals.append(refused.value.message)

    monkeypatch.setattr(holds, "_WAIT_S", 0.1)
    report = restore_and_meanwhile(box, old, again, destination=destination, overwrite=True)
    first = versions_in(target)
    box.restore(snapshot=new, to=out, overwrite=True)

    assert refusals == [f"another restore is at work in {target}; nothing was changed"]
    assert report.written_files == FILES
    assert first == {"version 0"}
    assert versions_in(target) == {"version 1"}


def test_a_second_restore_waits_for_the_first_and_leaves_no_mixture(
    versions: tuple[Box, list[str]], tmp_path: Path
) -> None:
    box, (old, new) = versions
    out = tmp_path / "out"
    words = ["restore", "-s", new, "-p", str(box.source), "-d", str(out), "--overwrite"]
    second: list[subprocess.Popen[bytes]] = []

    def again() -> None:
        command = [*CIUIC, "--config", str(box.config), *words]
        second.append(subprocess.Popen(command, env=environment(), cwd="/"))
        wait_for(lambda: is_waiting(second[0].pid, out / box.source.name), "it does not wait")

    report = restore_and_meanwhile(box, old, again, destination=os.fsencode(out))

    assert report.written_files == FILES
    assert second[0].wait(120) == 0
    assert versions_in(out / box.source.name) == {"version 1"}


def is_waiting(pid: int, directory: Path) -> bool:
    """Return whether a process has opened a directory, which is locked."""
    fds = Path(f"/proc/{pid}/fd")
    try:
        opened = [os.readlink(fd) for fd in fds.iterdir()]
    except OSError:
        return False
    return str(directory) in opened


def test_restores_of_different_paths_into_one_directory_do_not_wait_for_each_other(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (box.source / name).mkdir()
        (box.source / name / "file").write_text(name)
    snapshot = str(box.take().id)
    out = tmp_path / "out"

    def another() -> None:
        box.restore(box.source / "b", to=out)

    monkeypatch.setattr(holds, "_WAIT_S", 0.1)
    restore_and_meanwhile(box, snapshot, another, box.source / "a", destination=os.fsencode(out))

    assert photograph(out / "a") == photograph(box.source / "a")
    assert photograph(out / "b") == photograph(box.source / "b")
