"""Files of tensors: made here by the formats' rules, and saved files of the real libraries.

``saved/`` has files by torch 2.13, safetensors 0.8, gguf, h5py 3.16 and numpy 2 of one state:
``w``, 200 by 150 of fp32, ``b``, five numbers, ``h``, 300 by 200 of bf16; all zeros except the
first and the last element of ``w`` (1, 2) and of ``h`` (3, 4). A model of Keras 3.15 has only
``w``. ``state.legacy.pt`` is in the format of torch before 1.6. ``named.metadata`` is the
``.metadata`` file of a distributed checkpoint of ``layer.w`` and ``layer.b``.
"""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase

import numpy as np

__all__ = ["hdf5", "npy", "npz", "safetensors", "saved", "torch_zip", "typed"]

_SAVED = Path(__file__).parent / "saved"
_ALIGNMENT = 64
_OBJECT_BYTES = 256


def saved(name: str) -> bytes:
    """Return a file that a real library wrote, such as ``state.pt``."""
    return zlib.decompress((_SAVED / f"{name}.zlib").read_bytes())


def safetensors(tensors: dict[str, bytes], *, note: str = "") -> bytes:
    """Return a safetensors file of byte tensors in this order; a note makes the header longer."""
    return typed(
        {name: ("U8", [len(tensor)], tensor) for name, tensor in tensors.items()}, note=note
    )


def typed(tensors: dict[str, tuple[str, list[int], bytes]], *, note: str = "") -> bytes:
    """Return a safetensors file of tensors of any type and shape."""
    table: dict[str, object] = {"__metadata__": {"note": note}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    blobs = [data for _, _, data in tensors.values()]
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def hdf5(
    tensors: list[bytes],
    *,
    gap_bytes: int = 0,
    names: str = ascii_lowercase,
    groups: Sequence[str] = (),
) -> bytes:
    """Return datasets of fp32 in a group of the newest kind, after headers and padding.

    The group is inside ``groups``, which are nested in this order.
    """
    begin = 96
    first = begin + _OBJECT_BYTES * (1 + len(groups))
    data_at = first + _OBJECT_BYTES * len(tensors) + gap_bytes
    parents = [
        _object([(0x06, _link(name, begin + _OBJECT_BYTES * (1 + number)))])
        for number, name in enumerate(groups)
    ]
    links, headers = [], []
    for number, (name, data) in enumerate(zip(names, tensors, strict=False)):
        links.append((0x06, _link(name, first + _OBJECT_BYTES * number)))
        kind = b"\x11\x20\x1f\x00" + struct.pack("<IHHBBBBI", 4, 0, 32, 23, 8, 0, 23, 127)
        place = b"\x03\x01" + struct.pack("<QQ", data_at, len(data))
        headers.append(_object([(0x03, kind), (0x08, place)]))
        data_at += len(data)
    superblock = b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00"
    superblock += struct.pack("<QQQQ", 0, 2**64 - 1, data_at, begin)
    parts = [superblock.ljust(begin, b"\0"), *parents, _object(links), *headers]
    return b"".join([*parts, bytes(gap_bytes), *tensors])


def _link(name: str, address: int) -> bytes:
    """Return a member of a group."""
    return b"\x01\x00" + bytes([len(name)]) + name.encode() + struct.pack("<Q", address)


def _object(messages: list[tuple[int, bytes]]) -> bytes:
    """Return an object header of version 2."""
    body = b"".join([struct.pack("<BHB", kind, len(data), 0) + data for kind, data in messages])
    return (b"OHDR\x02\x00" + struct.pack("<B", len(body)) + body).ljust(_OBJECT_BYTES, b"\0")


def npy(data: bytes) -> bytes:
    """Return an array of bytes."""
    file = io.BytesIO()
    np.save(file, np.frombuffer(data, np.uint8))
    return file.getvalue()


def npz(tensors: dict[str, bytes]) -> bytes:
    """Return arrays of bytes."""
    file = io.BytesIO()
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in tensors.items()}
    np.savez(file, **arrays)  # type: ignore[arg-type] - a name could be that of its option
    return file.getvalue()


def torch_zip(tensors: list[bytes], *, stem: str = "archive", pickle: bytes = b"pickle") -> bytes:
    """Return a file with the layout of ``torch.save``."""
    file = io.BytesIO()
    members = [("data.pkl", pickle), ("byteorder", b"little")]
    members += [(f"data/{number}", data) for number, data in enumerate(tensors)]
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in [*members, ("version", b"3\n")]:
            info = zipfile.ZipInfo(f"{stem}/{name}")
            begin = file.tell() + 30 + len(info.filename) + 4
            padding = -begin % _ALIGNMENT
            info.extra = struct.pack("<HH", 0x4246, padding) + b"Z" * padding
            archive.writestr(info, data)
    return file.getvalue()
