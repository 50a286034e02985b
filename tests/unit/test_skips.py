"""Which chunks are compared with their old versions, if results come in any order."""

import random

import pytest

from ciuic.snapshot.bases.skips import Skips

CHUNKS = 200


def compared(like: set[int], workers: int, seed: int = 0) -> list[int]:
    """Compare the chunks of one tensor, up to ``workers`` at once, with results in any order.

    Args:
        like: The chunks that are similar to their old versions.
        workers: Number of comparisons that may be unfinished.
        seed: Chooses the order.

    Returns:
        The chunks that were compared.
    """
    skips = Skips()
    dice = random.Random(seed)
    begun: list[int] = []
    unfinished: list[int] = []
    for chunk in range(CHUNKS):
        if not skips.should_skip(0, chunk * 4096):
            begun.append(chunk)
            unfinished.append(chunk)
        while unfinished and (len(unfinished) == workers or dice.random() < 0.3):
            done = unfinished.pop(dice.randrange(len(unfinished)))
            skips.tell(0, done * 4096, is_like=done in like)
    return begun


def test_after_each_miss_more_chunks_are_skipped_up_to_a_limit() -> None:
    assert compared(set(), workers=1)[:6] == [0, 4, 12, 28, 44, 60]


def test_after_a_chunk_that_resembles_its_old_version_every_chunk_is_compared() -> None:
    assert compared(set(range(4, CHUNKS)), workers=1) == [0, *range(4, CHUNKS)]


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("seed", range(50))
def test_misses_that_are_reported_together_count_once(workers: int, seed: int) -> None:
    # Chunks 0 to 3 are misses. A miss may skip more than three chunks only if its comparison began
    # after the result of another miss, however many began at once.
    begun = compared(set(range(4, CHUNKS)), workers, seed)
    assert len(set(range(CHUNKS)) - set(begun)) <= 3 + 7


@pytest.mark.parametrize("workers", [2, 8])
@pytest.mark.parametrize("seed", range(50))
def test_a_tensor_that_never_resembles_its_old_version_is_seldom_read(
    workers: int, seed: int
) -> None:
    rounds = len(compared(set(), workers=1))
    assert len(compared(set(), workers, seed)) <= rounds * workers


def test_a_late_miss_does_not_undo_a_later_result() -> None:
    skips = Skips()
    assert not skips.should_skip(0, 0)
    assert not skips.should_skip(0, 4096)
    skips.tell(0, 4096, is_like=True)
    skips.tell(0, 0, is_like=False)
    assert not skips.should_skip(0, 8192)


def test_after_several_tensors_without_success_the_next_ones_are_not_compared() -> None:
    skips = Skips()
    looked = []
    for tensor in range(12):
        if not skips.should_skip(tensor, tensor * 4096):
            looked.append(tensor)
            skips.tell(tensor, tensor * 4096, is_like=False)
    assert looked == [0, 1, 2, 3, 5, 8]


def test_chunks_in_no_tensor_are_always_compared() -> None:
    skips = Skips()
    for offset in range(0, 40960, 4096):
        assert not skips.should_skip(-1, offset)
        skips.tell(-1, offset, is_like=False)
