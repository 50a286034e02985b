"""Runs all checks, one subject after another.

Each check is a generator of findings. It trusts only what it reads itself, and runs even if a check
before it found a problem: without a valid configuration the store can be examined, without a store
the roots.
"""

import os
from collections.abc import Iterator

from ciuic.catalog import list_snapshots
from ciuic.copy.record import standings
from ciuic.errors import CiuicError
from ciuic.hints import aimed
from ciuic.maintain.scrub.pack_health import health
from ciuic.model import newest_first
from ciuic.report.doctor.checklist import examine_contacts
from ciuic.report.doctor.coverage import examine_coverage
from ciuic.report.doctor.findings import PROBLEM, Finding, Subject
from ciuic.report.doctor.machine import examine_alerting, examine_daemon, examine_machine
from ciuic.report.doctor.practice import examine_practice
from ciuic.report.doctor.roots import examine_root
from ciuic.report.doctor.snapshots import examine_snapshots
from ciuic.report.doctor.store import (
    examine_checks,
    examine_copies,
    examine_standing,
    examine_store,
)
from ciuic.store.addressed import open_at_address
from ciuic.system.clock import Clock
from ciuic.system.machine import this_machine

__all__ = ["examine"]


def examine(subject: Subject, *, clock: Clock) -> Iterator[Finding]:
    """Yield the findings of all checks; the commands in them reach the same store."""
    for finding in _examine(subject, clock):
        reach = subject.typed, subject.store_path or ""
        what, advice = (aimed(text, *reach) for text in (finding.what, finding.advice))
        yield finding._replace(what=what, advice=advice)


def _examine(subject: Subject, clock: Clock) -> Iterator[Finding]:
    plan = subject.plan
    roots = plan.roots if plan is not None else ()
    if subject.store_path is not None:
        try:
            with open_at_address(subject.store_path, os.environ, subject.options) as store:
                snapshots = list_snapshots(store)
                if plan is None and snapshots:
                    here = this_machine()
                    own = [one for one in snapshots if one.owner.machine.is_same(here)]
                    roots = newest_first(own or snapshots)[0].roots
                yield from examine_store(store, roots, snapshots, clock.now_ns())
                yield from examine_snapshots(store, snapshots, plan, clock.now_ns())
                yield from examine_checks(health(store, is_asked=False), clock.now_ns())
                yield from examine_copies(store, roots, plan)
                if plan is not None:
                    for copy in standings(store, plan.copies, clock.now_ns(), snapshots):
                        yield examine_standing(copy)
                yield from examine_practice(store, snapshots, clock.now_ns())
        except CiuicError as error:
            yield Finding(PROBLEM, "store", error.message, error.hint or "")
        except OSError as error:
            yield Finding(PROBLEM, "store", f"{subject.store_path}: {error}", "Repair its disk.")
    for root in roots:
        yield from examine_root(root)
    yield from examine_daemon(subject.daemon, subject.store_path)
    yield from examine_machine(subject)
    yield from examine_coverage(roots, subject.store_path)
    yield from examine_alerting(plan)
    yield from examine_contacts(plan)
