"""Fixtures for all tests, and how long hypothesis searches."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from ciuic.source.freeze.methods import IN_PLACE, choose
from tests.kit import order, skips
from tests.kit.box import Box

# Real files are slow at unpredictable moments: a deadline would make tests flaky.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_COMMON)
# In continuous integration, the same code gets the same answer; elsewhere every run tries new
# examples.
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("ci-short", max_examples=25, derandomize=True, **_COMMON)
settings.register_profile("long", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(autouse=True)
def same_priority() -> Iterator[None]:
    """No test may lower this process's priority for good: a daemon of a later test inherits it."""
    process = psutil.Process()
    nice, io_class = process.nice(), process.ionice()
    yield
    after = process.nice(), process.ionice()
    process.nice(nice)
    process.ionice(*io_class)
    assert after == (nice, io_class), "this test lowered the priority of the process it runs in"


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A source and a store."""
    return Box(tmp_path)


@pytest.fixture
def public_box() -> Iterator[Box]:
    """A box that every user can reach; pytest's own directories are private."""
    directory = Path(tempfile.mkdtemp(prefix="ciuic-test-"))
    directory.chmod(0o755)
    try:
        yield Box(directory)
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def live_box(tmp_path: Path) -> Iterator[Box]:
    """A box whose files are read in place, so that changes during the read are seen."""
    if choose(os.fsencode(tmp_path)).how == IN_PLACE:
        yield Box(tmp_path)
        return
    with tempfile.TemporaryDirectory(prefix="ciuic-test-", dir="/dev/shm") as directory:
        yield Box(Path(directory))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest files; skip tests that need root for other users."""
    order.longest_first(items)
    if os.environ.get("CIUIC_LONG"):
        for item in items:
            item.add_marker(pytest.mark.timeout(3600))
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root") is not None:
            item.add_marker(pytest.mark.skip(reason="needs root"))


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of garbage collection; they stay until the end.

    There are ten thousand. A test that collects garbage would look at all of them, for 0.4 s.
    """
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """See ``tests.kit.skips``; files go to workers in this order."""
    skips.install(config)
    # A shell makes what it starts in the background ignore SIGINT. Programs that tests start would
    # inherit that, and could not be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Otherwise xdist starts with the files that have the most tests, and a long file runs alone at
    # the end.
    config.option.loadscopereorder = False
