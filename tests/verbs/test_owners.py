"""Several machines, schedules and the library share a store without affecting each other."""

import os
import time
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.config.load import load_settings
from ciuic.ids import DEFAULT_SCHEDULE
from ciuic.model import (
    COMMAND,
    DAEMON,
    LIBRARY,
    Owner,
)
from ciuic.snapshot import take as take_module
from ciuic.snapshot.plan import TakeRequest
from ciuic.store.store import open_store
from ciuic.system import machine as machine_module
from ciuic.system.clock import local_time_text
from ciuic.system.machine import Machine, this_machine
from ciuicd.taking import newest_taken_ns
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.damage import flip_content
from tests.kit.machines import HERE, HOUR_NS, OTHER, TWIN, Shared


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    box = Box(tmp_path)
    (box.source / "file").write_bytes(os.urandom(100_000))
    return Shared(box, monkeypatch)


# What is recorded


def test_a_manifest_says_who_took_the_snapshot_and_for_which_schedule(shared: Shared) -> None:
    shared.take(on=OTHER)
    by_command = shared.box.ciuic("snapshot", "--json").document["id"]
    partial = shared.box.ciuic("snapshot", "--exclude", "*.tmp", "--json").document["id"]
    elsewhere = shared.box.ciuic("snapshot", shared.box.directory / "source", "--json").document
    state = shared.take_state().id
    listed = shared.listed()
    assert listed[by_command].owner == Owner(HERE, is_library=False)
    assert (listed[by_command].origin, listed[by_command].schedule) == (COMMAND, DEFAULT_SCHEDULE)
    assert listed[partial].schedule == "", "it leaves out more than the configuration says"
    assert listed[elsewhere["id"]].schedule == DEFAULT_SCHEDULE, "these are the configured roots"
    assert (listed[state].origin, listed[state].schedule) == (LIBRARY, "")
    documents = {one["id"]: one for one in shared.box.ciuic("list", "--json").document}
    keys = ("host", "machine", "origin", "schedule")
    assert [documents[by_command][key] for key in keys] == [HERE.name, HERE.id, COMMAND, "default"]
    shown = shared.box.ciuic("show", by_command, "--json").document
    assert [shown[key] for key in keys] == [HERE.name, HERE.id, COMMAND, "default"]


def test_machines_are_told_apart_by_name_and_by_machine_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Machine("gpu1", "aaaa")
    assert not one.is_same(Machine("gpu1", "bbbb")), "two machines of one name"
    assert not one.is_same(Machine("gpu2", "aaaa")), "a copy of a virtual machine"
    assert one.is_same(Machine("gpu1", "")), "a container without a machine ID"
    path = tmp_path / "machine-id"
    monkeypatch.setattr(machine_module, "_MACHINE_ID", str(path))
    assert this_machine().id == ""
    path.write_text("uninitialized\n")
    assert this_machine().id == ""
    path.write_text("0123456789abcdef0123456789abcdef\n")
    assert len(this_machine().id) == 16
    assert this_machine().id not in path.read_text(), "machine IDs are secret"


# Incremental snapshots, full snapshots, reflink copies


def test_a_snapshot_is_not_compared_with_one_of_another_machine(shared: Shared) -> None:
    """A copied disk has the same inodes and times, and perhaps other content."""
    file = shared.box.source / "file"
    theirs = shared.take(on=OTHER)
    status = file.stat()
    with file.open("r+b") as opened:
        opened.write(b"ours")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    ours = shared.take()
    assert (ours.kind, ours.parent) == ("base", None)
    assert ours.read_bytes == 100_000
    again = shared.take(on=OTHER)
    assert (again.kind, again.parent) == ("delta", theirs.id)
    assert shared.take().parent == ours.id
    assert shared.box.read(file, ours.id).startswith(b"ours")


def test_the_parent_is_of_the_same_schedule(shared: Shared) -> None:
    scheduled = shared.take(origin=DAEMON)
    manual = shared.take(schedule="")
    assert (manual.kind, manual.parent) == ("base", None)
    assert shared.take(origin=DAEMON).parent == scheduled.id
    assert shared.take(schedule="").parent == manual.id
    asked = shared.take(origin=COMMAND)
    assert asked.kind == "delta", "a command's snapshot of what is configured is of the schedule"


def test_a_full_snapshot_of_another_schedule_does_not_count(shared: Shared) -> None:
    two_hours = {"base_interval_s": 2.5 * 3600}
    shared.take(**two_hours)
    shared.take(schedule="", base=True)
    assert shared.take(**two_hours).kind == "delta"
    shared.take(on=OTHER, base=True)
    assert shared.take(schedule="", **two_hours).kind == "base"
    assert shared.take(**two_hours).kind == "base"


def test_each_owner_and_schedule_keeps_its_newest_reflink_copies(shared: Shared) -> None:
    shared.take(on=OTHER)
    theirs, manual = shared.take(on=OTHER).id, shared.take(schedule="").id
    shared.take()
    newest = shared.take()
    listed = shared.listed()
    older = [one for one in shared.box.snapshots() if one.id != newest.id]
    request = TakeRequest((os.fsencode(shared.box.source),))
    kept = take_module._newest(listed[newest.id], older, request)
    assert set(kept) == {theirs, manual, newest.id}
    none_manual = request._replace(hot_by_schedule={"": 0})
    kept = take_module._newest(listed[newest.id], older, none_manual)
    assert set(kept) == {theirs, newest.id}


def test_a_snapshot_while_the_clock_was_ahead_is_still_named_as_the_parent(shared: Shared) -> None:
    """So ``latest`` is the snapshot that was taken last, whatever it holds."""
    other = shared.box.directory / "other"
    other.mkdir()
    shared._now_ns += 1_000 * HOUR_NS
    ahead = shared.take(schedule="")
    shared._now_ns -= 1_000 * HOUR_NS
    later = shared.take(other)
    assert later.parent == ahead.id
    with open_store(str(shared.box.store)) as store:
        assert find_snapshot(store, "latest").id == later.id


# Damage


def test_a_fallback_takes_no_file_of_another_machine(shared: Shared, tmp_path: Path) -> None:
    """Both machines have a path of one name, with other content."""
    file = shared.box.source / "file"
    older, theirs, newest = (os.urandom(100_000) for _ in range(3))
    taken = []
    for content, machine in ((older, HERE), (theirs, OTHER), (newest, HERE)):
        file.write_bytes(content)
        taken.append(shared.take(on=machine).id)
    flip_content(shared.box.store, newest)
    report = shared.box.restore(file, to=tmp_path / "out", snapshot=taken[2], fallback=True)
    assert not report.failed
    assert (tmp_path / "out" / "file").read_bytes() == older
    verified = shared.box.ciuic("verify", taken[2], "--checksum", "--json").document
    (damaged,) = verified["snapshots"]
    assert damaged["nearest_valid"] == taken[0]
    assert damaged["damaged"][0]["intact_in"] == taken[0]


def test_a_restore_says_that_latest_is_of_another_machine(shared: Shared, tmp_path: Path) -> None:
    theirs = shared.take(on=OTHER).id
    target = ("-p", shared.box.source / "file", "-d", tmp_path / "out", "--overwrite")
    alone = shared.box.ciuic("restore", "-s", "latest", *target)
    assert "gpu2" not in alone.err, "this machine replaces the other one"
    ours, theirs = shared.take().id, shared.take(on=OTHER).id
    done = shared.box.ciuic("restore", "-s", "latest", *target)
    assert done.code == 0
    said = f"{theirs} was taken on gpu2; the newest snapshot of this machine is {ours}"
    assert said in done.err
    elsewhere = shared.box.directory / "elsewhere"
    elsewhere.mkdir()
    shared.take(elsewhere)  # newer, but it has not what is restored
    assert said in shared.box.ciuic("restore", "-s", "latest", *target).err
    moment = local_time_text(shared.listed()[theirs].taken_ns + 10**9)
    shared.take()
    done = shared.box.ciuic("restore", "-s", moment, *target)
    assert f"{theirs} was taken on gpu2; the newest snapshot of this machine until" in done.err
    assert f"then is {ours}" in done.err
    assert "gpu2" not in shared.box.ciuic("restore", "-s", theirs[:12], *target).err
    assert "gpu2" not in shared.box.ciuic("restore", "-s", ours, *target).err


# Retention


def test_no_policy_forgets_a_snapshot_of_another_machine_or_of_the_library(shared: Shared) -> None:
    theirs = [shared.take(on=OTHER).id for _ in range(3)]
    states = [shared.take_state().id for _ in range(3)]
    ours = [shared.take().id for _ in range(4)]
    assert sorted(shared.forget("last:2")) == sorted(ours[:2])
    assert shared.listed().keys() == {*theirs, *states, *ours[2:]}
    assert shared.forget("1h") == [ours[2]], "the newest of this machine stays"


def test_the_same_name_on_another_machine_is_another_machine(shared: Shared) -> None:
    twin = Machine(HERE.name, "f" * 16)
    theirs = [shared.take(on=twin).id for _ in range(3)]
    ours = [shared.take().id for _ in range(3)]
    assert sorted(shared.forget("last:1")) == sorted(ours[:2])
    # The name means both machines. The policy applies to each by itself.
    assert sorted(shared.forget("last:1", HERE.name)) == sorted(theirs[:2])


def test_a_policy_is_applied_to_another_machine_by_name(shared: Shared) -> None:
    theirs = [shared.take(on=OTHER).id for _ in range(3)]
    ours = [shared.take().id for _ in range(3)]
    assert sorted(shared.forget("last:1", "gpu2")) == sorted(theirs[:2])
    assert shared.forget("1h", "gpu2") == [], "its newest one stays"
    assert shared.listed().keys() == {theirs[2], *ours}


def test_a_manual_snapshot_uses_up_nothing_of_the_schedule(shared: Shared) -> None:
    scheduled = [shared.take(origin=DAEMON).id for _ in range(3)]
    manual = [shared.take(schedule="").id for _ in range(3)]
    assert shared.forget("last:3") == []
    assert sorted(shared.forget("last:1")) == sorted([*scheduled[:2], *manual[:2]])


def test_snapshots_that_cron_takes_with_the_configuration_are_thinned(shared: Shared) -> None:
    box = shared.box
    known = [box.ciuic("snapshot").out.strip() for _ in range(3)]
    assert box.ciuic("forget", "--policy", "last:1").code == 0
    assert shared.listed().keys() == {known[2]}


def test_the_last_undamaged_snapshot_of_another_machine_is_protected(shared: Shared) -> None:
    theirs = shared.take(on=OTHER).id
    shared.take()
    shared.take()
    done = shared.box.ciuic("forget", theirs)
    assert done.code == 2
    assert f"{theirs} is the only snapshot of {shared.box.source} on gpu2" in done.err or (
        f"{theirs} is the newest" in done.err and "on gpu2" in done.err
    )
    assert "--last-whole" in done.err
    assert shared.box.ciuic("forget", "--last-whole", theirs).code == 0


def test_a_dry_run_says_what_it_looks_at_and_what_it_leaves_alone(shared: Shared) -> None:
    for _ in range(2):
        shared.take(on=OTHER)
        shared.take_state()
        shared.take(schedule="")
        shared.take()
    done = shared.box.ciuic("forget", "--dry-run", "--policy", "last:1")
    source = shared.box.source
    assert done.err.splitlines() == [
        f"looked at 2 snapshots of {source} (no schedule)",
        f"looked at 2 snapshots of {source} (schedule default)",
        "left alone 2 snapshots of gpu2",
        f"left alone 2 snapshots of the library on {HERE.name}",
        "would forget 2 snapshots and keep 2",
    ]
    document = shared.box.ciuic("forget", "--dry-run", "--policy", "last:1", "--json").document
    assert len(document["left_alone"]) == 4
    theirs = shared.box.ciuic("forget", "--dry-run", "--policy", "last:1", "--host", "gpu2")
    assert "would forget 1 snapshot and keep 1" in theirs.err
    shared.take(on=TWIN)
    twin = shared.box.ciuic("forget", "--dry-run", "--policy", "last:1", "--host", TWIN.long_name)
    assert "left alone 2 snapshots of gpu2:0123" in twin.err
    assert "would forget 0 snapshots and keep 1" in twin.err
    unknown = shared.box.ciuic("forget", "--policy", "last:1", "--host", "gpu3")
    assert unknown.err.splitlines()[0] == (
        "ciuic: no snapshot was taken on the host 'gpu3'; the hosts are"
        f" {', '.join(sorted(('gpu2:0123', TWIN.long_name, HERE.name)))}"
    )
    refused = shared.box.ciuic("forget", "--host", "gpu2", "latest")
    assert (refused.code, refused.out) == (2, "")


# The daemon


def test_the_daemon_takes_its_own_snapshot_although_another_machine_took_one(
    shared: Shared,
) -> None:
    clock = ManualClock(time.time_ns())
    settings = load_settings(str(shared.box.config))
    shared.take(on=OTHER)
    assert newest_taken_ns(settings, clock) is None
    shared.take_state()
    assert newest_taken_ns(settings, clock) is None
    ours = shared.take()
    shared.take(on=OTHER)
    assert newest_taken_ns(settings, clock) == ours.taken_ns


# What is shown


def test_the_list_shows_and_selects_what_differs(shared: Shared) -> None:
    ours = shared.take().id
    assert not {"HOST", "ORIGIN", "SCHEDULE"} & set(shared.box.ciuic("list").out.split())
    theirs = shared.take(on=OTHER).id
    twin = shared.take(on=TWIN).id
    manual = shared.take(schedule="").id
    state = shared.take_state().id
    listed = shared.box.ciuic("list").out
    assert {"HOST", "ORIGIN", "SCHEDULE"} <= set(listed.split())
    assert "gpu2:0123" in listed
    assert "gpu2:ffff" in listed
    assert f"{HERE.name}:" not in listed

    def chosen(*options: str) -> set[str]:
        return {one["id"] for one in shared.box.ciuic("list", "--json", *options).document}

    assert chosen("--host", "gpu2") == {theirs, twin}
    assert chosen("--host", "gpu2:ffff") == {twin}
    assert chosen("--origin", "library") == {state}
    assert chosen("--schedule", "none") == {manual, state}
    assert chosen("--schedule", "default", "--host", HERE.name) == {ours}
    nothing = shared.box.ciuic("list", "--schedule", "nightly")
    assert nothing.err == (
        "no snapshot belongs to the schedule 'nightly'; the schedules are default, none\n"
    )
    nothing = shared.box.ciuic("list", "--host", "GPU2")
    hosts = ", ".join(sorted(("gpu2:0123", "gpu2:ffff", HERE.name)))
    assert nothing.err == f"no snapshot was taken on the host 'GPU2'; the hosts are {hosts}\n"
    nothing = shared.box.ciuic("list", "--host", "gpu2", "--origin", "daemon")
    assert nothing.err.endswith("has the origin 'daemon'\n")


def test_the_status_says_on_which_machine_the_newest_snapshot_is_and_names_that_of_this_one(
    shared: Shared,
) -> None:
    def said() -> list[str]:
        return shared.box.ciuic("status").out.splitlines()

    shared.take(on=OTHER)
    assert "here:    no snapshot of this machine" in said()
    ours = shared.take().id
    assert not [line for line in said() if line.startswith("here") or "gpu2" in line]
    theirs = shared.take(on=OTHER).id
    newest, here = said()[1:3]
    assert newest.startswith(f"newest:  {theirs} of ")
    assert newest.endswith(" ago, on gpu2")
    assert here.startswith(f"here:    {ours} of ")
    document = shared.box.ciuic("status", "--json").document
    assert (document["newest"]["id"], document["newest_here"]["id"]) == (theirs, ours)
    shared.pass_hours(200)
    shared.take(on=OTHER)
    assert said()[1].endswith(", in the future: a clock was wrong, on gpu2")


def test_the_status_leaves_out_a_schedule_of_another_machine_with_the_same_name(
    shared: Shared,
) -> None:
    ours = shared.take().id
    elsewhere = shared.box.directory / "elsewhere"
    elsewhere.mkdir()
    shared.take(elsewhere, on=OTHER)

    document = shared.box.ciuic("status", "--json").document

    assert document["newest"]["id"] == ours


def test_the_status_tells_two_machines_of_one_name_apart(shared: Shared) -> None:
    shared.take(on=OTHER)
    shared.take(on=TWIN)

    newest = shared.box.ciuic("status").out.splitlines()[1]

    assert newest.endswith(", on gpu2:ffff")


def test_the_versions_of_a_path_say_on_which_machine_they_are(shared: Shared) -> None:
    listed = ("list", "--path", shared.box.source / "file")
    shared.take()
    assert "HOST" not in shared.box.ciuic(*listed).out
    shared.take(on=OTHER)
    shared.take(on=TWIN)
    heading, *rows = shared.box.ciuic(*listed).out.splitlines()
    place = heading.index("HOST")
    assert [row[place:].split()[0] for row in rows] == ["gpu2:ffff", "gpu2:0123", HERE.name]


@pytest.mark.parametrize("command", ["ls", "cat"])
def test_latest_with_a_path_is_the_newest_snapshot_that_holds_it(
    shared: Shared, command: str
) -> None:
    other = shared.box.directory / "other"
    other.mkdir()
    shared.take()
    shared.take(other)
    file = shared.box.source / "file"
    assert shared.box.ciuic(command, "latest", file).code == 0
