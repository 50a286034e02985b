"""What every test may start from, and how long hypothesis searches."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ciuic.capture.providers import IN_PLACE, choose
from tests.kit import order, skips
from tests.kit.box import Box

# Real files are slow at unpredictable moments: a deadline would only make tests flake.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_COMMON)
settings.register_profile("ci", max_examples=200, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A source and a store."""
    return Box(tmp_path)


@pytest.fixture
def public_box() -> Iterator[Box]:
    """A box that every user of the machine can reach: pytest's own directories are private."""
    directory = Path(tempfile.mkdtemp(prefix="ciuic-test-"))
    directory.chmod(0o755)
    try:
        yield Box(directory)
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def live_box(tmp_path: Path) -> Iterator[Box]:
    """A box whose files are read where they lie, so that what happens meanwhile is seen."""
    if choose(os.fsencode(tmp_path)).how == IN_PLACE:
        yield Box(tmp_path)
        return
    with tempfile.TemporaryDirectory(prefix="ciuic-test-", dir="/dev/shm") as directory:
        yield Box(Path(directory))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest; skip what needs root for everybody else, by name."""
    order.longest_first(items)
    if os.environ.get("CIUIC_LONG"):
        for item in items:
            item.add_marker(pytest.mark.timeout(3600))
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root") is not None:
            item.add_marker(pytest.mark.skip(reason="needs root"))


def pytest_configure(config: pytest.Config) -> None:
    """See ``tests.kit.skips``; files go to workers in the order they have here."""
    skips.install(config)
    # Else xdist begins with the files of the most tests, and ends with a single one of minutes.
    config.option.loadscopereorder = False
