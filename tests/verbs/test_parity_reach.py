"""The promises of the documents about parity hold for packs from one frame to 64 MiB."""

import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.plan import plan_repair
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.trees import photograph

BLOCK = 4096
LOST_MAX = 4
KIB = 1024
MIB = 1024 * KIB
SHARE = 0.04


def noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def fill(source: Path, size: int) -> None:
    """Files of this total length, a few of them small."""
    for number in range(3):
        (source / f"note {number}").write_bytes(b"%d\n" % number * 20)
    for number, begin in enumerate(range(0, size, 8 * MIB)):
        (source / f"file {number}").write_bytes(noise(min(8 * MIB, size - begin), number))


def packs(store: Path) -> list[Path]:
    return sorted((store / "packs").iterdir())


def destroy(path: Path, blocks: list[int], chance: random.Random) -> None:
    """Whole blocks turn into noise or zeros, as on a bad disk; the length stays."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for block in blocks:
            length = min(BLOCK, size - block * BLOCK)
            file.seek(block * BLOCK)
            file.write(chance.choice([bytes(length), chance.randbytes(length)]))


def damage(store: Path, chance: random.Random) -> None:
    """Damages as many blocks of each pack as can be repaired, some of them adjacent.

    In half of the packs a block of the parity is lost as well, which counts as one of them.
    """
    for pack in packs(store):
        count = -(-pack.stat().st_size // BLOCK)
        reach = min(LOST_MAX, count)
        parity = store / "parity" / pack.name
        if chance.random() < 0.5:
            reach -= 1
            at = chance.randrange(-(-parity.stat().st_size // BLOCK))
            destroy(parity, [at], chance)
        begin = chance.randrange(count)
        near = [one % count for one in range(begin, begin + reach)]
        destroy(pack, chance.choice([near, chance.sample(range(count), reach)]), chance)


@pytest.mark.parametrize("size", [10, 3_000, 9_000, 60_000, 300_000, 700_000, 3 * MIB, 70 * MIB])
def test_random_damage_within_the_promise_is_repaired_in_packs_of_every_size(
    tmp_path: Path, size: int
) -> None:
    box = Box(tmp_path, parity=SHARE)
    fill(box.source, size)
    box.take()
    wanted = photograph(box.source)
    whole = {one.name: one.read_bytes() for one in packs(box.store)}
    for seed in range(2 if size > 10 * MIB else 6):
        damage(box.store, random.Random(seed))

        out = tmp_path / "out"
        box.restore(to=out)
        assert photograph(out / "source") == wanted, f"seed {seed}"
        shutil.rmtree(out)
        cat = box.ciuic("cat", "latest", box.source / "file 0")
        printed = cat.out.encode("utf-8", "surrogateescape")
        assert (cat.code, printed) == (0, (box.source / "file 0").read_bytes()), f"seed {seed}"
        is_whole = {one.name: one.read_bytes() for one in packs(box.store)} == whole
        assert box.verify().ok or not is_whole  # damage to a footer alone costs nothing

        with open_store(str(box.store), write=True) as store:
            plan = plan_repair(store, parity=SHARE)
            apply_repair(store, plan, parity=SHARE, clock=box.clock)
        assert {one.name: one.read_bytes() for one in packs(box.store)} == whole, f"seed {seed}"
        with open_store(str(box.store)) as store:
            assert not plan_repair(store, parity=SHARE).has_work
        assert box.verify().ok


def test_two_blocks_of_a_pack_of_trees_cost_nothing_wherever_they_lie(tmp_path: Path) -> None:
    box = Box(tmp_path, parity=SHARE)
    for number in range(150):
        (box.source / f"{noise(60, number).hex()} {number}").write_bytes(b"")
    box.take()
    wanted = photograph(box.source)
    (pack,) = packs(box.store)
    whole = pack.read_bytes()
    blocks = -(-len(whole) // BLOCK)
    assert blocks >= 3
    for lost in itertools.combinations(range(blocks), 2):
        destroy(pack, list(lost), random.Random(1))

        out = tmp_path / "out"
        box.restore(to=out)
        assert photograph(out / "source") == wanted, lost
        shutil.rmtree(out)
        pack.write_bytes(whole)


@pytest.mark.parametrize("left", ["nothing", "half"])
def test_a_small_pack_with_few_sound_bytes_is_repaired(tmp_path: Path, left: str) -> None:
    box = Box(tmp_path, parity=SHARE)
    fill(box.source, 2_000)
    box.take()
    wanted = photograph(box.source)
    whole = {one: one.read_bytes() for one in packs(box.store)}
    for pack, data in whole.items():
        os.truncate(pack, 0 if left == "nothing" else len(data) // 2)

    out = tmp_path / "out"
    box.restore(to=out)
    assert photograph(out / "source") == wanted
    with open_store(str(box.store), write=True) as store:
        apply_repair(store, plan_repair(store, parity=SHARE), parity=SHARE, clock=box.clock)
    assert {one: one.read_bytes() for one in packs(box.store)} == whole
    assert box.verify().ok
