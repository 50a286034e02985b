"""A regular file whose content a snapshot stores, and its entry."""

import os
from typing import Final, NamedTuple

from ciuic.ids import ChunkId
from ciuic.model import BEING_WRITTEN, CONSISTENT, UNREADABLE, Entry
from ciuic.snapshot.bases.old_directory import OldDirectory
from ciuic.source.directory import DirectoryHandle, storable_ns
from ciuic.source.freeze.trust import FrozenRoot
from ciuic.source.freeze.views import FrozenFile
from ciuic.source.stability import ReadStatus

__all__ = ["NO_CONTENT", "Recipe", "SourceFile"]

NO_CONTENT: Final = ChunkId(b"")
"""The content of a file without bytes."""


class Recipe(NamedTuple):
    """How the store holds the bytes of a file.

    Attributes:
        content: Chunk or recipe ID; empty: the file has no bytes.
        level: Height of the recipe; 0 for a file of one chunk.
        size_bytes: Length of the file as it was read.
    """

    content: ChunkId
    level: int
    size_bytes: int


class SourceFile(NamedTuple):
    """A regular file whose content is to be stored.

    Attributes:
        directory: The file's directory.
        name: The file's name there.
        status: The file's status when its directory was listed.
        link_dev: The entry's ``link_dev``.
        is_frozen: The directory is in a frozen subvolume: no program can write to the file.
        is_being_written: A program was writing to the file when it was frozen.
        reflink_copy: The reflink copy that is read instead of the file, with its metadata.
        old: The parent snapshot's entry at this path.
        previous: The reflink copies of the parent snapshot.
        delta_bases: Finds the last version of the file, even under another path.
        frozen_directory: Set if the live file is read because the frozen one may lack bytes: the
            frozen directory. If the live file is gone, the frozen file is read and counts as being
            written.
    """

    directory: DirectoryHandle
    name: bytes
    status: os.stat_result
    link_dev: int
    is_frozen: bool = False
    is_being_written: bool = False
    reflink_copy: FrozenFile | None = None
    old: Entry | None = None
    previous: FrozenRoot | None = None
    delta_bases: OldDirectory | None = None
    frozen_directory: DirectoryHandle | None = None

    @property
    def path(self) -> bytes:
        """The absolute path in the snapshot."""
        return self.directory.join(self.name)

    @property
    def is_still(self) -> bool:
        """No program can change the bytes that are read."""
        return self.is_frozen or self.reflink_copy is not None

    @property
    def read_status(self) -> os.stat_result:
        """The status that belongs to the bytes that are read."""
        return self.status if self.reflink_copy is None else self.reflink_copy.status

    def is_owned_by(self, uid: int) -> bool:
        """Return whether a process of this user can leave the file's access time unchanged."""
        return uid in {0, self.status.st_uid}

    def entry(
        self,
        recipe: Recipe,
        status: os.stat_result | ReadStatus,
        xattrs: tuple[tuple[bytes, bytes], ...],
        *,
        is_being_written: bool = False,
    ) -> Entry:
        """Return the file's entry with the metadata at the time of the read.

        The file may have changed since its directory was listed.
        """
        is_written = is_being_written or self.is_being_written
        state = BEING_WRITTEN if is_written else CONSISTENT
        return self._entry(recipe, status, xattrs, state)

    def unreadable(self) -> Entry:
        """Return the file's entry if the content could not be read."""
        recipe = Recipe(NO_CONTENT, 0, self.status.st_size)
        return self._entry(recipe, self.status, (), UNREADABLE)

    def _entry(
        self,
        recipe: Recipe,
        status: os.stat_result | ReadStatus,
        xattrs: tuple[tuple[bytes, bytes], ...],
        state: int,
    ) -> Entry:
        return Entry(
            self.name,
            status.st_mode,
            status.st_uid,
            status.st_gid,
            storable_ns(status.st_mtime_ns),
            storable_ns(status.st_ctime_ns),
            status.st_ino,
            recipe.size_bytes,
            state=state,
            content=recipe.content,
            level=recipe.level,
            link_dev=self.link_dev,
            xattrs=xattrs,
        )
