"""Every saved fuzzing input runs again: none finds a defect or takes too much work."""

import tracemalloc
from pathlib import Path

import pytest

from tests.fuzz.reach import run_at_most
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import MEMORY_BYTES_MAX, TARGETS

CORPUS = Path(__file__).parent / "corpus"
CORPUS_BYTES_MAX = 300_000
LINES_MAX = 200_000
"""Lines of ciuic that an input of 2 KiB may run. The costliest known input runs a third."""


def inputs(target: str) -> list[bytes]:
    kept = [one.read_bytes() for one in sorted((CORPUS / target).glob("*"))]
    assert kept, f"scripts/fuzz --keep {target} makes what is missing"
    return SEEDS[target]() + kept


def test_every_target_has_seeds_and_every_corpus_a_target():
    assert SEEDS.keys() == TARGETS.keys()
    assert {one.name for one in CORPUS.iterdir()} == TARGETS.keys()


def test_the_corpus_stays_small():
    assert sum(one.stat().st_size for one in CORPUS.glob("*/*")) < CORPUS_BYTES_MAX


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_corpus_takes_little_time_and_memory(target):
    work = TARGETS[target]
    work(b"")  # a late import does not count as work of an input
    for data in inputs(target):
        run_at_most(LINES_MAX, lambda data=data: work(data))
        tracemalloc.start()
        try:
            work(data)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < MEMORY_BYTES_MAX
