"""Totals for the progress line, counted while the work is under way."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from ciuic.catalog import list_snapshots
from ciuic.cli.opening import opened
from ciuic.cli.progress import Reporter, progress
from ciuic.cli.session import Session
from ciuic.documents import Document
from ciuic.errors import CiuicError
from ciuic.store.records.manifest import Manifest

__all__ = ["counting", "expect_like_last", "told_by_daemon"]


def expect_like_last(session: Session, roots: Sequence[bytes], shown: Reporter) -> None:
    """Expect about as much as the last snapshot of the same roots has."""
    if not shown.is_shown:
        return
    # Without a store there is no total; the code that takes the snapshot reports the error.
    with contextlib.suppress(CiuicError, OSError), opened(session) as store:
        for summary in list_snapshots(store):
            if set(summary.roots) == set(roots):
                shown.expect(summary.files, summary.logical_bytes, about=True)
                return


@contextlib.contextmanager
def told_by_daemon(
    session: Session, roots: Sequence[bytes]
) -> Iterator[Callable[[Document], None]]:
    """Yield a function that shows the daemon's progress; the line appears with the first call."""
    with contextlib.ExitStack() as line:
        shown: list[Reporter] = []

        def news(document: Document) -> None:
            if not shown:
                shown.append(line.enter_context(progress("snapshot")))
                expect_like_last(session, roots, shown[0])
            files, size_bytes = document.get("files"), document.get("bytes")
            path = document.get("path")
            if isinstance(files, int) and isinstance(size_bytes, int) and isinstance(path, str):
                shown[0].update(files, size_bytes, os.fsencode(path))

        yield news


@contextlib.contextmanager
def counting(
    session: Session, manifest: Manifest, paths: Sequence[bytes], shown: Reporter
) -> Iterator[None]:
    """Count the files below some paths of a snapshot in a thread, while the work is under way.

    For a whole snapshot the manifest has the totals.
    """
    if not shown.is_shown or not paths:
        yield
        return
    if {root.path for root in manifest.roots} <= set(paths):
        shown.expect(manifest.summary.files, manifest.summary.logical_bytes)
        yield
        return
    ended = threading.Event()
    counter = threading.Thread(
        target=_count, args=(session, manifest, paths, shown, ended), daemon=True
    )
    counter.start()
    try:
        yield
    finally:
        ended.set()
        counter.join()


def _count(
    session: Session,
    manifest: Manifest,
    paths: Sequence[bytes],
    shown: Reporter,
    ended: threading.Event,
) -> None:
    # Imported here: only a terminal shows how much there is.
    from ciuic.view.listing import walk
    from ciuic.view.locator import locate

    files = size_bytes = 0
    # The restore itself reports errors of the store.
    with contextlib.suppress(CiuicError, OSError), opened(session) as store:
        for path in paths:
            for located in walk(store, locate(store, manifest, path)):
                if ended.is_set():
                    return
                files += not located.entry.is_directory
                size_bytes += located.entry.size_bytes
        shown.expect(files, size_bytes)
