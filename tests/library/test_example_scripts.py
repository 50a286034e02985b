"""The scripts in ``examples/`` do what they say."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def started(store: Path, script: str = "train.py") -> subprocess.Popen:
    run = subprocess.Popen(
        [sys.executable, EXAMPLES / script, store],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    # The pipe and Python's buffer hold 500 lines: a run may be 500 steps ahead of its reader.
    fcntl.fcntl(run.stdout, fcntl.F_SETPIPE_SZ, 4096)
    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_that_is_stopped_and_killed_goes_on_to_the_same_bit(tmp_path):
    with started(tmp_path / "whole") as run:
        whole = dict(line.split() for line in run.stdout)
    assert run.returncode == 0
    assert list(whole) == [str(step) for step in range(2000)]

    seen: dict[str, str] = {}
    for stop, number, code in (
        (200, signal.SIGTERM, 0),
        (1300, signal.SIGKILL, -9),
        (9999, None, 0),
    ):
        with started(tmp_path / "parts") as run:
            for line in run.stdout:
                step, loss = line.split()
                assert seen.setdefault(step, loss) == loss
                if int(step) == stop:
                    run.send_signal(number)
            assert run.wait() == code
    assert seen == whole


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "steps", "stop"),
    [
        ("multimodal", 200, 80),
        ("reinforcement", 800, 330),
        ("federated", 30, 8),
    ],
)
def test_a_training_of_another_kind_that_is_killed_goes_on_to_the_same_bit(
    tmp_path, name, steps, stop
):
    with started(tmp_path / "whole", f"{name}.py") as run:
        whole = dict(line.split() for line in run.stdout)
    assert run.returncode == 0
    assert list(whole) == [str(step) for step in range(steps)]
    losses = [float.fromhex(loss) for loss in whole.values()]
    tenth = steps // 10
    assert sum(losses[-tenth:]) < sum(losses[:tenth]) / 3, "it learns"

    seen: dict[str, str] = {}
    begins = []
    for last in (stop, None):
        with started(tmp_path / "parts", f"{name}.py") as run:
            for number, line in enumerate(run.stdout):
                step, loss = line.split()
                assert seen.setdefault(step, loss) == loss
                if number == 0:
                    begins.append(int(step))
                if number == last:
                    run.kill()
            assert run.wait() == (0 if last is None else -signal.SIGKILL)
    assert seen == whole
    assert begins[0] == 0
    assert begins[1] > 0, "it goes on from a snapshot"
