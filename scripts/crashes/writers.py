"""Programs that write files all the time; each file shows whether a version is whole or torn.

    atomic    writes a new version under a temporary name, then renames it over the old one
    in place  opens the file, writes it again from the start in several calls, closes it
    append    opens a log, adds one record in two calls, closes it
    mapped    maps the file, changes all of it, unmaps it

A file is a sequence of records. A record is its length, the SHA-256 of its body, and the body. So
bytes that were read during a write, or across two writes, are not a sequence of records. A version
of the first two kinds is one record that ends at the end of the file.
"""

import hashlib
import mmap
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["KINDS", "TEMPORARY", "is_whole", "kind_of", "record", "write_forever"]

_HEAD: Final = struct.Struct(">Q32s")
TEMPORARY: Final = ".tmp"
_SMALL_BYTES: Final = 100
_LARGE_BYTES: Final = 3 * 1024 * 1024
_HUGE_BYTES: Final = 24 * 1024 * 1024
_LOG_BYTES: Final = 2 * 1024 * 1024
_FILES: Final = 12
_PAUSE_S: Final = 0.02
_STEP_BYTES: Final = 64 * 1024


def record(rng: random.Random, size_bytes: int) -> bytes:
    """Return a record of this total size."""
    body = rng.randbytes(max(0, size_bytes - _HEAD.size))
    return _HEAD.pack(len(body), hashlib.sha256(body).digest()) + body


def is_whole(data: bytes) -> bool:
    """Return whether the data is a sequence of complete records."""
    view = memoryview(data)
    if not view:
        return False
    while view:
        if len(view) < _HEAD.size:
            return False
        length, digest = _HEAD.unpack_from(view)
        body = view[_HEAD.size : _HEAD.size + length]
        if len(body) != length or hashlib.sha256(body).digest() != digest:
            return False
        view = view[_HEAD.size + length :]
    return True


def kind_of(path: Path) -> str:
    """Return the kind of writer of a file; temporary files are a kind of their own."""
    return "temporary" if path.name.endswith(TEMPORARY) else path.parent.name


def write_forever(kind: str, top: Path, seed: str, count: Callable[[], None]) -> None:
    """Write until the process is killed; call ``count`` for each version."""
    rng = random.Random(f"{seed} {kind}")
    directory = top / kind
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        path = directory / f"{rng.randrange(_FILES)}.bin"
        _WRITERS[kind](path, rng)
        count()
        time.sleep(rng.random() * _PAUSE_S)


def _size(rng: random.Random) -> int:
    """Return a size, log-uniform from small to large; one percent are huge."""
    if rng.random() < 0.01:
        return rng.randrange(_LARGE_BYTES, _HUGE_BYTES)
    return int(_SMALL_BYTES * (_LARGE_BYTES / _SMALL_BYTES) ** rng.random())


def _write(fd: int, data: bytes, rng: random.Random) -> None:
    """Write in several calls, with random pauses."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[: rng.randint(1, max(_STEP_BYTES, len(data) // 4))]) :]
        if rng.random() < 0.2:
            time.sleep(rng.random() * _PAUSE_S)


def _atomic(path: Path, rng: random.Random) -> None:
    temporary = path.with_suffix(TEMPORARY)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _write(fd, record(rng, _size(rng)), rng)
        if rng.random() < 0.5:
            os.fsync(fd)
    finally:
        os.close(fd)
    if rng.random() < 0.2 and path.exists():
        # A backup like that of mv --backup: a second name of the old version.
        backup = path.with_suffix(".link")
        os.link(path, backup)
        backup.replace(path.with_suffix(".old"))
        backup.unlink(missing_ok=True)
    temporary.replace(path)


def _in_place(path: Path, rng: random.Random) -> None:
    data = record(rng, _size(rng))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        if rng.random() < 0.5:
            os.ftruncate(fd, 0)
        _write(fd, data, rng)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _append(path: Path, rng: random.Random) -> None:
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.unlink()
    data = record(rng, rng.randrange(_SMALL_BYTES, 2 * _STEP_BYTES))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        half = rng.randrange(1, len(data))
        os.write(fd, data[:half])
        time.sleep(rng.random() * _PAUSE_S)
        os.write(fd, data[half:])
    finally:
        os.close(fd)


def _mapped(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size if path.exists() else _size(rng)
    data = record(rng, size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size) as mapped:
            half = rng.randrange(1, size)
            mapped[half:] = data[half:]
            time.sleep(rng.random() * _PAUSE_S)
            mapped[:half] = data[:half]
    finally:
        os.close(fd)


_WRITERS: Final[dict[str, Callable[[Path, random.Random], None]]] = {
    "atomic": _atomic,
    "in place": _in_place,
    "append": _append,
    "mapped": _mapped,
}
KINDS: Final = tuple(_WRITERS)
