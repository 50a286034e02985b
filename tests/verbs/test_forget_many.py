"""Forgetting many snapshots by name."""

from collections.abc import Callable
from typing import Any

import pytest

from ciuic.maintain.forget import apply_forget, plan_forget_by_id
from ciuic.store.directory.folder import Folder
from ciuic.store.store import open_store
from tests.kit.box import Box

NOW_NS = 2_000_000_000_123_456_789


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories of stores that were listed."""
    found = []

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def listed(folder: Folder, *arguments: Any) -> Any:
            found.append(folder.path)
            return real(folder, *arguments)

        return listed

    for name in ("names", "statuses"):
        monkeypatch.setattr(Folder, name, counted(getattr(Folder, name)))
    return found


def test_the_store_is_not_listed_anew_for_each_snapshot_to_forget(
    box: Box, listings: list[str]
) -> None:
    for number in range(13):
        (box.source / "file").write_bytes(b"%d" % number)
        box.take()
    names = [found.id for found in reversed(box.snapshots())]
    counts = []
    for wanted in (names[:2], names[2:12]):
        listings.clear()
        with open_store(str(box.store), write=True) as store:
            apply_forget(store, plan_forget_by_id(store, wanted, NOW_NS), NOW_NS)
        counts.append(len(listings))
    assert counts[0] == counts[1]
    assert [found.id for found in box.snapshots()] == names[12:]
