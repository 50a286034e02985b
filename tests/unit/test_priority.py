"""Priorities of threads, and messages about disks, with simulated sysfs directories."""

import contextlib
import os
import resource
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from ciuic.system import priority
from ciuic.system.priority import (
    describe_schedulers,
    idle_thread,
    lower_priority,
    schedulers_of,
    set_session_nice,
    stop_idling,
)


@pytest.fixture
def sysfs(tmp_path):
    """Return a function that makes block devices, and a directory in place of /sys/dev/block."""
    numbers = tmp_path / "dev-block"
    numbers.mkdir()

    def number_of(path):
        device = os.stat(path).st_dev
        return f"{os.major(device)}:{os.minor(device)}"

    def disk(name, scheduler):
        queue = tmp_path / "devices" / name / "queue"
        queue.mkdir(parents=True)
        (queue / "scheduler").write_text(scheduler)
        return queue.parent

    def show(node):
        (numbers / number_of(tmp_path)).symlink_to(node)
        return str(numbers)

    return disk, show


def test_the_scheduler_of_a_disk_is_the_name_in_brackets(sysfs, tmp_path):
    disk, show = sysfs
    assert schedulers_of(str(tmp_path), show(disk("sda", "none [bfq] kyber\n"))) == {"sda": "bfq"}


def test_the_scheduler_of_a_partition_is_that_of_its_disk(sysfs, tmp_path):
    disk, show = sysfs
    partition = disk("nvme0n1", "[none] mq-deadline\n") / "nvme0n1p1"
    partition.mkdir()
    assert schedulers_of(str(tmp_path), show(partition)) == {"nvme0n1": "none"}


def test_the_schedulers_of_a_logical_volume_are_those_of_its_disks(sysfs, tmp_path):
    disk, show = sysfs
    below = [disk("sda", "[bfq] none\n"), disk("sdb", "[none]\n")]
    volume = disk("dm-0", "none\n")
    (volume / "slaves").mkdir()
    for one in below:
        (volume / "slaves" / one.name).symlink_to(one)
    assert schedulers_of(str(tmp_path), show(volume)) == {"sda": "bfq", "sdb": "none"}


def test_a_device_without_a_queue_and_a_missing_path_have_no_scheduler(sysfs, tmp_path):
    _, show = sysfs
    bare = tmp_path / "devices" / "odd" / "odd1"
    bare.mkdir(parents=True)
    assert schedulers_of(str(tmp_path), show(bare)) == {}
    assert schedulers_of(str(tmp_path / "missing")) == {}
    assert schedulers_of("/proc") == {}


def test_the_description_says_which_schedulers_obey_the_priority(monkeypatch):
    disks = {
        "/a": {"sda": "bfq", "sdb": "mq-deadline"},
        "/b": {"nvme0n1": "none", "nvme1n1": "kyber"},
        "/c": {},
    }
    monkeypatch.setattr("ciuic.system.priority.schedulers_of", disks.__getitem__)
    assert describe_schedulers(["/a", "/b", "/c"]) == (
        "honored by sda (bfq), sdb (mq-deadline); "
        "ignored by the I/O scheduler of nvme0n1 (none), nvme1n1 (kyber); "
        "scheduler unknown for /c"
    )


def test_without_a_wanted_priority_nothing_is_done():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert lower_priority("none") is None
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def lowered(io_priority):
    """Lower the priority of a new thread; return the message, I/O class, level and nice value."""
    found = []

    def lower():
        said = lower_priority(io_priority)
        thread_id = threading.get_native_id()
        io_class, level = psutil.Process(thread_id).ionice()
        found.append((said, io_class, level, os.getpriority(os.PRIO_PROCESS, thread_id)))

    thread = threading.Thread(target=lower)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("is_known_machine", [True, False])
def test_a_thread_gets_the_io_class_and_the_nice_value(monkeypatch, is_known_machine):
    if not is_known_machine:
        monkeypatch.setattr(priority, "_IOPRIO_SET", {})
    before = os.getpriority(os.PRIO_PROCESS, 0)

    said, io_class, _, nice = lowered("idle")
    assert (said, io_class, nice) == (None, psutil.IOPRIO_CLASS_IDLE, 19)
    assert lowered("best-effort") == (None, psutil.IOPRIO_CLASS_BE, 7, max(before, 10))
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "other threads keep theirs"


def test_a_system_call_that_fails_is_a_message(monkeypatch):
    monkeypatch.setitem(priority._IO_CLASSES, "idle", (7, 0))  # this class does not exist

    assert lower_priority("idle") == "the priority cannot be lowered: [Errno 22] Invalid argument"


@pytest.mark.parametrize("is_own", [True, False])
def test_a_session_of_its_own_is_lowered_and_no_other(is_own):
    own = Path("/proc/self/autogroup")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=is_own) as process:
        path = Path(f"/proc/{process.pid}/autogroup")
        before = own.read_text() if own.exists() else ""
        while not set_session_nice(process.pid, 10):
            pass  # the kernel refuses for a tenth of a second
        found = path.read_text() if path.exists() else ""
        process.stdin.close()

    assert (own.read_text() if own.exists() else "") == before
    if found and is_own:
        normal = int((before.split() or ["0"])[-1])  # empty below PID 1
        assert int(found.split()[-1]) == min(normal + 10, 19)
    else:
        assert found == before


def test_a_session_of_a_process_without_one_is_lowered_from_normal(tmp_path, monkeypatch):
    (tmp_path / "autogroup-self").write_text("")
    (tmp_path / "autogroup-7").write_text("")
    monkeypatch.setattr(os, "getsid", lambda pid: pid)

    assert set_session_nice(7, 10, path=str(tmp_path / "autogroup-{}"))

    assert (tmp_path / "autogroup-7").read_text() == "10"


@pytest.mark.parametrize("text", ["/autogroup-7", "words", None])
def test_a_kernel_without_groups_of_sessions_is_left_alone(tmp_path, monkeypatch, text):
    path = tmp_path / "autogroup-self"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(os, "getsid", lambda pid: pid)

    assert set_session_nice(7, 10, path=str(tmp_path / "autogroup-{}"))

    assert not (tmp_path / "autogroup-7").exists()


def test_a_refusal_is_reported_and_an_ended_process_is_not(monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError

    process = subprocess.Popen(["true"])
    process.wait()
    assert set_session_nice(process.pid, 10)
    monkeypatch.setattr(os, "getsid", refuse)
    assert not set_session_nice(1, 10)


@pytest.mark.root
def test_threads_get_their_priority_back_without_a_free_descriptor():
    both, is_over = threading.Barrier(2), threading.Event()
    found: list[bool] = []

    def give_way() -> None:
        found.append(idle_thread())
        both.wait(60)
        is_over.wait(60)
        found.append(os.sched_getscheduler(0) == os.SCHED_OTHER)

    thread = threading.Thread(target=give_way)
    thread.start()
    both.wait(60)
    taken: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(2))
        stop_idling()
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        is_over.set()
        thread.join()
    assert found == [True, True]
