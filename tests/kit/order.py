"""The order of test files, so that parallel workers end at about the same time."""

from collections.abc import Sequence

import pytest

__all__ = ["LONGEST", "longest_first"]

LONGEST = (
    "tests/daemon/test_systemd.py",
    "tests/s3/test_copies_beside_others.py",
    "tests/scale/test_memory.py",
    "tests/library/test_torch.py",
    "tests/library/test_ranks.py",
    "tests/library/test_dcp.py",
    "tests/library/test_example_scripts.py",
    "tests/library/test_manager.py",
    "tests/library/test_kills.py",
    "tests/daemon/test_upkeep.py",
    "tests/cli/test_demo.py",
    "tests/model/test_model.py",
    "tests/property/test_roundtrip.py",
    "tests/web/test_page.py",
    "tests/web/test_actions.py",
    "tests/web/test_timeline_page.py",
    "tests/crash/test_crash_script.py",
    "tests/crash/test_power_cut.py",
    "tests/crash/test_copy_kill.py",
    "tests/crash/test_prune_kill.py",
    "tests/crash/test_faults.py",
    "tests/crash/test_kill.py",
    "tests/daemon/test_copies.py",
    "tests/daemon/test_ciuicd.py",
    "tests/filesystems/test_page_cache.py",
    "tests/verbs/test_costly_stores.py",
    "tests/verbs/test_restore.py",
    "tests/verbs/test_delta_chains.py",
)
"""Files that take a minute or more; they start first, and short files fill the gaps."""


def longest_first(items: list[pytest.Item], longest: Sequence[str] = LONGEST) -> None:
    """Move the tests of the longest files to the front; the others keep their order."""
    ranks = {name: rank for rank, name in enumerate(longest)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))
