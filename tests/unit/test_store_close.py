"""Closing a store releases its locks, whatever fails meanwhile."""

import pytest

from ciuic.errors import StoreError
from ciuic.store.store import open_store
from tests.kit.box import Box


def test_a_failure_while_a_store_is_closed_leaves_no_lock(box: Box) -> None:
    def fail() -> None:
        raise StoreError("the disk fails")

    with (
        pytest.raises(StoreError, match="the disk fails"),
        open_store(str(box.store), write=True) as store,
    ):
        store.index_keeper.close = fail  # type: ignore[method-assign]
    with open_store(str(box.store), write=True):
        pass
