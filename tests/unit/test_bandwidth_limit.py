"""The bandwidth limit of a copy."""

import pytest

from ciuic.copy.limit import BandwidthLimit
from ciuic.errors import CancelledError


class Ticking:
    """A clock on which only sleeping takes time."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def now_ns(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        assert 0 < duration_s <= 0.1, "a signal would be seen too late"
        self.now_s += duration_s


def nothing() -> None:
    pass


@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
def test_the_average_is_the_limit(size: int) -> None:
    clock = Ticking()
    limit = BandwidthLimit(100_000, clock, nothing)
    for _ in range(20_000_000 // size if size > 1 else 1_000_000):
        limit.spend(size)
    total = 1_000_000 if size == 1 else 20_000_000
    assert clock.now_s - 5.0 == pytest.approx(total / 100_000, rel=0.06, abs=0.2)


def test_a_pause_of_the_source_is_not_made_up_for() -> None:
    clock = Ticking()
    limit = BandwidthLimit(1000, clock, nothing)
    limit.spend(1000)
    clock.now_s += 3600
    for _ in range(10):
        limit.spend(1000)
    assert clock.now_s >= 3605 + 8


def test_no_limit_takes_no_time() -> None:
    clock = Ticking()
    limit = BandwidthLimit(0, clock, nothing)
    limit.spend(10**15)
    limit.spend(1)
    assert clock.now_s == 5.0


def test_a_wait_ends_as_soon_as_that_is_asked_for() -> None:
    clock = Ticking()

    def check() -> None:
        if clock.now_s > 6:
            raise CancelledError("stopped")

    limit = BandwidthLimit(1, clock, check)
    limit.spend(1_000_000)
    with pytest.raises(CancelledError):
        limit.spend(1)
    assert clock.now_s < 6.2
