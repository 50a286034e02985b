"""Rotten bits, zeroed sectors, truncated, swapped and lost files, anywhere in a store.

A few hundred cases each time, ten thousand with CIUIC_LONG=1. Rot does not change a file's times,
and neither does a case. In each case:

- ``restore`` writes no wrong byte, and names what it does not write;
- ``verify --checksum`` notices the damage, or it is harmless: then every snapshot can be restored
  exactly, and a repair, which checks more than snapshots need, finds the damage of the pack;
- every failure is an error of ciuic's own;
- within the reach of parity and copies, a repair restores every pack and manifest exactly; beyond
  it, a repair makes nothing worse.
"""

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ciuic.errors import CiuicError
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.entrance import repair_entrance
from ciuic.maintain.repair.plan import plan_repair
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.trees import Photo, photograph

LONG = bool(os.environ.get("CIUIC_LONG"))
PARTS = 4
CASES = int(os.environ.get("CIUIC_ROT", "10000" if LONG else "160")) // PARTS
PARITY = 0.04
SECTOR = 512
NEEDED = ("packs", "snapshots", "ciuic-store.json")

pytestmark = pytest.mark.slow

Files = dict[str, bytes]


class Damage(NamedTuple):
    """A case of damage, and its files.

    Attributes:
        what: A description, to repeat the case.
        names: The changed files.
        is_in_reach: Parity and copies can repair it.
    """

    what: str
    names: tuple[str, ...]
    is_in_reach: bool


class Kept:
    """A store in memory, reset after each case, and the content of its snapshots."""

    def __init__(self, directory: Path) -> None:
        rng = random.Random(11)
        self.box = box = Box(directory, chunk_bytes=4096, parity=PARITY)
        self.photos: dict[str, dict[bytes, Photo]] = {}
        (box.source / "sub" / "deep").mkdir(parents=True)
        (box.source / "noise").write_bytes(rng.randbytes(40_000))
        (box.source / "sub" / "small").write_bytes(b"small")
        os.link(box.source / "sub" / "small", box.source / "second name")
        (box.source / "link").symlink_to("text")
        with (box.source / "holes").open("wb") as file:
            file.truncate(200_000)
            file.seek(100_000)
            file.write(b"x" * 5000)
        for step in range(5):
            (box.source / "text").write_bytes(b"text of step %d " % step * 700)
            (box.source / "sub" / "deep" / "model").write_bytes(rng.randbytes(30_000 + step))
            (box.source / f"log{step}").write_bytes(rng.randbytes(700))
            self.photos[box.take().id] = photograph(box.source)
        self.all = dict(self.photos)
        gone, self.forgotten = list(self.photos)[:2]
        for name in (gone, self.forgotten):
            del self.photos[name]
        with open_store(str(box.store), write=True) as store:
            store.trash.forget([gone], 1)
            store.trash.empty([gone])
            store.trash.forget([self.forgotten], 2)
        self.files = self.read()
        self.times = {name: os.stat(box.store / name).st_mtime_ns for name in self.files}

    def read(self) -> Files:
        """Return every file of the store except locks."""
        found = {}
        for top, _, names in os.walk(self.box.store):
            for name in names:
                path = os.path.join(top, name)
                if not name.startswith("lock."):
                    with open(path, "rb") as file:
                        found[os.path.relpath(path, self.box.store)] = file.read()
        return found

    def write(self, name: str, data: bytes) -> None:
        """Change bytes without changing the file's times."""
        path = self.box.store / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(self.times[name], self.times[name]))

    def put_back(self) -> None:
        """Undo a case."""
        found = self.read()
        for name in found.keys() - self.files.keys():
            (self.box.store / name).unlink()
        for name, data in self.files.items():
            path = self.box.store / name
            if found.get(name) != data or os.stat(path).st_mtime_ns != self.times[name]:
                self.write(name, data)


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    with tempfile.TemporaryDirectory(prefix="ciuic-test-", dir="/dev/shm") as directory:
        yield Kept(Path(directory))


# The damage


def flip(kept: Kept, rng: random.Random) -> Damage:
    name = chosen(kept, rng)
    data = bytearray(kept.files[name])
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    kept.write(name, bytes(data))
    return Damage(f"a bit of byte {at} of {name} turns", (name,), is_in_reach=True)


def overwrite(kept: Kept, rng: random.Random) -> Damage:
    """One or several sectors that read as zeros, or as other bytes."""
    name = chosen(kept, rng)
    data = bytearray(kept.files[name])
    sectors = rng.choice((1, 1, 1, 2, 8))
    at = rng.randrange(-(-len(data) // SECTOR)) * SECTOR
    length = len(data[at : at + sectors * SECTOR])
    data[at : at + length] = rng.choice((bytes(length), rng.randbytes(length)))
    kept.write(name, bytes(data))
    return Damage(f"{length} bytes of {name} at {at} are others", (name,), sectors == 1)


def cut(kept: Kept, rng: random.Random) -> Damage:
    name = chosen(kept, rng)
    data = kept.files[name]
    length = max(0, len(data) - rng.choice((1, 8, 100, rng.randrange(len(data)), len(data))))
    kept.write(name, data[:length])
    return Damage(f"{name} ends at {length} of {len(data)}", (name,), len(data) - length <= 100)


def lengthen(kept: Kept, rng: random.Random) -> Damage:
    name = chosen(kept, rng)
    more = rng.choice((b"\0" * SECTOR, rng.randbytes(rng.randrange(1, 3000)), kept.files[name]))
    kept.write(name, kept.files[name] + more)
    return Damage(f"{name} is longer by {len(more)}", (name,), is_in_reach=True)


def lose(kept: Kept, rng: random.Random) -> Damage:
    name = chosen(kept, rng)
    (kept.box.store / name).unlink()
    return Damage(f"{name} is gone", (name,), is_in_reach=not name.startswith("packs"))


def swap(kept: Kept, rng: random.Random) -> Damage:
    one, other = chosen(kept, rng), chosen(kept, rng)
    kept.write(one, kept.files[other])
    kept.write(other, kept.files[one])
    changed = kept.files[one] != kept.files[other]
    return Damage(f"{one} and {other} change places", (one, other) if changed else (), False)


def double(kept: Kept, rng: random.Random) -> Damage:
    one, other = chosen(kept, rng), chosen(kept, rng)
    kept.write(one, kept.files[other])
    changed = kept.files[one] != kept.files[other]
    return Damage(f"{one} is another {other}", (one,) if changed else (), False)


KINDS: tuple[Callable[[Kept, random.Random], Damage], ...] = (
    *[flip] * 4,
    *[overwrite] * 3,
    *[cut] * 2,
    lengthen,
    lose,
    swap,
    double,
)


def chosen(kept: Kept, rng: random.Random) -> str:
    """Choose a kind of file first: otherwise nearly all would be packs."""
    names = [name for name, data in kept.files.items() if data]
    kind = rng.choice(sorted({name.split("/")[0] for name in names}))
    return rng.choice([name for name in sorted(names) if name.split("/")[0] == kind])


# The checks


def restored(kept: Kept, out: Path) -> set[str]:
    """Restore all that can be restored; return the snapshots that came back exactly."""
    whole = set()
    for name, photo in kept.photos.items():
        target = out / name
        try:
            report = kept.box.restore(snapshot=name, to=target)
        except CiuicError as error:
            assert error.message
            named = None
        else:
            named = {one.path for one in report.failed}
        found = photograph(target / "source") if (target / "source").exists() else {}
        for path, one in found.items():
            assert path in photo, (name, path)
            if one.content != photo[path].content or one.size_bytes != photo[path].size_bytes:
                raise AssertionError(f"{name}: {path!r} came back with wrong bytes")
        missing = photo.keys() - found.keys()
        assert named is None or named or not missing, (name, missing)
        if named is not None and not named:
            # Times of directories are compared only for a complete tree.
            assert found == photo, name
            whole.add(name)
    return whole


def noticed(kept: Kept) -> bool:
    """Return whether ``verify --all --checksum`` reports damage."""
    try:
        return not kept.box.verify().ok
    except CiuicError as error:
        assert error.message
        return True


def repaired(kept: Kept) -> bool | None:
    """Repair; return whether it found damage, None if it failed."""
    path = str(kept.box.store)
    try:
        entrance = repair_entrance(path, apply=True)
        with open_store(path, write=True) as store:
            plan = plan_repair(store, parity=PARITY)
            apply_repair(store, plan, parity=PARITY, clock=kept.box.clock)
    except CiuicError as error:
        assert error.message
        return None
    return bool(entrance) or plan.is_damaged or plan.has_work


def needed(files: Files) -> Files:
    """Return the packs, manifests and the header."""
    return {name: data for name, data in files.items() if name.startswith(NEEDED)}


def is_needed(damage: Damage) -> bool:
    return any(name.startswith(NEEDED) for name in damage.names)


def check(kept: Kept, damage: Damage, rng: random.Random, out: Path) -> str:
    """Check everything in one case; return its kind, for the count."""
    whole = restored(kept, out / "damaged")
    was_noticed = noticed(kept)
    if not was_noticed:
        assert whole == kept.photos.keys(), "verify says nothing, and not everything comes back"
    if len(whole) < len(kept.photos):
        assert was_noticed
    if rng.random() < 0.2:
        pruned(kept)
        assert restored(kept, out / "pruned") >= whole, "a prune has made it worse"
        return "and a prune"
    if rng.random() < 0.2:
        taken(kept, was_noticed=was_noticed)
        assert restored(kept, out / "taken") >= whole, "a snapshot has made it worse"
        return "and a snapshot"
    changed = kept.read()
    there = [name for name in damage.names if name in changed and name.startswith("packs")]
    found = repaired(kept)
    is_as_before = needed(kept.read()) == needed(kept.files)
    if not is_as_before or rng.random() < 0.2:
        assert restored(kept, out / "repaired") >= whole, "a repair has made it worse"
    # A missing pack matters only if its chunks are needed, and some are garbage.
    if there:
        assert found, "a repair has not found what is wrong with a pack"
    if not damage.is_in_reach:
        return "beyond reach"
    if is_needed(damage):
        assert found
        assert is_as_before, "not all is what it was"
        assert not noticed(kept), "repaired, and still damaged"
    return "repaired"


def pruned(kept: Kept) -> None:
    try:
        with open_store(str(kept.box.store), write=True) as store:
            plan = plan_prune(store, trash_s=1e9, now_ns=kept.box.clock.now_ns())
            apply_prune(store, plan, parity=PARITY, clock=kept.box.clock)
    except CiuicError as error:
        assert error.message


def taken(kept: Kept, *, was_noticed: bool) -> None:
    """The next snapshot is complete, fails with a message, or uses a chunk that verify reported."""
    try:
        name = kept.box.take(base=True).id
    except CiuicError as error:
        assert error.message
        return
    verdicts = {one.id: one.ok for one in kept.box.verify().snapshots}
    assert verdicts[name] or was_noticed, "a new snapshot is damaged in a sound store"


@pytest.mark.parametrize("part", range(PARTS))
def test_rot_anywhere_in_a_store_is_noticed_or_harmless_and_repaired_within_reach(
    kept: Kept, part: int
) -> None:
    seed = drawn_seed()
    counts: dict[str, int] = {}
    for number in range(CASES):
        rng = random.Random(f"{seed} {part} {number}")
        damage = rng.choice(KINDS)(kept, rng)
        with tempfile.TemporaryDirectory(dir=kept.box.directory) as out:
            try:
                kind = check(kept, damage, rng, Path(out))
            except Exception as error:
                where = f"CIUIC_SEED={seed}, part {part}, case {number}: {damage.what}"
                raise AssertionError(where) from error
        counts[kind] = counts.get(kind, 0) + 1
        kept.put_back()
    print(counts)
    assert counts["repaired"] > CASES // 5
