"""A rule that fires again and again pins the snapshot before its first fault, and no other."""

import pytest

from ciuic.cli.alerting import Alerts
from ciuic.cli.guarding import JobEvents
from ciuic.cli.session import Session
from ciuic.guard.rules.language import parse_rule
from ciuic.guard.rules.watching import Finding
from ciuic.system.clock import SystemClock
from tests.kit.box import Box

RULE = parse_rule("spike", {"when": "loss > 5"})


@pytest.mark.parametrize("is_pinned_by_user", [False, True])
def test_later_snapshots_are_suspect_and_the_pins_of_the_user_stay(
    box: Box, capsys: pytest.CaptureFixture[str], *, is_pinned_by_user: bool
) -> None:
    clock = SystemClock()
    alerts = Alerts((), "j", clock)
    session = Session(str(box.config), None)
    events = JobEvents(session, "j", clock, lambda *_: None, has_store=True, alerts=alerts)
    taken = []
    for number in range(4):
        (box.source / "a").write_bytes(b"%d" % number)
        assert box.ciuic("snapshot").code == 0
        taken.append(box.snapshots()[0].id)
        if is_pinned_by_user:
            assert box.ciuic("pin", taken[-1]).code == 0
        for _ in range(2):  # a loss that spikes again and again
            events.fired(Finding(RULE, number, good_ns=clock.now_ns()), is_paused=False)
            events.idle()
        events.mark()

    pinned = {one.id for one in box.snapshots() if one.pinned}
    assert pinned == (set(taken) if is_pinned_by_user else {taken[0]})
    assert [one.id for one in box.snapshots() if "suspect" not in one.tags] == [taken[0]]
    what = "was pinned already" if is_pinned_by_user else "is now pinned"
    said = capsys.readouterr().err
    assert said.count("was taken before the fault") == 1
    assert f"snapshot {taken[0]} was taken before the fault, and {what}" in said
