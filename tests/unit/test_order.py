"""Which tests run first."""

import subprocess
import sys

import pytest

from tests.kit.order import LONGEST
from tests.kit.program import REPOSITORY


def test_the_longest_files_are_there():
    assert [name for name in LONGEST if not (REPOSITORY / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_the_longest_files_come_first_in_their_order():
    # Those of the library can be collected only where torch is installed.
    first = [name for name in LONGEST if not name.startswith(("tests/library", "tests/web"))][:3]
    files = ["tests/unit/test_units.py", *reversed(first)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--collect-only", *files],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]
    assert list(dict.fromkeys(names)) == [*first, "tests/unit/test_units.py"]


def test_workers_are_given_files_in_that_order(pytestconfig: pytest.Config):
    assert pytestconfig.option.loadscopereorder is False
