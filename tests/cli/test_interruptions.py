"""Two commands at once, and interrupted commands: exit codes, and a sound store afterwards."""

import contextlib
import fcntl
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.test_bad_input import refused
from tests.kit.installed import Outcome, Place, contents, environment, run
from tests.kit.program import REPOSITORY

DEADLINE_S = 60
END_S = 30
"""About a second on an idle machine; a command that ignores the signal takes far longer."""


def wait_until(what: str, happened: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < end_s, f"this did not happen: {what}"
        time.sleep(0.002)


@contextlib.contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """Hold a lock of the store as another process would."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, how)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"4242\n", 0)
        yield
    finally:
        os.close(fd)


def opens(pid: int, path: Path) -> bool:
    """Whether a process has this file open."""
    try:
        files = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False  # a file was just closed, or the process has ended
    return str(path) in files


def test_a_second_writer_finds_the_store_busy_and_readers_continue(taken):
    with held(taken.store / "lock.write", fcntl.LOCK_EX):
        busy = taken.run_here("snapshot", "--wait", "0")
        as_json = taken.run_here("snapshot", "--wait", "0", "--json")
        listed = taken.run_here("list", "--machine-readable")
        verified = taken.run_here("verify", "--all", "--checksum")
        restored = taken.run_here(
            "restore", "-s", "latest", "-p", taken.source, "-d", taken.directory / "out"
        )

    refused(busy, 5, str(taken.store), "in use", "4242")
    assert as_json.code == 5
    assert as_json.document["error"]["kind"] == "busy"
    assert listed.code == verified.code == restored.code == 0
    assert len(listed.out.splitlines()) == 3
    assert taken.run_here("snapshot").code == 0


def test_readers_go_on_beside_a_writer_when_the_catalog_is_lost_too(taken):
    (taken.store / "catalog.sqlite").unlink()
    with held(taken.store / "lock.write", fcntl.LOCK_EX):
        verified = taken.run_here("verify", "--all", "--checksum")
        stats = taken.run_here("stats", "--json")

    assert verified.code == stats.code == 0, verified.said()
    assert stats.document["snapshots"] == 3


def test_a_writer_waits_for_the_given_time(taken):
    with held(taken.store / "lock.write", fcntl.LOCK_EX):
        waiting = subprocess.Popen(
            ["ciuic", "--config", taken.config, "snapshot", "--wait", "1m"],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        began_s = time.monotonic()
        busy = taken.run_here("snapshot", "--wait", "0.2s")
        assert busy.code == 5
        assert time.monotonic() - began_s >= 0.2
        assert waiting.poll() is None, "it did not wait"
    out, _ = waiting.communicate(timeout=DEADLINE_S)

    assert waiting.returncode == 0
    assert taken.ids()[0] == out.strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "command",
    [
        ("snapshot",),
        ("prune",),
        ("forget", "--policy", "last:1", "--prune"),
        ("pin", "latest"),
        ("repair", "--apply"),
    ],
    ids=lambda command: command[0],
)
def test_a_signal_ends_the_wait_for_another_writer(taken, command, number):
    with held(taken.store / "lock.write", fcntl.LOCK_EX):
        before = contents(taken.store)
        waiting = subprocess.Popen(
            ["ciuic", "--config", taken.config, *command, "--wait", "1h"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # It opens this lock right before it waits for the other.
        wait_until("it waits", lambda: opens(waiting.pid, taken.store / "lock.read"))
        waiting.send_signal(number)
        _, err = waiting.communicate(timeout=END_S)
        after = contents(taken.store)

    assert waiting.returncode == 128 + number
    assert "interrupted" in err
    assert "Traceback" not in err
    assert after == before


def test_while_packs_are_removed_readers_are_asked_to_try_again(taken):
    with held(taken.store / "lock.read", fcntl.LOCK_EX):
        done = taken.run_here("list")

    refused(done, 5, str(taken.store))


def test_two_snapshots_at_once_are_two_snapshots(fresh):
    command = ["ciuic", "--config", fresh.config, "snapshot"]
    both = [
        subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]

    ids = {one.communicate(timeout=DEADLINE_S)[0].strip() for one in both}

    assert [one.returncode for one in both] == [0, 0]
    assert set(fresh.ids()) == ids
    assert fresh.run_here("verify", "--all", "--checksum").code == 0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough data that a signal can reach a snapshot or a restore of it in the middle."""
    source = tmp_path_factory.mktemp("large") / "source"
    source.mkdir()
    block = os.urandom(4 * 1024 * 1024)
    for number in range(40):
        start = number * 1009
        (source / f"{number}.bin").write_bytes(block[start:] + number.to_bytes(4, "little"))
    return source


def stopped(place: Place, how: signal.Signals, begun: Callable[[], bool], *words: str) -> Outcome:
    """Run a command and send it a signal when its work has begun."""
    process = subprocess.Popen(
        ["ciuic", "--config", place.config, *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until("the work has begun", lambda: begun() or process.poll() is not None)
    process.send_signal(how)
    out, err = process.communicate(timeout=DEADLINE_S)
    return Outcome(process.returncode, out, err)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_a_snapshot_that_is_stopped_commits_nothing_and_the_next_one_works(tmp_path, large, how):
    place = Place(tmp_path, source=large)
    place.run_here("init")
    working = place.store / "tmp"

    done = stopped(place, how, lambda: any(working.iterdir()), "snapshot")

    assert done.code == 128 + how, done.said()
    assert done.out == ""
    assert "Traceback" not in done.err
    assert "stopp" in done.err
    assert len(done.err.splitlines()) <= 4, done.said()
    assert place.ids() == []
    name = place.snapshot()
    assert place.ids() == [name]
    assert place.run("verify", "--checksum").code == 0
    assert list(working.iterdir()) == [], "what the stopped one left is cleared away"


LONG = {
    "verify": ["verify", "--all", "--checksum"],
    "scrub": ["scrub"],
    "repair": ["repair"],
    "repair --apply": ["repair", "--apply"],
    "prune": ["prune", "--trash", "0"],
    "forget": ["forget", "--policy", "last:1", "--prune", "--trash", "0"],
}


def is_reading_packs(process: "subprocess.Popen[str]") -> bool:
    """The process, or one that it has started, has a pack open."""
    below = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    with contextlib.suppress(OSError):
        pids = [str(process.pid), *below.read_text().split()]
        for fds in [Path(f"/proc/{pid}/fd") for pid in pids]:
            if any("/packs/" in os.readlink(fd) for fd in fds.iterdir()):
                return True
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
@pytest.mark.parametrize("name", LONG)
def test_a_long_command_ends_soon_after_a_signal_with_its_code(tmp_path, large, name, how):
    place = Place(tmp_path, source=large)
    place.run_here("init")
    place.snapshot("--exclude", "1*.bin")
    place.snapshot()
    for _ in range(20):
        process = subprocess.Popen(
            ["ciuic", "--config", place.config, *LONG[name]],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell makes tests in the background ignore SIGINT; children inherit that.
            preexec_fn=functools.partial(  # noqa: PLW1509 - this process has no other threads
                signal.signal, signal.SIGINT, signal.SIG_DFL
            ),
        )
        with process:
            while process.poll() is None and not is_reading_packs(process):
                os.sched_yield()
            began_s = time.monotonic()
            process.send_signal(how)
            _, err = process.communicate(timeout=DEADLINE_S)
        if process.returncode:
            break  # else it had ended before the signal
    assert process.returncode == 128 + how, err
    assert time.monotonic() - began_s < END_S
    assert "Traceback" not in err
    assert "interrupted" in err or "stopp" in err
    assert place.run("verify", "--all").code == 0


def test_a_snapshot_that_is_killed_leaves_no_lock_and_the_next_one_works(tmp_path, large):
    place = Place(tmp_path, source=large)
    place.run_here("init")
    working = place.store / "tmp"

    done = stopped(place, signal.SIGKILL, lambda: any(working.iterdir()), "snapshot")

    assert done.code == -signal.SIGKILL
    assert place.ids() == []
    place.snapshot("--wait", "0")
    assert place.run("verify", "--checksum").code == 0
    assert list(working.iterdir()) == []


def test_a_restore_that_is_stopped_leaves_whole_files_and_can_be_run_again(tmp_path, large):
    place = Place(tmp_path, source=large)
    place.run_here("init")
    place.snapshot()
    out = tmp_path / "out"
    command = ["restore", "-s", "latest", "-p", str(large), "-d", str(out), "--overwrite"]

    done = stopped(place, signal.SIGTERM, lambda: any(out.glob("source/*")), *command)

    assert done.code == 128 + signal.SIGTERM, done.said()
    assert "Traceback" not in done.err
    assert "stored" not in done.err, "a restore stores nothing"
    for path in out.glob("source/*.bin"):
        assert path.read_bytes() == (large / path.name).read_bytes(), "a part of a file"
    again = place.run(*command)
    assert again.code == 0, again.said()
    assert [one.name for one in sorted((out / "source").iterdir())] == [
        one.name for one in sorted(large.iterdir())
    ], "a temporary file is left"
    for path in large.iterdir():
        assert (out / "source" / path.name).read_bytes() == path.read_bytes()


def test_an_interrupt_of_a_reader_is_a_word_and_no_traceback(fresh):
    # Larger than a pipe. The test reads one byte of it, so the command stays in the middle.
    path = fresh.source / "checkpoints" / "large.pt"
    path.write_bytes(os.urandom(4 * 1024 * 1024))
    fresh.snapshot()
    process = subprocess.Popen(
        ["ciuic", "--config", fresh.config, "cat", "latest", path],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell makes tests in the background ignore SIGINT; children inherit that.
        preexec_fn=functools.partial(  # noqa: PLW1509 - this process has no other threads
            signal.signal, signal.SIGINT, signal.SIG_DFL
        ),
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        said = process.stderr.read().decode()

    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 3


def test_a_snapshot_leaves_the_source_as_it_was(fresh):
    before = contents(fresh.source)

    fresh.snapshot()
    fresh.run("verify", "--checksum")

    assert contents(fresh.source) == before
    assert run("ls", "-A", fresh.source).out == "checkpoints\ntrain.log\n"


@pytest.mark.parametrize("limit_mb", [60, 100, 180, 220, 260, 300, 340, 400])
def test_without_enough_memory_a_command_says_so_and_loses_nothing(fresh, limit_mb):
    """A limited address space: threads, libraries and arrays do not fit."""
    (fresh.source / "weights").write_bytes(os.urandom(8_000_000))
    limited = ("prlimit", f"--as={limit_mb * 1_000_000}", "ciuic", "--config", fresh.config)

    for command in (("snapshot",), ("verify", "latest", "--checksum")):
        done = run(*limited, *command)
        assert "Traceback" not in done.err, done.said()
        # A library in Rust ends the process when it gets no memory, and prints its own message.
        is_aborted = done.code == -signal.SIGABRT and "memory allocation of" in done.err
        assert done.code in {0, 1} or is_aborted, done.said()
        assert done.code == 0 or done.err.strip(), done.said()
    listed = fresh.run_here("list", "--machine-readable").out.splitlines()
    assert fresh.run_here("snapshot").code == 0
    assert fresh.run_here("verify", "--all", "--checksum").code == 0
    assert len(fresh.run_here("list", "--machine-readable").out.splitlines()) == len(listed) + 1


_INTERRUPTED_IMPORT = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from ciuic.cli import program
program()
"""


def test_an_interrupt_while_the_command_line_is_loaded_prints_no_traceback():
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT, "list"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
