"""Files of tensors: made here as the formats say, and kept as the real libraries wrote them.

``saved/`` has what torch 2.13, safetensors 0.8, gguf, h5py 3.16 and numpy 2 wrote of one state:
``w``, 200 by 150 of fp32, ``b``, five numbers, ``h``, 300 by 200 of bf16; all zeros but the first
and the last element of ``w`` (1, 2) and of ``h`` (3, 4); and a model of Keras 3.15 with ``w``.
"""

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

__all__ = ["npy", "npz", "safetensors", "saved", "torch_zip", "typed"]

_SAVED = Path(__file__).parent / "saved"
_ALIGNMENT = 64


def saved(name: str) -> bytes:
    """A file that a real library wrote: ``state.pt``, for one."""
    return zlib.decompress((_SAVED / f"{name}.zlib").read_bytes())


def safetensors(tensors: dict[str, bytes], *, note: str = "") -> bytes:
    """Tensors of bytes in this order; a note makes the header longer."""
    return typed({name: ("U8", [len(one)], one) for name, one in tensors.items()}, note=note)


def typed(tensors: dict[str, tuple[str, list[int], bytes]], *, note: str = "") -> bytes:
    """The same for tensors of any type and shape."""
    table: dict[str, object] = {"__metadata__": {"note": note}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    blobs = [data for _, _, data in tensors.values()]
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def npy(data: bytes) -> bytes:
    """An array of bytes."""
    file = io.BytesIO()
    np.save(file, np.frombuffer(data, np.uint8))
    return file.getvalue()


def npz(tensors: dict[str, bytes]) -> bytes:
    """Arrays of bytes."""
    file = io.BytesIO()
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in tensors.items()}
    np.savez(file, **arrays)  # type: ignore[arg-type] - a name could be that of its option
    return file.getvalue()


def torch_zip(tensors: list[bytes], *, stem: str = "archive", pickle: bytes = b"pickle") -> bytes:
    """What ``torch.save`` writes, as far as its layout goes."""
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
