"""What restores have put in place since the last snapshot, so that the next one can say so.

Each place has one small file in ``restored/``. A snapshot reads those of its roots, names them in
its manifest (``follows``), and removes them. They are notes: a restore needs no right to write to
the store, and a store without them lacks nothing.
"""

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ciuic.errors import CiuicError
from ciuic.ids import SnapshotId
from ciuic.model import Follow
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.ownership import refuse_foreign
from ciuic.store.records import layout
from ciuic.store.records.layout import is_snapshot_id
from ciuic.store.store import Store
from ciuic.system.hashing import derived_hash
from ciuic.system.machine import Machine

__all__ = ["Restored", "note_restored"]

_NOTES_MAX: Final = 256
"""A hostile store may have millions, and a manifest names them all."""
_NOTE_BYTES_MAX: Final = 16 * 1024
_NAME: Final = r"[0-9a-f]{16}"


class _Note(msgspec.Struct):
    host: str
    machine: str
    place: bytes
    snapshot: str


def note_restored(
    store: Store, places: Sequence[bytes], snapshot_id: SnapshotId, machine: Machine
) -> None:
    """Note that a restore has put a snapshot's content at some places.

    Nothing is noted, and nothing fails, if this process may not write to the store.

    Args:
        store: An open store.
        places: Where it is now: absolute paths.
        snapshot_id: Where it comes from.
        machine: This machine.
    """
    if store.header.problem_for_writers:
        return
    folder = Folder(store.path, layout.RESTORED, is_unlocked=True)
    # Any failure means that there is no note: the restore itself is done.
    with contextlib.suppress(CiuicError, OSError):
        refuse_foreign(store.path, None)
        known = folder.names(_parse)
        files = {}
        for place in places:
            note = _Note(machine.name, machine.id, place, snapshot_id)
            files[derived_hash("ciuic restored place", place).hex()[:16]] = note
        room = _NOTES_MAX - len(known - files.keys())
        folder.put_all(
            (name, msgspec.json.encode(note) + b"\n") for name, note in list(files.items())[:room]
        )


class Restored:
    """The notes about the roots of a snapshot, as they are when it begins.

    Args:
        store: An open store.
        roots: The roots of the snapshot.
        machine: This machine; the notes of others are for their snapshots.
    """

    def __init__(self, store: Store, roots: Sequence[bytes], machine: Machine) -> None:
        self._folder = Folder(store.path, layout.RESTORED)
        self._read: dict[str, bytes] = {}
        self.follows: tuple[Follow, ...] = ()
        # Targets have no symlinks above them, and a root may be one.
        wanted = {*roots, *map(os.path.realpath, roots)}
        found = []
        with contextlib.suppress(CiuicError, OSError):
            for name in sorted(self._folder.names(_parse))[:_NOTES_MAX]:
                data = self._folder.read(name, _NOTE_BYTES_MAX)
                follow = _decoded(data, machine)
                if follow is not None and any(_touches(follow.path, root) for root in wanted):
                    self._read[name] = data
                    found.append(follow)
        self.follows = tuple(sorted(found, key=lambda follow: follow.path))

    def remove(self) -> None:
        """Remove the notes that were read, but not those that another restore has replaced."""
        names = [
            name
            for name, data in self._read.items()
            if self._folder.has(name) and self._folder.read(name, _NOTE_BYTES_MAX) == data
        ]
        if names:
            self._folder.remove_durably(names)


def _parse(name: str) -> str | None:
    return name if re.fullmatch(_NAME, name) else None


def _decoded(data: bytes, machine: Machine) -> Follow | None:
    """Return what a note says; None if it is not a note, or a note of another machine."""
    try:
        note = msgspec.json.decode(data, type=_Note)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    is_sound = note.place.startswith(b"/") and is_snapshot_id(note.snapshot)
    if not is_sound or not machine.is_same(Machine(note.host, note.machine)):
        return None
    return Follow(note.place, SnapshotId(note.snapshot))


def _touches(place: bytes, root: bytes) -> bool:
    return _is_in(place, root) or _is_in(root, place)


def _is_in(path: bytes, above: bytes) -> bool:
    return path == above or path.startswith(above.rstrip(b"/") + b"/")
