"""Short runs of ``scripts/crash``, so that the long ones work too."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.chance import drawn_seed
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


def test_the_text_of_every_mutant_is_in_the_source():
    listed = crash("--list")
    assert "OUTDATED" not in listed.stdout, listed.stdout
    assert listed.returncode == 0, listed.stderr
    for line in listed.stdout.splitlines():
        if line.startswith("    "):
            test = line.split(": ")[1].split("::")[0]
            assert (REPOSITORY / test).exists(), test


def test_a_mutant_is_killed():
    done = crash("--mutant", "a sealed document is accepted")
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


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_with_everything_at_once_no_torn_file_is_unmarked_and_no_replaced_one_is_marked(
    kind: str,
) -> None:
    need_root()
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    seed = str(drawn_seed())
    done = crash("--stress", "--minutes", "0.12", "--on", kind, "--seed", seed)
    assert done.returncode == 0, done.stdout + done.stderr
    judged = re.search(r"^    atomic +(\d+) +0$", done.stdout, re.MULTILINE)
    assert judged is not None, done.stdout
    assert int(judged[1]) > 0
