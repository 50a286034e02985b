"""The names in a directory of the parent snapshot, among which a last version is looked for.

A walk makes one for each directory, and most of them are never read. So this module loads nothing
that reads the formats of checkpoints; ``delta_base`` does.
"""

import contextlib
import threading
from typing import Final

from ciuic.errors import CorruptionError
from ciuic.formats.headers import NAMES_BYTES_MAX, Part
from ciuic.ids import ChunkId
from ciuic.model import CONSISTENT, Entry
from ciuic.snapshot.bases.role_names import RoleNames
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.tree_nodes import iter_tree

__all__ = ["METADATA", "OldDirectory", "PartsOfBoth"]

METADATA: Final = b".metadata"
_FILE_BYTES_MIN: Final = 64 * 1024
_NAMES_MAX: Final = 10_000
"""Maximum number of names from one directory; a directory with more large files does not name them
by steps."""

PartsOfBoth = tuple[dict[str, list[Part]], dict[str, list[Part]]]
"""The parts in the files of a distributed checkpoint, by file name: in the new version, and in the
last one."""


class OldDirectory:
    """A directory of the parent snapshot.

    It is read when the first file is looked up: most directories have no large changed file.
    Several threads may call the methods.

    Args:
        reader: Reader of the store.
        old: The parent snapshot's entry at the same path, if it is a directory.
        above: Else, the ``OldDirectory`` above and the name of this directory there, to find an
            old directory with the same role.

    Attributes:
        reader: Reader of the store.
        lock: Held while ``parts`` is read and set.
        parts: What ``DeltaBases`` has read of ``METADATA`` in both versions; None: not read yet.
    """

    def __init__(
        self,
        reader: StoreReader,
        old: Entry | None,
        above: "tuple[OldDirectory, bytes] | None" = None,
    ) -> None:
        self.reader = reader
        self.lock = threading.Lock()
        self.parts: PartsOfBoth | None = None
        self._old = old
        self._above = above
        self._names: RoleNames | None = None

    def directory(self, name: bytes, old: Entry | None) -> "OldDirectory":
        """Return the ``OldDirectory`` of a subdirectory.

        Args:
            name: The subdirectory's name.
            old: The parent snapshot's entry at its path, if there is one.
        """
        if old is not None and old.is_directory:
            return OldDirectory(self.reader, old)
        return OldDirectory(self.reader, None, (self, name))

    def names(self) -> RoleNames:
        """Read the old directory, and those above it if needed; a loop, as trees may be deep."""
        unread = [self]
        while unread[-1]._names is None and unread[-1]._above is not None:
            unread.append(unread[-1]._above[0])
        names = RoleNames()
        for old in reversed(unread):
            with old.lock:
                if old._names is None:
                    old._names = old._read(names)
            names = old._names
        return names

    def _read(self, above: RoleNames) -> RoleNames:
        names = RoleNames()
        top = self._old
        if self._above is not None:
            top = above.of_role(self._above[1], is_directory=True)
        if top is None or not top.content:
            return names
        # If the old directory is damaged, the entries that can be read still help.
        with contextlib.suppress(CorruptionError):
            for entry in iter_tree(self.reader.node, ChunkId(top.content), top.level):
                is_file = entry.is_file and entry.size_bytes >= _FILE_BYTES_MIN
                if entry.content and entry.state == CONSISTENT and (is_file or entry.is_directory):
                    names.add(entry)
                if entry.name == METADATA and _is_readable_metadata(entry):
                    names.metadata = entry
                if names.count >= _NAMES_MAX:
                    break
        return names


def _is_readable_metadata(metadata: Entry) -> bool:
    if not metadata.is_file or not metadata.content or metadata.state != CONSISTENT:
        return False
    return metadata.size_bytes <= NAMES_BYTES_MAX
