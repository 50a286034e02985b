"""Tags, pins, forget and undo of snapshots in a bucket of a real S3 server."""

import dataclasses
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ciuic.catalog import find_snapshot, list_snapshots, unreadable
from ciuic.errors import (
    CommitUncertainError,
    CorruptionError,
    SnapshotNotFoundError,
    UnknownFormatError,
    UnreachableError,
    UsageError,
)
from ciuic.maintain.bad_marks import survey_marks
from ciuic.maintain.forget import apply_forget, bring_back, plan_forget_by_id
from ciuic.maintain.label import change_tags, move_tags, set_pinned
from ciuic.maintain.prune.bucket.prune import prune_bucket
from ciuic.store.addressed import open_at_address
from ciuic.store.records import layout
from ciuic.store.records.sealed import seal
from ciuic.system.clock import SystemClock
from tests.kit import faulty_proxy as faults
from tests.kit.ceph import SECRET_KEY
from tests.kit.machine import Machine
from tests.kit.place_contract import keys
from tests.kit.program import ciuic

pytestmark = [pytest.mark.slow, pytest.mark.root]


@pytest.fixture
def source(tmp_path):
    """A small source: these tests are about marks."""
    top = tmp_path / "source"
    top.mkdir()
    (top / "file").write_bytes(os.urandom(20_000))
    return top


@pytest.fixture
def taken(machine, source):
    """Three snapshots, oldest first; ``machine`` has taken them."""
    return [machine.take(source).id for _ in range(3)]


def tag(machine, snapshot_id, *words):
    with machine.opened() as store:
        return change_tags(store, snapshot_id, add=words)


def pin(machine, snapshot_id, *, pinned=True):
    with machine.opened() as store:
        return set_pinned(store, snapshot_id, pinned=pinned)


def forget(machine, *snapshot_ids):
    now_ns = time.time_ns() + 3600 * 10**9
    with machine.opened() as store:
        plan = plan_forget_by_id(store, snapshot_ids, now_ns, last_whole=True)
        apply_forget(store, plan, now_ns)


def undo(machine, snapshot_id):
    with machine.opened() as store:
        return bring_back(store, snapshot_id)


def seen(machine):
    """The list of a machine: the tags and the pin of each snapshot, and the trash."""
    with machine.opened() as store:
        listed = {one.id: (one.tags, one.pinned) for one in list_snapshots(store)}
        return listed, set(store.trash.ids())


def is_mark(request):
    return request.method == "PUT" and "/marks/" in request.path


def first(act):
    """Return a fault that runs another action just before the first mark is created."""
    left = [act]

    def fault(request, forward):
        if is_mark(request) and left:
            left.pop()()
        return forward(request)

    return fault


def test_another_machine_sees_each_change(machine, other, taken):
    old, middle, new = taken
    tag(machine, old, "good")
    pin(machine, middle)
    assert seen(other) == ({old: (("good",), False), middle: ((), True), new: ((), False)}, set())
    with pytest.raises(UsageError, match="is pinned"):
        forget(other, middle)
    pin(other, middle, pinned=False)
    forget(other, middle, old)
    assert seen(machine) == ({new: ((), False)}, {old, middle})
    with machine.opened() as store, pytest.raises(SnapshotNotFoundError, match="was forgotten"):
        find_snapshot(store, old)
    undo(machine, old)
    assert seen(other) == ({old: (("good",), False), new: ((), False)}, {middle})
    assert other.verify().ok


def test_the_commands_work(machine, other, server, taken):
    old, middle, _ = taken
    environ = {**machine.environ, "AWS_ENDPOINT_URL": server.endpoint}

    def run(*command):
        done = ciuic("--store", machine.address, *command, more=environ)
        assert done.code == 0, done
        return done.out

    run("tag", old, "--add", "best")
    run("tag", middle, "--move", "best")
    run("pin", old)
    run("pin", "--remove", old)
    assert "forget" in run("forget", old, "--dry-run")
    assert keys(other.place(), "leases") == []
    run("forget", old)
    assert [one["id"] for one in json.loads(run("list", "--trash", "--json"))] == [old]
    run("forget", "--undo", old)
    run("forget", "--policy", "last:2")
    assert seen(other)[0].keys() == set(taken[1:])
    assert seen(other)[0][middle] == (("best",), False)


def test_a_mark_needs_no_lock_of_a_writer_on_this_machine(machine, taken):
    with machine.opened(write=True) as store:
        pin(machine, taken[0])
        assert store.writable

    assert seen(machine)[0][taken[0]] == ((), True)


def test_a_snapshot_that_comes_between_two_listings_is_not_lost(
    machine, other, proxy, taken, source
):
    listings = 0

    def between(request, forward):
        nonlocal listings
        listings += request.is_listing
        if request.is_listing and listings == 2:
            tag(other, other.take(source).id, "new")
        return forward(request)

    proxy.always(between)
    with machine.opened() as store:
        assert unreadable(store) == ({}, {})
    assert listings >= 2
    assert seen(machine) == seen(other)


def test_the_loser_of_a_race_changes_what_the_winner_wrote(machine, other, proxy, taken):
    proxy.always(first(lambda: tag(other, taken[0], "theirs")))

    assert tag(machine, taken[0], "mine").tags == ("theirs", "mine")

    assert seen(other)[0][taken[0]] == (("theirs", "mine"), False)
    assert len(keys(other.place(), "marks")) == 2


def test_a_snapshot_that_is_pinned_meanwhile_is_not_forgotten(machine, other, proxy, taken):
    proxy.always(first(lambda: pin(other, taken[0])))

    with pytest.raises(UsageError, match=f"{taken[0]} is pinned"):
        forget(machine, taken[0])

    assert seen(other)[0][taken[0]] == ((), True)


def test_a_tag_comes_too_late_for_a_snapshot_that_is_forgotten_meanwhile(
    machine, other, proxy, taken
):
    proxy.always(first(lambda: forget(other, taken[0])))

    with pytest.raises(SnapshotNotFoundError, match="was forgotten"):
        tag(machine, taken[0], "late")

    assert undo(other, taken[0]).tags == ()


def test_a_snapshot_that_is_brought_back_twice_at_once_is_back(machine, other, proxy, taken):
    tag(machine, taken[0], "old")
    forget(machine, taken[0])
    proxy.always(first(lambda: undo(other, taken[0])))

    assert undo(machine, taken[0]).tags == ("old",)

    assert seen(other)[0][taken[0]] == (("old",), False)


def test_all_tags_of_machines_at_once_are_there(machine, other, server, taken, tmp_path):
    machines = [
        Machine(machine.address, server, server.endpoint, tmp_path / f"cache-{number}")
        for number in range(4)
    ]

    def act(number):
        for turn in range(3):
            tag(machines[number], taken[0], f"{number}-{turn}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, range(4)))

    tags, _ = seen(other)[0][taken[0]]
    assert set(tags) == {f"{number}-{turn}" for number in range(4) for turn in range(3)}


def test_a_tag_moves_from_a_snapshot_of_another_machine(machine, other, taken):
    tag(machine, taken[0], "best")

    with other.opened() as store:
        moved, others = move_tags(store, taken[2], ["best"])

    assert (moved.tags, others) == (("best",), [taken[0]])
    assert {one: tags for one, (tags, _) in seen(machine)[0].items() if tags} == {
        taken[2]: ("best",)
    }


@pytest.mark.parametrize(
    "fault",
    [faults.lose_answer, faults.fail_after(500), faults.repeat, faults.drop, faults.cut],
    ids=["answer lost", "error after it was done", "arrives twice", "dropped", "answer cut"],
)
def test_a_fault_of_the_network_makes_one_mark(machine, other, proxy, taken, fault):
    def once(request, forward):
        if not is_mark(request):
            return forward(request)
        proxy.always(None)
        return fault(request, forward)

    proxy.always(once)
    forget(machine, taken[0])
    proxy.always(once)
    assert undo(machine, taken[0]).id == taken[0]

    assert seen(other)[0].keys() == set(taken)
    assert len(keys(other.place(), "marks")) == 2


def test_an_answer_that_never_comes_is_uncertain(machine, other, proxy, taken):
    def silent(request, forward):
        return faults.lose_answer(request, forward) if is_mark(request) else forward(request)

    pin(machine, taken[1])
    machine.options = dataclasses.replace(machine.options, patience_s=2)
    proxy.always(silent)
    with pytest.raises(CommitUncertainError, match="not confirmed") as tagged:
        tag(machine, taken[1], "new")
    with pytest.raises(CommitUncertainError, match=f"{taken[0]} is forgotten was not") as forgot:
        forget(machine, taken[0])
    proxy.always(None)

    assert SECRET_KEY not in f"{tagged.value} {forgot.value}"
    assert seen(machine) == seen(other)
    assert seen(other)[0] == {taken[1]: (("new",), True), taken[2]: ((), False)}


@pytest.mark.parametrize("loss", ["deleted", "truncated", "removed"])
def test_marks_on_this_machine_are_only_copies(machine, taken, loss):
    pin(machine, taken[0])
    tag(machine, taken[0], "a")
    forget(machine, taken[1])
    before = seen(machine)
    (own,) = (machine.cache / "ciuic").iterdir()
    copies = list((own / layout.MARKS).iterdir())
    if loss == "deleted":
        shutil.rmtree(own / layout.MARKS)
    for copy in copies:
        if loss == "truncated":
            os.truncate(copy, 10)
        elif loss == "removed":
            copy.unlink()

    assert seen(machine) == before
    assert len(copies) <= 3


def test_only_the_newest_marks_are_kept_on_a_machine(machine, other, taken):
    for word in "abcdef":
        tag(machine, taken[0], word)
    seen(other)
    tag(machine, taken[0], "g")
    seen(other)

    (own,) = (other.cache / "ciuic").iterdir()
    assert [mark.name for mark in (own / layout.MARKS).iterdir()] == [f"{taken[0]}-7.json"]


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff" * 2_000_000])
def test_a_damaged_mark_in_the_bucket_counts_as_a_pin(machine, other, taken, damage):
    forget(machine, taken[0])
    (key,) = keys(other.place(), "marks")
    other.place().put(key, damage)
    (own,) = (machine.cache / "ciuic").iterdir()
    (own / key).unlink()

    for one in (machine, other):
        assert seen(one)[0][taken[0]] == ((), True)
    pin(other, taken[0], pinned=False)
    assert seen(machine)[0][taken[0]] == ((), False)


def test_a_bucket_with_an_unknown_feature_takes_no_mark(machine, other, taken):
    document = json.loads(other.place().get(layout.HEADER, 10_000))
    document.pop("checksum")
    document |= {"required_to_write": ["time-travel"], "checksum": ""}
    other.place().put(layout.HEADER, seal(document))

    for act in (
        lambda: pin(machine, taken[0]),
        lambda: forget(machine, taken[0]),
        lambda: tag(machine, taken[0], "word"),
    ):
        with pytest.raises(UnknownFormatError, match="time-travel"):
            act()
    assert keys(other.place(), "marks") == []


def test_a_snapshot_whose_manifest_is_lost_is_abandoned_where_there_is_no_copy(
    machine, other, taken
):
    tag(machine, taken[0], "word")
    other.place().delete([f"{layout.SNAPSHOTS}/{layout.manifest_name(taken[0])}"])

    with pytest.raises(CorruptionError, match="is gone") as caught:
        forget(machine, taken[0])  # its cache has a copy
    assert "'ciuic repair --apply'" in caught.value.hint
    forget(other, taken[0])
    assert seen(other)[0].keys() == set(taken[1:])
    assert seen(machine)[0].keys() == set(taken[1:])
    assert keys(other.place(), "marks") == []


def closed(folder):
    """Return a fault: objects of a folder belong to another account, which has not shared them."""
    refuse = faults.status(403, "AccessDenied")

    def fault(request, forward):
        is_read = request.method == "GET" and not request.is_listing
        answer = refuse if is_read and f"/{folder}/" in request.path else None
        return answer(request, forward) if answer else forward(request)

    return fault


def test_a_mark_that_is_closed_to_this_machine_stops_nothing_and_counts_as_a_pin(
    machine, other, proxy, taken, source, tmp_path
):
    old, middle, new = taken
    tag(other, middle, "theirs")
    forget(other, old)
    proxy.always(closed("marks"))

    with machine.opened() as store:
        manifests, marks = unreadable(store)
        assert (manifests, marks.keys()) == ({}, {old, middle})
        listed = {one.id: one for one in list_snapshots(store)}
    assert [listed[one].pinned for one in taken] == [True, True, False]
    assert "the server answered 403" in listed[middle].mark_problem
    with pytest.raises(UsageError, match="is pinned"):
        forget(machine, middle)
    machine.restore(source, tmp_path / "restored")
    newer = machine.take(source).id
    with machine.opened() as store:
        survey = survey_marks(store)
    assert {key[0] for key in survey.unreachable} == {old, middle}
    assert survey.damaged == []
    repair = ("--store", machine.address, "repair")
    done = ciuic(*repair, more={**machine.environ, "AWS_ENDPOINT_URL": proxy.endpoint})
    assert done.code == 4
    assert f"marks/{middle}-1.json: mark 1 of {middle}: " in done.out
    assert "the server answered 403" in done.out
    assert "Correct the credentials" in done.err

    proxy.always(None)
    states = {middle: (("theirs",), False), new: ((), False), newer: ((), False)}
    assert seen(machine) == seen(other) == (states, {old})


def test_a_manifest_that_is_closed_to_this_machine_is_one_snapshot_that_it_cannot_read(
    machine, other, proxy, taken, source, tmp_path
):
    theirs = other.take(source).id
    proxy.always(closed("snapshots"))

    with machine.opened() as store:
        assert {one.id for one in list_snapshots(store)} == set(taken)
        damaged, _ = unreadable(store)
        assert damaged.keys() == {theirs}
        assert "the server answered 403" in damaged[theirs]
        with pytest.raises(UnreachableError) as refused:
            store.manifest(theirs)
    assert "use keys of one account on all machines" in refused.value.hint
    machine.restore(source, tmp_path / "restored")
    with (
        open_at_address(
            machine.address, machine.environ, machine.options, write=True, removes=True
        ) as store,
        pytest.raises(UnreachableError, match="nothing was removed"),
    ):
        prune_bucket(store, trash_s=0, now_ns=time.time_ns(), clock=SystemClock())

    proxy.always(None)
    with machine.opened() as store:
        assert {one.id for one in list_snapshots(store)} == {*taken, theirs}
