"""Log lines for damage that scrub finds: each finding once, its affected files once they are known.

The search for affected files may take days on a large store. A finding is therefore logged at
once, and ``pending`` keeps its report until the search is complete.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.maintain.scrub.damage_cost import DamagedFile
from ciuic.maintain.scrub.report import DamagedPack, ScrubReport, complete_costs, lost_before
from ciuic.maintain.scrub.subject import Subject, subject_at
from ciuic.model import path_text
from ciuic.store.place.keys import is_url
from ciuic.units import counted, format_bytes, format_duration, inflected, listed

__all__ = ["REPAIR_HINT", "DamageLog", "first_few", "subject_of"]

_log = logging.getLogger(__name__)

REPAIR_HINT: Final = "'ciuic repair' shows what can be repaired"
_COST_LATER: Final = "the affected files are logged once they are known"
_NAMED_MAX: Final = 5


class DamageLog:
    """Logs damage, and remembers what it has logged.

    Attributes:
        pending: Reports whose affected files are not all known yet.
    """

    def __init__(self) -> None:
        self.pending: list[ScrubReport] = []
        self._logged: set[tuple[str, str]] = set()
        self._has_recalled = False

    def is_news(self, where: str, what: str) -> bool:
        """Return whether a finding is new, and remember it: the caller logs it now."""
        is_known = (where, what) in self._logged
        self._logged.add((where, what))
        return not is_known

    def recall(self, settings: Settings) -> None:
        """Log chunks that earlier checks found lost, once: the daemon may have ended before it did.

        Raises:
            CiuicError: The store cannot be read.
        """
        if self._has_recalled or not settings.scrub_budget_s:
            return
        with open_configured(settings, patient=False) as store:
            report = lost_before(store)
        self._has_recalled = True
        if report is not None:
            self.pending.append(report)

    def log_pack(self, pack: DamagedPack) -> None:
        """Log a damaged pack, as soon as it is found."""
        name, what = pack.check.pack_id.hex(), pack.check.what
        if pack.is_new and self.is_news(name, what):
            _log.error("damage: pack %s: %s; %s. %s", name[:12], what, _loss(pack), REPAIR_HINT)

    def log_report(self, report: ScrubReport) -> None:
        """Log what a scrub read, and what it found besides packs."""
        if report.read_packs:
            unchecked = report.health.unchecked
            _log.info(
                "scrub: %s read, %s, %s: %s%s",
                counted(report.read_packs, "pack"),
                format_bytes(report.read_bytes),
                format_duration(report.total_s),
                "no damage" if report.ok else "there is damage",
                f"; {unchecked:,} {inflected(unchecked, 'was', 'were')} never read"
                if unchecked
                else "",
            )
        for warning in (*report.manifests, *report.unreachable):
            if self.is_news(os.fsdecode(warning.path), warning.what):
                _log.error("damage: %s: %s. %s", path_text(warning.path), warning.what, REPAIR_HINT)
        if report.not_remembered:
            _log.warning("the results of this scrub were not saved: %s", report.not_remembered)
        if report.damaged and not report.is_complete:
            self.pending.append(report)
        else:
            self._log_costs(report)

    def log_pending(self, settings: Settings, cancelled: Callable[[], bool]) -> None:
        """Search for the affected files of pending reports, and log those that are complete.

        Raises:
            CiuicError: The store cannot be read.
        """
        while self.pending and complete_costs(self.pending[0], subject_of(settings), cancelled):
            self._log_costs(self.pending.pop(0))

    def _log_costs(self, report: ScrubReport) -> None:
        if report.lost and report.missing:
            count = counted(len(report.lost), "chunk")
            _log.error("%s lost, found by an earlier scrub: %s", count, _cost(report.missing))
        elif report.missing and self.is_news("", cost := _cost(report.missing)):
            _log.error("damage: chunks are in no pack; %s", cost)
        for pack in report.damaged:
            name, cost = pack.check.pack_id.hex(), _cost(pack.files)
            if pack.is_new and pack.lost and self.is_news(name, cost):
                _log.error("damaged pack %s: %s", name[:12], cost)


def subject_of(settings: Settings) -> Subject:
    """Return the store of a configuration, to be scrubbed.

    Raises:
        CiuicError: There is no store, or it cannot be read.
    """
    address = settings.snapshot_dir
    options = settings.place_options if is_url(address) else None
    return subject_at(address, os.environ, options, owner=settings.store_owner)


def first_few(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    return listed(names[:_NAMED_MAX], len(names))


def _loss(pack: DamagedPack) -> str:
    if pack.lost:
        return f"{counted(len(pack.lost), 'chunk')} lost; {_COST_LATER}"
    if not pack.check.read_bytes:
        return _COST_LATER
    return "every chunk of it can still be read, from parity or from another pack"


def _cost(files: Sequence[DamagedFile]) -> str:
    if not files:
        return f"no further file is affected. {REPAIR_HINT}"
    first = files[0]
    affected = f"{counted(len(files), 'file')} affected"
    return (
        f"{affected}, first {path_text(first.path)} in {first_few(first.snapshots)}. {REPAIR_HINT}"
    )
