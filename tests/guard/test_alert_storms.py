"""A fault that begins again and again: few messages, and the right state at the end."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ciuic.cli.alerting import Alerts
from ciuic.guard.alerts.channels import Channel
from ciuic.guard.alerts.message import Message
from tests.kit.clock import ManualClock
from tests.kit.daemon import wait_until
from tests.kit.jobs import Run

CHANNEL = Channel("all", "command", "warning", {"command": "true"})


def job(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> tuple[Alerts, list[tuple[str, str, str]]]:
    """Return the alerts of a job, and the messages that they send."""
    sent: list[tuple[str, str, str]] = []

    def start(_channels: object, message: Message, _last: object) -> list[int]:
        sent.append((message.event, message.key.rpartition("/")[2], message.text))
        return []

    monkeypatch.setattr("ciuic.guard.alerts.deliver.start_delivery", start)
    return Alerts([CHANNEL], "j", clock), sent


def test_after_three_beginnings_in_ten_minutes_the_rest_is_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    alerts, sent = job(clock, monkeypatch)
    for number in range(50):
        alerts.began("rule spike", "warning", f"loss {number}")
        alerts.ended("rule spike", "warning", f"fine {number}")
        alerts.idle()
        clock.advance(2)
    assert [event for event, _, _ in sent] == ["began", "ended"] * 3
    alerts.began("failure", "critical", "it failed")
    assert sent[-1] == ("began", "failure", "it failed"), "another fault is told at once"

    alerts.began("rule spike", "warning", "loss 99")
    clock.advance(600)
    alerts.idle()
    more = "loss 99; since then, this began 48 more times"
    assert sent[7:] == [("began", "rule spike", more)]
    alerts.ended("rule spike", "warning", "fine")
    alerts.idle()
    assert sent[8:] == [("ended", "rule spike", "fine")]


def test_rules_that_fire_at_once_are_one_message_and_their_ends_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alerts, sent = job(ManualClock(), monkeypatch)
    for name in "abcd":
        severity = "critical" if name == "c" else "warning"
        alerts.began(f"rule {name}", severity, f"job j: {name} fired", rule=name, step=7)
    alerts.began("failure", "critical", "it failed")
    listed = "a fired; b fired; c fired; d fired"
    assert sent == [
        ("began", "several rules", f"job j: 4 rules fired: {listed}"),
        ("began", "failure", "it failed"),
    ]
    for name in "cd":
        alerts.ended(f"rule {name}", "warning", "fine")
    alerts.began("rule e", "warning", "e fired", rule="e")
    alerts.idle()
    left = "job j: 2 rules fired: a fired; b fired; no longer: c fired; d fired"
    assert sent[2:] == [("began", "rule e", "e fired"), ("began", "several rules", left)]
    for name in "abe":
        alerts.ended(f"rule {name}", "warning", f"{name} is fine")
    alerts.wait()
    assert sent[4:] == [
        ("ended", "rule e", "e is fine"),
        ("ended", "several rules", "job j: no longer: a fired; b fired"),
    ]


moves_of_rules = st.lists(
    st.one_of(st.tuples(st.sampled_from("abcde"), st.booleans()), st.none()), max_size=40
)


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None)
@given(moves_of_rules)
# It ends and begins again before any message is sent.
@example([*[(name, True) for name in "abcd"], None, ("a", False), ("a", True)])
@example([*[(name, True) for name in "abcd"], None, ("a", False), ("a", True), ("a", False)])
@example([*[(name, True) for name in "abcd"], None, *[(n, False) for n in "abcd"], ("a", True)])
def test_after_any_course_of_rules_what_was_told_last_of_each_is_true(
    moves: list[tuple[str, bool] | None],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = ManualClock()
        alerts, sent = job(clock, patch)
        is_open = dict.fromkeys("abcde", False)
        for move in moves:
            if move is None:
                alerts.idle()
                clock.advance(601)
            else:
                name, begins = move
                (alerts.began if begins else alerts.ended)(f"rule {name}", "warning", f"<{name}>")
                is_open[name] = begins
        alerts.wait()
        told = dict.fromkeys(is_open, False)
        group: set[str] = set()
        for event, key, text in sent:
            now, _, over = text.partition("no longer: ")
            if key == "several rules":
                new = {name for name in told if f"<{name}>" in now}
                assert event == ("began" if new else "ended")
                assert group - new <= {name for name in told if f"<{name}>" in over}
                for name in group | new:
                    told[name] = name in new
                group = new
            else:
                told[key.split()[1]] = event == "began"
        assert told == is_open


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.sampled_from([0, 1, 200, 601]))))
def test_what_was_told_last_is_true_in_the_end_and_no_fault_is_untold(
    moves: list[tuple[str, bool, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = ManualClock()
        alerts, sent = job(clock, patch)
        is_open, begun = {"a": False, "b": False}, {"a": 0, "b": 0}
        began_s = {"a": [], "b": []}
        for fault, begins, wait_s in moves:
            if begins and not is_open[fault]:
                begun[fault] += 1
                began_s[fault].append(clock.monotonic_s())
            (alerts.began if begins else alerts.ended)(fault, "critical", "text")
            is_open[fault] = begins
            clock.advance(wait_s)
            alerts.idle()
        alerts.wait()
        for fault, expected in is_open.items():
            told = [event for event, key, _ in sent if key == fault]
            assert told == ["began", "ended"] * (len(told) // 2) + ["began"] * (len(told) % 2)
            assert (told[-1:] == ["began"]) == expected
            known = sum(event == "began" and key == fault for event, key, _ in sent)
            more = [text for event, key, text in sent if event == "began" and " more time" in text
                    and key.split(" ")[0] == fault]  # fmt: skip
            counted = sum(
                int(text.split("began ")[1].split(" ")[0].replace(",", "")) for text in more
            )
            plain = known - sum(key == fault and " more time" in text
                                for event, key, text in sent if event == "began")  # fmt: skip
            assert plain + counted == begun[fault]


def test_a_rule_that_flutters_starts_few_processes(tmp_path: Path) -> None:
    log, heard, config = tmp_path / "log", tmp_path / "heard", tmp_path / "ciuic.conf"
    config.write_text(
        "[rule high]\nwhen = loss > 5\n"
        f"[alert all]\ntype = command\ncommand = cat > {heard}/$$; mv {heard}/$$ {heard}/$$.json\n"
    )
    heard.mkdir()
    lines = [json.dumps({"step": at, "loss": 9 * (at % 2)}) for at in range(200)]
    write = f"cat > {log} <<END\n" + "\n".join(lines) + "\nEND\n"
    arguments = ["--config", config, "run", "--job", "j", "--log", log, "--", "sh", "-c", write]
    with Run(*arguments) as running:
        assert running.end() == 0
    # Three beginnings and ends, and the last state.
    wait_until("all messages came", lambda: len(list(heard.glob("*.json"))) >= 7)
    found = [json.loads(path.read_bytes()) for path in heard.glob("*.json")]
    assert len(found) == 7
    (last,) = (one["text"] for one in found if "more times" in one["text"])
    assert last.endswith("; since then, this began 97 more times")


def test_a_training_that_diverges_sends_one_message_for_all_of_its_rules(tmp_path: Path) -> None:
    log, heard, config = tmp_path / "log", tmp_path / "heard", tmp_path / "ciuic.conf"
    fields = ["loss", "norm", "entropy", "value", "clip"]
    config.write_text(
        "".join(f"[rule {field}]\nwhen = {field} is not finite\n" for field in fields)
        + f"[alert all]\ntype = command\ncommand = cat > {heard}/$$; mv {heard}/$$ {heard}/$$.js\n"
    )
    heard.mkdir()
    good, bad = dict.fromkeys(fields, 1.0), dict.fromkeys(fields, float("nan"))
    lines = [json.dumps({"step": 1} | good), json.dumps({"step": 2} | bad)]
    write = f"cat > {log} <<END\n" + "\n".join(lines) + "\nEND\n"
    arguments = ["--config", config, "run", "--job", "j", "--log", log, "--", "sh", "-c", write]
    with Run(*arguments) as running:
        assert running.end() == 0
    assert running.err.count("critical: job j: ") == 5, "the terminal has each"
    wait_until("it came", lambda: bool(list(heard.glob("*.js"))))
    (found,) = (json.loads(path.read_bytes()) for path in heard.glob("*.js"))
    assert found["key"].endswith("/several rules")
    assert found["rule"] == "loss, norm, entropy, value, clip"
    assert (found["step"], found["go_back_step"]) == (2, 1)
    assert found["text"].startswith("job j: 5 rules fired: loss at step 2: loss was nan; go back")
