"""``ciuicd --copy``: brings every snapshot to the configured copies, in a process of its own.

The daemon has no network, and a slow server must not delay a snapshot. systemd starts this process
when a snapshot or a mark was written, and from time to time. For each copy, directories first:

copy     the snapshots that it lacks, then changes of tags, pins and notes
forget   by the copy's own retention policy; without one, what was forgotten here
prune    what has been in the copy's trash for long enough

It ends when nothing new has come meanwhile. It may be killed at any moment, and continues.
"""

import contextlib
import functools
import logging
import os
import shlex
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.config.opening import open_configured
from ciuic.config.settings import CopyTo, Settings
from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.keep import Keeping
from ciuic.copy.labels import bring_back_there, forget_there
from ciuic.copy.report import CopyReport
from ciuic.errors import (
    CancelledError,
    CiuicError,
    ConfigError,
    MissingError,
    StoreError,
    UsageError,
)
from ciuic.store.place.keys import is_url
from ciuic.store.records.layout import HEADER
from ciuic.store.store import Store
from ciuic.system import nofollow
from ciuic.system.clock import Clock
from ciuic.system.priority import lower_priority
from ciuic.units import counted, format_bytes, format_duration
from ciuicd.attempt import attempt, sentence
from ciuicd.upkeep.damage_log import first_few
from ciuicd.upkeep.upkeep import Upkeep

__all__ = ["copy_all"]

_log = logging.getLogger(__name__)

_WAIT_S: Final = 60.0
"""How long to wait for another process that writes to a copy."""
_LOOK_S: Final = 6 * 3600.0
"""How often to look at a bucket if nothing is new: each look costs requests."""
_VERIFY: Final = "'ciuic verify --all --checksum' names the damaged paths"


def copy_all(settings: Settings, clock: Clock, cancelled: Callable[[], bool]) -> bool:
    """Bring every copy up to date; returns whether each of them is.

    Args:
        settings: The configuration.
        clock: Tells the time, and waits.
        cancelled: Asked often; ends the work when it turns true.

    Raises:
        ConfigError: The configuration names no copies.
    """
    if not settings.copies:
        raise ConfigError(
            f"{settings.path} names no copies",
            hint="Set copies, or run 'systemctl disable --now ciuic-copy.timer ciuic-copy.path'.",
        )
    problem = lower_priority(settings.io_priority)
    if problem is not None:
        _log.warning("%s", problem)
    # A server may be slow for days: a disk does not wait for it.
    waiting = sorted(settings.copies, key=lambda copy: is_url(copy.address))
    all_done = True
    while waiting and not cancelled():
        again = []
        for copy in waiting:
            failed = functools.partial(_failed, copy)
            is_done = False
            with attempt(failed):
                is_outdated = _bring(copy, settings, clock, cancelled)
                again += [copy] if is_outdated else []
                is_done = True
            all_done &= is_done
        waiting = again
    return all_done and not cancelled()


def _bring(copy: CopyTo, settings: Settings, clock: Clock, cancelled: Callable[[], bool]) -> bool:
    """Bring one copy up to date; returns whether something new has come meanwhile.

    Raises:
        CiuicError: It is not up to date.
    """
    report = CopyReport(copy=copy.address, dry_run=False)
    limit_bytes = copy.settings.copy_limit_bytes
    request = CopyRequest(parity=settings.parity, limit_bytes_per_s=limit_bytes)
    with open_configured(settings) as source:
        keeping = Keeping(source, copy.address, copy.settings.place_options, clock)
        if is_url(copy.address) and keeping.is_current(_LOOK_S):
            return False
        with keeping.recorded(report, is_all=True):
            _refuse_same(source, copy.address)
            with _opened(copy, cancelled) as there:
                keeping.note_store(there)
                if keeping.is_other:
                    _log.warning("%s has another store than before; it gets everything", copy.name)
                back = bring_back_there(source, there, keeping.record)
                copy_snapshots(
                    source,
                    there,
                    request,
                    report,
                    clock=clock,
                    sent=keeping.sent(),
                    cancelled=cancelled,
                )
                if not report.refused:
                    _follow(copy, source, there, keeping, clock)
                report.notes += keeping.note_differences(there, report)
        _tell(copy, report, len(back))
        if keeping.failure is not None:
            _log.warning("%s: its state cannot be recorded: %s", copy.name, keeping.failure.message)
        is_outdated = keeping.is_outdated()
    _keep_up(copy, clock, cancelled)
    if keeping.record.problem:
        hint = _VERIFY if report.is_damaged else ""
        if report.damaged_there:
            address = shlex.quote(copy.address)
            hint = f"'ciuic --store {address} repair' says what can be repaired there."
        raise StoreError(keeping.record.problem, hint=hint)
    return is_outdated


@contextlib.contextmanager
def _opened(copy: CopyTo, cancelled: Callable[[], bool]) -> Iterator[Store]:
    """Open a copy. It is not made here: its disk may not be mounted."""
    is_missing = False
    if not is_url(copy.address):
        is_missing = not nofollow.exists(os.path.join(copy.address, HEADER))
    with contextlib.ExitStack() as stack:
        try:
            there = stack.enter_context(
                open_configured(
                    copy.settings, write=True, only_adds=True, wait_s=_WAIT_S, cancelled=cancelled
                )
            )
        except StoreError as error:
            if is_missing or isinstance(error.__cause__, MissingError):
                init = f"'ciuic copy --to {shlex.quote(copy.name)} --init' makes the first copy."
                mount = "If its disk is not mounted, mount it; otherwise "
                hint = init if is_url(copy.address) else mount + init
                raise StoreError(error.message, hint=hint) from error
            raise
        yield there


def _follow(copy: CopyTo, source: Store, there: Store, keeping: Keeping, clock: Clock) -> None:
    """Forget in the copy what was forgotten here."""
    has_policy = bool(copy.settings.copy_retention)
    gone = forget_there(source, there, clock.now_ns(), library_only=has_policy)
    if gone:
        keeping.record.followed += gone
        names = first_few(list(gone))
        _log.info("%s: forgot %s, as here: %s", copy.name, counted(len(gone), "snapshot"), names)


def _keep_up(copy: CopyTo, clock: Clock, cancelled: Callable[[], bool]) -> None:
    """Forget by the copy's own policy, and prune."""
    policy = copy.settings.copy_retention
    # Scrubs and drills are for the daemon of a store.
    settings = copy.settings._replace(scrub_budget_s=0.0, drill_interval_s=0.0)
    upkeep = Upkeep(clock, lambda: None, store_id=None, copy=copy.name)
    if policy:
        settings = settings._replace(retention_policy=policy, top_retention_policy=policy)
        upkeep.after_snapshot(settings)
    upkeep.run(settings, cancelled, cancelled)


def _refuse_same(source: Store, address: str) -> None:
    """Refuse a copy that is the store itself, under another name.

    Raises:
        UsageError: It is.
    """
    if is_url(address):
        return
    try:
        there = nofollow.status(nofollow.resolved(address))
        is_same = os.path.samestat(nofollow.status(source.path), there)
    except OSError:
        return
    if is_same:
        raise UsageError(f"{address} is the store itself", hint="Name another directory.")


def _tell(copy: CopyTo, report: CopyReport, back: int) -> None:
    for note in report.notes:
        _log.warning("%s: %s", copy.name, note)
    if back:
        _log.info("%s: %s brought back, as here", copy.name, counted(back, "snapshot"))
    if report.copied or report.resent_chunks:
        _log.info(
            "%s: %s copied%s, %s sent, %s",
            copy.name,
            counted(len(report.copied), "snapshot"),
            f", {counted(report.resent_chunks, 'lost chunk')} sent again"
            if report.resent_chunks
            else "",
            format_bytes(report.sent_bytes),
            format_duration(report.total_s),
        )


def _failed(copy: CopyTo, error: CiuicError) -> None:
    if isinstance(error, CancelledError):
        _log.info("%s: the copy was interrupted; it continues later", copy.name)
    else:
        _log.error("%s: the copy failed: %s", copy.name, sentence(error))
