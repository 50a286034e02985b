"""Stores at the edges of docs/format.md: every command treats them as the page says."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ciuic.model import BEING_WRITTEN, CONSISTENT, UNREADABLE
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records.kinds import DATA, RECIPE, TREE
from ciuic.store.records.sealed import seal
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.damage import flip_byte, pack_of, packs, place_of
from tests.kit.hostile import HOSTILE, commit, directory, file, node
from tests.kit.spelled_pack import Spelled, footer_of

DAMAGE = 4


@pytest.mark.parametrize(("size_bytes", "state"), [(9, CONSISTENT), (3_000_000, BEING_WRITTEN)])
def test_a_file_with_a_size_and_without_content_is_damage_to_every_command(
    box: Box, tmp_path: Path, size_bytes: int, state: int
) -> None:
    (box.source / "a").write_bytes(bytes(size_bytes))
    before = box.take()
    entry = file(b"a", size_bytes=size_bytes)
    entry.state = state
    commit(box.store, box.source, lambda writer: node(writer, TREE, 0, [entry, file(b"b")]))
    path = box.source / "a"
    out = tmp_path / "out"

    looked_up = box.ciuic("verify", HOSTILE, "--json")
    read = box.ciuic("verify", "--all", "--checksum", "--json")
    dry = box.ciuic("restore", "-s", HOSTILE, "-p", box.source, "-d", out, "--dry-run", "--json")
    restored = box.ciuic("restore", "-s", HOSTILE, "-p", box.source, "-d", out, "--json")
    cat = box.ciuic("cat", HOSTILE, path)
    tar = box.ciuic("cat", "--tar", HOSTILE, box.source)
    diff = box.ciuic("diff", before.id, HOSTILE, "--json")

    for outcome in (looked_up, read):
        (damaged,) = [one for one in outcome.document["snapshots"] if one["id"] == HOSTILE]
        assert outcome.code == DAMAGE
        assert [one["path"] for one in damaged["damaged"]] == [str(path)]
    for outcome in (dry, restored):
        assert outcome.code == DAMAGE
        assert [one["path"] for one in outcome.document["failed"]] == [str(path)]
    assert [one.name for one in (out / box.source.name).iterdir()] == ["b"]
    assert (cat.code, tar.code, diff.code) == (DAMAGE, DAMAGE, DAMAGE)
    assert "?" not in cat.out
    assert ("unknown", str(path)) in {(one["change"], one["path"]) for one in diff.document}
    assert box.ciuic("repair", "--json").code == DAMAGE


def test_an_unreadable_file_may_have_a_size(box: Box) -> None:
    entry = file(b"a", size_bytes=9)
    entry.state = UNREADABLE
    commit(box.store, box.source, lambda writer: node(writer, TREE, 0, [entry]))

    assert box.ciuic("verify", "--all", "--checksum").code == 0


def test_a_directory_among_unfinished_files_stops_no_writer(box: Box) -> None:
    (box.source / "a").write_bytes(b"a")
    foreign = box.store / "tmp" / "made-by-hand"
    (foreign / "inner").mkdir(parents=True)
    (box.store / "tmp" / "left").write_bytes(b"of a killed writer")

    taken = box.ciuic("snapshot")
    pruned = box.ciuic("prune", "--trash", "0")

    assert (taken.code, pruned.code) == (0, 0)
    assert f"{foreign} is a directory" in taken.err
    assert "disk" not in taken.err
    assert (foreign / "inner").is_dir()
    assert not (box.store / "tmp" / "left").exists()


CONTENT = b"a" * 100


@pytest.fixture
def taken(box: Box) -> Path:
    """The pack of the content of a snapshot; the file is gone from the source since."""
    (box.source / "a").write_bytes(CONTENT)
    (box.source / "b").write_bytes(b"other")
    box.take()
    (box.source / "a").unlink()
    return pack_of(box.store, CONTENT)


def restored(box: Box, out: Path) -> bytes:
    """The content as the first snapshot's restore gives it."""
    (first,) = [one.id for one in box.snapshots() if one.kind == "base"]
    outcome = box.ciuic("restore", "-s", first, "-p", box.source, "-d", out)
    assert outcome.code == 0, outcome.err
    assert box.ciuic("cat", first, box.source / "a").out.encode() == CONTENT
    return (out / box.source.name / "a").read_bytes()


def frames_of(pack: Path) -> bytes:
    """The part of a pack that is in front of its footer."""
    data = pack.read_bytes()
    return data[: int.from_bytes(data[-32:][:8], "little")]


@pytest.mark.parametrize(("at", "has_index"), [(0, True), (16, False), (80, True)])
def test_the_footers_copy_of_a_header_serves_for_a_damaged_one(
    box: Box, tmp_path: Path, taken: Path, at: int, has_index: bool
) -> None:
    whole = packs(box.store)
    frames = [frames_of(pack) for pack in whole]
    for pack in whole:
        for packed in footer_of(pack):
            flip_byte(pack, packed.offset_bytes + at)
    if not has_index:
        (box.store / "catalog.sqlite").unlink()

    assert restored(box, tmp_path / "before") == CONTENT
    verified = box.ciuic("verify", "--all", "--checksum", "--json")
    assert verified.code == 0  # a restore gives back everything
    said = box.ciuic("verify", "--all", "--checksum").out
    assert "restore reads its second copy in the footer" in said
    assert "repair --apply" in said
    named = {one["path"] for one in verified.document["damaged_copies"]}
    assert named == {f"packs/{pack.name}" for pack in whole}
    scrubbed = box.ciuic("scrub", "--json")
    assert scrubbed.code == DAMAGE
    assert [one["lost_chunks"] for one in scrubbed.document["damaged"]] == [0] * len(whole)

    repaired = box.ciuic("repair", "--apply", "--json")

    assert repaired.code == 0, repaired.err
    assert repaired.document["lost_chunks"] == 0
    assert sorted(map(frames_of, packs(box.store))) == sorted(frames)
    assert box.ciuic("verify", "--all", "--checksum").code == 0
    assert restored(box, tmp_path / "after") == CONTENT


def test_a_damaged_header_in_the_footer_costs_nothing(
    box: Box, tmp_path: Path, taken: Path
) -> None:
    frames = frames_of(taken)
    others = set(packs(box.store)) - {taken}
    first = footer_of(taken)[0]
    listed = taken.read_bytes().rindex(first.header)
    flip_byte(taken, listed + 70)

    assert restored(box, tmp_path / "before") == CONTENT
    assert box.ciuic("repair", "--apply").code == 0
    (new,) = set(packs(box.store)) - others
    assert frames_of(new) == frames
    assert restored(box, tmp_path / "after") == CONTENT


def copies(box: Box, *, codec: int = 0, payload: bytes = b"x" * 100) -> Path:
    """Write a pack with another copy of the content, which cannot be decoded to it."""
    spelled = Spelled()
    spelled.add(DATA, CONTENT, payload, codec)
    return spelled.write(box.store)


@pytest.mark.parametrize("codec", [0, 99])
def test_a_copy_that_is_of_no_use_hides_no_good_one_in_another_pack(
    box: Box, tmp_path: Path, taken: Path, codec: int
) -> None:
    bad = [copies(box, codec=codec, payload=bytes([number]) * 100) for number in range(4)]
    (box.store / "catalog.sqlite").unlink()

    assert restored(box, tmp_path / "out") == CONTENT
    verified = box.ciuic("verify", "--all", "--checksum", "--json")
    assert verified.code == 0
    assert {one["path"] for one in verified.document["damaged_copies"]} <= {
        f"packs/{pack.name}" for pack in bad
    }


@pytest.mark.parametrize("codec", [0, 99])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_copy_that_is_of_no_use_hides_no_good_one_in_the_same_pack(
    box: Box, tmp_path: Path, taken: Path, codec: int, is_first: bool
) -> None:
    spelled = Spelled()
    spelled.add_pack(taken)
    good = spelled.frames
    spelled.frames = []
    spelled.add(DATA, CONTENT, b"x" * 99, codec, {"length": 99})
    spelled.frames = spelled.frames + good if is_first else good + spelled.frames
    taken.unlink()
    pack = spelled.write(box.store)
    (box.store / "catalog.sqlite").unlink()

    assert restored(box, tmp_path / "out") == CONTENT
    assert ("codec 99" in box.ciuic("scrub").err) == (codec == 99)
    verified = box.ciuic("verify", "--all", "--checksum", "--json")
    assert verified.code == 0
    assert [one["path"] for one in verified.document["damaged_copies"]] == [f"packs/{pack.name}"]


ODD = [{"kind": 9}, {"flags": 1}, {"reserved": 2}]
NEVER = [
    {"stored": 101},
    {"stored": 2**32 - 1},
    {"plain": 99},
    {"reserved": 1},
    {"length": 0, "plain": 0},
]
CASES = [*((one, True) for one in (*ODD, *NEVER)), (ODD[0], False), (NEVER[2], False)]


@pytest.mark.parametrize(("odd", "has_footer"), CASES)
def test_a_frame_that_no_reader_can_use_costs_no_other_frame_of_its_pack(
    box: Box, tmp_path: Path, taken: Path, odd: dict[str, int], has_footer: bool
) -> None:
    spelled = Spelled()
    spelled.add(DATA, b"c" * 100, odd=odd)
    spelled.add_pack(taken)
    taken.unlink()
    pack = spelled.write(box.store)
    (box.store / "catalog.sqlite").unlink()
    if not has_footer:
        flip_byte(pack, -1)

    assert restored(box, tmp_path / "out") == CONTENT
    assert box.ciuic("verify", "--all", "--checksum").code == 0
    assert box.ciuic("snapshot").code == 0
    assert restored(box, tmp_path / "again") == CONTENT
    if has_footer and odd in ODD:
        assert "is not known" in box.ciuic("scrub").err
        pruned = box.ciuic("prune", "--trash", "0")
        assert pruned.code != 0
        assert pack.exists()


def test_a_frame_that_no_writer_makes_is_damage_that_a_repair_sets_aside(
    box: Box, tmp_path: Path, taken: Path
) -> None:
    spelled = Spelled()
    spelled.add(DATA, b"c" * 100, odd={"stored": 101})
    spelled.add_pack(taken)
    taken.unlink()
    pack = spelled.write(box.store)

    scrubbed = box.ciuic("scrub", "--json")
    box.ciuic("prune", "--trash", "0")
    assert pack.exists()
    repaired = box.ciuic("repair", "--apply", "--json")

    assert (scrubbed.code, repaired.code) == (DAMAGE, 0), repaired.err
    assert "longer than the chunks" in scrubbed.out
    assert not pack.exists()
    assert (box.store / "quarantine" / pack.name).exists()
    assert box.ciuic("scrub").code == 0
    assert restored(box, tmp_path / "out") == CONTENT


@pytest.mark.parametrize("has_index", [True, False])
def test_a_footer_whose_frames_overlap_is_damaged_and_costs_no_frame(
    box: Box, tmp_path: Path, taken: Path, has_index: bool
) -> None:
    spelled = Spelled()
    spelled.add(DATA, b"c" * 100)
    spelled.add_pack(taken)
    taken.unlink()
    offsets = [8]
    for header, payload in spelled.frames[:-1]:
        offsets.append(offsets[-1] + len(header) + len(payload))
    offsets[1] -= 1
    pack = spelled.write(box.store, listed_at=offsets)
    if not has_index:
        (box.store / "catalog.sqlite").unlink()

    assert restored(box, tmp_path / "before") == CONTENT
    scrubbed = box.ciuic("scrub", "--json")
    assert scrubbed.code == DAMAGE
    assert "overlap" in scrubbed.out
    repaired = box.ciuic("repair", "--apply", "--json")
    assert repaired.code == 0, repaired.err
    assert repaired.document["lost_chunks"] == 0
    assert not pack.exists()
    assert box.ciuic("scrub").code == 0
    assert restored(box, tmp_path / "after") == CONTENT


LINES = b"".join([b"line %d\n" % number for number in range(8)])


@pytest.mark.parametrize("wrong", ["count", "first", ""])
def test_a_wrong_hint_in_an_index_is_damage_to_verify_and_changes_no_restore(
    box: Box, tmp_path: Path, wrong: str
) -> None:
    def spelled(writer: StoreWriter) -> bytes:
        content = data_id(LINES)
        writer.add_data([(content, LINES)])
        leaf = node(writer, RECIPE, 0, [[len(LINES), content]])
        count = len(LINES) - 1 if wrong == "count" else len(LINES)
        first = b"x" if wrong == "first" else b""
        recipe = node(writer, RECIPE, 1, [[len(LINES), b"", leaf], [count, first, leaf]])
        files = [file(name, recipe, 2 * len(LINES), 2) for name in (b"a", b"b")]
        leaves = [node(writer, TREE, 0, [one]) for one in (file(b"c"), file(b"d"))]
        second = [5 if wrong == "count" else 1, b"x" if wrong == "first" else b"d", leaves[1]]
        tree = node(writer, TREE, 1, [[1, b"c", leaves[0]], second])
        return node(writer, TREE, 0, [*files, directory(b"z", tree, 1)])

    commit(box.store, box.source, spelled, files=4)
    out = tmp_path / "out"

    for more in ([], ["--checksum"]):
        verified = box.ciuic("verify", HOSTILE, *more, "--json")
        assert verified.code == (DAMAGE if wrong else 0)
        (one,) = verified.document["snapshots"]
        assert [found["path"] for found in one["damaged"]] == (
            [str(box.source / name) for name in ("a", "b", "z")] if wrong else []
        )
        assert all("wrong count or first name" in found["what"] for found in one["damaged"])
    outcome = box.ciuic("restore", "-s", HOSTILE, "-p", box.source, "-d", out)
    assert outcome.code == 0, outcome.err
    there = out / box.source.name
    assert (there / "a").read_bytes() == (there / "b").read_bytes() == 2 * LINES
    assert sorted(path.name for path in (there / "z").iterdir()) == ["c", "d"]


def with_unknown(store: Path, pack: Path, odd: Mapping[str, int]) -> Path:
    """Write a pack again, with a frame before the others that a later version wrote."""
    spelled = Spelled()
    spelled.add(DATA, b"n" * 100, odd=odd)
    spelled.add_pack(pack)
    pack.unlink()
    return spelled.write(store)


@pytest.mark.parametrize("odd", ODD)
def test_a_repair_leaves_a_pack_of_a_newer_ciuic_and_repairs_everything_else(
    box: Box, tmp_path: Path, taken: Path, odd: dict[str, int]
) -> None:
    newer = with_unknown(box.store, taken, odd)
    before = newer.read_bytes()
    (box.source / "c").write_bytes(b"c" * 3000)
    box.take()
    flip_byte(pack_of(box.store, b"c" * 3000), 100)

    planned = box.ciuic("repair", "--json")
    repaired = box.ciuic("repair", "--apply")
    after = box.ciuic("repair", "--json")

    assert (planned.code, repaired.code, after.code) == (DAMAGE, 0, 0), repaired.err
    for outcome in (planned, after):
        (left,) = outcome.document["unread"]
        assert left["path"] == f"packs/{newer.name}"
        assert "is not known" in left["what"]
    assert f"left as it is: packs/{newer.name}" in repaired.err
    assert "newer version of ciuic" in repaired.err
    assert newer.read_bytes() == before
    assert len(list((box.store / "quarantine").iterdir())) == 1
    assert box.ciuic("verify", "--all", "--checksum").code == 0
    assert restored(box, tmp_path / "out") == CONTENT


@pytest.mark.parametrize("has_footer", [True, False])
def test_a_damaged_pack_of_a_newer_ciuic_stays_where_it_is(
    box: Box, tmp_path: Path, taken: Path, has_footer: bool
) -> None:
    newer = with_unknown(box.store, taken, ODD[0])
    (box.store / "catalog.sqlite").unlink()
    place = place_of(box.store, CONTENT)
    assert place.pack_id.hex() == newer.name
    flip_byte(newer, place.offset_bytes + place.frame_bytes - 1 if has_footer else -1)
    before = newer.read_bytes()

    scrubbed = box.ciuic("scrub", "--json")
    repaired = box.ciuic("repair", "--apply", "--json")

    assert scrubbed.code == repaired.code == DAMAGE
    assert [one["pack"] for one in scrubbed.document["damaged"]] == [newer.name]
    assert "is not known" in scrubbed.document["unread"][0]["what"]
    (bad,) = repaired.document["packs"]
    assert (bad["pack"], bad["stays"]) == (newer.name, True)
    assert [one["path"] for one in repaired.document["unread"]] == [f"packs/{newer.name}"]
    assert newer.read_bytes() == before
    assert not (box.store / "quarantine").exists()
    if not has_footer:
        assert restored(box, tmp_path / "out") == CONTENT


def test_a_repair_names_documents_of_a_newer_ciuic(box: Box, taken: Path) -> None:
    (newest, *_) = [one.id for one in box.snapshots()]
    document = json.loads((box.store / "snapshots" / f"{newest}.json").read_text())
    document |= {"format": 2, "id": "cs-123456"}
    (box.store / "snapshots" / "cs-123456.json").write_bytes(seal(document))
    later = box.store / "retired" / "0123456789abcdef-1.json"
    later.parent.mkdir()
    later.write_bytes(seal({"format": 2, "ids": [], "checksum": ""}))

    outcome = box.ciuic("repair", "--apply", "--json")

    named = [one["path"] for one in outcome.document["unread"]]
    assert named == [f"retired/{later.name}", "snapshots/cs-123456.json"]
    assert (box.store / "snapshots" / "cs-123456.json").exists()
    assert later.exists()


def test_a_copy_with_right_checksums_and_wrong_content_is_found_by_reading_it(box: Box) -> None:
    wrong = b"x" * 100

    def spelled(writer: StoreWriter) -> bytes:
        writer.add_data([(data_id(wrong), wrong)])
        return node(writer, TREE, 0, [file(b"a", data_id(CONTENT), len(CONTENT))])

    commit(box.store, box.source, spelled)
    other = Spelled()
    other.add(DATA, CONTENT, wrong)
    other.write(box.store)

    codes = [
        box.ciuic(*command).code
        for command in (["scrub"], ["verify", "--all"], ["verify", "--all", "--checksum"])
    ]

    assert codes == [0, 0, DAMAGE]
    outcome = box.ciuic("cat", HOSTILE, box.source / "a")
    assert (outcome.code, outcome.out) == (DAMAGE, "")
