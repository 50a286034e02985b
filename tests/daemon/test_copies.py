"""``ciuicd --copy``: a real process keeps the configured copies up to date."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ciuic.catalog import list_snapshots
from ciuic.config.load import load_settings
from ciuic.copy.record import Standing, read_record, standings
from ciuic.model import SnapshotSummary
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.daemon import REPOSITORY, Machine, wait_until
from tests.kit.damage import packs
from tests.kit.filesystems import need_root, tmpfs
from tests.kit.program import ciuic

STANDING = {
    *("name", "address", "missing", "behind_s", "tried", "done", "problem", "damaged"),
    "differences",
}


class Copied:
    """A machine whose store has a copy."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.copy = machine.directory / "nas"
        self.configure()

    def configure(self, more: str = "", **values: str) -> None:
        if "[copy" not in more:
            values = {"copies": str(self.copy)} | values
        self.machine.configure(**values)
        with self.machine.config.open("a") as file:
            file.write(more)

    def take(self, text: str = "") -> str:
        if text:
            (self.machine.source / "note.txt").write_text(text)
        with open_store(str(self.machine.store), write=True) as store:
            request = TakeRequest(roots=(os.fsencode(self.machine.source),))
            return str(take_snapshot(store, request, clock=SystemClock()).id)

    def start(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "ciuicd", "--config", self.machine.config, "--copy"]
        return subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)

    def run(self, code: int = 0) -> str:
        process = self.start()
        _, said = process.communicate(timeout=300)
        assert process.returncode == code, said
        assert "Traceback" not in said
        return said

    def ciuic(self, *command: object, code: int = 0):
        done = ciuic("--config", self.machine.config, *command)
        assert done.code == code, done.out + done.err
        return done

    def there(self, *command: object):
        done = ciuic("--store", self.copy, *command)
        assert done.code == 0, done.err
        return done

    def listed(self) -> dict[str, SnapshotSummary]:
        with open_store(str(self.copy)) as store:
            return {one.id: one for one in list_snapshots(store)}

    def standing(self) -> Standing:
        with open_store(str(self.machine.store)) as store:
            copies = load_settings(str(self.machine.config)).copy_addresses
            (found,) = standings(store, copies, time.time_ns())
        return found


@pytest.fixture
def copied(machine: Machine) -> Copied:
    made = Copied(machine)
    made.ciuic("init")
    return made


def test_a_copy_gets_every_snapshot_and_status_list_and_doctor_say_how_far_it_is(copied):
    first = copied.take()
    assert copied.standing().tried_ns is None
    said = copied.run(code=1)
    assert "there is no store at" in said
    asked = f"ciuic --config {copied.machine.config} copy --to {copied.copy} --init"
    assert f"'{asked}' makes the first copy" in said
    assert not copied.copy.exists(), "its disk may not be mounted"
    found = copied.standing()
    assert (found.missing, found.done_ns) == (1, None)
    assert "there is no store" in found.problem

    copied.ciuic("copy", "--to", copied.copy, "--init")
    assert (copied.standing().missing, copied.standing().problem) == (0, "")
    second = copied.take("new")
    assert f"copy {copied.copy}: lacks 1 snapshot" in copied.ciuic("list").err
    assert "lacks 1 snapshot, the oldest taken" in copied.ciuic("status").out
    (shown,) = json.loads(copied.ciuic("status", "--json").out)["copies"]
    assert shown.keys() == STANDING
    assert shown["missing"] == 1
    held = {one["id"]: one["copies"] for one in json.loads(copied.ciuic("list", "--json").out)}
    assert held == {first: [str(copied.copy)], second: []}
    findings = json.loads(ciuic("--config", copied.machine.config, "doctor", "--json").out)
    about = [one for one in findings["findings"] if one["about"] == f"copy {copied.copy}"]
    assert [one["level"] for one in about] == ["warning"]

    assert "1 snapshot copied" in copied.run()
    assert copied.listed().keys() == {first, second}
    assert copied.standing().missing == 0
    assert copied.run() == "", "nothing is new"
    copied.there("verify", "--all", "--checksum")


def test_changes_of_tags_pins_and_notes_reach_the_copy_and_the_later_change_counts(copied):
    snapshot = copied.take()
    copied.ciuic("copy", "--to", copied.copy, "--init")
    copied.ciuic("tag", "--add", "good", snapshot)
    copied.ciuic("pin", snapshot)
    copied.run()
    assert copied.listed()[snapshot].tags == ("good",)
    assert copied.listed()[snapshot].pinned

    copied.there("tag", "--add", "there", snapshot)
    copied.run()
    assert copied.listed()[snapshot].tags == ("good", "there"), "nothing has changed here"
    copied.ciuic("note", snapshot, "the best one")
    copied.run()
    assert copied.listed()[snapshot].note == "the best one"
    assert copied.listed()[snapshot].tags == ("good",)


def test_a_copy_without_a_policy_follows_when_the_store_forgets_and_brings_back(copied):
    first, second, third = (copied.take(text) for text in ("1", "2", "3"))
    copied.ciuic("copy", "--to", copied.copy, "--init")
    copied.there("pin", second)
    copied.ciuic("forget", first, second)
    assert "forgot 1 snapshot, as here" in copied.run()
    assert copied.listed().keys() == {second, third}, "a pin over there holds"
    copied.ciuic("forget", "--undo", first)
    assert "1 snapshot brought back" in copied.run()
    assert copied.listed().keys() == {first, second, third}

    copied.configure(trash="0s")
    copied.ciuic("forget", first)
    copied.ciuic("prune")
    copied.run()
    assert copied.listed().keys() == {second, third}
    with open_store(str(copied.copy)) as store:
        assert store.trash.ids() == [], "the copy is pruned by the same run"


def test_a_copy_with_a_policy_follows_its_own_rules(copied):
    section = f"[copy nas]\nto = {copied.copy}\ncopy_retention = last:2\n"
    copied.configure(section)
    names = [copied.take(text) for text in ("1", "2", "3")]
    copied.ciuic("copy", "--to", "nas", "--init")
    copied.ciuic("forget", names[1])
    said = copied.run()
    assert "nas: forgot 1 snapshot not kept by copy_retention last:2" in said
    assert copied.listed().keys() == {names[1], names[2]}
    # The command works as printed. The policy forgets the snapshot again, unless it is pinned
    # there.
    (undo,) = re.findall(r"'ciuic (--store \S+ forget --undo) ID'", said)
    assert ciuic(*undo.split(), names[0]).code == 0
    copied.run()
    assert copied.listed().keys() == {names[1], names[2]}
    assert ciuic(*undo.split(), names[0]).code == 0
    copied.there("pin", names[0])
    copied.run()
    assert copied.listed().keys() == set(names)
    copied.there("pin", "--remove", names[0])
    copied.run()
    assert copied.standing().missing == 0, "what the copy has forgotten is not missing"
    assert copied.standing().name == "nas"
    assert copied.run() == ""


def test_the_copying_process_puts_a_lost_pack_of_the_copy_back(copied):
    for number in range(2):
        (copied.machine.source / f"big{number}").write_bytes(os.urandom(3_000_000))
        copied.take(str(number))
    copied.ciuic("copy", "--to", copied.copy, "--init")
    packs(copied.copy)[0].unlink()
    assert re.search(r"0 snapshots copied, \d+ lost chunks? sent again", copied.run())
    copied.there("verify", "--all", "--checksum")
    assert copied.run() == ""

    kept = copied.take("kept")
    copied.run()
    for pack in [*packs(copied.copy), *packs(copied.machine.store)]:
        pack.unlink()
    assert "could not be copied" in copied.run(code=1), "neither store has the chunks"
    assert "has every snapshot" not in copied.ciuic("status").out
    assert kept in copied.listed()


def test_a_killed_or_stopped_copying_process_continues(copied):
    for number in range(4):
        (copied.machine.source / f"big{number}").write_bytes(os.urandom(3_000_000))
        copied.take(str(number))
    assert ciuic("--store", copied.copy, "init").code == 0
    copied.configure(copy_limit="1 MiB")
    for number, delay in ((signal.SIGKILL, 1), (signal.SIGTERM, 2), (signal.SIGKILL, 3)):
        process = copied.start()
        packs = copied.copy / "tmp"
        before = _bytes(copied.copy)
        wait_until(
            "some of it is there",
            lambda before=before, delay=delay: _bytes(copied.copy) > before + delay * 100_000,
        )
        assert packs.exists()
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode in {1, -signal.SIGKILL}
        assert number == signal.SIGKILL or "it continues later" in said
    copied.configure()
    copied.run()
    assert len(copied.listed()) == 4
    copied.there("verify", "--all", "--checksum")


@pytest.mark.root
def test_a_full_disk_of_the_copy_is_one_sentence_and_copying_continues_when_there_is_space(copied):
    need_root()
    disk = copied.machine.directory / "disk"
    disk.mkdir()
    with tmpfs(disk, size_mib=12):
        copied.copy = disk / "nas"
        copied.configure()
        first = copied.take()
        copied.ciuic("copy", "--to", copied.copy, "--init")
        (copied.machine.source / "big").write_bytes(os.urandom(20_000_000))
        second = copied.take()
        said = copied.run(code=1)
        assert "the copy failed: " in said
        assert "no space left" in said.lower() or "full" in said
        assert copied.listed().keys() == {first}
        assert "the last try failed" in copied.standing().sentence()
        mount = ["mount", "-o", "remount,size=64m", str(disk)]
        subprocess.run(mount, check=True, timeout=60)
        copied.run()
        assert copied.listed().keys() == {first, second}
        copied.there("verify", "--all", "--checksum")


def test_a_damaged_snapshot_is_one_error_and_the_others_are_copied(copied):
    first = copied.take()
    copied.ciuic("copy", "--to", copied.copy, "--init")
    (copied.machine.source / "extra").write_bytes(os.urandom(100_000))
    packs = set((copied.machine.store / "packs").iterdir())
    second = copied.take()
    (new,) = set((copied.machine.store / "packs").iterdir()) - packs
    new.unlink()
    for path in (copied.machine.store / "parity").glob(f"{new.name}*"):
        path.unlink()
    said = copied.run(code=1)
    assert f"{second} could not be copied" in said
    assert copied.listed().keys() == {first}
    assert copied.standing().missing == 1


def test_a_damaged_record_only_makes_the_process_look_at_the_copy_again(copied):
    snapshot = copied.take()
    copied.ciuic("copy", "--to", copied.copy, "--init")
    (record,) = (copied.machine.store / "copies").iterdir()
    for junk in (b"", b"{}", record.read_bytes()[:-9], b"\xff" * 100, b"[" * 100_000):
        record.write_bytes(junk)
        assert copied.standing().missing == 1
        copied.run()
        assert copied.standing().missing == 0
    assert copied.listed().keys() == {snapshot}
    assert read_record(str(copied.machine.store), "/elsewhere") is None


def test_another_store_at_the_path_of_the_copy_gets_every_snapshot(copied):
    snapshot = copied.take()
    copied.ciuic("copy", "--to", copied.copy, "--init")
    copied.copy.rename(copied.machine.directory / "old")
    assert ciuic("--store", copied.copy, "init").code == 0
    assert "has another store than before" in copied.run()
    assert copied.listed().keys() == {snapshot}


def test_a_copy_that_is_ahead_of_a_restored_store_keeps_everything(copied):
    first = copied.take()
    shutil.copytree(copied.machine.store, copied.machine.directory / "backup")
    second = copied.take("2")
    copied.ciuic("copy", "--to", copied.copy, "--init")
    shutil.rmtree(copied.machine.store)
    (copied.machine.directory / "backup").rename(copied.machine.store)

    third = copied.take("3")
    copied.run()
    assert copied.listed().keys() == {first, second, third}
    assert copied.standing().missing == 0
    assert ciuic("--store", copied.copy, "copy", "--to", copied.machine.store).code == 0
    assert {one.id for one in copied.machine.snapshots()} == {first, second, third}


def test_without_copies_the_process_says_so(copied):
    copied.machine.configure()
    assert "names no copies" in copied.run(code=2)


def test_the_store_itself_under_another_name_is_refused(copied):
    copied.take()
    copied.copy.symlink_to(copied.machine.store)
    assert "is the store itself" in copied.run(code=1)


def _bytes(directory: Path) -> int:
    total = 0
    for name in ("tmp", "packs"):
        for path in (directory / name).glob("*"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
    return total


def test_a_copy_that_is_ahead_is_said_once_in_the_log_and_stays_in_the_status(copied):
    copied.take()
    copied.ciuic("copy", "--to", copied.copy, "--init")
    ahead = copied.there("snapshot", copied.machine.source).out.strip()
    what = f"the copy is ahead: 1 snapshot, such as {ahead}, was taken there"
    copied.take("new")

    assert what in copied.run()
    copied.take("newer")
    assert "is ahead:" not in copied.run(), "once"
    assert what in copied.ciuic("status").out
    (shown,) = json.loads(copied.ciuic("status", "--json").out)["copies"]
    assert shown["differences"][0].startswith(what)
    findings = json.loads(ciuic("--config", copied.machine.config, "doctor", "--json").out)[
        "findings"
    ]
    (found,) = [one for one in findings if one["about"].startswith("copy ")]
    assert (found["level"], what in found["what"]) == ("note", True)
    assert ahead in copied.listed()

    copied.there("copy", "--to", copied.machine.store)
    assert "is ahead:" not in copied.run()
    assert "is ahead:" not in copied.ciuic("status").out
