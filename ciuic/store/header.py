"""The store's own record: format version, required features, how files are cut.

docs/format.md, "Header". It is written last when a store is made: a directory without one is
not a store yet.
"""

import contextlib
import os
import re
import stat
from typing import Final

import msgspec

from ciuic.errors import CorruptionError, StoreError, UnknownFormatError
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import read_regular
from ciuic.store.sealed import seal, unseal

__all__ = [
    "ALLOW_SHARED",
    "CHUNK_BYTES_DEFAULT",
    "CONTENT",
    "FIXED",
    "FORMAT",
    "KINDS",
    "TENSORS",
    "Chunking",
    "Header",
    "read_header",
    "refuse_shared",
]

FORMAT: Final = 1
FIXED: Final = "fixed"
TENSORS: Final = "tensors"
CONTENT: Final = "content"
KINDS: Final = (FIXED, TENSORS, CONTENT)
KNOWN_FEATURES: Final[frozenset[str]] = frozenset()
CHUNK_BYTES_DEFAULT: Final = 1024 * 1024
_CHUNK_BYTES_MIN: Final = 4096
_CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024
_AVERAGE_BYTES_MIN: Final = 256
_AVERAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_LEAST_BYTES_MIN: Final = 64
_LEAST_BYTES_MAX: Final = 1024 * 1024
_HEADER_BYTES_MAX: Final = 1024 * 1024
_STORE_ID: Final = re.compile(r"[0-9a-f]{32}")

ALLOW_SHARED: Final = "CIUIC_ALLOW_SHARED_STORE"
"""Set to 1 in the environment, a store is used although other users can write to it."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_NEW_HEADER: Final = (
    "Run 'ciuic repair' to put its copy back; without one, the header of any store with the same"
    " chunking serves."
)


class Chunking(msgspec.Struct, frozen=True, omit_defaults=True):
    """How files are cut.

    Attributes:
        kind: ``FIXED``, at every multiple of ``size_bytes``; ``TENSORS``, files of tensors at
            their tensors' ends and all others likewise; or ``CONTENT``, these others by their
            content, unless programs write into their middle: ``ciuic.chunking``.
        size_bytes: No chunk is longer.
        average_bytes: Of what is cut by content, a power of two; 0: nothing is.
        least_bytes: Likewise: none is shorter.
    """

    kind: str
    size_bytes: int
    average_bytes: int = 0
    least_bytes: int = 0

    @classmethod
    def of(
        cls, kind: str, size_bytes: int, average_bytes: int = 0, least_bytes: int = 0
    ) -> "Chunking":
        """With what a store gets if nothing is said: half, and a quarter of that."""
        if kind != CONTENT:
            return cls(kind, size_bytes, average_bytes, least_bytes)
        average = average_bytes or min(_power_below(size_bytes) // 2, _AVERAGE_BYTES_MAX)
        least = least_bytes or min(_power_below(average) // 4, _LEAST_BYTES_MAX)
        return cls(kind, size_bytes, average, least)

    @property
    def problem(self) -> str:
        """What a store can't be cut by; empty: it can."""
        if self.kind not in KINDS:
            return f"chunking '{self.kind}' is not known"
        if not _CHUNK_BYTES_MIN <= self.size_bytes <= _CHUNK_BYTES_MAX:
            return f"a chunk size of {self.size_bytes} bytes is not between 4 KiB and 16 MiB"
        if self.kind != CONTENT:
            return ""
        average, least = self.average_bytes, self.least_bytes
        if not _AVERAGE_BYTES_MIN <= average <= _AVERAGE_BYTES_MAX or average.bit_count() != 1:
            return f"an average of {average} bytes is no power of two between 256 B and 4 MiB"
        if not _LEAST_BYTES_MIN <= least <= _LEAST_BYTES_MAX or least.bit_count() != 1:
            return f"a least length of {least} bytes is no power of two between 64 B and 1 MiB"
        if not least <= average <= self.size_bytes:
            return f"least length {least}, average {average}, longest {self.size_bytes} don't rise"
        return ""


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


class Header(msgspec.Struct, frozen=True):
    """See docs/format.md, "Header"."""

    format: int
    required: list[str]
    store_id: str
    created: str
    chunking: Chunking
    checksum: str = ""

    def encode(self) -> bytes:
        """The header file."""
        return seal(self)


class _Version(msgspec.Struct):
    format: int
    required: list[str] = []


def read_header(store_path: str) -> Header:
    """Read and check the header of the store at ``store_path``.

    Raises:
        StoreError: There is no store, it can't be read, or other users can write to it.
        UnknownFormatError: It is of a version, or needs a feature, that is not known here.
        CorruptionError: The header is damaged.
    """
    path = os.path.join(store_path, layout.HEADER)
    try:
        with store_faults("read", path):
            data = read_regular(path, _HEADER_BYTES_MAX)
    except StoreError as error:
        _explain_missing(store_path, error)
        raise
    refuse_shared(store_path)
    # Before the checksum: a later version may seal its header in another way.
    try:
        version = msgspec.json.decode(data, type=_Version)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(
            f"{path} is not a store's header: {error}", hint=_NEW_HEADER
        ) from error
    if version.format != FORMAT:
        raise UnknownFormatError(
            f"the store {store_path} has format {version.format}; this ciuic knows {FORMAT}"
        )
    unknown = sorted(set(version.required) - KNOWN_FEATURES)
    if unknown:
        raise UnknownFormatError(f"the store {store_path} needs the feature '{unknown[0]}'")
    try:
        header = unseal(data, Header)
    except CorruptionError as error:
        raise CorruptionError(f"{path}: {error.message}", hint=_NEW_HEADER) from error
    if _STORE_ID.fullmatch(header.store_id) is None:
        raise CorruptionError(f"{path}: {header.store_id!r} is not a store's ID", hint=_NEW_HEADER)
    problem = header.chunking.problem
    if problem:
        raise UnknownFormatError(f"{path}: {problem}")
    return header


def refuse_shared(store_path: str) -> None:
    """Refuse a store in which other users could plant what a restore then writes as this user.

    Looked at are its directory and what stands in it; packs and manifests lie one level below, in
    directories that are looked at. Harmless where nothing is there yet.

    Raises:
        StoreError: Others can write to it, and nobody has said that this is meant.
    """
    if os.environ.get(ALLOW_SHARED) == "1":
        return
    for place in (store_path, *_inside(store_path)):
        with contextlib.suppress(OSError):
            mode = os.stat(place).st_mode
            if mode & _OTHERS_WRITE and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise StoreError(
                    f"other users can write to {place}: its mode is {stat.S_IMODE(mode):04o}",
                    hint=f"Run 'chmod -R go-w {store_path}', and verify what is in it; or, if that"
                    f" is meant or its file system has no modes, set {ALLOW_SHARED}=1.",
                )


def _inside(store_path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [os.path.join(store_path, name) for name in sorted(os.listdir(store_path))]
    return []


def _holds_snapshots(store_path: str) -> bool:
    return any(
        os.path.isdir(directory) and os.listdir(directory)
        for directory in (
            os.path.join(store_path, layout.PACKS),
            os.path.join(store_path, layout.SNAPSHOTS),
        )
    )


def _explain_missing(store_path: str, error: StoreError) -> None:
    """Say what a path without a header is, when that is known."""
    if not isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
        return
    init = f"Run 'ciuic --store {store_path} init' to make a store there."
    if not os.path.lexists(store_path):
        raise StoreError(f"there is no store at {store_path}", hint=init) from error
    if not os.path.isdir(store_path):
        raise StoreError(
            f"{store_path} is a file, not a store", hint="Give the store's directory."
        ) from error
    if _holds_snapshots(store_path):
        raise CorruptionError(
            f"the store {store_path} has lost its header, {layout.HEADER}", hint=_NEW_HEADER
        ) from error
    if os.path.isdir(os.path.join(store_path, layout.PACKS)):
        raise StoreError(
            f"the store at {store_path} was not finished being created",
            hint=f"Run 'ciuic --store {store_path} init' to finish it.",
        ) from error
    with store_faults("list", store_path):
        hint = "Give the store's directory." if os.listdir(store_path) else init
    raise StoreError(f"{store_path} is a directory, but not a store", hint=hint) from error
