"""When the daemon takes a follow-up snapshot: real files, real writers, a manual clock."""

import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest
from watchdog.events import FileClosedEvent, FileMovedEvent

from ciuic.control import request_done, request_snapshot, request_status
from ciuic.model import BEING_WRITTEN, CONSISTENT, ExcludeRules
from ciuic.snapshot.report import TakeReport
from ciuic.store.store import open_store
from ciuic.view.content import read_file
from ciuic.view.locator import locate
from ciuicd.followup import FollowUps, is_being_written
from ciuicd.watch import ClosingWatch, _Handler
from tests.kit.clock import ManualClock
from tests.kit.daemon import REPOSITORY, wait_until
from tests.kit.filesystems import disk

HOUR_S = 3600.0


def report_of(*flux, name="cs-000001"):
    return TakeReport(
        id=name,
        kind="delta",
        parent=None,
        taken_ns=0,
        files=1,
        logical_bytes=0,
        read_bytes=0,
        new_bytes=0,
        stored_bytes=0,
        freeze_s=0.0,
        total_s=0.0,
        trouble=(),
        trouble_count=len(flux),
        flux=tuple(os.fsencode(path) for path in flux),
    )


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def follow_ups(clock):
    it = FollowUps(clock, lambda: None)
    yield it
    it.drop()


@pytest.fixture
def roots(tmp_path):
    return (os.fsencode(tmp_path),)


def due_within(follow_ups, clock, duration_s):
    """Return after how many seconds one becomes due, asked as ``FollowUps`` wants; None: never."""
    began_s = clock.monotonic_s()
    for _ in range(10_000):
        if follow_ups.is_due():
            return clock.monotonic_s() - began_s
        if follow_ups.next_look_s is None:
            return None
        step_s = max(0.001, follow_ups.next_look_s - clock.monotonic_s())
        if clock.monotonic_s() + step_s > began_s + duration_s:
            clock.advance(began_s + duration_s - clock.monotonic_s())
            return None
        clock.advance(step_s)
    raise AssertionError("it wants to be asked all the time")


def test_a_follow_up_is_due_once_the_file_is_closed_and_not_before(
    follow_ups, clock, roots, tmp_path
):
    path = tmp_path / "checkpoint.pt"
    with path.open("wb") as writer:
        follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
        assert due_within(follow_ups, clock, 120) is None
        assert follow_ups.shown["open"] == 1
        writer.write(b"whole")
    waited_s = due_within(follow_ups, clock, 60)
    assert waited_s is not None
    assert follow_ups.shown["open"] == 0
    follow_ups.taken(report_of())
    assert follow_ups.shown is None


def test_a_writable_memory_map_counts_as_a_writer(follow_ups, clock, roots, tmp_path):
    import mmap

    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(8192))
    fd = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(fd, 8192)
    os.close(fd)
    follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
    assert due_within(follow_ups, clock, 60) is None
    mapped.close()
    assert due_within(follow_ups, clock, 60) is not None


@pytest.mark.parametrize("how", ["renamed", "deleted", "turned into a directory", "unreadable"])
def test_a_missing_file_counts_as_closed(follow_ups, clock, roots, tmp_path, how):
    path = tmp_path / "checkpoint.tmp"
    with path.open("wb"):
        follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
        assert due_within(follow_ups, clock, 60) is None
        if how == "renamed":
            path.rename(tmp_path / "checkpoint.pt")
        else:
            path.unlink()
        if how == "turned into a directory":
            path.mkdir()
        if how == "unreadable":
            os.mkfifo(path)
        assert due_within(follow_ups, clock, 60) is not None


def test_the_daemon_waits_again_for_a_file_that_is_opened_again(follow_ups, clock, roots, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.touch()
    follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
    clock.advance(1)
    assert not follow_ups.is_due(), "it is closed, but has to stay so for a moment"
    with path.open("ab"):
        assert due_within(follow_ups, clock, 60) is None
    clock.advance(max(0.0, follow_ups.next_look_s - clock.monotonic_s()))
    assert not follow_ups.is_due(), "only now is it seen to be closed"
    assert due_within(follow_ups, clock, 60) is not None


def test_a_writer_that_never_closes_its_file_is_logged_once(
    follow_ups, clock, roots, tmp_path, caplog
):
    path = tmp_path / "train.log"
    program = f"file = open({str(path)!r}, 'wb'); print(flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        caplog.set_level(logging.INFO)
        follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
        looks = 0
        while follow_ups.next_look_s is not None:
            assert not follow_ups.is_due()
            looks += 1
            if follow_ups.next_look_s is not None:
                clock.advance(max(0.001, follow_ups.next_look_s - clock.monotonic_s()))
        assert looks < 30, "ten minutes"
        begun, told = caplog.messages
        assert (
            "1 file being written in cs-000001; waiting up to 10 m 00 s for them to be closed"
            in begun
        )
        assert f"still being written after 10 m 00 s; gave up waiting: {path} (" in told
        assert f"(pid {writer.pid})" in told

        # The same file again: no log line.
        follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
        assert due_within(follow_ups, clock, 700) is None
        assert follow_ups.next_look_s is None
        assert len(caplog.messages) == 2

        # The open file does not delay the follow-up of a checkpoint beside it.
        other = tmp_path / "checkpoint.pt"
        with other.open("wb"):
            follow_ups.consider(report_of(path, other), None, roots, interval_s=HOUR_S)
            assert due_within(follow_ups, clock, 60) is None
        assert due_within(follow_ups, clock, 60) is not None
        assert str(path) not in "".join(caplog.messages[2:])
        follow_ups.drop()

        # The daemon still notices when its writer closes it.
        follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
        assert due_within(follow_ups, clock, 60) is None
        writer.communicate(b"\n")
        assert due_within(follow_ups, clock, 60) is not None


def test_closed_files_get_a_follow_up_when_the_waiting_time_is_over(
    follow_ups, clock, roots, tmp_path, caplog
):
    done, held = tmp_path / "done", tmp_path / "held"
    done.touch()
    with held.open("wb"):
        follow_ups.consider(report_of(done, held), None, roots, interval_s=120)
        waited_s = due_within(follow_ups, clock, 100)
        assert waited_s == pytest.approx(60, abs=1), "half an interval"
    assert f"gave up waiting: {held}" in caplog.text
    assert str(done) not in caplog.text


def test_follow_ups_in_a_row_are_for_other_files_and_their_number_is_limited(
    follow_ups, clock, roots, tmp_path
):
    path = tmp_path / "a"
    path.touch()
    follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
    assert due_within(follow_ups, clock, 60) is not None
    follow_ups.taken(report_of(path))
    assert follow_ups.next_look_s is None, "the same file again"

    taken = 0
    follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
    while due_within(follow_ups, clock, 60) is not None:
        taken += 1
        other = tmp_path / f"other-{taken}"
        other.touch()
        follow_ups.taken(report_of(path, other))
    assert taken == 3


def test_only_a_snapshot_of_the_same_roots_ends_the_wait(follow_ups, clock, roots, tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    with path.open("wb"), other.open("wb"):
        follow_ups.consider(report_of(path), None, roots, interval_s=HOUR_S)
        scope = ((b"/elsewhere",), ExcludeRules())
        follow_ups.consider(report_of(other, name="cs-2"), scope, scope[0], interval_s=HOUR_S)
        assert follow_ups.shown["after"] == "cs-000001"
        follow_ups.consider(report_of(name="cs-3"), None, roots, interval_s=HOUR_S)
        assert follow_ups.shown is None
        follow_ups.consider(report_of(path, name="cs-4"), scope, roots, interval_s=HOUR_S)
        assert (follow_ups.shown["after"], follow_ups.scope) == ("cs-4", scope)


def test_without_a_lease_an_unchanged_file_counts_as_closed(tmp_path):
    path = tmp_path / "theirs"
    path.write_bytes(b"1")
    os.chmod(path, 0o644)
    os.chmod(tmp_path, 0o755)
    # A user other than the owner may read the file, but gets no lease without CAP_LEASE.
    program = textwrap.dedent(f"""
        import os, sys
        sys.path.insert(0, {str(REPOSITORY)!r})
        from ciuicd.followup import is_being_written
        from ciuic.system.kernel import has_writer
        fd = os.open({str(path)!r}, os.O_RDONLY)
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        assert has_writer(fd) is None
        path = {os.fsencode(path)!r}
        written, looks = is_being_written(path, None)
        assert written, "never seen before"
        written, again = is_being_written(path, looks)
        assert not written and again == looks, "as it was"
        """)
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    for directory in [tmp_path, *tmp_path.parents][:4]:
        os.chmod(directory, os.stat(directory).st_mode | 0o055)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with path.open("ab") as file:
        file.write(b"2")
    assert is_being_written(os.fsencode(path), None)[0] is False, "its owner knows at once"


@pytest.mark.parametrize("what", ["closed", "renamed away", "replaced", "deleted"])
def test_an_event_wakes_the_daemon_once(tmp_path, monkeypatch, what):
    directory = tmp_path / "näme\udcff"
    directory.mkdir()
    path, other = directory / "a.tmp", directory / "b"
    other.touch()
    woken, heard = [], []
    hear = _Handler.on_any_event
    monkeypatch.setattr(_Handler, "on_any_event", lambda *it: (hear(*it), heard.append(it)))
    with path.open("wb"):
        watch = ClosingWatch([os.fsencode(path)], lambda: woken.append(1))
        try:
            assert watch.is_complete
            if what == "closed":
                path.open("ab").close()
                wait_until("it was woken", lambda: bool(heard))
                # Two events that are alike become one while the first waits to be read.
                path.open("ab").close()
            elif what == "renamed away":
                path.rename(directory / "a")
            elif what == "replaced":
                other.rename(path)
            else:
                path.unlink()
            wait_until("it was woken", lambda: len(heard) >= 1 + (what == "closed"))
            assert watch.take_note()
            assert not watch.take_note()
        finally:
            watch.close()
    assert woken == [1]


def test_a_thousand_events_wake_once_until_they_are_noted(tmp_path):
    woken = []
    handler = _Handler(frozenset([b"/a"]), lambda: woken.append(1))
    for _ in range(1000):
        handler.on_any_event(FileClosedEvent("/a"))
        handler.on_any_event(FileMovedEvent("/b", "/a"))
    assert woken == [1]


def test_more_events_than_are_read_end_the_watch_and_wake_once(tmp_path):
    woken = []
    before = set(threading.enumerate())
    watch = ClosingWatch([os.fsencode(tmp_path / "mine")], lambda: woken.append(1))
    try:
        (tmp_path / "other").touch()

        def has_ended() -> bool:
            for _ in range(200):
                (tmp_path / "other").open("ab").close()
            return not watch.is_complete

        wait_until("the watch ends", has_ended)
        wait_until("its threads end", lambda: set(threading.enumerate()) <= before)
        assert watch.take_note()
        assert woken == [1]
    finally:
        watch.close()


def test_events_of_other_files_are_ignored(tmp_path):
    woken = []
    watch = ClosingWatch([os.fsencode(tmp_path / "mine")], lambda: woken.append(1))
    try:
        for number in range(100):
            (tmp_path / f"other-{number}").touch()
        (tmp_path / "mine").touch()
        wait_until("it was woken", lambda: bool(woken))
        assert woken == [1]
    finally:
        watch.close()


def test_thousands_of_directories_are_not_all_watched(tmp_path):
    paths = [os.fsencode(tmp_path / str(number) / "file") for number in range(1000)]
    for path in paths:
        os.mkdir(os.path.dirname(path))
    before = set(threading.enumerate())
    watch = ClosingWatch(paths, lambda: None)
    try:
        assert len(set(threading.enumerate()) - before) < 50
        assert not watch.is_complete
        assert watch.problem is None
    finally:
        watch.close()
    wait_until("its threads end", lambda: set(threading.enumerate()) <= before)


WRITER = """
import os, pickle, sys
path, final = sys.argv[1:]
data = pickle.dumps({"step": 400, "weights": os.urandom(3_000_000)})
with open(path, "wb") as file:
    file.write(data[:1_000_000])
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()
    file.write(data[1_000_000:])
os.rename(path, final)
"""


class Writer:
    """A training program that is saving a checkpoint."""

    def __init__(self, path, final=None):
        command = [sys.executable, "-c", WRITER, str(path), str(final or path)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        assert self.process.stdout.readline() == b"half\n"

    def finish(self):
        self.process.communicate(b"\n")
        assert self.process.returncode == 0

    def close(self):
        self.process.kill()
        self.process.communicate()


def state_of(machine, snapshot_id, path):
    """Return the state and the bytes of a file in a snapshot."""
    with open_store(str(machine.store)) as store:
        found = locate(store, store.manifest(snapshot_id), os.fsencode(path)).entry
        return found.state, b"".join(read_file(store, found))


def follow_up_of(machine):
    wait_until(
        "a follow-up was taken",
        lambda: any(one.tags == ("follow-up",) for one in machine.snapshots()),
    )
    return machine.snapshots()[0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in place", "renamed", "asked for"])
def test_a_checkpoint_that_was_half_written_on_the_hour_is_complete_in_the_follow_up(machine, how):
    path = machine.source / ("checkpoint.tmp" if how == "renamed" else "checkpoint.pt")
    final = machine.source / "checkpoint.pt"
    writer = Writer(path, final)
    try:
        if how == "asked for":
            machine.once()
        daemon = machine.start()
        if how == "asked for":
            request_snapshot(str(machine.store), roots=(os.fsencode(machine.source),))
        daemon.wait_for_log("1 file being written in cs-")
        first = machine.snapshots()[0]
        assert state_of(machine, first.id, path)[0] == BEING_WRITTEN
        awaited = request_status(str(machine.store))["follow_up"]
        assert (awaited["after"], awaited["files"], awaited["open"]) == (first.id, 1, 1)

        writer.finish()
        last = follow_up_of(machine)
    finally:
        writer.close()
    assert (last.kind, last.parent, last.trouble_count) == ("delta", first.id, 0)
    assert last.roots == first.roots
    state, data = state_of(machine, last.id, final)
    assert state == CONSISTENT
    assert pickle.loads(data)["step"] == 400
    wait_until(
        "nothing is awaited", lambda: request_status(str(machine.store))["follow_up"] is None
    )
    assert daemon.log().count("being written in cs-") == 1
    # The schedule did not change: there is no other snapshot.
    before = len(machine.snapshots())
    wait_until("it waits", lambda: request_status(str(machine.store))["state"] == "idle")
    assert daemon.stop() == 0
    assert len(machine.snapshots()) == before


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_a_frozen_half_written_checkpoint_is_complete_in_the_follow_up(machine, kind):
    with disk(kind, machine.directory / "disk") as mounted:
        root = mounted.path / "training"
        root.mkdir()
        machine.configure(snapshot_paths=str(root))
        path = root / "checkpoint.pt"
        writer = Writer(path)
        try:
            daemon = machine.start()
            daemon.wait_for_log("1 file being written in cs-")
            assert state_of(machine, machine.snapshots()[0].id, path)[0] == BEING_WRITTEN
            writer.finish()
            last = follow_up_of(machine)
        finally:
            writer.close()
        state, data = state_of(machine, last.id, path)
        assert state == CONSISTENT
        assert pickle.loads(data)["step"] == 400
        with open_store(str(machine.store)) as store:
            assert store.manifest(last.id).roots[0].capture != "in place"
        assert daemon.stop() == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a namespace of users")
def test_without_events_the_daemon_polls_the_files_and_logs_this_once(machine):
    limits = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    wrapper = ("unshare", "--user", "--map-root-user", "sh", "-c", limits, "sh")
    probe = subprocess.run([*wrapper, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"a namespace of users cannot be made: {probe.stderr.strip()}")
    path = machine.source / "checkpoint.pt"
    writer = Writer(path)
    try:
        daemon = machine.launch(wrapper=wrapper)
        daemon.wait_for_log("1 file being written in cs-")
        writer.finish()
        last = follow_up_of(machine)
    finally:
        writer.close()
    assert state_of(machine, last.id, path)[0] == CONSISTENT
    assert daemon.log().count("polling open files every 5.00 s because") == 1
    assert "Traceback" not in daemon.log()
    assert daemon.stop() == 0


def test_a_daemon_that_waits_for_writers_stops_at_once_and_a_pause_ends_the_wait(machine):
    writer = Writer(machine.source / "checkpoint.pt")
    try:
        daemon = machine.start()
        daemon.wait_for_log("1 file being written in cs-")
        request_done(str(machine.store), "pause")
        wait_until(
            "it waits no longer",
            lambda: request_status(str(machine.store))["follow_up"] is None,
        )
        request_done(str(machine.store), "resume")
        request_snapshot(str(machine.store))
        daemon.wait_for_log("1 file being written in cs-", count=2)
        assert daemon.stop() == 0
    finally:
        writer.close()
    assert [one.tags for one in machine.snapshots()] == [(), ()]
