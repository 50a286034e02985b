"""A training of each framework in ``examples/frameworks`` is killed and resumed, bit for bit.

``scripts/test-frameworks`` creates the environments, and sets the variable to their directory.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest

ENVIRONMENTS = os.environ.get("CIUIC_FRAMEWORKS", "")
EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
TRAININGS = [
    ("torch", "lightning_fit", "torch"),
    ("torch", "transformers_trainer", "torch"),
    ("torch", "accelerate_loop", "torch"),
    ("torch", "keras_fit", "torch"),
    ("jax", "keras_fit", "jax"),
    ("tensorflow", "keras_fit", "tensorflow"),
    ("jax", "jax_flax", "jax"),
]

pytestmark = pytest.mark.skipif(not ENVIRONMENTS, reason="needs scripts/test-frameworks")


def started(environment: str, name: str, backend: str, store: Path, log: Path) -> subprocess.Popen:
    with log.open("w") as errors:
        return subprocess.Popen(
            [f"{ENVIRONMENTS}/{environment}/bin/python", EXAMPLES / f"{name}.py", store],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={
                **os.environ,
                "KERAS_BACKEND": backend,
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "HF_HUB_OFFLINE": "1",
            },
        )


def steps_of(line: str) -> tuple[int, str] | None:
    """Return the step and the exact value in an output line of a training; None: it has none."""
    words = line.split()
    return (int(words[0]), words[1]) if len(words) == 2 and words[0].isdigit() else None


@pytest.mark.parametrize(("environment", "name", "backend"), TRAININGS)
def test_a_training_that_is_killed_twice_continues_bit_for_bit(
    tmp_path, environment, name, backend
):
    def run(store: Path, stop: int | None) -> tuple[dict[int, str], int, bool]:
        log = tmp_path / "log"
        with started(environment, name, backend, store, log) as process:
            found: dict[int, str] = {}
            has_resumed = False
            for line in process.stdout:
                has_resumed |= line.startswith("resumed ")
                step = steps_of(line)
                if step is None:
                    continue
                found[step[0]] = step[1]
                if len(found) == stop:
                    process.send_signal(signal.SIGKILL)
            code = process.wait()
        assert code == (-signal.SIGKILL if stop else 0), log.read_text()
        return found, code, has_resumed

    whole, _, has_resumed = run(tmp_path / "whole", None)
    assert not has_resumed
    assert len(whole) >= 24
    # A save is durable when the next one begins.
    kept: dict[int, str] = {}
    for number, stop in enumerate((len(whole) * 6 // 10, 3, None)):
        found, _, has_resumed = run(tmp_path / "parts", stop)
        assert has_resumed == (number > 0)
        assert found.items() <= whole.items()
        kept |= found
    assert kept == whole
    assert min(found) > min(whole), "the last run began in the middle"
