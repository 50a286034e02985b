"""The packs of a store in a bucket: one object each. See ``store.place.packs``.

``store.place.fetched`` reads them in parts.
"""

import contextlib
import functools
import mmap
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final
from weakref import WeakValueDictionary

from ciuic.errors import ChunkMissingError, MissingError, StoreError
from ciuic.ids import PackId
from ciuic.source.mounts import is_on_local_disk
from ciuic.store.directory.faults import store_faults
from ciuic.store.place.fetched.pack import Fetching, ObjectPack
from ciuic.store.place.place import Place
from ciuic.store.place.segments.segments import Segments
from ciuic.store.records import layout
from ciuic.system import durable

__all__ = ["PackObjects"]

_LISTED_AT_ONCE: Final = 1000
"""Keys that a server names in one answer."""
_UPLOADS_AT_ONCE: Final = 2
_READ_BYTES: Final = 1024 * 1024
_DROP_S: Final = 0.02
"""A pack is hashed, and then sent, at about 10 to 30 MB in this time."""


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
        begun = self._answers.begin_listing()
        for listed in self._place.list(layout.PACKS):
            pack_id = layout.parse_pack_name(listed.key.rpartition("/")[2])
            if pack_id is not None and listed.size_bytes is not None:
                found[pack_id] = listed.size_bytes
        with self._lock:
            self._sizes = found
        self._answers.note_listing(begun, found)
        self._segments.outdate()
        return dict(found)

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
        # First the turn, then the content: a pack is up to 64 MiB.
        self._turns.acquire()
        try:
            self._raise_failure()
            with store_faults("read", path):
                data = _mapped(path) if is_direct and self._is_on_local_disk else _read(path)
            with self._lock:
                self._uploads[pack_id] = self._pool.submit(self._upload, pack_id, data)
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

    @functools.cached_property
    def _is_on_local_disk(self) -> bool:
        return is_on_local_disk(self._path)

    def _upload(self, pack_id: PackId, data: memoryview) -> None:
        try:
            self._raise_failure()
            with _dropping_pages(data):
                self._place.put(_key(pack_id), data)
                self._segments.add(pack_id, data)
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


def _mapped(path: str) -> memoryview:
    """Map a pack: its pages belong to the page cache, where the kernel can drop them.

    An error of the disk in a mapping would end the process, so the pack is read once before. This
    is for a disk that rarely fails: the kernel may drop pages and read them again.
    """
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(_READ_BYTES)
        while file.readinto(buffer):
            pass
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@contextlib.contextmanager
def _dropping_pages(data: memoryview) -> Iterator[None]:
    """Unmap the pages of a mapped pack again and again while the client walks through it.

    They stay in the page cache. What is walked through again is mapped again, without a read.
    """
    mapping = data.obj
    if not isinstance(mapping, mmap.mmap):
        yield
        return
    is_sent = threading.Event()

    def drop() -> None:
        while not is_sent.wait(_DROP_S):
            mapping.madvise(mmap.MADV_DONTNEED)

    dropping = threading.Thread(target=drop, name="drop", daemon=True)
    with contextlib.suppress(RuntimeError):  # no more threads can be started: nothing is dropped
        dropping.start()
    try:
        yield
    finally:
        is_sent.set()
        if dropping.ident is not None:
            dropping.join()


def _read(path: str) -> memoryview:
    """Read a pack to memory: a server may fail, and what is not on the disk yet may be lost."""
    with open(path, "rb", buffering=0) as file:
        return memoryview(file.read())


def _key(pack_id: PackId) -> str:
    return f"{layout.PACKS}/{layout.pack_name(pack_id)}"
