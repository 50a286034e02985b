"""If the file system of a store is missing, the daemon creates no other store in its place."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ciuic.config.load import load_settings
from ciuic.control import request_done, request_snapshot
from ciuic.errors import StoreError
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.source.mounts import mount_points_of
from ciuic.store.directory.create import create_store
from ciuic.store.directory.find import read_header
from ciuic.store.store import open_store
from ciuicd.jobs.job import Job
from ciuicd.jobs.steps import all_steps
from ciuicd.notify import Notifier
from ciuicd.taking import SnapshotTaker
from ciuicd.upkeep.upkeep import Upkeep
from tests.kit.clock import ManualClock
from tests.kit.daemon import Machine, wait_until
from tests.kit.filesystems import tmpfs

DAY_NS = 86_400 * 10**9


def state_of(machine: Machine) -> Path:
    state = machine.directory / "state"
    state.mkdir(exist_ok=True)
    return state


def run(machine: Machine, *arguments: str, **environ: str) -> tuple[int, str]:
    """Run a daemon that should end by itself; return its exit code and log."""
    daemon = machine.launch({"STATE_DIRECTORY": str(state_of(machine)), **environ}, arguments)
    return daemon.exit_code(), daemon.log()


@pytest.mark.parametrize("arguments", [(), ("--once",)], ids=["daemon", "once"])
def test_no_second_store_is_created_where_the_daemon_has_served_one(machine, arguments):
    assert run(machine, "--once")[0] == 0
    wanted = read_header(str(machine.store)).store_id
    away = machine.directory / "away"
    machine.store.rename(away)
    for is_there in (False, True):
        if is_there:
            machine.store.mkdir()  # the mount point
        code, log = run(machine, *arguments)
        assert code == 1
        assert f"{machine.store} no longer holds a store; it used to hold store {wanted[:8]}" in log
        assert f"remove {state_of(machine)}/stores.json" in log
        assert "Traceback" not in log
        assert run(machine, "--link-store", str(machine.directory / "link")) == (0, "")
        assert not (machine.directory / "link").is_symlink()
        assert not machine.store.exists() or os.listdir(machine.store) == []

    machine.store.rmdir()
    away.rename(machine.store)
    assert run(machine, "--once")[0] == 0
    assert len(machine.snapshots()) == 2


def test_a_new_store_is_created_once_the_record_of_the_old_one_is_removed(machine):
    assert run(machine, "--once")[0] == 0
    shutil.rmtree(machine.store)
    assert run(machine, "--once")[0] == 1
    (state_of(machine) / "stores.json").unlink()
    assert run(machine, "--once")[0] == 0
    assert len(machine.snapshots()) == 1


def test_another_store_at_the_path_of_the_served_store_is_refused(machine):
    assert run(machine, "--once")[0] == 0
    machine.store.rename(machine.directory / "away")
    create_store(str(machine.store), ManualClock())
    code, log = run(machine)
    assert code == 1
    assert f"{machine.store} holds a different store than before" in log
    assert machine.snapshots() == []
    (state_of(machine) / "stores.json").unlink()
    assert run(machine, "--once")[0] == 0
    assert run(machine, "--once")[0] == 0


def test_a_store_that_the_daemon_cannot_record_is_created_with_a_warning(machine):
    daemon = machine.launch({"STATE_DIRECTORY": ""}, ("--once",))
    assert daemon.exit_code() == 0
    assert f"created the store {machine.store}, but ciuicd has no state directory" in daemon.log()
    again = machine.launch({"STATE_DIRECTORY": ""}, ("--once",))
    assert again.exit_code() == 0
    assert "created the store" not in again.log()


def test_each_store_is_recorded_by_its_path(machine):
    paths = [machine.store, machine.directory / "second"]
    for path in paths:
        machine.configure(snapshot_dir=str(path))
        assert run(machine, "--once")[0] == 0
    known = json.loads((state_of(machine) / "stores.json").read_bytes())
    assert known == {str(path): read_header(str(path)).store_id for path in paths}


@pytest.mark.parametrize("content", [b"", b"[1", b"[]", b'{"/": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_record_costs_no_snapshot(machine, content):
    (state_of(machine) / "stores.json").write_bytes(content)
    code, log = run(machine, "--once")
    assert code == 0, log
    assert "Traceback" not in log
    assert len(machine.snapshots()) == 1


def test_a_record_that_cannot_be_written_costs_no_snapshot(machine):
    code, log = run(machine, "--once", STATE_DIRECTORY=str(machine.directory / "missing"))
    assert code == 0
    assert f"{machine.directory}/missing/stores.json cannot be written" in log


def test_no_store_is_created_on_an_unmounted_mount_point_of_fstab(machine):
    point = machine.directory / "a disk"
    point.mkdir()
    machine.store = point / "deep" / "store"
    machine.configure()
    table = machine.directory / "fstab"
    table.write_text(
        "# /dev/sdz /nowhere ext4 defaults 0 0\n\nproc /proc proc defaults\n"
        f"UUID=1-2 {str(point).replace(' ', chr(92) + '040')} ext4 defaults,nofail 0 2\n"
    )
    for arguments in ((), ("--once",)):
        code, log = run(machine, *arguments, LIBMOUNT_FSTAB=str(table))
        assert code == 1
        assert f"nothing is mounted on {point}" in log
        assert os.listdir(point) == []

    table.write_text(f"UUID=1-2 {machine.directory}/disk ext4 defaults,nofail 0 2\n/ / ext4\n")
    assert run(machine, "--once", LIBMOUNT_FSTAB=str(table))[0] == 0


@pytest.mark.root
def test_a_mounted_file_system_gets_a_store_and_the_daemon_notices_its_loss(machine):
    point = machine.directory / "disk"
    machine.store = point / "store"
    machine.configure()
    table = machine.directory / "fstab"
    table.write_text(f"none\t{point}\ttmpfs\tnoauto\n")
    with tmpfs(point, size_mib=64):
        assert run(machine, "--once", LIBMOUNT_FSTAB=str(table))[0] == 0
    for environ in ({"LIBMOUNT_FSTAB": str(table)}, {}):
        code, log = run(machine, "--once", **environ)
        assert code == 1
        assert "Mount" in log
        assert os.listdir(point) == []


def test_a_running_daemon_does_not_serve_another_store_at_the_path(machine):
    machine.configure(snapshot_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    away = machine.directory / "away"
    below = machine.directory / "below"
    create_store(str(below), ManualClock())
    machine.store.rename(away)
    below.rename(machine.store)
    daemon.wait_for_log(f"a different store is now at {machine.store}", count=2)
    assert machine.snapshots() == []
    shutil.rmtree(machine.store)
    away.rename(machine.store)
    count = len(machine.snapshots())
    wait_until("snapshots go on", lambda: len(machine.snapshots()) > count)
    assert "Traceback" not in daemon.log()
    assert daemon.stop() == 0


def neglected(machine: Machine, path: Path) -> None:
    """Create another store that needs a forget, a prune and a scrub."""
    names = []
    for days in (40, 39, 38):
        clock = ManualClock(time.time_ns() - days * DAY_NS)
        create_store(str(path), clock)
        (machine.source / "other").write_bytes(os.urandom(300_000))
        with open_store(str(path), write=True) as store:
            request = TakeRequest(roots=(os.fsencode(machine.source),), base=True, parity=0)
            names.append(take_snapshot(store, request, clock=clock).id)
    with open_store(str(path), write=True) as store:
        store.trash.forget(names[:1], time.time_ns() - 10 * DAY_NS)


def files_of(store: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(store.rglob("*")) if one.is_file()}


def test_another_store_at_the_path_gets_no_forget_prune_or_scrub(machine):
    below = machine.directory / "below"
    neglected(machine, below)
    machine.configure(retention_policy="last:1", scrub_budget="10m", snapshot_interval="1s")
    daemon = machine.start()
    # The daemon is paused: upkeep is due, and waits until the other store is in place.
    assert request_done(str(machine.store), "pause")
    first = request_snapshot(str(machine.store))
    assert first is not None
    assert request_snapshot(str(machine.store)) is not None

    def is_forgotten() -> bool:
        lines = daemon.log().splitlines()
        return any("forgot" in line and first["id"] in line for line in lines)

    wait_until("the daemon rests", is_forgotten)
    away = machine.directory / "away"
    machine.store.rename(away)
    below.rename(machine.store)
    before = files_of(machine.store)
    said = daemon.log()
    assert request_done(str(away), "resume")
    daemon.wait_for_log(f"a different store is now at {machine.store}", count=3)
    assert files_of(machine.store) == before
    machine.store.rename(below)
    away.rename(machine.store)
    daemon.wait_for_log("scrub: ", count=said.count("scrub: ") + 1)
    assert "Traceback" not in daemon.log()
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("table", "points"),
    [
        (b"", []),
        (b"#/dev/sda / ext4\n  # x /y\n", []),
        (b"/dev/sda /a ext4 defaults 0 0", [b"/a"]),
        (b"LABEL=x /with\\040space\t ext4\nUUID=y none swap sw\n", [b"/with space"]),
        (b"x\n\n \t\nx relative ext4\nx /\xff\\134 y", [b"/\xff\\"]),
    ],
)
def test_fstab_is_parsed(table, points):
    assert mount_points_of(table) == points


def test_a_daemon_without_its_store_asks_for_the_disk_and_resumes(machine):
    machine.configure(snapshot_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    away = machine.directory / "away"
    machine.store.rename(away)
    daemon.wait_for_log(f"the store {machine.store} is gone. Mount the store's disk, or put")
    assert "new store" not in daemon.log()
    away.rename(machine.store)
    count = len(machine.snapshots())
    wait_until("snapshots go on", lambda: len(machine.snapshots()) > count)
    assert daemon.stop() == 0


@pytest.mark.root
def test_the_missing_mount_point_is_named(machine):
    point = machine.directory / "disk"
    machine.store = point / "store"
    machine.configure(snapshot_interval="1s")
    table = machine.directory / "fstab"
    table.write_text(f"none\t{point}\ttmpfs\tnoauto\n")
    with tmpfs(point, size_mib=64):
        daemon = machine.start({"LIBMOUNT_FSTAB": str(table)})
        daemon.wait_for_log("no warnings")
        subprocess.run(["umount", "--lazy", str(point)], check=True, timeout=30)
        daemon.wait_for_log(f"the store {machine.store} is gone. Mount {point}: /etc/fstab names")
        assert os.listdir(point) == []
        assert daemon.stop() == 0
        # The fixture of the test unmounts the file system.
        subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=True, timeout=30)
    environ = {"LIBMOUNT_FSTAB": str(table)}
    assert run(machine, "--once", **environ)[0] == 1
    (state_of(machine) / "stores.json").write_text(f'{{"{machine.store}": "{"0" * 32}"}}')
    code, log = run(machine, "--once", **environ)
    assert code == 1
    assert f"Mount {point} first: /etc/fstab names it" in log


@pytest.mark.parametrize("is_trashed", [True, False])
@pytest.mark.parametrize("store_id", ["ab" * 16, ""])
def test_a_store_that_is_mounted_just_before_upkeep_opens_it_is_unchanged(
    machine, caplog, is_trashed, store_id
):
    """The daemon looks at the path, and opens the store a moment later."""
    machine.configure(
        retention_policy="last:1" if not is_trashed else "3650d",
        scrub_budget="10m",
        drill_interval="1s",
    )
    below = machine.directory / "below"
    neglected(machine, below)
    below.rename(machine.store)
    before = files_of(machine.store)
    upkeep = Upkeep(ManualClock(time.time_ns()), lambda: None, store_id=store_id)
    settings = load_settings(str(machine.config))
    upkeep.after_snapshot(settings)
    upkeep.run(settings, lambda: False)
    assert files_of(machine.store) == before
    assert f"a different store is now at {machine.store}" in caplog.text
    wanted = read_header(str(machine.store)).store_id
    upkeep = Upkeep(ManualClock(time.time_ns()), lambda: None, store_id=wanted)
    upkeep.after_snapshot(settings)
    upkeep.run(settings, lambda: False)
    assert files_of(machine.store) != before, "its own store is cared for"


def test_no_snapshot_is_taken_into_a_store_that_is_mounted_just_before_it_is_opened(machine):
    create_store(str(machine.store), ManualClock())
    settings = load_settings(str(machine.config))

    def taker(store_id):
        clock = ManualClock(time.time_ns())
        return SnapshotTaker(
            clock,
            Notifier({}),
            lambda _job: False,
            lambda: contextlib.nullcontext(lambda: None),
            somebody_waits=lambda: False,
            is_ending=lambda: False,
            store_id=store_id,
            apart=False,
        )

    with pytest.raises(StoreError, match="a different store is now at"):
        all_steps(taker("ab" * 16).take(settings, Job(), interval_s=3600.0))
    assert machine.snapshots() == []
    own = taker(read_header(str(machine.store)).store_id)
    all_steps(own.take(settings, Job(), interval_s=3600.0))
    assert len(machine.snapshots()) == 1
