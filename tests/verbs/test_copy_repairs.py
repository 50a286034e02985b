"""``ciuic copy`` to a copy that has lost packs: the next copy sends again what they held."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.kit.box import Box
from tests.kit.damage import flip_byte, packs
from tests.kit.program import ciuic

MIB = 1024 * 1024


@pytest.fixture
def pair(box: Box) -> Box:
    """A store with three snapshots, and its copy in several packs."""
    rng = random.Random(4)
    for number in range(3):
        (box.source / f"large{number}").write_bytes(rng.randbytes(5 * MIB))
        (box.source / f"d{number}").mkdir()
        (box.source / f"d{number}" / "small").write_bytes(rng.randbytes(500))
        box.take()
        assert box.ciuic("copy", "--to", box.directory / "copy", "--init").code == 0
    return box


def copy(box: Box, *more: str, code: int = 0) -> Any:
    outcome = box.ciuic("copy", "--to", box.directory / "copy", "--json", *more)
    assert outcome.code == code, outcome
    return outcome.document


def there(box: Box, *arguments: object, code: int = 0) -> Any:
    outcome = ciuic("--store", box.directory / "copy", *arguments)
    assert outcome.code == code, outcome
    return outcome


def lose(pack: Path, how: str) -> None:
    if how == "gone":
        pack.unlink()
    elif how == "cut":
        os.truncate(pack, 1000)
    else:
        flip_byte(pack, 1_000_000)


@pytest.mark.parametrize("scrubs", [True, False], ids=["scrubbed", "not scrubbed"])
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_pack_that_is_gone_or_cut_is_sent_again_by_the_next_copy(
    pair: Box, how: str, *, scrubs: bool
) -> None:
    for pack in packs(pair.directory / "copy"):
        lose(pack, how)
    if scrubs:
        found = there(pair, "scrub", "--json", code=4).document
        assert found["checks"]["lost_chunks"] >= 15
    foreseen = copy(pair, "--dry-run")
    done = copy(pair)
    assert done["mended_chunks"] >= 15
    assert foreseen["mended_chunks"] == done["mended_chunks"]
    assert (done["copied"], len(done["present"]), done["damaged_there"]) == ([], 3, [])
    there(pair, "verify", "--all", "--checksum")
    found = there(pair, "scrub", "--json", code=0 if how == "gone" else 4).document
    assert found["checks"]["lost_chunks"] == 0
    assert not found["missing"]
    assert copy(pair)["sent_bytes"] == 0


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_results_of_a_scrub_are_known_after_another_writer_has_rebuilt_the_chunk_index(
    pair: Box, how: str
) -> None:
    lose(packs(pair.directory / "copy")[0], how)
    there(pair, "tag", "latest", "--add", "x")
    there(pair, "scrub", code=4)
    there(pair, "scrub", "--budget", "1KiB", code=4)
    there(pair, "tag", "latest", "--add", "y")
    assert copy(pair)["mended_chunks"] >= 1
    there(pair, "verify", "--all", "--checksum")


def test_a_copy_whose_chunk_index_is_gone_as_well_is_looked_through(pair: Box) -> None:
    packs(pair.directory / "copy")[0].unlink()
    for file in (pair.directory / "copy").glob("catalog.sqlite*"):
        file.unlink()
    assert copy(pair)["mended_chunks"] >= 5
    there(pair, "verify", "--all", "--checksum")


def test_damage_that_the_store_cannot_repair_is_reported_until_it_is_repaired(
    pair: Box,
) -> None:
    pair.config.write_text(f"{pair.config.read_text()}copies = {pair.directory / 'copy'}\n")
    names = sorted(one.id for one in pair.snapshots())
    assert "has every snapshot" in pair.ciuic("status").out or copy(pair)
    oldest = pair.snapshots()[-1].id
    (pair.source / "large0").unlink()
    kept = pair.take().id
    copy(pair)
    assert pair.ciuic("forget", *names).code == 0
    assert pair.ciuic("prune", "--trash", "0s").code == 0 or True
    for pack in packs(pair.directory / "copy"):
        pack.unlink()
    done = copy(pair, code=4)
    assert oldest in done["damaged_there"]
    assert kept not in done["damaged_there"]
    status = pair.ciuic("status").out
    assert "has every snapshot" not in status
    assert "stay damaged" in status
    for name in done["damaged_there"]:
        there(pair, "forget", name)
    copy(pair)
    assert "has every snapshot" in pair.ciuic("status").out


def flip_in_the_middle(store: Path) -> None:
    for pack in packs(store):
        flip_byte(pack, pack.stat().st_size // 2)


def test_what_a_verification_of_the_copy_finds_damaged_is_sent_again_in_the_same_run(
    pair: Box,
) -> None:
    flip_in_the_middle(pair.directory / "copy")
    outcome = pair.ciuic("copy", "--to", pair.directory / "copy", "--verify")
    assert outcome.code == 0, outcome
    assert "sent again" in outcome.err
    assert "3 verified" in outcome.err
    there(pair, "verify", "--all", "--checksum")
    assert copy(pair, "--verify")["sent_bytes"] == 0


def test_what_a_verification_finds_damaged_and_the_store_lacks_as_well_is_not_verified(
    pair: Box,
) -> None:
    for place in (pair.store, pair.directory / "copy"):
        flip_in_the_middle(place)
    outcome = pair.ciuic("copy", "--to", pair.directory / "copy", "--verify")
    assert outcome.code == 4, outcome
    assert "0 verified, 3 damaged in the copy" in outcome.err
    repairs = f"'ciuic --store {pair.directory / 'copy'} repair' says what can be repaired"
    assert repairs in outcome.err
    assert there(pair, "verify", "--all", code=4).out  # noted: no chunk needs to be read
