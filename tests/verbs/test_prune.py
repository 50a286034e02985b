"""Prune removes everything unneeded and nothing else, and announces it before."""

import contextlib
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic.errors import (
    CancelledError,
    CiuicError,
    CorruptionError,
    StoreError,
    StoreFullError,
    UnknownFormatError,
)
from ciuic.ids import PackId, SessionId
from ciuic.maintain.prune import apply
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneCounts, PruneReport
from ciuic.store.format import frame
from ciuic.store.format.pack import MAGIC, PackedFrame, encode_footer
from ciuic.store.gc import remove, rewrite, rewrite_output, usage
from ciuic.store.gc.mark import Marks
from ciuic.store.gc.remove import unlink_pack
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.packs.pack_writer import PackFile
from ciuic.store.parity.parity_file import Parity, inspect_parity
from ciuic.store.parity.shape import shape_for
from ciuic.store.place.packs import Packs
from ciuic.store.records import kinds, layout, sealed
from ciuic.store.snapshots.trash import Trash
from ciuic.store.store import Store, open_store
from ciuic.system import hashing
from ciuic.system.clock import SystemClock
from ciuic.system.hashing import ID_BYTES, data_id
from ciuic.verify.verify import verify_all
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.damage import flip_byte, flip_content, pack_of, packs
from tests.kit.filesystems import disk
from tests.kit.program import CIUIC, environment
from tests.kit.pruning import forget, names_of, prune, wear
from tests.kit.trees import Photo, differences, photograph

KIB = 1024
MIB = 1024 * 1024
DAY_S = 86_400.0


def figures(report: PruneReport) -> dict[str, Any]:
    """The figures that a dry run must predict."""
    shown = report.as_json()
    return {key: shown[key] for key in shown if key not in {"dry_run", "total_s"}}


def pack_bytes(box: Box) -> int:
    return sum(one.stat().st_size for one in packs(box.store))


def state(box: Box) -> dict[str, bytes]:
    """Every file of the store that matters."""
    directories = ("packs", "snapshots", "marks", "retired", "parity")
    found = [path for name in directories for path in sorted((box.store / name).glob("*"))]
    return {str(path): path.read_bytes() for path in found}


def assert_restores(box: Box, known: dict[str, dict[bytes, Photo]]) -> None:
    """Every kept snapshot is sound and can be restored."""
    report = box.verify()
    assert report.ok, report.as_json()
    for name, photo in known.items():
        with tempfile.TemporaryDirectory(dir=box.directory) as out:
            box.restore(snapshot=name, to=Path(out))
            assert differences(photo, photograph(Path(out) / "source")) == [], name


@pytest.fixture
def worn(box: Box) -> Box:
    return wear(box)


def test_prune_removes_exactly_the_chunks_of_forgotten_snapshots(worn):
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    before = pack_bytes(worn)
    forget(worn, first, second)
    report = prune(worn)
    assert set(report.expired) == {first, second}
    # 19 MiB of large files, one of the second snapshot, and most of the small ones.
    assert report.removed.packs >= 1
    assert report.rewritten.packs >= 2
    assert pack_bytes(worn) == before - report.freed_bytes
    assert 3 * MIB < pack_bytes(worn) < 5 * MIB
    assert_restores(worn, known)
    assert names_of(worn) == [third]


@pytest.mark.parametrize("forgotten", [0, 1, 2])
def test_a_dry_run_predicts_every_figure_and_changes_nothing(worn, forgotten):
    forget(worn, *names_of(worn)[:forgotten])
    before = state(worn)
    foreseen = prune(worn, dry_run=True)
    assert state(worn) == before
    assert foreseen.dry_run
    done = prune(worn)
    assert figures(done) == figures(foreseen)
    assert (done.freed_bytes > 0) == (forgotten > 0)


def test_a_second_prune_finds_nothing_to_do(worn):
    forget(worn, *names_of(worn)[:2])
    prune(worn)
    before = state(worn)
    again = prune(worn)
    assert (again.freed_bytes, again.removed.packs, again.rewritten.packs) == (0, 0, 0)
    assert again.dead_chunks < 0.25 * again.needed_chunks
    assert state(worn) == before


def test_chunks_of_snapshots_in_the_trash_are_kept_until_they_expire(worn):
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first)
    worn.clock.advance(DAY_S - 1)
    forget(worn, second)
    early = prune(worn, trash_s=DAY_S)
    assert (early.expired, early.freed_bytes) == ((), 0)
    worn.clock.advance(1)
    later = prune(worn, trash_s=DAY_S)
    assert later.expired == (first,)
    assert later.freed_bytes > 15 * MIB
    with open_store(str(worn.store), write=True) as store:
        with pytest.raises(CiuicError):
            store.trash.bring_back(first)
        store.trash.bring_back(second)
    assert_restores(worn, known)
    assert len(worn.snapshots()) == 2


def test_a_snapshot_after_a_prune_reuses_nothing_that_is_gone(worn):
    """The chunk index must not list chunks that are gone."""
    first, second, _ = names_of(worn)
    out = worn.directory / "out"
    worn.restore(snapshot=first, to=out)
    forget(worn, first, second)
    prune(worn)
    shutil.rmtree(worn.source)
    (out / "source").rename(worn.source)
    again = worn.take(base=True)
    assert again.new_bytes > 15 * MIB
    assert_restores(worn, {again.id: photograph(worn.source)})


def test_a_lost_or_wrong_chunk_index_costs_nothing(worn):
    """The needed chunks are read from manifests, trees and footers only."""
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    whole = figures(prune(worn, dry_run=True))
    (worn.store / layout.CATALOG).unlink()
    assert figures(prune(worn, dry_run=True)) == whole
    # Wrong rows for every needed chunk; the packs it names do not exist.
    with open_store(str(worn.store), write=True) as store:
        names = [name for rows in store.index.chunk_ids() for name, _ in rows]
        store.index.drop_chunks(names)
        store.index.commit()
    assert figures(prune(worn)) == whole
    assert_restores(worn, known)


# Errors that stop it


@pytest.mark.parametrize("what", ["manifest", "tree", "trashed"])
def test_an_unreadable_file_stops_prune_before_anything_is_removed(worn, what):
    first, second, _ = names_of(worn)
    forget(worn, first)
    if what == "manifest":
        shutil.rmtree(worn.store / "parity", ignore_errors=True)
        flip_byte(worn.store / "snapshots" / f"{second}.json", 200)
    elif what == "tree":
        shutil.rmtree(worn.store / "parity", ignore_errors=True)
        with open_store(str(worn.store)) as store:
            root = store.manifest(second).roots[0].tree
            place = store.reader.places([root])[root]
        flip_byte(
            worn.store / "packs" / place.pack_id.hex(), place.offset_bytes + place.frame_bytes - 1
        )
    else:
        shutil.rmtree(worn.store / "parity", ignore_errors=True)
        flip_byte(worn.store / "snapshots" / f"{first}.json", 200)
    before = state(worn)
    with pytest.raises(CorruptionError) as error:
        prune(worn)
    assert "repair" in error.value.hint
    assert "nothing was removed" in error.value.message
    assert state(worn) == before


def test_a_lost_manifest_whose_copy_is_left_stops_it(worn):
    """A repair may bring the manifest back, and its chunks must exist then."""
    _, second, third = names_of(worn)
    with open_store(str(worn.store), write=True) as store:
        store.manifests.copies.keep(second, store.header)
    (worn.store / "snapshots" / f"{second}.json").unlink()
    before = state(worn)
    with pytest.raises(CorruptionError, match=second):
        prune(worn)
    assert state(worn) == before
    with open_store(str(worn.store), write=True) as store:
        store.trash.delete_lost([second])
    assert prune(worn).freed_bytes > 0
    assert third in names_of(worn)


def test_parity_without_its_pack_goes_and_what_strangers_left_stays(worn):
    parity = worn.store / "parity"
    parity.mkdir(exist_ok=True)
    stranger = parity / "notes"
    stranger.write_bytes(b"mine")
    orphan = parity / ("ab" * 32)
    orphan.write_bytes(b"x" * 500)
    foreseen = prune(worn, dry_run=True)
    assert orphan.exists()
    report = prune(worn)
    assert figures(report) == figures(foreseen)
    assert report.orphans.size_bytes == 500
    assert not orphan.exists()
    assert stranger.exists()
    old = {one.name for one in packs(worn.store)}
    forget(worn, *names_of(worn)[:2])
    written = prune(worn).written.packs
    new = {one.name for one in packs(worn.store)} - old
    assert len(new) == written > 0
    assert {one.name for one in parity.iterdir() if len(one.name) == 64} - old == new


def foreign_pack(box: Box, changed: Callable[[bytes], bytes], *, reference: bytes = b"") -> Path:
    """A pack with one frame whose header was changed, checksums included, in the store."""
    plain = os.urandom(5000)
    one, payload = frame.encode_frame(kinds.DATA, [(data_id(plain), plain)])
    if reference:
        one = one._replace(delta_bases=(reference,))
    header = changed(one.encode_header())
    packed = PackedFrame(len(MAGIC), one, header)
    name, end = encode_footer([packed], len(MAGIC) + one.total_bytes, bytes(16))
    path = box.store / "packs" / name.hex()
    path.write_bytes(MAGIC + header + bytes(payload) + end)
    return path


def test_a_pack_of_a_later_version_stops_it(worn):
    """ciuic cannot know what the snapshot needs."""

    def of_kind_9(header: bytes) -> bytes:
        table = header[frame.HEADER_BYTES :]
        bare = header[:4] + b"\x09" + header[5 : frame.HEADER_BYTES - 8]
        return bare + frame.checksum(bare + table).to_bytes(8, "little") + table

    forget(worn, names_of(worn)[0])
    foreign = foreign_pack(worn, of_kind_9)
    before = state(worn)
    with pytest.raises(UnknownFormatError, match=f"pack {foreign.name[:12]}"):
        prune(worn)
    assert state(worn) == before


@pytest.mark.parametrize("after", [1, 5, 9, 14, 15, 16, 18])
def test_stopped_anywhere_it_leaves_every_snapshot_whole_and_goes_on_later(worn, after):
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    copy = worn.directory / "whole"
    shutil.copytree(worn.store, copy)
    with contextlib.suppress(CancelledError):
        prune(worn, after=after)
    assert_restores(worn, known)
    assert list((worn.store / "tmp").iterdir()) == []
    prune(worn)
    assert_restores(worn, known)
    worn.store = copy
    prune(worn)
    assert pack_bytes(worn) == sum(one.stat().st_size for one in copy.glob("packs/*"))


def test_a_prune_stops_when_it_is_asked_to(worn):
    forget(worn, names_of(worn)[0])
    with pytest.raises(CancelledError, match="nothing was removed"):
        prune(worn, after=1)


def test_a_prune_that_is_stopped_while_it_rewrites_keeps_the_new_packs(worn):
    """Otherwise a prune that is always stopped before a pack is full would never progress."""
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    moved: list[int] = []

    def rewrites(what: str, done: int, _total: int) -> None:
        if what == "rewrite":
            moved.append(done)

    with open_store(str(worn.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=worn.clock.now_ns())
        one, other, *_ = [usage.pack_path(store.path, use.pack_id) for use in plan.rewritten]
        with pytest.raises(CancelledError):
            apply_prune(
                store, plan, clock=worn.clock, cancelled=lambda: bool(moved), progress=rewrites
            )
    assert moved == [1]
    assert (os.path.exists(one), os.path.exists(other)) == (False, True)
    assert is_half_pruned(worn)
    assert_restores(worn, known)
    assert prune(worn).rewritten.packs == len(plan.rewritten) - 1
    assert not is_half_pruned(worn)
    assert_restores(worn, known)


def is_half_pruned(box: Box) -> bool:
    with open_store(str(box.store)) as store:
        return store.prune_mark.is_set


class PowerCut(BaseException):
    """Nothing catches it, as nothing catches a power cut."""


def test_a_begun_prune_is_recorded_before_the_trash_is_emptied(worn, monkeypatch):
    """Otherwise the packs of expired snapshots would stay until others expire."""
    first, second, _ = names_of(worn)
    forget(worn, first, second)
    empty_trash = Trash.empty

    def cut_short(store: Store, names: Any) -> None:
        empty_trash(store, names)
        raise PowerCut

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(Trash, "empty", cut_short)
        prune(worn)
    assert is_half_pruned(worn)
    assert prune(worn).removed.packs


def test_only_what_was_begun_is_called_unfinished(worn):
    forget(worn, names_of(worn)[0])
    with pytest.raises(CancelledError, match="nothing was removed"):
        prune(worn, after=1)
    prune(worn, dry_run=True)
    assert not is_half_pruned(worn)
    prune(worn)
    assert not is_half_pruned(worn)
    before = sorted(os.listdir(worn.store))
    prune(worn)
    assert sorted(os.listdir(worn.store)) == before


# Damage


def test_a_pack_whose_footer_is_gone_is_left_alone_and_named(worn):
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    shutil.rmtree(worn.store / "parity", ignore_errors=True)
    lame = packs(worn.store)[0]
    os.truncate(lame, lame.stat().st_size - 5)
    before = lame.read_bytes()
    foreseen = prune(worn, dry_run=True)
    report = prune(worn)
    assert report.damaged == (bytes.fromhex(lame.name),)
    assert figures(report) == figures(foreseen)
    assert lame.read_bytes() == before
    assert report.freed_bytes > 0
    assert_restores(worn, known)


def test_a_fragmented_pack_with_damaged_needed_bytes_stays(worn):
    """A repair may still restore it; its readable chunks move to a new pack."""
    first, second, _ = names_of(worn)
    forget(worn, first, second)
    shutil.rmtree(worn.store / "parity", ignore_errors=True)
    content = (worn.source / "large5").read_bytes()[:MIB]
    lame = pack_of(worn.store, content)
    flip_content(worn.store, content)
    report = prune(worn)
    assert bytes.fromhex(lame.name) in report.damaged
    assert lame.exists()
    damaged = worn.verify()
    assert [one.path for bad in damaged.snapshots for one in bad.damaged] == [
        os.fsencode(worn.source / "large5")
    ]
    again = prune(worn)
    assert again.damaged == report.damaged
    assert again.written.packs == 0


def test_with_little_free_space_no_pack_is_published_that_frees_nothing(box, monkeypatch):
    for name, size in (("garbage", 4), ("sound", 1), ("broken", 1)):
        (box.source / name).write_bytes(random.randbytes(size * MIB))
    first = box.take().id
    (box.source / "garbage").unlink()
    last = box.take().id
    forget(box, first)
    content = (box.source / "broken").read_bytes()
    lame = pack_of(box.store, content)
    flip_content(box.store, content)
    before = pack_bytes(box)
    monkeypatch.setattr(apply, "free_bytes", lambda _: 100 * MIB)

    report = prune(box)

    assert bytes.fromhex(lame.name) in report.damaged
    assert report.freed_bytes >= 0
    assert pack_bytes(box) <= before
    assert pack_of(box.store, (box.source / "sound").read_bytes()) == lame
    assert names_of(box) == [last]
    (bad,) = box.verify().snapshots
    assert [one.path for one in bad.damaged] == [os.fsencode(box.source / "broken")]


def stored_twice(box: Box, content: bytes) -> Path:
    """Another pack with the chunk, beside garbage: the first pack must stay."""
    sink = PackFile(str(box.store / "tmp"), SessionId(bytes(8)))
    one, payload = frame.encode_frame(kinds.DATA, [(data_id(content), content)])
    other, more = frame.encode_frame(kinds.DATA, [(data_id(b"dead"), b"dead")])
    sink.add(other, more)
    sink.add(one, payload)
    path = box.store / "packs" / sink.complete().hex()
    os.rename(sink.path, path)
    sink.close()
    return path


@pytest.mark.parametrize("bad", ["first", "second", "neither", "both"])
def test_prune_keeps_a_sound_copy_of_a_chunk_in_two_packs(box, bad):
    """A crash or a repair leaves two copies. The chunk index has one place, maybe the wrong one."""
    content = random.Random(3).randbytes(200_000)
    (box.source / "file").write_bytes(content)
    box.take()
    first = pack_of(box.store, content)
    second = stored_twice(box, content)
    shutil.rmtree(box.store / "parity", ignore_errors=True)
    if bad in {"first", "both"}:
        flip_byte(first, 1000)
    if bad in {"second", "both"}:
        flip_byte(second, 1000)
    report = prune(box)
    if bad == "both":
        assert first.exists()
        assert second.exists()
        return
    assert report.removed.packs == 1
    assert first.exists() != second.exists()
    assert box.read(box.source / "file") == content


def test_a_copy_is_read_again_by_every_prune(box):
    """A copy that was sound when the daemon started may be damaged now."""
    content = random.Random(3).randbytes(200_000)
    (box.source / "file").write_bytes(content)
    box.take()
    first = pack_of(box.store, content)
    second = stored_twice(box, content)
    prune(box, dry_run=True)
    flip_byte(first, 1000)
    prune(box)
    assert second.exists()
    assert box.read(box.source / "file") == content


def test_the_delta_base_of_a_needed_delta_is_needed():
    """With and without an entry in the chunk index."""
    a, b, c, d, e, f = [data_id(b"%d" % number) for number in range(6)]
    index = ChunkIndex("", write=True)
    one, _ = frame.encode_frame(kinds.DATA, [(name, name) for name in (a, c, d)])
    index.add_pack(bytes(ID_BYTES), 1, [PackedFrame(8, one, one.encode_header())])
    marks = Marks(index)
    marks.add_data([a])
    for name, base in ((b, c), (a, b), (d, a), (c, e), (e, a), (f, d)):
        marks.add_delta_base(name, base)
    marks.follow_delta_bases()
    needed = [marks.is_needed(kinds.DATA, one) for one in (a, b, c, d, e, f)]
    assert needed == [True, True, True, False, True, False]
    assert [marks.has_one_use(one) for one in (a, b, c, d, e, f)] == [
        *(False, True, True, False, True, False)
    ]


# Needed chunks


def test_ids_that_begin_alike_are_never_mixed_up(tmp_path):
    """A user who writes training files can make two chunks whose IDs share 8 bytes."""
    start = bytes(range(8))
    alike = [start + bytes([number]) * 24 for number in range(6)]
    index = ChunkIndex(str(tmp_path / "catalog"), write=True)
    frames = []
    for kind, names in ((kinds.TREE, alike[:3]), (kinds.DATA, alike[3:])):
        one, _ = frame.encode_frame(kind, [(name, name) for name in names])
        frames.append(PackedFrame(8, one, one.encode_header()))
    index.add_pack(b"p" * ID_BYTES, 1, frames)
    marks = Marks(index)
    assert marks.add_node(alike[1])
    assert not marks.add_node(alike[1])
    assert [marks.is_needed(kinds.TREE, one) for one in alike[:3]] == [False, True, False]
    assert marks.add_node(alike[0]), "another node, which has to be read too"
    unlisted = start + b"x" * 24
    assert marks.add_node(unlisted)
    assert not marks.add_node(unlisted)
    # Data chunks refer to no other chunk: keeping one without need costs only its space.
    marks.add_data([alike[4]])
    assert marks.is_needed(kinds.DATA, alike[4])
    index.close()


def test_a_prune_distinguishes_chunks_whose_ids_begin_alike(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pair of IDs that share 8 bytes is known: a hash with only the last bytes makes some."""

    hash_data, hash_node = hashing.data_id, hashing.node_id

    def data_alike(plain: bytes) -> bytes:
        return bytes(8) + hash_data(plain)[8:]

    def node_alike(kind: int, plain: bytes) -> bytes:
        return bytes(8) + hash_node(kind, plain)[8:]

    for module in list(sys.modules.values()):
        if module is sealed:
            continue  # the store's header is sealed already
        # Also in ``hashing`` itself: modules that are imported later take the functions from there.
        if getattr(module, "data_id", None) is hash_data:
            monkeypatch.setattr(module, "data_id", data_alike)
        if getattr(module, "node_id", None) is hash_node:
            monkeypatch.setattr(module, "node_id", node_alike)
    for number in range(4):
        (box.source / f"file{number}").write_bytes(random.Random(number).randbytes(MIB + number))
    box.take()
    for number in range(2):
        (box.source / f"file{number}").unlink()
    (box.source / "file4").write_bytes(random.Random(4).randbytes(MIB))
    box.take()
    first, second = names_of(box)
    with open_store(str(box.store)) as store:
        ids = {name for rows in store.index.chunk_ids() for name, _ in rows}
    assert len({one[:8] for one in ids}) == 1 < len(ids)
    known = photograph(box.source)

    forget(box, first)
    prune(box)

    assert names_of(box) == [second]
    assert box.verify().ok
    box.restore(to=box.directory / "out")
    assert differences(known, photograph(box.directory / "out" / "source")) == []


@given(st.sets(st.binary(min_size=32, max_size=32), max_size=200), st.data())
@settings(max_examples=60)
def test_marks_are_a_set(names: set[bytes], data: st.DataObject) -> None:
    listed = sorted(names)
    index = ChunkIndex("", write=True)
    half = len(listed) // 2
    for number, (kind, part) in enumerate(
        ((kinds.TREE, listed[:half]), (kinds.DATA, listed[half:]))
    ):
        if part:
            one, _ = frame.encode_frame(kind, [(name, b"") for name in part])
            packed = PackedFrame(8, one, one.encode_header())
            index.add_pack(bytes([number]) * 32, 1, [packed])
    marks = Marks(index)
    wanted = set(data.draw(st.lists(st.sampled_from(listed), max_size=50))) if listed else set()
    for name in wanted:
        if name in listed[:half]:
            assert marks.add_node(name)
        else:
            marks.add_data([name])
    for number, name in enumerate(listed):
        kind = kinds.TREE if number < half else kinds.DATA
        assert marks.is_needed(kind, name) == (name in wanted)
    index.close()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 5000])
def test_the_needed_chunks_are_found_among_any_number(count):
    """For any number of ranges of IDs to search, including the first and the last ID."""
    chance = random.Random(count)
    names = sorted([bytes(32), b"\xff" * 32, *(chance.randbytes(32) for _ in range(count))])
    index = ChunkIndex("", write=True)
    one, _ = frame.encode_frame(kinds.DATA, [(name, b"") for name in names])
    index.add_pack(bytes(32), 1, [PackedFrame(8, one, one.encode_header())])
    marks = Marks(index)
    marks.add_data(names[::3])
    found = [marks.is_needed(kinds.DATA, name) for name in names]
    assert found == [number % 3 == 0 for number in range(len(names))]
    assert not any(marks.is_needed(kinds.DATA, chance.randbytes(32)) for _ in range(100))
    index.close()


def test_a_pack_is_left_alone_until_enough_of_it_is_dead(box):
    """One large file of ten chunks that become unneeded one after the other."""
    parts = [random.Random(number).randbytes(MIB) for number in range(10)]
    path = box.source / "file"
    path.write_bytes(b"".join(parts))
    box.take()
    pack = packs(box.store)[0]
    for dead in range(1, 4):
        path.write_bytes(b"".join(parts[dead:]) + b"x" * MIB)
        box.take()
        *old, _ = names_of(box)
        forget(box, *old)
        report = prune(box)
        worn = dead / 10 > usage.DEAD_FRACTION
        assert pack.exists() is not worn, dead
        assert (
            bytes.fromhex(pack.name) in {bytes.fromhex(one.name) for one in packs(box.store)}
        ) is not worn
        assert report.rewritten.packs == 0 or worn or report.rewritten.size_bytes < MIB
    assert box.verify().ok


CONTENTS = 12


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, CONTENTS - 1), max_size=CONTENTS),
            st.sets(st.integers(0, 5), max_size=4),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=25)
def test_every_kept_snapshot_reads_back_after_any_series_of_snapshots_and_prunes(
    steps: list[tuple[set[int], set[int], bool]],
) -> None:
    """And the packs hold little more than the needed chunks, as the dry run predicted."""
    rng = random.Random(5)
    contents = [rng.randbytes(rng.choice((30, 5000, 70_000))) for _ in range(CONTENTS)]
    with tempfile.TemporaryDirectory(prefix="ciuic-test-") as directory:
        box = Box(Path(directory), chunk_bytes=16 * KIB)
        kept: dict[str, set[int]] = {}
        for files, dropped, prunes in steps:
            for number in range(CONTENTS):
                path = box.source / f"f{number}"
                if number in files and not path.exists():
                    path.write_bytes(contents[number])
                elif number not in files:
                    path.unlink(missing_ok=True)
            kept[box.take().id] = files
            old = list(kept)[:-1]
            for name in {old[number % len(old)] for number in dropped if old}:
                forget(box, name)
                del kept[name]
            if prunes:
                foreseen = prune(box, dry_run=True)
                report = prune(box)
                assert figures(report) == figures(foreseen)
                assert prune(box, dry_run=True).freed_bytes == 0
        assert box.verify().ok
        assert set(names_of(box)) == set(kept)
        for name, files in kept.items():
            entries = box.entries(name)
            found = {path for path, entry in entries.items() if entry.is_file}
            assert found == {os.fsencode(box.source / f"f{number}") for number in files}
            for number in files:
                assert box.read(box.source / f"f{number}", name) == contents[number]


# Beside readers, and on a full disk


def test_a_reader_that_opened_the_store_before_a_prune_still_reads_after_it(worn):
    """It knows old places from the chunk index or from footers; all unopened packs have moved."""
    first, second, third = names_of(worn)
    forget(worn, first, second)
    contents = {path: path.read_bytes() for path in worn.source.rglob("*") if path.is_file()}
    entries = worn.entries(third)
    with open_store(str(worn.store)) as by_catalog, open_store(str(worn.store)) as by_footers:
        by_footers.reader.places([b"x" * ID_BYTES])  # in no pack: the reader asks all
        for path in contents:
            wanted = [entries[os.fsencode(path)].content]
            by_catalog.reader.places(wanted)
        report = prune(worn)
        assert report.rewritten.packs >= 2
        for store in (by_catalog, by_footers):
            for path, content in contents.items():
                entry = entries[os.fsencode(path)]
                assert b"".join(read_entry(store, entry)) == content


def test_a_reader_without_chunk_index_finds_chunks_that_moved_or_were_added_since(worn):
    first, second, _ = names_of(worn)
    with open_store(str(worn.store)) as store:
        store.reader.places([b"x" * ID_BYTES])  # in no pack: the reader asks all
        later = worn.source / "later"
        later.write_bytes(os.urandom(KIB))
        worn.take()
        forget(worn, first, second)
        assert prune(worn).rewritten.packs >= 2
        assert verify_all(store, checksum=False, clock=worn.clock).ok
        content = b"".join(read_entry(store, worn.entries()[os.fsencode(later)]))
        assert content == later.read_bytes()


def read_entry(store: Any, entry: Any) -> Iterator[bytes]:
    from ciuic.view.content import read_file

    yield from read_file(store, entry)


def test_restores_that_run_beside_a_prune_finish(worn, monkeypatch):
    """Real restores, one after the other, while packs are removed."""
    monkeypatch.setattr(rewrite_output, "_PORTION_BYTES_MIN", 60 * KIB)
    monkeypatch.setattr(rewrite_output, "PACK_BYTES", 60 * KIB)
    monkeypatch.setattr(rewrite, "PACK_BYTES", 60 * KIB)
    rng = random.Random(11)
    for number in range(12):
        (worn.source / "late").write_bytes(rng.randbytes(300 * KIB))
        (worn.source / f"keep{number}").write_bytes(rng.randbytes(60 * KIB))
        worn.take()
    photo = photograph(worn.source)
    *old, newest = names_of(worn)
    forget(worn, *old)
    progress = threading.Condition()
    begun = ended = 0
    pruned = threading.Event()
    outcomes: list[tuple[int, str, list[str]]] = []

    def restores() -> None:
        nonlocal begun, ended
        while not pruned.is_set() or begun < 4:
            with progress:
                begun += 1
                progress.notify_all()
            out = worn.directory / f"out{begun}"
            command = [*CIUIC, "--store", worn.store, "restore", "-s", newest, "--no-hot"]
            done = subprocess.run(
                [*command, "-p", worn.source, "-d", out],
                env=environment(),
                cwd="/",
                capture_output=True,
                check=False,
            )
            found = differences(photo, photograph(out / "source")) if done.returncode == 0 else []
            outcomes.append((done.returncode, done.stderr.decode(), found))
            with progress:
                ended += 1
                progress.notify_all()

    def rewrites(what: str, done: int, total: int) -> None:
        # Packs are removed while a restore runs, and restores end while packs are removed.
        if what == "rewrite" and 0 < done < total:
            with progress:
                progress.wait_for(lambda: begun > ended and ended >= min(done, 4), timeout=60)

    thread = threading.Thread(target=restores)
    thread.start()
    try:
        with open_store(str(worn.store), write=True) as store:
            plan = plan_prune(store, trash_s=0, now_ns=worn.clock.now_ns())
            report = apply_prune(store, plan, clock=worn.clock, progress=rewrites)
    finally:
        pruned.set()
        thread.join()
    assert report.rewritten.packs >= 10
    assert len(outcomes) >= 4
    assert [one for one in outcomes if one != (0, "", [])] == []


@pytest.mark.root
@pytest.mark.parametrize("is_late", [False, True])
def test_on_a_disk_that_is_full_dead_packs_make_the_room_for_the_rest(
    tmp_path, monkeypatch, is_late
):
    with disk("ext4", tmp_path, size_mib=80) as place:
        box = Box(tmp_path)
        box.store = place.path / "store"
        box.configure()
        subprocess.run([*CIUIC, "--config", box.config, "init"], env=environment(), check=True)
        rng = random.Random(2)
        (box.source / "dead").write_bytes(rng.randbytes(12 * MIB))
        box.take()
        (box.source / "dead").unlink()
        for number in range(20):
            (box.source / f"f{number}").write_bytes(rng.randbytes(MIB))
        box.take()
        for number in range(15):
            (box.source / f"f{number}").unlink()
        kept = box.take()
        photo = photograph(box.source)
        forget(box, *names_of(box)[:2])
        place.leave_free(64 * KIB)
        if is_late:
            # They are removed in the background, and that may take longer.
            unlink = remove.unlink_pack
            never = threading.Event()
            monkeypatch.setattr(
                remove, "unlink_pack", lambda *which: never.wait(0.3) or unlink(*which)
            )
            freed_bytes = prune(box).freed_bytes
        else:
            done = box.ciuic("prune", "--trash", "0", "--json")
            assert done.code == 0, done.err
            freed_bytes = done.document["freed_bytes"]
        assert freed_bytes > 25 * MIB
        assert_restores(box, {kept.id: photo})


@pytest.mark.root
def test_a_prune_without_any_space_reports_it_and_loses_nothing(tmp_path):
    """No pack is without needed chunks, so nothing can be removed before something is written."""
    with disk("ext4", tmp_path, size_mib=60) as place:
        box = Box(tmp_path)
        box.store = place.path / "store"
        box.configure()
        subprocess.run([*CIUIC, "--config", box.config, "init"], env=environment(), check=True)
        rng = random.Random(2)
        for number in range(20):
            (box.source / f"f{number}").write_bytes(rng.randbytes(MIB))
        box.take()
        for number in range(15):
            (box.source / f"f{number}").unlink()
        kept = box.take()
        photo = photograph(box.source)
        forget(box, names_of(box)[0])
        place.leave_free(0)
        done = box.ciuic("prune", "--trash", "0", "--json")
        assert done.code == 1, done
        assert done.document["error"]["kind"] == "store_full"
        (place.path / "ballast").unlink()
        assert_restores(box, {kept.id: photo})
        done = box.ciuic("prune", "--trash", "0", "--json")
        assert done.code == 0, done.err
        assert pack_bytes(box) < 7 * MIB
        assert_restores(box, {kept.id: photo})


def full(*_: object) -> None:
    """Fail as on a full disk."""
    raise StoreFullError("no space left")


def test_a_chunk_index_without_space_to_remove_packs_is_built_again(worn, monkeypatch):
    """Its journal can be as large as itself; packs must not stay because of that."""
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)

    monkeypatch.setattr(ChunkIndex, "remove_packs", full)
    report = prune(worn)
    assert report.removed.packs >= 1
    monkeypatch.undo()
    assert_restores(worn, known)
    with open_store(str(worn.store), write=True) as store:
        assert set(store.index.packs()) == set(store.pack_files())


def test_a_disk_that_is_full_at_once_leaves_no_chunk_out_of_the_index(worn, monkeypatch):
    """A stopped prune has left chunks in two packs, and no unneeded pack is left to remove."""
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    for module, name in [
        (rewrite_output, "_PORTION_BYTES_MIN"),
        (rewrite_output, "PACK_BYTES"),
        (rewrite, "PACK_BYTES"),
    ]:
        monkeypatch.setattr(module, name, 200 * KIB)
    before = worn.directory / "before"
    shutil.copytree(worn.store, before)
    prune(worn)
    old = {path.name for path in packs(before)}
    new = [path for path in packs(worn.store) if path.name not in old]
    for path in new[: len(new) // 2]:
        shutil.copy(path, before / "packs")
    worn.store = before

    real, asked = apply.point_at_retained, []

    def full_at_first(*its: Any) -> None:
        asked.append(its)
        if len(asked) == 1:
            full()
        real(*its)

    monkeypatch.setattr(apply, "point_at_retained", full_at_first)
    with open_store(str(worn.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=worn.clock.now_ns())
        assert plan.usage.retained
        apply_prune(store, dataclasses.replace(plan, removed=()), clock=worn.clock)
        chunks = {
            chunk_id
            for pack_id in store.pack_files()
            for packed in usage.read_frames(store.packs, pack_id)
            for chunk_id, _ in packed.frame.chunks
        }
        assert set(store.index.usable(sorted(chunks))) == chunks
    assert_restores(worn, known)


def test_the_report_counts_what_was_rewritten_before_the_disk_was_full(box, monkeypatch):
    rng = random.Random(3)
    for number in range(12):
        for part in range(2):
            (box.source / f"{number}-{part}").write_bytes(rng.randbytes(150 * KIB))
        box.take()
    for number in range(12):
        (box.source / f"{number}-0").unlink()
    box.take()
    forget(box, *names_of(box)[:-1])
    for module, name in [
        (rewrite_output, "_PORTION_BYTES_MIN"),
        (rewrite_output, "PACK_BYTES"),
        (rewrite, "PACK_BYTES"),
    ]:
        monkeypatch.setattr(module, name, 200 * KIB)
    real, asked = rewrite_output.PackOutput.publish, []

    def full_at_the_third(*its: Any) -> None:
        asked.append(its)
        if len(asked) == 3:
            full()
        real(*its)

    monkeypatch.setattr(rewrite_output.PackOutput, "publish", full_at_the_third)
    old = {path.name: path.stat().st_size for path in packs(box.store)}
    report = prune(box)
    new = {path.name: path.stat().st_size for path in packs(box.store)}
    written = [new[name] for name in new.keys() - old]
    gone = [old[name] for name in old.keys() - new]
    assert report.written == PruneCounts(len(written), sum(written))
    assert report.rewritten.packs + report.removed.packs == len(gone)
    assert report.rewritten.size_bytes + report.removed.size_bytes == sum(gone)


def test_no_pack_goes_while_the_trash_still_needs_it(worn, monkeypatch):
    """New packs are written while the trash is emptied; the old packs stay until it is empty."""
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    told = threading.Event()
    commit, empty_trash, unlink = ChunkIndex.commit, Trash.empty, unlink_pack
    left: list[int] = []

    def commits(index: ChunkIndex) -> None:
        commit(index)
        told.set()

    def slowly(store: Store, names: Any) -> None:
        assert told.wait(60)
        time.sleep(0.1)
        empty_trash(store, names)

    def watched(store_path: str, name: bytes) -> None:
        left.append(len(os.listdir(worn.store / "snapshots")))
        unlink(store_path, name)

    with open_store(str(worn.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=worn.clock.now_ns())
        monkeypatch.setattr(ChunkIndex, "commit", commits)
        monkeypatch.setattr(Trash, "empty", slowly)
        monkeypatch.setattr(remove, "unlink_pack", watched)
        assert apply_prune(store, plan, clock=worn.clock).removed.packs
    assert len(left) == len(plan.removed) + len(plan.rewritten)
    assert set(left) == {1}
    assert_restores(worn, known)


def test_unneeded_packs_are_removed_although_a_fragmented_one_cannot_be_rewritten(
    worn, monkeypatch
):
    """Otherwise one bad sector would keep all space occupied."""
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    with open_store(str(worn.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=worn.clock.now_ns())
        dead = {layout.pack_name(one.pack_id) for one in plan.removed}
        assert dead

        def fails(*_: object) -> None:
            raise StoreError("the disk says no")

        monkeypatch.setattr(rewrite_output, "sync_packs", fails)
        with pytest.raises(StoreError, match="the disk says no"):
            apply_prune(store, plan, clock=worn.clock)
    monkeypatch.undo()
    assert not dead & {path.name for path in packs(worn.store)}
    with open_store(str(worn.store)) as store:
        assert set(store.existing_index.packs()) == set(store.pack_files())
    assert_restores(worn, known)


def test_a_new_pack_that_cannot_be_written_costs_nothing(worn, monkeypatch):
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)

    def fails(*_: object) -> None:
        raise StoreError("the disk says no")

    monkeypatch.setattr(rewrite_output, "sync_packs", fails)
    with pytest.raises(StoreError, match="the disk says no"):
        prune(worn)
    monkeypatch.undo()
    with open_store(str(worn.store)) as store:
        assert set(store.existing_index.packs()) == set(store.pack_files())
    assert_restores(worn, known)
    assert prune(worn).rewritten.packs
    assert_restores(worn, known)


def test_the_garbage_of_a_fragmented_pack_is_not_read(worn, monkeypatch):
    """Reading packs of almost only garbage would be wasted work."""
    first, second, _ = names_of(worn)
    forget(worn, first, second)
    asked: dict[str, list[tuple[int, int]]] = {}
    usual = os.posix_fadvise

    def advised(fd: int, offset: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            path = os.readlink(f"/proc/self/fd/{fd}")
            asked.setdefault(path, []).append((offset, offset + length))
        usual(fd, offset, length, advice)

    with open_store(str(worn.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=worn.clock.now_ns())
        wanted = {}
        for use in plan.rewritten:
            frames = usage.read_frames(store.packs, use.pack_id)
            kept = [
                any(usage.kept_chunks(use.pack_id, one.frame, plan.marks, plan.usage.retained))
                for one in frames
            ]
            wanted[usage.pack_path(store.path, use.pack_id)] = list(zip(frames, kept, strict=True))
        monkeypatch.setattr(os, "posix_fadvise", advised)
        apply_prune(store, plan, clock=worn.clock)
    assert asked.keys() == wanted.keys()
    assert any(not kept for frames in wanted.values() for _, kept in frames)
    for path, frames in wanted.items():
        for one, kept in frames:
            end = one.offset_bytes + one.frame.total_bytes
            within = [a <= one.offset_bytes and end <= b for a, b in asked[path]]
            apart = [b <= one.offset_bytes or end <= a for a, b in asked[path]]
            assert any(within) if kept else all(apart)


def test_small_portions_give_the_same_store(worn, monkeypatch):
    """With little space, many small packs are written, and old ones are removed sooner."""
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    monkeypatch.setattr(rewrite_output, "_PORTION_BYTES_MIN", 20 * KIB)
    monkeypatch.setattr(rewrite_output, "PACK_BYTES", 20 * KIB)
    monkeypatch.setattr(rewrite, "PACK_BYTES", 20 * KIB)
    foreseen = prune(worn, dry_run=True)
    report = prune(worn)
    assert figures(report) == figures(foreseen)
    assert report.written.packs > 3
    assert_restores(worn, known)
    assert prune(worn).freed_bytes == 0


class _Room(rewrite_output.CountingOutput):
    """Counts the space that a rewrite takes, at most."""

    def __init__(self, sizes: dict[PackId, int]) -> None:
        super().__init__(0)
        self._sizes = sizes
        self._open: list[rewrite_output.CountedPack] = []
        self._published_bytes = self.peak_bytes = 0

    def new_pack(self, expected_bytes: int) -> rewrite_output.CountedPack:
        self._open.append(super().new_pack(expected_bytes))
        return self._open[-1]

    def announce(self, *_: object) -> None:
        taken_bytes = self._published_bytes + sum([pack.size_bytes for pack in self._open])
        self.peak_bytes = max(self.peak_bytes, taken_bytes)

    def publish(self, pack, _pack_id, emptied) -> None:
        self.announce()
        self._open.remove(pack)
        self._published_bytes += pack.size_bytes - sum([self._sizes[one] for one in emptied])


def test_packs_that_have_data_and_nodes_are_emptied_a_few_at_a_time(tmp_path):
    """Such a pack is empty when both new packs are published; until then it takes its space."""
    box = Box(tmp_path, parity=0.04)
    chance = random.Random(1)
    now_ns = time.time_ns() - 10**15
    for number in range(30):
        for name in (f"kept {number}", "replaced"):
            inner = box.source / name
            shutil.rmtree(inner, ignore_errors=True)
            inner.mkdir()
            for link in range(600):
                (inner / f"link {link}").symlink_to(chance.randbytes(60).hex())
        (box.source / f"log {number}").write_bytes(chance.randbytes(40_000))
        (box.source / "state").write_bytes(chance.randbytes(60_000))
        now_ns += 3600 * 10**9
        box.take(clock=ManualClock(now_ns))
    assert box.ciuic("forget", "--policy", "last:1").code == 0

    with open_store(str(box.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=time.time_ns())
        moving = {use.pack_id: use.size_bytes for use in plan.rewritten}
        room = _Room(moving)
        apply.rewrite(
            apply.prune_work(
                store, plan, 0.0, SystemClock(), cancelled=lambda: False, progress=lambda *_: None
            ),
            room,
        )
        live_bytes = sum([use.size_bytes - use.dead_bytes for use in plan.rewritten])

    assert len(moving) >= 10
    assert not plan.removed, "each has data and nodes, and something of both is needed"
    assert live_bytes > 2000 * KIB
    assert room.peak_bytes < live_bytes // 2


def test_a_new_pack_never_has_the_name_of_another_pack(worn: Box) -> None:
    """So neither a late removal nor a leftover can affect it."""
    first, second, _ = names_of(worn)
    forget(worn, first, second)
    old = {path.name for path in packs(worn.store)}
    other = worn.directory / "other"
    shutil.copytree(worn.store, other)
    prune(worn)
    new = {path.name: path for path in packs(worn.store) if path.name not in old}
    original, worn.store = worn.store, other
    prune(worn)
    again = {path.name: path for path in packs(worn.store) if path.name not in old}
    worn.store = original
    frames = [
        sorted(path.read_bytes()[: -(32 + 16)] for path in made.values()) for made in (new, again)
    ]
    assert [len(one) for one in frames[0]] == [len(one) for one in frames[1]]
    assert new.keys().isdisjoint(again)
    assert len({name[:16] for name in new}) == 1, "the session's ID"


@pytest.mark.parametrize("chunks_kept", [50_000, 50, 0])
def test_footers_that_fit_in_memory_are_read_once(worn, monkeypatch, chunks_kept):
    first, second, third = names_of(worn)
    known = {third: photograph(worn.source)}
    forget(worn, first, second)
    read: list[bytes] = []
    usual = usage.read_frames

    def counted(packs: Packs, name: PackId, *, repair: bool = False) -> list[PackedFrame]:
        read.append(name)
        return usual(packs, name, repair=repair)

    monkeypatch.setattr(usage, "_CHUNKS_KEPT", chunks_kept)
    monkeypatch.setattr(usage, "read_frames", counted)
    with open_store(str(worn.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=worn.clock.now_ns())
        count = len(store.pack_files())
    if chunks_kept == 50:
        assert count < len(read) < 2 * count
    else:
        assert len(read) == (count if chunks_kept else 2 * count)
    monkeypatch.undo()
    assert len(plan.usage.uses) == count
    assert prune(worn).rewritten.packs == len(plan.rewritten) > 0
    assert_restores(worn, known)


def test_a_new_pack_has_parity_that_was_made_while_it_was_written(box):
    """A good enough estimate of its length makes it unnecessary to read it back."""
    rng = random.Random(12)
    for number in range(24):
        (box.source / f"f{number:02}").write_bytes(rng.randbytes(MIB))
    box.take()
    for number in range(0, 24, 2):
        (box.source / f"f{number:02}").unlink()
    kept = box.take()
    photo = photograph(box.source)
    forget(box, names_of(box)[0])
    old = {path.name for path in packs(box.store)}
    assert prune(box).written.packs == 1
    (new,) = [path for path in packs(box.store) if path.name not in old]
    with (box.store / "parity" / new.name).open("rb") as file:
        shape = Parity(file.fileno(), bytes.fromhex(new.name)).shape
    size = new.stat().st_size
    assert size > 12 * MIB
    assert shape != shape_for(size, 0.04)
    assert 0.038 * size < shape.parity_bytes < 0.042 * size
    assert inspect_parity(str(box.store), bytes.fromhex(new.name)) == ""
    flip_byte(new, size // 2)
    box.restore(snapshot=kept.id, to=box.directory / "out")
    assert differences(photo, photograph(box.directory / "out" / "source")) == []


@pytest.mark.parametrize("share", [0, 0.5, 1], ids=["once", "early", "late"])
@pytest.mark.parametrize("is_full", [False, True], ids=["room", "full"])
def test_the_chunk_index_is_right_without_being_rebuilt(worn, monkeypatch, share, is_full):
    """Every chunk has a row, and every row leads to the chunk that it names.

    This also holds where a chunk is in two packs, because a prune was killed before it updated the
    catalog, and the catalog names the pack that goes.
    """
    first, second, _ = names_of(worn)
    forget(worn, first, second)
    monkeypatch.setattr(rewrite_output, "_PORTION_BYTES_MIN", 200 * KIB)
    monkeypatch.setattr(rewrite_output, "PACK_BYTES", 200 * KIB)
    monkeypatch.setattr(rewrite, "PACK_BYTES", 200 * KIB)
    if share:
        other = worn.directory / "other"
        shutil.copytree(worn.store, other)
        original, worn.store = worn.store, other
        prune(worn)
        worn.store = original
        old = {path.name for path in packs(worn.store)}
        new = [path for path in packs(other) if path.name not in old]
        assert len(new) >= 4
        for path in new[: int(share * len(new))]:
            shutil.copy(path, worn.store / "packs")
    if is_full:
        monkeypatch.setattr(ChunkIndex, "remove_packs", full)
    prune(worn)
    monkeypatch.undo()
    with open_store(str(worn.store)) as store:
        index = store.existing_index
        assert set(index.packs()) == set(store.pack_files())
        listed = {
            name
            for pack in store.pack_files()
            for one in usage.read_frames(store.packs, pack)
            for name, _ in one.frame.chunks
        }
        assert index.usable(sorted(listed)) == listed
        for rows in list(index.chunk_ids()):
            places = index.places([name for name, _ in rows])
            assert len(places) == len(rows)
            for name, place in places.items():
                _, plain = store.reader.frame(place)
                part = bytes(plain[place.start_bytes : place.start_bytes + place.length_bytes])
                kinds.check_chunk(place.kind, name, part)


# The command


def test_the_command_says_what_it_would_do_and_what_it_did(worn):
    first, second, _third = names_of(worn)
    done = worn.ciuic("prune")
    assert done.code == 0
    assert "freed: 0 B" in done.out
    forget(worn, first, second)
    foreseen = worn.ciuic("prune", "--dry-run", "--trash", "0", "--json")
    assert foreseen.code == 0, foreseen.err
    shown = worn.ciuic("prune", "--dry-run", "--trash", "0")
    assert "would be freed" in shown.out
    assert "2 forgotten snapshots" in shown.out
    done = worn.ciuic("prune", "--trash", "0", "--json")
    left_out = {"dry_run", "total_s"}
    assert {key: done.document[key] for key in done.document if key not in left_out} == {
        key: foreseen.document[key] for key in foreseen.document if key not in left_out
    }
    assert done.document["removed"].keys() == {"packs", "bytes"}
    assert sorted(done.document["expired"]) == sorted([first, second])


def test_wrong_input_is_refused_in_one_sentence(worn):
    for arguments in (("--trash", "soon"), ("--trash", ""), ("--wait", "-1"), ("cs-123456",)):
        done = worn.ciuic("prune", *arguments)
        assert done.code == 2, (arguments, done)
        assert done.out == ""
    missing = worn.ciuic("--store", worn.directory / "none", "prune")
    assert missing.code == 1
    assert missing.err.startswith("ciuic: ")


def test_prune_waits_for_a_writer_and_then_names_it(worn):
    with open_store(str(worn.store), write=True):
        done = worn.ciuic("prune", "--wait", "0")
    assert done.code == 5
    assert f"by process {os.getpid()}" in done.err


def test_damage_is_named_and_has_its_exit_code(worn):
    first, second, _ = names_of(worn)
    forget(worn, first, second)
    shutil.rmtree(worn.store / "parity", ignore_errors=True)
    lame = packs(worn.store)[0]
    os.truncate(lame, lame.stat().st_size - 5)
    done = worn.ciuic("prune", "--trash", "0")
    assert done.code == 4
    assert f"pack {lame.name[:12]}" in done.err
    assert f"ciuic --config {worn.config} repair" in done.err
