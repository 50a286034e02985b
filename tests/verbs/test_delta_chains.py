"""Snapshots of training state: deltas against the last version."""

import itertools
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ciuic import codec
from ciuic.catalog import find_snapshot
from ciuic.codec import dense_delta
from ciuic.errors import CorruptionError, StoreFullError
from ciuic.ids import SessionId
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.scrub.budget import Budget
from ciuic.maintain.scrub.scrub import scrub
from ciuic.snapshot.bases.old_directory import OldDirectory
from ciuic.snapshot.walk.visitor import _DEPTH_MAX
from ciuic.store.format.frame import Frame, encode_delta_frame, encode_frame
from ciuic.store.gc import rewrite_output
from ciuic.store.gc.usage import pack_path, read_frames, read_payload
from ciuic.store.health.inspect import pack_frames
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.broken_chains import chunks_without_base
from ciuic.store.packs.pack_writer import PackFile, publish_pack
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.header import CONTENT
from ciuic.store.records.kinds import CHAIN_MAX, DATA
from ciuic.store.records.layout import CATALOG, PACKS, pack_name
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import open_store
from ciuic.system.hashing import ID_BYTES, checksum, data_id
from ciuic.verify.verify import verify_all
from tests.format import reader
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content, pack_of, packs, place_of
from tests.kit.older import Older
from tests.kit.program import ciuic
from tests.kit.strace import strace
from tests.kit.tensors import hdf5, safetensors, torch_zip

KIB = 1024
SIZE = 1200 * KIB
LEAF = 10
"""How a page of an SQLite index begins that has no pages below it."""

Save = Callable[[list[bytes]], bytes]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path, chunk_bytes=512 * KIB)


def training(seed: int = 1, *, size: int = SIZE, rate: float = 1e-4) -> Iterator[bytes]:
    """The weights of a run, step after step."""
    dice = np.random.default_rng(seed)
    values = dice.normal(0, 0.02, size // 4).astype("<f4")
    while True:
        yield values.tobytes()
        values = (values + dice.normal(0, rate, len(values))).astype("<f4")


def with_endless_names(tensors: list[bytes], *, note: str = "") -> bytes:
    """Longer than the part of a name that is kept."""
    named = {"w" * 2000 + str(number): data for number, data in enumerate(tensors)}
    return safetensors(named, note=note)


def in_deep_groups(tensors: list[bytes], *, gap_bytes: int = 0) -> bytes:
    """The same in HDF5."""
    return hdf5(tensors, gap_bytes=gap_bytes, groups=["g" * 200] * 6)


def depths(box: Box, path: Path, snapshot: str = "latest") -> list[int]:
    """The length of the delta chain of each chunk of a file."""
    entry = box.entries(snapshot)[os.fsencode(path)]
    with open_store(str(box.store)) as store:
        chains = [store.reader.chain(one.id) for one in iter_pieces(store.reader.node, entry)]
    return [len(one or ()) - 1 for one in chains]


def is_delta(box: Box, path: Path) -> bool:
    """A file of some chunks was stored as a difference."""
    return max(depths(box, path)) > 0


def test_an_overwritten_checkpoint_is_stored_as_a_delta(box: Box) -> None:
    file = box.source / "last.pt"
    saves = list(itertools.islice(training(), 2))
    file.write_bytes(torch_zip([saves[0]]))
    first = box.take()
    file.write_bytes(torch_zip([saves[1]]))
    second = box.take()
    assert second.new_bytes >= SIZE
    assert second.stored_bytes < 0.85 * first.stored_bytes
    assert depths(box, file, first.id) == [0] * len(depths(box, file, first.id))
    assert is_delta(box, file)
    for taken, data in zip((first, second), saves, strict=True):
        assert box.read(file, taken.id) == torch_zip([data])
    report = box.verify()
    assert report.ok
    assert box.verify(checksum=False).ok


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step_99.pt", "step_100.pt"),
        ("run/global_step99/rank_3.pt", "run/global_step100/rank_3.pt"),
        ("a/b1/c1/x.bin", "a/b2/c2/x.bin"),
        ("step_99.pt", "best.pt"),
    ],
    ids=["file", "directory", "directories", "renamed"],
)
def test_the_last_version_is_found_by_its_role(box: Box, old: str, new: str) -> None:
    saves = training()
    for name in (old, new):
        path = box.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(torch_zip([next(saves)]))
        box.take()
    assert is_delta(box, box.source / new)


def test_unchanged_chunks_are_not_looked_up(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading every directory of the last snapshot twice would be slow for many directories."""
    (box.source / "a" / "b").mkdir(parents=True)
    (box.source / "a" / "b" / "x.bin").write_bytes(next(training()))
    box.take()
    (box.source / "a" / "small").write_bytes(b"new")

    def refused(_: OldDirectory) -> None:
        raise AssertionError("a directory was read again")

    monkeypatch.setattr(OldDirectory, "names", refused)
    assert box.take().trouble_count == 0


@pytest.mark.parametrize("old", ["run_1", "another"])
def test_new_directories_may_be_as_deep_as_a_snapshot_goes(box: Box, old: str) -> None:
    saves = training()
    tops = [box.source / name for name in (old, "run_2")]
    for top in tops:
        path = top
        path.mkdir()
        for _ in range(_DEPTH_MAX - 2):
            path /= "d"
            path.mkdir()
        (path / "last.bin").write_bytes(next(saves))
        assert box.take().trouble_count == 0
    assert is_delta(box, path / "last.bin") == (old == "run_1")
    for top in tops:  # the cleanup after the tests is recursive
        subprocess.run(["rm", "-rf", top], check=True)


def test_the_files_of_each_rank_have_their_own_delta_chains(box: Box) -> None:
    """A rank's file is neither the newest of its kind nor the first."""
    ranks = [training(seed) for seed in range(3)]
    for step in (1, 2):
        for rank, saves in enumerate(ranks):
            path = box.source / f"step_{step}_rank_{rank}.pt"
            path.write_bytes(next(saves))
            os.utime(path, (step * 10 - rank, step * 10 - rank))
        box.take()
    assert all(is_delta(box, box.source / f"step_2_rank_{rank}.pt") for rank in range(3))


@pytest.mark.parametrize("kind", ["safetensors", "HDF5"])
def test_a_tensor_follows_the_one_of_its_name_wherever_that_was(box: Box, kind: str) -> None:
    one, other = training(1), training(2)
    file = box.source / "model"
    if kind == "HDF5":
        first = hdf5([next(one), next(other)], names="ab")
        then = hdf5([next(other), bytes(99), next(one)], names="bna", gap_bytes=700)
    else:
        first = safetensors({"a": next(one), "b": next(other)})
        tensors = {"b": next(other), "new": bytes(99), "a": next(one)}
        then = safetensors(tensors, note="x" * 99)
    file.write_bytes(first)
    whole = box.take()
    file.write_bytes(then)
    assert box.take().stored_bytes < 0.9 * whole.stored_bytes


@pytest.mark.parametrize("name", ["merged.safetensors", "merged.bin"])
def test_a_tensor_follows_the_one_of_its_name_in_a_file_of_another_name(
    box: Box, name: str
) -> None:
    """It has another length, because it has more tensors, and other files are newer."""
    one, other = training(1), training(2)
    (box.source / "part.safetensors").write_bytes(safetensors({"a": next(one)}))
    for number in range(3):
        newer = safetensors({"a": os.urandom(300_000 + number), "z": os.urandom(99)})
        (box.source / f"{'x' * (number + 1)}.safetensors").write_bytes(newer)
    first = box.take()
    merged = box.source / name
    merged.write_bytes(safetensors({"b": next(other), "a": next(one)}))
    assert box.take().stored_bytes < 0.9 * first.stored_bytes + SIZE
    assert is_delta(box, merged)
    assert box.verify().ok


def test_a_file_that_shares_no_tensor_with_others_follows_none(box: Box) -> None:
    saves = training()
    (box.source / "part.safetensors").write_bytes(safetensors({"a": next(saves)}))
    box.take()
    (box.source / "b.bin").write_bytes(safetensors({"b": next(saves), "c": os.urandom(100_000)}))
    box.take()
    assert not is_delta(box, box.source / "b.bin")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (in_deep_groups, in_deep_groups),
        (in_deep_groups, partial(in_deep_groups, gap_bytes=4000)),
        (with_endless_names, with_endless_names),
        (with_endless_names, partial(with_endless_names, note="x" * 99)),
    ],
    ids=["HDF5", "HDF5, moved", "long names", "long names, moved"],
)
def test_tensors_without_names_follow_each_other_in_their_order(
    box: Box, first: Save, then: Save
) -> None:
    one, other = training(1), training(2, size=SIZE - 4000)
    file = box.source / "model"
    file.write_bytes(first([next(one), next(other)]))
    whole = box.take()
    file.write_bytes(then([next(one), next(other)]))
    assert box.take().stored_bytes < 0.9 * whole.stored_bytes
    assert box.read(file)[-8:] == file.read_bytes()[-8:]
    assert box.verify().ok


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_an_array_of_numbers_without_a_header_is_known_by_its_looks(
    tmp_path: Path, dtype: str
) -> None:
    """If it were cut by content, its last version would never be found."""
    box = Box(tmp_path, chunk_bytes=256 * KIB, chunking=CONTENT)
    dice = np.random.default_rng(1)
    values = dice.normal(0, 0.02, SIZE // 4)
    for _ in range(2):
        (box.source / "ckpt-1.data-00000-of-00001").write_bytes(values.astype(dtype).tobytes())
        box.take()
        values += dice.normal(0, 1e-7 if dtype == "<f8" else 1e-4, len(values))
    assert is_delta(box, box.source / "ckpt-1.data-00000-of-00001")


def test_the_newest_version_is_the_delta_base(box: Box) -> None:
    """Not the first in the order of names."""
    saves = training(rate=1e-3)
    for step in (8, 9):
        (box.source / f"step_{step}.pt").write_bytes(next(saves))
        os.utime(box.source / f"step_{step}.pt", (step, step))
    box.chain_cost = 100
    box.take(base=True)
    (box.source / "step_10.pt").write_bytes(next(saves))
    box.take()
    before, after = (chunks(box, box.source / f"step_{step}.pt") for step in (9, 10))
    assert [place.delta_bases for _, place in after] == [(name,) for name, _ in before]


def chunks(box: Box, path: Path) -> list[tuple[bytes, ChunkPlace]]:
    entry = box.entries()[os.fsencode(path)]
    with open_store(str(box.store)) as store:
        names = [one.id for one in iter_pieces(store.reader.node, entry)]
        places = store.reader.places(names)
        return [(name, places[name]) for name in names]


def test_a_chain_is_bounded_by_what_it_costs_to_read(box: Box) -> None:
    file = box.source / "last.pt"
    deepest = {}
    for box.chain_cost in (1, 2, 4):
        for data in itertools.islice(training(int(box.chain_cost)), 6):
            file.write_bytes(data)
            taken = box.take()
            deepest[box.chain_cost] = max(deepest.get(box.chain_cost, 0), *depths(box, file))
            for name, _ in chunks(box, file):
                with open_store(str(box.store)) as store:
                    chain = store.reader.chain(name) or []
                alone = 0.9 * chain[0].length_bytes
                assert sum(one.frame_bytes for one in chain) <= box.chain_cost * alone
            assert box.read(file, taken.id) == data
    assert deepest[1] == 0
    assert 0 < deepest[2] < deepest[4] < 6


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of data chunks that are read from now on."""
    reads: list[bytes] = []
    chunk = StoreReader.chunk

    def noted(own: StoreReader, name: bytes, *, kind: int, repair: bool = True) -> object:
        if kind == DATA:
            reads.append(name)
        return chunk(own, name, kind=kind, repair=repair)

    monkeypatch.setattr(StoreReader, "chunk", noted)
    return reads


def test_a_tensor_that_is_nothing_like_its_last_version_is_not_read_piece_by_piece(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = box.source / "last.safetensors"
    weights = training(size=5 * KIB * KIB)
    dice = np.random.default_rng(3)
    for _ in range(2):
        moments = dice.normal(0, 1e-3, 5 * KIB * KIB).astype("<f4").tobytes()
        file.write_bytes(safetensors({"moments": moments, "weights": next(weights)}))
        reads = count_reads(monkeypatch)
        box.take()
    of_moments, of_weights = 40, 10
    assert sorted(depths(box, file))[-of_weights:] == [1] * of_weights
    assert len(depths(box, file)) >= of_moments + of_weights
    # Of the 40: the first, one after 3, one after 7, one after 15; each thread may have begun one.
    most = 4 * min(8, len(os.sched_getaffinity(0)))
    of_header = 6  # it is read in parts
    assert of_weights < len(reads) <= of_weights + most + of_header < of_weights + of_moments


def test_a_tensor_of_which_a_part_is_like_its_last_version_is_looked_at_again(box: Box) -> None:
    file = box.source / "last.safetensors"
    table = training(size=15 * KIB * KIB)
    dice = np.random.default_rng(3)
    for _ in range(2):
        touched = dice.normal(0, 0.02, 512 * KIB).astype("<f4").tobytes()
        file.write_bytes(safetensors({"table": touched + next(table)}))
        box.take()
    assert sum(depths(box, file)) >= 20  # of 30; the first few may be skipped


def test_a_chain_that_may_not_grow_is_not_read_for_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = box.source / "last.bin"  # no header to be read
    saves = training()
    for _ in range(2):
        file.write_bytes(next(saves))
        box.take()
    assert is_delta(box, file)
    newest = {name for name, _ in chunks(box, file)}
    file.write_bytes(next(saves))
    reads = count_reads(monkeypatch)
    box.take()
    monkeypatch.undo()
    with open_store(str(box.store)) as store:
        differences = {name for name in newest if (store.reader.chain(name) or [None])[1:]}
    assert differences
    assert differences.isdisjoint(reads)


def test_a_full_snapshot_stores_chunks_without_an_older_base(box: Box) -> None:
    """The snapshot reuses chunks that the store has as they are."""
    file = box.source / "last.pt"
    saves = training()
    for is_base in (False, True):
        file.write_bytes(next(saves))
        box.take(base=is_base)
    assert not is_delta(box, file)
    file.write_bytes(next(saves))
    box.take()
    assert box.take(base=True).new_bytes == 0
    assert is_delta(box, file)


def test_a_file_that_was_being_written_is_never_a_delta_base(box: Box) -> None:
    file = box.source / "last.pt"
    saves = training()
    file.write_bytes(next(saves))
    with file.open("r+b"):
        assert box.take().trouble_count == 1
    file.write_bytes(next(saves))
    box.take()
    assert not is_delta(box, file)


def two_steps(box: Box) -> tuple[Path, list[bytes], list[str]]:
    """A file of one chunk in two snapshots, the second a difference from the first."""
    file = box.source / "last.bin"
    saves = list(itertools.islice(training(size=400 * KIB), 2))
    names = []
    for data in saves:
        file.write_bytes(data)
        names.append(box.take().id)
    assert depths(box, file) == [1]
    return file, saves, names


def few_changes(box: Box) -> tuple[Path, list[bytes], list[str]]:
    """A table in two snapshots; a hundred of its numbers have changed."""
    file = box.source / "table.bin"
    saves = list(itertools.islice(training(size=400 * KIB), 2))
    changed = np.frombuffer(saves[0], "<f4").copy()
    changed[::1000] = np.frombuffer(saves[1], "<f4")[::1000]
    saves[1] = changed.tobytes()
    names = []
    for data in saves:
        file.write_bytes(data)
        names.append(box.take().id)
    return file, saves, names


def test_scattered_changes_take_little_space_and_are_restored(box: Box) -> None:
    file, saves, names = few_changes(box)
    assert box.snapshots()[0].stored_bytes < 2000 + box.snapshots()[0].files * 1000
    told = box.ciuic("show", "latest", "--chunks", "-p", file)
    assert " sparse " in told.out
    store = reader.Store(str(box.store))
    for name, data in zip(names, saves, strict=True):
        (root,) = store.manifest(name)["roots"]
        top = store.root(root["tree"])
        (entry,) = store.entries(top.content, top.level)
        assert b"".join(store.chunk(DATA, one) for _, one, _ in store.pieces(entry)) == data
        assert box.read(file, name) == data
    assert box.verify().ok
    assert box.ciuic("forget", names[0]).code == 0
    with open_store(str(box.store), write=True) as opened:
        plan = plan_prune(opened, trash_s=0, now_ns=box.clock.now_ns())
        apply_prune(opened, plan, clock=box.clock)
    assert box.read(file) == saves[1]


def test_small_changes_never_have_the_whole_stored_again(box: Box) -> None:
    """After a chain of the greatest length, the next one begins at its end."""
    file = box.source / "table.bin"
    values = np.frombuffer(next(training(size=400 * KIB)), "<f4").copy()
    deepest = []
    for step in range(30):
        values[step * 100 : step * 100 + 20] += np.float32(1e-4)
        file.write_bytes(values.tobytes())
        taken = box.take()
        deepest += depths(box, file)
        assert box.read(file, taken.id) == values.tobytes()
        assert step == 0 or taken.stored_bytes < 20 * KIB
    assert deepest == [*range(13), *range(1, 13), *range(1, 6)]
    assert box.verify().ok


def test_a_sparse_delta_without_its_delta_base_is_named_as_damage(box: Box) -> None:
    file, saves, names = few_changes(box)
    flip_content(box.store, saves[0])
    for name in names:
        with pytest.raises(CorruptionError):
            box.read(file, name)
    damaged = [path for one in box.verify().snapshots for path in one.damaged]
    assert [one.path for one in damaged] == [os.fsencode(file)] * 2


def test_a_long_chain_names_the_damage_at_its_end_once(box: Box) -> None:
    file = box.source / "table.bin"
    first = next(training(size=400 * KIB))
    values = np.frombuffer(first, "<f4").copy()
    file.write_bytes(first)
    box.take()
    for step in range(6):
        values[step * 100 : step * 100 + 20] += np.float32(1e-4)
        file.write_bytes(values.tobytes())
        box.take()
    assert depths(box, file) == [6]
    flip_content(box.store, first)

    done = box.ciuic("cat", "latest", file)

    assert done.code == 4
    assert done.err.count("its delta base cannot be read") == 1
    assert done.err.count("pack ") == 2, "the first pack of the chain, and the damaged one"
    assert len(done.err) < 400


def test_damage_to_a_delta_base_is_named_for_both_chunks(box: Box) -> None:
    file, saves, names = two_steps(box)
    flip_content(box.store, saves[0])
    for name in names:
        with pytest.raises(CorruptionError):
            box.read(file, name)
    damaged = {one.id: one.damaged for one in box.verify().snapshots}
    assert {name: [one.path for one in found] for name, found in damaged.items()} == {
        name: [os.fsencode(file)] for name in names
    }
    target = box.directory / "out"
    outcome = box.ciuic("restore", "-s", "latest", "--no-hot", "-p", file, "-d", target)
    assert outcome.code == 4
    assert not (target / file.name).exists()


@pytest.mark.parametrize("budget", [Budget(size_bytes=1), Budget()], ids=["one pack", "all"])
def test_a_lost_chunk_makes_its_deltas_lost(box: Box, budget: Budget) -> None:
    """However far below it is, and even if no snapshot needs the lost chunk itself."""
    box.chain_cost = 100
    file = box.source / "last.bin"
    saves = list(itertools.islice(training(size=400 * KIB), 3))
    for data in saves:
        file.write_bytes(data)
        box.take()
    assert depths(box, file) == [2]
    last, *others = [one.id for one in box.snapshots()]
    assert box.ciuic("forget", *others).code == 0
    flip_content(box.store, saves[0])
    damaged = pack_of(box.store, saves[0]).name
    with open_store(str(box.store), write=True) as store:
        for name in set(store.pack_files()) - {bytes.fromhex(damaged)}:
            store.index.put_check(name, box.clock.now_ns(), 1, "")
        store.index.commit()
    report = scrub(str(box.store), clock=box.clock, budget=budget)
    [pack] = report.damaged
    assert pack.check.pack_id.hex() == damaged
    assert report.has_read_all == (budget == Budget())
    assert [(one.path, one.snapshots) for one in pack.files] == [(os.fsencode(file), (last,))]
    assert report.missing == []
    told = box.ciuic("scrub")
    assert told.code == 4
    assert "1 chunk lost:" in told.out
    assert told.out.count(str(file)) == 1


def test_deltas_of_a_lost_chunk_are_stored_again(box: Box) -> None:
    """A chunk that cannot be read must not count as stored."""
    file, saves, names = two_steps(box)
    flip_content(box.store, saves[0])
    assert box.ciuic("scrub", "--budget", "100G").code == 4
    assert not box.verify(checksum=False).ok
    file.write_bytes(saves[1])
    report = box.take(base=True)
    assert report.new_bytes == len(saves[1])
    assert box.read(file) == saves[1]
    assert box.read(file, names[1]) == saves[1]


def stored_again(box: Box) -> tuple[Path, list[bytes], list[str]]:
    """Three steps, each a difference from the last; the first is lost, the second stored again."""
    box.chain_cost = 100
    file, saves, names = two_steps(box)
    saves.append(list(itertools.islice(training(size=400 * KIB), 3))[2])
    file.write_bytes(saves[2])
    names.append(box.take().id)
    assert depths(box, file) == [2]
    flip_content(box.store, saves[0])
    assert box.ciuic("scrub").code == 4
    (box.source / "other_1.bin").write_bytes(saves[1][: -4 * KIB] + bytes(4 * KIB))
    box.take(base=True)
    (box.source / "other_2.bin").write_bytes(saves[1])
    names.append(box.take().id)
    assert depths(box, box.source / "other_2.bin") == [1]
    return file, saves, names


def name_first_place(box: Box, pack: bytes, content: bytes) -> None:
    """An index that is built again may name the first place of a chunk; this one always does."""
    (box.store / CATALOG).unlink()
    with open_store(str(box.store), write=True) as store:
        store.index.replace_places(pack, pack_frames(store.path, pack), {data_id(content)})
        store.index.commit()


def first_place(box: Box, content: bytes) -> bytes:
    """The pack that had a chunk before any other."""
    found = {
        one.stat().st_mtime_ns: bytes.fromhex(one.name)
        for one in packs(box.store)
        for _, frame, _ in pack_frames(str(box.store), bytes.fromhex(one.name))
        if data_id(content) in dict(frame.chunks)
    }
    return found[min(found)]


def test_a_chunk_that_is_stored_again_with_another_delta_base_is_whole(box: Box) -> None:
    """The chunks that build on it are whole too, though its first place cannot be read."""
    file, saves, names = stored_again(box)
    first, third = first_place(box, saves[1]), saves[2]
    assert damaged(box, checked=False) == damaged(box, checked=True) == [names[0]]
    with open_store(str(box.store)) as store:
        assert find_snapshot(store, "latest-valid").id == names[-1]
        wanted = {data_id(saves[1]), data_id(third)}
        assert (
            store.reader.places(list(wanted)).keys() == store.index.usable(list(wanted)) == wanted
        )
    name_first_place(box, first, saves[1])
    assert damaged(box, checked=True) == [names[0]]
    assert box.ciuic("scrub").code == 4
    with open_store(str(box.store)) as store:
        places = store.reader.places([data_id(saves[1]), data_id(third)])
        assert places[data_id(saves[1])].pack_id == first
        assert (
            chunks_without_base(store.reader, places, lambda name, _: name != data_id(saves[0]))
            == {}
        )
    assert damaged(box, checked=False) == [names[0]]
    for name, data in zip(names[1:3], (saves[1], third), strict=True):
        assert box.read(file, name) == data


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_an_error_of_the_store_while_a_delta_chain_is_read_is_not_damage(box: Box) -> None:
    """The place that can be read is opened once for its footer, and then for the chunk."""
    _, saves, _ = stored_again(box)
    again = pack_of(box.store, saves[1])
    name_first_place(box, first_place(box, saves[1]), saves[1])
    assert box.ciuic("scrub").code == 4
    wrapper = strace("openat", "-P", again.name, inject="error=EACCES:when=2")
    outcome = ciuic("--config", box.config, "verify", "--all", wrapper=wrapper)
    assert (outcome.code, again.name in outcome.err) == (1, True), outcome


def test_damage_in_a_rarely_read_part_of_the_chunk_index_hides_no_chunk(box: Box) -> None:
    """The footers of the packs also name chunks that were stored again."""
    _, saves, _ = two_steps(box)
    catalog = box.store / CATALOG
    alike = [bytes(8) + number.to_bytes(ID_BYTES - 8) for number in range(1000)]
    with sqlite3.connect(catalog) as db:
        db.executemany("INSERT INTO reference VALUES (?, 99, ?)", [(one, one) for one in alike])
    db.close()
    data = bytearray(catalog.read_bytes())
    size = int.from_bytes(data[16:18])
    pages = [data.index(one) // size * size for one in alike[300:700]]
    data[next(page for page in pages if data[page] == LEAF)] = 0xFF
    catalog.write_bytes(data)
    name, base = data_id(saves[1]), data_id(saves[0])
    with open_store(str(box.store)) as store:
        places = store.reader.places([name])
        assert chunks_without_base(store.reader, places, lambda _, __: False) == {name: base}


def test_a_reader_without_chunk_index_finds_chunks_that_a_prune_moves(box: Box) -> None:
    """It does not learn where delta bases are now, or what a snapshot adds."""
    file, garbage = box.source / "last.bin", box.source / "garbage.bin"
    saves = training(size=400 * KIB)
    file.write_bytes(next(saves))
    garbage.write_bytes(os.urandom(SIZE))
    first = box.take().id
    file.write_bytes(next(saves))
    garbage.unlink()
    box.take()
    assert depths(box, file) == [1]
    assert box.ciuic("forget", first).code == 0
    catalog, aside = box.store / CATALOG, box.directory / "aside"
    with open_store(str(box.store)) as store:
        with open_store(str(box.store), write=True) as writer:
            catalog.rename(aside)
            assert verify_all(store, checksum=False, clock=box.clock).ok
            aside.rename(catalog)
            plan = plan_prune(writer, trash_s=0, now_ns=box.clock.now_ns())
            assert apply_prune(writer, plan, clock=box.clock).rewritten.packs == 1
        assert verify_all(store, checksum=False, clock=box.clock).ok
        file.write_bytes(os.urandom(KIB))
        box.take()
        report = verify_all(store, checksum=False, clock=box.clock)
        assert (report.ok, len(report.snapshots)) == (True, 2)


def test_prune_keeps_the_delta_with_a_whole_chain_beside_one_with_a_broken_chain(box: Box) -> None:
    """The first lies in a pack with garbage, so the other one would be the cheaper to keep."""
    box.chain_cost = 100
    file, saves, names = two_steps(box)
    flip_content(box.store, saves[0])
    box.ciuic("scrub")
    file.write_bytes(b"something else")
    (box.source / "other_1.bin").write_bytes(saves[1][: -4 * KIB] + bytes(4 * KIB))
    box.take(base=True)
    (box.source / "other_2.bin").write_bytes(saves[1])
    garbage = box.source / "garbage.bin"
    garbage.write_bytes(os.urandom(SIZE))
    with_garbage = box.take().id
    assert depths(box, box.source / "other_2.bin") == [1]
    garbage.unlink()
    box.take()
    assert box.ciuic("forget", with_garbage).code == 0
    before = stored_bytes(box)
    box.ciuic("prune", "--trash", "0")
    assert stored_bytes(box) < before - SIZE
    assert box.read(file, names[1]) == box.read(box.source / "other_2.bin") == saves[1]
    assert damaged(box, checked=True) == [names[0]]


def damaged(box: Box, *, checked: bool) -> list[str]:
    return [one.id for one in box.verify(checksum=checked).snapshots if not one.ok]


def test_a_lost_delta_base_that_is_stored_again_restores_its_deltas(box: Box) -> None:
    file, saves, names = two_steps(box)
    flip_content(box.store, saves[0])
    box.ciuic("scrub", "--budget", "100G")
    file.write_bytes(saves[0])
    box.take()
    for name, data in zip(names, saves, strict=True):
        assert box.read(file, name) == data
    assert box.verify(checksum=False).ok


def test_forgetting_a_snapshot_keeps_its_chunks_that_are_delta_bases(box: Box) -> None:
    file, saves, names = two_steps(box)
    assert box.ciuic("forget", names[0]).code == 0
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert [one.id for one in box.snapshots()] == [names[1]]
    assert box.read(file) == saves[1]
    assert box.verify().ok


def test_prune_removes_a_delta_base_that_served_a_single_delta(box: Box) -> None:
    """In two runs: the first rewrites the pack of the delta, and stores it without a base."""
    file, saves, _ = two_steps(box)
    other = box.source / "other.bin"
    other.write_bytes(os.urandom(2 * SIZE))
    file.write_bytes(saves[0])
    box.take()
    twin = box.source / "twin.dat"
    third, fourth = (training(seed, size=400 * KIB) for seed in (5, 6))
    file.write_bytes(next(third))
    twin.write_bytes(next(fourth))
    box.take(base=True)
    file.write_bytes(next(third))
    twin.write_bytes(next(fourth))
    garbage = box.source / "garbage.bin"
    garbage.write_bytes(os.urandom(2 * SIZE))
    last = [box.take().id]
    assert depths(box, file) == [1]
    garbage.unlink()
    last.append(box.take().id)
    for name in {one.id for one in box.snapshots()} - {last[1]}:
        assert box.ciuic("forget", name).code == 0
    expected = box.read(file)
    before = stored_bytes(box)
    assert box.ciuic("prune", "--trash", "0").code == 0
    for one in (file, twin):
        assert [(place.start_bytes, place.delta_bases) for _, place in chunks(box, one)] == [
            (0, ())
        ]
    between = stored_bytes(box)
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert stored_bytes(box) < between < before
    assert box.read(file) == expected
    assert box.verify().ok


@pytest.mark.parametrize("statement", ["UPDATE reference SET base = ?", "DELETE FROM reference"])
def test_delta_bases_are_kept_even_if_the_chunk_index_is_wrong(box: Box, statement: str) -> None:
    """A row of it that is wrong must not cost data."""
    file, saves, names = two_steps(box)
    assert box.ciuic("forget", names[0]).code == 0
    with sqlite3.connect(box.store / CATALOG) as db:
        db.execute(statement, [bytes(ID_BYTES)] * statement.count("?"))
    db.close()
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert box.read(file) == saves[1]
    assert box.verify().ok


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "rotten"])
def test_delta_bases_of_a_damaged_pack_stay_until_it_is_repaired(box: Box, is_cut: bool) -> None:
    """A pack that parity can repair is useless without the delta bases of its chunks."""
    box.parity = 0.04
    box.configure()
    file, saves, names = two_steps(box)
    file.unlink()
    place, pack = place_of(box.store, saves[1]), pack_of(box.store, saves[1])
    assert box.ciuic("forget", names[0]).code == 0
    if is_cut:
        os.truncate(pack, place.offset_bytes + place.frame_bytes - 10)
    else:
        flip_byte(pack, -10)
        flip_byte(pack, place.offset_bytes + 10)
        (box.store / CATALOG).unlink()
    done = box.ciuic("prune", "--trash", "0")
    assert (done.code, f"ciuic --config {box.config} repair" in done.err) == (4, True)
    assert box.ciuic("repair", "--apply").code == 0
    assert box.read(file) == saves[1]
    assert box.verify().ok


def test_prune_keeps_a_copy_without_a_base_rather_than_a_delta(box: Box) -> None:
    """The delta base may be lost: dropping the copy would undo the repair."""
    file, saves, names = two_steps(box)
    flip_content(box.store, saves[0])
    assert box.ciuic("scrub", "--budget", "100G").code == 4
    (box.source / "other").write_bytes(os.urandom(40 * KIB))
    healed = box.take(base=True).id
    (box.source / "other").unlink()
    last = box.take().id
    file.write_bytes(b"moved on")
    # With garbage beside it, so that the pack of the difference looks the better one.
    assert box.ciuic("forget", healed).code == 0
    box.ciuic("prune", "--trash", "0")
    for name in (names[1], last):
        assert box.read(file, name) == saves[1]


def as_difference(content: bytes, base: bytes) -> tuple[Frame, bytes]:
    """As a snapshot would store it."""
    found = encode_delta_frame(
        (data_id(content), content),
        [(data_id(base), Older(lambda: base, len(base), len(base)))],
        chain_cost=100,
    )
    assert found is not None
    return found[0], bytes(found[1])


def alone(content: bytes) -> tuple[Frame, bytes]:
    frame, payload = encode_frame(DATA, [(data_id(content), content)])
    return frame, bytes(payload)


def test_two_chunks_are_never_left_as_deltas_of_each_other(box: Box) -> None:
    file = box.source / "last.bin"
    one, other = itertools.islice(training(size=400 * KIB), 2)
    for content in (one, other):
        file.write_bytes(content)
        box.take(base=True)
    for pack in (box.store / PACKS).iterdir():
        if pack in {pack_of(box.store, one), pack_of(box.store, other)}:
            pack.unlink()
    # The pack that has them without a base has garbage as well.
    for content, base in ((one, other), (other, one)):
        put_frames(box, [alone(content), alone(os.urandom(20 * KIB))])
        put_frames(box, [as_difference(content, base)])
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert len(list((box.store / PACKS).iterdir())) == 4
    assert box.verify().ok


@pytest.mark.parametrize("is_alike", [True, False], ids=["alike", "otherwise"])
def test_prune_keeps_all_copies_of_a_chunk_that_is_a_delta_everywhere(
    box: Box, is_alike: bool
) -> None:
    """Of copies with the same delta base, one is enough: a killed prune leaves such copies."""
    file, saves, _ = two_steps(box)
    first = pack_of(box.store, saves[1])
    old = {one.name for one in packs(box.store)}
    if is_alike:
        again = [as_difference(saves[1], saves[0])]
    else:
        third = list(itertools.islice(training(size=400 * KIB), 3))[2]
        again = [alone(third), as_difference(saves[1], third)]
    put_frames(box, [*again, alone(b"garbage")])
    assert box.ciuic("prune", "--trash", "0").code == 0
    new = {one.name for one in packs(box.store)}
    assert (first.exists(), new == old) == (True, is_alike)
    assert box.read(file) == saves[1]


def test_prune_writes_two_deltas_in_fragmented_packs_as_one_chunk_without_a_base(
    box: Box,
) -> None:
    """Two copies in one pack would be useless, and chance would decide which one is read."""
    file, saves, _ = two_steps(box)
    pack_of(box.store, saves[1]).unlink()
    third = list(itertools.islice(training(size=400 * KIB), 3))[2]
    put_frames(box, [as_difference(saves[1], saves[0]), alone(os.urandom(SIZE))])
    put_frames(box, [alone(third), as_difference(saves[1], third), alone(os.urandom(SIZE))])
    foreseen = box.ciuic("prune", "--trash", "0", "--dry-run", "--json").document
    done = box.ciuic("prune", "--trash", "0", "--json").document
    assert done["freed_bytes"] == foreseen["freed_bytes"] > 2 * SIZE
    found = [
        frame
        for pack in packs(box.store)
        for _, frame, _ in pack_frames(str(box.store), bytes.fromhex(pack.name))
        if data_id(saves[1]) in dict(frame.chunks)
    ]
    assert [one.is_delta for one in found] == [False]
    assert box.ciuic("prune", "--trash", "0", "--json").document["freed_bytes"] > 0
    assert box.read(file) == saves[1]
    assert box.verify().ok


def test_a_delta_stays_until_its_replacement_is_durable(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full before the replacement has a name, and a pack of nodes has one already."""
    file, saves, _ = two_steps(box)
    tree = box.entries()[os.fsencode(box.source)].content
    with open_store(str(box.store)) as store:
        nodes = store.reader.places([tree])[tree].pack_id
        opened = store.packs.open(nodes)
        again = [(one.frame, read_payload(opened, one)) for one in read_frames(store.packs, nodes)]
    for pack in (pack_path(str(box.store), nodes), pack_of(box.store, saves[1])):
        os.unlink(pack)
    third = list(itertools.islice(training(size=400 * KIB), 3))[2]
    before = set(packs(box.store))
    put_frames(box, [*again, alone(os.urandom(SIZE))])
    of_nodes = set(packs(box.store)) - before
    put_frames(box, [as_difference(saves[1], saves[0]), alone(os.urandom(SIZE))])
    put_frames(box, [alone(third), as_difference(saves[1], third), alone(os.urandom(4 * SIZE))])
    old = set(packs(box.store))
    published = []

    def once(store_path: str, sink: PackFile, name: bytes) -> None:
        if published:
            raise StoreFullError("no space left")
        published.append(name)
        publish_pack(store_path, sink, name)

    monkeypatch.setattr(rewrite_output, "publish_pack", once)
    with open_store(str(box.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=box.clock.now_ns())
        assert len(plan.rewritten) == 3
        with pytest.raises(StoreFullError):
            apply_prune(store, plan, parity=0, clock=box.clock)
    assert len(published) == 1
    # An error cancels removals that have not begun, so the emptied pack of the nodes may stay.
    assert old - set(packs(box.store)) <= of_nodes
    assert box.read(file) == saves[1]


def test_a_delta_that_decodes_to_other_bytes_is_not_a_copy(box: Box) -> None:
    """Its checksums are right, so its writer was wrong."""
    file, saves, _ = two_steps(box)
    pack_of(box.store, saves[1]).unlink()
    put_frames(box, [as_difference(saves[1], saves[0]), alone(b"garbage")])
    other = list(itertools.islice(training(size=400 * KIB), 3))[2]
    frame, payload = as_difference(other, saves[0])
    slot = (data_id(saves[1]), len(saves[1]))
    put_frames(box, [(frame._replace(chunks=(slot,)), payload)])
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert box.read(file) == saves[1]


def stored_bytes(box: Box) -> int:
    return sum(one.stat().st_size for one in (box.store / "packs").iterdir())


def test_everything_can_be_restored_without_the_chunk_index(box: Box) -> None:
    file, saves, names = two_steps(box)
    (box.store / "catalog.sqlite").unlink()
    for name, data in zip(names, saves, strict=True):
        assert box.read(file, name) == data
    assert box.verify().ok


def test_a_reader_that_has_only_the_format_s_page_brings_it_back(box: Box) -> None:
    file, saves, names = two_steps(box)
    store = reader.Store(str(box.store))
    for name, data in zip(names, saves, strict=True):
        (root,) = store.manifest(name)["roots"]
        top = store.root(root["tree"])
        (entry,) = store.entries(top.content, top.level)
        assert entry.name == os.fsencode(file.name)
        assert b"".join(store.chunk(DATA, one) for _, one, _ in store.pieces(entry)) == data


def put_frames(box: Box, frames: list[tuple[Frame, bytes]]) -> None:
    """A pack of a hostile writer."""
    pack = PackFile(str(box.store / "tmp"), SessionId(bytes(8)))
    for frame, payload in frames:
        pack.add(frame, payload)
    os.rename(pack.path, box.store / PACKS / pack_name(pack.complete()))
    pack.close()


def as_delta(content: bytes, reference: bytes) -> tuple[Frame, bytes]:
    """A delta which says that nothing has changed."""
    frame, _ = encode_frame(DATA, [(data_id(content), content)])
    nothing = bytes(64 * KIB)
    stored = bytes(dense_delta.encode(nothing, nothing, dense_delta.probe(nothing, nothing, 4, 0)))
    return (
        frame._replace(
            codec=codec.DELTA,
            delta_bases=(reference,),
            stored_bytes=len(stored),
            payload_checksum=checksum(stored),
        ),
        stored,
    )


def test_a_ring_of_deltas_ends_as_damage(box: Box) -> None:
    one, other = bytes(64 * KIB), b"\1" * 64 * KIB
    put_frames(box, [as_delta(one, data_id(other)), as_delta(other, data_id(one))])
    with open_store(str(box.store), write=True) as store:
        for content in (one, other):
            assert store.reader.chain(data_id(content)) is None
            with pytest.raises(CorruptionError):
                store.reader.chunk(data_id(content), kind=DATA)
        assert store.index.usable([data_id(one), data_id(other)]) == set()


def test_a_delta_chain_that_is_too_long_is_reported_as_damage(box: Box) -> None:
    contents = [bytes([number]) * 64 * KIB for number in range(CHAIN_MAX + 2)]
    frames = [as_delta(content, data_id(below)) for below, content in itertools.pairwise(contents)]
    bottom, payload = encode_frame(DATA, [(data_id(contents[0]), contents[0])])
    assert bottom.delta_bases == ()
    put_frames(box, [(bottom, bytes(payload)), *frames])
    with open_store(str(box.store), write=True) as store:
        with pytest.raises(CorruptionError, match=r"hashes|decodes|reference|more than"):
            store.reader.chunk(data_id(contents[-1]), kind=DATA)
        assert store.reader.chain(data_id(contents[-1])) is None
        assert store.reader.chain(data_id(contents[1])) is not None
