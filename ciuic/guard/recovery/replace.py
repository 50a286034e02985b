"""Replaces a broken file by a version of a snapshot.

The version is restored beside the file under a temporary name, and checked there. Then the broken
file gets a hidden name, and the version its name: at each moment the name leads to one of the two.
"""

import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Final

from ciuic.drill.loading import load_checkpoint
from ciuic.errors import CorruptionError, PathNotFoundError, TargetError, UnknownFormatError
from ciuic.formats.soundness import checksum_fault, fault
from ciuic.formats.spans import KIND_BYTES, kind_of
from ciuic.guard.recovery.find import aside_name, identity_of
from ciuic.guard.recovery.report import BrokenFile, Version
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.restored import note_restored
from ciuic.store.store import Store
from ciuic.system import durable
from ciuic.system.clock import Clock
from ciuic.system.machine import this_machine

__all__ = ["BrokenVersionError", "replace"]

_WITHOUT_PROOF: Final = frozenset({"hdf5", "keras"})
"""Formats whose headers say too little: the package that reads them decides, if it is there."""


class BrokenVersionError(Exception):
    """The version of a snapshot is broken too, or cannot be read.

    Attributes:
        content: The ID of its content.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__("the version is broken too")
        self.content = content


def replace(store: Store, found: BrokenFile, clock: Clock, cancelled: Callable[[], bool]) -> None:
    """Move a broken file aside, and put its version there if it has one.

    The next snapshot of the path says which snapshot the version came from.

    If that fails, ``failure`` says why, and the file stays.

    Raises:
        BrokenVersionError: The version is broken too; the file stays.
        StoreError: The store cannot be used.
        CancelledError: ``cancelled`` turned true; the file stays.
    """
    directory, name = os.path.split(found.path)
    temporary = os.path.join(directory, b".%b.recovered-%d" % (name[:200], os.getpid()))
    try:
        version = found.version
        if version is not None:
            _restore(store, found.path, version, temporary, clock=clock, cancelled=cancelled)
        if identity_of(os.lstat(found.path)) != found.identity:
            found.failure = "it was changed meanwhile"
            return
        found.aside = _moved(found, temporary)
        if version is not None:
            note_restored(store, [found.path], version.snapshot_id, this_machine())
    except TargetError as error:
        found.failure = error.message
    except OSError as error:
        found.failure = os.strerror(error.errno or 0).lower()
    finally:
        with contextlib.suppress(OSError):
            durable.remove_file(os.fsdecode(temporary))


def _restore(
    store: Store,
    path: bytes,
    version: Version,
    place: bytes,
    *,
    clock: Clock,
    cancelled: Callable[[], bool],
) -> None:
    request = RestoreRequest((path,), place=place, overwrite=True)
    manifest = store.manifest(version.snapshot_id)
    try:
        done = restore(store, manifest, request, clock=clock, cancelled=cancelled)
    except (CorruptionError, UnknownFormatError, PathNotFoundError) as error:
        raise BrokenVersionError(version.content) from error
    if done.unwritten:
        raise TargetError(done.unwritten[0].what)
    if done.failed:
        raise BrokenVersionError(version.content)
    if _fault(path, place):
        raise BrokenVersionError(version.content)


def _fault(path: bytes, place: bytes) -> str:
    with open(place, "rb") as file:
        fd = file.fileno()
        size_bytes = os.fstat(fd).st_size

        def read(offset_bytes: int, length_bytes: int) -> bytes:
            return os.pread(fd, length_bytes, offset_bytes)

        what = fault(read, size_bytes, os.path.basename(path)) or checksum_fault(read, size_bytes)
        kind = kind_of(read(0, KIND_BYTES))
    if what or kind not in _WITHOUT_PROOF:
        return what
    loaded = load_checkpoint(path, place)
    return loaded.what if loaded is not None and loaded.is_bad else ""


def _moved(found: BrokenFile, temporary: bytes) -> bytes:
    """Move the file aside; returns its new path."""
    directory, name = os.path.split(found.path)
    for number in itertools.count(1):
        aside = os.path.join(directory, aside_name(name, number))
        try:
            durable.set_aside(
                os.fsdecode(found.path),
                os.fsdecode(aside),
                None if found.version is None else os.fsdecode(temporary),
            )
        except FileExistsError:
            continue
        return aside
    raise AssertionError("a free name is found")
