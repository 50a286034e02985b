"""Verify names everything that is damaged, once, and nothing else."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.catalog import list_snapshots
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from ciuic.verify.report import VerifyReport
from ciuic.view.damage import DamageSurvey
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content, pack_of, packs
from tests.kit.program import ciuic
from tests.kit.strace import strace

MIB = 1024 * 1024
HOUR_NS = 3600 * 10**9


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def two(box: Box) -> Iterator[Box]:
    """Two snapshots that share all but one file."""
    write(box.source / "sub" / "shared", os.urandom(2 * MIB))
    write(box.source / "sub" / "small", b"small")
    write(box.source / "twin" / "shared", (box.source / "sub" / "shared").read_bytes())
    write(box.source / "model", os.urandom(MIB))
    box.take()
    write(box.source / "model", os.urandom(MIB + 1))
    box.take()
    yield box


def damaged(report: VerifyReport) -> list[list[str]]:
    """The damaged paths of each snapshot, newest first."""
    return [[os.fsdecode(bad.path) for bad in one.damaged] for one in report.snapshots]


@pytest.mark.parametrize("checksum", [True, False])
def test_a_sound_store_is_sound(two: Box, checksum: bool) -> None:
    report = two.verify(checksum=checksum)
    assert report.ok
    assert len(report.snapshots) == 2
    assert (report.read_bytes > 0) == checksum


def test_an_empty_store_is_sound(box: Box) -> None:
    assert box.verify().ok
    assert box.ciuic("verify", "--all").code == 0
    assert box.ciuic("verify").code == 1


def test_a_flipped_bit_is_named_in_every_snapshot_and_under_every_name(two: Box) -> None:
    flip_content(two.store, (two.source / "sub" / "shared").read_bytes()[:MIB])
    paths = [str(two.source / "sub" / "shared"), str(two.source / "twin" / "shared")]
    assert damaged(two.verify()) == [paths, paths]
    assert two.verify(checksum=False).ok, "without reading, a flipped bit cannot be seen"
    outcome = two.ciuic("verify", "--all", "--checksum", "--json")
    assert outcome.code == 4
    assert not outcome.document["ok"]
    assert [one["ok"] for one in outcome.document["snapshots"]] == [False, False]


def test_a_flipped_bit_of_one_snapshot_spares_the_other(two: Box) -> None:
    flip_content(two.store, (two.source / "model").read_bytes()[:MIB])
    newest, oldest = damaged(two.verify())
    assert newest == [str(two.source / "model")]
    assert oldest == []


def test_a_flipped_bit_of_a_small_file_is_named(two: Box) -> None:
    flip_content(two.store, b"small")
    small = [str(two.source / "sub" / "small")]
    assert damaged(two.verify()) == [small, small]


def test_damage_far_below_a_directory_that_snapshots_share_is_named_in_each(box: Box) -> None:
    """A directory above the damage does not count as sound, and is walked again."""
    far = write(box.source / "shared" / "middle" / "low" / "far", b"far below")
    box.take()
    write(box.source / "model", b"later")
    box.take()
    flip_content(box.store, b"far below")

    assert damaged(box.verify()) == [[str(far)], [str(far)]]
    with open_store(str(box.store)) as store:
        survey = DamageSurvey(store, {data_id(b"far below")})
        found = [list(survey.damage(snapshot.id)) for snapshot in list_snapshots(store)]
    assert [[path.path for path in paths] for paths in found] == [[os.fsencode(far)]] * 2


def test_all_that_a_snapshot_needs_is_counted_and_read(box: Box) -> None:
    write(box.source / "sub" / "small", b"small")
    write(box.source / "large", os.urandom(3 * MIB))
    box.take()
    with open_store(str(box.store)) as store:
        totals = store.index_keeper.totals()
    assert box.verify().chunks == totals[2], "nodes of trees and recipes are chunks as well"


@pytest.mark.parametrize("checksum", [True, False])
def test_a_lost_pack_of_contents_is_named_in_every_snapshot(two: Box, checksum: bool) -> None:
    first = pack_of(two.store, b"small")
    first.unlink()
    newest, oldest = damaged(two.verify(checksum=checksum))
    inner = [str(two.source / one) for one in ("sub/shared", "sub/small", "twin/shared")]
    assert sorted(newest) == inner
    assert sorted(oldest) == sorted([*inner, str(two.source / "model")])


@pytest.mark.parametrize("checksum", [True, False])
def test_a_lost_pack_of_trees_is_named_in_every_snapshot(two: Box, checksum: bool) -> None:
    tree = two.entries()[os.fsencode(two.source / "sub")].content
    with open_store(str(two.store)) as store:
        pack = store.reader.places([tree])[tree].pack_id
    (two.store / "packs" / pack.hex()).unlink()
    report = two.verify(checksum=checksum)
    assert [one.ok for one in report.snapshots] == [False, False]
    newest = damaged(report)[0]
    assert str(two.source / "sub") in newest
    assert all(path.startswith(str(two.source)) for path in newest)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_pack_that_was_cut_short_is_damage(two: Box, checksum: bool) -> None:
    largest = packs(two.store)[0]
    os.truncate(largest, 1000)
    assert not two.verify(checksum=checksum).ok


def test_flipped_bits_in_a_tree_are_named(two: Box) -> None:
    nodes = packs(two.store)[-1]
    for offset in range(150, nodes.stat().st_size - 60, 40):
        flip_byte(nodes, offset)
    report = two.verify()
    assert not report.snapshots[0].ok
    assert all(one.startswith(str(two.source)) for one in damaged(report)[0])


@pytest.mark.parametrize("how", ["flipped", "empty", "cut", "another's", "text"])
def test_a_damaged_manifest_is_damage_and_spares_the_other_snapshot(two: Box, how: str) -> None:
    newest, oldest = two.snapshots()
    path = two.store / "snapshots" / f"{oldest.id}.json"
    if how == "flipped":
        flip_byte(path, path.stat().st_size // 2)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        os.truncate(path, path.stat().st_size - 10)
    elif how == "text":
        path.write_bytes(b"\xff\xfe not json")
    else:
        shutil.copy(two.store / "snapshots" / f"{newest.id}.json", path)
    outcome = two.ciuic("verify", "--all", "--checksum", "--json")
    assert outcome.code == 4
    found = {one["id"]: one["ok"] for one in outcome.document["snapshots"]}
    assert found == {newest.id: True, oldest.id: False}
    named = two.ciuic("verify", oldest.id, "--json")
    assert named.code == 4
    listed = two.ciuic("list", "--json")
    assert [one["id"] for one in listed.document] == [newest.id]
    assert oldest.id in listed.err
    assert two.ciuic("snapshot").code == 0


def test_damage_in_a_footer_alone_costs_nothing(two: Box) -> None:
    for pack in packs(two.store):
        flip_byte(pack, -60)
    (two.store / "catalog.sqlite").unlink()
    assert two.verify().ok


def test_two_bad_chunks_of_one_file_name_it_once(two: Box) -> None:
    data = (two.source / "sub" / "shared").read_bytes()
    shutil.rmtree(two.source / "twin")
    two.take()
    flip_content(two.store, data[:MIB])
    flip_content(two.store, data[MIB:])
    assert damaged(two.verify())[0] == [str(two.source / "sub" / "shared")]


def test_a_path_that_was_never_stored_is_not_damage(live_box: Box) -> None:
    victim = write(live_box.source / "a", b"x")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(live_box.source / "socket"))
        asked: list[int] = []

        def turn() -> bool:
            asked.append(1)
            if len(asked) == 3:
                victim.unlink()
                victim.mkdir()
            return False

        assert live_box.take(cancelled=turn).trouble_count == 1
    assert live_box.verify().ok


def test_verify_does_not_change_the_store(two: Box) -> None:
    before = {path: path.read_bytes() for path in two.store.rglob("*") if path.is_file()}
    assert two.verify().ok
    assert {path: path.read_bytes() for path in two.store.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("command", ["verify", "scrub"])
def test_an_error_of_the_store_is_not_reported_as_damage_of_a_chunk(box: Box, command: str) -> None:
    """Another pack may have the chunk, but cannot be opened."""
    data = os.urandom(MIB)
    write(box.source / "model", data)
    name = box.take().id
    other = os.urandom(MIB)
    write(box.source / "model", other)
    box.take()
    flip_content(box.store, data)
    damaged, failing = pack_of(box.store, data), pack_of(box.store, other)
    with open_store(str(box.store), write=True) as store:
        for pack in set(store.pack_files()) - {bytes.fromhex(damaged.name)}:
            store.index.put_check(pack, box.clock.now_ns() - HOUR_NS, 1, "")
        store.index.commit()
    wrapper = strace("openat", "-P", failing.name, inject="error=EACCES")
    arguments = {"verify": (name, "--checksum"), "scrub": ("--budget", "1KiB")}[command]
    outcome = ciuic("--config", box.config, command, *arguments, wrapper=wrapper)
    assert (outcome.code, failing.name in outcome.err) == (1, True), outcome
    assert box.ciuic(command, *arguments).code == 4
