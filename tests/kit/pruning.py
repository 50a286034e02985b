"""A store that needs a prune, and helpers of its tests."""

import functools
import random

from ciuic.maintain.prune.apply import apply_prune, foresee_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneReport
from ciuic.store.store import open_store
from tests.kit.box import Box

__all__ = ["forget", "names_of", "prune", "wear"]

MIB = 1024 * 1024


def forget(box: Box, *names: str) -> None:
    with open_store(str(box.store), write=True) as store:
        for name in names:
            store.trash.forget([name], box.clock.now_ns())


def prune(box: Box, *, dry_run: bool = False, trash_s: float = 0, after: int = 0) -> PruneReport:
    """Prune in this process; with ``after``, cancel at this many checks of ``cancelled``."""
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return 0 < after < asked

    with open_store(str(box.store), write=True) as store:
        plan = plan_prune(store, trash_s=trash_s, now_ns=box.clock.now_ns(), cancelled=cancelled)
        act = foresee_prune if dry_run else apply_prune
        return act(store, plan, clock=box.clock, cancelled=cancelled)


def wear(box: Box) -> Box:
    """Make packs that are unneeded, fragmented (in frames of both kinds), and fully needed.

    The last of three snapshots is to be kept; its photograph is ``kept`` below.
    """
    small, large, second, third = _contents()
    for number, content in enumerate(small):
        path = box.source / f"d{number % 7}" / f"small{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content + b"%d" % number)
    for number, content in enumerate(large):
        (box.source / f"large{number}").write_bytes(content)
    box.take()
    for number in range(300):
        if number % 9:
            (box.source / f"d{number % 7}" / f"small{number}").unlink()
    for number in range(5):
        (box.source / f"large{number}").unlink()
    (box.source / "second").write_bytes(second)
    box.take()
    (box.source / "second").unlink()
    (box.source / "third").write_bytes(third)
    box.take()
    return box


@functools.cache
def _contents() -> tuple[list[bytes], list[bytes], bytes, bytes]:
    """Return the content of small files, of large ones, and of two more."""
    rng = random.Random(7)
    small = [rng.randbytes(2000) for _ in range(300)]
    large = [rng.randbytes(3 * MIB + number) for number in range(6)]
    return small, large, rng.randbytes(MIB), rng.randbytes(MIB)


def names_of(box: Box) -> list[str]:
    """Return the IDs, oldest first."""
    return [summary.id for summary in reversed(box.snapshots())]
