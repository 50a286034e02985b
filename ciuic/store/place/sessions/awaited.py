"""For which leases each condemnation waits: docs/protocol.md has the proof that they are enough.

The first prune of this machine that sees a condemnation lists the leases, and later prunes of this
machine wait for the same ones. Otherwise sessions that overlap would keep condemned packs for ever.
"""

import contextlib
from collections.abc import Collection
from typing import Final

import msgspec

from ciuic.errors import StoreError
from ciuic.ids import SessionId
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout
from ciuic.store.records.sealed import seal, unseal_version

__all__ = ["AwaitedLeases"]

_NAME: Final = "awaited"
_FORMAT: Final = 1
_BYTES_MAX: Final = 64 * 1024 * 1024


class _Awaited(msgspec.Struct):
    format: int
    leases: list[str]
    checksum: str = ""


class AwaitedLeases:
    """A directory in the cache directory, with a file for each condemnation.

    Without a file, or with a damaged one, the leases are listed again: that only waits longer.

    Args:
        path: The cache directory.
    """

    def __init__(self, path: str) -> None:
        self._folder = Folder(path, _NAME)

    def of(self, condemned_by: SessionId, present: set[str]) -> set[str]:
        """Return the keys of the leases that a condemnation waits for.

        Args:
            condemned_by: The session of the condemnation.
            present: The leases of a listing that began when the condemnation was there already. A
                session whose lease it lacks has ended, or heeds the condemnation.
        """
        name = layout.session_name(condemned_by)
        with contextlib.suppress(StoreError):
            data = self._folder.read(name, _BYTES_MAX)
            return set(unseal_version(data, _Awaited, _FORMAT, "a list of leases").leases)
        with contextlib.suppress(StoreError):  # the next prune counts those that are there then
            self._folder.make_and_replace(name, seal(_Awaited(_FORMAT, sorted(present))))
        return present

    def keep(self, condemned_by: Collection[SessionId]) -> None:
        """Remove the files of all other condemnations, which are gone."""
        with contextlib.suppress(StoreError):
            old = self._folder.names(layout.parse_session_name) - set(condemned_by)
            self._folder.remove_all(map(layout.session_name, old))
