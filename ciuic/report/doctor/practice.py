"""Checks whether a recovery was practiced, and how it went."""

from collections.abc import Iterable, Iterator
from typing import Final

from ciuic.drill.drill import last_drill
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.report.doctor.findings import NOTE, NS, OK, PROBLEM, Finding
from ciuic.store.store import Store
from ciuic.system.machine import this_machine
from ciuic.units import format_bytes, format_duration, format_files

__all__ = ["examine_practice"]

_FRESH_S: Final = 35 * 86_400.0
"""A drill a month, and a few days' grace."""
_NAME_MAX: Final = 80
_HOW: Final = "Run 'ciuic drill' once a month; keep the steps where you can read them without this"


def examine_practice(
    store: Store, snapshots: Iterable[SnapshotSummary], now_ns: int
) -> Iterator[Finding]:
    """Report the last drill on this store; one of another machine's snapshot proves little here."""
    last = last_drill(store)
    if last is None:
        what = "no drill is on record, so nothing shows that a restore works here"
        yield Finding(NOTE, "practice", what, f"{_HOW} machine.")
        return
    age_s = max(0, now_ns - last.done_ns) / NS
    which = "full drill" if last.is_full else "drill"
    what = (
        f"a {which} {format_duration(age_s)} ago restored {format_files(last.files)}"
        f" ({format_bytes(last.restored_bytes)}) of {last.snapshot} in"
        f" {format_duration(last.restore_s)}"
    )
    if last.outcome:
        advice = "Run 'ciuic drill' again: it names the paths. 'ciuic repair' shows what helps."
        yield Finding(PROBLEM, "practice", f"{what}; {last.outcome}", advice)
    elif other := _other_machine(last.snapshot, snapshots):
        what = f"{what}, a snapshot of {other}, so nothing shows that a restore of this machine's"
        yield Finding(NOTE, "practice", f"{what} snapshots works", f"{_HOW} machine.")
    elif not last.files:
        what = f"{what}, so nothing shows that a restore works here"
        yield Finding(NOTE, "practice", what, f"{_HOW} machine.")
    elif age_s > _FRESH_S:
        yield Finding(NOTE, "practice", f"{what}, too long ago", f"{_HOW} machine.")
    else:
        yield Finding(OK, "practice", what)


def _other_machine(snapshot_id: str, snapshots: Iterable[SnapshotSummary]) -> str:
    """Return which machine took a snapshot; empty: this one, or this one has none."""
    owners = {one.id: one.owner.machine for one in snapshots}
    here = this_machine()
    own = [machine for machine in owners.values() if machine.is_same(here)]
    machine = owners.get(SnapshotId(snapshot_id), here)
    return machine.name[:_NAME_MAX] if own and not machine.is_same(here) else ""
