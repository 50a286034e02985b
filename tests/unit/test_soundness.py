"""Whether a checkpoint is complete by the rules of its own format."""

import io
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ciuic.formats.soundness import checksum_fault, fault, was_of_torch
from ciuic.formats.spans import layout
from tests.kit.tensors import npy, saved, torch_zip

SAVED = [
    "part.distcp",
    "state.gguf",
    "state.h5",
    "state.keras",
    "state.latest.h5",
    "state.npz",
    "state.pt",
    "state.safetensors",
]
LARGE = bytes(range(256)) * 300


def reader(data: bytes):
    return lambda offset, length: data[offset : offset + length]


def fault_of(data: bytes, name: bytes = b"checkpoint") -> str:
    return fault(reader(data), len(data), name)


def checksum_fault_of(data: bytes) -> str:
    return checksum_fault(reader(data), len(data))


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(30_000, dtype="<f4").reshape(300, 100))
    return file.getvalue()


def compressed() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.arange(10_000), b=np.zeros(5))
    return file.getvalue()


@pytest.mark.parametrize("name", [*SAVED, "state.legacy.pt"])
def test_files_of_real_libraries_are_sound(name: str) -> None:
    data = saved(name)
    assert fault_of(data) == ""
    assert checksum_fault_of(data) == ""


@given(name=st.sampled_from(SAVED), share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_is_truncated_anywhere_is_broken(name: str, share: float) -> None:
    data = saved(name)
    spans = layout(reader(data), len(data))
    assert spans
    end = max(span.offset_bytes + span.length_bytes for span in spans)
    kept = int(share * end)
    # A distributed checkpoint that is cut between two archives looks like a shorter one.
    assume(not data[:kept].endswith(b"PK\x05\x06" + data[max(kept - 18, 0) : kept]))
    assert fault_of(data[:kept], b"model.pt") != ""


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_of_the_legacy_format_that_is_truncated_anywhere_is_broken(share: float) -> None:
    data = saved("state.legacy.pt")
    kept = int(share * len(data))
    assert fault_of(data[:kept], b"model.pt").startswith("it is ")
    assert fault_of(data + b"more") == ""


@pytest.mark.parametrize("opcodes", [b"h\xff", b"0", b"R", b"\xff", b"."])
def test_a_changed_file_of_the_legacy_format_never_stops_a_search(opcodes: bytes) -> None:
    """Of an odd one, nothing is known; of one that ends early, it is known that it goes on."""
    data = saved("state.legacy.pt")
    for at in range(15, data.index(b"\0\0\x80\x3f")):
        what = fault_of(data[:at] + opcodes + data[at + len(opcodes) :])
        assert what == "" or what.startswith("it is cut short")


@given(share=st.floats(0, 1, exclude_max=True))
def test_an_array_that_is_truncated_anywhere_is_broken(share: float) -> None:
    whole = array()
    assert fault_of(whole) == ""
    assert fault_of(whole[: int(share * len(whole))], b"a.npy") != ""


def test_the_message_has_both_lengths() -> None:
    data = saved("state.safetensors")
    assert fault_of(data[:-5]) == (
        f"it is cut short: it has {len(data) - 5:,} of {len(data):,} bytes"
    )


def test_an_array_of_objects_or_of_an_unknown_shape_counts_as_sound() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert fault_of(file.getvalue()) == ""
    assert fault_of(npy(LARGE)[:-7]) in {"", fault_of(npy(LARGE)[:-7])}


def test_an_archive_with_a_changed_byte_differs_from_its_checksum() -> None:
    for data in (torch_zip([LARGE, LARGE]), compressed()):
        assert checksum_fault_of(data) == ""
        at = len(data) // 2
        changed = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        assert fault_of(changed) == ""
        assert "differs from its checksum" in checksum_fault_of(changed)


def test_an_archive_without_checksums_counts_as_sound() -> None:
    """``torch.serialization.set_crc32_options(False)`` writes such archives."""
    data = torch_zip([LARGE, LARGE[::-1]])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        sums = {info.CRC for info in archive.infolist()}
    for number in sums:
        data = data.replace(struct.pack("<I", number), struct.pack("<I", number ^ 0xFFFF))
    assert zlib.crc32(LARGE) in sums
    assert checksum_fault_of(data) == ""


def test_files_of_no_known_format_are_never_broken() -> None:
    for data in (b"", b"x", b"a log\n" * 1000, bytes(5000), b"PK\x03\x04" + bytes(600)):
        assert fault_of(data, b"train.log") == ""
        assert checksum_fault_of(data) == ""


def test_an_array_without_a_header_may_begin_with_zeros() -> None:
    for data in (b"", bytes(2), bytes(5000)):
        assert fault_of(data, b"train.bin") == ""


def test_a_header_that_cannot_be_one_of_safetensors_is_a_fault_of_files_with_that_name() -> None:
    whole = saved("state.safetensors")
    length = int.from_bytes(whole[:8], "little")
    table = whole[8 : 8 + length]
    for data in (
        bytes(64) + whole[64:],
        b"text" * 500,
        whole[:8] + table.replace(b'"', b"'") + whole[8 + length :],
        whole[:8] + table.replace(b"[200,150]", b"[201,150]") + whole[8 + length :],
        bytes(8) + b"{" + bytes(800),
    ):
        assert data != whole
        assert fault_of(data, b"M.SafeTensors") == "its header cannot be one of safetensors"
        assert fault_of(data, b"tokens.bin") == "", "an array without a header"
    assert fault_of(whole, b"m.safetensors") == ""


def test_only_what_no_program_puts_in_place_of_a_checkpoint_is_suspected() -> None:
    pointers = (b"version https://git-lfs.github.com/spec/v1\n", b"/annex/objects/SHA256E-s9--1\n")
    for data in (*pointers, pickle.dumps({}), pickle.dumps({}, 2)):
        assert not was_of_torch(reader(data), b"a.pt")
    assert was_of_torch(reader(b"noise" * 200), b"a.CKPT")
    assert not was_of_torch(reader(b"noise" * 200), b"tokens.bin")


@pytest.mark.parametrize("name", [b"model.safetensors", b"step_5.PT", b"PyTorch_Model-00001.bin"])
def test_an_empty_file_with_the_name_of_a_checkpoint_is_broken(name: bytes) -> None:
    assert fault_of(b"", name) == "it is empty"
    assert fault_of(bytes(9), name) == "it is cut short: it has 9 bytes"
    assert fault_of(bytes(5000), name) == "its first bytes are zeros"
    assert fault_of(b"version https://git-lfs.github.com/spec/v1\n", name) == ""
