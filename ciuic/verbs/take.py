"""Take a snapshot: gather, make durable, commit."""

import os
import resource
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import ciuic
from ciuic.catalog import list_snapshots, remember
from ciuic.chunking import FixedChunker
from ciuic.clock import Clock
from ciuic.errors import UsageError
from ciuic.memory import prepare_for_bulk
from ciuic.model import SnapshotSummary, TakeReport, Trouble
from ciuic.scan import Exclusions
from ciuic.store import Store
from ciuic.store.manifest import TROUBLE_MAX, Manifest
from ciuic.verbs.gather import Gatherer, OldTree
from ciuic.verbs.reading import ContentReader

__all__ = ["Progress", "TakeRequest", "take_snapshot"]

_NS: Final = 1_000_000_000
_OPEN_FILES_WANTED: Final = 4096
_TAG_MAX: Final = 64
_PARENTS_SEARCHED: Final = 50


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """What to take a snapshot of.

    Attributes:
        roots: Absolute paths, raw bytes.
        exclude: Patterns, see ``scan.Exclusions``.
        base: Read everything, whatever the parent says.
        base_interval_s: Take a base snapshot by itself when the last one is as old as this;
            0: never.
        tags: Words to find the snapshot by.
    """

    roots: tuple[bytes, ...]
    exclude: tuple[str, ...] = ()
    base: bool = False
    base_interval_s: float = 43_200.0
    tags: tuple[str, ...] = ()


class Progress(Protocol):
    """Told how far a long run has come; must return quickly."""

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """So many files and bytes have been looked at; ``path`` is the latest."""
        ...


class _Silent:
    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        pass


class _Troubles:
    """Collects trouble from several threads: the first paths by name, all of them by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.first: list[Trouble] = []
        self.count = 0

    def add(self, path: bytes, what: str, harmless: bool = False) -> None:
        with self._lock:
            self.count += not harmless
            if len(self.first) < TROUBLE_MAX:
                self.first.append(Trouble(path, what, harmless))


def take_snapshot(
    store: Store,
    request: TakeRequest,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> TakeReport:
    """Take a snapshot of the request's roots into a store that is open for writing.

    When this returns the snapshot is committed and durable. When it raises, the store holds
    what it held before, and perhaps packs that the next run reuses.

    Raises:
        UsageError: There is no root, or one is not absolute.
        StoreError: The store failed.
        CancelledError: ``cancelled`` turned true.
    """
    prepare_for_bulk()
    began_s = clock.monotonic_s()
    roots = _checked_roots(request.roots)
    _check_tags(request.tags)
    _raise_open_files_limit()
    taken_ns = clock.now_ns()
    snapshots = list_snapshots(store)
    parent = snapshots[0] if snapshots else None
    is_base = request.base or _base_is_due(snapshots, request.base_interval_s, taken_ns)
    troubles = _Troubles()
    chunk_bytes = store.header.chunking.size_bytes
    writer = store.writer()
    try:
        content = ContentReader(
            writer, FixedChunker(chunk_bytes), chunk_bytes, troubles.add, cancelled
        )
        try:
            gatherer = Gatherer(
                store,
                writer,
                content,
                exclusions=Exclusions(request.exclude),
                trouble=troubles.add,
                cancelled=cancelled,
                progress=(progress or _Silent()).update,
            )
            old = {} if is_base else _old_trees(store, snapshots, roots)
            recorded = tuple([gatherer.gather(path, old.get(path)) for path in roots])
        finally:
            content.close()
        capture_s = clock.monotonic_s() - began_s
        totals = writer.finish()
    except BaseException:
        writer.abort()
        raise
    # From here on all that the manifest names is durable: this is the commit.
    manifest = Manifest(
        summary=SnapshotSummary(
            id=store.new_snapshot_id(),
            kind="base" if is_base else "delta",
            parent=parent.id if parent is not None else None,
            taken_ns=taken_ns,
            files=gatherer.files,
            logical_bytes=gatherer.logical_bytes,
            new_bytes=totals.new_bytes,
            stored_bytes=totals.stored_bytes,
            tags=request.tags,
            trouble_count=troubles.count,
            roots=roots,
        ),
        roots=recorded,
        host=socket.gethostname().encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        writer=f"ciuic {ciuic.__version__}",
        read_bytes=content.read_bytes,
        capture_s=round(capture_s, 6),
        exclude=request.exclude,
        trouble=tuple(troubles.first),
    )
    store.commit(manifest)
    remember(store, manifest.summary)
    return _report(manifest, clock.monotonic_s() - began_s)


def _checked_roots(paths: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Normalised, sorted, each directory once: a root inside another root is part of it."""
    if not paths:
        raise UsageError("there is nothing to take a snapshot of: no path is configured")
    for path in paths:
        if not path.startswith(b"/"):
            raise UsageError(f"the root {os.fsdecode(path)!r} is not an absolute path")
    kept: list[bytes] = []
    for path in sorted({b"/" + os.path.normpath(path).lstrip(b"/") for path in paths}):
        if not any(path.startswith(other.rstrip(b"/") + b"/") for other in kept):
            kept.append(path)
    return tuple(kept)


def _check_tags(tags: tuple[str, ...]) -> None:
    for tag in tags:
        if not 1 <= len(tag) <= _TAG_MAX or "|" in tag or "," in tag or not tag.isprintable():
            raise UsageError(
                f"a tag has 1 to {_TAG_MAX} printable characters, without '|' and ',':"
                f" {tag[:_TAG_MAX]!r}"
            )


def _base_is_due(snapshots: list[SnapshotSummary], base_interval_s: float, taken_ns: int) -> bool:
    newest_base = next((one for one in snapshots if one.kind == "base"), None)
    if newest_base is None:
        return True
    return bool(base_interval_s) and (taken_ns - newest_base.taken_ns >= int(base_interval_s * _NS))


def _old_trees(
    store: Store, snapshots: list[SnapshotSummary], roots: tuple[bytes, ...]
) -> dict[bytes, OldTree]:
    """For each root the newest tree there is, also when the newest snapshot missed the root."""
    found = {}
    wanted = set(roots)
    for snapshot in snapshots[:_PARENTS_SEARCHED]:
        if not wanted.intersection(snapshot.roots):
            continue
        for root in store.manifest(snapshot.id).roots:
            if root.path in wanted and root.tree:
                found[root.path] = OldTree(root.tree, snapshot.taken_ns)
                wanted.discard(root.path)
    return found


def _raise_open_files_limit() -> None:
    """A walk holds a descriptor for each level, each batch some more; 1024 is the usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(_OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _report(manifest: Manifest, total_s: float) -> TakeReport:
    summary = manifest.summary
    return TakeReport(
        id=summary.id,
        kind=summary.kind,
        parent=summary.parent,
        taken_ns=summary.taken_ns,
        files=summary.files,
        logical_bytes=summary.logical_bytes,
        read_bytes=manifest.read_bytes,
        new_bytes=summary.new_bytes,
        stored_bytes=summary.stored_bytes,
        freeze_s=manifest.capture_s,
        total_s=total_s,
        trouble=manifest.trouble,
        trouble_count=summary.trouble_count,
    )
