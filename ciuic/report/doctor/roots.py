"""Checks whether roots can be read, and how a snapshot will freeze them."""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from ciuic.model import path_text
from ciuic.report.doctor.findings import NOTE, OK, PROBLEM, Finding, join
from ciuic.source.freeze.interface import IN_PLACE
from ciuic.source.freeze.methods import REFLINK, SUBVOLUME, choose
from ciuic.source.mounts import Mount, PseudoMounts, mount_of, mounts
from ciuic.system.kernel import has_writer

__all__ = ["examine_root"]

_DIRECTORIES_MAX: Final = 100
_SEARCHED_MAX: Final = 5000


def examine_root(root: bytes) -> Iterator[Finding]:
    """Check a root: how it is frozen, what is mounted in it, whether open files can be seen."""
    about = path_text(root)
    try:
        status = os.stat(root)
        if not stat.S_ISDIR(status.st_mode):
            yield Finding(PROBLEM, about, "is not a directory", "Correct snapshot_paths.")
            return
        os.listdir(root)
    except OSError as error:
        advice = "Create or mount it, run doctor as root, or remove it from snapshot_paths."
        yield Finding(PROBLEM, about, os.strerror(error.errno or 0).lower(), advice)
        return
    real, known = os.path.realpath(root), mounts()
    mount = mount_of(real, known)
    if real != root:
        yield Finding(
            NOTE, about, f"is a symlink to {path_text(real)}; snapshots hold that directory"
        )
    yield _capture(root, mount)
    yield from _nested(root, real, mount, known)
    yield from _leases(root)


def _capture(root: bytes, mount: Mount | None) -> Finding:
    choice = choose(root)
    where = "on a file system that is not in the mount table"
    if mount is not None:
        where = f"{os.fsdecode(mount.kind)} mounted on {path_text(mount.point)}"
        where += ", read-only" if mount.is_readonly else ""
    how = {REFLINK: "by reflink", SUBVOLUME: "as a subvolume"}.get(choice.how, IN_PLACE)
    what = f"{where}; captured {how}, since {choice.why}"
    if choice.how == IN_PLACE:
        advice = (
            "This works. Only btrfs and XFS let a snapshot freeze all files within milliseconds."
        )
        return Finding(NOTE, path_text(root), what, advice)
    if choice.place is not None:
        what += f"; reflink copies go to {path_text(choice.place)}"
    return Finding(OK, path_text(root), what)


def _nested(
    root: bytes, real: bytes, mount: Mount | None, known: Iterable[Mount]
) -> Iterator[Finding]:
    below = real.rstrip(b"/") + b"/"
    pseudo = PseudoMounts()
    inside: dict[bytes, str] = {}
    for other in known:
        with contextlib.suppress(OSError):
            if other.point.startswith(below) and not pseudo.holds(os.stat(other.point)):
                inside[other.point] = os.fsdecode(other.kind)
    if mount is not None and mount.kind == b"btrfs":
        inside |= dict.fromkeys(_subvolumes(real, frozenset(inside)), "a btrfs subvolume")
    if not inside:
        return
    named = [f"{path_text(point)} ({kind})" for point, kind in sorted(inside.items())]
    what = f"holds {join(named)}: not frozen with the rest, captured in place"
    advice = "Add it to snapshot_paths if it must be frozen, or to exclude_patterns."
    yield Finding(NOTE, path_text(root), what, advice)


def _subvolumes(real: bytes, mounted: frozenset[bytes]) -> Iterator[bytes]:
    """Yield the subvolumes inside a btrfs root that a short search finds."""
    device = os.stat(real).st_dev
    waiting = [real]
    for _ in range(_SEARCHED_MAX):
        if not waiting:
            return
        with contextlib.suppress(OSError), os.scandir(waiting.pop(0)) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) or entry.path in mounted:
                    continue
                if entry.stat(follow_symlinks=False).st_dev != device:
                    yield entry.path
                else:
                    waiting.append(entry.path)


def _leases(root: bytes) -> Iterator[Finding]:
    path = _some_file(root)
    if path is None:
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_visible = has_writer(fd) is not None
    finally:
        os.close(fd)
    if is_visible:
        yield Finding(OK, path_text(root), "ciuic can see which files are open for writing")
    else:
        what = f"this user cannot see which files are open for writing: tried on {path_text(path)}"
        advice = "Take snapshots as root, or with CAP_LEASE. No network file system can tell."
        yield Finding(NOTE, path_text(root), what, advice)


def _some_file(root: bytes) -> bytes | None:
    """Return a readable regular file of a root, if a short search finds one."""
    waiting = [root]
    for _ in range(_DIRECTORIES_MAX):
        if not waiting:
            break
        with contextlib.suppress(OSError), os.scandir(waiting.pop(0)) as entries:
            for entry in itertools.islice(entries, _SEARCHED_MAX):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False) and os.access(entry.path, os.R_OK):
                    return entry.path
    return None
