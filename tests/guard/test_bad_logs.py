"""A real ``ciuic run`` guards a training whose log is bad in every way, and goes on."""

import sys
from pathlib import Path

import psutil

from tests.kit.daemon import wait_until
from tests.kit.jobs import Run

MIB = 1024 * 1024

TRAINING = """
import os, sys, time
place = sys.argv[1]
log = open(place + "/log", "w", buffering=1)

def say(text):
    log.write(text + chr(10))

say('{"step": 1, "loss": 1.0, "gpu_util": 90}')
say('{"step": ')
say('[1, 2')
say('"step"')
say('null')
say('{"step": 2, "loss": ' + "[" * 100_000)
for _ in range(100):
    log.write("x" * (1 << 20))
say("")
say('{"step": "3", "loss": "NaN", "gpu_util": 90}')
for name in ("read", "done"):
    while not os.path.exists(place + "/" + name):
        time.sleep(0.02)
    if name == "read":
        say('{"step": 4, "loss": 1.0, "gpu_util": 90}')
        say('{"step": 5, "loss": NaN, "gpu_util": 90}')
        say('{"step": 2, "loss": 1.0, "gpu_util": 90}')
        say('{"st\\\\u0065p": 3, "lo\\\\u0073s": -Infinity, "gpu_util": 90}')
log.write('{"step": 4, "loss": 1')
"""


def test_broken_lines_long_ones_nan_and_steps_that_go_back_keep_no_rule_from_firing(
    tmp_path: Path,
) -> None:
    (tmp_path / "log").touch()
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    with Run("run", "--job", "j", "--log", tmp_path / "log", "--", *command) as run:
        first = "critical: job j: loss-not-finite at step 3"
        wait_until("the NaN behind the long line is found", lambda: first in run.err)
        memory_bytes = psutil.Process(run.pid).memory_info().rss
        (tmp_path / "read").touch()
        wait_until("steps that went back are watched", lambda: run.err.count(first) == 2)
        (tmp_path / "done").touch()
        assert run.end() == 0
    print(f"{memory_bytes / MIB:.0f} MiB")
    assert memory_bytes < 80 * MIB
    assert run.err.count("loss-not-finite ended at step 4") == 1
    assert run.err.count("loss-not-finite at step 5") == 1
    assert run.err.count("loss-not-finite ended at step 2") == 1
    assert "Traceback" not in run.err
