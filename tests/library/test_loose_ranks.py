"""A save of a rank that an exception ended: waiting for its end leaves nothing behind."""

import os
import socket
import threading

import numpy as np
import pytest

from ciuic.system.clock import SystemClock
from ciuic.training.ranks.job import Job
from ciuic.training.ranks.server import RankServer
from ciuic.training.saves import Saves

REQUEST = {"label": [1, "full"]}


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.timeout(60)
def test_waits_that_end_too_early_do_not_add_connections(monkeypatch):
    clock = SystemClock()
    job = Job(rank=1, world_size=2, address=f"ciuic-test-{os.getpid()}", timeout_s=30.0)
    with job.listen(clock) as listener:
        server = RankServer(listener, 2, 30.0, clock)
        saves = Saves("/nowhere", job, clock)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("ciuic.training.saves.SaveHandle", interrupt)
            saves.begin(lambda: {"extra": {"w": np.arange(9)}}, REQUEST)
        for _ in range(4):
            with pytest.raises(TimeoutError):
                saves.settle(0.05)  # rank 0 does not save this step yet
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("ciuic-rank") == 2, "the old connection, and the one that follows it"

        server.collect(REQUEST["label"])
        server.settle({"id": "cs-1"})
        assert saves.settle(30.0) is None
        saves.close()
        names = [thread.name for thread in threading.enumerate()]
        assert "ciuic-rank" not in names
        server.close()
        # Otherwise the server's thread waits at a descriptor that another test opens.
        listener.shutdown(socket.SHUT_RDWR)
