"""The stories for power cuts; each is recorded from the real program.

To cover another command, add a ``story.run(...)`` where the store has work for it.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.kit.powercut import WEAKEST, disks
from tests.kit.survival import RestoreStory, StoreStory, Story

__all__ = ["STORIES", "train"]


def train(source: Path, rng: random.Random) -> None:
    """Change the source as a training does: changed, new, growing and large files."""
    for _ in range(5):
        path = source / f"d{rng.randrange(3)}" / f"f{rng.randrange(4)}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(rng.choice((0, 10, 3000, 9000))))
    with (source / "log").open("ab") as log:
        log.write(b"step %d\n" % rng.randrange(1000))
    (source / "model").write_bytes(rng.randbytes(30_000))


def first_snapshots(directory: Path, rng: random.Random) -> Story:
    """Make and fill a store; one snapshot finds no change."""
    story = StoreStory("first snapshots", directory)
    story.run("init")
    train(story.source, rng)
    story.run("snapshot", "--tag", "first")
    train(story.source, rng)
    story.run("snapshot", "--json")
    story.run("snapshot", "--base")
    return story


def after_a_cut(directory: Path, rng: random.Random) -> Story:
    """Take a snapshot after an interrupted one."""
    story = StoreStory("after a cut", directory)
    story.make_store()
    train(story.source, rng)
    story.run("snapshot")
    train(story.source, rng)
    begin = len(story.journal.operations)
    story.run("snapshot")
    moments = [state.passed for state in disks(story.journal) if not state.is_settled]
    end = rng.choice([moment for moment in moments if moment > begin])
    disk = next(state for state in disks(story.journal) if state.passed == end)
    story.begin_again(disk.sample(WEAKEST, rng))
    story.run("snapshot")
    train(story.source, rng)
    story.run("snapshot")
    return story


def into_a_new_place(directory: Path, rng: random.Random) -> Story:
    """Restore into a missing target."""
    story = RestoreStory("restore into a new place", directory)
    train(story.source, rng)
    (story.source / "d1" / "deep" / "er").mkdir(parents=True)
    (story.source / "d1" / "deep" / "er" / "file").write_bytes(b"file")
    (story.source / "link").symlink_to("d1/deep")
    (story.source / "second name").hardlink_to(story.source / "model")
    story.take()
    story.run()
    return story


def over_what_is_there(directory: Path, rng: random.Random) -> Story:
    """Restore over a target with equal, different, extra files, and files of other kinds."""
    story = RestoreStory("restore over what is there", directory, delete=True)
    _prepare_change(story, rng)
    target = story.top / "source"
    target.mkdir()
    (target / "log").write_bytes((story.source / "log").read_bytes())
    (target / "model").write_bytes((story.source / "model").read_bytes()[:20_000])
    (target / "d0").write_bytes(b"a file where a directory goes")
    (target / "extra").mkdir()
    (target / "extra" / "file").write_bytes(b"gone soon")
    (target / "link").write_bytes(b"a file where a symlink goes")
    story.run()
    return story


def in_place(directory: Path, rng: random.Random) -> Story:
    """Restore files in place after they have changed."""
    story = RestoreStory("restore in place", directory, in_place=True)
    _prepare_change(story, rng)
    train(story.source, rng)
    (story.source / "link").unlink()
    (story.source / "d0" / "kept").write_bytes(b"the snapshot does not have it")
    story.run()
    return story


def _prepare_change(story: RestoreStory, rng: random.Random) -> None:
    (story.source / "d0").mkdir()
    (story.source / "d0" / "first").write_bytes(rng.randbytes(5000))
    train(story.source, rng)
    (story.source / "link").symlink_to("model")
    (story.source / "second name").hardlink_to(story.source / "model")
    (story.source / "model").chmod(0o640)
    story.take()


def forgotten(directory: Path, rng: random.Random) -> Story:
    """Change tags and a pin; forget snapshots, and bring one back."""
    story = StoreStory("forget", directory)
    story.make_store()
    for _ in range(3):
        train(story.source, rng)
        story.take()
    middle, oldest = story.newest(1), story.newest(2)
    story.run("tag", middle, "--add", "good", "--add", "best")
    story.run("pin", middle)
    story.run("pin", middle, "--remove")
    story.run("forget", oldest)
    story.run("forget", "--undo", oldest)
    story.run("tag", middle, "--remove", "best")
    story.run("forget", middle, oldest)
    return story


def forgotten_without_copies(directory: Path, rng: random.Random) -> Story:
    """Forget snapshots whose marks have no copy, so that only the marks' own names tell of it."""
    story = StoreStory("forget without copies", directory)
    story.make_store()
    for _ in range(3):
        train(story.source, rng)
        story.take(parity=0.0)
    story.run("forget", story.newest(1), story.newest(2))
    return story


def pruned(directory: Path, rng: random.Random) -> Story:
    """Prune unneeded, fragmented and needed packs; a snapshot in the trash expires."""
    story = StoreStory("prune", directory)
    story.make_store()
    for number in range(4):
        train(story.source, rng)
        (story.source / "d0").mkdir(exist_ok=True)
        (story.source / "d0" / "kept").write_bytes(b"%d" % (number // 2) * 20_000)
        story.take()
        if not number:
            # Packs with nothing else in them: unneeded once this snapshot is forgotten.
            (story.source / "passing").write_bytes(rng.randbytes(20_000))
            story.take()
            (story.source / "passing").unlink()
    story.forget(story.newest(4), story.newest(3), story.newest(2))
    story.run("prune")
    story.run("prune", "--trash", "0")
    train(story.source, rng)
    story.run("snapshot")
    story.run("forget", story.newest(1), "--prune", "--trash", "0")
    return story


def repaired(directory: Path, rng: random.Random) -> Story:
    """Repair damaged packs and a manifest from parity and copies."""
    story = StoreStory("repair", directory)
    story.make_store()
    for _ in range(2):
        train(story.source, rng)
        story.take()

    def harm(store: Path) -> None:
        *rotten, cut = sorted((store / "packs").iterdir())
        for file in [*rotten, min((store / "snapshots").iterdir())]:
            data = bytearray(file.read_bytes())
            at = rng.randrange(len(data) - 64)
            data[at : at + 64] = rng.randbytes(64)
            file.write_bytes(data)
        os.truncate(cut, cut.stat().st_size - 10)

    story.damage(harm)
    story.run("scrub", codes=(4,), mends=False)
    story.run("repair", "--apply", codes=(0, 4))
    train(story.source, rng)
    story.run("snapshot")
    return story


STORIES: Final[dict[str, Callable[[Path, random.Random], Story]]] = {
    "first snapshots": first_snapshots,
    "after a cut": after_a_cut,
    "forget": forgotten,
    "forget without copies": forgotten_without_copies,
    "prune": pruned,
    "repair": repaired,
    "restore into a new place": into_a_new_place,
    "restore over what is there": over_what_is_there,
    "restore in place": in_place,
}
