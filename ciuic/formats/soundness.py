"""Says whether a checkpoint file is complete, by what its own format promises.

A training that dies while it writes a checkpoint leaves a file that is cut short, or whose parts do
not belong together. The headers of each format say how long the file must be; archives have a
checksum for each member. Formats without checksums (safetensors, npy, GGUF) cannot show that bytes
in the middle are wrong.

A file of an unknown format has no fault: nothing is known about it. But a ``.safetensors`` file has
one if its header cannot be one.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Callable
from typing import Final

from ciuic.formats import gguf, hdf5, npy, safetensors, torch_legacy, zip_archive
from ciuic.formats.headers import CutShortError, Headers, ImpossibleError, NoLayoutError, Read
from ciuic.formats.spans import KIND_BYTES, MAGIC_BYTES, kind_of

__all__ = ["CHECKPOINT_SUFFIXES", "checksum_fault", "fault", "is_judged", "was_of_torch"]

CHECKPOINT_SUFFIXES: Final = (
    b".bin",
    b".ckpt",
    b".distcp",
    b".gguf",
    b".h5",
    b".hdf5",
    b".keras",
    b".npy",
    b".npz",
    b".pt",
    b".pth",
    b".safetensors",
)
"""Names that checkpoints usually have."""

_OF_TORCH: Final = (b".ckpt", b".pt", b".pth")
_SAFETENSORS: Final = b".safetensors"
_IMPOSSIBLE: Final = "its header cannot be one of safetensors"
_POINTERS: Final = (b"version https://git-lfs.github.com/", b"/annex/objects/")
"""What Git LFS and git-annex leave in place of a file that they have not fetched."""
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
_BIN_PARTS: Final = (b"model", b"optimizer", b"scheduler", b"training_args", b"sampler", b"scaler")
"""What Transformers and Accelerate write as ``.bin``. Others are often arrays without a header,
such as a data set of tokens, which may begin with zeros."""
_ARCHIVE: Final = "archive"
_ARCHIVES: Final = frozenset({"torch.save", "npz", "keras"})
_READ_BYTES_MAX: Final = 256 * 1024 * 1024
"""A directory of an archive is shorter, unless the file lies about it."""
_END: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
"""No program that writes checkpoints adds a comment."""
_PIECE_BYTES: Final = 1024 * 1024
_DEFECTS: Final = (zipfile.BadZipFile, zlib.error, EOFError)

_ENDS: Final[dict[str, Callable[[Headers], int]]] = {
    "safetensors": safetensors.end_bytes,
    "npy": npy.end_bytes,
    "gguf": gguf.end_bytes,
    "hdf5": hdf5.end_bytes,
    "torch legacy": torch_legacy.end_bytes,
}


def fault(read: Read, size_bytes: int, name: bytes) -> str:
    """Say what is wrong with a file; empty if nothing is known to be wrong.

    It reads headers and directories, and no tensors.

    Args:
        read: Reads (offset, length) of the file; returns fewer bytes at its end.
        size_bytes: Length of the file.
        name: Its name: a file that is empty or begins with zeros has a fault if it is called like a
            checkpoint.

    Raises:
        OSError: ``read`` failed.
    """
    name = name.lower()
    head = read(0, min(KIND_BYTES, size_bytes))
    kind = _kind_of(head, name)
    if kind == _ARCHIVE:
        return _archive_fault(read, size_bytes)
    if kind:
        headers = Headers(read, size_bytes, closely=True)
        return _length_fault(_ENDS[kind], headers, is_named=name.endswith(_SAFETENSORS))
    if not _is_checkpoint(name):
        return ""
    if not size_bytes:
        return "it is empty"
    if size_bytes < MAGIC_BYTES:
        return f"it is cut short: it has {size_bytes} bytes"
    if not head.strip(b"\0"):
        return "its first bytes are zeros"
    is_pointer = head.startswith(_POINTERS)
    return _IMPOSSIBLE if name.endswith(_SAFETENSORS) and not is_pointer else ""


def is_judged(read: Read, size_bytes: int, name: bytes) -> bool:
    """Return whether a file without a fault has a known format.

    Raises:
        OSError: ``read`` failed.
    """
    return bool(_kind_of(read(0, min(KIND_BYTES, size_bytes)), name.lower()))


def was_of_torch(read: Read, name: bytes) -> bool:
    """Return whether a file that is not judged is broken if it has been a sound checkpoint.

    Its name says that torch wrote it, and it is no pickle and no pointer, which a program may have
    put in its place.

    Raises:
        OSError: ``read`` failed.
    """
    head = read(0, KIND_BYTES)
    is_other = _PICKLE.match(head) is not None or head.startswith(_POINTERS)
    return name.lower().endswith(_OF_TORCH) and not is_other


def _kind_of(head: bytes, name: bytes) -> str:
    """Return ``_ARCHIVE`` or a key of ``_ENDS``; empty if the format is unknown."""
    kind = kind_of(head)
    # A short rest does not show which kind of archive it was.
    if kind in _ARCHIVES or (zip_archive.begins(head) and _is_checkpoint(name)):
        return _ARCHIVE
    return "torch legacy" if torch_legacy.begins(head) else kind


def _is_checkpoint(name: bytes) -> bool:
    if name.endswith(b".bin"):
        return any(part in name for part in _BIN_PARTS)
    return name.endswith(CHECKPOINT_SUFFIXES)


def checksum_fault(read: Read, size_bytes: int) -> str:
    """Say which member of an archive differs from its checksum; empty for other formats.

    It reads the whole file. A program may write an archive without checksums: then all are wrong,
    and none counts.

    Raises:
        OSError: ``read`` failed.
    """
    if kind_of(read(0, min(KIND_BYTES, size_bytes))) not in _ARCHIVES:
        return ""
    wrong = ""
    is_any_right = False
    try:
        with zipfile.ZipFile(_File(read, size_bytes)) as archive:
            for member in archive.infolist():
                if not member.file_size:
                    continue
                try:
                    with archive.open(member) as file:
                        while file.read(_PIECE_BYTES):
                            pass
                    is_any_right = True
                except _DEFECTS:
                    wrong = wrong or member.filename
    except _TooLongError:
        return ""
    except (*_DEFECTS, ValueError, NotImplementedError, RuntimeError):
        return _archive_fault(read, size_bytes)
    return f"its member {wrong} differs from its checksum" if wrong and is_any_right else ""


def _length_fault(end_bytes: Callable[[Headers], int], headers: Headers, *, is_named: bool) -> str:
    """``is_named``: the file is called like one of safetensors, whose first bytes prove little."""
    try:
        needed = end_bytes(headers)
    except CutShortError:
        return f"it is cut short: its headers go on after {headers.size_bytes:,} bytes"
    except ImpossibleError:
        return _IMPOSSIBLE if is_named else ""
    except NoLayoutError:
        return ""
    if headers.size_bytes < needed:
        return f"it is cut short: it has {headers.size_bytes:,} of {needed:,} bytes"
    return ""


def _archive_fault(read: Read, size_bytes: int) -> str:
    # zipfile also takes an end that is followed by something: by the rest of a second archive, in
    # a distributed checkpoint that is cut short.
    end = read(max(size_bytes - _END_BYTES, 0), _END_BYTES)
    try:
        if end.startswith(_END):
            with zipfile.ZipFile(_File(read, size_bytes)):
                return ""
    except zipfile.BadZipFile:
        pass
    except (_TooLongError, ValueError, NotImplementedError):
        return ""
    return f"it is cut short: after {size_bytes:,} bytes there is no end of the archive"


class _TooLongError(Exception):
    """An archive says that its directory is longer than any."""


class _File(io.RawIOBase):
    """Something that is read at offsets, as a file for ``zipfile``."""

    def __init__(self, read: Read, size_bytes: int) -> None:
        self._read_at = read
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise OSError("negative seek")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._size_bytes - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > _READ_BYTES_MAX:
            raise _TooLongError
        data = self._read_at(self._at, wanted) if wanted else b""
        self._at += len(data)
        return data
