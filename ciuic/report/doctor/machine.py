"""Checks the daemon, libraries, schedulers of disks, pacing, inotify and the alert of a failure."""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from ciuic.chunking.content import IS_COMPILED
from ciuic.documents import Document
from ciuic.errors import CiuicError, UnresponsiveError
from ciuic.hints import pip_install
from ciuic.model import path_text
from ciuic.report.doctor.findings import NOTE, OK, PROBLEM, WARNING, Finding, Plan, Subject, join
from ciuic.snapshot.pace.disk_waits import are_disk_waits_counted
from ciuic.snapshot.pace.pressure import pressure_of_others
from ciuic.store.place.keys import is_url
from ciuic.system.core import VARIABLE, state
from ciuic.system.priority import describe_schedulers
from ciuic.units import counted, format_duration

__all__ = ["examine_alerting", "examine_daemon", "examine_machine"]

_WATCHES_WANTED: Final = 1024
_INSTANCES_WANTED: Final = 8
_INOTIFY: Final = "/proc/sys/fs/inotify"
_UNIT_PLACES: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)
_UNIT: Final = "ciuicd.service"
_TIMER: Final = "ciuic-alerts.timer"
_NO_DAEMON: Final = (
    "no daemon serves this store, so no scheduled snapshots are taken",
    "Run 'systemctl enable --now ciuicd'; without systemd, start ciuicd.",
)
_NO_DAEMON_SEEN: Final = (
    "no daemon of this user serves this store",
    "If one of another user does, run 'ciuic doctor' as that user, such as with sudo; if none does,"
    " run 'systemctl enable --now ciuicd'; without systemd, start ciuicd.",
)
"""In a bucket: the socket is in the cache directory of the daemon's user."""
_ENABLED: Final = f"/etc/systemd/system/timers.target.wants/{_TIMER}"


def examine_daemon(
    status: Document | CiuicError | None, store_path: str | None
) -> Iterator[Finding]:
    """Check whether the daemon answers and takes snapshots, and whether one or a hook failed."""
    if isinstance(status, CiuicError):
        level = PROBLEM if isinstance(status, UnresponsiveError) else WARNING
        yield Finding(level, "daemon", status.message, status.hint or "")
    elif status is None:
        if store_path is not None:
            what, advice = _NO_DAEMON if not is_url(store_path) else _NO_DAEMON_SEEN
            yield Finding(WARNING, "daemon", what, advice)
    else:
        findings = list(_of_daemon(status))
        yield from findings
        if not any(finding.level == PROBLEM for finding in findings) and not status.get("paused"):
            yield Finding(OK, "daemon", f"runs as process {status.get('pid')}")


def _of_daemon(status: Document) -> Iterator[Finding]:
    """Find what is wrong with a daemon that answers."""
    stalled_s = status.get("stalled_s")
    if isinstance(stalled_s, (int, float)):
        what = f"its work has made no progress for {format_duration(stalled_s)}"
        advice = "Check the disks (journalctl -k), then run 'systemctl restart ciuicd'."
        yield Finding(PROBLEM, "daemon", what, advice)
    blocked = status.get("blocked")
    if isinstance(blocked, dict):
        yield Finding(PROBLEM, "daemon", str(blocked.get("message")), str(blocked.get("hint")))
    elif status.get("replaced"):
        what = "ciuic was changed on disk, and the daemon is about to start again from it"
        yield Finding(NOTE, "daemon", what, "Run doctor again in a minute: it says if that fails.")
    error = status.get("last_error")
    if isinstance(error, dict):
        what = f"its last attempt failed: {error.get('message')}"
        yield Finding(PROBLEM, "daemon", what, str(error.get("hint") or ""))
    for failure in status.get("hook_trouble") or ():
        what = f"at its last snapshot, {failure}"
        yield Finding(
            WARNING, "daemon", what, "Read its log; under systemd, with 'journalctl -u ciuicd'."
        )
    if status.get("paused"):
        yield Finding(WARNING, "daemon", "paused", "Run 'ciuic resume' to end the pause.")


def _core() -> Finding:
    found = state()
    if found.core is not None:
        return Finding(NOTE if found.is_chosen else OK, "core", found.what)
    what = f"the compiled core is {found.what}: slower code in Python and numpy runs instead"
    if found.is_chosen:
        return Finding(NOTE, "core", what, f"Unset {VARIABLE}.")
    advice = (
        "Install a C compiler and Python's headers, then install ciuic again; or set 'parity = 0'."
    )
    return Finding(WARNING, "core", what, advice)


def _cuts() -> Iterator[Finding]:
    if not IS_COMPILED:
        what = "pyfastcdc lacks its compiled extension: no file is cut by its content"
        build = pip_install("--force-reinstall", "--no-binary", "pyfastcdc", "pyfastcdc")
        advice = f"Install a wheel of it, or a C compiler and then: {build}"
        yield Finding(NOTE, "chunking", what, advice)


def examine_machine(subject: Subject) -> Iterator[Finding]:
    """Check libraries, disk schedulers, what the kernel measures, and inotify."""
    yield _core()
    yield from _cuts()
    yield from _io_priority(subject.plan, subject.store_path)
    yield _pacing()
    yield _inotify()


def _io_priority(plan: Plan | None, store_path: str | None) -> Iterator[Finding]:
    if plan is None or plan.io_priority == "none":
        return
    roots = [path_text(root) for root in plan.roots]
    if store_path is not None and not is_url(store_path):
        roots.append(store_path)
    text = describe_schedulers(roots)
    effect = f"{plan.io_priority}: {text}"
    if "ignored by" in text:
        advice = "Let the disk use mq-deadline or bfq, or limit the daemon with IOWeight=."
        yield Finding(NOTE, "I/O priority", effect, advice)
    else:
        yield Finding(OK, "I/O priority", effect)


def _pacing() -> Finding:
    has_pressure, has_waits = pressure_of_others().is_known, are_disk_waits_counted()
    advice = [] if has_pressure else ["Boot the kernel with psi=1."]
    if not has_waits:
        advice.append(
            "Put 'kernel.task_delayacct = 1' into a file in /etc/sysctl.d, run 'sysctl --system',"
            " and then start the trainings."
        )
    by = ["pressure-stall information"] if has_pressure else []
    by += ["the disk waits of trainings"] if has_waits else []
    what = f"the daemon's snapshots slow down for other programs by {' and '.join(by)}"
    if not by:
        what = (
            "the kernel does not measure for how long programs wait, so snapshots never slow down"
        )
    elif not has_waits:
        what += " alone: the kernel does not count the disk waits of each program"
    return Finding(NOTE if advice else OK, "pacing", what, " ".join(advice))


def _inotify() -> Finding:
    watches = _number(f"{_INOTIFY}/max_user_watches")
    instances = _number(f"{_INOTIFY}/max_user_instances")
    what = (
        f"{counted(watches, 'watch', 'watches')} and {counted(instances, 'instance')} for each user"
    )
    if watches < _WATCHES_WANTED or instances < _INSTANCES_WANTED:
        advice = "Raise fs.inotify in /etc/sysctl.d; until then the daemon polls open files."
        return Finding(NOTE, "inotify", what, advice)
    return Finding(OK, "inotify", what)


def _number(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return int(file.read(64))
    except (OSError, ValueError):
        return 0


def examine_alerting(plan: Plan | None) -> Iterator[Finding]:
    """Check whether anything tells people that the daemon failed."""
    channels = () if plan is None else plan.channels
    if not _has_alert():
        enable = f"'systemctl enable --now {_TIMER}'."
        yield Finding(
            NOTE,
            "alerting",
            "systemd sends no alert when the daemon fails or snapshots are missing",
            f"Run {enable}" if channels else f"Add an [alert NAME] section, and run {enable}",
        )
    elif channels:
        what = f"faults are reported by {join(channels)}; --test-alerts sends a test message"
        yield Finding(OK, "alerting", what)
    else:
        yield Finding(OK, "alerting", "systemd reports a daemon that failed")


def _has_alert() -> bool:
    if os.path.lexists(_ENABLED):
        return True
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
