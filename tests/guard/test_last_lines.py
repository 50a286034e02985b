"""What a job logs right before it dies counts, and a snapshot of a fault is never called good."""

import json
import math
import shlex
from pathlib import Path

import pytest

from ciuic.model import SnapshotSummary
from tests.kit.box import Box
from tests.kit.program import CIUIC, Outcome
from tests.kit.tensors import safetensors

FIRED = "loss-not-finite at step"


class Job:
    """A shell script under ``ciuic run``, which ends long before ciuic looks for new logs.

    Attributes:
        snapshot: A command that takes a snapshot.
    """

    def __init__(self, box: Box, directory: Path) -> None:
        self.box = box
        self.directory = directory
        (directory / "logs").mkdir()
        self.snapshot = f"{shlex.join(CIUIC)} --config {box.config} snapshot >/dev/null"

    def log(self, name: str, *, first_nan: int = 10, count: int = 15) -> str:
        """A command that writes a log."""
        losses = [2.0] * first_nan + [math.nan] * (count - first_nan)
        lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses)]
        (self.directory / name).write_text("\n".join([*lines, ""]))
        return f"cp {self.directory / name} {self.directory}/logs"

    def run(self, script: str, *, restart: int = 0) -> Outcome:
        """Run it; ``$n`` is the number of the start."""
        starts = self.directory / "starts"
        script = f"echo >> {starts}; n=$(wc -l < {starts}); {script}"
        logs = ("--job", "j", "--log", self.directory / "logs" / "*.jsonl")
        return self.box.ciuic("run", "--restart", str(restart), *logs, "--", "sh", "-c", script)

    @property
    def starts(self) -> int:
        return len((self.directory / "starts").read_text().splitlines())

    def taken(self) -> list[SnapshotSummary]:
        """The snapshots, oldest first."""
        return sorted(self.box.snapshots(), key=lambda one: one.taken_ns)


@pytest.fixture
def job(box: Box, tmp_path: Path) -> Job:
    (box.source / "weights").write_bytes(b"w" * 1000)
    directory = tmp_path / "job"
    directory.mkdir()
    return Job(box, directory)


def is_suspect(one: SnapshotSummary) -> bool:
    return "suspect" in one.tags


def test_a_log_that_appears_right_before_the_end_is_read_to_its_end(job: Job) -> None:
    done = job.run(f"{job.log('a.jsonl')}; exit 5", restart=5)

    assert done.code == 5
    assert f"{FIRED} 10: loss was nan; go back to step 9" in done.err
    first_failure = done.err.index("failed with exit status 5; its last step was 14")
    assert done.err.index(FIRED) < first_failure < done.err.index("emergency snapshot")
    assert "failed twice at step 14, and is not started again" in done.err
    assert job.starts == 2
    assert [(one.pinned, is_suspect(one)) for one in job.taken()] == [(False, True)] * 2
    assert "was taken before the fault" not in done.err.replace("no snapshot was taken", "")


@pytest.mark.parametrize("first_nan", [0, 10])
def test_a_snapshot_between_a_fault_and_its_discovery_is_not_pinned(
    job: Job, first_nan: int
) -> None:
    good = job.box.ciuic("snapshot", "--json").document["id"]
    done = job.run(f"{job.log('a.jsonl', first_nan=first_nan)}; {job.snapshot}; exit 5")

    assert f"snapshot {good} was taken before the fault, and is now pinned" in done.err
    before, meanwhile, after = job.taken()
    assert (before.id, before.pinned, is_suspect(before)) == (good, True, False)
    assert not meanwhile.pinned
    assert (after.pinned, is_suspect(after)) == (False, True)


def test_a_second_fault_pins_nothing_that_is_younger_than_the_first(job: Job) -> None:
    """Each start logs to a file of its own, and the rules read every file."""
    good = job.box.ciuic("snapshot", "--json").document["id"]
    first, second = job.log("1.jsonl"), job.log("2.jsonl", count=14)
    done = job.run(f"if [ $n = 1 ]; then {first}; else {second}; fi; exit 5", restart=1)

    assert done.err.count(f"{FIRED} 10") == 2
    assert "its last step was 14" in done.err
    assert "its last step was 13" in done.err
    before, *later = job.taken()
    assert (before.id, before.pinned, is_suspect(before)) == (good, True, False)
    assert [(one.pinned, is_suspect(one)) for one in later] == [(False, True)] * 2


def test_what_an_earlier_run_called_suspect_is_not_pinned(job: Job) -> None:
    good = job.box.ciuic("snapshot", "--json").document["id"]
    assert job.box.ciuic("snapshot", "--tag", "suspect").code == 0
    job.run(f"{job.log('a.jsonl')}; exit 5")

    assert [one.id for one in job.taken() if one.pinned] == [good]


def test_a_checkpoint_comes_back_from_before_the_fault(job: Job) -> None:
    """The emergency snapshot of the first start has a valid file, but one with the fault."""
    weights = job.box.source / "m.safetensors"
    good, bad = (safetensors({"w": letter * 1000}) for letter in (b"g", b"b"))
    weights.write_bytes(good)
    (job.directory / "bad").write_bytes(bad)
    assert job.box.ciuic("snapshot").code == 0
    first = f"cp {job.directory}/bad {weights}; {job.log('a.jsonl')}; exit 5"
    second = f"truncate -s 500 {weights}; {job.log('b.jsonl', count=12)}; exit 6"
    done = job.run(
        f'case $n in 1) {first};; 2) {second};; *) cp {weights} "{job.directory}/seen";; esac',
        restart=3,
    )

    assert (done.code, job.starts) == (0, 3), done.err
    assert (job.directory / "seen").read_bytes() == good


def test_a_last_line_without_a_line_end_counts(job: Job) -> None:
    log = job.directory / "logs" / "a.jsonl"
    done = job.run(f"""printf '{{"step": 1}}\\n{{"step": 2}}' > {log}; exit 5""")

    assert "its last step was 2" in done.err


def test_a_job_that_has_ended_is_not_said_to_be_paused(job: Job) -> None:
    with job.box.config.open("a") as file:
        file.write("[rule high]\nwhen = loss is not finite\nthen = pause\n")
    done = job.run(f"{job.log('a.jsonl')}; exit 5")

    assert "high at step 10" in done.err
    assert "paused" not in done.err
