"""``keep_optimizer`` in a bucket, where each older state is reduced in a session of its own.

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import contextlib

import numpy as np
import pytest

from ciuic.catalog import list_snapshots
from ciuic.maintain.label import change_tags, set_note
from ciuic.system.clock import SystemClock
from ciuic.training import saving
from ciuic.training.retention.planning import Rules
from tests.kit.buckets import FolderMachine
from tests.kit.saved_layers import save_here

pytestmark = pytest.mark.root

FIRST_NS = 10**18


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The machine of the library."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "own")
    machine.init()
    return machine


@pytest.fixture
def saver(own):
    return saving.Saver(own.address, SystemClock())


def weights(step):
    return {"w": np.full(1000, step)}


def save(saver, step, rules):
    return save_here(saver, weights(step), step, [], FIRST_NS + step, rules=rules)


def before_the_second_session(saver, monkeypatch, change):
    """Call ``change`` when the next save opens the store for the second time."""
    opened = []
    real = saver._open_to_add

    def opening(*waits):
        opened.append(None)
        if len(opened) == 2:
            change()
        return real(*waits)

    monkeypatch.setattr(saver, "_open_to_add", opening)


def test_a_tag_and_a_note_set_between_two_sessions_stay_with_the_weights(
    own, saver, tmp_path, monkeypatch
):
    rules = Rules(9, keep_optimizer=1)
    first = save(saver, 1, rules)
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")

    def label():
        with other.opened(write=True) as store:
            change_tags(store, first.id, add=["golden"])
            set_note(store, first.id, "the one of the paper")

    before_the_second_session(saver, monkeypatch, label)
    second = save(saver, 2, rules)

    assert second.notes == ()
    with other.opened() as store:
        newest, reduced = list_snapshots(store)
    assert newest.id == second.id
    assert reduced.id != first.id
    assert {"golden", "weights", "reduced", "step-1"} == set(reduced.tags)
    assert reduced.note == "the one of the paper"


def test_a_writer_of_this_machine_that_comes_between_two_sessions_does_not_hold_up_a_save(
    own, saver, monkeypatch
):
    oldest = save(saver, 1, Rules(9))
    older = save(saver, 2, Rules(9))
    rules = Rules(2, keep_optimizer=1)
    with contextlib.ExitStack() as stack:
        before_the_second_session(
            saver, monkeypatch, lambda: stack.enter_context(own.opened(write=True))
        )
        # The other writer works on until the save has ended.
        newest = save(saver, 3, rules)

    assert newest.notes == ()
    assert own.ids() == {older.id, newest.id}, "what exceeds the count is forgotten in any case"
    last = save(saver, 4, rules)
    with own.opened() as store:
        listed = list_snapshots(store)
    assert [(one.tags[0], "reduced" in one.tags) for one in listed] == [
        ("full", False),
        ("weights", True),
    ]
    assert listed[0].id == last.id
    assert oldest.id not in own.ids()
