"""The limits on open files and on memory of this process."""

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Final

__all__ = ["memory_room_bytes", "raise_open_files_limit"]

_WANTED: Final = 65_536


def raise_open_files_limit() -> int:
    """Raise the soft limit on open files as far as is useful; returns how many can still be opened.

    The usual limit is 1024. A walk holds one descriptor for each level of directories, and a batch
    of files one for each directory.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    obtained = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < obtained:
        resource.setrlimit(resource.RLIMIT_NOFILE, (obtained, hard))
    # The snapshot may run in a training process, which has open files of its own.
    with contextlib.suppress(OSError):
        obtained -= len(os.listdir("/proc/self/fd"))
    return max(obtained, 0)


def memory_room_bytes() -> int | None:
    """Return how many bytes this process can take before the machine or a control group has none.

    This is generous: pages of files that the kernel can drop count as room, and so does all swap.
    If a process takes more, the kernel kills it or another one: no call fails. That holds for
    posix_fallocate(3) of shared memory, too.

    Returns:
        None: it is unknown.
    """
    machine = _numbers("/proc/meminfo")
    rooms = [room for place in _memory_groups() if (room := _room_bytes(place)) is not None]
    if "MemAvailable:" in machine:
        rooms.append(machine["MemAvailable:"] * 1024)
    return min(rooms) + machine.get("SwapFree:", 0) * 1024 if rooms else None


def _memory_groups() -> Iterator[str]:
    """Yield the directories of this process's control groups, and of those above them."""
    own = {}
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.rstrip("\n").split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    for line in _lines("/proc/self/mountinfo"):
        fields = line.split()
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        controller = "" if kind == "cgroup2" else "memory"
        if kind != "cgroup2" and (kind != "cgroup" or controller not in options):
            continue
        # In a container, the path may be that of the host: then only the topmost is seen.
        below = os.path.relpath(own.get(controller, "/"), fields[3])
        while below not in {"", "."} and not below.startswith(".."):
            yield os.path.join(fields[4], below)
            below = os.path.dirname(below)
        yield fields[4]


def _room_bytes(place: str) -> int | None:
    """Return what is left in a control group; None: it has no limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        # ValueError: the limit is "max".
        with contextlib.suppress(OSError, ValueError):
            left_bytes = _number(f"{place}/{limit}") - _number(f"{place}/{used}")
            return max(0, left_bytes + _droppable_bytes(place))
    return None


def _droppable_bytes(place: str) -> int:
    """Return what the kernel may take back: pages of files, and its own caches."""
    found = _numbers(f"{place}/memory.stat")
    # In version 1, only these two include the groups below, and another file has the kernel's part.
    names = ["total_inactive_file", "total_active_file"]
    if names[0] not in found:
        names = ["inactive_file", "active_file", "slab_reclaimable"]
    with contextlib.suppress(OSError, ValueError):
        found["kernel"] = _number(f"{place}/memory.kmem.usage_in_bytes")
    return sum([found.get(name, 0) for name in [*names, "kernel"]])


def _numbers(path: str) -> dict[str, int]:
    """Return the number behind each name in a file of the kernel."""
    words = [line.split() for line in _lines(path)]
    return {found[0]: int(found[1]) for found in words if len(found) > 1 and found[1].isdigit()}


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.readlines()
    return []
