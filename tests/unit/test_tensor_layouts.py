"""Tensor layouts, from the headers of correct and of hostile files."""

import io
import json
import struct
import zipfile

import numpy as np
import pytest

from ciuic.formats import hdf5
from ciuic.formats.headers import (
    HEADER_BYTES_MAX,
    NAME_BYTES_MAX,
    SPANS_MAX,
    Headers,
    NoLayoutError,
    Span,
)
from ciuic.formats.names import described
from ciuic.formats.spans import MAGIC_BYTES, layout
from tests.kit.tensors import hdf5 as hdf5_file
from tests.kit.tensors import npy, npz, safetensors, saved, torch_zip

KIB = 1024
W = b"\0\0\x80\x3f" + bytes(119_992) + b"\0\0\0\x40"
H = b"\x40\x40" + bytes(119_996) + b"\x80\x40"
"""The tensors of the files in tests/kit/saved."""
LARGE = bytes(range(256)) * 400


class Source:
    """A file's bytes, and the ranges that were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read_bytes = 0

    def read(self, offset: int, length: int) -> bytes:
        assert offset >= 0
        assert length >= 0
        self.read_bytes += length
        return self.data[offset : offset + length]


def spans_of(data: bytes) -> tuple[Span, ...] | None:
    source = Source(data)
    found = layout(source.read, len(data))
    assert source.read_bytes <= min(HEADER_BYTES_MAX, len(data))
    return found


def large(data: bytes) -> list[bytes]:
    """Return the tensors of a file that have a stretch of their own."""
    found = spans_of(data)
    assert found is not None
    return [data[at : at + size] for at, size, *_ in found if size >= 64 * KIB]


SAVED = {"state.pt": 0, "part.distcp": 0, "state.npz": 2, "state.safetensors": 2, "state.gguf": 2}
SAVED |= {"state.h5": 2, "state.latest.h5": 2}
"""This is the width of the elements of the narrower tensor, if the file has it."""


@pytest.mark.parametrize("name", SAVED)
def test_files_of_real_libraries_are_read(name):
    data = saved(name)
    assert {W, H} == set(large(data))
    assert len(large(data)) == 2
    assert {SAVED[name], 2 * SAVED[name]} == {
        one.width_bytes for one in spans_of(data) if one.length_bytes == len(W)
    }


@pytest.mark.parametrize("name", SAVED)
def test_a_truncated_file_has_no_layout_or_a_sound_one(name):
    data = saved(name)
    ends = {*range(0, 3000, 7), *range(len(data) - 3000, len(data), 7), len(W), 2 * len(W)}
    for end in sorted(ends):
        spans_of(data[:end])
    assert spans_of(data[: len(W)]) is None or name == "state.gguf"


def test_files_of_keras_are_read():
    data = saved("state.keras")
    found = spans_of(data)
    assert sorted(one.length_bytes for one in found) == [4 * 150, 4 * 300, len(W), 4 * 150 * 300]
    assert W in large(data)
    assert {one.width_bytes for one in found} == {4}


def keras(weights: bytes, **members: bytes) -> bytes:
    """Return a file with the layout of one that Keras saves."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in ({"metadata.json": b"{}", "config.json": b"{}"} | members).items():
            archive.writestr(name, data)
        archive.writestr("model.weights.h5", weights)
    return file.getvalue()


@pytest.mark.parametrize("name", ["state.h5", "state.latest.h5"])
def test_hdf5_inside_a_keras_archive_is_read(name):
    within = saved(name)
    for more in ({}, {"assets": bytes(100_000)}):
        data = keras(within, **more)
        start = data.index(within)
        assert spans_of(data) == tuple(
            [one._replace(offset_bytes=start + one.offset_bytes) for one in spans_of(within)]
        )
    for wrong in (b"", within[:1000], b"x" + within):
        assert spans_of(keras(wrong)) is None


@pytest.mark.parametrize("name", ["state.h5", "state.latest.h5"])
def test_no_byte_of_the_headers_of_hdf5_is_trusted(name):
    data = saved(name)
    good = spans_of(data)
    # Bytes other than zero are mostly in headers.
    places = [at for at, byte in enumerate(data) if byte]
    assert len(places) < 2000
    others = set()
    for at in places:
        for value in (0, 1, data[at] ^ 0x80, 0xFF):
            found = spans_of(patched(data, at, bytes([value])))
            others.add(found)
            for one in found or ():
                assert 0 <= one.offset_bytes < one.offset_bytes + one.length_bytes <= len(data)
    assert {None, good} < others


def test_a_circular_hdf5_tree_ends():
    data = saved("state.h5")
    first = data.index(b"TREE")
    child = first + 24 + 8
    assert spans_of(patched(data, child, struct.pack("<Q", first))) is None
    header = struct.unpack_from("<Q", data, 24 + 40)[0]
    symbols = data.index(b"SNOD")
    found = spans_of(patched(data, symbols + 8 + 8, struct.pack("<Q", header)))
    assert found is None or set(found) < set(spans_of(data))


def test_circular_hdf5_headers_end():
    # The root leads to 600 objects, and each of these to the block of messages that holds it.
    root_at, block_at, block_bytes, count = 1000, 20_000, 60_000, 600
    onward = struct.pack("<HHI2Q", 0x10, 16, 0, block_at, block_bytes)
    within = struct.pack("<BBHIQ", 1, 0, 1, 1, 24) + onward
    places = range(block_at + 8, block_at + 8 + len(within) * count, len(within))
    links = [struct.pack("<HHI4BQ", 6, 12, 0, 1, 0, 1, 97, one) for one in places]
    root = struct.pack("<BBHIQ", 1, 0, count, 1, 20 * count) + b"".join(links)
    holder = struct.pack("<HHI", 0, len(within) * count, 0)
    block = (holder + within * count).ljust(block_bytes, b"\0")
    data = saved("state.h5")[:64] + struct.pack("<Q", root_at)
    data = (data.ljust(root_at, b"\0") + root).ljust(block_at, b"\0") + block + bytes(9000)
    source = Source(data)
    with pytest.raises(NoLayoutError, match="too many messages"):
        hdf5.spans(Headers(source.read, len(data)))


def test_a_heap_of_names_that_many_groups_share_is_read_once():
    # The root leads to 100 groups. Each has its own tree, and all have names in the same megabyte.
    root_at, heap_at, heap_bytes, count = 1000, 10_000, 2**20, 100
    heap = struct.pack("<4s4xQQQ", b"HEAP", heap_bytes, 0, heap_at)
    inner_at, groups = heap_at + 32, b""
    for number in range(count):
        at = inner_at + 72 * number
        table = struct.pack("<HHI2Q", 0x11, 16, 0, at + 40, heap_at)
        tree = struct.pack("<4sBBHQQQ", b"TREE", 0, 0, 0, 0, 0, 0)
        groups += struct.pack("<BBHIQ", 1, 0, 1, 1, 24) + table + tree
    links = [struct.pack("<HHI4BQ", 6, 12, 0, 1, 0, 1, 97, inner_at + 72 * n) for n in range(count)]
    root = struct.pack("<BBHIQ", 1, 0, count, 1, 20 * count) + b"".join(links)
    data = saved("state.h5")[:64] + struct.pack("<Q", root_at)
    data = (data.ljust(root_at, b"\0") + root).ljust(heap_at, b"\0") + heap
    data = (data + groups).ljust(2 * heap_bytes, b"\0")
    source = Source(data)
    with pytest.raises(NoLayoutError, match="too many messages"):
        hdf5.spans(Headers(source.read, len(data)))


def test_generated_files_resemble_those_of_real_libraries():
    tensors = [LARGE, b"small", LARGE[::-1]]
    named = dict(zip("abc", tensors, strict=True))
    for data in (torch_zip(tensors), npz(named), safetensors(named)):
        assert large(data) == [LARGE, LARGE[::-1]]
    assert large(npy(LARGE)) == [LARGE]
    assert [one.offset_bytes % 64 for one in spans_of(torch_zip(tensors))[::2]] == [0, 0]


def test_consecutive_archives_are_all_read():
    data = b"".join([torch_zip([LARGE[number:]]) for number in range(5)])
    assert large(data) == [LARGE[number:] for number in range(5)]
    assert spans_of(b"x" + data) is None
    assert spans_of(data + b"x") is None
    assert spans_of(torch_zip([LARGE]) + npz({"a": LARGE})) is None


def test_a_part_of_a_checkpoint_may_have_ten_thousand_tensors():
    one = saved("part.distcp")
    one = one[one.index(b"PK\x05\x06") + 22 :]
    one = one[: one.index(b"PK\x05\x06") + 22]
    assert len(large(one)) == 1
    count = 10_000

    def read(offset: int, length: int) -> bytes:
        assert length < len(one)
        start = offset % len(one)
        return (one * 2)[start : start + length]

    found = layout(read, count * len(one))
    assert found is not None
    assert [span.offset_bytes // len(one) for span in found] == list(range(count))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        bytes(100_000),
        b"\x89PNG\r\n\x1a\n" + bytes(1000),
        b"SQLite format 3\0" + bytes(1000),
    ],
)
def test_other_files_are_recognized_by_their_first_bytes(data):
    source = Source(data)
    assert layout(source.read, len(data)) is None
    assert source.read_bytes <= MAGIC_BYTES


def tables(**changes: object) -> bytes:
    """Return a safetensors file of one tensor of 100 bytes, with other values in its table."""
    table = {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]} | changes
    text = json.dumps({"a": table}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(100)


@pytest.mark.parametrize(
    "data",
    [
        tables(data_offsets=[0, 101], shape=[101]),
        tables(data_offsets=[-1, 99]),
        tables(data_offsets=[100, 0]),
        tables(data_offsets=[0, 2**64], shape=[2**64]),
        tables(data_offsets=[2**63, 2**63 + 100]),
        tables(data_offsets=[0, 1.5]),
        tables(shape=[99]),
        tables(shape=[-100]),
        tables(shape=[10] * 100),
        tables(shape="100"),
        tables(dtype=None),
        tables(dtype="F32"),
        struct.pack("<Q", 2**31) + b"{}" + bytes(100),
        struct.pack("<Q", 50) + b"{" * 200,
        struct.pack("<Q", 100_000) + b'{"a":' * 20_000 + bytes(100),
        struct.pack("<Q", 100_000) + b'{"a":' + b"[" * 99_995,
        struct.pack("<Q", 7) + b'{"\xff":1}'[:7] + bytes(100),
        struct.pack("<Q", 2) + b"{}" + bytes(100),
    ],
)
def test_an_inconsistent_table_is_rejected(data):
    assert spans_of(tables())
    assert spans_of(data) is None


def test_overlapping_tensors_are_rejected():
    one, other = ({"dtype": "U8", "shape": [60], "data_offsets": [at, at + 60]} for at in (0, 40))
    text = json.dumps({"a": one, "b": other}).encode()
    assert spans_of(struct.pack("<Q", len(text)) + text + bytes(100)) is None


def test_the_order_of_a_table_does_not_matter():
    tensors = {name: name.encode() * 70_000 for name in "dcba"}
    data = safetensors(tensors)
    length = struct.unpack_from("<Q", data)[0]
    table = json.loads(data[8 : 8 + length])
    text = json.dumps(dict(sorted(table.items()))).encode().ljust(length)
    assert spans_of(struct.pack("<Q", length) + text + data[8 + length :]) == spans_of(data)


def zipped(name: str, data: bytes, **how: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **how) as archive:
        archive.writestr("archive/data.pkl", b"pickle")
        archive.writestr(name, data)
    return file.getvalue()


def names_of(data: bytes) -> list[tuple[str, str]]:
    return [(one.name, one.element) for one in spans_of(data)]


NAMED = {
    "state.pt": [("data/0", ""), ("data/1", ""), ("data/2", "")],
    "part.distcp": [("1/data/0", ""), ("2/data/0", ""), ("3/data/0", "")],
    "state.npz": [("b", ""), ("h", "I16"), ("w", "F32")],
    "state.safetensors": [("b", "F32"), ("h", "BF16"), ("w", "F32")],
    "state.gguf": [("b", "F32"), ("h", "I16"), ("w", "F32")],
    "state.h5": [("h", "U16"), ("layers/dense/vars/b", "F32"), ("layers/dense/vars/w", "F32")],
    "state.keras": [(f"layers/dense{one}/vars/{n}", "F32") for one in ("", "_1") for n in "01"],
}
NAMED["state.latest.h5"] = NAMED["state.h5"]


@pytest.mark.parametrize("name", NAMED)
def test_tensors_have_the_names_and_elements_in_the_headers(name):
    assert sorted(names_of(saved(name))) == NAMED[name]


def test_a_name_is_the_same_whatever_the_file_is_called():
    one, other = (torch_zip([LARGE, b"small"], stem=stem) for stem in ("step_500", "step_1000"))
    assert names_of(one) == names_of(other) == [("data/0", ""), ("data/1", "")]
    assert names_of(zipped("deep/er/data/0", LARGE)) == [("data/0", "")]
    assert names_of(one * 2)[2:] == [("1/data/0", ""), ("1/data/1", "")]
    assert names_of(npy(LARGE)) == [("array", "U8")]


def test_arrays_have_elements_if_numpy_has_a_name_for_them():
    kinds = {"?": "BOOL", "i1": "I8", "<u2": "U16", "<f2": "F16", "<f8": "F64", "<c8": "C64"}
    kinds |= {">f4": "", "V2": "", "U7": "", "i4,f4": ""}
    for kind, element in kinds.items():
        file = io.BytesIO()
        np.savez(file, **{"layer.0": np.zeros(70_000, kind), "b": np.zeros(3, kind)})
        assert names_of(file.getvalue()) == [("layer.0", element), ("b", "")], kind


def test_shapes_of_hdf5_are_those_that_were_saved():
    for name in ("state.h5", "state.latest.h5"):
        data = saved(name)
        found = described(lambda offset, length, data=data: data[offset:][:length], len(data))
        assert [one.shape for one in found] == [(200, 150), (5,), (300, 200)]


def datatype(kind: int, bits: int, width: int, *fields: int) -> bytes:
    """Return an HDF5 message that describes the type of elements."""
    return bytes([kind, bits, 0x1F, 0]) + struct.pack("<I", width) + bytes(fields)


@pytest.mark.parametrize(
    ("kind", "element", "width"),
    [
        (datatype(0x10, 8, 4, 0, 0, 32, 0), "I32", 4),
        (datatype(0x10, 0, 8, 0, 0, 64, 0), "U64", 8),
        (datatype(0x10, 8, 4, 0, 0, 24, 0), "", 4),
        (datatype(0x10, 9, 4, 0, 0, 32, 0), "", 4),
        (datatype(0x10, 8, 3, 0, 0, 24, 0), "", 0),
        (datatype(0x11, 0x20, 2, 0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0), "F16", 2),
        (datatype(0x11, 0x20, 2, 0, 0, 16, 0, 7, 8, 0, 7, 127, 0, 0, 0), "BF16", 2),
        (datatype(0x11, 0x20, 8, 0, 0, 64, 0, 52, 11, 0, 52, 255, 3, 0, 0), "F64", 8),
        (datatype(0x11, 0x21, 4, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0), "", 4),
        (datatype(0x11, 0x60, 4, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0), "", 4),
        (datatype(0x13, 0, 4), "", 0),
    ],
)
def test_element_types_of_hdf5_are_recognized_bit_for_bit(kind, element, width):
    whole = hdf5_file([LARGE])
    old = datatype(0x11, 0x20, 4, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0)
    assert whole.count(old) == 1
    (span,) = spans_of(whole.replace(old, kind.ljust(len(old))))
    assert (span.element, span.width_bytes) == (element, width)
    other = struct.pack("<BHB", 4, len(old), 0)
    (span,) = spans_of(whole.replace(struct.pack("<BHB", 3, len(old), 0) + old, other + old))
    assert (span.element, span.width_bytes) == ("", 0)


def test_false_names_in_hdf5_are_ignored_and_cost_no_tensor():
    data = saved("state.h5")
    good = spans_of(data)
    heaps = [at for at in range(len(data)) if data.startswith(b"HEAP", at)]
    assert len(heaps) == 4  # those of the root, layers, dense and vars
    lies = [(0, b"X"), (4, b"\1"), (8, struct.pack("<Q", 2**21)), (8, struct.pack("<Q", 0))]
    for at in heaps:
        for place, value in lies:
            found = spans_of(patched(data, at + place, value))
            assert [one[:3] for one in found] == [one[:3] for one in good]
            assert {one.name for one in found} <= {"", *[one.name for one in good]}
            assert found != good
        assert spans_of(patched(data, at + 24, struct.pack("<Q", 2**62))) is None


def test_names_have_a_maximum_length_and_need_not_be_utf8():
    longest = "é" * (NAME_BYTES_MAX // 2)
    for name, kept in ((longest, longest), (longest + "x", ""), ("\U0001f600", "\U0001f600")):
        assert names_of(safetensors({name: LARGE})) == [(kept, "U8")]
        assert names_of(npz({name: LARGE})) == [(kept, "U8")]
    assert names_of(zipped("archive/data/" + "1" * 2000, LARGE)) == [("", "")]
    info = struct.pack("<Q", 2) + b"\xff\xfe" + tensor_info(0, 10)[9:]
    assert names_of(gguf(tensors=(info,))) == [("\udcff\udcfe", "F32")]
    groups = ["g" * 200] * 4
    assert names_of(hdf5_file([LARGE], groups=groups)) == [("/".join([*groups, "a"]), "F32")]
    assert names_of(hdf5_file([LARGE], groups=[*groups, "g" * 218])) != [("", "F32")]
    assert names_of(hdf5_file([LARGE], groups=[*groups, "g" * 219])) == [("", "F32")]


def test_elements_of_a_table_are_words_or_nothing():
    spelled = {"F8_E4M3FNUZ": "F8_E4M3FNUZ", "F4": "F4", "": "", "f32": "", "F" * 17: ""}
    for dtype, element in spelled.items():
        assert names_of(tables(dtype=dtype)) == [("a", element)]


def test_compressed_members_and_other_archives_have_no_layout():
    assert spans_of(zipped("archive/data/0", LARGE)) is not None
    assert spans_of(zipped("archive/data/0", LARGE, compression=zipfile.ZIP_DEFLATED)) is None
    assert spans_of(zipped("archive/image", LARGE)) is None
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(1000))
    assert spans_of(file.getvalue()) is None


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def test_an_inconsistent_archive_is_rejected():
    good = torch_zip([LARGE, LARGE])
    assert spans_of(good) is not None
    central = good.rindex(b"PK\x01\x02")
    first = good.index(b"PK\x01\x02")
    tensor = good.index(b"PK\x01\x02", first + 10)
    tensor = good.index(b"PK\x01\x02", tensor + 10)
    local = good.index(b"archive/data/0") - 30
    end = len(good) - 22
    lies = [
        (tensor + 8, b"\1"),  # encrypted
        (tensor + 10, b"\x08"),  # deflated
        (tensor + 20, b"\0\0\0\x01"),  # stored size
        (tensor + 20, struct.pack("<II", 2**31, 2**31)),
        (tensor + 42, b"\xf0\xff\xff\xff"),  # offset
        (tensor + 42, b"\0\0\0\0"),  # that of the first member
        (local + 6, b"\1"),
        (local + 8, b"\x08"),
        (local + 26, b"\xff\xff"),
        (local + 28, b"\xff\xff"),
        (local + 30, b"b"),
        (central, b"X"),
        (end + 10, b"\xff\xff"),
        (end + 10, b"\1\0"),
        (end + 12, b"\0\0\0\0"),
        (end + 16, b"\0\0\0\0"),
        (end + 20, b"\1"),
    ]
    for at, value in lies:
        assert spans_of(patched(good, at, value)) is None, (at - tensor, at - local, at - end)
    for name in ("state.pt", "part.distcp"):
        data = saved(name)
        locator = data.rindex(b"PK\x06\x07")
        assert spans_of(patched(data, locator + 8, b"\xff" * 8)) is None
        assert spans_of(patched(data, locator - 56, b"X")) is None
        for field in (32, 40, 48):
            assert spans_of(patched(data, locator - 56 + field, b"\xff" * 8)) is None


def gguf(pairs: bytes = b"", count: int = 0, tensors: tuple[bytes, ...] = (), version=3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), count)
    return head + pairs + b"".join(tensors) + bytes(300_000)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def tensor_info(offset: int, *shape: int, kind: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", 1) + b"t" + dimensions + struct.pack("<IQ", kind, offset)


def test_gguf_tensors_begin_at_multiples_of_their_alignment():
    infos = (tensor_info(100_096, 100, kind=12), tensor_info(0, 1000, 25))
    pairs = pair(b"general.alignment", 4, struct.pack("<I", 256))
    pairs += pair(b"a", 9, struct.pack("<IQ", 8, 2) + pair(b"x", 0, b"")[:9] + bytes(8))
    data = gguf(pairs, 2, infos)
    first, second = spans_of(data)
    assert first.offset_bytes % 256 == 0
    assert (first.length_bytes, first.width_bytes) == (100_000, 4)
    assert (second.offset_bytes, second.width_bytes) == (first.offset_bytes + 100_096, 0)
    assert second.offset_bytes + second.length_bytes == len(data)


@pytest.mark.parametrize(
    "data",
    [
        gguf(),
        gguf(tensors=(tensor_info(0, 2**60),)),
        gguf(tensors=(tensor_info(2**63, 10),)),
        gguf(tensors=(tensor_info(0, 100), tensor_info(100, 100))),
        gguf(tensors=(tensor_info(0, *([1] * 9)),)),
        gguf(tensors=(tensor_info(0, 10),), version=1),
        gguf(tensors=(tensor_info(0, 10),), version=0x0300_0000),  # big-endian
        gguf(b"", 2**64 - 1, (tensor_info(0, 10),)),
        gguf(pair(b"a", 77, b""), 1, (tensor_info(0, 10),)),
        gguf(pair(b"a", 8, b"\xff" * 8), 1, (tensor_info(0, 10),)),
        gguf(pair(b"a", 9, struct.pack("<IQ", 8, 2**63)), 1, (tensor_info(0, 10),)),
        gguf(pair(b"a", 9, struct.pack("<IQ", 9, 5)), 1, (tensor_info(0, 10),)),
        gguf(pair(b"a", 9, struct.pack("<IQ", 10, 2**61)), 1, (tensor_info(0, 10),)),
        gguf(pair(b"general.alignment", 4, bytes(4)), 1, (tensor_info(0, 10),)),
        b"GGUF" + struct.pack("<IQQ", 3, SPANS_MAX + 1, 0) + bytes(300_000),
    ],
)
def test_inconsistent_gguf_is_rejected(data):
    assert spans_of(gguf(tensors=(tensor_info(0, 10),)))
    assert spans_of(data) is None


def test_arrays_of_unknown_kinds_have_no_width():
    for value, width in ((">f4", 0), ("<f8", 8), ("<c16", 16), ("i4,f4", 0), ("U7", 0)):
        file = io.BytesIO()
        np.save(file, np.zeros(10_000, value))
        assert [one.width_bytes for one in spans_of(file.getvalue())] == [width], value
    good = npy(LARGE)
    assert spans_of(patched(good, 6, b"\x09")) is None
    assert spans_of(patched(good, 6, b"\2\0\xff\xff\xff\xff")) is None
    assert spans_of(good[:20]) is None


def test_more_than_the_maximum_of_tensors_are_not_read():
    few = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    table = {str(at): few | {"data_offsets": [at, at + 1]} for at in range(SPANS_MAX + 1)}
    text = json.dumps(table).encode()
    assert spans_of(struct.pack("<Q", len(text)) + text + bytes(len(table))) is None
