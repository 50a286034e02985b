"""Finds the store at a path and reads its header, or says what the path is instead."""

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import Final

from ciuic.errors import CorruptionError, StoreError, UnknownFormatError
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import read_regular
from ciuic.store.records import layout
from ciuic.store.records.header import HEADER_BYTES_MAX, Header, decode_header
from ciuic.system import nofollow

__all__ = [
    "ALLOW_SHARED",
    "read_header",
    "refuse_other_store",
    "refuse_read_only",
    "refuse_shared",
    "refuse_unmounted",
]


ALLOW_SHARED: Final = "CIUIC_ALLOW_SHARED_STORE"
"""If this environment variable is 1, ciuic uses a store that other users can write to."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_NEW_HEADER: Final = (
    "Run 'ciuic repair --apply' to restore it from its copy. If there is no copy, use the header of"
    " any store with the same chunking."
)


def read_header(store_path: str) -> Header:
    """Read and check the header of the store at ``store_path``.

    Raises:
        StoreError: There is no store, it cannot be read, or other users can write to it.
        UnknownFormatError: The store has an unknown version, or needs an unknown feature.
        CorruptionError: The header is damaged.
    """
    with store_faults("find", store_path):
        store_path = nofollow.resolved(store_path)
    path = os.path.join(store_path, layout.HEADER)
    try:
        with store_faults("read", path):
            data = read_regular(path, HEADER_BYTES_MAX)
    except StoreError as error:
        _explain_missing(store_path, error)
        raise
    refuse_shared(store_path)
    try:
        return decode_header(data)
    except CorruptionError as error:
        raise CorruptionError(f"{path}: {error.message}", hint=_NEW_HEADER) from error
    except UnknownFormatError as error:
        raise UnknownFormatError(f"{path}: {error.message}", hint=error.hint) from error


def refuse_other_store(store_path: str, store_id: str) -> None:
    """Refuse to continue if the store at the path is not the store with this ID.

    No lock ensures that it is: a disk can be mounted over the path, or the directory renamed.

    Raises:
        StoreError: The store is gone, or a different store is at its path.
    """
    if read_header(store_path).store_id != store_id:
        raise StoreError(
            f"a different store is now at {store_path}",
            hint="Mount the file system of the first store again. Packs that are missing here are"
            " not damage.",
        )


def refuse_read_only(store_path: str, header: Header) -> None:
    """Refuse to write to a store with a feature that writers must know, and that is unknown.

    Raises:
        UnknownFormatError: The store has one.
    """
    if header.problem_for_writers:
        raise UnknownFormatError(
            f"{os.path.join(store_path, layout.HEADER)}: {header.problem_for_writers}",
            hint="Use a newer version of ciuic to change it; this version lists, verifies and"
            " restores.",
        )


def refuse_shared(store_path: str, what_to_do: str = "") -> None:
    """Refuse a store that other users can write to: a restore would write what they put there.

    This checks the modes of the store's directory and of the files and directories in it. Packs and
    manifests are one level below, in directories that are checked. A missing store passes.

    Args:
        store_path: The store's directory, or the cache directory of a store in a bucket.
        what_to_do: The begin of the hint; empty: the one for a store.

    Raises:
        StoreError: Other users can write to the store, and ``ALLOW_SHARED`` is not set.
    """
    if os.environ.get(ALLOW_SHARED) == "1":
        return
    # One walk along the path: a store has a dozen files and directories.
    header = os.path.join(store_path, layout.HEADER)
    with contextlib.suppress(OSError), nofollow.opened_parent(header) as (directory, _):
        for name in (".", *_names_in(directory)):
            with contextlib.suppress(OSError):
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                if mode & _OTHERS_WRITE and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                    raise _shared(store_path, name, mode, what_to_do)


def _names_in(directory: int) -> list[str]:
    with contextlib.suppress(OSError):
        fd = os.open(".", _LIST, dir_fd=directory)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)
    return []


def _shared(store_path: str, name: str, mode: int, what_to_do: str) -> StoreError:
    place = os.path.normpath(os.path.join(store_path, name))
    what_to_do = what_to_do or f"Run 'chmod -R go-w {store_path}', then verify the store."
    return StoreError(
        f"other users can write to {place}: its mode is {stat.S_IMODE(mode):04o}",
        hint=f"{what_to_do} If sharing is intended, or the file system has no permissions, set"
        f" {ALLOW_SHARED}=1.",
    )


def _holds_snapshots(store_path: str) -> bool:
    return any(
        nofollow.is_directory(directory) and nofollow.list_names(directory)
        for directory in (
            os.path.join(store_path, layout.PACKS),
            os.path.join(store_path, layout.SNAPSHOTS),
        )
    )


def refuse_unmounted(store_path: str, environ: Mapping[str, str]) -> None:
    """Refuse to create a store on a mount point whose file system is not mounted, or below it.

    Args:
        store_path: Where the store would be.
        environ: The environment.

    Raises:
        StoreError: There is no store at the path, and a mount point at or above it is not mounted.
    """
    from ciuic.source.mounts import FSTAB, unmounted_point

    point = unmounted_point(store_path, environ)
    if point and not nofollow.exists(os.path.join(store_path, layout.HEADER)):
        raise StoreError(
            f"there is no store at {store_path}, and nothing is mounted on {point}, which {FSTAB}"
            " says is a mount point",
            hint="Mount it first: a new store would be on the disk below.",
        )


def _explain_missing(store_path: str, error: StoreError) -> None:
    """Raise an error that says what a path without a header is, if that is known."""
    if not isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
        return
    # Imported here, as above: most stores are where they should be.
    import shlex

    from ciuic.source.mounts import FSTAB, unmounted_point

    point = unmounted_point(store_path, os.environ)
    if point:
        init = f"Mount {point} first: it is in {FSTAB}, and nothing is mounted there."
    else:
        init = (
            "If there was a store, mount its disk or put its directory back; if there never was"
            f" one, 'ciuic --store {shlex.quote(store_path)} init' creates it."
        )
    if not nofollow.exists(store_path):
        raise StoreError(f"there is no store at {store_path}", hint=init) from error
    if not nofollow.is_directory(store_path):
        raise StoreError(
            f"{store_path} is a file, not a store", hint="Give the store's directory."
        ) from error
    if _holds_snapshots(store_path):
        raise CorruptionError(
            f"the store {store_path} has lost its header, {layout.HEADER}", hint=_NEW_HEADER
        ) from error
    if nofollow.is_directory(os.path.join(store_path, layout.PACKS)):
        raise StoreError(
            f"the store at {store_path} was never completely created",
            hint=f"Run 'ciuic --store {shlex.quote(store_path)} init' to finish it.",
        ) from error
    with store_faults("list", store_path):
        hint = "Give the store's directory." if nofollow.list_names(store_path) else init
    raise StoreError(f"{store_path} is a directory, but not a store", hint=hint) from error
