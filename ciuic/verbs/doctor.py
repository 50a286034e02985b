"""What a machine can tell of whether the worst day would end well. Nothing here changes anything.

Each look is a generator of findings that believes nothing it has not just seen, and goes on where
the one before it found a ruin: a broken configuration still leaves a store to be looked at, a
missing store still leaves roots.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ciuic.capture.frozen import frozen_snapshots, is_short_of_space
from ciuic.capture.kernel import has_writer
from ciuic.capture.providers import IN_PLACE, REFLINK, SUBVOLUME, choose
from ciuic.catalog import damaged_manifests, list_snapshots
from ciuic.chunking.content import IS_COMPILED
from ciuic.clock import Clock, is_future, local_time_text
from ciuic.errors import CiuicError
from ciuic.model import SnapshotSummary, newest_first, path_text
from ciuic.priority import describe_schedulers, schedulers_of
from ciuic.scan import Mount, PseudoMounts, mount_of, mounts
from ciuic.store import Store, layout, open_store
from ciuic.store.galois import ParityUnavailableError
from ciuic.store.header import ALLOW_SHARED
from ciuic.store.leftovers import unreachable_leftovers
from ciuic.store.parity import coder_for
from ciuic.units import format_bytes, format_duration
from ciuic.verbs.scrub import Health, health

__all__ = ["LEVELS", "NOTE", "OK", "PROBLEM", "WARNING", "Finding", "Plan", "Subject", "examine"]

OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
LEVELS: Final = (OK, NOTE, WARNING, PROBLEM)

_NS: Final = 1_000_000_000
_CHECKED_S: Final = 60 * 86_400
"""Every pack should have been read in this time: rot that parity can mend gets no better."""
_FREE_FRACTION: Final = 0.05
_FREE_BYTES: Final = 1 << 30
_NAMED_MAX: Final = 5
_SEARCHED_MAX: Final = 5000
_WATCHES_WANTED: Final = 1024
_INSTANCES_WANTED: Final = 8
_INOTIFY: Final = "/proc/sys/fs/inotify"
_UNIT_PLACES: Final = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system")
_UNIT: Final = "ciuicd.service"


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        level: One of ``LEVELS``.
        about: What it is about: "store", "daemon", a root's path.
        what: How it stands, one clause.
        advice: What to do next; empty where nothing need be done.
    """

    level: str
    about: str
    what: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        """One element of ``ciuic doctor --json``."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Plan:
    """What the configuration wants."""

    roots: tuple[bytes, ...]
    interval_s: float
    base_interval_s: float
    hot_snapshots: int
    io_priority: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What to look at.

    Attributes:
        store_path: None if nothing names a store.
        plan: None without a configuration that can be used.
        daemon: Its status, or what it is that keeps it from answering; None if none runs.
    """

    store_path: str | None
    plan: Plan | None
    daemon: dict[str, Any] | CiuicError | None


def examine(subject: Subject, *, clock: Clock) -> Iterator[Finding]:
    """Look at everything, one finding at a time."""
    plan = subject.plan
    roots = plan.roots if plan is not None else ()
    if subject.store_path is not None:
        try:
            with open_store(subject.store_path) as store:
                snapshots = list_snapshots(store)
                if plan is None and snapshots:
                    roots = newest_first(snapshots)[0].roots
                yield from _store(store, roots)
                yield from _snapshots(store, snapshots, plan, clock.now_ns())
                yield from _checks(health(store), clock.now_ns())
                yield from _frozen(store, roots, plan)
        except CiuicError as error:
            yield Finding(PROBLEM, "store", error.message, error.hint or "")
        except OSError as error:
            yield Finding(PROBLEM, "store", f"{subject.store_path}: {error}", "Mend its disk.")
    for root in roots:
        yield from _root(root)
    yield from _daemon(subject.daemon, subject.store_path)
    yield from _machine(subject)
    yield from _practice()


def _store(store: Store, roots: Iterable[bytes]) -> Iterator[Finding]:
    yield Finding(OK, "store", f"{store.path} opens, format {store.header.format}")
    yield from _permissions(store.path)
    for one in unreachable_leftovers(store.path).values():
        yield Finding(PROBLEM, "store", one.message, one.hint)
    space = os.statvfs(store.path)
    free_bytes = space.f_bavail * space.f_frsize
    is_short = free_bytes < min(_FREE_BYTES, _FREE_FRACTION * space.f_blocks * space.f_frsize)
    free = f"{format_bytes(free_bytes)} free on its file system"
    if is_short or (space.f_files and not space.f_favail):
        yield Finding(PROBLEM, "store", free, "Make room, or snapshots will fail.")
    else:
        yield Finding(OK, "store", free)
    together = [path_text(root) for root in roots if _share_a_disk(os.fsencode(store.path), root)]
    if together:
        yield Finding(
            WARNING,
            "store",
            f"on the same disk as {_listed(together)}: one dead disk takes both",
            "Put the store on another disk, or copy it to another machine regularly.",
        )


def _permissions(store_path: str) -> Iterator[Finding]:
    names = ("", layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY)
    places = [os.path.join(store_path, name).rstrip("/") for name in names]
    modes = {}
    for place in places:
        with contextlib.suppress(OSError):
            modes[place] = os.stat(place)
    top = modes.get(places[0])
    if top is None:
        return
    writable = [place for place, status in modes.items() if status.st_mode & 0o022]
    fix = f"chmod -R go-rwx {store_path}"
    if writable:
        what = f"other users can write to {_listed(writable)}, which {ALLOW_SHARED} allows"
        yield Finding(WARNING, "store", what, fix)
    elif top.st_mode & 0o055:
        what = f"other users may read every file in every snapshot: mode {top.st_mode & 0o7777:04o}"
        yield Finding(WARNING, "store", what, fix)
    else:
        yield Finding(OK, "store", "nobody but its owner may read or write it")
    if not os.access(store_path, os.W_OK):
        what = f"may be read by this user and not written: it belongs to user {top.st_uid}"
        yield Finding(NOTE, "store", what, "Run ciuic as that user to take snapshots by hand.")


def _share_a_disk(store_path: bytes, root: bytes) -> bool:
    with contextlib.suppress(OSError):
        if os.stat(store_path).st_dev == os.stat(root).st_dev:
            return True
    disks = set(schedulers_of(os.fsdecode(store_path)))
    return bool(disks & set(schedulers_of(os.fsdecode(root))))


def _snapshots(
    store: Store, snapshots: list[SnapshotSummary], plan: Plan | None, now_ns: int
) -> Iterator[Finding]:
    for name, what in sorted(damaged_manifests(store).items()):
        advice = "Run 'ciuic repair': the store keeps copies of manifests with the parity."
        yield Finding(PROBLEM, "snapshots", f"the manifest of {name} is damaged: {what}", advice)
    future = [one for one in snapshots if is_future(one.taken_ns, now_ns)]
    if future:
        when = local_time_text(future[0].taken_ns)
        what = f"{len(future)} of the future, the newest of {when}: the clock is wrong or was"
        advice = (
            "Set the clock, and see that it is kept (chronyd). No policy takes them before their"
            " time: 'ciuic forget ID' does."
        )
        yield Finding(WARNING, "clock", what, advice)
    else:
        yield Finding(OK, "clock", "no snapshot is of the future")
    if not snapshots:
        yield Finding(WARNING, "snapshots", "there is none yet", "Run 'ciuic snapshot'.")
        return
    yield from _ages([one for one in snapshots if one not in future], plan, now_ns)
    newest = newest_first(snapshots)[0]
    yield from _trouble(store, newest)
    if plan is not None:
        held = [root.rstrip(b"/") + b"/" for root in newest.roots]
        left = [path_text(one) for one in plan.roots if not (one + b"/").startswith(tuple(held))]
        if left:
            what = f"{newest.id} does not hold {_listed(left)}"
            yield Finding(PROBLEM, "snapshots", what, "Run 'ciuic snapshot', then doctor again.")


def _trouble(store: Store, newest: SnapshotSummary) -> Iterator[Finding]:
    if not newest.trouble_count:
        yield Finding(OK, "snapshots", f"{newest.id} has every path as it should be")
        return
    # A log that is always open is nothing to be warned of every day.
    is_flux = newest.flux_count == newest.trouble_count
    bad = next((one for one in store.manifest(newest.id).trouble if not one.harmless), None)
    count = "1 path" if newest.trouble_count == 1 else f"{newest.trouble_count} paths"
    what = f"{newest.id} has {count} {'in flux' if is_flux else 'in trouble'}"
    if bad is not None:
        how = bad.what.removeprefix("in flux: ") if is_flux else bad.what
        what += f", first {path_text(bad.path)}: {how}"
    level = NOTE if is_flux else WARNING
    yield Finding(level, "snapshots", what, f"See them all: 'ciuic show {newest.id}'.")


def _ages(snapshots: list[SnapshotSummary], plan: Plan | None, now_ns: int) -> Iterator[Finding]:
    if not snapshots:
        return
    age_s = max(0, now_ns - snapshots[0].taken_ns) / _NS
    what = f"the newest is {format_duration(age_s)} old"
    base = next((one for one in snapshots if one.kind == "base"), None)
    base_age_s = max(0, now_ns - base.taken_ns) / _NS if base is not None else None
    if base_age_s is not None:
        what += f", the newest base {format_duration(base_age_s)}"
    if plan is None:
        yield Finding(OK, "snapshots", what)
        return
    # One may be under way: it counts from when it is whole.
    if age_s > 2 * plan.interval_s + 60:
        what += f"; one is wanted every {format_duration(plan.interval_s)}"
        advice = "See what the daemon says: journalctl -u ciuicd; or run 'ciuic snapshot'."
        yield Finding(PROBLEM, "snapshots", what, advice)
    else:
        yield Finding(OK, "snapshots", what)
    late_s = 2 * plan.base_interval_s + plan.interval_s
    if plan.base_interval_s and (base_age_s is None or base_age_s > late_s):
        wanted = f"a base is wanted every {format_duration(plan.base_interval_s)}"
        yield Finding(WARNING, "snapshots", wanted, "Run 'ciuic snapshot --base'.")


def _checks(known: Health, now_ns: int) -> Iterator[Finding]:
    """What scrubs have found, and how long ago that was."""
    if not known.packs:
        return
    if known.damaged:
        packs = len(known.damaged)
        what = f"{packs:,} of {known.packs:,} packs damaged, {known.lost_chunks:,} chunks lost"
        advice = "'ciuic repair' shows what can be mended; 'ciuic verify --all' names the files."
        yield Finding(PROBLEM, "checks", what, advice)
    if known.oldest_ns is None:
        what = f"{known.unchecked:,} of {known.packs:,} packs were not read since they were written"
        advice = "The daemon does that little by little (scrub_budget); 'ciuic scrub' does it now."
        yield Finding(NOTE, "checks", what, advice)
        return
    age_s = max(0, now_ns - known.oldest_ns) / _NS
    what = f"every pack was read within the last {format_duration(age_s)}"
    if age_s > _CHECKED_S:
        advice = "Run 'ciuic scrub', or give the daemon a larger scrub_budget."
        yield Finding(WARNING, "checks", what, advice)
    elif not known.damaged:
        yield Finding(OK, "checks", f"{what}, and is sound")


def _frozen(store: Store, roots: Iterable[bytes], plan: Plan | None) -> Iterator[Finding]:
    areas = frozen_snapshots(store.header.store_id, roots)
    for area, names in areas:
        what = f"{area} holds frozen copies of {_listed(names) if names else 'no snapshot'}"
        free = os.statvfs(area)
        what += f", {format_bytes(free.f_bavail * free.f_frsize)} free there"
        if is_short_of_space(os.fsencode(area)):
            advice = "Make room: frozen copies are given up while it lasts, and none are made."
            yield Finding(WARNING, "frozen copies", what, advice)
        else:
            yield Finding(OK, "frozen copies", what)
    if plan is not None and not plan.hot_snapshots:
        what = "none are kept: hot_snapshots is 0"
        yield Finding(NOTE, "frozen copies", what, "Set it to 1 for instant rollback.")


def _root(root: bytes) -> Iterator[Finding]:
    about = path_text(root)
    try:
        status = os.stat(root)
        if not stat.S_ISDIR(status.st_mode):
            yield Finding(PROBLEM, about, "is not a directory", "Correct snapshot_paths.")
            return
        os.listdir(root)
    except OSError as error:
        advice = "Make or mount it, run doctor as root, or take it out of snapshot_paths."
        yield Finding(PROBLEM, about, os.strerror(error.errno or 0).lower(), advice)
        return
    real, known = os.path.realpath(root), mounts()
    mount = mount_of(real, known)
    if real != root:
        yield Finding(NOTE, about, f"is a symlink to {path_text(real)}, which is what is taken")
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
        advice = "Works; on btrfs or XFS a snapshot would freeze all files within milliseconds."
        return Finding(NOTE, path_text(root), what, advice)
    if choice.place is not None:
        what += f"; frozen copies go to {path_text(choice.place)}"
    return Finding(OK, path_text(root), what)


def _nested(
    root: bytes, real: bytes, mount: Mount | None, known: Iterable[Mount]
) -> Iterator[Finding]:
    below = real.rstrip(b"/") + b"/"
    pseudo = PseudoMounts()
    inside: dict[bytes, str] = {}
    for one in known:
        with contextlib.suppress(OSError):
            if one.point.startswith(below) and not pseudo.holds(os.stat(one.point)):
                inside[one.point] = os.fsdecode(one.kind)
    if mount is not None and mount.kind == b"btrfs":
        inside |= dict.fromkeys(_subvolumes(real, frozenset(inside)), "a btrfs subvolume")
    if not inside:
        return
    named = [f"{path_text(point)} ({kind})" for point, kind in sorted(inside.items())]
    what = f"holds {_listed(named)}: not frozen with the rest, captured in place"
    advice = "Name it in snapshot_paths by itself if it must be frozen, or in exclude_patterns."
    yield Finding(NOTE, path_text(root), what, advice)


def _subvolumes(real: bytes, mounted: frozenset[bytes]) -> Iterator[bytes]:
    """Other subvolumes in a btrfs root, as far as a short search finds them."""
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
        is_known = has_writer(fd) is not None
    finally:
        os.close(fd)
    if is_known:
        yield Finding(OK, path_text(root), "files that somebody is writing are told from others")
    else:
        what = f"this user can't tell who is writing to a file: tried on {path_text(path)}"
        advice = "Take snapshots as root, or with CAP_LEASE; a network file system can't tell."
        yield Finding(NOTE, path_text(root), what, advice)


def _some_file(root: bytes) -> bytes | None:
    """A regular file of a root that can be read, if a short search finds one."""
    waiting = [root]
    for _ in range(100):
        if not waiting:
            break
        with contextlib.suppress(OSError), os.scandir(waiting.pop(0)) as entries:
            for entry in itertools.islice(entries, _SEARCHED_MAX):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False) and os.access(entry.path, os.R_OK):
                    return entry.path
    return None


def _daemon(
    status: dict[str, Any] | CiuicError | None, store_path: str | None
) -> Iterator[Finding]:
    if isinstance(status, CiuicError):
        yield Finding(WARNING, "daemon", status.message, status.hint or "")
    elif status is None:
        if store_path is not None:
            advice = "Run 'systemctl enable --now ciuicd'."
            what = "none serves this store: no snapshots by schedule"
            yield Finding(WARNING, "daemon", what, advice)
    else:
        error = status.get("last_error")
        if isinstance(error, dict):
            what = f"its last try failed: {error.get('message')}"
            yield Finding(PROBLEM, "daemon", what, str(error.get("hint") or ""))
        if status.get("paused"):
            yield Finding(WARNING, "daemon", "paused", "'systemctl restart ciuicd' ends that.")
        elif error is None:
            yield Finding(OK, "daemon", f"runs as process {status.get('pid')}")


def _parity() -> Iterator[Finding]:
    try:
        coder_for(1, 1)
    except ParityUnavailableError as error:
        yield Finding(WARNING, "parity", error.message, error.hint)


def _cuts() -> Iterator[Finding]:
    if not IS_COMPILED:
        what = "pyfastcdc is here without its extension: no file is cut by its content"
        advice = "Install a wheel of it, or a C compiler and then 'pip install --force-reinstall"
        yield Finding(NOTE, "chunking", what, f"{advice} --no-binary pyfastcdc pyfastcdc'.")


def _machine(subject: Subject) -> Iterator[Finding]:
    plan = subject.plan
    yield from _parity()
    yield from _cuts()
    if plan is not None and plan.io_priority != "none":
        places = [path_text(root) for root in plan.roots]
        text = describe_schedulers([*places, *filter(None, [subject.store_path])])
        effect = f"{plan.io_priority}: {text}"
        if "without effect" in text:
            advice = "Let the disk use mq-deadline or bfq, or bound the daemon by IOWeight=."
            yield Finding(NOTE, "I/O priority", effect, advice)
        else:
            yield Finding(OK, "I/O priority", effect)
    watches = _number(f"{_INOTIFY}/max_user_watches")
    instances = _number(f"{_INOTIFY}/max_user_instances")
    what = f"{watches:,} watches and {instances:,} instances for each user"
    if watches < _WATCHES_WANTED or instances < _INSTANCES_WANTED:
        advice = "Raise fs.inotify in /etc/sysctl.d; until then files in flux are polled."
        yield Finding(NOTE, "inotify", what, advice)
    else:
        yield Finding(OK, "inotify", what)


def _number(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return int(file.read(64))
    except (OSError, ValueError):
        return 0


def _practice() -> Iterator[Finding]:
    """The part of a recovery checklist that only people can answer, and what answers it."""
    if not _tells_of_failures():
        yield Finding(
            NOTE,
            "alerting",
            "systemd tells nobody when the daemon fails",
            f"Set OnFailure= for {_UNIT}: 'systemctl edit {_UNIT}'.",
        )
    yield Finding(
        NOTE,
        "practice",
        "no machine knows whether a restore has been tried lately",
        "Once a month: 'ciuic verify --checksum', then 'ciuic restore' into an empty directory;"
        " write the steps down where they can be read when this machine can't.",
    )


def _tells_of_failures() -> bool:
    for place in _UNIT_PLACES:
        files = [os.path.join(place, _UNIT)]
        drop_ins = os.path.join(place, f"{_UNIT}.d")
        with contextlib.suppress(OSError):
            files += [os.path.join(drop_ins, name) for name in os.listdir(drop_ins)]
        for path in files:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if any(line.startswith(b"OnFailure=") for line in file):
                    return True
    return False


def _listed(names: list[str]) -> str:
    some = ", ".join(names[:_NAMED_MAX])
    more = len(names) - _NAMED_MAX
    return f"{some} and {more} more" if more > 0 else some
