"""Two restores to one target at the same time."""

import fcntl
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.errors import ResourceError, TargetError
from ciuic.restore import holds
from ciuic.restore import restore as restoring
from ciuic.restore.report import RestoreReport
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest, Target, refuse_existing
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.filesystems import disk
from tests.kit.mounted import wait_for
from tests.kit.program import CIUIC, ciuic, environment
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


@pytest.fixture
def two(box: Box) -> tuple[Box, list[Path]]:
    """A snapshot with two directories of one file each."""
    found = [box.source / "a", box.source / "b"]
    for directory in found:
        directory.mkdir()
        (directory / "file").write_text(directory.name)
    box.take()
    return box, found


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Lock a directory, as another program does; yields the descriptor."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    finally:
        os.close(fd)


def once_after_the_check(
    monkeypatch: pytest.MonkeyPatch, module: object, meanwhile: Callable[[], object]
) -> None:
    """Do something right after a restore has found that no target exists."""
    check, waiting = refuse_existing, [meanwhile]

    def checked(targets: list[Target], *, overwrite: bool) -> None:
        check(targets, overwrite=overwrite)
        if waiting:
            waiting.pop()()

    monkeypatch.setattr(module, "refuse_existing", checked)


def versions_in(directory: Path) -> set[str]:
    return {path.read_text() for path in directory.iterdir()}


def restore_in_place(
    box: Box, *paths: Path, overwrite: bool = False, cancelled: Callable[[], bool]
) -> None:
    asked = RestoreRequest(tuple(map(os.fsencode, paths)), hot=False, overwrite=overwrite)
    with open_store(str(box.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        restore(store, manifest, asked, clock=box.clock, cancelled=cancelled)


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
        # Without a lock, it would read the store and end while this restore stands still.
        with suppress(subprocess.TimeoutExpired):
            second[0].wait(2)
        assert second[0].poll() is None
        assert "version 1" not in versions_in(out / box.source.name)

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


def test_without_overwrite_a_restore_refuses_what_another_one_has_just_restored(
    versions: tuple[Box, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, (old, new) = versions
    out = tmp_path / "out"
    target = out / box.source.name
    once_after_the_check(monkeypatch, restoring, lambda: box.restore(snapshot=old, to=out))

    with pytest.raises(TargetError) as refused:
        box.restore(snapshot=new, to=out)

    assert refused.value.message == f"{target} exists already; nothing was changed"
    assert versions_in(target) == {"version 0"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_that_another_restore_creates_at_the_last_moment_is_not_its_own(
    versions: tuple[Box, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overwrite: bool,
) -> None:
    box, (old, new) = versions
    out = tmp_path / "out"
    target = out / box.source.name
    once_after_the_check(monkeypatch, holds, lambda: box.restore(snapshot=old, to=out))

    if overwrite:
        box.restore(snapshot=new, to=out, overwrite=True)
    else:
        with pytest.raises(TargetError, match="exists already; nothing was changed"):
            box.restore(snapshot=new, to=out)

    assert versions_in(target) == {"version 1" if overwrite else "version 0"}


def test_a_restore_refused_at_its_last_directory_leaves_none_that_it_created(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = box.source / "deep" / "er" / "a", box.source / "z"
    first.mkdir(parents=True)
    last.mkdir()
    box.take()
    shutil.rmtree(box.source / "deep")
    last.rmdir()
    # The restore has created deep/er/a when it finds that another restore has created z.
    once_after_the_check(monkeypatch, holds, last.mkdir)

    with pytest.raises(TargetError, match="z exists already; nothing was changed"):
        box.restore(first, last)

    assert list(box.source.iterdir()) == [last]


def test_a_restore_refused_for_a_busy_directory_has_not_touched_the_others(
    two: tuple[Box, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, (first, second) = two
    shutil.rmtree(first)
    before = photograph(box.source)
    monkeypatch.setattr(holds, "_WAIT_S", 0.1)

    with locked(second), pytest.raises(TargetError, match="nothing was changed"):
        box.restore(first, second, overwrite=True)

    assert photograph(box.source) == before
    box.restore(first)
    assert (first / "file").read_text() == "a"


def test_a_dry_run_waits_for_no_lock_and_creates_nothing(
    two: tuple[Box, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, (first, second) = two
    shutil.rmtree(first)
    before = photograph(box.source)
    monkeypatch.setattr(holds, "_WAIT_S", 0.1)

    with locked(second):
        box.restore(first, second, overwrite=True, dry_run=True)
    box.restore(first, to=tmp_path / "not" / "there", dry_run=True)

    assert photograph(box.source) == before
    assert not (tmp_path / "not").exists()


def test_ctrl_c_ends_the_wait_and_nothing_was_changed(two: tuple[Box, list[Path]]) -> None:
    box, (first, second) = two
    shutil.rmtree(first)
    (second / "file").write_text("changed")
    before = photograph(box.source)
    command = [*CIUIC, "--config", str(box.config), "restore", "--overwrite", "-s", "latest"]

    with locked(second):
        waiting = subprocess.Popen(
            [*command, "-p", str(first), "-p", str(second)],
            env=environment(),
            cwd="/",
            stderr=subprocess.PIPE,
        )
        wait_for(
            lambda: is_waiting(waiting.pid, second) or waiting.poll() is not None,
            "it does not wait",
        )
        waiting.send_signal(signal.SIGINT)
        said = waiting.communicate(timeout=20)[1]

    assert b"interrupted while another restore is at work" in said
    assert waiting.returncode != 0
    assert photograph(box.source) == before


@pytest.mark.parametrize("turned", [False, True])
def test_two_restores_lock_two_directories_in_one_order_whatever_their_paths_are(
    box: Box, tmp_path: Path, turned: bool
) -> None:
    """The paths in the snapshot are in the one order, and the targets in the other."""
    names = ["b", "a"] if turned else ["a", "b"]
    sources = [box.source / str(number) / name for number, name in enumerate(names)]
    for source in sources:
        source.mkdir(parents=True)
    snapshot = str(box.take().id)
    out = tmp_path / "out"
    for name in ("a", "b"):
        (out / name).mkdir(parents=True)
    low, high = sorted((out / "a", out / "b"), key=lambda path: path.stat().st_ino)

    with locked(low) as held:

        def free_the_first() -> None:
            with locked(high):  # BlockingIOError if the restore holds it and waits for the other
                pass
            fcntl.flock(held, fcntl.LOCK_UN)

        restore_and_meanwhile(
            box,
            snapshot,
            free_the_first,
            *sources,
            destination=os.fsencode(out),
            overwrite=True,
        )


def test_a_restore_of_many_directories_waits_no_longer_than_one_of_a_single_directory(
    two: tuple[Box, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, directories = two
    low, high = sorted(directories, key=lambda path: path.stat().st_ino)
    clock = ManualClock()
    began_s = clock.monotonic_s()
    monkeypatch.setattr(holds, "SystemClock", lambda: clock)

    with locked(low) as held, locked(high):

        def cancelled() -> bool:
            if clock.monotonic_s() > began_s + 20:
                fcntl.flock(held, fcntl.LOCK_UN)
            return False

        with pytest.raises(TargetError) as refused:
            restore_in_place(box, *directories, overwrite=True, cancelled=cancelled)

    assert refused.value.message == f"another restore is at work in {high}; nothing was changed"
    assert clock.monotonic_s() - began_s < 31


def test_a_directory_that_a_refused_restore_removes_is_created_and_locked_again(
    two: tuple[Box, list[Path]],
) -> None:
    box, (first, _) = two
    (first / "file").unlink()
    is_locked: list[bool] = []

    with locked(first) as held:

        def cancelled() -> bool:
            if not is_locked:
                first.rmdir()
                fcntl.flock(held, fcntl.LOCK_UN)
                is_locked.append(True)
            elif first.exists():
                with suppress(BlockingIOError), locked(first):
                    is_locked.append(False)
            return False

        restore_in_place(box, first, overwrite=True, cancelled=cancelled)

    assert (first / "file").read_text() == "a"
    assert all(is_locked)


@pytest.mark.root
@pytest.mark.root
def test_a_disk_that_only_gives_errors_is_not_taken_for_another_restore(
    two: tuple[Box, list[Path]], tmp_path: Path
) -> None:
    if shutil.which("xfs_io") is None:
        pytest.skip("xfs_io is not installed")
    box, _ = two
    with disk("xfs", tmp_path / "disks") as made:
        (made.path / "source").mkdir()
        made.cut_power()
        command = ("restore", "-s", "latest", "-p", box.source, "-d", made.path, "--overwrite")
        refused = box.ciuic(*command)
    assert refused.code == 1
    assert f"cannot restore to {made.path}" in refused.err


def test_a_directory_under_two_names_does_not_wait_for_itself(
    two: tuple[Box, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, (first, second) = two
    monkeypatch.setattr(holds, "_WAIT_S", 0.1)
    subprocess.run(["mount", "--bind", first, second], check=True)
    try:
        box.restore(first, second, overwrite=True)
    finally:
        # A refusal's traceback holds the directory open.
        subprocess.run(["umount", "--lazy", second], check=True)


def test_a_restore_under_flock_of_its_own_directory_is_not_refused(
    two: tuple[Box, list[Path]],
) -> None:
    box, (first, _) = two
    (first / "file").write_text("changed")
    words = ("restore", "--overwrite", "-s", "latest", "-p", first)

    done = ciuic("--config", box.config, *words, wrapper=("flock", str(first)))

    assert done.code == 0, done.err
    assert (first / "file").read_text() == "a"


def test_a_limit_on_open_files_is_named_before_anything_is_changed(
    two: tuple[Box, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, (first, second) = two
    before = photograph(box.source)
    opened: list[int] = []

    def use_up() -> None:
        with suppress(OSError):
            while True:
                opened.append(os.open("/", os.O_RDONLY))

    once_after_the_check(monkeypatch, restoring, use_up)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        monkeypatch.setattr(holds, "raise_open_files_limit", lambda: 0)
        with pytest.raises(ResourceError, match="too many open files; nothing was changed"):
            box.restore(first, second, overwrite=True)
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert photograph(box.source) == before
