"""A real ciuicd: start, signals, requests, and failures around it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from ciuic.control import request_done, request_snapshot, request_status
from ciuic.errors import ConfigError
from ciuic.model import ExcludeRules
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.records.layout import HEADER
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuic.verify.verify import verify_all
from tests.kit.clock import ManualClock
from tests.kit.daemon import REPOSITORY, wait_until
from tests.kit.notified import notified
from tests.kit.program import ciuic
from tests.kit.strace import strace

DAY_NS = 86_400 * 10**9


def take_long_ago(machine, days):
    """Take a snapshot that is dated some days back, as if the machine had been off since."""
    clock = ManualClock(time.time_ns() - days * DAY_NS)
    create_store(str(machine.store), clock)
    with open_store(str(machine.store), write=True) as store:
        request = TakeRequest(roots=(os.fsencode(machine.source),))
        return take_snapshot(store, request, clock=clock)


def store_path(machine):
    return str(machine.store)


def ciuicd(*arguments, environ=None):
    return subprocess.run(
        [sys.executable, "-m", "ciuicd", *arguments],
        cwd=REPOSITORY,
        env=os.environ | (environ or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_check_names_a_directory_that_does_not_exist_and_accepts_the_configuration(machine):
    missing = machine.source.with_name("misspelled")
    machine.config.write_text(
        f"snapshot_paths = {machine.source}, {missing}\nsnapshot_dir = {machine.store}\n"
    )

    done = ciuicd("--config", machine.config, "--check")

    assert done.returncode == 0
    assert done.stderr == f"ciuicd: {machine.config}: there is no directory {missing}\n"


def test_once_creates_the_store_and_takes_one_snapshot(machine):
    done = machine.once()
    assert done.returncode == 0, done.stderr
    (snapshot,) = machine.snapshots()
    assert snapshot.kind == "base"
    assert f"snapshot {snapshot.id} (base): 1 file," in done.stderr
    assert "no warnings" in done.stderr
    assert machine.once().returncode == 0
    assert [one.kind for one in machine.snapshots()] == ["delta", "base"]


def test_once_exits_with_3_after_a_warning(machine):
    machine.configure(snapshot_paths=f"{machine.source}, {machine.directory}/gone")
    done = machine.once()
    assert done.returncode == 3, done.stderr
    assert f"1 warning, first {machine.directory}/gone: " in done.stderr
    assert len(machine.snapshots()) == 1


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_leftover_that_cannot_be_removed_is_logged_and_stops_no_snapshot(machine):
    assert machine.once().returncode == 0
    left = machine.store / "tmp" / "pack-0123456789abcdef"
    left.write_bytes(b"unfinished")
    command = (sys.executable, "-m", "ciuicd", "--config", machine.config, "--once")
    done = subprocess.run(
        [*strace("unlinkat", "-P", left.name, inject="error=EIO"), *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{left} cannot be removed: Input/output error" in done.stderr
    assert "fsck" in done.stderr
    assert len(machine.snapshots()) == 2


def test_once_exits_with_5_while_another_process_writes(machine):
    assert machine.once().returncode == 0
    with open_store(store_path(machine), write=True):
        done = machine.once()
    assert done.returncode == 5
    assert f"in use by process {os.getpid()}" in done.stderr
    assert len(machine.snapshots()) == 1


def test_once_exits_with_1_if_the_store_cannot_be_created(machine):
    machine.store.write_text("a file")
    done = machine.once()
    assert done.returncode == 1
    assert "is a file, not a directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--once",)])
def test_a_bad_configuration_is_one_line_and_exit_code_2_and_nothing_is_created(machine, arguments):
    machine.configure(snapshot_intervall="1h")
    done = ciuicd("--config", str(machine.config), *arguments)
    assert done.returncode == 2
    assert done.stderr == (
        f"ciuicd: {machine.config}:7: unknown key 'snapshot_intervall'. "
        "Did you mean snapshot_interval? etc/ciuic.conf shows every key.\n"
    )
    assert not machine.store.exists()


def test_the_variable_names_the_configuration_and_a_missing_file_is_exit_code_2(machine):
    done = ciuicd("--once", environ={"CIUIC_CONFIG": str(machine.config)})
    assert done.returncode == 0, done.stderr
    missing = machine.directory / "missing.conf"
    done = ciuicd("--once", environ={"CIUIC_CONFIG": str(missing)})
    assert done.returncode == 2
    assert f"{missing}: there is no such file" in done.stderr


def test_each_slot_gets_one_snapshot(machine):
    machine.configure(snapshot_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("no warnings", count=3)
    assert daemon.stop() == 0
    slots = [one.taken_ns // 10**9 for one in machine.snapshots()]
    assert len(slots) >= 3
    assert len(slots) == len(set(slots))


def test_after_a_downtime_one_snapshot_catches_up_and_a_restart_takes_none(machine):
    old = take_long_ago(machine, days=2000)
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    wait_until("it is idle", lambda: request_status(store_path(machine))["state"] == "idle")
    assert len(machine.snapshots()) == 2
    assert machine.snapshots()[1].id == old.id
    assert daemon.stop() == 0

    again = machine.start()
    # The daemon answers the first request before it looks for work, and the second one after that.
    assert request_done(store_path(machine), "resume")["state"] == "idle"
    assert request_snapshot(store_path(machine), tags=("by hand",))["kind"] == "delta"
    assert again.stop() == 0
    assert [one.tags for one in machine.snapshots()] == [("by hand",), (), ()]


def test_a_manual_snapshot_of_the_same_roots_serves_the_slot(machine):
    other = machine.directory / "other"
    other.mkdir()
    machine.configure(snapshot_paths=str(other))
    assert machine.once().returncode == 0
    machine.configure()
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    assert [one.roots for one in machine.snapshots()] == [
        (os.fsencode(machine.source),),
        (os.fsencode(other),),
    ]


@pytest.mark.parametrize("once", [False, True], ids=["daemon", "once"])
def test_sigterm_in_the_middle_of_a_snapshot_ends_quickly_and_leaves_the_store_sound(machine, once):
    for number in range(12):
        (machine.source / f"big-{number}").write_bytes(os.urandom(16 * 1024 * 1024))
    daemon = machine.launch(arguments=("--once",) if once else ())
    packs = machine.store / "tmp"

    def writing():
        # While the store is created, its header is a temporary file too.
        return packs.is_dir() and any(one.name.startswith("pack-") for one in packs.iterdir())

    wait_until("a pack is being written", writing)
    # A stopped daemon cannot finish before the signal arrives.
    daemon.signal(signal.SIGSTOP)
    assert machine.snapshots() == []
    daemon.signal(signal.SIGTERM)
    daemon.signal(signal.SIGCONT)
    assert daemon.exit_code() == (1 if once else 0)
    assert "cancelled because" in daemon.log() or once
    assert "Traceback" not in daemon.log()
    assert machine.snapshots() == []
    assert not (machine.store / "control.sock").exists()

    assert machine.once().returncode == 0
    (snapshot,) = machine.snapshots()
    assert snapshot.files == 13
    with open_store(store_path(machine)) as store:
        assert verify_all(store, checksum=True, clock=SystemClock()).ok


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_daemon_ends_at_once_on_sigterm(machine, number):
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    daemon.signal(number)
    assert daemon.exit_code() == 0
    assert not (machine.store / "control.sock").exists()
    assert request_status(store_path(machine)) is None


def test_sighup_reads_the_configuration_again_and_keeps_the_old_one_if_it_is_broken(machine):
    other = machine.directory / "other"
    other.mkdir()
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    machine.configure(snapshot_paths=f"{machine.source}, {other}", snapshot_interval="300d")
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("reloaded ")
    # No snapshot has the new directory, so the daemon takes one at once, not after the year.
    daemon.wait_for_log("no warnings", count=2)
    assert machine.snapshots()[0].roots == (os.fsencode(other), os.fsencode(machine.source))
    wait_until("it is idle", lambda: request_status(store_path(machine))["state"] == "idle")
    status = request_status(store_path(machine))
    assert status["snapshot_paths"] == [str(machine.source), str(other)]
    assert status["snapshot_interval_s"] == 300 * 86_400

    machine.configure(snapshot_interval="soon")
    before = len(daemon.log().splitlines())
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("the old configuration stays in effect")
    (line,) = daemon.log().splitlines()[before:]
    assert f"{machine.config}:3: snapshot_interval: 'soon' is not a duration" in line
    assert (
        request_status(store_path(machine))["snapshot_interval_s"] == status["snapshot_interval_s"]
    )

    machine.configure(snapshot_dir=f"{machine.directory}/elsewhere")
    with pytest.raises(ConfigError, match="snapshot_dir cannot change"):
        request_done(store_path(machine), "reload")
    assert (
        request_status(store_path(machine))["snapshot_interval_s"] == status["snapshot_interval_s"]
    )
    assert daemon.stop() == 0


def test_a_snapshot_through_the_socket(machine):
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    report = request_snapshot(store_path(machine), base=True, tags=("before the change",))
    newest = machine.snapshots()[0]
    assert report["id"] == newest.id
    assert report["kind"] == "base"
    assert newest.tags == ("before the change",)
    assert request_status(store_path(machine))["last_report"]["id"] == newest.id


def test_status_shows_the_daemon_of_a_store_that_cannot_be_opened(machine):
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    (machine.store / HEADER).write_text("")

    shown = ciuic("--store", machine.store, "status")

    assert shown.code != 0
    assert f"process {daemon.process.pid}" in shown.out
    assert str(machine.store / HEADER) in shown.err


def test_a_client_with_another_configuration_gets_a_snapshot_of_its_roots(machine):
    machine.start()
    other = machine.directory / "other"
    other.mkdir()
    (other / "a").write_text("a")
    (other / "b.tmp").write_text("b")
    roots = (os.fsencode(other),)
    report = request_snapshot(store_path(machine), roots=roots, exclude=ExcludeRules(("*.tmp",)))
    newest = machine.snapshots()[0]
    assert newest.id == report["id"]
    assert newest.roots == roots
    assert newest.files == 1


def test_a_path_on_the_command_line_goes_through_the_daemon(machine):
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    other = machine.directory / "other"
    other.mkdir()
    (other / "a").write_text("a")
    outcome = ciuic("--store", machine.store, "snapshot", "other", cwd=machine.directory)
    assert outcome.code == 0, outcome.err
    newest = machine.snapshots()[0]
    assert newest.roots == (os.fsencode(other),)
    daemon.wait_for_log(f"snapshot {newest.id}")


@pytest.mark.parametrize("option", [["--exclude", "*.pt"], ["--exclude-larger-than", "1 GiB"]])
def test_a_snapshot_with_more_excludes_does_not_serve_the_slot(machine, option):
    """Otherwise the slot's only snapshot would lack the files that the user excluded once."""
    machine.configure(snapshot_interval="1d")
    assert ciuic("--config", machine.config, "init").code == 0
    assert ciuic("--config", machine.config, "snapshot", *option).code == 0
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    assert len(machine.snapshots()) == 2
    assert daemon.stop() == 0
    assert ciuic("--config", machine.config, "snapshot").code == 0
    machine.start()
    request_snapshot(store_path(machine))  # a due snapshot comes first
    assert len(machine.snapshots()) == 4, "that one stood for it"


def test_the_daemon_runs_hooks_and_its_status_shows_their_failure(machine):
    seen = machine.directory / "seen"
    machine.configure(before=f"echo run >> {seen}", after='echo "no $CIUIC_KIND" >&2; exit 9')
    daemon = machine.start()
    daemon.wait_for_log("the hook 'after' failed with exit status 9: no base")
    outcome = ciuic("--config", machine.config, "snapshot")
    assert outcome.code == 3
    assert "the hook 'after' failed with exit status 9: no delta" in outcome.err
    assert seen.read_text() == "run\nrun\n", "once for each, and by the daemon alone"
    status = ciuic("--config", machine.config, "status")
    assert "hook:    the hook 'after' failed with exit status 9: no delta" in status.out
    assert [one.trouble_count for one in machine.snapshots()] == [0, 0]
    assert daemon.stop() == 0


def test_several_clients_at_once_get_a_snapshot_each_one_after_the_other(machine):
    machine.start()
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(request_snapshot(store_path(machine))))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({report["id"] for report in found}) == 5


def test_a_scheduled_snapshot_waits_for_the_store_and_the_socket_is_served_meanwhile(machine):
    """As while a prune holds it, which waits for the sessions of other machines."""
    create_store(store_path(machine), SystemClock())
    with open_store(store_path(machine), write=True):
        daemon = machine.start()
        wait_until("it waits", lambda: request_status(store_path(machine))["state"] == "taking")
        assert machine.snapshots() == []
    daemon.wait_for_log("no warnings")
    assert "snapshot failed" not in daemon.log()
    assert len(machine.snapshots()) == 1
    assert daemon.stop() == 0


def test_a_snapshot_that_waits_for_the_store_ends_with_the_daemon(machine):
    create_store(store_path(machine), SystemClock())
    with open_store(store_path(machine), write=True):
        daemon = machine.start()
        wait_until("it waits", lambda: request_status(store_path(machine))["state"] == "taking")
        assert daemon.stop() == 0
    assert "because the daemon is stopping" in daemon.log()


def test_pause_and_resume(machine):
    machine.configure(snapshot_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    asked = ("--config", machine.config)
    assert f"until 'ciuic --config {machine.config} resume'" in ciuic(*asked, "pause").out
    assert (
        f"no scheduled snapshots until 'ciuic --config {machine.config} resume'"
        in ciuic(*asked, "status").out
    )
    assert (
        f"'ciuic --config {machine.config} resume' to end the pause" in ciuic(*asked, "doctor").out
    )
    # A manual snapshot is still taken; after it, the main thread has seen the pause.
    request_snapshot(store_path(machine))
    count = len(machine.snapshots())
    end_ns = time.time_ns() + 2_500_000_000
    wait_until("two slots have gone by", lambda: time.time_ns() > end_ns)
    assert len(machine.snapshots()) == count
    assert ciuic(*asked, "resume", "--json").document == {"paused": False}
    wait_until("snapshots go on", lambda: len(machine.snapshots()) > count)
    assert daemon.stop() == 0
    without = ciuic(*asked, "pause")
    assert (without.code, without.out) == (1, "")
    assert f"no daemon serves {machine.store}" in without.err
    assert "systemctl enable --now ciuicd'; without systemd, start ciuicd" in " ".join(
        without.err.split()
    )


def test_a_second_daemon_on_the_same_store_names_the_first_and_exits_with_5(machine):
    first = machine.start()
    second = machine.launch()
    assert second.exit_code() == 5
    assert f"in use by process {first.process.pid}: another ciuicd serves it" in second.log()
    assert first.answers()


def test_a_killed_daemon_does_not_hinder_the_next(machine):
    first = machine.start()
    first.wait_for_log("no warnings")
    first.kill()
    assert (machine.store / "control.sock").exists()
    assert request_status(store_path(machine)) is None
    second = machine.start()
    assert request_snapshot(store_path(machine)) is not None
    assert second.stop() == 0


def test_hostile_bytes_on_the_socket_do_not_disturb_the_daemon(machine):
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    before = len(daemon.log().splitlines())
    lines = (
        b"\x00" * 1000,
        b"\xff\xfe\n",
        b"{" * 60_000 + b"\n",
        b"x" * 200_000,
        b'{"do": "snapshot", "tags": ["a|b"]}\n',
        b'{"do": "snapshot", "tags": ["\x1b[31m"]}\n',
        b'{"do": "snapshot", "base": "\\u0000"}\n',
    )
    for line in lines:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(machine.store / "control.sock"))
            try:
                client.sendall(line)
                client.shutdown(socket.SHUT_WR)
                reply = client.recv(10_000)
            except (BrokenPipeError, ConnectionResetError):
                reply = b""
        assert not reply or "error" in json.loads(reply)
    assert daemon.answers()
    assert "Traceback" not in daemon.log()
    # Only the well-formed request reached the snapshot, which refused it.
    logged = daemon.log().splitlines()[before:]
    assert logged == []
    assert len(machine.snapshots()) == 1


@pytest.mark.parametrize("copied", [False, True], ids=["the same", "a copy"])
def test_a_store_that_disappears_and_comes_back_is_served_again(machine, copied):
    machine.configure(snapshot_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    away = machine.directory / "away"
    machine.store.rename(away)
    daemon.wait_for_log("snapshot failed: ", count=2)
    assert not machine.store.exists()
    if copied:
        # The store is as after a repair: it has the same snapshots, but not the old socket and
        # lock.
        unimportant = shutil.ignore_patterns("control.sock", "*.lock")
        away = shutil.copytree(away, machine.directory / "copy", ignore=unimportant)
    away.rename(machine.store)
    count = len(machine.snapshots())
    wait_until("snapshots go on", lambda: len(machine.snapshots()) > count)
    wait_until("the socket is back", daemon.answers)
    failures = [line for line in daemon.log().splitlines() if "snapshot failed: " in line]
    assert all(str(machine.store) in line for line in failures)
    assert "Traceback" not in daemon.log()
    assert daemon.stop() == 0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_disk_is_one_sentence_and_the_daemon_still_tries_the_next_snapshot(machine):
    machine.store.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "ciuic-test", machine.store],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted: {mounted.stderr.strip()}")
    try:
        machine.configure(snapshot_interval="1s")
        big = machine.source / "too-big"
        big.write_bytes(os.urandom(32 * 1024 * 1024))
        daemon = machine.start()
        daemon.wait_for_log("No space left on device")
        assert machine.snapshots() == []
        assert request_status(store_path(machine))["last_error"]["kind"] == "store_full"
        big.unlink()
        daemon.wait_for_log("no warnings")
        assert machine.snapshots()
        assert request_status(store_path(machine))["last_error"] is None
        assert "Traceback" not in daemon.log()
        assert daemon.stop() == 0
    finally:
        machine.close()
        subprocess.run(["umount", machine.store], check=True)


def test_the_main_thread_has_a_low_priority_and_the_control_thread_does_not(machine):
    daemon = machine.start()
    daemon.wait_for_log("I/O priority idle: ")
    process = psutil.Process(daemon.process.pid)
    assert process.ionice().ioclass == psutil.IOPRIO_CLASS_IDLE
    nice = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread of a client that was answered has ended
            stat = (task / "stat").read_text()
            nice[int(task.name)] = int(stat.rsplit(")", 1)[1].split()[16])
    assert nice.pop(process.pid) == 19
    assert os.nice(0) in nice.values()


def test_priority_none_changes_nothing(machine):
    machine.configure(io_priority="none")
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    process = psutil.Process(daemon.process.pid)
    assert process.nice() == os.nice(0)
    assert process.ionice() == psutil.Process().ionice()
    assert "I/O priority" not in daemon.log()


def test_lines_carry_their_level_only_for_the_journal(machine):
    read_end, write_end = os.pipe()
    status = os.fstat(write_end)
    environ = os.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
    command = [sys.executable, "-m", "ciuicd", "--config", str(machine.config), "--once"]
    machine.configure(snapshot_paths=f"{machine.source}, /nonexistent")
    with open(read_end, "rb") as log:
        done = subprocess.run(
            command, cwd=REPOSITORY, stderr=write_end, env=environ, timeout=60, check=False
        )
        os.close(write_end)
        lines = log.read().decode().splitlines()
    assert done.returncode == 3
    assert lines[0].startswith("<4>created the store ")
    assert lines[1].startswith("<6>I/O priority idle: ")
    assert lines[2].startswith("<4>snapshot cs-")

    # The variable is inherited from a shell under systemd, but standard error is another one.
    inherited = ciuicd("--config", str(machine.config), "--once", environ={"JOURNAL_STREAM": "1:2"})
    assert all(line.startswith("ciuicd: ") for line in inherited.stderr.splitlines())


def test_the_service_manager_gets_every_message(machine):
    address = machine.directory / "notify.sock"
    with notified(address) as messages:
        heard: list[str] = []

        def hear(wanted: str) -> str:
            while True:
                wait_until(wanted, lambda: len(messages) > len(heard))
                heard.append(messages[len(heard)].decode())
                if wanted in heard[-1]:
                    return heard[-1]

        daemon = machine.launch({"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "200000"})
        hear("READY=1")
        assert request_status(store_path(machine)) is not None
        assert "last snapshot cs-" in hear("STATUS=next 20")
        hear("WATCHDOG=1")
        hear("WATCHDOG=1")
        daemon.signal(signal.SIGHUP)
        reloading = hear("RELOADING=1")
        (_, monotonic) = reloading.split("\n")
        age_s = time.monotonic() - int(monotonic.removeprefix("MONOTONIC_USEC=")) / 1e6
        assert 0 <= age_s < 60
        hear("READY=1")
        daemon.signal(signal.SIGTERM)
        hear("STOPPING=1")
        assert daemon.exit_code() == 0


def test_a_missing_service_manager_does_no_harm(machine):
    machine.start({"NOTIFY_SOCKET": str(machine.directory / "gone"), "WATCHDOG_USEC": "nonsense"})
    assert request_snapshot(store_path(machine)) is not None


def test_the_daemon_can_make_a_link_to_the_store_for_the_service_manager(machine):
    link = machine.directory / "link"
    for _ in range(2):
        done = ciuicd("--config", str(machine.config), "--link-store", str(link))
        assert done.returncode == 0, done.stderr
        assert os.readlink(link) == str(machine.store)
    assert (machine.store / "ciuic-store.json").exists()


def test_link_store_leaves_errors_to_the_daemon(machine):
    link = machine.directory / "link"
    machine.config.write_text("nonsense\n")
    done = ciuicd("--config", str(machine.config), "--link-store", str(link))
    assert (done.returncode, done.stderr) == (0, "")
    assert not link.is_symlink()


def test_the_daemon_logs_a_damaged_manifest_once(machine):
    assert machine.once().returncode == 0
    [lost] = machine.snapshots()
    shutil.rmtree(machine.store / "parity")
    (machine.store / "snapshots" / f"{lost.id}.json").write_bytes(b"{}")
    daemon = machine.start()
    for _ in range(2):
        assert request_snapshot(store_path(machine)) is not None
    daemon.wait_for_log(f"forget skipped {lost.id}: ")
    assert daemon.stop() == 0
    assert daemon.log().count(f"forget skipped {lost.id}: ") == 1


def test_a_requested_reload_fails_if_the_new_configuration_cannot_be_used(machine):
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    link = machine.directory / "link"
    link.symlink_to(machine.store)
    status = request_status(store_path(machine))

    machine.configure(snapshot_interval="soon")
    refused = ciuicd("--reload", str(link))
    assert refused.returncode == 2, refused.stderr
    assert f"{machine.config}:3: snapshot_interval: 'soon' is not a duration" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (
        request_status(store_path(machine))["snapshot_interval_s"] == status["snapshot_interval_s"]
    )

    machine.configure(snapshot_interval="300d")
    done = ciuicd("--reload", str(link))
    assert (done.returncode, done.stderr) == (0, "")
    assert request_status(store_path(machine))["snapshot_interval_s"] == 300 * 86_400

    gone = machine.source.with_name("misspelled")
    machine.configure(snapshot_paths=f"{machine.source}, {gone}")
    done = ciuicd("--reload", str(link))
    assert done.returncode == 0
    assert done.stderr == f"ciuicd: {machine.config}: there is no directory {gone}\n"

    assert daemon.stop() == 0
    alone = ciuicd("--reload", str(link))
    assert alone.returncode == 1
    assert f"no daemon serves {link}" in alone.stderr
