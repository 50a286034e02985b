"""The cgroup of a job: limits, and kills for lack of memory.

The memory and CPU controllers of this machine may belong to cgroups of version 1. So tests use
another controller of version 2 instead, or files of the same form.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.guard.job.cgroup import Cgroup, NoCgroup, create_cgroup
from tests.kit import small_memory as kit
from tests.kit.box import Box
from tests.kit.jobs import Run
from tests.kit.program import ciuic

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
HUGE = "hugetlb.2MB.max"


@pytest.fixture
def limited() -> Iterator[Cgroup]:
    """A cgroup with a limit, of a controller that no other program uses."""
    try:
        cgroup = create_cgroup("limited", {HUGE: "4194304"})
    except NoCgroup as error:
        pytest.skip(f"no controller of cgroups of version 2 is free: {error}")
    yield cgroup
    assert cgroup.remove()


@ROOT
def test_the_kernel_gets_a_limit_before_the_job_starts(limited: Cgroup) -> None:
    assert Path(limited.path, HUGE).read_text() == "4194304\n"
    assert limited.pids() == []


@ROOT
def test_a_limit_that_the_kernel_refuses_leaves_no_cgroup(limited: Cgroup) -> None:
    parent = Path(limited.path).parent
    with pytest.raises(NoCgroup, match=f"the kernel refuses {HUGE} = much: Invalid argument"):
        create_cgroup("refused", {HUGE: "much"})

    assert not list(parent.glob(f"ciuic-refused-{os.getpid()}"))


def test_kills_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    """A file of the same form: see cgroup-v2.rst, "memory.events"."""
    events = "low 0\nhigh 0\nmax 4115\noom 3\noom_kill 2\noom_group_kill 0\n"
    (tmp_path / "memory.events").write_text(events)

    assert Cgroup(str(tmp_path)).oom_kills() == 2
    assert Cgroup(str(tmp_path / "none")).oom_kills() == 0


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """The file of processes of a cgroup that has 32 MiB of memory."""
    with kit.small_memory(32 * 1024 * 1024) as procs:
        yield procs


HUNGRY = "held = [bytes([1]) * 2**20 for _ in range(4096)]"


@ROOT
def test_a_kill_for_lack_of_memory_is_told_from_another(box: Box, small_memory: Path) -> None:
    enter = f"echo $$ > {small_memory}; exec {sys.executable} -c '{HUNGRY}'"
    with Run("--config", box.config, "run", "--job", "j", "--", "sh", "-c", enter) as run:
        assert run.end() == -signal.SIGKILL
    assert "job j was killed by signal 9 (SIGKILL)" in run.err
    assert "this machine ran out of memory" in run.err or "it ran out of memory" in run.err
    (taken,) = box.snapshots()
    assert taken.tags == ("emergency",)


@ROOT
def test_it_is_seen_when_a_launcher_reports_only_its_own_status(small_memory: Path) -> None:
    """As torchrun does: it exits with 1 when a rank is killed."""
    enter = f"sh -c 'echo $$ > {small_memory}; exec {sys.executable} -c \"{HUNGRY}\"' || exit 1"
    with Run("run", "--job", "j", "--", "sh", "-c", enter) as run:
        assert run.end() == 1
    assert "job j failed with exit status 1; " in run.err
    assert "ran out of memory" in run.err


def test_a_refused_limit_names_the_command_that_asks_systemd() -> None:
    limits = ("--memory-max", "64M", "--cpus", "1.5", "--cpu-weight", "50", "--io-weight", "20")
    done = ciuic("run", *limits, "--", "true")

    if done.code:
        said = " ".join(done.err.split())
        assert (
            "--scope -p CPUWeight=50 -p CPUQuota=150% -p MemoryMax=67108864 -p IOWeight=20" in said
        )
