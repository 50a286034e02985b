"""A rule that fires again and again does not keep every snapshot for good."""

import pytest

from ciuic.cli.alerting import Alerts
from ciuic.cli.guarding import JobEvents
from ciuic.cli.session import Session
from ciuic.guard.rules.language import parse_rule
from ciuic.guard.rules.watching import Finding
from ciuic.system.clock import SystemClock
from tests.kit.box import Box

RULE = parse_rule("spike", {"when": "loss > 5"})


def test_the_first_and_the_newest_snapshots_before_a_fault_stay_pinned(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciuic.cli.guarding._PINS_MAX", 3)
    clock = SystemClock()
    alerts = Alerts((), "j", clock)
    session = Session(str(box.config), None)
    events = JobEvents(session, "j", clock, lambda *_: None, has_store=True, alerts=alerts)
    taken = []
    for number in range(5):
        (box.source / "a").write_bytes(b"%d" % number)
        assert box.ciuic("snapshot").code == 0
        taken.append(box.snapshots()[0].id)
        for _ in range(2):  # twice before the same snapshot: one pin
            events.fired(Finding(RULE, number, seen_ns=clock.now_ns()))
            events.idle()
    pinned = {one.id for one in box.snapshots() if one.pinned}
    assert pinned == {taken[0], *taken[-2:]}
    assert capsys.readouterr().err.count("is now pinned") == 5


def test_a_pin_of_the_user_is_not_counted_and_not_removed(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciuic.cli.guarding._PINS_MAX", 2)
    clock = SystemClock()
    session = Session(str(box.config), None)
    events = JobEvents(
        session, "j", clock, lambda *_: None, has_store=True, alerts=Alerts((), "j", clock)
    )
    users = []
    for number in range(5):
        (box.source / "a").write_bytes(b"%d" % number)
        assert box.ciuic("snapshot").code == 0
        if number in {1, 2}:
            users.append(box.snapshots()[0].id)
            assert box.ciuic("pin", users[-1]).code == 0
        events.fired(Finding(RULE, number, seen_ns=clock.now_ns()))
        events.idle()
    pinned = {one.id for one in box.snapshots() if one.pinned}
    assert set(users) <= pinned
    assert len(pinned) == 2 + 2
