"""Real file systems on a disk that loses power between any two blocks.

A run is recorded block by block (crashes.device). For each moment, images are made: flushed blocks
are in all of them; of the later blocks, all, none, those up to some point, or a random choice are
there. Each image is mounted, so that the file system recovers, and then checked like any other
state.
"""

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from crashes.device import Flushed, LoggedDisk, Put, copy_sparse, logged_disk, mounted
from tests.kit.program import Outcome, ciuic
from tests.kit.stories import train
from tests.kit.survival import StoreStory

__all__ = ["record_and_check"]

_SECTOR: Final = 4096
"""The unit that the disk writes atomically. File systems rely on it: with a superblock torn at 512
bytes, ext4, XFS and btrfs cannot be mounted."""
_WAYS: Final = ("all", "nothing", "a beginning", "any writes", "any sectors")


class _Blocks:
    """Runs commands on a logged disk; a moment is the number of blocks that have reached it."""

    def __init__(self, disk: LoggedDisk) -> None:
        self._disk = disk

    def run(self, *arguments: str | Path, codes: Sequence[int] = (0,)) -> Outcome:
        done = ciuic(*arguments)
        assert done.code in codes, done
        return done

    @property
    def position(self) -> int:
        return len(self._disk.log)

    def reported(self, begin: int) -> int:
        """Return the moment when the command had reported: the blocks so far must be enough."""
        del begin
        return self.position - 1


class _Case(NamedTuple):
    cut: int
    way: str


def record_and_check(kind: str, states: int, seed: int, directory: Path) -> int:
    """Record a run on a file system of this kind, check up to ``states`` states, return how many.

    Raises:
        AssertionError: A guarantee does not hold in a state.
    """
    rng = random.Random(f"{seed} {kind}")
    with logged_disk(kind, directory / "disk") as disk:
        story = StoreStory(kind, directory / "story", top=disk.path, recording=_Blocks(disk))
        story.run("init")
        train(story.source, rng)
        story.run("snapshot")
        train(story.source, rng)
        story.run("snapshot")
        story.run("forget", story.newest(1))
        story.run("prune", "--trash", "0")
    every = [_Case(cut, way) for cut in range(len(disk.log) + 1) for way in _WAYS]
    chosen = sorted(rng.sample(every, min(states, len(every))))
    checked = 0
    for case, image in _images(disk, chosen, rng, directory):
        checked += 1
        try:
            with mounted(kind, image, directory / "looked at") as place:
                story.check(case.cut, place, directory, rng)
        except Exception as error:
            error.add_note(f"{kind}, seed {seed}, {case} of {len(disk.log)}")
            raise
    shutil.rmtree(directory)
    return checked


def _images(
    disk: LoggedDisk, chosen: list[_Case], rng: random.Random, directory: Path
) -> Iterator[tuple[_Case, Path]]:
    """Yield the image of each case; it exists until the next one is requested."""
    settled = directory / "settled.img"
    copy_sparse(disk.first, settled)
    durable = 0
    with settled.open("r+b", buffering=0) as base:
        for number, case in enumerate(chosen):
            # A new name each time: for the same file, the kernel could reuse a loop device that is
            # still being released, with cached blocks of the state before.
            image = directory / f"state-{number}.img"
            flushed = [at for at, event in enumerate(disk.log[: case.cut]) if event == Flushed()]
            until = flushed[-1] if flushed else 0
            for event in disk.log[durable:until]:
                if isinstance(event, Put):
                    os.pwrite(base.fileno(), event.data, event.offset)
            durable = max(durable, until)
            copy_sparse(settled, image)
            loose = [event for event in disk.log[until : case.cut] if isinstance(event, Put)]
            with image.open("r+b", buffering=0) as file:
                for put in _kept(loose, case.way, rng):
                    os.pwrite(file.fileno(), put.data, put.offset)
            yield case, image
            image.unlink()


def _kept(loose: list[Put], way: str, rng: random.Random) -> Iterator[Put]:
    """Yield the writes in the disk's cache that reach the disk."""
    match way:
        case "all":
            yield from loose
        case "a beginning":
            count = rng.randint(0, len(loose))
            yield from loose[:count]
            for put in loose[count : count + 1]:
                sectors = rng.randint(0, len(put.data) // _SECTOR)
                yield Put(put.offset, put.data[: sectors * _SECTOR])
        case "any writes":
            odds = rng.choice((0.1, 0.5, 0.9))
            yield from [put for put in loose if rng.random() < odds]
        case "any sectors":
            odds = rng.choice((0.1, 0.5, 0.9))
            for put in loose:
                for start in range(0, len(put.data), _SECTOR):
                    if rng.random() < odds:
                        yield Put(put.offset + start, put.data[start : start + _SECTOR])
