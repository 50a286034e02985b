"""Trainings that ignore SIGTERM or fork away: real processes under a real ``ciuic run``."""

import os
import signal
from pathlib import Path

import pytest

from tests.kit.daemon import wait_until
from tests.kit.jobs import WITHOUT_CGROUP, Run, state

IGNORES = "trap '' TERM; echo $$ > {file}; while :; do sleep 0.05; done"

WRAPPERS = [
    pytest.param((), id="as the machine has it"),
    pytest.param(WITHOUT_CGROUP, id="without a cgroup", marks=pytest.mark.root),
]


def pid_in(file: Path) -> int:
    wait_until("it runs", lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


def test_a_training_that_ignores_sigterm_goes_on_and_stays_guarded(tmp_path: Path) -> None:
    file, log = tmp_path / "pid", tmp_path / "log"
    config = tmp_path / "ciuic.conf"
    config.write_text("[rule high]\nwhen = loss > 5\n")
    with Run(
        "--config", config, "run", "--log", log, "--", "sh", "-c", IGNORES.format(file=file)
    ) as run:
        pid = pid_in(file)
        run.send(signal.SIGTERM)
        log.write_text('{"step": 1, "loss": 9}\n')
        run.waits_for("high at step 1: loss was 9")
        assert state(pid) == "running"
        os.kill(pid, signal.SIGKILL)
        assert run.end() == -signal.SIGKILL


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_worker_that_ignores_sigterm_and_forked_away_has_ended_before_the_restart(
    tmp_path: Path, wrapper: tuple[str, ...]
) -> None:
    file, count = tmp_path / "pid", tmp_path / "count"
    # Two forks and a session of its own, like a daemon.
    worker = f"(setsid sh -c '{IGNORES.format(file=file)}' >/dev/null 2>&1 &)".replace(
        "trap '' TERM", 'trap "" TERM'
    )
    check = f"kill -0 $(cat {file}) 2>/dev/null && exit 99; exit 0"
    first = f"{worker}; while [ ! -s {file} ]; do sleep 0.01; done; exit 1"
    program = f"echo >> {count}; if [ $(wc -l < {count}) = 1 ]; then {first}; fi; {check}"
    with Run("run", "--restart", "1", "--", "sh", "-c", program, wrapper=wrapper) as run:
        assert run.end() == 0, run.err
    assert state(pid_in(file)) == "gone"
