"""Two machines with a bucket and clocks that differ by a day; a store that was half made."""

import os

import pytest

from ciuic.maintain.forget import apply_forget, plan_forget
from ciuic.retention import parse_policy
from ciuic.store.place.records import create_in_bucket
from ciuic.store.records.header import Chunking
from tests.kit.buckets import FolderMachine, KilledError, PlaceWithFaults, write
from tests.kit.clock import ManualClock
from tests.kit.machine import MIB

DAY_S = 86_400


@pytest.mark.parametrize("ahead", [1, -1])
def test_clocks_that_differ_by_a_day_lose_nothing_that_a_policy_keeps(tmp_path, ahead):
    one = FolderMachine(tmp_path / "bucket", tmp_path / "one")
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    other.clock.advance(ahead * DAY_S)
    one.init()
    roots = [tmp_path / name for name in ("mine", "theirs")]
    taken = []
    for number in range(3):
        for machine, root in zip((one, other), roots, strict=True):
            root.mkdir(exist_ok=True)
            write(root, [f"f{number}"])
            taken.append(machine.take_at(machine.place(), root).id)

    for machine in (one, other):
        with machine.opened() as store:
            now_ns = machine.clock.now_ns()
            plan = plan_forget(store, parse_policy("last:2"), now_ns)
            apply_forget(store, plan, now_ns)
        machine.prune()
    # Each set of directories counts by itself, so a clock that is ahead displaces no other
    # snapshot.
    one.check(listed=taken[2:])
    assert other.ids() == set(taken[2:])


def test_a_store_in_a_bucket_whose_making_was_killed_is_made_by_the_next_init(tmp_path):
    number = 0
    while True:
        machine = FolderMachine(tmp_path / f"bucket{number}", tmp_path / "cache")

        def kill(at, _name, _keys, number=number):
            if at == number:
                raise KilledError

        place = PlaceWithFaults(machine.place(), kill)
        try:
            create_in_bucket(place, ManualClock(), Chunking.of("content", MIB))
        except KilledError:
            pass
        else:
            break
        machine.init()
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / "file").write_bytes(os.urandom(1000))
        taken = machine.take_at(machine.place(), tmp_path / "source").id
        machine.check(listed=[taken])
        number += 1
    assert number > 4, "a store is made by several changes"
