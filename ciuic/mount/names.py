"""The top of the mount: every snapshot by ID, by time and by tag, and links to the latest."""

import contextlib
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ciuic.catalog import LATEST, LATEST_VALID, find_snapshot, list_snapshots, unreadable
from ciuic.errors import CiuicError, StoreError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary, complete_ones, newest_first
from ciuic.mount.nodes import Directory, Listed, Node, Owned, unnumbered
from ciuic.mount.snapshots import MountedSnapshot, added_entry
from ciuic.mount.trees import Trees
from ciuic.store.directory.find import read_header
from ciuic.store.place.packs import Bucket
from ciuic.store.records import layout
from ciuic.store.store import Store
from ciuic.system.clock import Clock, local_time_text

__all__ = ["Top", "tag_name", "time_names"]

_BY_ID: Final = b"by-id"
_BY_TIME: Final = b"by-time"
_BY_TAG: Final = b"by-tag"
_OPEN_MAX: Final = 64
"""Snapshots whose manifests are kept."""
_SETTLED_NS: Final = 2_000_000_000
"""A directory that was changed within this time before it was listed is listed again: another
change may have the same time."""
_FETCH_PAUSE_S: Final = 3.0
"""How long a list of the snapshots in a bucket is used."""
_DIRECTORY: Final = stat.S_IFDIR | 0o755
_LINK: Final = stat.S_IFLNK | 0o777

Told = Callable[[SnapshotId, str], None]


def tag_name(tag: str) -> bytes:
    """Return a tag as the name of a directory; a character that a name cannot have as ``%2F``."""
    dots = tag in {".", ".."}
    return "".join(
        [f"%{ord(char):02X}" if char in "/%\0" or (dots and char == ".") else char for char in tag]
    ).encode("utf-8", "surrogateescape")


def time_names(snapshots: list[SnapshotSummary]) -> dict[bytes, SnapshotId]:
    """Return the name of each snapshot by its local time: ``2026-06-15_14-30-05``.

    Of several snapshots in one second, the later ones have their ID behind the time.
    """
    found: dict[bytes, SnapshotId] = {}
    for snapshot in sorted(snapshots, key=lambda one: (one.taken_ns, one.id)):
        name = local_time_text(snapshot.taken_ns).replace(" ", "_").replace(":", "-")
        if name.encode() in found:
            name = f"{name}_{snapshot.id}"
        found[name.encode()] = snapshot.id
    return found


class Top(Directory):
    """The first directory of a mount of all snapshots. For one thread.

    Args:
        store: The open store.
        clock: Tells when a list of snapshots is too fresh to be trusted.
        told: Called with each snapshot that cannot be read, and why.
    """

    def __init__(self, store: Store, trees: Trees, clock: Clock, told: Told) -> None:
        self._store = store
        self._trees = trees
        self._clock = clock
        self._told = told
        self._seen: tuple[object, ...] | None = None
        self._listed: dict[bytes, SnapshotSummary] = {}
        self._latest: SnapshotId | None = None
        self._latest_valid: SnapshotId | None = None
        self._knows_valid = False
        self._times: dict[bytes, SnapshotId] = {}
        self._tags: dict[bytes, dict[bytes, SnapshotId]] = {}
        self._open: OrderedDict[SnapshotId, MountedSnapshot] = OrderedDict()
        self._fetch_s = clock.monotonic_s() + _FETCH_PAUSE_S  # the store was just opened
        self.generation = 0
        """Rises when snapshots are added or removed."""
        self.refresh()

    def refresh(self) -> None:
        """List the snapshots again if there may be others."""
        if self._store.bucket is not None:
            self._fetch(self._store.bucket)
        seen, changed_ns = self._state()
        if seen == self._seen:
            return
        now_ns = self._clock.now_ns()
        if self._store.bucket is None:
            read_header(self._store.path)  # without its disk, a store looks empty
        summaries = list_snapshots(self._store)
        for snapshot_id, what in unreadable(self._store).manifests.items():
            self._told(snapshot_id, what)
        is_settled = changed_ns + _SETTLED_NS < now_ns
        self._seen = seen if is_settled else None
        listed = {summary.id.encode(): summary for summary in summaries}
        if listed == self._listed:
            return
        self._listed = listed
        self._latest = next(
            iter([snapshot.id for snapshot in newest_first(complete_ones(summaries))]), None
        )
        self._knows_valid = False
        self._times = time_names(summaries)
        self._tags = {}
        for summary in summaries:
            for tag in summary.tags:
                if tag:
                    self._tags.setdefault(tag_name(tag), {})[summary.id.encode()] = summary.id
        for snapshot_id in [one for one in self._open if one.encode() not in listed]:
            del self._open[snapshot_id]
        self.generation += 1

    def _fetch(self, bucket: Bucket) -> None:
        """Ask the bucket for other snapshots, now and then; without an answer, none is new."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._fetch_s:
            self._fetch_s = now_s + _FETCH_PAUSE_S
            with contextlib.suppress(StoreError):
                bucket.fetch()

    def _state(self) -> tuple[tuple[object, ...], int]:
        """Return what changes when a snapshot or a mark comes or goes, and when it did."""
        found: list[object] = []
        changed_ns = 0
        for name in (layout.SNAPSHOTS, layout.MARKS):
            try:
                status = os.stat(os.path.join(self._store.path, name))
            except OSError:
                found.append(None)
                continue
            found.append((status.st_ino, status.st_mtime_ns))
            changed_ns = max(changed_ns, status.st_mtime_ns)
        return tuple(found), changed_ns

    def find(self, name: bytes) -> Node | None:
        """See ``Directory``."""
        self.refresh()
        if name == _BY_ID:
            return self._added(
                b"/by-id", _Names(self.refresh, lambda: self._listed, self._snapshot, _DIRECTORY)
            )
        if name == _BY_TIME:
            return self._added(
                b"/by-time",
                _Names(
                    self.refresh,
                    lambda: self._times,
                    lambda key: self._link(b"/by-time/", self._times, key),
                    _LINK,
                ),
            )
        if name == _BY_TAG:
            return self._added(
                b"/by-tag", _Names(self.refresh, lambda: self._tags, self._tag, _DIRECTORY)
            )
        if name == LATEST.encode() and self._latest:
            return self._latest_link(name, self._latest)
        if name == LATEST_VALID.encode() and self._listed:
            found = self._valid()
            return None if found is None else self._latest_link(name, found)
        return None

    def names(self) -> Iterator[Listed]:
        """See ``Directory``."""
        self.refresh()
        found = [added_entry(name, _DIRECTORY, 0) for name in (_BY_ID, _BY_TAG, _BY_TIME)]
        if self._latest:
            found.append(added_entry(LATEST.encode(), _LINK, 0))
        if self._listed:
            found.append(added_entry(LATEST_VALID.encode(), _LINK, 0))
        yield unnumbered(found)

    def _valid(self) -> SnapshotId | None:
        if not self._knows_valid:
            try:
                self._latest_valid = find_snapshot(self._store, LATEST_VALID).id
            except CiuicError:
                self._latest_valid = None
            self._knows_valid = True
        return self._latest_valid

    def _latest_link(self, name: bytes, snapshot_id: SnapshotId) -> Node:
        target = b"by-id/" + snapshot_id.encode()
        taken_ns = self._listed[snapshot_id.encode()].taken_ns
        return Node(added_entry(name, _LINK, taken_ns, target), Owned(SnapshotId(""), b"/" + name))

    def _added(self, path: bytes, directory: Directory) -> Node:
        taken_ns = self._listed[self._latest.encode()].taken_ns if self._latest else 0
        return Node(added_entry(b".", _DIRECTORY, taken_ns), Owned(SnapshotId(""), path), directory)

    def _snapshot(self, name: bytes) -> Node | None:
        summary = self._listed.get(name)
        if summary is None:
            return None
        found = self._open.get(summary.id)
        if found is None:
            found = MountedSnapshot(self._store, self._trees, self._store.manifest(summary.id))
            self._open[summary.id] = found
            if len(self._open) > _OPEN_MAX:
                self._open.popitem(last=False)
        self._open.move_to_end(summary.id)
        return found.top

    def _tag(self, name: bytes) -> Node | None:
        if name not in self._tags:
            return None
        path = b"/by-tag/%s/" % name

        def link(key: bytes) -> Node | None:
            return self._link(path, self._tags.get(name, {}), key, up=b"../../")

        return self._added(
            path, _Names(self.refresh, lambda: self._tags.get(name, {}), link, _LINK)
        )

    def _link(
        self, path: bytes, known: Mapping[bytes, SnapshotId], name: bytes, up: bytes = b"../"
    ) -> Node | None:
        snapshot_id = known.get(name)
        if snapshot_id is None:
            return None
        summary = self._listed[snapshot_id.encode()]
        target = b"%sby-id/%s" % (up, snapshot_id.encode())
        entry = added_entry(name, _LINK, summary.taken_ns, target)
        return Node(entry, Owned(SnapshotId(""), path + name))


class _Names(Directory):
    """A directory of the mount whose names come and go with snapshots."""

    def __init__(
        self,
        refresh: Callable[[], None],
        shown: Callable[[], Mapping[bytes, object]],
        find: Callable[[bytes], Node | None],
        mode: int,
    ) -> None:
        self._refresh = refresh
        self._shown = shown
        self._find = find
        self._mode = mode

    def find(self, name: bytes) -> Node | None:
        self._refresh()
        return self._find(name)

    def names(self) -> Iterator[Listed]:
        self._refresh()
        found = [added_entry(name, self._mode, 0) for name in sorted(self._shown())]
        if found:
            yield unnumbered(found)
