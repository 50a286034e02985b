"""When ciuic counts the free space of a file system as short."""

import pytest

from ciuic.system.free_space import (
    COPIES_RESERVE,
    PRUNE_RESERVE,
    SNAPSHOT_RESERVE,
    FreeSpace,
    Reserve,
    free_space,
    is_short_of_space,
)

GIB = 1 << 30
TIB = 1 << 40


@pytest.mark.parametrize(
    ("reserve", "total_bytes", "wanted_bytes"),
    [
        (COPIES_RESERVE, 100 * GIB, 5 * GIB),
        (COPIES_RESERVE, 10 * TIB, 20 * GIB),
        (PRUNE_RESERVE, 100 * GIB, 5 * GIB),
        (PRUNE_RESERVE, 10 * TIB, 512 * GIB),
        (SNAPSHOT_RESERVE, 10 * GIB, GIB // 2),
        (SNAPSHOT_RESERVE, 10 * TIB, GIB),
    ],
)
def test_space_is_short_below_a_share_of_the_file_system_or_a_limit(
    reserve: Reserve, total_bytes: int, wanted_bytes: int
) -> None:
    assert FreeSpace(wanted_bytes - 1, total_bytes).is_below(reserve)
    assert not FreeSpace(wanted_bytes, total_bytes).is_below(reserve)


def test_the_free_space_is_that_of_the_file_system_of_the_path(tmp_path) -> None:
    found = free_space(tmp_path)
    assert 0 <= found.available_bytes <= found.total_bytes
    assert is_short_of_space(tmp_path, Reserve(1.0)) is (found.available_bytes < found.total_bytes)
    with pytest.raises(FileNotFoundError):
        is_short_of_space(tmp_path / "absent", PRUNE_RESERVE)
