"""How long other programs have waited for the disk and for a processor.

The kernel counts this for the machine and for each cgroup (Documentation/accounting/psi.rst): the
microseconds during which at least one process waited. ciuic's own waits must not slow it down. So
if ciuic is alone in its cgroup, as under systemd, only other cgroups count: the children of each
cgroup above it, without the branch that ciuic is in. The training is in one of them. Otherwise the
machine as a whole counts, ciuic included.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["RESOURCES", "Pressure", "pressure_of_others"]

RESOURCES: Final = ("io", "cpu")
_PROC: Final = "/proc"
_GROUPS_MAX: Final = 64
_SOME: Final = re.compile(rb"^some .*\btotal=(\d+)", re.MULTILINE)


class Pressure:
    """Reads the counters of some directories.

    Args:
        files: For each resource, the files to read; they may appear and vanish.
    """

    def __init__(self, files: Mapping[str, Iterable[str]]) -> None:
        self._files = {resource: tuple(paths) for resource, paths in files.items()}

    @property
    def is_known(self) -> bool:
        """At least one file can be read."""
        return bool(self.waited_us())

    def waited_us(self) -> dict[tuple[str, str], int]:
        """Return, for each resource and file, how long something has waited since the start."""
        found = {}
        for resource, paths in self._files.items():
            for path in paths:
                # EOPNOTSUPP: the kernel was started with psi=0.
                with contextlib.suppress(OSError), open(path, "rb") as file:
                    match = _SOME.search(file.read(1024))
                    if match is not None:
                        found[resource, path] = int(match[1])
        return found


def pressure_of_others(proc: str = _PROC) -> Pressure:
    """Return the pressure on everything but this process, as far as the kernel can tell it.

    Args:
        proc: Where procfs is mounted.
    """
    groups = _other_groups(proc)
    return Pressure(
        {
            resource: [f"{group}/{resource}.pressure" for group in groups]
            or [f"{proc}/pressure/{resource}"]
            for resource in RESOURCES
        }
    )


def _other_groups(proc: str) -> list[str]:
    """Return the cgroups beside this process; none if it shares its own, or there are too many."""
    own = _own_group(proc)
    if own is None:
        return []
    place, inner = own
    branch = [place, *inner.strip("/").split("/")] if inner.strip("/") else [place]
    found = []
    try:
        if not _is_alone("/".join(branch), proc):
            return []
        for depth in range(1, len(branch) + 1):
            parent = "/".join(branch[:depth])
            inward = branch[depth] if depth < len(branch) else None
            with os.scandir(parent) as entries:
                found += [
                    entry.path for entry in entries if entry.is_dir() and entry.name != inward
                ]
    except OSError:
        return []
    return sorted(found) if len(found) <= _GROUPS_MAX else []


def _own_group(proc: str) -> tuple[str, str] | None:
    """Return where cgroups (version 2) are mounted, and the path of this process's own in there."""
    try:
        with open(f"{proc}/self/cgroup") as file:
            inner = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
        with open(f"{proc}/self/mountinfo") as file:
            for line in file:
                fields, _, source = line.partition(" - ")
                if source.startswith("cgroup2 "):
                    root, place = fields.split()[3:5]
                    if inner is None or root != "/" or ".." in inner.split("/"):
                        return None
                    return place, inner
    except OSError:
        pass
    return None


def _is_alone(group: str, proc: str) -> bool:
    """Return whether a cgroup holds only this process and its children."""
    with open(f"{group}/cgroup.procs") as file:
        others = set(map(int, file.read().split())) - {os.getpid()}
    return all(_parent_of(process_id, proc) == os.getpid() for process_id in others)


def _parent_of(process_id: int, proc: str) -> int:
    with open(f"{proc}/{process_id}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])  # proc(5), "stat"
