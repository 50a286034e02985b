"""The directory that a machine keeps for a store in a bucket.

It has the chunk index, copies of manifests, marks and index segments, locks, unfinished packs and
the control socket of a daemon. It may be deleted at any time. It has no header, so that no program
takes it for a store; the bucket's own header is in it under another name.
"""

import contextlib
import errno
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ciuic.errors import CiuicError, MissingError, StoreError, StoreFullError
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.find import refuse_shared
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.locks import WriteLocks
from ciuic.store.directory.ownership import is_foreign
from ciuic.store.records import layout
from ciuic.store.records.header import decode_header
from ciuic.system import durable, nofollow
from ciuic.system.hashing import derived_hash
from ciuic.system.trust import user_text

__all__ = [
    "KeptHeader",
    "StaleHeaderError",
    "cache_directory",
    "explained_faults",
    "keep_header",
    "kept_headers",
    "only_kept_header",
    "prepare_cache",
    "refuse_others",
    "refuse_vanished",
]

_SYSTEM_CACHE: Final = "/var/cache"
_NAME_DIGITS: Final = 8
_ELSEWHERE: Final = "Set XDG_CACHE_HOME to a directory that this user can write to, or unset it."
_FULL: Final = (
    "Free space there, or set XDG_CACHE_HOME to a directory on another disk: the store is in a"
    " bucket, and this machine keeps a part of it."
)
_NO_PLACE: Final = frozenset({errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS})
_MAX: Final = 1024 * 1024
_OF_A_STORE: Final = (layout.PARITY, layout.CONDEMNED, layout.VERDICTS, layout.COPIES)
"""Directories that say something about one store alone, besides those that are always cleared."""


def cache_directory(environment: Mapping[str, str]) -> str:
    """Return the directory for what this machine keeps of stores in buckets."""
    asked = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(asked):
        return os.path.join(asked, "ciuic")
    if os.geteuid() == 0:
        return os.path.join(_SYSTEM_CACHE, "ciuic")
    return os.path.join(os.path.expanduser("~"), ".cache", "ciuic")


@contextlib.contextmanager
def explained_faults(environment: Mapping[str, str]) -> Iterator[None]:
    """Have errors of the cache directory's disk advise about it, and not about the store's disk."""
    try:
        yield
    except StoreError as error:
        cause = error.__cause__
        if isinstance(error, StoreFullError):
            hint = _FULL
        elif isinstance(cause, OSError) and cause.errno in _NO_PLACE:
            hint = _ELSEWHERE
        else:
            raise
        if os.path.realpath(cache_directory(environment)) not in error.message:
            raise
        explained = type(error)(error.message, hint=hint)
        explained.done = error.done
        raise explained from cause


def prepare_cache(environment: Mapping[str, str], name: str, store_id: str) -> str:
    """Make the directory of a store; what belongs to another store is removed.

    Two buckets that claim the same ID, such as one and its clone, have a directory each.

    Args:
        environment: The environment variables.
        name: The address of the store.
        store_id: Its ID.

    Returns:
        The directory.

    Raises:
        BusyError: It belongs to another store, and a process of this machine writes to that.
        StoreError: The directory cannot be made, or other users can write to it.
    """
    digits = derived_hash("ciuic cache of a bucket", name.encode()).hex()[:_NAME_DIGITS]
    path = _made(os.path.join(cache_directory(environment), f"{store_id}-{digits}"))
    refuse_others(path)
    about = f"{store_id} {name}\n".encode()
    folder = Folder(path)
    # Also if only the address differs: another bucket can claim the ID of this store.
    is_other = folder.has(layout.CACHE) and folder.read(layout.CACHE, 4096) != about
    if _has_header_of_another(folder, store_id):
        # Its manifests would count as lost by this store, and would be put back into it.
        _clear(path, name, _OF_A_STORE)
    elif is_other:
        _clear(path, name)
    if not folder.has(layout.CACHE):
        folder.replace(layout.CACHE, about)
    return path


def refuse_others(path: str) -> None:
    """Refuse a directory of another user: it has the chunk index, and manifests to put back.

    Raises:
        StoreError: It is, or other users can write to it.
    """
    with store_faults("look at", path):
        owner = nofollow.status(path).st_uid
    if owner != os.geteuid() and (is_foreign(path) or not os.access(path, os.W_OK)):
        raise StoreError(
            f"the cache directory {path} belongs to user {user_text(owner)}, and ciuic runs as"
            f" {user_text(os.geteuid())}",
            hint=_ELSEWHERE,
        )
    refuse_shared(
        path,
        f"Run 'rm -r {path}' while no command and no daemon uses the store: the bucket has what"
        " ciuic needs.",
    )


class StaleHeaderError(StoreError):
    """The header of a store is not what this machine kept of it: open it again, and read it."""


def _made(path: str) -> str:
    """Make the directory, and those in it; return its path without symlinks."""
    with store_faults("make", path):
        path = nofollow.resolved(path)
        inner = (os.path.join(path, name) for name in (layout.TEMPORARY, layout.SNAPSHOTS))
        for each in (*_missing_parents(os.path.dirname(path)), path, *inner):
            if not nofollow.is_directory(each):
                durable.make_directory(each, 0o700)
    return path


class KeptHeader(NamedTuple):
    """The header of a store in a bucket, as this machine has last read it.

    Attributes:
        path: The cache directory of the store.
        data: Its bytes.
        manifests: The names of the manifests that this machine has of the store.
    """

    path: str
    data: bytes
    manifests: frozenset[str]


def keep_header(path: str, data: bytes) -> None:
    """Keep the header of a store in its cache directory: ``repair`` writes it again from there."""
    folder = Folder(path)
    with contextlib.suppress(StoreError):
        if not folder.has(layout.HEADER_COPY) or folder.read(layout.HEADER_COPY, _MAX) != data:
            folder.replace(layout.HEADER_COPY, data)


def kept_headers(environment: Mapping[str, str], name: str) -> Iterator[KeptHeader]:
    """Yield the sound headers that this machine keeps of stores at an address."""
    caches = cache_directory(environment)
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(nofollow.list_names(caches))
    for one in names:
        path = os.path.join(caches, one)
        with contextlib.suppress(OSError, StoreError):
            data = Folder(path).read(layout.HEADER_COPY, _MAX)
            about = f"{decode_header(data).store_id} {name}\n".encode()
            if Folder(path).read(layout.CACHE, _MAX) == about:
                manifests = Folder(path, layout.SNAPSHOTS).names(layout.parse_manifest_name)
                yield KeptHeader(path, data, frozenset(map(layout.manifest_name, manifests)))


def only_kept_header(environment: Mapping[str, str], name: str) -> bytes | None:
    """Return the header that this machine keeps of the store at an address.

    Returns:
        None: it has none, or those of several stores that were there in turn.
    """
    kept = list(kept_headers(environment, name))
    return kept[0].data if len(kept) == 1 else None


def _missing_parents(directory: str) -> Iterator[str]:
    if not nofollow.is_directory(directory):
        yield from _missing_parents(os.path.dirname(directory))
        yield directory


def _has_header_of_another(folder: Folder, store_id: str) -> bool:
    """Return whether the directory was copied from that of another store."""
    with contextlib.suppress(OSError, CiuicError):
        return decode_header(folder.read(layout.HEADER_COPY, _MAX)).store_id != store_id
    return False


def _clear(path: str, name: str, more: Iterable[str] = ()) -> None:
    lock = WriteLocks(path, name)
    lock.take_alone()
    try:
        for one in more:
            records = Folder(path, one)
            records.remove_all(records.names(lambda one: one))
        snapshots = Folder(path, layout.SNAPSHOTS)
        snapshots.remove_all(map(layout.manifest_name, snapshots.names(layout.parse_manifest_name)))
        marks = Folder(path, layout.MARKS)
        marks.remove_all(layout.mark_name(*mark) for mark in marks.names(layout.parse_mark_name))
        segments = Folder(path, layout.SEGMENTS)
        segments.remove_all(segments.names(layout.parse_segment_name))
        top = Folder(path)
        top.remove_all(
            [
                layout.CACHE,
                layout.HEADER_COPY,
                layout.CATALOG,
                *(layout.CATALOG + s for s in layout.CATALOG_SUFFIXES),
            ]
        )
    finally:
        lock.release()


def refuse_vanished(environment: Mapping[str, str], name: str, why: StoreError) -> None:
    """Refuse an address without a store, if this machine has used one there.

    Args:
        environment: The environment variables.
        name: The address.
        why: The error that was met there; if it is not that the header is missing, nothing is done.

    Raises:
        StoreError: That is so.
    """
    kept = next(kept_headers(environment, name), None)
    if kept is None or not isinstance(why.__cause__, MissingError):
        return
    store_id, place = decode_header(kept.data).store_id, shlex.quote(name)
    raise StoreError(
        f"there is no store at {name} any more: this machine has used store {store_id[:8]} there",
        hint="Check the prefix, and whether the bucket was emptied: older versions of its objects"
        f" can bring it back. 'ciuic --store COPY copy --to {place} --init' brings back the"
        f" snapshots of a copy, and 'ciuic --store {place} init' creates a new, empty store.",
    ) from why.__cause__
