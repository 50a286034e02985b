"""Snapshots of another machine that has the name and the machine ID of this one.

The test with two daemons is tests/s3/test_machines_of_one_name.py.
"""

import os
import time

import pytest

from ciuic.catalog import list_snapshots
from ciuic.model import COMMAND, DAEMON
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuicd.schedules.namesakes import snapshots_of_namesakes
from tests.kit.buckets import FolderMachine, write
from tests.kit.clock import ManualClock


@pytest.fixture
def one(tmp_path):
    """A machine that has begun to note what it commits."""
    write(tmp_path / "source", "a")
    made = FolderMachine(tmp_path / "bucket", tmp_path / "one")
    made.init()
    assert namesakes(made) == set()
    return made


@pytest.fixture
def two(one, tmp_path):
    """Its copy."""
    return FolderMachine(tmp_path / "bucket", tmp_path / "two")


def namesakes(machine):
    with machine.opened() as store:
        return {found.id for found in snapshots_of_namesakes(store, list_snapshots(store))}


def taken(machine, tmp_path, origin=DAEMON, ahead_s=0):
    clock = ManualClock(time.time_ns() + ahead_s * 10**9)
    request = TakeRequest((os.fsencode(tmp_path / "source"),), origin=origin)
    with machine.opened(write=True) as store:
        return take_snapshot(store, request, clock=clock).id


def test_what_a_copy_of_this_machine_takes_is_told_apart(one, two, tmp_path):
    ours = taken(one, tmp_path)
    assert namesakes(one) == set()

    theirs = taken(two, tmp_path)

    assert namesakes(one) == {theirs}
    assert namesakes(two) == set(), "they were there before it began to look"
    later = taken(one, tmp_path)
    assert namesakes(one) == {theirs}
    assert namesakes(two) == {later}
    assert ours in one.ids()


def test_what_a_command_of_another_user_takes_says_nothing(one, two, tmp_path):
    taken(two, tmp_path, origin=COMMAND)

    assert namesakes(one) == set()


def test_a_snapshot_that_is_removed_leaves_nothing_in_the_record(one, tmp_path):
    first = taken(one, tmp_path)
    taken(one, tmp_path)
    record = list((tmp_path / "one").rglob(f"own/{first}.json"))
    assert len(record) == 1

    one.forget(first)
    one.prune()
    assert namesakes(one) == set()

    assert not record[0].exists()


def test_a_snapshot_with_a_time_to_come_from_before_the_record_is_no_namesakes(one, tmp_path):
    earlier = taken(one, tmp_path, ahead_s=86400)
    for record in (tmp_path / "one").rglob("own/*"):
        record.unlink()
    assert namesakes(one) == set()

    later = taken(one, tmp_path)

    assert namesakes(one) == set()
    assert {earlier, later} <= one.ids()


def test_without_the_cache_directory_every_snapshot_counts_as_own(one, two, tmp_path):
    theirs = taken(two, tmp_path)
    assert namesakes(one) == {theirs}
    for record in (tmp_path / "one").rglob("own/*"):
        record.unlink()

    assert namesakes(one) == set()
