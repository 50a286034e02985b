"""Many small snapshots leave few files: each makes one pack, and prune merges small packs."""

import os
import random
from pathlib import Path

import pytest

from ciuic.maintain.forget import apply_forget, plan_forget
from ciuic.maintain.prune.apply import apply_prune, foresee_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneReport
from ciuic.retention import parse_policy
from ciuic.store.gc.merge import MERGED_MIN, TIERS, choose_merges
from ciuic.store.gc.usage import PackUsage
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.box import Box
from tests.kit.trees import photograph

KIB = 1024
SHARE = 0.04
SMALL_PACKS_MAX = (MERGED_MIN - 1) * len(TIERS)


def files(box: Box) -> dict[str, int]:
    """Files of the store that grow in number: packs, their parity, manifests, their copies."""
    places = ("packs", "parity", "snapshots", "trash", "quarantine", "tmp")
    return {
        place: len(os.listdir(box.store / place))
        for place in places
        if (box.store / place).is_dir()
    }


def prune(box: Box) -> PruneReport:
    """The dry run is right, and a second prune has nothing to do."""
    with open_store(str(box.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=box.clock.now_ns())
        foreseen = foresee_prune(store, plan, parity=box.parity, clock=SystemClock())
        report = apply_prune(store, plan, parity=box.parity, clock=SystemClock())
        again = plan_prune(store, trash_s=0, now_ns=box.clock.now_ns())
    assert not again.rewritten, "it has come to rest"
    assert not again.removed
    for one in ("removed", "rewritten", "merged", "written", "kept"):
        assert getattr(foreseen, one) == getattr(report, one), one
    return report


def change(box: Box, number: int, chance: random.Random) -> None:
    """A few KB: a log that grows, and a file that is replaced each time."""
    with (box.source / "log").open("ab") as log:
        log.write(b"step %d loss %f\n" % (number, chance.random()) * 20)
    (box.source / f"metrics {number % 5}").write_bytes(chance.randbytes(chance.randrange(2000)))


def test_a_small_snapshot_makes_one_pack_with_its_parity(tmp_path: Path) -> None:
    box = Box(tmp_path, parity=SHARE)
    change(box, 1, random.Random(1))
    (box.source / "with a recipe").write_bytes(random.Random(2).randbytes(40 * KIB) + bytes(1))
    box.take()
    assert files(box) == {"packs": 1, "parity": 3, "snapshots": 1, "tmp": 0}
    change(box, 2, random.Random(3))
    box.take()
    assert files(box) == {"packs": 2, "parity": 5, "snapshots": 2, "tmp": 0}
    out = tmp_path / "out"
    box.restore(to=out)
    assert photograph(out / "source") == photograph(box.source)
    assert box.verify().ok


def test_without_parity_trees_do_not_share_the_fate_of_data(tmp_path: Path) -> None:
    box = Box(tmp_path)
    change(box, 1, random.Random(1))
    box.take()
    assert files(box)["packs"] == 2


@pytest.mark.parametrize("parity", [SHARE, 0.0])
def test_three_hundred_small_snapshots_leave_few_files(tmp_path: Path, parity: float) -> None:
    box = Box(tmp_path, parity=parity)
    chance = random.Random(4)
    policy = parse_policy("last:10, hourly:5")
    stored = written = 0
    for number in range(300):
        change(box, number, chance)
        stored += sum(one.stat().st_size for one in (box.store / "packs").iterdir())
        box.take()
        stored -= sum(one.stat().st_size for one in (box.store / "packs").iterdir())
        if number % 7 == 6:
            with open_store(str(box.store), write=True) as store:
                plan = plan_forget(store, policy, box.clock.now_ns())
                apply_forget(store, plan, box.clock.now_ns())
            written += prune(box).written.size_bytes
            found = files(box)
            kept = found["snapshots"]
            assert kept <= 15
            assert found["packs"] <= SMALL_PACKS_MAX
            assert found.get("trash", 0) == 0
            if parity:
                assert found["parity"] == found["packs"] + kept + 1  # the copy of the header
    assert written < 4 * -stored, "what is small is not written again and again"
    assert box.verify().ok
    out = tmp_path / "out"
    box.restore(to=out)
    assert photograph(out / "source") == photograph(box.source)


def test_a_store_without_forgotten_snapshots_has_few_packs(tmp_path: Path) -> None:
    box = Box(tmp_path, parity=SHARE)
    chance = random.Random(5)
    photos = {}
    for number in range(60):
        change(box, number, chance)
        photos[box.take().id] = photograph(box.source)
    assert files(box)["packs"] == 60
    report = prune(box)
    assert report.merged.packs == 60
    assert files(box)["packs"] <= 2
    for name, photo in list(photos.items())[::10]:
        out = tmp_path / name
        box.restore(to=out, snapshot=name)
        assert photograph(out / "source") == photo
    assert box.verify().ok


def use(number: int, size: int, dead: int = 0) -> PackUsage:
    return PackUsage(number.to_bytes(32, "big"), size, dead, 1, 0)


def chosen(*uses: PackUsage, writes_anyway: bool = False, bytes_max: float = 1 << 40) -> int:
    return len(choose_merges(uses, writes_anyway=writes_anyway, bytes_max=bytes_max))


def test_a_tier_is_joined_when_it_is_full() -> None:
    packs = [use(number, 20 * KIB) for number in range(8)]
    assert chosen(*packs[:7]) == 0
    assert chosen(*packs) == 8
    assert chosen(*packs[:6], writes_anyway=True) == 6
    assert chosen(*packs[:5], writes_anyway=True) == 0
    assert chosen(*packs, bytes_max=100 * KIB) == 0
    large = [use(100 + number, 20 * KIB * KIB) for number in range(20)]
    assert chosen(*large) == 0
    assert chosen(*packs[:4], *[use(50 + one, 200 * KIB) for one in range(4)]) == 0


def test_no_byte_is_written_again_more_often_than_packs_have_tiers() -> None:
    """A year of hourly snapshots of a few KB, merged by an hourly prune."""
    chance = random.Random(6)
    packs: dict[int, PackUsage] = {}
    stored = written = most = 0
    for number in range(24 * 365):
        packs[number] = use(number, chance.randrange(1500, 20_000))
        stored += packs[number].size_bytes
        gone = choose_merges(packs.values(), writes_anyway=False, bytes_max=1 << 40)
        if gone:
            size = sum(one.size_bytes for one in gone)
            for one in gone:
                del packs[int.from_bytes(one.pack_id, "big")]
            packs[number] = use(number, size)
            written += size
        small = [one for one in packs.values() if one.size_bytes < TIERS[-1]]
        most = max(most, len(small))
    assert most <= SMALL_PACKS_MAX + 1
    assert len(packs) < 40
    assert written < 5 * stored
