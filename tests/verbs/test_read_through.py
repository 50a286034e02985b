"""A restore reads chunks that its store has lost from the store's copies."""

import os
import random
import shutil
from pathlib import Path

import pytest

from ciuic.errors import CorruptionError
from ciuic.store.directory.create import create_store
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.damage import flip_content, flip_node, packs
from tests.kit.mounted import mounted
from tests.kit.program import Outcome
from tests.kit.trees import differences, photograph


@pytest.fixture
def pair(box: Box) -> Box:
    """A store with two snapshots, its configured copy, and no live files."""
    rng = random.Random(1)
    for number in range(30):
        path = box.source / f"d{number % 3}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(4000))
    large = bytearray(rng.randbytes(2_500_000))
    (box.source / "large").write_bytes(large)
    (box.source / "shifting").write_bytes(large[:1_200_000])
    box.take()
    (box.source / "d0" / "f0").write_bytes(b"changed")
    large[40:44] = b"edit"
    (box.source / "large").write_bytes(large)
    box.take(tags=("second",))
    box.config.write_text(f"{box.config.read_text()}copies = {copy_of(box)}\n")
    assert box.ciuic("copy", "--to", copy_of(box), "--init").code == 0
    box.photo = photograph(box.source)
    return box


def copy_of(box: Box) -> Path:
    return box.directory / "copy"


def restored(box: Box, *options: str | Path, code: int = 0) -> Outcome:
    """Restore everything of the newest snapshot, beside the live files."""
    out = box.directory / "out"
    shutil.rmtree(out, ignore_errors=True)
    outcome = box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", out, *options)
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.err
    if code == 0:
        assert not differences(box.photo, photograph(out / "source"))
    return outcome


def lose_all(box: Box) -> None:
    for pack in packs(box.store):
        pack.unlink()


@pytest.mark.parametrize("without_index", [False, True])
def test_a_store_without_any_pack_is_restored_from_its_copy(pair: Box, without_index: bool) -> None:
    lose_all(pair)
    if without_index:
        (pair.store / "catalog.sqlite").unlink()
    before = photograph(copy_of(pair) / "packs"), photograph(pair.store / "packs")
    said = restored(pair).err
    assert (
        f"chunks came from the copy {copy_of(pair)}; 'ciuic --config {pair.config} repair --apply'"
        in said
    )
    assert said.count("\n") == 1
    assert (photograph(copy_of(pair) / "packs"), photograph(pair.store / "packs")) == before
    document = restored(pair, "--json").document
    (copy,) = document["copies"]
    assert copy["address"] == str(copy_of(pair))
    assert copy["chunks"] > 30
    assert copy["problem"] is None


@pytest.mark.parametrize("without_index", [False, True])
def test_only_what_is_damaged_is_read_from_the_copy(pair: Box, without_index: bool) -> None:
    flip_content(pair.store, b"changed")
    if without_index:
        (pair.store / "catalog.sqlite").unlink()
    assert "the store is damaged: 1 chunk came from the copy" in restored(pair).err


def test_a_delta_is_decoded_with_a_base_of_the_copy(pair: Box) -> None:
    entry = pair.entries()[os.fsencode(pair.source / "large")]
    with open_store(str(pair.store)) as store:
        pieces = [piece.id for piece in iter_pieces(store.reader.node, entry)]
        bases = [
            base for place in store.reader.places(pieces).values() for base in place.delta_bases
        ]
        (base,) = bases
        plain = bytes(store.reader.chunk(base, kind=DATA))
    flip_content(pair.store, plain)
    assert "1 chunk came from the copy" in restored(pair).err


def test_trees_and_recipes_are_read_from_the_copy(pair: Box) -> None:
    entries = pair.entries()
    with open_store(str(pair.store)) as store:
        tree = store.manifest(pair.snapshots()[0].id).roots[0].tree
    flip_node(pair.store, entries[str(pair.source / "large").encode()].content)
    flip_node(pair.store, tree)
    assert "chunks came from the copy" in restored(pair).err


def test_the_switch_leaves_the_copies_alone(pair: Box) -> None:
    lose_all(pair)
    shutil.rmtree(copy_of(pair) / "packs")
    said = restored(pair, "--no-copies", code=4).err
    assert "came from" not in said
    assert "ciuic: the copy" not in said


def test_an_undamaged_store_opens_no_copy(pair: Box) -> None:
    shutil.rmtree(copy_of(pair))
    copy_of(pair).write_text("not a store")
    assert not restored(pair).err


@pytest.mark.parametrize(
    ("ruin", "sentence"),
    [
        (shutil.rmtree, "there is no store at"),
        (lambda copy: (copy / "ciuic-store.json").write_bytes(b"{}"), "ciuic-store.json"),
        (lambda copy: [pack.unlink() for pack in packs(copy)], "does not have all that is lost"),
    ],
    ids=["absent", "damaged header", "without packs"],
)
def test_a_copy_that_is_of_no_use_is_one_sentence(pair: Box, ruin, sentence: str) -> None:
    ruin(copy_of(pair))
    flip_content(pair.store, b"changed")
    outcome = restored(pair, code=4)
    (line,) = [line for line in outcome.err.splitlines() if "ciuic: the copy" in line]
    assert line.startswith(f"ciuic: the copy {copy_of(pair)}: ")
    assert sentence in line
    assert f"not restored: {pair.source}/d0/f0: " in outcome.err
    assert len(list((pair.directory / "out" / "source").rglob("f*"))) == 29


def test_a_copy_with_the_same_damage_is_one_sentence_and_the_next_copy_is_asked(pair: Box) -> None:
    other = pair.directory / "other"
    assert pair.ciuic("copy", "--to", other, "--init").code == 0
    pair.config.write_text(pair.config.read_text().replace("copies = ", f"copies = {other}, "))
    flip_content(pair.store, b"changed")
    flip_content(other, b"changed")
    said = restored(pair).err
    assert f"ciuic: the copy {other}: it is damaged too: " in said
    assert f"1 chunk came from the copy {copy_of(pair)}" in said


def test_a_copy_of_another_store_is_one_sentence(pair: Box, tmp_path: Path) -> None:
    alien = tmp_path / "alien"
    create_store(str(alien), SystemClock())
    text = pair.config.read_text()
    pair.config.write_text(text.replace(f"copies = {copy_of(pair)}", f"copies = {alien}"))
    flip_content(pair.store, b"changed")
    said = restored(pair, code=4).err
    assert f"ciuic: the copy {alien}: it does not have all that is lost here" in said
    assert "has the damaged data intact" not in said


def test_bytes_that_do_not_hash_to_the_id_are_not_taken(pair: Box) -> None:
    flip_content(pair.store, b"changed")

    class Liar:
        def chunk(self, _chunk_id, _kind):
            return b"CHANGED"

    with open_store(str(pair.store)) as store:
        store.reader.elsewhere = Liar()
        with pytest.raises(CorruptionError, match="decodes to"):
            store.reader.chunk(data_id(b"changed"), kind=DATA)


def test_a_verification_counts_damage_whatever_a_copy_has(pair: Box) -> None:
    flip_content(pair.store, b"changed")
    assert pair.ciuic("verify", "--checksum").code == 4


def test_cat_reads_the_copy(pair: Box) -> None:
    flip_content(pair.store, b"changed")
    path = pair.source / "d0" / "f0"
    shown = pair.ciuic("cat", "latest", path)
    assert (shown.code, shown.out) == (0, "changed")
    assert "1 chunk came from the copy" in shown.err
    assert pair.ciuic("cat", "--no-copies", "latest", path).code == 4
    assert pair.ciuic("cat", "--tar", "latest", pair.source).code == 0


def test_a_mount_reads_the_copy_and_says_so_once(pair: Box) -> None:
    lose_all(pair)
    with mounted(pair) as shown:
        assert not differences(pair.photo, photograph(shown.at(pair.source)))
        assert shown.said().count(f"what is lost is read from the copy {copy_of(pair)}") == 1


def test_a_checkout_reads_the_copy(pair: Box) -> None:
    lose_all(pair)
    shutil.rmtree(pair.source)
    pair.source.mkdir()
    assert pair.ciuic("checkout", "latest", pair.source, "--no-copies").code == 4
    assert not list(pair.source.iterdir())
    done = pair.ciuic("checkout", "latest", pair.source)
    assert done.code == 0, done
    assert done.err.count("came from the copy") == 1
    assert not differences(pair.photo, photograph(pair.source))
