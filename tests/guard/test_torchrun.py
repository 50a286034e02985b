"""A job of torchrun: every rank is paused inside its collectives, and goes on."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.kit.daemon import wait_until
from tests.kit.jobs import Run, state

pytest.importorskip("torch")

RANKS = 2
PROGRAM = """
import json, os, sys, time
import torch, torch.distributed as dist
place = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
with open(f"{place}/{rank}.tmp", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{place}/{rank}.tmp", f"{place}/{rank}.pid")
step, stop = 0, torch.zeros(1)
with open(f"{place}/rank{rank}.jsonl", "a", buffering=1) as log:
    while not stop.item():
        step += 1
        total = torch.ones(1000) * rank
        dist.all_reduce(total)
        assert total[0].item() == 1
        loss = 2.0 * 1.3 ** min(max(0, step - 3), 3)
        log.write(json.dumps({"step": step, "rank": rank, "loss": loss, "gpu_util": 20}) + "\\n")
        time.sleep(0.05)
        stop[0] = rank == 0 and os.path.exists(f"{place}/stop")
        dist.broadcast(stop, 0)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_every_rank_of_torchrun_is_paused_and_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", str(RANKS), str(program), str(tmp_path)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with Run("run", "--job", "j", "--log", tmp_path / "rank*.jsonl", "--", *launch) as run:
        run.waits_for("job j is paused")
        pids = [int(path.read_text()) for path in tmp_path.glob("[01].pid")]
        assert len(pids) == RANKS
        assert {state(pid) for pid in pids} <= {"frozen", "stopped"}
        sizes = [path.stat().st_size for path in tmp_path.glob("*.jsonl")]

        run.send(signal.SIGCONT)
        run.waits_for("job j goes on")
        wait_until(
            "all ranks go on",
            lambda: all(
                path.stat().st_size > size
                for path, size in zip(tmp_path.glob("*.jsonl"), sizes, strict=True)
            ),
        )
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.err
    assert run.err.count("divergence at step 6") == 1
    assert "go back to step 3" in run.err
