"""Real file systems on a disk whose power goes between any two blocks.

A run is recorded block by block (crashes.device). For each moment images are made: what was flushed
is there; of what came after, all, nothing, the beginning, or any sectors. Each image is mounted, so
that the file system's own recovery has its say, and then looked at as every other state is.
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
"""What the disk writes as a whole. File systems trust in that much: with a superblock that is torn
at 512 bytes, ext4, XFS and btrfs alike can't be mounted at all."""
_WAYS: Final = ("all", "nothing", "a beginning", "any writes", "any sectors")


class _Blocks:
    """Runs commands on a logged disk; moments are counted in what has reached it."""

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
        """It had said so when it ended: all that has reached the disk by then must do."""
        del begin
        return self.position - 1


class _Case(NamedTuple):
    cut: int
    way: str


def record_and_check(kind: str, states: int, seed: int, directory: Path) -> int:
    """Record a run on a file system of this kind and look at so many states; returns how many.

    Raises:
        AssertionError: A promise does not hold in one of them.
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
    """The image of each case in turn; each lasts until the next is asked for."""
    settled = directory / "settled.img"
    copy_sparse(disk.first, settled)
    durable = 0
    with settled.open("r+b", buffering=0) as base:
        for number, case in enumerate(chosen):
            # A name of its own: a loop device that is still being given up would be used again for
            # the same file, with what it has in its cache of the state before.
            image = directory / f"state-{number}.img"
            flushed = [at for at, one in enumerate(disk.log[: case.cut]) if one == Flushed()]
            until = flushed[-1] if flushed else 0
            for one in disk.log[durable:until]:
                if isinstance(one, Put):
                    os.pwrite(base.fileno(), one.data, one.offset)
            durable = max(durable, until)
            copy_sparse(settled, image)
            loose = [one for one in disk.log[until : case.cut] if isinstance(one, Put)]
            with image.open("r+b", buffering=0) as file:
                for one in _kept(loose, case.way, rng):
                    os.pwrite(file.fileno(), one.data, one.offset)
            yield case, image
            image.unlink()


def _kept(loose: list[Put], way: str, rng: random.Random) -> Iterator[Put]:
    """What of the disk's cache has made it to the disk."""
    match way:
        case "all":
            yield from loose
        case "a beginning":
            count = rng.randint(0, len(loose))
            yield from loose[:count]
            for one in loose[count : count + 1]:
                sectors = rng.randint(0, len(one.data) // _SECTOR)
                yield Put(one.offset, one.data[: sectors * _SECTOR])
        case "any writes":
            odds = rng.choice((0.1, 0.5, 0.9))
            yield from [one for one in loose if rng.random() < odds]
        case "any sectors":
            odds = rng.choice((0.1, 0.5, 0.9))
            for one in loose:
                for start in range(0, len(one.data), _SECTOR):
                    if rng.random() < odds:
                        yield Put(one.offset + start, one.data[start : start + _SECTOR])
