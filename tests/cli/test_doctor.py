"""``ciuic doctor``: its findings on healthy and on broken machines; it only reads."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from ciuic.control import request_done, request_snapshot, request_status
from ciuic.errors import BusyError
from ciuic.report.doctor import machine as doctor_machine
from ciuic.store.store import open_store
from tests.cli.test_output import unsafe
from tests.cli.test_terminal import ESCAPE, on_terminal
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.daemon import Machine, wait_until
from tests.kit.damage import pack_of
from tests.kit.filesystems import disk
from tests.kit.installed import contents, run, run_here
from tests.kit.program import REPOSITORY, as_nobody

HOUR_NS = 3600 * 10**9


def findings(done, level=None, about=None):
    """The findings of a document, as sentences."""
    return [
        f"{one['about']}: {one['what']}"
        for one in done.document["findings"]
        if level in (None, one["level"]) and about in (None, one["about"])
    ]


def test_a_store_in_use_has_no_problem_and_everything_that_is_said_has_a_level_and_a_remedy(taken):
    taken.store.chmod(0o700)
    done = taken.run("doctor", "--json")
    people = taken.run("doctor")

    assert done.code == people.code == 0, done.said() + people.said()
    document = done.document
    assert document["ok"] is True
    for one in document["findings"]:
        assert set(one) == {"level", "about", "what", "advice"}
        assert one["level"] in {"ok", "note", "warning", "problem"}
        assert bool(one["advice"]) == (one["level"] != "ok"), one
    for level in ("ok", "note", "warning", "problem"):
        assert document["counts"][level] == len(findings(done, level))
    said = "\n".join(findings(done))
    for words in (
        "opens, format 1",
        "newest full snapshot",
        "captured",
        "no daemon serves this store",
    ):
        assert words in said
    for line in people.out.splitlines():
        assert line.split()[0] in {"ok", "note", "warning"} or line.startswith(" " * 9)
    assert people.err.startswith("0 problems, ")


def test_doctor_changes_nothing(taken):
    before = contents(taken.directory), contents(taken.source)
    taken.run("doctor")
    assert (contents(taken.directory), contents(taken.source)) == before


def test_a_missing_store_is_a_problem_and_the_roots_are_still_examined(fresh):
    shutil.rmtree(fresh.store)
    done = fresh.run_here("doctor", "--json")

    assert done.code == 1
    (problem,) = findings(done, "problem")
    assert problem == f"store: there is no store at {fresh.store}"
    assert findings(done, about=str(fresh.source))
    assert not fresh.store.exists()


def test_a_broken_configuration_is_a_problem_and_a_store_that_is_given_is_looked_at(taken):
    taken.configure("this is not a configuration\n")
    alone = taken.run_here("doctor", "--json")
    given = taken.run_here("--store", taken.store, "doctor", "--json")

    assert alone.code == given.code == 1
    assert findings(alone, "problem")[0].startswith(f"configuration: {taken.config}:1: ")
    assert "store" not in {one["about"] for one in alone.document["findings"]}
    assert len(findings(given, "problem")) == 1
    assert any("opens" in one for one in findings(given, "ok", "store"))


def test_the_store_alone_is_enough_and_its_newest_snapshot_names_the_roots(taken, monkeypatch):
    monkeypatch.setattr("ciuic.config.load.SYSTEM_PATHS", ())
    done = run_here("--store", taken.store, "doctor", "--json")

    assert done.code == 0, done.said()
    assert findings(done, "note", "configuration")
    assert findings(done, about=str(taken.source))


def test_without_anything_it_says_so(monkeypatch):
    monkeypatch.setattr("ciuic.config.load.SYSTEM_PATHS", ())
    done = run_here("doctor", "--json")

    assert done.code == 0
    assert findings(done, "note", "configuration")
    assert not findings(done, about="store")


@pytest.mark.parametrize("where", ["", "packs"])
def test_a_store_that_others_may_write_to_is_a_problem_and_one_they_may_read_a_warning(
    taken, where
):
    (taken.store / where).chmod(0o777)
    done = taken.run_here("doctor", "--json")
    (problem,) = findings(done, "problem")
    assert f"other users can write to {taken.store / where}" in problem

    (taken.store / where).chmod(0o700)
    taken.store.chmod(0o755)
    done = taken.run_here("doctor", "--json")
    assert done.code == 0
    assert any("may read every file" in one for one in findings(done, "warning", "store"))


def test_another_user_may_run_it(taken):
    if as_nobody() is None:
        pytest.skip("needs root to become another user")
    done = taken.run("doctor", "--json", user=as_nobody())
    assert done.code == 1
    assert done.document["counts"]["problem"] >= 1
    for one in [taken.store, *taken.store.rglob("*")]:
        one.chmod(0o755 if one.is_dir() else 0o644)
    for one in [taken.directory, *taken.directory.parents][:4]:
        one.chmod(one.stat().st_mode | 0o055)
    done = taken.run("--store", str(taken.store), "doctor", "--json", user=as_nobody())
    assert any(
        "this user may read it, but not write to it" in one for one in findings(done, "note")
    )


@pytest.mark.root
def test_a_store_on_a_read_only_file_system_is_called_that(taken):
    ciuic = f"{sys.executable} -c 'from ciuic.cli import main; main()'"
    line = (
        f"mount --bind {taken.store} {taken.store} && mount -o remount,ro,bind {taken.store} &&"
        f" {ciuic} --config {taken.config} doctor --json"
    )
    done = run("unshare", "-m", "bash", "-c", line, cwd=REPOSITORY)

    said = findings(done, about="store")
    assert any("Read-only file system" in one for one in said), said
    assert not any("belongs to user" in one for one in said), said


def test_a_root_that_is_missing_or_no_directory_or_not_in_the_newest_snapshot_is_a_problem(taken):
    file = taken.directory / "file"
    file.touch()
    new = taken.directory / "new"
    new.mkdir()
    roots = f"{taken.source}, {taken.directory}/gone, {file}, {new}"
    taken.configure(f"snapshot_paths = {roots}\nsnapshot_dir = {taken.store}\n")
    done = taken.run_here("doctor", "--json")

    problems = findings(done, "problem")
    assert done.code == 1
    assert f"{taken.directory}/gone: no such file or directory" in problems
    assert f"{file}: is not a directory" in problems
    assert [one for one in problems if "does not hold" in one and str(new) in one]


def test_a_root_that_is_a_symlink_is_named_with_what_it_means(fresh):
    link = fresh.directory / "link"
    link.symlink_to(fresh.source)
    fresh.configure(f"snapshot_paths = {link}\nsnapshot_dir = {fresh.store}\n")
    done = fresh.run_here("doctor", "--json")
    assert f"{link}: is a symlink to {fresh.source}; snapshots hold that directory" in findings(
        done
    )


@pytest.mark.parametrize(
    ("hours", "level", "words"),
    [
        (-48, "problem", "the configuration asks for a snapshot every 1 h 00 m"),
        (-48, "warning", "asks for a full snapshot every 12 h 00 m"),
        (48, "warning", "dated in the future"),
        (0, "ok", "the newest is"),
    ],
)
def test_the_age_of_what_there_is_against_what_is_wanted(tmp_path, hours, level, words):
    box = Box(tmp_path)
    box.config.write_text(f"snapshot_paths = {box.source}\nsnapshot_dir = {box.store}\n")
    box.take(clock=ManualClock(time.time_ns() + hours * HOUR_NS))
    done = box.ciuic("doctor", "--json")

    assert [one for one in findings(done, level) if words in one], findings(done)
    assert done.code == (1 if hours < 0 else 0)


def test_a_snapshot_of_another_directory_tells_nothing_about_the_configured_one(tmp_path):
    box = Box(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (box.source / "file").write_text("content")
    old = box.take(clock=ManualClock(time.time_ns() - 48 * HOUR_NS)).id
    by_hand = box.ciuic("snapshot", other).out.strip()

    done = box.ciuic("doctor", "--json")
    assert done.code == 1
    (late,) = findings(done, "problem", "snapshots")
    assert "the newest is 2 d 00 h old" in late
    assert f"snapshots: {old} has every path as it should be" in findings(done, "ok")
    assert box.ciuic("verify").out == f"{old}: ok\n"
    assert box.ciuic("verify", "--hot").out == f"{old}: no reflink copies\n"
    assert box.ciuic("verify", "latest").out == f"{by_hand}: ok\n"
    assert run_here("--store", box.store, "verify").out == f"{by_hand}: ok\n"
    assert box.ciuic("drill", "--json").document["snapshot"] == old

    assert box.ciuic("forget", "--last-whole", old).code == 0
    done = box.ciuic("doctor", "--json")
    assert "snapshots: there is no snapshot of the configured directories yet" in findings(
        done, "warning"
    )
    assert box.ciuic("verify").out == f"{by_hand}: ok\n"


def test_snapshots_of_a_schedule_that_was_renamed_count_for_the_one_that_has_its_directories(
    tmp_path,
):
    box = Box(tmp_path)
    other = tmp_path / "other"
    other.mkdir()

    def configure(**schedules):
        box.config.write_text(
            f"snapshot_dir = {box.store}\n"
            + "".join(
                f"[schedule {name}]\nsnapshot_paths = {path}\n" for name, path in schedules.items()
            )
        )

    def missing():
        found = findings(box.ciuic("doctor", "--json"), about="snapshots")
        return [one for one in found if "there is no snapshot of the " in one]

    configure(daily=box.source)
    assert box.ciuic("snapshot").code == 0
    assert missing() == []
    configure(nightly=box.source)
    assert missing() == []
    configure(nightly=box.source, others=other)
    assert missing() == ["snapshots: there is no snapshot of the schedule others yet"]
    # What belongs to a schedule that still exists counts for that one alone.
    configure(daily=other, nightly=box.source)
    assert missing() == ["snapshots: there is no snapshot of the schedule nightly yet"]


def test_trouble_in_the_newest_snapshot_and_a_damaged_manifest_are_named(tmp_path):
    box = Box(tmp_path)
    first = box.take()
    box.take(box.source, box.directory / "gone")
    done = box.ciuic("doctor", "--json")
    (trouble,) = [one for one in findings(done, "warning") if "with warnings" in one]
    assert f"1 path with warnings, first {box.directory}/gone: " in trouble

    (box.store / "snapshots" / f"{first.id}.json").write_text("{")
    done = box.ciuic("doctor", "--json")
    assert done.code == 1
    assert [one for one in findings(done, "problem") if f"manifest of {first.id}" in one]


def test_a_newest_snapshot_that_has_lost_a_pack_is_a_problem_before_any_scrub(tmp_path):
    box = Box(tmp_path)
    content = os.urandom(300_000)
    (box.source / "weights.bin").write_bytes(content)
    box.take()
    assert box.ciuic("doctor", "--json").code == 0
    pack = pack_of(box.store, content)
    os.truncate(pack, 1000)

    done = box.ciuic("doctor", "--json")

    assert done.code == 1
    (problem,) = findings(done, "problem", "snapshots")
    assert f" is damaged, first {box.source}/weights.bin: " in problem
    assert not [one for one in findings(done) if "as it should be" in one]


def test_a_snapshot_from_the_future_does_not_count_as_the_newest(tmp_path):
    box = Box(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    box.take(other, clock=ManualClock(time.time_ns() + 48 * HOUR_NS))
    newest = box.take()
    done = box.ciuic("doctor", "--json")
    assert f"snapshots: {newest.id} has every path as it should be" in findings(done, "ok")
    assert [one for one in findings(done, "warning") if "clock: 1 dated in the future" in one]
    assert done.code == 0, findings(done)
    without = findings(run_here("--store", box.store, "doctor", "--json"))
    assert [one for one in without if f"{box.source}: " in one]
    assert not [one for one in without if f"{other}: " in one]


def test_names_never_reach_the_terminal_as_they_are(tmp_path):
    box = Box(tmp_path)
    root = tmp_path / "\x1b[31mred\x1b]0;title\x07 line\x85\udcff"
    root.mkdir()
    box.take(root)
    command = ("ciuic", "--store", box.store, "doctor")
    piped = run(*command)
    code, shown = on_terminal(*command)
    _, plain = on_terminal(*command, NO_COLOR="1")

    assert piped.code == code == 0, piped.said()
    assert unsafe(piped.out) == unsafe(piped.err) == []
    assert "\\x1b[31mred" in piped.out
    assert "\x1b[31mred" not in shown
    assert ESCAPE in shown, "the words are coloured"
    assert ESCAPE not in plain


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "how"), [("btrfs", "as a subvolume"), ("xfs", "by reflink")])
def test_how_roots_and_the_mounts_in_them_are_captured(tmp_path, kind, how):
    box = Box(tmp_path)
    with disk(kind, tmp_path / "disk") as mounted:
        root = mounted.path / "training"
        inner = root / "data" / "other"
        inner.mkdir(parents=True)
        (root / "weights.bin").write_bytes(os.urandom(100_000))
        box.configure(root)
        subprocess.run(["mount", "-t", "tmpfs", "none", inner], check=True)
        try:
            if kind == "btrfs":
                create = ["btrfs", "subvolume", "create", "-q", root / "nested"]
                if subprocess.run(create, check=False).returncode:
                    subprocess.run([*create[:3], create[-1]], check=True)
            taken = box.ciuic("snapshot")
            assert taken.code == 0, taken.err
            done = box.ciuic("doctor", "--json")
        finally:
            subprocess.run(["umount", inner], check=True)
        about = findings(done, about=str(root))
        assert f"{root}: {kind} mounted on {mounted.path}; captured {how}" in about[0]
        assert f"reflink copies go to {mounted.path}" in about[0]
        (nested,) = [one for one in about if "captured in place" in one]
        assert f"{inner} (tmpfs)" in nested
        assert (f"{root}/nested (a btrfs subvolume)" in nested) == (kind == "btrfs")
        (frozen,) = findings(done, "ok", "reflink copies")
        assert f"{mounted.path}/.ciuic-frozen/" in frozen
        assert f"reflink copies of {taken.out.strip()}" in frozen
        assert findings(done, "ok", str(root))[-1].endswith("are open for writing")


def test_a_daemon_that_runs_is_paused_or_has_failed(tmp_path):
    machine = Machine(tmp_path)
    try:
        daemon = machine.start()
        daemon.wait_for_log("no warnings")
        command = ("--config", machine.config, "doctor", "--json")
        wait_until("it is idle", lambda: request_status(str(machine.store))["state"] == "idle")
        done = run_here(*command)
        assert findings(done, "ok", "daemon") == [f"daemon: runs as process {daemon.process.pid}"]
        request_done(str(machine.store), "pause")
        assert findings(run_here(*command), "warning", "daemon") == ["daemon: paused"]
        request_done(str(machine.store), "resume")
        with open_store(str(machine.store), write=True), pytest.raises(BusyError):
            request_snapshot(str(machine.store))
        done = run_here(*command)
        assert done.code == 1
        assert findings(done, "problem", "daemon")[0].startswith(
            "daemon: its last attempt failed: "
        )
    finally:
        machine.close()


def test_a_cutting_library_without_its_extension_is_named(fresh, monkeypatch):
    assert not findings(run_here("--store", str(fresh.store), "doctor", "--json"), about="chunking")
    monkeypatch.setattr(doctor_machine, "IS_COMPILED", False)
    done = run_here("--store", str(fresh.store), "doctor", "--json")
    assert [
        "lacks its compiled extension" in one for one in findings(done, "note", "chunking")
    ] == [True]
