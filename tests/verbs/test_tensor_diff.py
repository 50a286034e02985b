"""The changes of tensors between two snapshots."""

import os
from pathlib import Path

import numpy as np
import pytest

from ciuic.catalog import find_snapshot
from ciuic.codec.elements import Distance, compare
from ciuic.report.tensors import FileTensors, TensorChange, diff_tensors, relative
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content
from tests.kit.tensors import safetensors, saved, torch_zip, typed

KIB = 1024
MIB = 1024 * KIB


def changes(box: Box, before: str, after: str) -> dict[str, FileTensors | None]:
    """All changes, by path below the source."""
    with open_store(str(box.store)) as store:
        one = store.manifest(find_snapshot(store, before).id)
        other = store.manifest(find_snapshot(store, after).id)
        return {
            os.path.relpath(os.fsdecode(change.path), box.source): (
                compare_them(lambda *_: None) if compare_them else None
            )
            for change, compare_them in diff_tensors(store, one, other)
        }


def only(box: Box, before: str, after: str) -> FileTensors:
    """The changes of the only file that changed."""
    (found,) = changes(box, before, after).values()
    assert found is not None
    return found


def by_name(found: FileTensors) -> dict[str, TensorChange]:
    return {one.name: one for one in found.changes}


def floats(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype("<f4")


def f32(array: np.ndarray) -> tuple[str, list[int], bytes]:
    return "F32", list(array.shape), array.tobytes()


@pytest.mark.parametrize("chunk_bytes", [4096, MIB])
@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_a_tensor_has_its_share_of_equal_elements_and_its_distance(
    tmp_path: Path, name: str, chunk_bytes: int
) -> None:
    box = Box(tmp_path, chunk_bytes=chunk_bytes)
    path = box.source / name
    arrays = {"w": floats(700_001), "same": floats(300_000, 2), "b": floats(5, 3)}

    def write() -> None:
        if name == "a.npz":
            np.savez(path, **arrays)
        else:
            path.write_bytes(typed({key: f32(one) for key, one in arrays.items()}))

    write()
    before = arrays["w"]
    one = box.take().id
    arrays["w"] = before.copy()
    arrays["w"][::7] *= 1.5
    arrays["b"] = arrays["b"] + np.float32(1)
    write()
    other = box.take().id

    found = only(box, one, other)
    assert found.same == 1
    assert found.compared_with == os.fsencode(path)
    told = by_name(found)
    assert [(key, told[key].sign) for key in told] == [("w", "M"), ("b", "M")]
    distance = told["w"].distance
    assert distance is not None
    assert distance.elements == 700_001
    assert distance.equal == np.count_nonzero(before == arrays["w"])
    wide = before.astype(float)
    wanted = np.linalg.norm(arrays["w"] - wide) / np.linalg.norm(wide)
    assert relative(distance) == pytest.approx(wanted)
    assert told["w"].after is not None
    assert (told["w"].after.element, told["w"].after.shape) == ("F32", (700_001,))


def test_a_file_of_torchs_has_the_names_and_types_of_its_pickle(box: Box) -> None:
    data = bytearray(saved("state.pt"))
    (box.source / "state.pt").write_bytes(data)
    one = box.take().id
    data[121_088 + 1] ^= 0x40  # the highest byte of the first element of h: 3 becomes very small
    data[120_960] ^= 1  # the lowest byte of b, a small change
    (box.source / "state.pt").write_bytes(data)
    found = only(box, one, box.take().id)

    told = by_name(found)
    assert (found.same, set(told)) == (1, {"state.h", "state.b"})
    assert told["state.h"].after is not None
    assert (told["state.h"].after.element, told["state.h"].after.shape) == ("BF16", (300, 200))
    distance = told["state.h"].distance
    assert distance is not None
    assert (distance.elements, distance.equal) == (60_000, 59_999)
    assert relative(distance) == pytest.approx(3 / 5, rel=1e-3)


def test_the_parts_of_a_distributed_checkpoint_have_its_names(box: Box) -> None:
    data = bytearray(saved("named.distcp"))
    first = data.index(b"\0\0\x80\x3f")
    names = []
    for step in (1, 2, 3):
        directory = box.source / f"step_{step}"
        directory.mkdir()
        (directory / "__0_0.distcp").write_bytes(data)
        if step != 3:
            (directory / ".metadata").write_bytes(saved("named.metadata"))
        names.append(box.take().id)
        data[first + 3] ^= step  # the first element of w

    found = changes(box, names[0], names[1])["step_2/__0_0.distcp"]
    assert found is not None
    assert found.compared_with == os.fsencode(box.source / "step_1" / "__0_0.distcp")
    (change,) = found.changes
    assert (found.same, change.sign, change.name) == (1, "M", "layer.w")
    assert change.distance is not None
    assert (change.distance.elements, change.distance.equal) == (30_000, 29_999)
    # If one of the two has no names, tensors are identified by their places.
    found = changes(box, names[1], names[2])["step_3/__0_0.distcp"]
    assert found is not None
    assert [(one.sign, one.name) for one in found.changes] == [("M", "1/data/0")]


def test_without_a_pickle_bytes_are_compared(box: Box) -> None:
    large = os.urandom(100_000)
    (box.source / "a.pt").write_bytes(torch_zip([large, b"small"], stem="a"))
    one = box.take().id
    (box.source / "a.pt").write_bytes(torch_zip([large[:-1] + b"", b"smalL"], stem="b"))
    other = box.take().id
    (box.source / "a.pt").write_bytes(torch_zip([large[:50_000] + bytes(49_999), b"smalL"]))
    last = box.take().id

    told = by_name(only(box, one, other))
    assert told["data/0"].distance is None
    assert told["data/1"].distance == Distance(5, 4)
    told = by_name(only(box, other, last))
    assert list(told) == ["data/0"]
    distance = told["data/0"].distance
    assert distance is not None
    assert distance.elements == 99_999
    assert 50_000 <= distance.equal < 51_000
    assert relative(distance) is None


def test_a_file_whose_pickle_is_readable_in_one_only_is_matched_by_its_archive(box: Box) -> None:
    (box.source / "a.pt").write_bytes(saved("state.pt"))
    one = box.take().id
    data = saved("state.pt").replace(b"\x80\x02}", b"\x80\x02\xff", 1)
    (box.source / "a.pt").write_bytes(data)
    found = only(box, one, box.take().id)

    told = by_name(found)
    assert {name: change.sign for name, change in told.items()} == dict.fromkeys(
        ("data/0", "data/1", "data/2"), "M"
    )
    assert {change.distance for change in told.values()} == {None}


def test_added_and_removed_tensors_and_changed_types_and_shapes_are_shown(box: Box) -> None:
    a = floats(100)
    path = box.source / "a.safetensors"
    path.write_bytes(typed({"type": f32(a), "shape": f32(a), "long": f32(a), "gone": f32(a)}))
    one = box.take().id
    reshaped = a.reshape(10, 10)
    tensors = {"shape": f32(reshaped), "type": ("I32", [100], a.tobytes()), "long": f32(a[:50])}
    path.write_bytes(typed({"new": f32(a), **tensors}))
    found = only(box, one, box.take().id)

    told = [(one.sign, one.name, one.distance is None) for one in found.changes]
    assert told == [
        ("+", "new", True),
        ("M", "shape", False),
        ("M", "type", True),
        ("M", "long", True),
        ("-", "gone", True),
    ]
    distance = by_name(found)["shape"].distance
    assert distance is not None
    assert distance.equal == distance.elements
    assert relative(distance) == 0.0


def test_tensors_that_moved_in_the_file_are_the_same(box: Box) -> None:
    tensors = {"a": os.urandom(2 * MIB + 5), "b": os.urandom(100), "c": os.urandom(70_000)}
    path = box.source / "a.safetensors"
    path.write_bytes(safetensors(tensors))
    one = box.take().id
    path.write_bytes(safetensors(dict(reversed(tensors.items())), note="x" * 1000))
    assert only(box, one, box.take().id) == FileTensors(os.fsencode(path), 3, ())


def two_versions(box: Box) -> tuple[list[bytes], str, str]:
    """Three tensors; the last two change, and the first shares a frame with the headers."""
    tensors = [os.urandom(MIB) for _ in range(3)]
    path = box.source / "a.safetensors"
    path.write_bytes(safetensors(dict(zip("abc", tensors, strict=True))))
    one = box.take().id
    path.write_bytes(safetensors({"a": tensors[0], "b": tensors[1][::-1], "c": tensors[2][::-1]}))
    return tensors, one, box.take().id


def test_files_with_equal_recipes_are_not_read(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, one, last = two_versions(box)
    read: set[bytes] = set()
    chunk = StoreReader.chunk

    def counted(self: StoreReader, name: bytes, *, kind: int) -> bytes | memoryview:
        read.add(name)
        return chunk(self, name, kind=kind)

    monkeypatch.setattr(StoreReader, "chunk", counted)
    found = only(box, one, last)
    assert (found.same, [change.name for change in found.changes]) == (1, ["b", "c"])
    assert data_id(tensors[0]) not in read
    assert {data_id(tensors[1]), data_id(tensors[1][::-1])} <= read


def test_damage_spoils_the_tensor_that_it_is_in(box: Box) -> None:
    tensors, one, last = two_versions(box)
    flip_content(box.store, tensors[1])
    found = only(box, one, last)
    told = [(change.name, change.sign, bool(change.what)) for change in found.changes]
    assert told == [("b", "?", True), ("c", "M", False)]
    assert found.same == 1


def test_damage_to_the_headers_is_reported_for_the_file(box: Box) -> None:
    _, one, last = two_versions(box)
    (path,) = box.source.iterdir()
    with open_store(str(box.store)) as store:
        headers = next(iter_pieces(store.reader.node, box.entries(one)[os.fsencode(path)])).id
        place = store.reader.places([headers])[headers]
    flip_byte(box.store / "packs" / place.pack_id.hex(), place.offset_bytes + place.frame_bytes - 1)
    found = only(box, one, last)
    assert "checksum" in found.what
    assert (found.same, found.changes) == (0, ())


def test_files_changed_in_place_and_with_holes_are_compared(box: Box) -> None:
    path = box.source / "a.npy"
    array = np.zeros(3_000_000, "<f4")
    array[:10] = 1
    np.save(path, array)
    with path.open("r+b") as file:  # zeros become a hole
        file.truncate(128 + 40)
        file.truncate(128 + 12_000_000)
    one = box.take().id
    with path.open("r+b") as file:
        file.seek(128 + 4_000_000)
        file.write(np.full(3, 2, "<f4").tobytes())
    found = only(box, one, box.take().id)

    (change,) = found.changes
    assert (change.name, change.sign) == ("array", "M")
    assert change.distance == Distance(3_000_000, 2_999_997, 10.0, 12.0, 0)


def test_other_files_and_metadata_have_no_tensors(box: Box) -> None:
    (box.source / "log").write_text("one")
    (box.source / "a.pt").write_bytes(saved("state.pt"))
    (box.source / "b.pt").write_bytes(saved("state.pt"))
    (box.source / "c.pt").write_bytes(saved("state.pt"))
    one = box.take().id
    (box.source / "log").write_text("two")
    os.utime(box.source / "a.pt", ns=(1, 1))
    (box.source / "b.pt").write_bytes(b"no archive any more")
    (box.source / "c.pt").unlink()
    (box.source / "new").mkdir()
    assert set(changes(box, one, box.take().id).values()) == {None}


def step(box: Box, name: str, value: int) -> None:
    path = box.source / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors({"w": bytes([value]) * 70_000}))


@pytest.mark.parametrize(
    ("there", "added", "wanted"),
    [
        (["step_500.pt"], "step_600.pt", "step_500.pt"),
        (["step_500.pt", "step_400.pt", "step_99.pt"], "step_600.pt", "step_500.pt"),
        (["step_500.pt", "step_700.pt"], "step_600.pt", "step_500.pt"),
        (["step_800.pt", "step_700.pt"], "step_600.pt", "step_700.pt"),
        (["step_0900.pt"], "step_1000.pt", "step_0900.pt"),
        (["s-5/r-1-of-2", "s-5/r-2-of-2", "s-4/r-1-of-2"], "s-6/r-1-of-2", "s-5/r-1-of-2"),
        (["s5/o_s5_r1", "s5/o_s5_r2"], "s6/o_s6_r1", "s5/o_s5_r1"),
        (["s5/o_s4_r1"], "s6/o_s6_r1", None),
        (["stop_500.pt"], "step_600.pt", None),
        (["model.pt"], "other.pt", None),
    ],
)
def test_a_new_file_is_compared_with_that_of_the_step_before(
    box: Box, there: list[str], added: str, wanted: str | None
) -> None:
    for number, name in enumerate(there):
        step(box, name, number)
    one = box.take().id
    step(box, added, 77)
    found = changes(box, one, box.take().id)[added]
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert found.compared_with == os.fsencode(box.source / wanted)
        assert [change.sign for change in found.changes] == ["M"]


def test_several_new_steps_are_each_compared_with_the_nearest_there_was(box: Box) -> None:
    for number in (1, 5, 9):
        step(box, f"step_{number}", number)
    one = box.take().id
    for number in (2, 3, 7, 10, 0):
        step(box, f"step_{number}", 50 + number)
    found = changes(box, one, box.take().id)
    told = {
        name: None if one is None else os.path.basename(one.compared_with).decode()
        for name, one in found.items()
    }
    assert told == {
        "step_0": "step_1",
        "step_2": "step_1",
        "step_3": "step_1",
        "step_7": "step_5",
        "step_10": "step_9",
    }


def test_many_tensors_are_compared_in_parallel_and_shown_in_order(box: Box) -> None:
    arrays = {f"t{number}": floats(number + 1, number) for number in range(600)}
    path = box.source / "a.safetensors"
    path.write_bytes(typed({name: f32(one) for name, one in arrays.items()}))
    one = box.take().id
    changed = {name: array if at % 2 else -array for at, (name, array) in enumerate(arrays.items())}
    path.write_bytes(typed({name: f32(one) for name, one in changed.items()}))
    found = only(box, one, box.take().id)
    assert found.same == 300
    assert [change.name for change in found.changes] == [f"t{at}" for at in range(0, 600, 2)]
    for change in found.changes:
        array = arrays[change.name]
        wanted = compare(array.tobytes(), (-array).tobytes(), "F32")
        assert change.distance == wanted


def test_progress_counts_tensors(box: Box) -> None:
    path = box.source / "a.safetensors"
    for value in (b"a", b"b"):
        path.write_bytes(safetensors({str(number): value * 9 for number in range(5)}))
        box.take()
    told: list[tuple[int, int]] = []
    newest, oldest = (one.id for one in box.snapshots())
    with open_store(str(box.store)) as store:
        pairs = [store.manifest(one) for one in (oldest, newest)]
        for _, compare_them in diff_tensors(store, *pairs):
            assert compare_them is not None
            compare_them(lambda done, total: told.append((done, total)))
    assert told == [(number, 5) for number in range(5)]
