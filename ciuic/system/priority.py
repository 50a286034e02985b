"""Low I/O and CPU priority for the threads that take snapshots.

Linux keeps both priorities for each thread, and a new thread inherits those of its creator. So
lowering the main thread lowers every thread that a snapshot starts. The thread of the daemon's
control socket already exists then and keeps its priority.

Only some I/O schedulers use the I/O class: bfq, and mq-deadline since Linux 5.14. Under ``none``,
the usual scheduler for NVMe, and under kyber it has no effect, so the daemon logs which schedulers
use it.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterable
from typing import Final

from ciuic.errors import ResourceError

__all__ = [
    "describe_schedulers",
    "idle_thread",
    "lower_priority",
    "schedulers_of",
    "set_session_nice",
    "stop_idling",
]

_HONORING: Final = {"bfq", "cfq", "mq-deadline"}
_AUTOGROUP: Final = "/proc/{}/autogroup"
_SYS_DEV_BLOCK: Final = "/sys/dev/block"
_NICE: Final = {"idle": 19, "best-effort": 10}
_LOWEST_LEVEL: Final = 7
_IO_CLASSES: Final = {"idle": (3, 0), "best-effort": (2, _LOWEST_LEVEL)}
"""The class and the level of each priority: ioprio_set(2)."""
_CLASS_SHIFT: Final = 13
_OF_PROCESS: Final = 1
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
"""The number of the system call, for which the C library has no function."""
_NO_PARAMETER: Final = os.sched_param(0)


def lower_priority(io_priority: str) -> str | None:
    """Lower the priority of the calling thread; returns a message if that failed.

    ``none`` changes nothing.
    """
    if io_priority not in _NICE:
        return None
    thread_id = threading.get_native_id()
    try:
        _set_io_class(thread_id, *_IO_CLASSES[io_priority])
        # Never raise it: the user chose the lower priority, and may lack the right to raise it.
        nice = max(os.getpriority(os.PRIO_PROCESS, thread_id), _NICE[io_priority])
        os.setpriority(os.PRIO_PROCESS, thread_id, nice)
    except OSError as error:
        return f"the priority cannot be lowered: {error}"
    return None


def idle_thread() -> bool:
    """Let the calling thread run only while no other program of its group wants the processor.

    The threads that it starts inherit this. A control group, or a session where the kernel groups
    by session, still gets its share beside other groups.

    Returns:
        False: nothing was changed, because ``stop_idling`` could not take it back, or because there
        can be no more threads. A process may leave SCHED_IDLE only with CAP_SYS_NICE, or if its
        limit of the nice value is 19 or lower.
    """
    # Imported here: only the daemon gives way.
    from ciuic.system.workers.threads import start

    found: list[bool] = []

    def probe() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, _NO_PARAMETER)
            os.sched_setscheduler(0, os.SCHED_OTHER, _NO_PARAMETER)
        except OSError:
            return
        found.append(True)

    # In a thread that ends: one that cannot leave would stay idle.
    thread = threading.Thread(target=probe)
    try:
        start(thread)
    except ResourceError:
        return False
    thread.join()
    if not found or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    os.sched_setscheduler(0, os.SCHED_IDLE, _NO_PARAMETER)
    return True


def stop_idling() -> None:
    """Give all threads of this process the priority back that they had before ``idle_thread``."""
    seen: set[str] = set()
    # An idle thread may start another one in the meantime.
    while threads := _thread_names() - seen:
        seen |= threads
        for name in threads:
            with contextlib.suppress(OSError):  # it has ended
                if os.sched_getscheduler(int(name)) == os.SCHED_IDLE:
                    os.sched_setscheduler(int(name), os.SCHED_OTHER, _NO_PARAMETER)


def _thread_names() -> set[str]:
    """Return the numbers of this process's threads; without a descriptor, those Python knows."""
    try:
        return set(os.listdir("/proc/self/task"))
    except OSError:
        return {str(thread.native_id) for thread in threading.enumerate() if thread.native_id}


def set_session_nice(pid: int, nice: int, *, path: str = _AUTOGROUP) -> bool:
    """Set the nice value of a session among all sessions, relative to that of this process.

    Where no control group does it, Linux divides the processors among sessions first. A nice value
    then counts only within its session: a process in a session of its own would take half of the
    machine from the program that has started it.

    Args:
        pid: The process that leads the session; of another process nothing is changed.
        nice: How much nicer it should be than this process's session; 0: as this one.
        path: The kernel's file for the session of a process.

    Returns:
        False: the kernel refuses now and may not later; users who are not root share ten changes
        in a second.
    """
    try:
        if os.getsid(pid) != pid:
            return True
        with open(path.format("self"), encoding="ascii") as file:
            # Empty: this process is in no session of its own, as below PID 1. It counts as normal.
            own = int(file.read().rpartition(" ")[2] or 0)
        with open(path.format(pid), "r+", encoding="ascii") as file:
            file.write(str(min(own + nice, _NICE["idle"])))
    except BlockingIOError:
        return False
    except (OSError, ValueError):
        return True  # the kernel has no such groups, or the process is gone
    return True


def _set_io_class(thread_id: int, io_class: int, level: int) -> None:
    """Set the I/O class of a thread, without the 10 ms that importing psutil takes."""
    import ctypes

    number = _IOPRIO_SET.get(os.uname().machine)
    if number is None or sys.maxsize < 1 << 32:
        # A 32-bit program has other numbers than its kernel's machine. psutil knows them.
        _set_io_class_anywhere(thread_id, io_class, level)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _OF_PROCESS, thread_id, io_class << _CLASS_SHIFT | level):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _set_io_class_anywhere(thread_id: int, io_class: int, level: int) -> None:
    import psutil

    try:
        psutil.Process(thread_id).ionice(io_class, level)
    except psutil.Error as error:
        raise OSError(str(error)) from error


def describe_schedulers(paths: Iterable[str]) -> str:
    """Return one line that says which disks under ``paths`` honor the I/O priority."""
    schedulers: dict[str, str] = {}
    unknown = []
    for path in paths:
        found = schedulers_of(path)
        schedulers |= found
        if not found:
            unknown.append(path)
    honoring: list[str] = []
    ignoring: list[str] = []
    for disk, name in sorted(schedulers.items()):
        (honoring if name in _HONORING else ignoring).append(f"{disk} ({name})")
    parts = []
    if honoring:
        parts.append(f"honored by {', '.join(honoring)}")
    if ignoring:
        parts.append(f"ignored by the I/O scheduler of {', '.join(ignoring)}")
    if unknown:
        parts.append(f"scheduler unknown for {', '.join(unknown)}")
    return "; ".join(parts)


def schedulers_of(path: str, sys_dev_block: str = _SYS_DEV_BLOCK) -> dict[str, str]:
    """Return the I/O scheduler of each disk that holds ``path``; empty if no disk is found."""
    try:
        device = os.stat(path).st_dev
    except OSError:
        return {}
    found = _disks(device, sys_dev_block)
    if found:
        return found
    # btrfs and others report a virtual device number; the mount table names the real device.
    source = _mount_source(os.path.realpath(path))
    try:
        return _disks(os.stat(source).st_rdev, sys_dev_block) if source else {}
    except OSError:
        return {}


def _mount_source(path: str) -> str | None:
    # Imported late: it takes 10 ms, and only doctor and the daemon ask for disks.
    import psutil

    # all=True includes network shares; otherwise, a path on a share would match the disk of /.
    under = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if f"{path}/".startswith(f"{mount.mountpoint.rstrip('/')}/")
    ]
    best = max(under, key=lambda mount: len(mount.mountpoint), default=None)
    return best.device if best is not None and best.device.startswith("/dev/") else None


def _disks(device: int, sys_dev_block: str) -> dict[str, str]:
    node = f"{sys_dev_block}/{os.major(device)}:{os.minor(device)}"
    return _disks_at(os.path.realpath(node)) if os.path.exists(node) else {}


def _disks_at(node: str) -> dict[str, str]:
    # For a logical volume, a RAID or an encrypted disk, the disks below it have the scheduler.
    below = os.path.join(node, "slaves")
    if os.path.isdir(below) and os.listdir(below):
        found: dict[str, str] = {}
        for name in os.listdir(below):
            found |= _disks_at(os.path.realpath(os.path.join(below, name)))
        return found
    # A partition has no queue; its directory is inside the directory of its disk, which has one.
    for place in (node, os.path.dirname(node)):
        try:
            with open(os.path.join(place, "queue", "scheduler"), "rb") as file:
                text = file.read(4096).decode("utf-8", "replace")
        except OSError:
            continue
        chosen = [word.strip("[]") for word in text.split() if word.startswith("[")]
        return {os.path.basename(place): chosen[0] if chosen else "none"}
    return {}
