"""The scripts in ``examples/`` do what they say."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"
FORKED = Path(__file__).with_name("forked_scripts.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Forked:
    """A script that runs in a process forked from one that has imported torch.

    Args:
        server: The process of ``forked_scripts.py``.
        store: The argument of the script.
        script: Its name.
    """

    def __init__(self, server: "subprocess.Popen[str]", store: Path, script: str) -> None:
        self._server = server
        fifo = store.with_name("output")
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
        print(EXAMPLES / script, store, fifo, sep="\t", file=server.stdin, flush=True)
        self.stdout = fifo.open()
        # The pipe and Python's buffer hold 500 lines: a run may be 500 steps ahead of its reader.
        fcntl.fcntl(self.stdout, fcntl.F_SETPIPE_SZ, 4096)
        self.pid = self._answer("began")
        self._code: int | None = None

    def wait(self) -> int:
        """Return its exit code."""
        if self._code is None:
            self._code = self._answer("ended")
        return self._code

    def close(self) -> None:
        """End it, so that the next answer of the server is that of the next script."""
        self.stdout.close()
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def _answer(self, what: str) -> int:
        said, number = self._server.stdout.readline().split()
        assert said == what
        return int(number)


@pytest.fixture(scope="module")
def server() -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, FORKED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        yield process
        process.stdin.close()
    assert process.returncode == 0


def started(
    server: "subprocess.Popen[str]", store: Path, script: str
) -> "contextlib.closing[Forked]":
    return contextlib.closing(Forked(server, store, script))


def whole_run(store: Path, script: str) -> dict[str, str]:
    """Run a script from beginning to end, as a user does; return the loss of each step."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, store],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_that_is_stopped_and_killed_goes_on_to_the_same_bit(server, tmp_path):
    whole = whole_run(tmp_path / "whole", "train.py")
    assert list(whole) == [str(step) for step in range(2000)]

    seen: dict[str, str] = {}
    for stop, number, code in (
        (200, signal.SIGTERM, 0),
        (1300, signal.SIGKILL, -9),
        (9999, None, 0),
    ):
        with started(server, tmp_path / "parts", "train.py") as run:
            for line in run.stdout:
                step, loss = line.split()
                assert seen.setdefault(step, loss) == loss
                if int(step) == stop:
                    os.kill(run.pid, number)
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
    server, tmp_path, name, steps, stop
):
    whole = whole_run(tmp_path / "whole", f"{name}.py")
    assert list(whole) == [str(step) for step in range(steps)]
    losses = [float.fromhex(loss) for loss in whole.values()]
    tenth = steps // 10
    assert sum(losses[-tenth:]) < sum(losses[:tenth]) / 3, "it learns"

    seen: dict[str, str] = {}
    begins = []
    for last in (stop, None):
        with started(server, tmp_path / "parts", f"{name}.py") as run:
            for number, line in enumerate(run.stdout):
                step, loss = line.split()
                assert seen.setdefault(step, loss) == loss
                if number == 0:
                    begins.append(int(step))
                if number == last:
                    os.kill(run.pid, signal.SIGKILL)
            assert run.wait() == (0 if last is None else -signal.SIGKILL)
    assert seen == whole
    assert begins[0] == 0
    assert begins[1] > 0, "it goes on from a snapshot"
