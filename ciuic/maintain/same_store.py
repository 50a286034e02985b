"""Checking that the same store is still at a path. No lock ensures it while packs are read."""

from ciuic.errors import StoreError
from ciuic.store.directory.find import read_header

__all__ = ["refuse_other_store"]


def refuse_other_store(store_path: str, store_id: str) -> None:
    """Refuse to continue if the store at the path is not the store with this ID.

    Raises:
        StoreError: The store is gone, or a different store is at its path.
    """
    if read_header(store_path).store_id != store_id:
        raise StoreError(
            f"a different store is now at {store_path}",
            hint="Mount the file system of the first store again. Packs that are missing here are"
            " not damage.",
        )
