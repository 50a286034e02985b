"""Runs tests against bugs: puts each mutant into a copy of the source, where its test must fail.

A mutant that survives is a fault of the tests, and fails the run; so is a mutant whose text is no
longer in the source.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from crashes.mutants import MUTANTS, STATES, Mutant

__all__ = ["list_all", "run_all"]

_REPOSITORY: Final = Path(__file__).parents[2]
_COPIED: Final = ("ciuic", "ciuicd", "tests", "scripts", "docs", "etc", "pyproject.toml")
_LIMIT_S: Final = 1800
_TOO_LONG: Final = 124


def run_all(wanted: str) -> int:
    """Try every mutant whose title contains ``wanted``; return 1 if one survives."""
    chosen = [mutant for mutant in MUTANTS if wanted in mutant.title]
    bad = 0
    with tempfile.TemporaryDirectory(prefix="ciuic-mutants-") as directory:
        copy = Path(directory) / "ciuic"
        _copy_source(copy)
        for test in dict.fromkeys(mutant.test for mutant in chosen):
            if _run_test(copy, test, Path(directory)) != 0:
                print(f"{test}\n    fails without any mutant", flush=True)
                return 1
        for mutant in chosen:
            began_s = time.monotonic()
            result = _try(mutant, copy, Path(directory))
            bad += result != "killed"
            took_s = time.monotonic() - began_s
            print(f"{result:<9}{took_s:6.1f} s  {mutant.title}\n{'':20}{mutant.test}", flush=True)
    print(f"\n{len(chosen) - bad} of {len(chosen)} mutants killed")
    return 1 if bad or not chosen else 0


def list_all() -> int:
    """List every mutant and its test; return 1 if the source lacks the text of one."""
    outdated = 0
    for mutant in MUTANTS:
        is_there = (_REPOSITORY / mutant.file).read_text().count(mutant.old) == 1
        outdated += not is_there
        prefix = "" if is_there else "OUTDATED: "
        print(f"{prefix}{mutant.title}\n    {mutant.file}: {mutant.test}")
    return 1 if outdated else 0


def _copy_source(copy: Path) -> None:
    copy.mkdir()
    for name in _COPIED:
        source = _REPOSITORY / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source, copy / name)


def _try(mutant: Mutant, copy: Path, scratch: Path) -> str:
    path = copy / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        return "outdated"
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        # All states: a mutant that is killed is killed early.
        code = _run_test(copy, mutant.test, scratch, long=mutant.test.startswith(STATES))
    finally:
        path.write_text(text)
    # 1: tests failed. Any other code means that the test did not run.
    return {0: "SURVIVED", 1: "killed"}.get(code, f"error {code}")


def _run_test(copy: Path, test: str, scratch: Path, *, long: bool = False) -> int:
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environ["CIUIC_LONG"] = "1" if long else ""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    # pytest's own time limit would end a test of all states as if it had failed.
    command += ["-o", "timeout=0"]
    try:
        done = subprocess.run(
            [*command, "--basetemp", scratch / "t", test],
            cwd=copy,
            env=environ,
            capture_output=True,
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return _TOO_LONG  # the test did not notice the bug
    return done.returncode
