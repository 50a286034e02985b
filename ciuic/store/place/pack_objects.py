"""The packs of a store in a bucket: one object each. See ``store.place.packs``.

``store.place.fetched`` reads them in parts.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from ciuic.errors import ChunkMissingError, MissingError, StoreError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.pack import end_of, is_end
from ciuic.store.format.segment import PackEnd
from ciuic.store.place.fetched.pack import Fetching, ObjectPack
from ciuic.store.place.place import Place
from ciuic.store.place.segments.segments import Segments
from ciuic.store.place.uploads.body import FileBody
from ciuic.store.records import layout
from ciuic.store.records.damage import KnownDamage
from ciuic.system import durable

__all__ = ["PackObjects"]

_LISTED_AT_ONCE: Final = 1000
"""Keys that a server names in one answer."""
_UPLOADS_AT_ONCE: Final = 2


class PackObjects:
    """The objects in ``packs/``. See ``Packs``.

    Args:
        place: The place of the store.
        segments: Its index segments.
        path: The cache directory.
    """

    def __init__(self, place: Place, segments: Segments, path: str) -> None:
        self._place = place
        self._path = path
        self._segments = segments
        self._lock = threading.Lock()
        self._sizes: dict[PackId, int] = {}
        """From the last listing; never changed."""
        self._sizes_alone: dict[PackId, int] = {}
        """Of packs that the server was asked for one by one."""
        self._listed: dict[PackId, int] = {}
        """Lengths of packs, from index segments. Some of these packs may be gone."""
        self._damage = KnownDamage()
        self._asked = 0
        self._fetching = Fetching(path)
        self._answers = self._fetching.answers
        self._opened: WeakValueDictionary[PackId, ObjectPack] = WeakValueDictionary()
        self._pool = ThreadPoolExecutor(_UPLOADS_AT_ONCE, thread_name_prefix="upload")
        self._turns = threading.BoundedSemaphore(_UPLOADS_AT_ONCE)
        self._uploads: dict[PackId, Future[None]] = {}
        self._failure: BaseException | None = None

    def sizes(self) -> dict[PackId, int]:
        """See ``Packs``."""
        found: dict[PackId, int] = {}
        others: list[str] = []
        begun = self._answers.begin_listing()
        for listed in self._place.list(layout.PACKS):
            name = listed.name
            pack_id = layout.parse_pack_name(name)
            if pack_id is None:
                others.append(name)
            elif listed.size_bytes is not None:
                found[pack_id] = listed.size_bytes
        with self._lock:
            self._sizes = found
            self._damage = KnownDamage(others)
        self._answers.note_listing(begun, found)
        self._segments.outdate()
        return dict(found)

    def damage(self) -> KnownDamage:
        """See ``Packs``."""
        return self._damage

    def listed(self) -> dict[PackId, int]:
        """See ``Packs``."""
        found = self._segments.listed()
        with self._lock:
            self._listed = found
        return dict(found)

    def names(self) -> set[str]:
        """See ``Packs``: they may have been listed a few seconds ago, see ``LastAnswers``."""
        known = self._answers.names()
        if known is not None:
            return known
        return {layout.pack_name(pack_id) for pack_id in self.sizes()}

    def outdate(self) -> None:
        """List the packs again for the next chunk that is in none of them."""
        self._answers.outdate()

    def size_bytes(self, pack_id: PackId) -> int | None:
        """See ``Packs``; asks once for each pack, and again for a missing one after a while."""
        if self._answers.is_missing(pack_id):
            return None
        with self._lock:
            known = self._sizes.get(pack_id) or self._sizes_alone.get(pack_id)
            self._asked += known is None
            is_cheaper_listed = 0 < len(self._listed) < self._asked * _LISTED_AT_ONCE
        if known is not None:
            return known
        if is_cheaper_listed:
            self._listed = {}
            return self.sizes().get(pack_id)
        self._wait_for(pack_id)
        try:
            size_bytes = self._place.size_bytes(_key(pack_id))
        except MissingError:
            self._answers.note_missing(pack_id)
            return None
        with self._lock:
            self._sizes_alone[pack_id] = size_bytes
        return size_bytes

    def open(self, pack_id: PackId) -> ObjectPack:
        """See ``Packs``; all readers share what was fetched."""
        listed = None if self._answers.is_missing(pack_id) else self._listed.get(pack_id)
        size_bytes = listed or self.size_bytes(pack_id)
        if size_bytes is None:
            raise ChunkMissingError(f"pack {pack_id.hex()[:12]} is gone")
        with self._lock:  # one pack, although two readers open it at once
            pack = self._opened.get(pack_id)
            if pack is None:
                pack = self._opened[pack_id] = ObjectPack(
                    self._place,
                    _key(pack_id),
                    pack_id,
                    size_bytes,
                    segments=self._segments,
                    fetching=self._fetching,
                )
            return pack

    def publish(self, path: str, pack_id: PackId, *, is_direct: bool) -> None:
        """See ``PackUploads``.

        Raises:
            StoreError: The file cannot be read, or an earlier upload has failed.
        """
        self._turns.acquire()
        try:
            self._raise_failure()
            with contextlib.ExitStack() as stack:
                with store_faults("read", path):
                    file = stack.enter_context(open(path, "rb", buffering=0))
                    body = FileBody(file, os.fstat(file.fileno()).st_size)
                end = PackEnd(pack_id, body.size_bytes, _end_of(body, pack_id, path))
                if is_direct:
                    put = partial(self._place.put_file, _key(pack_id), body)
                else:
                    # It may not be on the disk yet. If it cannot be written there, the kernel may
                    # drop it, and a later read finds what the disk had before.
                    put = partial(self._place.put, _key(pack_id), body.read())
                    stack.close()
                with self._lock:
                    upload = self._pool.submit(self._upload, end, put, stack.pop_all())
                    self._uploads[pack_id] = upload
        except BaseException:
            self._turns.release()
            raise
        with store_faults("remove", path):
            durable.remove_file(path)

    def sync(self) -> None:
        """Wait until every pack is uploaded, which makes it durable, and list them in a segment.

        Raises:
            StoreError: Not all are; every later call raises this, too.
        """
        with self._lock:
            uploads = list(self._uploads.values())
        for upload in uploads:
            self._failure = upload.exception() or self._failure
        self._raise_failure()
        with self._lock:
            self._uploads = {}
        self._segments.publish()

    def close(self) -> None:
        """See ``Packs``."""
        self._fetching.close()

    def _upload(self, end: PackEnd, put: Callable[[], None], opened: contextlib.ExitStack) -> None:
        try:
            with opened:
                self._raise_failure()
                put()
            self._segments.add(*end)
            self._answers.outdate()
        except StoreError as error:
            self._failure = error
            raise
        finally:
            self._turns.release()

    def _wait_for(self, pack_id: PackId) -> None:
        with self._lock:
            upload = self._uploads.get(pack_id)
        if upload is not None:
            upload.exception()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _end_of(body: FileBody, pack_id: PackId, path: str) -> bytes:
    """Return footer and trailer of a pack.

    Raises:
        StoreError: The file does not end as this pack does.
    """
    end = end_of(body.read_at, body.size_bytes)
    if not is_end(end, pack_id, body.size_bytes):
        raise StoreError(f"{path} was changed or cut before it was uploaded")
    return end


def _key(pack_id: PackId) -> str:
    return f"{layout.PACKS}/{layout.pack_name(pack_id)}"
