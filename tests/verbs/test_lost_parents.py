"""A snapshot that only a later snapshot still names: its data stays."""

import json
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from ciuic.catalog import lost_snapshots
from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.report import CopyReport
from ciuic.maintain.forget import apply_forget, bring_back, plan_forget_by_id
from ciuic.snapshot.memory import MemoryRequest, take_from_memory
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.store.records.manifest import decode_manifest, encode_manifest
from ciuic.store.store import open_store
from tests.format import reader
from tests.kit.box import Box
from tests.kit.damage import flip_byte

ELSEWHERE = "f" * 32


@pytest.fixture
def chain(box: Box) -> list[str]:
    """Three snapshots, each the parent of the next, each with a file of its own."""
    return [take_one(box, number) for number in range(3)]


def take_one(box: Box, number: int) -> str:
    for old in box.source.iterdir():
        old.unlink()
    (box.source / f"own{number}").write_bytes(bytes([number]) * 100_000)
    return box.take().id


def manifest(box: Box, name: str) -> Path:
    return box.store / "snapshots" / f"{name}.json"


def lose(box: Box, name: str) -> bytes:
    """Remove the manifest, and the chunk index; there is no copy and no mark."""
    data = manifest(box, name).read_bytes()
    manifest(box, name).unlink()
    (box.store / "catalog.sqlite").unlink(missing_ok=True)
    return data


def lost(box: Box) -> list[str]:
    """What is lost, as ciuic and as the reader of the page see it."""
    with open_store(str(box.store)) as store:
        found = lost_snapshots(store)
    assert reader.Store(str(box.store)).lost() == found
    return found


def packs(box: Box) -> set[str]:
    return {one.name for one in (box.store / "packs").iterdir()}


def sealed(document: dict[str, object]) -> bytes:
    """Encode a document with a sound seal."""
    text = json.dumps(document | {"checksum": f"blake3:{'0' * 64}"}, indent=2) + "\n"
    digits = blake3(text.encode()).hexdigest()
    return text.replace("0" * 64, digits).encode()


def forget_and_prune(box: Box, *names: str) -> None:
    assert box.ciuic("forget", "--last-whole", *names).code == 0
    assert box.ciuic("prune", "--trash", "0").code == 0


def change(box: Box, name: str, **fields: object) -> None:
    """Write another manifest under a name, with a sound seal."""
    was = decode_manifest(manifest(box, name).read_bytes(), name)
    summary = msgspec.structs.replace(was.summary, **fields)
    manifest(box, name).write_bytes(encode_manifest(was.with_summary(summary)))


def test_a_parent_that_is_gone_in_every_other_record_stops_a_prune(
    box: Box, chain: list[str]
) -> None:
    before = packs(box)
    was = lose(box, chain[1])

    refused = box.ciuic("prune", "--trash", "0")

    assert refused.code == 4
    assert f"the manifest of {chain[1]} is gone, so nothing was removed" in refused.err
    assert f"'ciuic --config {box.config} forget {chain[1]}'" in refused.err
    assert packs(box) == before
    manifest(box, chain[1]).write_bytes(was)
    assert lost(box) == []
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert box.verify().ok


def test_every_command_that_looks_for_damage_names_the_lost_parent(
    box: Box, chain: list[str]
) -> None:
    lose(box, chain[1])
    for command in (["verify", "--all"], ["scrub"], ["repair"], ["doctor"], ["list"]):
        outcome = box.ciuic(*command)
        assert chain[1] in outcome.out + outcome.err, (command, outcome)
        assert outcome.code != 0 or command == ["list"], (command, outcome)
        (box.store / "catalog.sqlite").unlink(missing_ok=True)


def test_an_abandoned_snapshot_is_no_longer_lost(box: Box, chain: list[str]) -> None:
    lose(box, chain[1])
    assert lost(box) == [chain[1]]

    assert box.ciuic("forget", chain[1]).code == 0

    assert lost(box) == []
    before = packs(box)
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert packs(box) < before
    assert box.verify().ok


def test_parents_that_were_purged_or_brought_back_are_not_lost(box: Box, chain: list[str]) -> None:
    forget_and_prune(box, chain[0])
    with open_store(str(box.store), write=True) as store:
        now_ns = box.clock.now_ns()
        apply_forget(store, plan_forget_by_id(store, [chain[1]], now_ns, last_whole=True), now_ns)
    assert lost(box) == []
    with open_store(str(box.store), write=True) as store:
        bring_back(store, chain[1])
    (box.store / "catalog.sqlite").unlink()
    assert lost(box) == []
    assert box.ciuic("prune", "--trash", "0").code == 0


def test_the_lost_parent_of_a_snapshot_in_the_trash_stays(box: Box, chain: list[str]) -> None:
    assert box.ciuic("forget", "--last-whole", chain[1]).code == 0
    lose(box, chain[0])
    before = packs(box)
    assert box.ciuic("prune", "--trash", "0").code == 4
    assert packs(box) == before
    assert lost(box) == [chain[0]]


def test_a_copy_with_a_retention_of_its_own_misses_no_parent(box: Box, chain: list[str]) -> None:
    copy = box.directory / "copy"
    assert box.ciuic("--store", copy, "init").code == 0
    assert box.ciuic("copy", "--to", copy, chain[0], chain[2]).code == 0
    assert box.ciuic("--store", copy, "verify").code == 0
    assert box.ciuic("--store", copy, "forget", chain[0]).code == 0
    assert box.ciuic("--store", copy, "prune", "--trash", "0").code == 0
    (copy / "catalog.sqlite").unlink()
    assert box.ciuic("--store", copy, "prune", "--trash", "0").code == 0
    assert box.ciuic("--store", copy, "verify").code == 0


def test_snapshots_of_two_stores_in_one_miss_no_parent(
    box: Box, chain: list[str], tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    other = Box(tmp_path / "second")
    theirs = [take_one(other, number) for number in range(5, 8)]
    forget_and_prune(other, theirs[0])
    assert other.ciuic("copy", "--to", box.store).code == 0
    assert lost(box) == []
    # The other way: a snapshot comes back to the store that it is from, which purged its parent.
    forget_and_prune(box, theirs[1])
    assert other.ciuic("forget", "--last-whole", theirs[1]).code == 0
    assert other.ciuic("prune", "--trash", "0").code == 0
    assert box.ciuic("copy", "--to", other.store).code == 0
    assert (lost(other), lost(box)) == ([], [])
    assert chain[2] in {one.id for one in other.snapshots()}


def test_a_state_that_replaces_a_copied_one_does_not_vouch_for_its_parent(
    box: Box, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    home = Box(tmp_path / "second")
    with open_store(str(home.store), write=True) as store:
        for number in range(2):
            home.clock.advance(10)
            files = (MemoryFile(b"state.json", (b"%d" % number,)),)
            saved = take_from_memory(store, MemoryRequest(files), clock=home.clock)
    with open_store(str(home.store)) as source, open_store(str(box.store), write=True) as copy:
        request = CopyRequest(frozenset([saved.id]))
        copy_snapshots(source, copy, request, CopyReport("", False), clock=home.clock)
        there = copy.manifest(saved.id).summary
        assert there.parent is not None
        again = MemoryRequest((MemoryFile(b"state.json", (b"less",)),), replaces=there)
        take_from_memory(copy, again, clock=home.clock)
    assert lost(box) == []
    assert box.ciuic("prune", "--trash", "0").code == 0


@pytest.mark.parametrize("parent", ["../../etc/passwd", "", "cs-", "cs-ABCDEF", "cs-00112233\n"])
def test_a_parent_that_is_no_id_is_not_missed(box: Box, chain: list[str], parent: str) -> None:
    change(box, chain[2], parent=parent)
    assert lost(box) == []
    assert box.ciuic("prune", "--trash", "0").code == 0


def test_a_snapshot_of_another_or_an_unnamed_store_vouches_for_nothing(
    box: Box, chain: list[str]
) -> None:
    lose(box, chain[1])
    assert lost(box) == [chain[1]]
    for store in ("", ELSEWHERE, "x" * 1000):
        change(box, chain[2], store=store)
        (box.store / "catalog.sqlite").unlink(missing_ok=True)
        assert lost(box) == []


@pytest.mark.parametrize("value", [7, None, ["a"], {}])
def test_a_manifest_whose_store_is_no_text_is_damaged(
    box: Box, chain: list[str], value: object
) -> None:
    document = json.loads(manifest(box, chain[2]).read_bytes())
    document["store"] = value
    manifest(box, chain[2]).write_bytes(sealed(document))
    outcome = box.ciuic("verify")
    assert outcome.code == 4
    assert "Traceback" not in outcome.err
    assert chain[2] in outcome.out + outcome.err


def test_a_repair_keeps_the_ids_of_a_damaged_record_of_retired_ids(
    box: Box, chain: list[str]
) -> None:
    forget_and_prune(box, chain[0], chain[1])
    (record,) = (box.store / "retired").iterdir()
    at = record.read_bytes().index(b"checksum") + 3
    flip_byte(record, at)
    (box.store / "catalog.sqlite").unlink()
    assert box.ciuic("list").err == "", "the parents may be retired there"
    assert box.ciuic("prune", "--trash", "0").code == 4

    assert box.ciuic("repair", "--apply").code == 0

    assert lost(box) == []
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert (box.store / "quarantine" / f"retired-{record.name}").exists()
