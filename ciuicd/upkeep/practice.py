"""The daemon's drills: a recovery is practiced every ``drill_interval``, without being asked.

Files are restored below ``$CACHE_DIRECTORY``, which the systemd unit provides, and removed again.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

from ciuic.catalog import list_snapshots
from ciuic.catalog.whose import of_this_machine
from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.drill.drill import DrillRequest, drill, practiced_ns, record_drill
from ciuic.drill.report import DrillReport
from ciuic.model import PathWarning, complete_ones, newest_first, path_text, preferred
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.units import counted, format_bytes, format_duration, format_files
from ciuicd.upkeep.outcomes import Outcomes, refuse_other

__all__ = ["Drills", "is_drill_due", "practice"]

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
_SCRATCH: Final = "/var/tmp"  # noqa: S108 - for a daemon without the unit, as for 'ciuic drill'
_DRILL_AGAIN_S: Final = 86_400.0
"""How long to wait after a drill that could not be done: a person may have to act first."""


class Drills:
    """Decides when to practice, and does it.

    Args:
        clock: Tells the time.
        outcomes: Receives the outcome.
        environ: Names the directory for restored files.
        store_id: The store to practice with; one with another ID is refused. None: any.
    """

    def __init__(
        self, clock: Clock, outcomes: Outcomes, environ: Mapping[str, str], store_id: str | None
    ) -> None:
        self._clock = clock
        self._outcomes = outcomes
        self._environ = environ
        self._store_id = store_id
        self._tried_s: float | None = None

    def is_due(self, settings: Settings) -> bool:
        """Return whether a drill is due, and none was tried in the last day.

        Raises:
            CiuicError: The store failed.
        """
        if not settings.drill_interval_s:
            return False
        tried_s = self._tried_s
        if tried_s is not None and self._clock.monotonic_s() - tried_s < _DRILL_AGAIN_S:
            return False
        with open_configured(settings, patient=False) as store:
            refuse_other(store, self._store_id)
            return is_drill_due(store, settings.drill_interval_s, self._clock.now_ns())

    def begin(self) -> None:
        """Count a drill as tried, even if it fails."""
        self._tried_s = self._clock.monotonic_s()

    def postpone(self) -> None:
        """Make a drill due again."""
        self._tried_s = None

    def run(self, settings: Settings, should_stop: Callable[[], bool]) -> None:
        """Practice.

        Raises:
            CiuicError: No drill was done.
        """
        report = practice(
            settings,
            clock=self._clock,
            environ=self._environ,
            cancelled=should_stop,
            store_id=self._store_id,
        )
        if report is not None:
            outcome = report.outcome or report.problem or None
            self._outcomes.note("drill", ok=report.ok, snapshot=report.snapshot_id, outcome=outcome)


def is_drill_due(store: Store, interval_s: float, now_ns: int) -> bool:
    """Return whether the last drill is too old, or without one, the oldest snapshot.

    A moment in the future was recorded before the clock was set back, and counts as too old.
    """
    since_ns = practiced_ns(store)
    if since_ns is None or not interval_s:
        return False
    return not 0 <= now_ns - since_ns < interval_s * _NS


def practice(
    settings: Settings,
    *,
    clock: Clock,
    environ: Mapping[str, str],
    cancelled: Callable[[], bool],
    store_id: str | None = None,
) -> DrillReport | None:
    """Restore a sample of the newest snapshot of this machine, compare it, record and log that.

    Args:
        settings: The configuration.
        clock: Tells the time.
        environ: Names the directory for restored files.
        cancelled: Asked often; when it turns true, the drill ends.
        store_id: The store; one with another ID is refused. None: any.

    Returns:
        The report; None if there is no snapshot.

    Raises:
        CiuicError: No drill was done.
    """
    scratch = environ.get("CACHE_DIRECTORY") or environ.get("TMPDIR") or _SCRATCH
    request = DrillRequest(scratch=os.path.abspath(scratch), seed=clock.now_ns())
    with open_configured(settings) as store:
        refuse_other(store, store_id)
        chosen, remark = of_this_machine(complete_ones(list_snapshots(store)))
        own = preferred(chosen, settings.scopes)
        if not own:
            return None
        if remark:
            _log.info("drill: %s", remark)
        manifest = store.manifest(newest_first(own)[0].id)
        report = drill(store, manifest, request, clock=clock, cancelled=cancelled)
    record_drill(
        lambda wait_s: open_configured(settings, write=True, wait_s=wait_s), report, clock.now_ns()
    )
    _tell(report)
    return report


def _tell(report: DrillReport) -> None:
    text = (
        f"drill: {format_files(report.files)} of {report.snapshot_id}"
        f" ({format_bytes(report.restored_bytes)}) restored in {format_duration(report.restore_s)}"
        " and compared"
    )
    if report.ok:
        loaded = sum(bool(found.by) for found in report.loaded)
        _log.info("%s; %s loaded", text, counted(loaded, "checkpoint"))
    elif report.problem:
        _log.warning("drill: %s", report.problem)
    else:
        first = _first(report)
        where = f", first {path_text(first.path)}: {first.what}" if first is not None else ""
        _log.error("%s; %s%s. Run 'ciuic drill', then 'ciuic repair'", text, report.outcome, where)
    if report.not_recorded:
        _log.warning("the drill is not on record: %s", report.not_recorded)


def _first(report: DrillReport) -> PathWarning | None:
    bad = [PathWarning(found.path, found.what) for found in report.unloadable]
    return next(iter((*report.damaged, *report.different, *report.unrestored, *bad)), None)
