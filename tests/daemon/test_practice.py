"""Drills of a real ciuicd: when one is due, what it reports, and that it leaves nothing behind."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ciuic.config.load import load_settings
from ciuic.control import request_status
from ciuic.drill.drill import last_drill
from ciuic.drill.report import DrillReport
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.index.places import DrillRecord
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuicd.upkeep.practice import is_drill_due, practice
from tests.kit.clock import ManualClock
from tests.kit.daemon import Machine, wait_until
from tests.kit.damage import flip_content

DAY_NS = 86_400 * 10**9


def take(machine: Machine, *, days_ago: float) -> str:
    clock = ManualClock(time.time_ns() - round(days_ago * DAY_NS))
    create_store(str(machine.store), clock)
    with open_store(str(machine.store), write=True) as store:
        request = TakeRequest(roots=(os.fsencode(machine.source),), base=True, parity=0)
        return take_snapshot(store, request, clock=clock).id


def recorded(machine: Machine) -> DrillRecord | None:
    with open_store(str(machine.store)) as store:
        return last_drill(store)


def practiced(machine: Machine, scratch: Path) -> DrillReport | None:
    return practice(
        load_settings(str(machine.config)),
        clock=SystemClock(),
        environ={"CACHE_DIRECTORY": str(scratch)},
        cancelled=lambda: False,
    )


def shown(machine: Machine) -> dict[str, Any]:
    status = request_status(str(machine.store))
    assert status is not None
    found: dict[str, Any] = status["upkeep"]["drill"]
    return found


@pytest.fixture
def scratch(machine: Machine) -> Path:
    path = machine.directory / "cache"
    path.mkdir()
    return path


def test_a_week_after_the_first_snapshot_the_daemon_runs_a_drill_and_records_it(
    machine: Machine, scratch: Path
) -> None:
    (machine.source / "more.txt").write_text("hello")
    take(machine, days_ago=8)
    machine.configure(drill_interval="7d")
    daemon = machine.start({"CACHE_DIRECTORY": str(scratch)})
    daemon.wait_for_log("drill: ")
    wait_until("it is on record", lambda: recorded(machine) is not None)
    wait_until("it is shown", lambda: shown(machine) is not None)

    newest = machine.snapshots()[0].id
    found = recorded(machine)
    assert found is not None
    assert (found.snapshot, found.files, found.outcome) == (newest, 2, "")
    assert shown(machine)["ok"] is True
    assert f"drill: 2 files of {newest}" in daemon.log()
    assert list(scratch.iterdir()) == []
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_a_drill_is_of_the_configured_directories(machine: Machine, scratch: Path) -> None:
    machine.configure()
    old = take(machine, days_ago=1)
    with open_store(str(machine.store), write=True) as store:
        request = TakeRequest(roots=(os.fsencode(scratch),), schedule="")
        take_snapshot(store, request, clock=SystemClock())

    report = practiced(machine, scratch)

    assert report is not None
    assert report.snapshot_id == old


def test_a_drill_of_a_snapshot_that_lost_all_files_is_a_warning(
    machine: Machine, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine.configure()
    old = take(machine, days_ago=2)
    for path in machine.source.iterdir():
        path.unlink()
    empty = take(machine, days_ago=1)

    report = practiced(machine, scratch)

    assert report is not None
    assert not report.ok
    assert f"drill: {empty} has no complete file" in caplog.text
    assert f"and {old} of " in caplog.text


def test_a_drill_that_finds_damage_logs_an_error_and_records_it(
    machine: Machine, scratch: Path
) -> None:
    take(machine, days_ago=8)
    flip_content(machine.store, (machine.source / "weights.bin").read_bytes())
    machine.configure(drill_interval="7d", base_interval="0", parity="0")
    daemon = machine.start({"CACHE_DIRECTORY": str(scratch)})
    daemon.wait_for_log(f"1 damaged, first {machine.source}/weights.bin: ")
    wait_until("it is shown", lambda: shown(machine) is not None)

    assert shown(machine)["ok"] is False
    found = recorded(machine)
    assert found is not None
    assert found.outcome == "1 damaged"
    assert list(scratch.iterdir()) == []
    assert daemon.stop() == 0


def test_a_drill_is_due_a_week_after_the_last_one_or_after_the_oldest_snapshot(
    machine: Machine,
) -> None:
    take(machine, days_ago=3)
    take(machine, days_ago=1)
    now_ns = time.time_ns()
    with open_store(str(machine.store), write=True) as store:
        assert not is_drill_due(store, 0, now_ns)
        assert is_drill_due(store, 2 * 86_400, now_ns)
        assert not is_drill_due(store, 4 * 86_400, now_ns)
        newest = machine.snapshots()[0].id
        store.index.put_drill(DrillRecord(now_ns - DAY_NS, newest, 1, 1, 1.0, False, ""))
        assert not is_drill_due(store, 2 * 86_400, now_ns)
        assert is_drill_due(store, 86_399, now_ns)
        assert is_drill_due(store, 2 * 86_400, now_ns - 2 * DAY_NS), "the clock was set back"
