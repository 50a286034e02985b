"""Reads the ``.metadata`` file of a distributed checkpoint: which tensors its files hold."""

import contextlib
import os

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.formats.headers import Part
from ciuic.formats.torch_pickle import PICKLE_BYTES_MAX, parts
from ciuic.report.earlier_steps import has_content
from ciuic.snapshot.bases.delta_base import DISTCP
from ciuic.snapshot.bases.old_directory import METADATA
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.view.file import StoredFile
from ciuic.view.locator import Locator

__all__ = ["CheckpointMetadata"]


class CheckpointMetadata:
    """Names and places of tensors in the files of distributed checkpoints; the last is cached."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self._directory: bytes | None = None
        self._parts: dict[str, list[Part]] = {}

    def parts(self, path: bytes) -> list[Part]:
        """Return the parts of tensors in a file; empty outside distributed checkpoints."""
        if not path.endswith(DISTCP):
            return []
        directory, name = os.path.split(path)
        if directory != self._directory:
            self._directory, self._parts = directory, {}
            # Without names, tensors can still be compared by their places.
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                self._parts = self._read(os.path.join(directory, METADATA))
        return self._parts.get(os.fsdecode(name), [])

    def _read(self, path: bytes) -> dict[str, list[Part]]:
        found = Locator(self._store, self._manifest).find(path)
        if found is None or not has_content(found.entry):
            return {}
        size_bytes = found.entry.size_bytes
        if size_bytes > PICKLE_BYTES_MAX:
            return {}
        return parts(StoredFile(self._store, found.entry).read(0, size_bytes))
