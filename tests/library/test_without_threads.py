"""A training whose process may start no more threads: its saves say so, and its loads go on."""

import threading
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from ciuic import SnapshotManager
from ciuic.errors import ResourceError

TOO_LARGE = 1 << 46
"""No thread gets a stack of this many bytes, so none starts."""
STATE = {"w": np.arange(500_000.0), "small": np.arange(7)}


@pytest.fixture
def no_threads() -> Iterator[None]:
    before = threading.stack_size(TOO_LARGE)
    yield
    threading.stack_size(before)


def writers() -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process().children()
        if any("ciuic.training.writer" in word for word in one.cmdline())
    ]


def test_a_first_save_says_that_no_thread_can_be_started_and_leaves_no_process(tmp_path, request):
    with SnapshotManager(tmp_path) as manager:
        known = writers()
        request.getfixturevalue("no_threads")
        with pytest.raises(ResourceError, match="no more threads can be started"):
            manager.save_snapshot(STATE, step=1)
        assert writers() == known
        threading.stack_size(0)
        manager.save_snapshot(STATE, step=2, wait=True)
        assert manager.load_latest_snapshot()["step"] == 2


def test_saves_and_loads_go_on_when_no_further_thread_can_be_started(tmp_path, request):
    with SnapshotManager(tmp_path) as manager:
        manager.save_snapshot(STATE, step=1, wait=True)
        request.getfixturevalue("no_threads")
        # The first of its channel, so a thread would ask who else saves it.
        manager.save_snapshot(STATE, step=2, channel="weights", wait=True)
        for ref in (1, 2):
            state = manager.load_snapshot(ref)["model_state_dict"]
            assert np.array_equal(state["w"], STATE["w"])
            assert np.array_equal(state["small"], STATE["small"])
