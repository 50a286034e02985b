"""The scripts in ``examples/`` do what they say."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

TRAIN = Path(__file__).parents[2] / "examples" / "train.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def started(store: Path) -> subprocess.Popen:
    run = subprocess.Popen(
        [sys.executable, TRAIN, store], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
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
