"""``scripts/crash`` itself: short forms, so that the long ones are known to work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.filesystems import need_root
from tests.kit.program import REPOSITORY

pytestmark = pytest.mark.slow


def crash(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with this interpreter."""
    return subprocess.run(
        [REPOSITORY / "scripts" / "crash", *arguments],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_mutant_is_a_mistake_that_the_source_of_today_could_have():
    listed = crash("--list")
    assert "OUTDATED" not in listed.stdout, listed.stdout
    assert listed.returncode == 0, listed.stderr
    for line in listed.stdout.splitlines():
        if line.startswith("    "):
            test = line.split(": ")[1].split("::")[0]
            assert (REPOSITORY / test).exists(), test


def test_a_mutant_is_killed_and_nothing_else_is():
    done = crash("--mutant", "a sealed document is believed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 mutants killed" in done.stdout


def test_a_title_that_no_mutant_has_is_a_failure():
    assert crash("--mutant", "no such mistake").returncode == 1


@pytest.mark.root
def test_real_file_systems_recover_on_a_disk_whose_power_goes_between_any_two_blocks():
    need_root()
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    done = crash("--quick", "--only", "blocks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " mounted " in done.stdout
