"""Inspecting a pack: every change is found, and only affected chunks count as damaged."""

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.store.format import frame, pack
from ciuic.store.health.inspect import PackCheck, inspect_pack
from ciuic.store.health.salvage import salvage_frames
from ciuic.store.records import kinds
from ciuic.system.hashing import data_id, pack_id_of

PARTS = [
    [b"a" * 300],
    [bytes(range(256)), b"two", b"three"],
    [random.Random(1).randbytes(20_000)],
    [b"c"],
]


def build(parts):
    """Return a pack's ID, bytes and frames."""
    data, packed = pack.MAGIC, []
    for chunks in parts:
        one, payload = frame.encode_frame(kinds.DATA, [(data_id(part), part) for part in chunks])
        packed.append(pack.PackedFrame(len(data), one, one.encode_header()))
        data += one.encode_header() + bytes(payload)
    name, end = pack.encode_footer(packed, len(data), bytes(16))
    return name, data + end, packed


NAME, DATA, FRAMES = build(PARTS)
FOOTER_AT = int.from_bytes(DATA[-32:-24], "little")


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    """Inspect a pack of these bytes."""
    store = tmp_path_factory.mktemp("store")
    (store / "packs").mkdir()

    def call(data: bytes, name: bytes = NAME) -> PackCheck:
        (store / "packs" / name.hex()).write_bytes(data)
        return inspect_pack(str(store), name)

    return call


def ids(*numbers):
    return {data_id(part) for number in numbers for part in PARTS[number]}


def lost(check):
    return {name for one in check.bad for name in one.chunks}


def test_a_sound_pack_is_sound(look):
    check = look(DATA)
    assert check == PackCheck(NAME, len(DATA), footer_ok=True, bad=(), what="")


@given(
    at=st.integers(0, len(DATA) - 1), bits=st.integers(1, 255), length=st.sampled_from([1, 1, 50])
)
def test_any_change_is_found_and_only_the_affected_frames_are_named(look, at, bits, length):
    end = min(at + length, len(DATA))
    check = look(DATA[:at] + bytes([one ^ bits for one in DATA[at:end]]) + DATA[end:])
    assert check.what
    hit = {
        number
        for number, one in enumerate(FRAMES)
        if one.offset_bytes < end and at < one.offset_bytes + one.frame.total_bytes
    }
    assert lost(check) == ids(*hit)
    assert check.footer_ok == (end <= FOOTER_AT)
    for one in check.bad:
        assert 0 <= one.offset_bytes < one.offset_bytes + one.length_bytes <= len(DATA)
    if end <= FOOTER_AT:
        assert any(
            one.offset_bytes < end and at < one.offset_bytes + one.length_bytes for one in check.bad
        )


@given(length=st.integers(0, len(DATA) - 1))
def test_a_truncated_pack_loses_the_frames_behind_the_cut(look, length):
    check = look(DATA[:length])
    assert not check.footer_ok
    named = lost(check)
    whole = {
        number
        for number, one in enumerate(FRAMES)
        if one.offset_bytes + one.frame.total_bytes <= length
    }
    assert not named & ids(*whole)
    cut = {
        number
        for number, one in enumerate(FRAMES)
        if number not in whole and one.offset_bytes + len(one.header) <= length
    }
    assert ids(*cut) <= named, "a header that is whole tells what is lost"


@given(
    first=st.integers(0, len(DATA) - 1),
    second=st.integers(FOOTER_AT, len(DATA) - 1),
)
def test_without_a_footer_frames_behind_damage_are_still_found(
    look, tmp_path_factory, first, second
):
    data = bytearray(DATA)
    data[first] ^= 0xFF
    data[second] ^= 0x55
    path = tmp_path_factory.mktemp("pack") / "pack"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        found = salvage_frames(fd)
    finally:
        os.close(fd)
    whole = [
        one
        for one in FRAMES
        if not one.offset_bytes <= first < one.offset_bytes + one.frame.total_bytes
    ]
    assert set(whole) <= set(found)
    check = look(bytes(data))
    assert not lost(check) & {name for one in whole for name, _ in one.frame.chunks}


def test_a_header_damaged_together_with_the_trailer_is_known_from_the_footer(look):
    data = bytearray(DATA)
    data[FRAMES[1].offset_bytes + 20] ^= 1
    data[-1] ^= 1
    check = look(bytes(data))
    assert not check.footer_ok
    assert lost(check) == ids(1)


def test_a_pack_that_holds_another_pack_is_not_mistaken_for_it(look):
    """A snapshot may contain a store, so the payload of a frame may contain frames."""
    inner = build([[b"inner %d" % number * 40] for number in range(5)])[1]
    parts = [[b"x" * 100], [random.Random(2).randbytes(99) + inner], [b"z" * 100]]
    name, data, frames = build(parts)
    assert not look(data, name).what
    damaged = bytearray(data)
    damaged[frames[1].offset_bytes + 3] ^= 1
    assert lost(look(bytes(damaged), name)) == {data_id(parts[1][0])}
    damaged[-1] ^= 1
    assert data_id(parts[1][0]) in lost(look(bytes(damaged), name))
    assert not {data_id(parts[0][0]), data_id(parts[2][0])} & lost(look(bytes(damaged), name))


def test_the_content_of_another_pack_under_this_name_is_found(look):
    name, data, _ = build([[b"another"]])
    check = look(data, NAME)
    assert name != NAME
    assert not check.footer_ok
    assert "another pack" in check.what
    assert lost(check) == set()


@pytest.mark.parametrize("data", [b"", b"CIUICPK1", bytes(70_000), os.urandom(70_000)])
def test_a_file_that_is_not_a_pack_is_damage(look, data):
    check = look(data)
    assert not check.footer_ok
    assert check.what
    assert lost(check) == set()


def test_a_missing_pack_or_a_non_file_is_damage(tmp_path):
    (tmp_path / "packs").mkdir()
    assert inspect_pack(str(tmp_path), NAME).what == "it is gone"
    os.mkfifo(tmp_path / "packs" / NAME.hex())
    assert inspect_pack(str(tmp_path), NAME).what == "it is not a regular file"


@pytest.mark.parametrize("has_footer", [True, False])
def test_a_pack_made_to_waste_time_takes_little_time(look, has_footer):
    """A hundred thousand frames that claim the same megabytes are hashed a few times only."""
    one, payload = frame.encode_frame(kinds.DATA, [(data_id(b"x"), os.urandom(8_000_000))])
    header = one._replace(payload_checksum=1).encode_header()
    if has_footer:
        data = pack.MAGIC + header + bytes(payload)
        listed = [pack.PackedFrame(8, one._replace(payload_checksum=1), header)] * 100_000
        name, end = pack.encode_footer(listed, len(data), bytes(16))
        data += end
    else:
        data = pack.MAGIC + header * 100_000 + bytes(payload)
        name = pack_id_of(data)
    check = look(data, name)
    assert check.what
    assert check.bad
    if has_footer:
        assert "overlap" in check.what
        assert len(check.bad) < 3, "the frame is read where it is, and not as often as it is listed"


def test_a_false_long_frame_in_damaged_bytes_hides_no_frame_behind_it(tmp_path):
    long = frame.encode_frame(kinds.DATA, [(data_id(b"l"), os.urandom(9000))])[0].encode_header()
    parts = [[os.urandom(5000) + long + os.urandom(5000)], [os.urandom(300)], [os.urandom(9000)]]
    _, data, frames = build(parts)
    assert long in data, "it is stored as it is"
    damaged = bytearray(data)
    damaged[frames[0].offset_bytes + 5] ^= 1
    footer = int.from_bytes(data[-32:-24], "little")
    damaged[footer:] = bytes(len(data) - footer)
    (tmp_path / "pack").write_bytes(damaged)
    fd = os.open(tmp_path / "pack", os.O_RDONLY)
    try:
        assert set(frames[1:]) <= set(salvage_frames(fd))
    finally:
        os.close(fd)


def test_frames_larger_than_one_read_are_inspected(look):
    parts = [[os.urandom(3_000_000)], [os.urandom(9_000_001)], [os.urandom(5_000)]]
    name, data, frames = build(parts)
    assert not look(data, name).what
    for number, one in enumerate(frames):
        damaged = bytearray(data)
        damaged[one.offset_bytes + one.frame.total_bytes - 1] ^= 1
        assert lost(look(bytes(damaged), name)) == {data_id(parts[number][0])}
