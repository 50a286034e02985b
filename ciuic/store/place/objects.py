"""A place in an object store: S3, Google Cloud Storage, Azure, through the package obstore.

ciuic repeats a request that is not answered, for a bounded time (``Retries``). A repeated
conditional write may find what an earlier attempt wrote, so the object's content decides.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import obstore
from obstore.store import ObjectStore

from ciuic.errors import (
    AccessDeniedError,
    CorruptionError,
    LostRaceError,
    MissingError,
    StoreError,
)
from ciuic.store.place.answers import CLIENT_ERRORS, sorted_error
from ciuic.store.place.keys import check_folder, check_key, is_key
from ciuic.store.place.merged import Merged, merged_ranges
from ciuic.store.place.place import Body, ByteRange, Found, Listed, Version
from ciuic.store.place.retries import PATIENCE_S, Retries, TransientError
from ciuic.system.clock import Clock, SystemClock

__all__ = ["Clients", "FileSender", "ObjectPlace"]

T = TypeVar("T")

_QUICK_BYTES_MAX: Final = 1024 * 1024
_PAGE: Final = 1000
_REQUESTS_AT_ONCE: Final = 8
_DELETED_AT_ONCE: Final = 1000
_LOOK_S: Final = 10.0
"""During an upload: time between two looks at the server."""
_MISSES_MAX: Final = 2
"""An upload is given up when this many looks in turn had no answer, and nothing was sent between
them if that is known."""


class FileSender(Protocol):
    """Sends files from the disk: see ``FileUploads``."""

    def send(self, key: str, body: Body, *, wait_s: float, look: Callable[[int], None]) -> bool:
        """Create or replace an object; False: the client is to do it."""
        ...


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of the same bucket with different time limits.

    Attributes:
        quick: For requests and answers of up to 1 MiB: a short limit in total.
        reading: For larger answers: a limit on each pause within the answer.
        writing: For larger requests: a long limit in total; see ``_put_watched``.
        files: Returns what sends files; None: ``writing`` sends their content from memory.
    """

    quick: ObjectStore
    reading: ObjectStore
    writing: ObjectStore
    files: Callable[[], FileSender] | None = None


class ObjectPlace:
    """The objects below a prefix of a bucket. See ``Place``."""

    def __init__(
        self,
        name: str,
        clients: Clients,
        *,
        renewed: Callable[[], Clients | None] | None = None,
        key_source: str = "",
        server: str = "",
        clock: Clock | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Open the place; no request is sent.

        Args:
            name: Its URL, without credentials.
            clients: Clients whose prefix is the place.
            renewed: Called when the server refuses the credentials. Returns clients with others,
                or None if there are no others.
            key_source: What has named the access key: a file or a variable; empty: unknown.
            server: The server's URL, for messages; empty: that of the service.
            clock: Measures and makes the pauses between attempts.
            patience_s: No attempt begins later than this after the first one has failed.
        """
        self._name = name.rstrip("/")
        self._clients = clients
        self._renewed = renewed
        self._renewal = threading.Lock()
        self._key_source = key_source
        self._server = server
        self._retries = Retries(clock or SystemClock(), patience_s, self._name)
        self._pool = ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="ranges")
        self._bare_tags = False
        """The server compares entity tags without their quotes, as Ceph does."""

    def __repr__(self) -> str:
        # The clients' own texts may have credentials in a later version.
        return f"ObjectPlace({self._name!r})"

    @property
    def name(self) -> str:
        """See ``Place``."""
        return self._name

    def get(self, key: str, bytes_max: int) -> bytes:
        """See ``Place``."""
        return self._run("read", key, lambda: self._get(key, bytes_max)).data

    def get_versioned(self, key: str, bytes_max: int) -> Found:
        """See ``Place``."""
        found = self._run("read", key, lambda: self._get(key, bytes_max + 1))
        if len(found.data) > bytes_max:
            raise CorruptionError(f"{self._url(key)} is larger than {bytes_max:,} bytes")
        return found

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes | memoryview]:
        """See ``Place``."""
        check_key(key)
        groups = merged_ranges(ranges)
        parts: list[bytes | memoryview] = [b""] * len(ranges)

        def fetch(group: Merged) -> None:
            data = self._run("read", key, lambda: self._get_range(key, group.whole))
            if len(data) != group.whole.length_bytes:
                raise CorruptionError(
                    f"{self._url(key)} ends before byte {group.whole.end_bytes:,}"
                )
            for position in group.positions:
                wanted = ranges[position]
                begin = wanted.begin_bytes - group.whole.begin_bytes
                parts[position] = data[begin : begin + wanted.length_bytes]

        if len(groups) == 1:
            fetch(groups[0])
        else:
            for done in [self._pool.submit(fetch, group) for group in groups]:
                done.result()
        return parts

    def size_bytes(self, key: str) -> int:
        """See ``Place``."""
        return self._run("look at", key, lambda: obstore.head(self._clients.quick, key)["size"])

    def list(self, folder: str = "", after: str = "") -> Iterator[Listed]:
        """See ``Place``."""
        check_folder(folder)
        pages: Iterator[Sequence[Listed]] | None = None

        def next_page() -> Sequence[Listed] | None:
            nonlocal pages
            if pages is None:
                pages = self._pages(folder, after)
            try:
                return next(pages, None)
            except CLIENT_ERRORS as error:
                pages = None  # the next attempt begins after the last key
                raise self._sorted(error, "list", folder) from None

        def attempt() -> Sequence[Listed] | None:
            return self._renewing(next_page)

        while page := self._retries.run("list", self._url(folder), attempt):
            yield from (listed for listed in page if is_key(listed.key))
            after = page[-1].key

    def keys(self, folder: str = "") -> set[str]:
        """See ``Place``."""
        return {listed.key for listed in self.list(folder)}

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See ``Place``."""
        self._run("write", key, lambda: self._put(key, data))

    def put_file(self, key: str, body: Body) -> None:
        """See ``Place``."""
        self._run("write", key, lambda: self._put_file(key, body))

    def stage(self, key: str, data: bytes) -> None:
        """See ``Place``; an object store makes each object durable at once."""
        self.put(key, data)

    def make_durable(self) -> None:
        """See ``Place``; does nothing."""

    def create(self, key: str, data: bytes) -> Version:
        """See ``Place``."""

        def act() -> Version:
            with self._sorting("create", key):
                try:
                    result = obstore.put(
                        self._writer(data), key, data, mode="create", use_multipart=False
                    )
                    return _version(result["e_tag"], result["version"])
                except CLIENT_ERRORS as error:
                    if not isinstance(self._sorted(error, "create", key), LostRaceError):
                        raise
                return self._own_version(key, data)

        return self._run("create", key, act)

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        """See ``Place``."""

        def act() -> Version:
            try:
                return self._replace(key, data, version)
            except LostRaceError:
                with self._sorting("read", key):
                    found = self._get(key, len(data) + 1)
            if found.data == data:
                return found.version
            if found.version.tag.strip('"') != version.tag.strip('"') or self._bare_tags:
                raise LostRaceError(f"{self._url(key)} has changed since it was read")
            self._bare_tags = True
            return self._replace(key, data, version)

        return self._run("replace", key, act)

    def delete(self, keys: Iterable[str]) -> None:
        """See ``Place``."""
        wanted = sorted(set(keys))
        for key in wanted:
            check_key(key)
        for begin in range(0, len(wanted), _DELETED_AT_ONCE):
            self._delete(wanted[begin : begin + _DELETED_AT_ONCE])

    def _delete(self, keys: Sequence[str]) -> None:
        def act() -> None:
            try:
                with self._sorting("delete", keys[0]):
                    obstore.delete(self._clients.quick, keys)
            except MissingError:
                # Some stores report an absent object, and skip the other keys.
                for key in keys:
                    with contextlib.suppress(MissingError), self._sorting("delete", key):
                        obstore.delete(self._clients.quick, [key])

        self._run("delete", keys[0], act)

    def _run(self, doing: str, key: str, act: Callable[[], T]) -> T:
        """Repeat ``act`` until it is answered, with errors of the client sorted."""
        check_key(key)

        def sorted_act() -> T:
            with self._sorting(doing, key):
                return act()

        return self._retries.run(doing, self._url(key), lambda: self._renewing(sorted_act))

    def _renewing(self, act: Callable[[], T]) -> T:
        """Do ``act`` again if the server refuses credentials that were replaced meanwhile.

        Temporary ones end after an hour, and a first snapshot, a copy or a mount takes longer.
        """
        refused = self._clients
        try:
            return act()
        except AccessDeniedError:
            if not self._renew(refused):
                raise
        return act()

    def _renew(self, refused: Clients) -> bool:
        """Use other clients than these, if there are any; returns whether there are."""
        with self._renewal:
            if self._clients is refused:  # else another thread has replaced them
                newer = self._renewed() if self._renewed else None
                if newer is None:
                    return False
                self._clients = newer
        return True

    @contextlib.contextmanager
    def _sorting(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except CLIENT_ERRORS as error:
            # Not chained: the client's message may quote the request.
            raise self._sorted(error, doing, key) from None
        except BaseException as error:
            # A panic of the client is not an Exception: it would end a training that saves here.
            if type(error).__name__ != "PanicException":
                raise
            raise StoreError(
                f"cannot {doing} {self._url(key)}: the object store client failed",
                hint="Check the server's address, and the AWS_* and *_PROXY variables.",
            ) from None

    def _sorted(self, error: Exception, doing: str, key: str) -> Exception:
        return sorted_error(error, doing, self._url(key), self._key_source, self._server)

    def _url(self, key: str) -> str:
        return f"{self._name}/{key}" if key else self._name

    def _writer(self, data: bytes) -> ObjectStore:
        return self._clients.quick if len(data) <= _QUICK_BYTES_MAX else self._clients.writing

    def _get(self, key: str, bytes_max: int) -> Found:
        """Read an object's content, at most its first ``bytes_max`` bytes, and its version."""
        client = self._clients.quick if bytes_max <= _QUICK_BYTES_MAX else self._clients.reading
        result = obstore.get(client, key)
        meta = result.meta
        version = _version(meta["e_tag"], meta["version"])
        if meta["size"] > bytes_max:
            return Found(bytes(self._get_range(key, ByteRange(0, bytes_max))), version)
        data = bytes(result.bytes())
        if len(data) != meta["size"]:
            raise TransientError("the server's answer ended early")
        return Found(data, version)

    def _get_range(self, key: str, wanted: ByteRange) -> memoryview:
        """Read a part of an object, without a copy of what the client has received."""
        if wanted.length_bytes == 0:
            return memoryview(b"")
        is_small = wanted.length_bytes <= _QUICK_BYTES_MAX
        client = self._clients.quick if is_small else self._clients.reading
        # Not obstore.get_ranges: it aborts with a stack trace if a range begins behind the end.
        return memoryview(
            obstore.get_range(client, key, start=wanted.begin_bytes, length=wanted.length_bytes)
        )

    def _put(self, key: str, data: bytes | memoryview) -> None:
        # Not in parts: an interrupted write would leave hidden parts that cost money.
        if len(data) <= _QUICK_BYTES_MAX:
            obstore.put(self._clients.quick, key, data, use_multipart=False)
        else:
            _put_watched(self._clients, key, data)

    def _put_file(self, key: str, body: Body) -> None:
        files = self._clients.files
        if files is not None and body.size_bytes > _QUICK_BYTES_MAX:
            look = _Looks(self._clients.quick, key).look
            if files().send(key, body, wait_s=_LOOK_S, look=look):
                return
        self._put(key, body.read())

    def _replace(self, key: str, data: bytes, version: Version) -> Version:
        tag = version.tag.strip('"') if self._bare_tags else version.tag
        with self._sorting("replace", key):
            client = self._writer(data)
            if version.number:
                result = obstore.put(
                    client,
                    key,
                    data,
                    mode={"e_tag": tag, "version": version.number},
                    use_multipart=False,
                )
            else:
                result = obstore.put(client, key, data, mode={"e_tag": tag}, use_multipart=False)
        return _version(result["e_tag"], result["version"])

    def _own_version(self, key: str, data: bytes) -> Version:
        """Return the version of an object that holds exactly ``data``; see ``Place.create``."""
        lost = LostRaceError(f"{self._url(key)} is there already: another writer has created it")
        try:
            with self._sorting("read", key):
                found = self._get(key, len(data) + 1)
        except MissingError:
            raise lost from None  # and deleted meanwhile
        if found.data != data:
            raise lost
        return found.version

    def _pages(self, folder: str, after: str) -> Iterator[Sequence[Listed]]:
        stream = obstore.list(
            self._clients.quick, folder or None, offset=after or None, chunk_size=_PAGE
        )
        for page in stream:
            yield [Listed(meta["path"], meta["size"]) for meta in page]


def _version(tag: str | None, number: str | None) -> Version:
    return Version(tag or "", number or "")


def _put_watched(clients: Clients, key: str, data: bytes | memoryview) -> None:
    """Put a large object in one request, and notice if the server has gone.

    The client has one limit for a whole request, and an upload over a slow line needs a long one.
    So another request asks from time to time whether the server still answers.

    Raises:
        TransientError: It has stopped answering.
    """
    # Imported here: most commands upload nothing large.
    import asyncio

    async def put() -> None:
        upload = asyncio.ensure_future(
            obstore.put_async(clients.writing, key, data, use_multipart=False)
        )
        looks = _Looks(clients.quick, key)
        try:
            while not (await asyncio.wait({upload}, timeout=_LOOK_S))[0]:
                looks.note(await _looked(clients.quick, key))
            upload.result()
        finally:
            upload.cancel()

    def run() -> None:
        asyncio.run(put())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        run()
        return
    # A loop runs in this thread, as in a notebook, and a thread cannot run a second one.
    with ThreadPoolExecutor(1, thread_name_prefix="put") as pool:
        pool.submit(run).result()


class _Looks:
    """Looks at a server that is slow to take an upload.

    Args:
        client: Sends the looks.
        key: The object's key.
    """

    def __init__(self, client: ObjectStore, key: str) -> None:
        self._client = client
        self._key = key
        self._misses = 0
        self._sent_bytes = 0

    def look(self, sent_bytes: int) -> None:
        """Ask for the object; raises as ``note`` does.

        Args:
            sent_bytes: How much of the upload is sent by now. More than at the last look: the
                server takes it, but the line may have no room for looks.
        """
        if sent_bytes > self._sent_bytes:
            self._misses = 0
        self._sent_bytes = sent_bytes
        try:
            obstore.head(self._client, self._key)
        except CLIENT_ERRORS as error:
            self.note(error)
        else:
            self.note(None)

    def note(self, error: Exception | None) -> None:
        """Count an answer; a refusal is one.

        Args:
            error: What the client raised when it asked; None: nothing.

        Raises:
            TransientError: Several looks in turn had no answer.
        """
        found = error and sorted_error(error, "look at", self._key)
        is_missed = isinstance(found, TransientError) and not found.is_answer
        self._misses = self._misses + 1 if is_missed else 0
        if self._misses == _MISSES_MAX:
            raise TransientError("the server has stopped answering")


async def _looked(client: ObjectStore, key: str) -> Exception | None:
    """Ask for an object; return what the client raised."""
    try:
        await obstore.head_async(client, key)
    except CLIENT_ERRORS as error:
        return error
    return None
