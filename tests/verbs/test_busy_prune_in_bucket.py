"""Prune of a bucket in which sessions overlap for ever: it deletes what it has condemned.

docs/protocol.md, "Which leases a condemnation waits for".
"""

import os
import shutil
import subprocess
import sys

import pytest

from ciuic.cli.pruning import print_prune_report
from tests.kit.buckets import FolderMachine, PlaceWithFaults, write
from tests.kit.program import REPOSITORY

pytestmark = pytest.mark.root

WRITER = """
import contextlib, pathlib, sys
from tests.kit.buckets import FolderMachine, write
bucket, cache, source = map(pathlib.Path, sys.argv[1:])
machine = FolderMachine(bucket, cache)
with contextlib.ExitStack() as stack:
    for number, line in enumerate(sys.stdin):
        if line == "begin\\n":
            store = stack.enter_context(machine.opened_at(machine.place()))
            print("begun", flush=True)
        else:
            write(source, [f"new-{number}"])
            taken = machine.take_into(store, source).id
            stack.close()
            print(taken, flush=True)
"""


class Writer:
    """A process that takes snapshots, one in each session."""

    def __init__(self, top, name):
        shutil.copytree(top / "source", top / f"source-{name}")
        command = [sys.executable, "-c", WRITER, top / "bucket", top / name, top / f"source-{name}"]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, what):
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self):
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(60) == 0


@pytest.fixture
def source(tmp_path):
    write(tmp_path / "source", "a")
    return tmp_path / "source"


@pytest.fixture
def writers(tmp_path, source):
    made = [Writer(tmp_path, name) for name in ("one", "two")]
    yield made
    for writer in made:
        writer.end()


@pytest.fixture
def pruner(tmp_path, source):
    """A machine that prunes, in whose bucket one pack is not needed."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "pruner")
    assert machine.init()[0]
    write(tmp_path / "old", "ab")
    old = machine.take_at(machine.place(), tmp_path / "old").id
    machine.take_at(machine.place(), source)
    machine.forget(old)
    return machine


@pytest.mark.parametrize("machines", [1, 2], ids=["one-machine", "another-finishes"])
def test_a_prune_deletes_beside_two_writers_that_overlap_without_a_gap(
    tmp_path, writers, pruner, machines
):
    pruners = [pruner, FolderMachine(tmp_path / "bucket", tmp_path / "other")][:machines]
    writing, beginning = writers
    assert writing.do("begin") == "begun"
    before = set(pruner.names("packs"))
    assert pruner.prune().condemned.packs == 1
    assert set(pruner.names("packs")) == before
    taken = []
    turns = 0
    while turns < 8:
        turns += 1
        assert beginning.do("begin") == "begun"
        taken.append(writing.do("take"))
        assert len(pruner.names("leases")) == 1, "the other session is at work"
        report = pruners[-1].prune()
        if report.removed.packs:
            break
        writing, beginning = beginning, writing
    assert turns <= machines, "each machine waits for the sessions that were there when it looked"
    assert len(before - set(pruner.names("packs"))) == 1
    taken.append(beginning.do("take"))
    for machine in (pruner, FolderMachine(tmp_path / "bucket", tmp_path / "reader")):
        assert machine.ids() > set(taken)
        machine.check(listed=machine.ids())
    pruners[-1].prune()
    assert os.listdir(os.path.join(_cache_of(pruners[-1]), "awaited")) == []


def test_a_prune_that_died_later_delays_no_deletion_and_a_repair_at_work_does(
    writers, pruner, capsys
):
    writing, _ = writers
    writing.do("begin")
    assert pruner.prune().condemned.packs == 1
    session = "0123456789abcdef"
    pruner.place().put(f"leases/prune-{session}", b"dead\n")
    pruner.place().put(f"leases/repair-{session}", b"at work\n")
    writing.do("take")
    report = pruner.prune()
    assert (report.waiting_for, report.removed.packs) == ((f"repair-{session}",), 0)
    print_prune_report(report)
    assert "\npacks of earlier prunes can be removed when 1 session" in capsys.readouterr().err
    pruner.place().delete([f"leases/repair-{session}"])
    assert pruner.prune().removed.packs == 1
    pruner.check(listed=pruner.ids())


@pytest.mark.parametrize("kind", ["repair", "defragment"], ids=["a repair", "a later version"])
def test_what_begins_while_a_prune_judges_can_read_what_the_verdict_deletes(pruner, kind):
    session = f"{kind}-0123456789abcdef"

    def begin(_number, _name, keys):
        if str(keys).startswith("verdicts/"):
            pruner.place().put(f"leases/{session}", b"at work\n")

    report = pruner.prune(place=PlaceWithFaults(pruner.place(), begin))

    assert len(pruner.names("verdicts")) == 1
    assert (report.waiting_for, report.removed.packs) == ((session,), 0)
    assert pruner.prune().removed.packs == 0
    pruner.place().delete([f"leases/{session}"])
    assert pruner.prune().removed.packs == 1
    pruner.check(listed=pruner.ids())


def test_a_session_that_only_a_later_version_knows_is_never_revoked_and_named(pruner, capsys):
    session = "defragment-0123456789abcdef"
    pruner.place().put(f"leases/{session}", b"perhaps dead\n")

    report = pruner.prune(revoke_after_s=0)
    print_prune_report(report)

    assert (report.waiting_for, report.revoked, report.removed.packs) == ((session,), (), 0)
    assert f"Only a later version of ciuic knows what '{session}' does" in capsys.readouterr().err


def test_a_damaged_memory_of_the_leases_only_waits_longer(tmp_path, writers, pruner):
    first, second = writers
    first.do("begin")
    assert pruner.prune().waiting_for
    folder = os.path.join(_cache_of(pruner), "awaited")
    (name,) = os.listdir(folder)
    with open(os.path.join(folder, name), "r+b") as file:
        data = file.read().replace(b"snapshot-", b"snapshut-")
        file.seek(0)
        file.write(data)
    second.do("begin")
    assert len(pruner.prune().waiting_for) == 2, "the leases are listed again"
    first.do("take")
    assert len(pruner.prune().waiting_for) == 1
    second.do("take")
    assert pruner.prune().removed.packs == 1
    pruner.check(listed=pruner.ids())


def _cache_of(machine):
    with machine.opened() as store:
        return store.bucket.path
