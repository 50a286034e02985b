"""Many states after a power cut: choosing them, making them, and checking a story in each."""

import hashlib
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.kit.journal import Image, Journal, write_image
from tests.kit.powercut import EXTREMES, ORDERED, WEAKEST, disks
from tests.kit.survival import Story

__all__ = ["Case", "Report", "cases", "sampled", "survive"]


class Case(NamedTuple):
    """A state to check: when the power fails, the kind of disk, and the state that is left."""

    cut: int
    kind: str
    extreme: str
    number: int


class Report(NamedTuple):
    """The number of cases, and of different states among them."""

    cases: int
    states: int


def cases(journal: Journal, draws: int) -> list[Case]:
    """Return all extremes, and ``draws`` random cases of each kind, at every open moment."""
    found = []
    for disk in disks(journal):
        ways = [*EXTREMES, *[""] * draws] if not disk.is_settled else ["everything"]
        for kind in (WEAKEST, ORDERED):
            found += [Case(disk.passed, kind, way, number) for number, way in enumerate(ways)]
    return found


def sampled(every: list[Case], count: int, rng: random.Random) -> list[Case]:
    """Return ``count`` cases: half of the kind that reveals most bugs, the rest random."""
    telling = [case for case in every if (case.kind, case.extreme) == (WEAKEST, "names only")]
    first = rng.sample(telling, min(count // 2, len(telling)))
    left = sorted({*every} - {*first})
    return sorted([*first, *rng.sample(left, min(count - len(first), len(left)))])


def survive(story: Story, chosen: Iterable[Case], seed: int, scratch: Path, failed: Path) -> Report:
    """Make each state and check it; fail at the first broken promise, and name its case.

    Args:
        story: The recorded run.
        chosen: The cases.
        seed: The seed of all random choices.
        scratch: A directory for the states; best in memory.
        failed: Where a failed state is left for inspection.
    """
    by_cut: dict[int, list[Case]] = {}
    for case in chosen:
        by_cut.setdefault(case.cut, []).append(case)
    seen: set[bytes] = set()
    count = 0
    directory = scratch / "state"
    for disk in disks(story.journal):
        for case in by_cut.get(disk.passed, ()):
            count += 1
            rng = random.Random(f"{seed} {story.name} {case}")
            image = disk.sample(case.kind, rng, case.extreme)
            key = digest(image) + b"%d" % story.phase(case.cut)
            if key in seen:
                continue
            seen.add(key)
            write_image(image, directory)
            try:
                story.check(case.cut, directory, scratch, rng)
            except Exception as error:
                done = [
                    str(operation)[:100] for operation in story.journal.operations[: case.cut][-3:]
                ]
                error.add_note(f"story {story.name!r}, seed {seed}, {case}, behind {done}")
                write_image(image, failed)
                error.add_note(f"the disk before the check: {failed}")
                raise
    shutil.rmtree(directory, ignore_errors=True)
    return Report(count, len(seen))


def digest(image: Image) -> bytes:
    """Return a digest that is equal for states that no program can distinguish."""
    found = hashlib.blake2b()
    for inside, number in image.walk():
        content = image.content.get(number, b"")
        attributes = sorted(image.attributes.get(number, {}).items())
        head = (inside, number, image.nodes[number], attributes, len(content))
        found.update(repr(head).encode() + content)
    return found.digest()
