"""When the disk of a store will be full."""

import msgspec
import pytest

from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.report.growth import full_in_s

DAY_NS = 86_400 * 10**9
NOW_NS = 1000 * DAY_NS
FIRST = SnapshotSummary(
    id=SnapshotId("cs-0000000000000000"),
    kind="base",
    parent=None,
    taken_ns=NOW_NS - 90 * DAY_NS,
    files=1,
    logical_bytes=1,
    new_bytes=1,
    stored_bytes=10**12,
    tags=(),
    trouble_count=0,
    roots=(b"/a",),
)


def taken(days_ago: float, stored_bytes: int) -> SnapshotSummary:
    moment_ns = NOW_NS - round(days_ago * DAY_NS)
    return msgspec.structs.replace(FIRST, taken_ns=moment_ns, stored_bytes=stored_bytes)


@pytest.mark.parametrize(
    ("snapshots", "days"),
    [
        ([], None),
        ([FIRST], None),
        ([FIRST, taken(20, 100)], None),
        ([FIRST, taken(3, 0)], None),
        ([FIRST, taken(4, 30), taken(2, 10)], 100),
        ([FIRST, taken(0.1, 10)], 100),
        ([taken(2, 10), FIRST, taken(-1, 10**9), taken(5, 40)], 100),
    ],
)
def test_the_growth_of_the_last_week_says_when_the_disk_will_be_full(
    snapshots: list[SnapshotSummary], days: float | None
) -> None:
    found = full_in_s(snapshots, 1000, NOW_NS)
    assert found == (None if days is None else pytest.approx(days * 86_400))
