"""Stepping back: idle I/O class and lowest CPU priority for the thread that takes snapshots.

Linux keeps both for each thread, and a thread begins with those of the one that started it. So
lowering the main thread lowers all that a snapshot starts, while the daemon's control socket, whose
thread is there already, keeps answering.

The I/O class only means something to some schedulers of the block layer: bfq, and mq-deadline
since Linux 5.14. Under ``none``, the usual one for NVMe, and under kyber it does nothing, which
is worth a line in the log.
"""

import os
import threading
from collections.abc import Iterable
from typing import Final

import psutil

__all__ = ["describe_schedulers", "lower_priority", "schedulers_of"]

_HONOURING: Final = {"bfq", "cfq", "mq-deadline"}
_SYS_DEV_BLOCK: Final = "/sys/dev/block"
_NICE: Final = {"idle": 19, "best-effort": 10}
_LOWEST_LEVEL: Final = 7


def lower_priority(io_priority: str) -> str | None:
    """Give the calling thread this priority; returns what could not be done, in words.

    ``none`` leaves everything as it is.
    """
    if io_priority not in _NICE:
        return None
    process = psutil.Process(threading.get_native_id())
    try:
        if io_priority == "idle":
            process.ionice(psutil.IOPRIO_CLASS_IDLE)
        else:
            process.ionice(psutil.IOPRIO_CLASS_BE, _LOWEST_LEVEL)
        # Never up: whoever started this at 19 meant it, and may not be allowed to anyway.
        process.nice(max(process.nice(), _NICE[io_priority]))
    except (OSError, psutil.Error) as error:
        return f"the priority can't be lowered: {error}"
    return None


def describe_schedulers(paths: Iterable[str]) -> str:
    """One line: which of the disks under ``paths`` heed the I/O priority, and which do not."""
    schedulers: dict[str, str] = {}
    unknown = []
    for path in paths:
        found = schedulers_of(path)
        schedulers |= found
        if not found:
            unknown.append(path)
    heed = [f"{disk} ({name})" for disk, name in sorted(schedulers.items()) if name in _HONOURING]
    ignore = [
        f"{disk} ({name})" for disk, name in sorted(schedulers.items()) if name not in _HONOURING
    ]
    parts = []
    if heed:
        parts.append(f"heeded by {', '.join(heed)}")
    if ignore:
        parts.append(f"without effect on {', '.join(ignore)}, whose scheduler knows none")
    if unknown:
        parts.append(f"can't be told for {', '.join(unknown)}")
    return "; ".join(parts)


def schedulers_of(path: str, sys_dev_block: str = _SYS_DEV_BLOCK) -> dict[str, str]:
    """The disks that hold ``path`` and the I/O scheduler of each; empty if it has none."""
    try:
        device = os.stat(path).st_dev
    except OSError:
        return {}
    found = _disks(device, sys_dev_block)
    if found:
        return found
    # btrfs and others report a device number of their own; the mount table names the real one.
    source = _mount_source(os.path.realpath(path))
    try:
        return _disks(os.stat(source).st_rdev, sys_dev_block) if source else {}
    except OSError:
        return {}


def _mount_source(path: str) -> str | None:
    # All of them, or a path on a network share would be taken for one on the disk of /.
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
    # A logical volume, a RAID or an encrypted disk: what counts is what lies below it.
    below = os.path.join(node, "slaves")
    if os.path.isdir(below) and os.listdir(below):
        found: dict[str, str] = {}
        for name in os.listdir(below):
            found |= _disks_at(os.path.realpath(os.path.join(below, name)))
        return found
    # A partition has no queue of its own; it lies in its disk's directory.
    for place in (node, os.path.dirname(node)):
        try:
            with open(os.path.join(place, "queue", "scheduler"), "rb") as file:
                text = file.read(4096).decode("utf-8", "replace")
        except OSError:
            continue
        chosen = [word.strip("[]") for word in text.split() if word.startswith("[")]
        return {os.path.basename(place): chosen[0] if chosen else "none"}
    return {}
