"""Fixtures for the tests of the daemon."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemon import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    it = Machine(tmp_path)
    try:
        yield it
    finally:
        it.close()
