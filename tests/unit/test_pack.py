"""Packs: ciuic reads their frames from the footer, or by a walk from the start."""

import os
import struct

import pytest

from ciuic.errors import CorruptionError
from ciuic.store.directory import pack_file
from ciuic.store.format import frame, pack
from ciuic.store.records import kinds
from ciuic.system.hashing import checksum, data_id, pack_id_of

PARTS = [b"a" * 300, bytes(range(256)), b"c"]


@pytest.fixture
def example(tmp_path):
    """Write a pack of three frames; return its ID, bytes and frames."""
    data, packed = pack.MAGIC, []
    for part in PARTS:
        one, payload = frame.encode_frame(kinds.DATA, [(data_id(part), part)])
        packed.append(pack.PackedFrame(len(data), one, one.encode_header()))
        data += one.encode_header() + bytes(payload)
    name, end = pack.encode_footer(packed, len(data), bytes(16))
    return name, data + end, packed


@pytest.fixture
def reading(tmp_path):
    """Call a reader on a file with these bytes."""

    def call(read, data, *arguments):
        (tmp_path / "pack").write_bytes(data)
        fd = os.open(tmp_path / "pack", os.O_RDONLY)
        try:
            return list(read(fd, *arguments))
        finally:
            os.close(fd)

    return call


def with_footer(data, footer, count):
    """Return the pack with another footer, which has a correct checksum, and its new ID."""
    footer += bytes(16)
    start = int.from_bytes(data[-32:-24], "little")
    trailer = struct.pack("<QIIQ8s", start, len(footer), count, checksum(footer), b"CIUICEND")
    return data[:start] + footer + trailer, pack_id_of(footer)


def test_the_footer_and_a_walk_agree(example, reading):
    name, data, packed = example
    assert reading(pack_file.read_footer, data, name) == packed
    assert reading(pack_file.walk_frames, data) == packed


def test_the_name_depends_on_every_frame(example):
    name, _, packed = example
    footer = b"".join([one.offset_bytes.to_bytes(8, "little") + one.header for one in packed])
    assert pack_id_of(footer + bytes(16)) == name
    assert pack.encode_footer(packed[:2], 100, bytes(16))[0] != name


def test_a_truncated_pack_has_no_footer_and_yields_the_frames_before_the_cut(example, reading):
    name, data, packed = example
    ends = [one.offset_bytes + one.frame.total_bytes for one in packed]
    for length in [*range(0, len(data), 13), len(data) - 1]:
        with pytest.raises(CorruptionError):
            reading(pack_file.read_footer, data[:length], name)
        whole = [one for one, end in zip(packed, ends, strict=True) if end <= length]
        assert reading(pack_file.walk_frames, data[:length]) == whole


def test_every_changed_byte_after_the_frames_is_found(example, reading):
    name, data, packed = example
    start = int.from_bytes(data[-32:-24], "little")
    for at in range(start, len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x20
        with pytest.raises(CorruptionError):
            reading(pack_file.read_footer, bytes(changed), name)
    assert reading(pack_file.walk_frames, data[:start] + bytes(len(data) - start)) == packed


def test_the_footer_of_another_pack_is_refused(example, reading):
    _, data, _ = example
    with pytest.raises(CorruptionError, match="another pack"):
        reading(pack_file.read_footer, data, bytes(32))


def test_a_walk_ends_at_a_damaged_header(example, reading):
    _, data, packed = example
    changed = bytearray(data)
    changed[packed[1].offset_bytes + 12] ^= 1
    assert reading(pack_file.walk_frames, bytes(changed)) == packed[:1]


@pytest.mark.parametrize("offset", [0, 7, 10**6, 2**63, 2**64 - 1])
def test_a_footer_that_lists_a_frame_at_another_place_is_refused(example, reading, offset):
    _, data, packed = example
    footer = offset.to_bytes(8, "little") + packed[0].header
    changed, name = with_footer(data, footer, 1)
    with pytest.raises(CorruptionError, match="not in the pack"):
        reading(pack_file.read_footer, changed, name)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_footer_with_another_number_of_frames_is_refused(example, reading, count):
    _, data, packed = example
    footer = b"".join([one.offset_bytes.to_bytes(8, "little") + one.header for one in packed])
    changed, name = with_footer(data, footer, count)
    with pytest.raises(CorruptionError, match="number of frames"):
        reading(pack_file.read_footer, changed, name)


def test_a_footer_with_half_an_entry_is_refused(example, reading):
    _, data, packed = example
    footer = (8).to_bytes(8, "little") + packed[0].header + b"1234"
    changed, name = with_footer(data, footer, 2)
    with pytest.raises(CorruptionError, match="cut short"):
        reading(pack_file.read_footer, changed, name)


@pytest.mark.parametrize("data", [b"", b"CIUICPK1", b"CIUICPK1" + bytes(31)])
def test_a_file_that_is_too_short_is_not_a_pack(data, reading):
    with pytest.raises(CorruptionError, match="cut short"):
        reading(pack_file.read_footer, data, bytes(32))
    assert reading(pack_file.walk_frames, data) == []
