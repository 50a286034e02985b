"""A store that several machines write to."""

import os
import time
from pathlib import Path

import pytest

from ciuic.ids import DEFAULT_SCHEDULE
from ciuic.maintain.forget import apply_forget, plan_forget
from ciuic.model import SnapshotSummary
from ciuic.retention import parse_policy
from ciuic.snapshot import plan as plan_module
from ciuic.snapshot.memory import MemoryRequest, take_from_memory
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.report import TakeReport
from ciuic.snapshot.take import take_snapshot
from ciuic.store.store import open_store
from ciuic.system.machine import Machine, this_machine
from tests.kit.box import Box
from tests.kit.clock import ManualClock

__all__ = ["HERE", "HOUR_NS", "OTHER", "THIRD", "TWIN", "Shared"]

OTHER = Machine("gpu2", "0123456789abcdef")
TWIN = Machine(OTHER.name, "f" * 16)
HOUR_NS = 3_600 * 10**9
THIRD = Machine("gpu3", "3" * 16)
HERE = this_machine()


class Shared:
    """A store that several machines write to; each snapshot is an hour after the one before."""

    def __init__(self, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
        self.box, self._monkeypatch = box, monkeypatch
        self._now_ns = time.time_ns() - 100 * HOUR_NS

    def take(
        self, *roots: Path, on: Machine = HERE, schedule: str = DEFAULT_SCHEDULE, **more: object
    ) -> TakeReport:
        """Take a snapshot as another machine would."""
        self._now_ns += HOUR_NS
        request = TakeRequest(
            tuple(os.fsencode(root) for root in roots or (self.box.source,)),
            parity=0.0,
            schedule=schedule,
            **{"base_interval_s": 0.0, **more},
        )
        with (
            self._monkeypatch.context() as patch,
            open_store(str(self.box.store), write=True) as store,
        ):
            patch.setattr(plan_module, "this_machine", lambda: on)
            return take_snapshot(store, request, clock=ManualClock(self._now_ns))

    def pass_hours(self, count: int) -> None:
        self._now_ns += count * HOUR_NS

    def take_state(self) -> TakeReport:
        """Take a snapshot as the library does."""
        self._now_ns += HOUR_NS
        request = MemoryRequest((MemoryFile(b"x", (b"state",)),), parity=0.0)
        with open_store(str(self.box.store), write=True) as store:
            return take_from_memory(store, request, clock=ManualClock(self._now_ns))

    def listed(self) -> dict[str, SnapshotSummary]:
        return {summary.id: summary for summary in self.box.snapshots()}

    def forget(self, policy: str, host: str | None = None) -> list[str]:
        """Apply a policy; return the snapshots that it forgot."""
        with open_store(str(self.box.store), write=True) as store:
            plan = plan_forget(store, parse_policy(policy), time.time_ns(), host=host)
            apply_forget(store, plan, time.time_ns())
            return [summary.id for summary, _ in plan.forgotten]
