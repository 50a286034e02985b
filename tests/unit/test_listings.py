"""When a directory may have changed after its listing without a trace."""

import os

import pytest

from ciuic.snapshot.walk.listings import NOT_LISTED, Listings

SECOND_NS = 1_000_000_000
BEGAN_NS = 1_700_000_000 * SECOND_NS + SECOND_NS // 2


class Status:
    """What ``Listings`` reads of a status."""

    def __init__(self, ctime_ns: int) -> None:
        self.st_ino = 7
        self.st_ctime_ns = ctime_ns


@pytest.mark.parametrize(
    ("ctime_ns", "is_doubtful"),
    [
        pytest.param(BEGAN_NS - 5_000_000, True, id="in the same tick"),
        pytest.param(BEGAN_NS - 50_000_000, False, id="in an earlier tick"),
        pytest.param(BEGAN_NS - SECOND_NS // 2, True, id="in whole seconds, in the same one"),
        pytest.param(BEGAN_NS - SECOND_NS * 5 // 2, False, id="in whole seconds, earlier"),
    ],
)
def test_a_directory_that_changed_just_before_the_snapshot_is_listed_again(
    monkeypatch: pytest.MonkeyPatch, ctime_ns: int, is_doubtful: bool
) -> None:
    """A later change may have left the same ctime."""
    status = Status(ctime_ns)
    listings = Listings(BEGAN_NS)
    number = listings.add(NOT_LISTED, b"/data", status, ctime_ns)
    monkeypatch.setattr(os, "stat", lambda *_, **__: status)

    assert list(listings.doubtful(has_vanished=True, is_first=True)) == [number] * is_doubtful
    assert list(listings.doubtful(has_vanished=True, is_first=False)) == []
