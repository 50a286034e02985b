"""Freeze the roots of one snapshot, and record what was frozen.

    prepare   left-overs removed, space made, clones made of what looks changed (capture/early.py)
    begin     subvolumes frozen, all in a row
    walk      with reflinks, each file that has changed since then is cloned when the walk comes to
              it (capture/views.py)
    record    what was frozen, written before the snapshot's manifest
    retain    frozen copies of all but the newest snapshots are removed

Whatever fails here costs speed, never a snapshot: the root is captured in place, and its record
in the manifest says so.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ciuic import durable
from ciuic.capture import kernel
from ciuic.capture.early import EarlyClones, LeftOut
from ciuic.capture.frozen import Area, RootRecord, is_short_of_space, open_frozen
from ciuic.capture.providers import REFLINK, SUBVOLUME, Choice, choose, subvolume_top
from ciuic.capture.views import ReflinkView, RootView, SubvolumeView
from ciuic.errors import SourceError
from ciuic.scan import open_root

__all__ = ["Freezer"]

_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Freezer:
    """The frozen side of one snapshot.

    Args:
        header_path: Of the header of the store that the snapshot goes to.
        store_id: Of that store.
        snapshot_id: What the snapshot will be called.
        taken_ns: When it began.
    """

    def __init__(self, header_path: str, store_id: str, snapshot_id: str, taken_ns: int) -> None:
        self._header_path = header_path
        self._store_id = store_id
        self._snapshot_id = snapshot_id
        self._taken_ns = taken_ns
        self._existing: Sequence[str] = ()
        self._areas: dict[bytes, Area] = {}
        self._early: dict[bytes, EarlyClones] = {}
        self._views: dict[bytes, RootView] = {}

    def prepare(
        self,
        roots: Sequence[bytes],
        *,
        existing: Sequence[str],
        previous: Mapping[bytes, str],
        believed_since: Mapping[bytes, int],
        is_left_out: LeftOut,
    ) -> None:
        """Do ahead what can be: the shorter the freeze, the more of one moment a snapshot is.

        Args:
            roots: What will be captured.
            existing: All snapshots of the store, newest first: other records are left-overs.
            previous: For a root, the snapshot whose tree the new one is compared with.
            believed_since: For a root, the time in ns since when no change means that a file is
                not captured again; a root that is not named is captured whole.
            is_left_out: What need not be frozen.
        """
        self._roots = roots
        self._existing = existing
        self._choices = {root: choose(root) for root in roots}
        for root, choice in self._choices.items():
            if choice.place is not None:
                self._choices[root] = self._with_area(choice, existing)
        self._previous = {
            root: open_frozen(self._store_id, snapshot_id, root)
            for root, snapshot_id in previous.items()
        }
        for root, choice in self._choices.items():
            if choice.place in self._areas:
                self._early[root] = EarlyClones(self._area(choice), self._taken_ns)
            if choice.how == REFLINK:
                with contextlib.suppress(OSError, SourceError):
                    self._early[root].make(open_root(root), believed_since.get(root), is_left_out)

    def begin(self) -> dict[bytes, RootView]:
        """Freeze what can be frozen as a whole; returns how to see each root."""
        trees: dict[bytes, RootRecord] = {}
        for root in self._roots:
            choice = self._choices[root]
            if choice.how == SUBVOLUME:
                with contextlib.suppress(OSError):
                    self._freeze_subvolume(root, self._area(choice), trees)
        for root in self._roots:
            self._views[root] = self._view(root, trees)
        return self._views

    def record(self) -> None:
        """Record what was frozen, durably. Without a record, frozen copies are left-overs."""
        for path, area in self._areas.items():
            records = [
                record
                for root, view in self._views.items()
                if self._choices[root].place == path and (record := view.record()) is not None
            ]
            with contextlib.suppress(OSError):
                area.write_record(self._snapshot_id, self._taken_ns, records)

    def retain(self, snapshot_ids: Sequence[str]) -> None:
        """Remove frozen copies of all snapshots but these; call it when all is recorded.

        Where space is short none are kept: they would hold on to whatever is deleted there.
        """
        for place, area in self._areas.items():
            area.end()
            with contextlib.suppress(OSError):
                area.keep_only([] if is_short_of_space(place) else snapshot_ids)

    def abandon(self) -> None:
        """Remove what this snapshot has frozen: there will be no such snapshot."""
        for area in self._areas.values():
            area.end()
            with contextlib.suppress(OSError):
                area.keep_only(self._existing)

    def close(self) -> None:
        """Give up descriptors and locks; what has no record is removed by the next run."""
        for view in self._views.values():
            view.close()
        for area in self._areas.values():
            area.close()

    def _with_area(self, choice: Choice, existing: Sequence[str]) -> Choice:
        place = choice.place
        if place is None or place in self._areas:
            return choice
        try:
            area = Area.make(place, self._header_path, self._store_id)
        except OSError as error:
            return choice._replace(how="in place", why=str(error), place=None)
        self._areas[place] = area
        area.begin(self._snapshot_id)
        with contextlib.suppress(OSError):
            area.keep_only(existing)
            frozen = area.snapshots()
            while frozen and is_short_of_space(place):
                frozen.pop()
                area.keep_only([name for _, name in frozen])
            self._write_out(place)
        return choice

    def _write_out(self, place: bytes) -> None:
        """Write dirty data before the clock runs: freezing would wait for it."""
        fd = os.open(place, _OPEN_DIRECTORY)
        try:
            durable.sync_file_system(fd)
        finally:
            os.close(fd)

    def _area(self, choice: Choice) -> Area:
        return self._areas[choice.place or b""]

    def _freeze_subvolume(self, root: bytes, area: Area, trees: dict[bytes, RootRecord]) -> None:
        """Freeze the subvolume of a root, unless another root's snapshot holds it already."""
        real = os.path.realpath(root)
        top = subvolume_top(real)
        if top is None:
            return
        inside = real[len(top) :].strip(b"/")
        shared = trees.get(top)
        if shared is not None:
            trees[root] = shared._replace(path=root, inside=inside)
            return
        name = b"%s.%d" % (self._snapshot_id.encode(), len(trees))
        with _opened(top) as source, _opened(os.path.dirname(area.tree_path(name))) as trees_fd:
            kernel.snapshot_subvolume(source, trees_fd, name)
        with _opened(area.tree_path(name)) as frozen:
            info = kernel.subvolume_info(frozen)
        record = RootRecord(root, SUBVOLUME, name, inside, info.uuid, info.generation)
        trees[top] = trees[root] = record

    def _view(self, root: bytes, trees: Mapping[bytes, RootRecord]) -> RootView:
        choice, previous = self._choices[root], self._previous.get(root)
        try:
            if choice.how == SUBVOLUME and root in trees:
                return SubvolumeView(root, previous, self._area(choice), trees[root])
            # A subvolume that can't be frozen, for a swap file in it, still has files that can.
            if choice.place in self._areas:
                return ReflinkView(root, previous, self._area(choice), self._early[root])
        except OSError:
            pass  # captured in place, as the manifest says
        return RootView(root, previous)


@contextlib.contextmanager
def _opened(path: bytes) -> Iterator[int]:
    fd = os.open(path, _OPEN_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)
