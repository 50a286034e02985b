"""Control groups for programs of a benchmark, as systemd gives each service one of its own.

ciuic slows down while programs in other groups wait. In one group with the training it cannot tell
its own waits from the training's, and slows down for both. No controller is turned on: the groups
change nothing but what the kernel counts.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Prefix", "group"]

Prefix = tuple[str, ...]
"""Words to put before a command; none if this user cannot make control groups."""
_ENTER = 'echo $$ > "$0" && exec "$@"'


@contextlib.contextmanager
def group(name: str) -> Iterator[Prefix]:
    """Yield what starts a command in a new control group; all of its processes end in the block."""
    mount = _mount()
    place = None if mount is None else mount / f"ciuic-bench-{os.getpid()}-{name}"
    try:
        if place is not None:
            place.mkdir()
    except OSError:
        place = None
    if place is None:
        yield ()
        return
    try:
        yield ("sh", "-c", _ENTER, str(place / "cgroup.procs"))
    finally:
        with contextlib.suppress(OSError):
            place.rmdir()


def _mount() -> Path | None:
    """Return where control groups of version 2 are mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        if source.startswith("cgroup2 "):
            return Path(fields.split()[4])
    return None
