"""Scrub: damage is found, reported once, remembered, and repaired by the next snapshot."""

import contextlib
import copy
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.ids import PackId
from ciuic.maintain.scrub.budget import Budget, parse_budget
from ciuic.maintain.scrub.pack_health import Health, health
from ciuic.maintain.scrub.report import DamagedPack, ScrubReport, complete_costs, search_for
from ciuic.maintain.scrub.scrub import scrub
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.damage import flip_byte, flip_content, pack_of, packs, place_of
from tests.kit.installed import run_here
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
    write(box.source / "twin" / "shared", (box.source / "sub" / "shared").read_bytes())
    write(box.source / "model", os.urandom(MIB))
    box.take()
    write(box.source / "model", os.urandom(MIB + 1))
    box.take()
    yield box


def scrubbed(box: Box, **options: object) -> ScrubReport:
    return scrub(str(box.store), clock=box.clock, **options)  # type: ignore[arg-type]


def known(box: Box) -> Health:
    with open_store(str(box.store)) as store:
        return health(store)


def test_a_sound_store_is_sound_and_every_byte_of_its_packs_was_read(two: Box) -> None:
    assert known(two).unchecked == len(packs(two.store))
    report = scrubbed(two)
    assert report.ok
    assert report.stopped == ""
    assert report.read_packs == len(packs(two.store))
    assert report.read_bytes == sum(one.stat().st_size for one in packs(two.store))
    assert known(two) == report.health
    assert known(two).unchecked == 0
    assert known(two).oldest_ns == two.clock.now_ns()


def test_damage_is_reported_once_as_packs_chunks_files_and_snapshots(two: Box) -> None:
    shared = (two.source / "sub" / "shared").read_bytes()
    flip_content(two.store, shared[:MIB])
    report = scrubbed(two)
    assert not report.ok
    [pack] = report.damaged
    assert pack.is_new
    assert pack.check.pack_id.hex() == pack_of_first(two, shared)
    assert len(pack.check.bad) == len(pack.lost) == 1
    ids = tuple(one.id for one in two.snapshots())
    assert [(os.fsdecode(one.path), one.snapshots) for one in pack.files] == [
        (str(two.source / "sub" / "shared"), ids),
        (str(two.source / "twin" / "shared"), ids),
    ]
    assert report.missing == []

    again = scrubbed(two)
    assert [one.is_new for one in again.damaged] == [False], "it is there still, and no news"


def test_a_file_affected_by_two_packs_is_reported_once(box: Box) -> None:
    parts = [os.urandom(MIB) for _ in range(2)]
    file = write(box.source / "model", parts[0])
    box.take()
    write(file, b"".join(parts))
    box.take()
    for part in parts:
        flip_content(box.store, part)
    outcome = box.ciuic("scrub")
    assert outcome.code == 4
    assert outcome.out.count("1 chunk lost") == 2
    assert outcome.out.count(str(file)) == 1
    assert outcome.out.count("1 chunk lost; no other file is affected") == 1
    assert "no snapshot" not in outcome.out


def stored_in_packs(box: Box, content: bytes, count: int) -> dict[str, bytes]:
    """Store a chunk in several packs; each also has a chunk that no other pack has.

    Returns:
        That chunk of each pack, in the order of the packs' IDs. The first pack is the place of the
        common chunk.
    """
    write(box.source / "common", content)
    own: dict[str, bytes] = {}
    for _ in range(count):
        for name in own:
            (box.store / "packs" / name).rename(box.directory / name)
        (box.store / "catalog.sqlite").unlink(missing_ok=True)
        alone = os.urandom(MIB)
        write(box.source / "own", alone)
        box.take(base=True)
        own[pack_of(box.store, alone).name] = alone
        for name in own:
            if (box.directory / name).exists():
                (box.directory / name).rename(box.store / "packs" / name)
    (box.store / "catalog.sqlite").unlink()
    assert pack_of(box.store, content).name == min(own)
    return dict(sorted(own.items()))


def flip_copy(box: Box, name: str, content: bytes) -> None:
    """Invert the last byte of the frame of this content in this pack."""
    with open_store(str(box.store)) as store:
        frames = store.index_keeper.list_pack(PackId(bytes.fromhex(name)))
    chunk_id = data_id(content)
    [packed] = [one for one in frames if chunk_id in dict(one.frame.chunks)]
    end = packed.offset_bytes + packed.frame.total_bytes
    flip_byte(box.store / "packs" / name, end - 1)


def pack_of_first(box: Box, content: bytes) -> str:
    """The damaged pack, found by a chunk in it that is still whole."""
    return pack_of(box.store, content[MIB:]).name


def test_known_damage_is_reported_by_a_scrub_that_reads_other_packs(
    two: Box,
) -> None:
    flip_content(two.store, (two.source / "model").read_bytes()[:MIB])
    first = scrubbed(two)
    [damaged] = first.damaged
    two.clock = ManualClock(two.clock.now_ns() + HOUR_NS)
    write(two.source / "other", os.urandom(MIB))
    two.take()
    two.clock = ManualClock(two.clock.now_ns() + HOUR_NS)
    report = scrubbed(two, budget=Budget(size_bytes=1))
    assert report.stopped == "budget"
    assert report.read_packs == 1, "a new pack, which comes before those that were checked"
    assert report.damaged == []
    assert [one.pack_id for one in report.known] == [damaged.check.pack_id]
    assert not report.ok
    two.take()
    assert two.ciuic("scrub").code == 4
    write(two.source / "another", os.urandom(MIB))
    two.take()
    outcome = two.ciuic("scrub", "--budget", "1KiB")
    assert outcome.code == 4
    assert f"pack {damaged.check.pack_id.hex()[:12]}: DAMAGED since" in outcome.out


def test_packs_that_were_checked_longest_ago_come_first_and_a_budget_is_kept(box: Box) -> None:
    for number in range(4):
        write(box.source / f"file {number}", os.urandom(MIB))
        box.take()
    count = len(packs(box.store))
    seen: list[set[bytes]] = []
    for _ in range(count + 1):
        box.clock = ManualClock(box.clock.now_ns() + HOUR_NS)
        before = checked(box)
        report = scrubbed(box, budget=Budget(size_bytes=1))
        assert report.read_packs == 1
        after = checked(box)
        seen.append({name for name, when in after.items() if before.get(name) != when})
    assert len(set.union(*seen[:count])) == count, "each once, before any a second time"
    assert seen[count] == seen[0]
    assert scrubbed(box, budget=Budget(size_bytes=3 * MIB)).read_packs >= 2


def checked(box: Box) -> dict[bytes, int]:
    with open_store(str(box.store)) as store:
        index = store.existing_index
        assert index is not None
        return {name: one[0] for name, one in index.checks().items()}


def test_packs_that_were_checked_lately_are_left_alone_if_asked(two: Box) -> None:
    scrubbed(two)
    assert scrubbed(two, rest_s=3600).read_packs == 0
    two.clock = ManualClock(two.clock.now_ns() + HOUR_NS)
    assert scrubbed(two, rest_s=3600).read_packs == len(packs(two.store))
    # A check was recorded with a time in the future before the clock was set back.
    two.clock = ManualClock(two.clock.now_ns() - 1000 * HOUR_NS)
    assert scrubbed(two, rest_s=3600).read_packs == len(packs(two.store))


def test_a_later_snapshot_repairs_lost_chunks_for_all_snapshots(two: Box) -> None:
    flip_content(two.store, (two.source / "sub" / "shared").read_bytes()[:MIB])
    two.take()
    assert not two.verify().ok, "the damage was not known before"
    scrubbed(two)
    assert known(two).lost_chunks == 1
    report = two.take()
    assert report.new_bytes == MIB
    assert known(two).lost_chunks == 0
    assert two.verify().ok
    assert [one.files for one in scrubbed(two).damaged] == [[]]


def test_damage_that_only_seemed_to_be_there_is_forgotten_by_the_next_scrub(two: Box) -> None:
    content = (two.source / "model").read_bytes()[:MIB]
    place, pack = place_of(two.store, content), pack_of(two.store, content)
    flip_content(two.store, content)
    scrubbed(two)
    assert known(two).lost_chunks == 1
    flip_byte(pack, place.offset_bytes + place.frame_bytes - 1)
    assert scrubbed(two).ok
    assert known(two).lost_chunks == 0
    assert known(two).damaged == ()
    assert place_of(two.store, content) == place


def test_a_damaged_chunk_that_another_pack_has_is_not_lost(two: Box) -> None:
    content = (two.source / "model").read_bytes()[:MIB]
    pack = pack_of(two.store, content)
    aside = pack.rename(two.directory / "aside")
    (two.store / "catalog.sqlite").unlink()
    write(two.source / "more", b"or the new pack would be the same, name and all")
    two.take(base=True)
    aside.rename(pack)
    (two.store / "catalog.sqlite").unlink()
    flip_byte(pack, 200)
    report = scrubbed(two)
    [found] = report.damaged
    assert found.lost == ()
    assert found.saved >= 1
    assert found.files == []
    assert two.verify().ok
    # The chunk index no longer names the damaged copy, which a prune might have kept.
    assert place_of(two.store, content).pack_id.hex() != pack.name


def test_known_damage_of_the_pack_that_has_a_sound_copy_stays_known(box: Box) -> None:
    content = os.urandom(MIB)
    (first, _), (second, lost) = stored_in_packs(box, content, 2).items()
    flip_content(box.store, lost)
    scrubbed(box)
    assert known(box).lost_chunks == 1
    flip_copy(box, first, content)
    [found] = broken_off(box).damaged
    assert (found.check.pack_id.hex(), found.saved) == (first, 1)

    assert place_of(box.store, content).pack_id.hex() == second
    assert known(box).lost_chunks == 1
    assert [one.pack_id.hex() for one in known(box).damaged] == [first, second]
    write(box.source / "own", lost)
    assert box.take(base=True).new_bytes == MIB
    assert box.verify().ok


def test_of_three_copies_of_a_chunk_the_last_sound_one_becomes_its_place(box: Box) -> None:
    content = os.urandom(MIB)
    first, second, third = stored_in_packs(box, content, 3)
    for name in (first, second):
        flip_copy(box, name, content)
    assert [(one.lost, one.saved) for one in scrubbed(box).damaged] == [((), 1)] * 2
    assert place_of(box.store, content).pack_id.hex() == third
    assert box.verify().ok


def test_a_chunk_that_a_prune_moves_while_a_scrub_looks_at_it_is_not_lost(box: Box) -> None:
    content = os.urandom(MIB)
    first, second, third = stored_in_packs(box, content, 3)
    flip_copy(box, first, content)

    def prune(_: DamagedPack) -> None:
        with open_store(str(box.store), write=True) as store:
            kept = PackId(bytes.fromhex(third))
            frames = store.index_keeper.list_pack(kept)
            store.index.replace_places(kept, frames, {data_id(content)})
            store.index.remove_pack(PackId(bytes.fromhex(second)))
            store.index.commit()
        (box.store / "packs" / second).unlink()

    [found] = scrubbed(box, found=prune).damaged
    assert (found.lost, found.saved) == ((), 1)
    with open_store(str(box.store)) as store:
        assert data_id(content) not in store.index.lost_chunks()
    assert pack_of(box.store, content).name == third


def test_damage_is_reported_when_the_chunk_index_turns_out_to_be_damaged(box: Box) -> None:
    content = os.urandom(MIB)
    first, second = stored_in_packs(box, content, 2)
    flip_copy(box, first, content)
    spoil_table(box.store / "catalog.sqlite", "chunk")
    report = scrubbed(box)
    [found] = report.damaged
    assert (found.check.pack_id.hex(), found.lost, found.saved) == (first, (), 1)
    assert report.not_remembered == ""
    assert [one.pack_id.hex() for one in known(box).damaged] == [first]
    box.take(base=True)  # the chunk index was built again
    assert not scrubbed(box).ok
    assert pack_of(box.store, content).name == second
    assert box.verify().ok


def spoil_table(catalog: Path, table: str) -> None:
    """Overwrite the root page of a table: only what reads the table notices."""
    with contextlib.closing(sqlite3.connect(catalog)) as index:
        (size,) = index.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (root,) = index.execute(query, (table,)).fetchone()
    with catalog.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)


@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_a_pack_that_is_gone_or_cut_is_damage_and_names_files(two: Box, how: str) -> None:
    pack = pack_of(two.store, (two.source / "sub" / "shared").read_bytes()[:MIB])
    if how == "gone":
        pack.unlink()
    else:
        os.truncate(pack, 0 if how == "empty" else 5000)
    report = scrubbed(two)
    assert [one.check.pack_id.hex() for one in report.damaged] == [pack.name]
    files = {one.path for pack in report.damaged for one in pack.files}
    files |= {one.path for one in report.missing}
    names = ("sub/shared", "twin/shared", "model")
    assert {os.fsencode(two.source / name) for name in names} >= files
    assert os.fsencode(two.source / "sub" / "shared") in files
    outcome = two.ciuic("scrub")
    assert outcome.code == 4
    assert str(two.source / "sub" / "shared") in outcome.out


def test_a_lost_footer_is_damage_that_costs_no_file(two: Box) -> None:
    pack = packs(two.store)[0]
    flip_byte(pack, -3)
    report = scrubbed(two)
    [found] = report.damaged
    assert not found.check.footer_ok
    assert (found.lost, found.files, report.missing) == ((), [], [])
    assert two.verify().ok


def test_damaged_nodes_affect_everything_below_them(two: Box) -> None:
    tree = two.entries()[os.fsencode(two.source / "sub")].content
    with open_store(str(two.store)) as store:
        place = store.reader.places([tree])[tree]
    flip_byte(two.store / "packs" / place.pack_id.hex(), place.offset_bytes + place.frame_bytes - 1)
    [found] = scrubbed(two).damaged
    assert tree in found.lost
    assert os.fsencode(two.source / "sub") in {one.path for one in found.files}


def test_an_unreadable_manifest_is_reported(two: Box) -> None:
    name = two.snapshots()[1].id
    flip_byte(two.store / "snapshots" / f"{name}.json", 100)
    report = scrubbed(two)
    assert not report.ok
    assert [os.fsdecode(one.path) for one in report.manifests] == [f"snapshots/{name}.json"]
    assert two.ciuic("scrub").out.startswith(f"snapshots/{name}.json: DAMAGED: ")


@pytest.mark.parametrize("where", ["snapshots", "parity"])
def test_damage_to_a_manifest_or_to_its_copy_is_reported_and_affects_nothing(
    box: Box, where: str
) -> None:
    box.parity = 0.04
    write(box.source / "file", b"x")
    name = box.take().id
    flip_byte(box.store / where / f"{name}.json", 100)
    report = scrubbed(box)
    assert [os.fsdecode(one.path) for one in report.manifests] == [f"{where}/{name}.json"]
    assert box.ciuic("scrub").code == 4
    with open_store(str(box.store)) as store:
        assert find_snapshot(store, "latest-valid").id == name


def test_rotten_parity_is_found_before_it_is_needed(box: Box) -> None:
    box.parity = 0.04
    write(box.source / "file", os.urandom(2 * MIB))
    box.take()
    largest = max((box.store / "parity").iterdir(), key=lambda one: one.stat().st_size)
    flip_byte(largest, largest.stat().st_size // 2)
    report = scrubbed(box)
    [found] = report.damaged
    assert found.check.pack_id.hex() == largest.name
    assert "its parity is damaged" in found.check.what
    assert (found.lost, found.files) == ((), [])
    assert known(box).lost_chunks == 0
    assert box.verify().ok
    shutil.rmtree(box.store / "parity")
    assert scrubbed(box).ok, "a store without parity lacks nothing"


def test_chunks_that_parity_can_repair_are_damaged_and_not_lost(box: Box) -> None:
    box.parity = 0.04
    content = os.urandom(2 * MIB)
    write(box.source / "file", content)
    box.take()
    flip_content(box.store, content[:MIB])
    [found] = scrubbed(box).damaged
    assert (found.lost, found.saved, found.files) == ((), 1, [])
    assert known(box).lost_chunks == 0
    assert box.ciuic("cat", "latest-valid", box.source / "file").code == 0


def test_a_scrub_that_is_stopped_remembers_what_it_read(two: Box) -> None:
    read: list[int] = []
    report = scrubbed(two, cancelled=lambda: bool(read), progress=lambda done, _: read.append(done))
    assert report.stopped == "asked"
    assert report.read_packs == 1
    assert known(two).unchecked == len(packs(two.store)) - 1


class BrokenOffError(BaseException):
    """Not an ``Exception``: the tested code must not catch it, as it catches no interrupt."""


def test_a_scrub_records_what_it_read_however_it_ends(two: Box) -> None:
    def breaks_off(*_: int) -> None:
        raise BrokenOffError

    with pytest.raises(BrokenOffError):
        scrubbed(two, progress=breaks_off)
    assert known(two).unchecked == len(packs(two.store)) - 1


def test_damage_is_reported_when_found_and_before_it_is_remembered(two: Box) -> None:
    """Otherwise a scrub that is killed between the two would never report it."""
    flip_content(two.store, (two.source / "sub" / "shared").read_bytes()[:MIB])
    told: list[tuple[bytes, int]] = []

    def breaks_off(pack: DamagedPack) -> None:
        told.append((pack.check.pack_id, len(pack.lost)))
        raise BrokenOffError

    with pytest.raises(BrokenOffError):
        scrubbed(two, found=breaks_off)
    assert known(two).damaged == ()
    [found] = scrubbed(two).damaged
    assert told == [(found.check.pack_id, 1)]
    assert found.is_new


def test_a_scrub_beside_a_writer_reads_and_says_that_it_could_not_write(two: Box) -> None:
    read: list[int] = []
    with open_store(str(two.store), write=True):
        report = scrubbed(
            two, cancelled=lambda: bool(read), progress=lambda done, _: read.append(done)
        )
        assert report.read_packs == 1
        assert "in use" in report.not_remembered
    assert known(two).unchecked == len(packs(two.store))


def test_a_damaged_manifest_is_remembered_when_the_writer_beside_the_scrub_has_ended(
    two: Box,
) -> None:
    flip_byte(two.store / "snapshots" / f"{two.snapshots()[0].id}.json", 40)
    with contextlib.ExitStack() as writer:
        writer.enter_context(open_store(str(two.store), write=True))
        report = scrubbed(two, progress=lambda *_: writer.close())
    assert report.manifests
    assert not report.not_remembered
    assert len(known(two).documents) == len(report.manifests)


def protect(box: Box) -> None:
    """Give the store parity and copies of its manifests."""
    text = box.config.read_text()
    box.config.write_text(text.replace(f"parity = {box.parity:%}", "parity = 5%"))
    assert box.ciuic("repair", "--apply").code == 0


def test_a_manifest_that_is_repaired_before_a_scrub_records_it_is_not_known_as_damaged(
    two: Box,
) -> None:
    protect(two)
    for manifest in (two.store / "snapshots").iterdir():
        flip_byte(manifest, 40)
    with contextlib.ExitStack() as writer:
        writer.enter_context(open_store(str(two.store), write=True))

        def repair(*_: int) -> None:
            writer.close()
            assert two.ciuic("repair", "--apply").code == 0
            flip_byte(bad, 40)

        bad = min((two.store / "snapshots").iterdir())
        report = scrubbed(two, progress=repair, budget=Budget(size_bytes=1))
    assert len(report.manifests) == 2
    assert not report.not_remembered
    assert [one.path for one in known(two).documents] == [f"snapshots/{bad.name}"]


def test_a_pack_that_is_repaired_before_a_scrub_records_it_is_not_known_as_damaged(
    two: Box,
) -> None:
    protect(two)
    flip_content(two.store, (two.source / "sub" / "shared").read_bytes()[:MIB])
    with contextlib.ExitStack() as writer:
        writer.enter_context(open_store(str(two.store), write=True))

        def repair(_: DamagedPack) -> None:
            writer.close()
            assert two.ciuic("repair", "--apply").code == 0

        report = scrub(str(two.store), clock=SystemClock(), found=repair)
    assert report.damaged
    assert not report.not_remembered
    assert known(two).damaged == ()


def test_a_snapshot_is_taken_while_a_pack_is_being_read(two: Box) -> None:
    taken: list[str] = []

    def take(*_: int) -> None:
        if not taken:
            taken.append(two.take(base=True).id)

    report = scrubbed(two, progress=take)
    assert report.ok
    assert taken[0] == two.snapshots()[0].id


def test_without_a_chunk_index_the_checks_start_again(two: Box) -> None:
    scrubbed(two)
    (two.store / "catalog.sqlite").unlink()
    assert known(two).unchecked == len(packs(two.store))
    assert scrubbed(two).ok
    assert known(two).unchecked == 0


def test_damage_stays_known_when_packs_are_recorded_again(two: Box) -> None:
    """Another pack is gone, and the chunk index is built again from the other footers."""
    content = (two.source / "sub" / "shared").read_bytes()[:MIB]
    flip_content(two.store, content)
    scrubbed(two)
    pack_of(two.store, (two.source / "model").read_bytes()[MIB:]).unlink()
    two.take()
    assert two.verify().snapshots[0].ok


def test_a_budget_is_a_time_or_a_size() -> None:
    assert parse_budget("10m") == Budget(duration_s=600)
    assert parse_budget("10 GiB") == Budget(size_bytes=10 * 1024**3)
    assert parse_budget("10M") == Budget(size_bytes=10 * MIB)
    assert parse_budget("10GiB") == parse_budget("10g") == Budget(size_bytes=10 * 1024**3)
    for text in ("0s", "", "10x", "-5m", "m", "1e3", "0B"):
        with pytest.raises(ValueError, match="neither a time"):
            parse_budget(text)
    for text in ("10", " 10 ", "0", "1.5"):
        with pytest.raises(ValueError, match="has no unit: write a time such as 10m"):
            parse_budget(text)


def test_a_list_marks_the_snapshots_that_are_damaged_as_far_as_a_scrub_has_found(box: Box) -> None:
    lost = os.urandom(MIB)
    (box.source / "lost").write_bytes(lost)
    (box.source / "kept").write_bytes(os.urandom(MIB))
    first = box.take().id
    (box.source / "lost").unlink()
    second = box.take().id

    def marked() -> dict[str, bool]:
        return {one["id"]: one["damaged"] for one in box.ciuic("list", "--json").document}

    assert marked() == {first: False, second: False}
    flip_content(box.store, lost)
    assert "STATE" not in box.ciuic("list").out, "nothing has found it yet"
    assert box.ciuic("scrub").code == 4
    listed = box.ciuic("list")
    header, *rows = listed.out.splitlines()
    assert "STATE" in header
    assert {row.split()[0]: " damaged " in row for row in rows} == {first: True, second: False}
    assert "verify ID' names the damaged paths" in listed.err
    assert listed.code == 0
    assert marked() == {first: True, second: False}
    assert box.ciuic("repair", "--apply").code == 4
    assert box.ciuic("forget", first).code == 0
    assert "STATE" not in box.ciuic("list").out


def test_the_command_tells_people_and_programs(two: Box) -> None:
    outcome = two.ciuic("scrub")
    assert outcome.code == 0
    assert outcome.out == ""
    assert "no damage" in outcome.err
    flip_content(two.store, (two.source / "sub" / "shared").read_bytes()[:MIB])
    outcome = two.ciuic("scrub")
    assert outcome.code == 4
    assert outcome.out.count(str(two.source / "sub" / "shared")) == 1
    assert all(one.id in outcome.out for one in two.snapshots())
    assert f"ciuic --config {two.config} repair" in outcome.err
    outcome = two.ciuic("scrub", "--json")
    assert outcome.code == 4
    document = outcome.document
    assert not document["ok"]
    [pack] = document["damaged"]
    assert pack["lost_chunks"] == 1
    assert pack["stretches"][0]["chunks"]
    assert [one["path"] for one in pack["files"]] == [
        str(two.source / "sub" / "shared"),
        str(two.source / "twin" / "shared"),
    ]
    assert document["checks"]["unchecked"] == 0
    assert document["checks"]["damaged"][0]["pack"] == pack["pack"]


@pytest.mark.parametrize("budget", ["0", "soon", "10 minutes", ""])
def test_a_wrong_budget_is_wrong_usage(two: Box, budget: str) -> None:
    outcome = two.ciuic("scrub", "--budget", budget)
    assert outcome.code == 2
    assert outcome.err.count("\n") <= 4


def test_a_store_without_packs_or_snapshots_is_sound(box: Box) -> None:
    assert scrubbed(box).ok
    assert box.ciuic("scrub").code == 0


def test_damage_that_cannot_be_remembered_is_still_reported_with_its_files(
    two: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciuic.maintain.scrub.scrub._LOCK_WAIT_S", 0.2)
    flip_content(two.store, (two.source / "sub" / "shared").read_bytes()[:MIB])
    with open_store(str(two.store), write=True):
        outcome = run_here("--config", two.config, "scrub", "--json")
    assert outcome.code == 4
    [pack] = outcome.document["damaged"]
    assert len(pack["files"]) == 2
    assert "in use" in outcome.document["not_remembered"]
    assert known(two).lost_chunks == 0


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("how", "when", "code"),
    [
        ("error=EIO", "1", 0),
        ("error=EIO", "1+", 4),
        # Success without data, as with a loose cable.
        ("retval=4194304", "1", 0),
    ],
)
def test_a_bad_read_is_read_again_before_it_is_called_damage(
    two: Box, how: str, when: str, code: int
) -> None:
    pack = pack_of(two.store, (two.source / "sub" / "shared").read_bytes()[:MIB])
    wrapper = strace("preadv,preadv2", "-P", str(pack), inject=f"{how}:when={when}")
    outcome = ciuic("--config", two.config, "scrub", "--json", wrapper=wrapper)
    assert outcome.code == code, outcome.out
    damaged = [one["pack"] for one in outcome.document["damaged"]]
    assert damaged == ([] if code == 0 else [pack.name])
    assert scrubbed(two).ok
    assert known(two).lost_chunks == 0


def test_damage_below_a_shared_tree_is_reported_for_each_snapshot(box: Box) -> None:
    content = os.urandom(MIB)
    write(box.source / "a" / "b" / "c" / "file", content)
    ids = [box.take().id]
    for number in range(2):
        write(box.source / "other", os.urandom(100 + number))
        ids.append(box.take().id)
    flip_content(box.store, content)
    [found] = scrubbed(box).damaged
    [file] = found.files
    assert sorted(file.snapshots) == sorted(ids)


def broken_off(box: Box) -> ScrubReport:
    """A scrub that is stopped when it has found damage."""
    found: list[DamagedPack] = []
    report = scrubbed(box, cancelled=lambda: bool(found), found=found.append)
    assert len(report.damaged) == 1
    assert not report.is_complete
    return report


@pytest.fixture
def costly(box: Box) -> Box:
    """A file that is lost in three snapshots, among directories that change in part."""
    content = os.urandom(MIB)
    for number in range(3):
        for name in ("d/e/f", "g", "h/i"):
            write(box.source / name / "same", name.encode())
        write(box.source / "d" / str(number) / "new", os.urandom(100))
        write(box.source / "d" / "e" / "lost", content)
        box.take()
    flip_content(box.store, content)
    return box


def begin_again(report: ScrubReport, box: Box) -> None:
    with open_store(str(box.store)) as store:
        report.pending = search_for(report, store.header.store_id)


def paths_of(report: ScrubReport) -> list[tuple[str, tuple[str, ...]]]:
    [pack] = report.damaged
    return [(os.fsdecode(one.path), one.snapshots) for one in pack.files]


def test_the_search_for_damaged_files_finishes_however_often_it_is_interrupted(costly: Box) -> None:
    ids = [one.id for one in costly.snapshots()]
    report = broken_off(costly)
    (costly.source / "d" / "e" / "lost").unlink()
    begin_again(report, costly)
    at_once = copy.deepcopy(report)
    assert complete_costs(at_once, str(costly.store))
    attempts = 1
    while not complete_costs(report, str(costly.store), lambda: True):
        # Many snapshots, each with directories of its own.
        write(costly.source / "d" / f"later {attempts}" / "new", os.urandom(100))
        costly.take()
        attempts += 1
        assert attempts < 40
    assert attempts > 10, "it was broken off in the middle of snapshots, too"
    assert paths_of(report) == [(str(costly.source / "d" / "e" / "lost"), tuple(ids))]
    assert paths_of(report) == paths_of(at_once)


def test_the_search_continues_where_the_scrub_stopped(costly: Box) -> None:
    def finds(report: ScrubReport) -> int:
        count = 1
        while not complete_costs(report, str(costly.store), lambda: True):
            count += 1
        return count

    report = broken_off(costly)
    half_done, report.pending = report.pending, None
    assert half_done is not None
    again = copy.deepcopy(report)
    begin_again(again, costly)
    report.pending = half_done
    assert finds(again) == finds(report) + 1
    assert len(paths_of(report)) == 1


def test_lost_chunks_that_are_stored_again_or_forgotten_affect_no_file(
    costly: Box,
) -> None:
    names = [one.id for one in costly.snapshots()]
    for healed in (False, True):
        report = broken_off(costly)
        begin_again(report, costly)
        for _ in range(12):
            assert not complete_costs(report, str(costly.store), lambda: True)
        if healed:
            assert costly.take().new_bytes >= MIB, "it stands in its file still"
        else:
            with open_store(str(costly.store), write=True) as store:
                store.trash.forget(names[:1], costly.clock.now_ns())
            assert costly.ciuic("prune", "--trash", "0").code == 4, "a pack is damaged"
        assert complete_costs(report, str(costly.store))
        file = str(costly.source / "d" / "e" / "lost")
        assert paths_of(report) == ([] if healed else [(file, (names[1], names[2]))])


def test_a_scrub_that_finds_more_damage_does_not_restart_the_search(costly: Box) -> None:
    report = broken_off(costly)
    begin_again(report, costly)
    attempts = 1
    while not complete_costs(report, str(costly.store), lambda: True):
        with open_store(str(costly.store), write=True) as store:
            store.index.drop_chunks([os.urandom(32)])
            store.index.commit()
        attempts += 1
        assert attempts < 40
    assert len(paths_of(report)) == 1
