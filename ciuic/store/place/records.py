"""Write-once records of a store in a bucket, with the interface of a folder."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from ciuic.errors import LostRaceError, MissingError, StoreError
from ciuic.store.place.place import Place

__all__ = ["Records"]

K = TypeVar("K")


class Records:
    """The objects below a prefix, with the methods of ``Folder``.

    Args:
        place: The place of the store.
        prefix: The name of the folder.
    """

    def __init__(self, place: Place, prefix: str) -> None:
        self._place = place
        self._prefix = prefix
        self.path = f"{place.name}/{prefix}"

    def path_of(self, name: str) -> str:
        """See ``Folder``."""
        return f"{self.path}/{name}"

    def make(self) -> None:
        """See ``Folder``; a bucket has no directories."""

    def names(self, parse: Callable[[str], K | None]) -> set[K]:
        """See ``Folder``."""
        found = [parse(one.key.rpartition("/")[2]) for one in self._place.list(self._prefix)]
        return {name for name in found if name is not None}

    def read(self, name: str, bytes_max: int) -> bytes:
        """See ``Folder``: an object that is missing raises what a missing file does."""
        try:
            return self._place.get(f"{self._prefix}/{name}", bytes_max)
        except MissingError as error:
            raise StoreError(error.message) from FileNotFoundError(name)

    def create(self, name: str, data: bytes) -> bool:
        """See ``Folder``."""
        try:
            self._place.create(f"{self._prefix}/{name}", data)
        except LostRaceError:
            return False
        return True

    def remove_durably(self, names: Iterable[str]) -> None:
        """See ``Folder``."""
        self._place.delete(f"{self._prefix}/{name}" for name in names)
