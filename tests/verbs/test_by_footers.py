"""Verifying a whole store by the footers of its packs finds what the chunk index would."""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ciuic.catalog import list_snapshots
from ciuic.model import Entry, PathWarning
from ciuic.store.format.frame import Frame, encode_frame
from ciuic.store.format.pack import MAGIC, PackedFrame, encode_footer
from ciuic.store.index import footers
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.index.places import ChunkPlace
from ciuic.store.place.packs import Packs
from ciuic.store.records import layout
from ciuic.store.records.kinds import DATA, RECIPE, TREE
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from ciuic.system.workers.processes import Processes
from ciuic.verify import by_footers, chunk_lookup, frame_checks, survey
from ciuic.verify.report import VerifyReport
from ciuic.verify.verify import verify_snapshots
from ciuic.view.damage_walk import Directory
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content, packs, place_of

KIB = 1024


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Small files in directories, one file of many chunks, two of one chunk and of one length."""
    made = Box(tmp_path, chunk_bytes=256 * KIB)
    dice = random.Random(11)
    for number in range(300):
        directory = made.source / f"{number % 7}" / f"{number % 30}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number}").write_bytes(b"%d " % number + dice.randbytes(400))
    (made.source / "large").write_bytes(dice.randbytes(1500 * KIB))
    for name in ("one", "other"):
        (made.source / name).write_bytes(dice.randbytes(100 * KIB))
    made.take()
    (made.source / "one more").write_bytes(dice.randbytes(100 * KIB))
    made.take()
    return made


def by_catalog(box: Box) -> VerifyReport:
    with open_store(str(box.store)) as store:
        snapshots = list_snapshots(store)
        return verify_snapshots(store, snapshots, {}, checksum=True, clock=box.clock)


def outcome(report: VerifyReport) -> tuple[object, ...]:
    return report.snapshots, report.chunks, report.read_bytes, report.bad


def damaged(report: VerifyReport) -> list[str]:
    """Names of the damaged paths of the newest snapshot."""
    return sorted(os.path.basename(os.fsdecode(one.path)) for one in report.snapshots[0].damaged)


def put_pack(store: Path, frames: Sequence[tuple[Frame, bytes | memoryview]]) -> None:
    """A pack as another program could have written it."""
    body = MAGIC
    packed: list[PackedFrame] = []
    for frame, payload in frames:
        header = frame.encode_header()
        packed.append(PackedFrame(len(body), frame, header))
        body += header + bytes(payload)
    name, end = encode_footer(packed, len(body), bytes(16))
    (store / layout.PACKS / layout.pack_name(name)).write_bytes(body + end)


def difference(new: bytes, old: bytes) -> tuple[Frame, memoryview]:
    """A frame with a delta of a few changed bytes."""
    from ciuic.codec import SPARSE, sparse_delta
    from ciuic.system.hashing import checksum

    stored = sparse_delta.encode(new, old, 1, 0)
    assert stored is not None
    chunks = ((data_id(new), len(new)),)
    frame = Frame(DATA, SPARSE, (data_id(old),), len(new), len(stored), checksum(stored), chunks)
    return frame, stored


def test_the_chunk_index_is_not_asked_for_listed_chunks(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outcome(by_catalog(box))
    asked: list[Sequence[bytes]] = []
    monkeypatch.setattr(ChunkIndex, "places", lambda _, ids: asked.append(ids) or {})
    report = box.verify()
    assert report.ok
    assert report.chunks > 300
    assert outcome(report) == expected
    assert asked == []


def test_the_disk_is_told_what_will_be_read(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    def heard(_fd: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        told.append((offset, length))

    monkeypatch.setattr(os, "posix_fadvise", heard)
    report = box.verify()
    large = place_of(box.store, (box.source / "one").read_bytes())
    assert any(
        begin <= large.offset_bytes and large.offset_bytes + large.frame_bytes <= begin + length
        for begin, length in told
    )
    assert sum(length for _, length in told) > report.read_bytes * 0.9


def test_verifying_some_snapshots_reads_no_footer(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footers, "listed_frames", lambda *_: pytest.fail("a footer was read"))
    assert by_catalog(box).ok


@pytest.mark.parametrize("chunks_max", [0, 1, 290, 320])
@pytest.mark.parametrize("seed", range(3))
def test_chunks_beyond_the_limit_of_the_list_are_looked_up(
    box: Box, monkeypatch: pytest.MonkeyPatch, chunks_max: int, seed: int
) -> None:
    monkeypatch.setattr(footers, "_CHUNKS_MAX", chunks_max)
    assert outcome(box.verify()) == outcome(by_catalog(box))
    dice = random.Random(seed)
    for pack in packs(box.store):
        for _ in range(dice.randrange(3)):
            flip_byte(pack, dice.randrange(16, pack.stat().st_size))
    found = box.verify()
    expected = by_catalog(box)
    assert (found.snapshots, found.bad) == (expected.snapshots, expected.bad)


@pytest.mark.parametrize("way", ["listing", "catalog"])
def test_a_chunk_that_the_cache_has_dropped_is_looked_up_again(
    box: Box, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    verify = Box.verify if way == "listing" else by_catalog
    flip_content(box.store, (box.source / "one").read_bytes())
    expected = verify(box)
    monkeypatch.setattr(chunk_lookup, "_LENGTHS_MAX", 0)
    monkeypatch.setattr(chunk_lookup, "LOOKED_UP_TOGETHER", 10)
    monkeypatch.setattr(survey, "LOOKED_UP_TOGETHER", 10)
    monkeypatch.setattr(by_footers, "_KEPT_BYTES", 0)
    found = verify(box)
    assert (found.snapshots, found.bad) == (expected.snapshots, expected.bad)
    assert damaged(found) == ["one"]
    if way == "listing":
        assert outcome(found) == outcome(expected)


def test_many_small_directories_are_looked_up_some_at_a_time(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the entries of a few directories are in memory, however many a snapshot has."""
    together: list[int] = []
    judge = survey.SnapshotSurvey._judge

    def counted(
        self: survey.SnapshotSurvey,
        entered: Mapping[Directory, list[Entry]],
        failures: Mapping[Directory, str],
        left: Sequence[Directory],
    ) -> Iterator[PathWarning]:
        together.append(len(entered) + sum(map(len, entered.values())))
        return judge(self, entered, failures, left)

    monkeypatch.setattr(survey, "LOOKED_UP_TOGETHER", 20)
    monkeypatch.setattr(survey.SnapshotSurvey, "_judge", counted)

    assert by_catalog(box).ok
    # A directory of this box has ten files at most.
    assert sum(together) > 300
    assert max(together) <= 20 + 11


def test_a_sound_frame_at_the_place_of_another_one_is_damage(box: Box) -> None:
    places = [place_of(box.store, (box.source / one).read_bytes()) for one in ("one", "other")]
    assert places[0].frame_bytes == places[1].frame_bytes
    assert places[0].pack_id == places[1].pack_id
    path = box.store / layout.PACKS / layout.pack_name(places[0].pack_id)
    data = path.read_bytes()
    with path.open("r+b") as file:
        for here, there in (places, places[::-1]):
            file.seek(here.offset_bytes)
            file.write(data[there.offset_bytes : there.offset_bytes + there.frame_bytes])
    report = box.verify()
    assert damaged(report) == ["one", "other"]
    assert report.snapshots == by_catalog(box).snapshots


def test_damage_to_chunks_that_no_snapshot_needs_is_not_reported(box: Box) -> None:
    small = b"needed" * 100
    (box.source / "needed").write_bytes(small)
    chunks = [(data_id(b"what it is not"), b"wrong"), (data_id(small), small)]
    put_pack(box.store, [encode_frame(DATA, chunks)])
    assert box.take().new_bytes == 0
    report = box.verify()
    assert report.ok
    assert report.bad == frozenset()
    assert report.chunks == by_catalog(box).chunks


@pytest.mark.parametrize("which", range(3))
def test_one_sound_copy_is_enough(box: Box, which: int) -> None:
    content = (box.source / "one").read_bytes()
    before = set(packs(box.store))
    for number in range(2):
        extra = b"%d" % number
        frames = [encode_frame(DATA, [(data_id(one), one)]) for one in (content, extra)]
        put_pack(box.store, frames)
    home = place_of(box.store, content)
    first, second = set(packs(box.store)) - before
    if which == 0:
        flip_byte(
            box.store / layout.PACKS / layout.pack_name(home.pack_id), home.offset_bytes + 200
        )
    else:
        flip_byte((first, second)[which - 1], 300)
    assert box.verify().ok


def test_a_delta_base_is_read_once_and_before_its_deltas(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = random.Random(3).randbytes(200 * KIB)
    new = old[:1000] + b"changed" + old[1007:]
    newest = new[:2000] + b"again" + new[2005:]
    frames = [difference(newest, new), difference(new, old)]
    put_pack(box.store, [*frames, encode_frame(DATA, [(data_id(old), old)])])
    (box.source / "tuned").write_bytes(newest)
    (box.source / "large").unlink()
    assert box.take().new_bytes == 0

    monkeypatch.setattr(frame_checks, "_WORTH_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    answers: list[bytes | None] = []
    ask = Processes.ask

    def heard(processes: Processes, request: bytes) -> bytes | None:
        answers.append(ask(processes, request))
        return answers[-1]

    monkeypatch.setattr(Processes, "ask", heard)
    assert box.verify().ok
    assert answers == [b""]
    flip_content(box.store, old)
    report = box.verify()
    assert damaged(report) == ["tuned"]
    assert report.bad == {data_id(newest)}
    assert report.snapshots == by_catalog(box).snapshots


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_delta_with_a_small_file_as_its_base_is_read(box: Box, is_damaged: bool) -> None:
    old = random.Random(4).randbytes(40 * KIB)
    new = old[:1000] + b"changed" + old[1007:]
    shared = encode_frame(DATA, [(data_id(b"x"), b"x"), (data_id(old), old)])
    put_pack(box.store, [shared, difference(new, old)])
    (box.source / "tuned").write_bytes(new)
    (box.source / "old").write_bytes(old)
    assert box.take().new_bytes == 0
    assert box.verify().ok
    if is_damaged:
        flip_content(box.store, new)
        assert damaged(box.verify()) == ["tuned"]


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_ring_of_deltas_is_damage(box: Box, rounds: int) -> None:
    one = random.Random(5).randbytes(100 * KIB)
    two = one[:1000] + b"changed" + one[1007:]
    frames = [difference(one, one)] if rounds == 1 else [difference(one, two), difference(two, one)]
    (box.source / "one").write_bytes(one)
    box.take()
    place = place_of(box.store, one)
    (box.store / layout.PACKS / layout.pack_name(place.pack_id)).unlink()
    put_pack(box.store, frames)
    report = box.verify()
    assert "one" in damaged(report)
    assert report.snapshots == by_catalog(box).snapshots


def test_a_copy_without_a_base_ends_a_cycle(box: Box) -> None:
    one = (box.source / "one").read_bytes()
    two = one[:1000] + b"changed" + one[1007:]
    put_pack(box.store, [difference(one, two), difference(two, one)])
    (box.source / "two").write_bytes(two)
    assert box.take().new_bytes == 0
    report = box.verify()
    assert report.ok
    assert report.read_bytes == by_catalog(box).read_bytes


@pytest.mark.parametrize("kind", [TREE, RECIPE])
def test_a_node_that_parity_rebuilds_still_counts_as_damaged(tmp_path: Path, kind: int) -> None:
    box = Box(tmp_path, chunk_bytes=64 * KIB, parity=0.04)
    (box.source / "large").write_bytes(random.Random(6).randbytes(300 * KIB))
    box.take()
    with open_store(str(box.store)) as store:
        names = [name for rows in store.index.chunk_ids() for name, other in rows if other == kind]
        places = store.reader.places(names)
    place = next(iter(places.values()))
    flip_byte(
        box.store / layout.PACKS / layout.pack_name(place.pack_id),
        place.offset_bytes + place.frame_bytes - 1,
    )
    report = box.verify()
    assert not report.ok
    assert report.bad
    assert (report.snapshots, report.bad) == (by_catalog(box).snapshots, by_catalog(box).bad)


def test_a_prune_beside_it_moves_what_was_listed_and_costs_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All chunks are moved after the footers have been read."""
    made = by_footers.Listing

    def then_moved(found_packs: Packs, names: Sequence[bytes]) -> by_footers.Listing:
        found = made(found_packs, names)
        for number, pack in enumerate(packs(box.store)):
            with open_store(str(box.store)) as store:
                frames = footers.listed_frames(store.packs, bytes.fromhex(pack.name))
                noise = b"%d" % number
                copied = [store.reader.frame(place_in(pack, one)) for one in frames]
            again = [
                (frame, raw_payload(pack, one))
                for one, (frame, _) in zip(frames, copied, strict=True)
            ]
            put_pack(box.store, [*again, encode_frame(DATA, [(data_id(noise), noise)])])
            pack.unlink()
        return found

    monkeypatch.setattr(by_footers, "Listing", then_moved)
    report = box.verify()
    assert report.ok
    assert report.chunks == by_catalog(box).chunks


def place_in(pack: Path, one: PackedFrame) -> ChunkPlace:
    name = bytes.fromhex(pack.name)
    return ChunkPlace(name, one.offset_bytes, one.frame.total_bytes, 0, 0, DATA)


def raw_payload(pack: Path, one: PackedFrame) -> bytes:
    begin = one.offset_bytes + one.frame.header_bytes
    return pack.read_bytes()[begin : begin + one.frame.stored_bytes]
