"""The order of test files, so that parallel workers end at about the same time."""

from collections.abc import Sequence

import pytest

__all__ = ["LONGEST", "longest_first"]

LONGEST = (
    "tests/scale/test_memory.py",
    "tests/cli/test_demo.py",
    "tests/filesystems/test_page_cache.py",
    "tests/verbs/test_restore.py",
    "tests/verbs/test_delta_chains.py",
    "tests/crash/test_faults.py",
    "tests/daemon/test_ciuicd.py",
    "tests/daemon/test_systemd.py",
    "tests/model/test_model.py",
    "tests/crash/test_kill.py",
)
"""Files that take a minute or more; they start first, and short files fill the gaps."""


def longest_first(items: list[pytest.Item], longest: Sequence[str] = LONGEST) -> None:
    """Move the tests of the longest files to the front; the others keep their order."""
    ranks = {name: rank for rank, name in enumerate(longest)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))
