"""Two machines with one name and one machine ID: a virtual machine and its copy.

Each has a cache and a state directory of its own, and its own files at the same path.
"""

import os
import re
import time

import pytest

from ciuic.config.load import load_settings
from ciuic.model import DAEMON
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.addressed import create_at_address, open_at_address
from ciuic.store.place.location import PlaceOptions
from ciuic.store.records.header import Chunking
from ciuic.system.clock import SystemClock
from ciuicd.taking import newest_taken_ns
from tests.kit.daemon import DEADLINE_S, Machine, wait_until
from tests.kit.filesystems import need_root
from tests.kit.program import ciuic

SAID = "another machine has the name"
MOUNTED = 'mount --bind "$0" "$1" && shift && exec "$@"'


@pytest.fixture
def machine(tmp_path):
    """The machine and its copy; the bucket is a directory."""
    made = Machine(tmp_path)
    (tmp_path / "bucket").mkdir()
    made.address = f"file://{tmp_path}/bucket/store"
    made.configure(snapshot_dir=made.address, snapshot_interval="2s")
    yield made
    made.close()


def environ(machine, twin):
    """Return what differs between the two."""
    names = {"XDG_CACHE_HOME": "cache", "STATE_DIRECTORY": "state", "TMPDIR": "tmp"}
    paths = {name: machine.directory / twin / kind for name, kind in names.items()}
    for path in paths.values():
        path.mkdir(parents=True, exist_ok=True)
    return {name: str(path) for name, path in paths.items()}


def launched(machine, twin):
    """Start the daemon of one of them, which sees its own files."""
    own = machine.directory / twin / "files"
    own.mkdir(parents=True)
    (own / "weights.bin").write_text(f"those of {twin}")
    mount = ("unshare", "--mount", "sh", "-c", MOUNTED, str(own), str(machine.source))
    return machine.launch(environ(machine, twin), wrapper=mount)


def taken(daemon):
    """Return the snapshots that a daemon has taken."""
    return re.findall(r"snapshot (cs-[0-9a-f]+) ", daemon.log())


@pytest.mark.root
def test_both_machines_of_one_name_and_machine_id_take_their_snapshots_and_say_so(machine):
    need_root()
    one, two = launched(machine, "one"), launched(machine, "two")

    wait_until(
        "both have taken snapshots, and seen those of the other",
        lambda: all(len(taken(each)) >= 3 and SAID in each.log() for each in (one, two)),
        deadline_s=2 * DEADLINE_S,
    )
    assert one.stop() == two.stop() == 0

    for twin, daemon in (("one", one), ("two", two)):
        assert daemon.log().count(SAID) == 1
        out = machine.directory / twin / "out"
        words = ("-s", taken(daemon)[-1], "-p", machine.source / "weights.bin", "-d", out)
        done = ciuic("--store", machine.address, "restore", *words, more=environ(machine, "third"))
        assert done.code == 0, done.err
        assert (out / "weights.bin").read_text() == f"those of {twin}"
    done = ciuic(
        "--store", machine.address, "verify", "--all", "--checksum", more=environ(machine, "third")
    )
    assert done.code == 0, done.err


def test_a_snapshot_of_a_namesake_does_not_count_for_the_daemon(machine, monkeypatch):
    mine, theirs = (environ(machine, twin) for twin in ("one", "two"))
    clock = SystemClock()
    create_at_address(machine.address, mine, clock, Chunking.of("content", 2**20), PlaceOptions())
    monkeypatch.setenv("XDG_CACHE_HOME", mine["XDG_CACHE_HOME"])
    settings = load_settings(str(machine.config))
    assert newest_taken_ns(settings, clock, by_daemon=True) is None
    begun_ns = time.time_ns()

    def take(by):
        request = TakeRequest((os.fsencode(machine.source),), origin=DAEMON)
        with open_at_address(machine.address, by, PlaceOptions(), write=True) as store:
            return take_snapshot(store, request, clock=clock)

    first = take(theirs)
    assert first.taken_ns > begun_ns
    assert newest_taken_ns(settings, clock, by_daemon=True) is None
    ours = take(mine)
    take(theirs)
    assert newest_taken_ns(settings, clock, by_daemon=True) == ours.taken_ns
    assert newest_taken_ns(settings, clock) > ours.taken_ns, "another user may have taken it"
