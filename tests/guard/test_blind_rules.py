"""A guard reports what keeps it from seeing: a wrong name, another kind of log, a missing field."""

import json
import subprocess
from pathlib import Path

import pytest

from ciuic.guard.job.logs import JobLogs
from ciuic.guard.rules.language import Rule, parse_rule
from tests.kit.clock import ManualClock
from tests.kit.daemon import wait_until
from tests.kit.jobs import Run
from tests.kit.program import ciuic

RULES = (
    parse_rule("divergence", {"when": "loss rises more than 15% for 3 steps and gpu_util < 40"}),
    parse_rule("infinite", {"when": "loss is not finite"}),
)


def logs_of(log: Path, clock: ManualClock, rules: tuple[Rule, ...] = RULES) -> JobLogs:
    return JobLogs([bytes(log)], rules, clock)


def add(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def said(logs: JobLogs) -> list[str]:
    logs.poll()
    return logs.complaints()


@pytest.mark.parametrize("name", ["trian.jsonl", "rank*.jsonl"])
def test_a_log_that_never_appears_is_named_once(tmp_path: Path, name: str) -> None:
    clock = ManualClock()
    logs = logs_of(tmp_path / name, clock)
    clock.advance(119)
    assert said(logs) == []
    clock.advance(2)
    (what,) = said(logs)
    assert what.startswith(f"there is no log {tmp_path / name} after 2 m 00 s")
    clock.advance(1000)
    assert said(logs) == []


def test_a_log_that_appears_late_and_one_without_lines_are_no_mistake(tmp_path: Path) -> None:
    clock, log = ManualClock(), tmp_path / "log"
    logs = logs_of(log, clock)
    clock.advance(110)
    assert said(logs) == []
    log.touch()
    clock.advance(6)
    assert said(logs) == []
    clock.advance(600)
    assert said(logs) == []
    assert JobLogs((), (), clock).complaints() == []


def test_lines_without_steps_are_said_after_a_hundred(tmp_path: Path) -> None:
    log = tmp_path / "log"
    logs = logs_of(log, ManualClock())
    add(log, *[f"epoch 1, loss {number}" for number in range(99)])
    assert said(logs) == []
    add(log, '{"loss": 1}')
    (what,) = said(logs)
    assert what.startswith("none of the first 100 lines of its logs is a JSON object with a step")
    add(log, *['{"loss": 1}'] * 200)
    assert said(logs) == []


def test_a_field_that_no_step_has_is_named_with_its_rule(tmp_path: Path) -> None:
    log = tmp_path / "log"
    logs = logs_of(log, ManualClock())
    add(log, *[json.dumps({"step": at, "loss": 1.0}) for at in range(99)])
    assert said(logs) == []
    add(log, json.dumps({"step": 99, "loss": 1.0}))
    (what,) = said(logs)
    assert what.startswith("rule divergence could not look at any of 100 steps")
    assert what.endswith("; the last one lacks gpu_util")


def test_a_field_of_some_steps_is_enough(tmp_path: Path) -> None:
    log = tmp_path / "log"
    logs = logs_of(log, ManualClock())
    steps = [{"step": at, "loss": 1.0} | ({"gpu_util": 9} if at == 50 else {}) for at in range(150)]
    add(log, *map(json.dumps, steps))
    assert said(logs) == []


def test_run_says_it_on_stderr_and_as_an_alert(tmp_path: Path) -> None:
    log, heard, config = tmp_path / "log", tmp_path / "heard", tmp_path / "ciuic.conf"
    config.write_text(
        "[rule odd]\nwhen = train_loss > 5\n"
        f"[alert all]\ntype = command\ncommand = cat > {heard}.new; mv {heard}.new {heard}\n"
    )
    lines = [json.dumps({"step": at, "loss": 9}) for at in range(150)]
    wait = f"while [ ! -e {heard} ]; do sleep 0.1; done"
    write = f"cat > {log} <<END\n" + "\n".join(lines) + f"\nEND\n{wait}"
    arguments = ["--config", config, "run", "--job", "j", "--log", log, "--", "sh", "-c", write]
    with Run(*arguments) as job:
        assert job.end() == 0
        assert "warning: job j: rule odd could not look at any of 150 steps" in job.err
    assert json.loads(heard.read_text())["severity"] == "warning"


def test_each_log_that_is_not_there_is_named_at_the_start_and_at_the_end(tmp_path: Path) -> None:
    here, later, brief, never = (tmp_path / name for name in ("a", "b", "c*", "trian*"))
    here.touch()
    logs = [word for log in (here, later, brief, never) for word in ("--log", log)]
    with Run("run", "--job", "j", *logs, "--", "sh", "-c", f"touch {later} {tmp_path}/c1") as job:
        assert job.end() == 0
    named = [line for line in job.err.splitlines() if f"log {tmp_path}" in line]
    assert [line.split(": ", 1)[1] for line in named] == [
        f"there is no log {later} yet",
        f"there is no log {brief} yet",
        f"there is no log {never} yet",
        f"warning: job j: the log {never} never appeared, so no rule watched it",
    ]


@pytest.mark.parametrize("words", [("run",), ("watch", "--pid", "1")])
def test_a_directory_is_no_log(tmp_path: Path, words: tuple[str, ...]) -> None:
    touch = () if words[0] == "watch" else ("--", "touch", tmp_path / "started")
    done = ciuic(*words, "--log", tmp_path, *touch)
    assert done.code == 2
    assert "is a directory" in done.err
    assert not (tmp_path / "started").exists()


def test_watch_names_a_log_that_never_appears(tmp_path: Path) -> None:
    log = tmp_path / "trian"
    with (
        subprocess.Popen(["sleep", "600"]) as job,
        Run("watch", "--pid", str(job.pid), "--job", "j", "--log", log) as run,
    ):
        try:
            wait_until("it says so", lambda: f"no log {log} yet" in " ".join(run.err.split()))
        finally:
            job.kill()
        run.end()
    assert "trian never appeared, so no rule watched it" in " ".join(run.err.split())
