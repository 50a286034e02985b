"""The order in which files of tests are begun, so that workers that share them end together."""

from collections.abc import Sequence

import pytest

__all__ = ["LONGEST", "longest_first"]

LONGEST = (
    "tests/scale/test_memory.py",
    "tests/cli/test_demo.py",
    "tests/filesystems/test_cache_courtesy.py",
    "tests/verbs/test_restore.py",
    "tests/verbs/test_chains.py",
    "tests/crash/test_faults.py",
    "tests/daemon/test_ciuicd.py",
    "tests/daemon/test_systemd.py",
    "tests/model/test_model.py",
    "tests/crash/test_kill.py",
)
"""Files that take most of a minute and more; what is short fills in behind them."""


def longest_first(items: list[pytest.Item], longest: Sequence[str] = LONGEST) -> None:
    """Bring the tests of the longest files to the front; the others stay in their order."""
    ranks = {name: rank for rank, name in enumerate(longest)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))
