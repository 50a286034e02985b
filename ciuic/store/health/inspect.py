"""Inspects a pack on the disk: reads every byte and compares it with its checksums.

Nothing is decoded. XXH3 of each stored frame detects damage as fast as the disk reads. A frame
that fails is read a second time before it counts as damaged: cables and controllers fail
temporarily, too.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ciuic.codec import DIFFERENCES, PLANES, RAW, ZSTD
from ciuic.errors import CorruptionError, UnknownFormatError, UnreachableError
from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular
from ciuic.store.directory.pack_file import read_footer
from ciuic.store.format.pack import MAGIC, PackedFrame
from ciuic.store.health.salvage import by_offset, find_frames, frame_fault, salvage_frames
from ciuic.store.health.window import Window
from ciuic.store.records import layout

__all__ = ["BadFrame", "PackCheck", "inspect_bytes", "inspect_pack", "pack_frames"]


_CODECS: Final = frozenset([RAW, ZSTD, PLANES, *DIFFERENCES])


class BadFrame(NamedTuple):
    """A damaged range of a pack.

    Attributes:
        offset_bytes: Where it begins.
        length_bytes: Its length.
        chunks: The chunks that were stored there; empty if they are unknown, or if there were none.
        what: What is wrong with it.
        kind: ``DATA``, ``RECIPE`` or ``TREE``; 0 without chunks.
    """

    offset_bytes: int
    length_bytes: int
    chunks: tuple[ChunkId, ...]
    what: str
    kind: int = 0


class PackCheck(NamedTuple):
    """The result of inspecting a pack.

    Attributes:
        pack_id: The pack.
        read_bytes: How many bytes were read.
        footer_ok: The footer is sound and belongs to this pack.
        bad: The damaged ranges, in the order of the pack.
        what: What is wrong with the pack as a whole; empty if it is sound.
        unknown_codecs: Numbers of the codecs of frames that this version cannot decode.
        unknown: Which frames a later version wrote; empty if there are none. They are not checked.
    """

    pack_id: PackId
    read_bytes: int
    footer_ok: bool
    bad: tuple[BadFrame, ...]
    what: str
    unknown_codecs: tuple[int, ...] = ()
    unknown: str = ""


def inspect_pack(
    store_path: str, pack_id: PackId, *, cancelled: Callable[[], bool] = lambda: False
) -> PackCheck:
    """Read a whole pack and compare it with its checksums.

    Args:
        store_path: The store's directory.
        pack_id: The pack.
        cancelled: Called before each read; true ends the work.

    Raises:
        CancelledError: ``cancelled`` returned true.
        UnreachableError: The file system is not reachable.
        StoreError: The pack cannot be read for another reason. Damage is not raised.
    """
    path = os.path.join(store_path, layout.PACKS, layout.pack_name(pack_id))
    with store_faults("read", path):
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            return PackCheck(pack_id, 0, footer_ok=False, bad=(), what="it is gone")
        except UnreachableError:
            raise
        except CorruptionError:
            return PackCheck(pack_id, 0, footer_ok=False, bad=(), what="it is not a regular file")
        try:
            with Window(fd, cancelled) as window:
                return _inspect(window, pack_id)
        finally:
            os.close(fd)


def inspect_bytes(
    data: bytes, pack_id: PackId, *, cancelled: Callable[[], bool] = lambda: False
) -> PackCheck:
    """Compare a whole pack, which was read from an object store, with its checksums.

    Raises:
        CancelledError: ``cancelled`` returned true.
    """
    fd = os.memfd_create("pack")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        with Window(fd, cancelled) as window:
            return _inspect(window, pack_id)
    finally:
        os.close(fd)


def pack_frames(store_path: str, pack_id: PackId) -> list[PackedFrame]:
    """Return the frames of a pack from its footer; if that is damaged, salvage them.

    Frames that this version does not know are left out.

    Raises:
        StoreError: The pack cannot be read.
    """
    path = os.path.join(store_path, layout.PACKS, layout.pack_name(pack_id))
    with store_faults("read", path):
        fd = open_regular(path)
        try:
            return read_footer(fd, pack_id, strict=False)
        except CorruptionError:
            return salvage_frames(fd)
        finally:
            os.close(fd)


def _inspect(window: Window, pack_id: PackId) -> PackCheck:
    has_magic = _has_magic(window)
    frames, problem, end, unknown = _frames_of(window, pack_id)
    suspects = [packed for packed in frames if frame_fault(window, packed)]
    window.forget()
    bad = [_bad_frame(packed, frame_fault(window, packed)) for packed in suspects]
    bad = [frame for frame in bad if frame.what]
    if problem:
        bad += _gaps(frames, end)
    window.forget()
    if not has_magic and not _has_magic(window):
        bad.append(BadFrame(0, len(MAGIC), (), "the first bytes are not those of a pack"))
    bad.sort()
    what = problem
    if bad and not problem:
        what = (
            "a stretch of it is damaged" if len(bad) == 1 else f"{len(bad)} stretches are damaged"
        )
    codecs = tuple(sorted({packed.frame.codec for packed in frames} - _CODECS))
    return PackCheck(pack_id, window.size_bytes, not problem, tuple(bad), what, codecs, unknown)


def _has_magic(window: Window) -> bool:
    try:
        return bytes(window.view(0, len(MAGIC))) == MAGIC
    except CorruptionError:
        return False


class _Found(NamedTuple):
    """The frames of a pack, where they end, what is wrong with its footer, and ``unknown``."""

    frames: list[PackedFrame]
    problem: str
    end: int
    unknown: str


def _frames_of(window: Window, pack_id: PackId) -> _Found:
    with contextlib.suppress(CorruptionError):
        return _listed(window, pack_id)
    os.posix_fadvise(window.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        return _listed(window, pack_id)
    except CorruptionError as error:
        found = find_frames(window)
        return _Found(found.frames, error.message, found.end, found.unknown)


def _listed(window: Window, pack_id: PackId) -> _Found:
    unknown = ""
    try:
        frames = read_footer(window.fd, pack_id)
    except UnknownFormatError as error:
        unknown = error.message
        frames = read_footer(window.fd, pack_id, strict=False)
    return _Found(by_offset(frames), "", window.size_bytes, unknown)


def _bad_frame(packed: PackedFrame, what: str) -> BadFrame:
    frame = packed.frame
    chunk_ids = tuple([chunk_id for chunk_id, _ in frame.chunks])
    return BadFrame(packed.offset_bytes, frame.total_bytes, chunk_ids, what, frame.kind)


def _gaps(frames: list[PackedFrame], end: int) -> Iterator[BadFrame]:
    """Yield the ranges between salvaged frames: without a footer, a gap is damage."""
    at = len(MAGIC)
    for packed in frames:
        if packed.offset_bytes > at:
            yield BadFrame(at, packed.offset_bytes - at, (), "no valid frame found here")
        at = max(at, packed.offset_bytes + packed.frame.total_bytes)
    if end > at:
        yield BadFrame(at, end - at, (), "no valid frame found here")
