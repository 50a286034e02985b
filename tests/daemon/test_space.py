"""A real daemon removes reflink copies from a real file system that runs full."""

import os
import sys
import threading

import pytest

from ciuic.source.freeze.places import frozen_snapshots
from ciuic.store.directory.find import read_header
from ciuic.system.free_space import COPIES_RESERVE, is_short_of_space
from ciuic.system.workers import asking
from ciuicd import space
from ciuicd.space import Space
from tests.kit.clock import ManualClock
from tests.kit.daemon import Machine
from tests.kit.filesystems import disk

pytestmark = pytest.mark.root


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_when_space_is_short_reflink_copies_are_removed_oldest_first_one_each_minute(
    tmp_path, kind, caplog
):
    machine = Machine(tmp_path)
    with disk(kind, tmp_path / "disk", size_mib=512) as mounted:
        root = mounted.path / "training"
        root.mkdir()
        (root / "weights.bin").write_bytes(os.urandom(1_000_000))
        machine.configure(snapshot_paths=str(root), hot_snapshots="3")
        for number in range(3):
            (root / f"checkpoint-{number}").write_bytes(os.urandom(100_000))
            assert machine.once().returncode == 0
        roots = [os.fsencode(root)]
        store_id = read_header(str(machine.store)).store_id
        ids = [one.id for one in machine.snapshots()]

        def frozen():
            return [name for _, names in frozen_snapshots(store_id, roots) for name in names]

        clock = ManualClock()
        looking = Space(clock)
        looking.free_space(str(machine.store), roots)
        assert frozen() == ids

        for _ in range(10):
            # XFS reserves space for a growing file, and frees it when the file is closed.
            mounted.leave_free(10 * 1024 * 1024)
        assert is_short_of_space(roots[0], COPIES_RESERVE)
        looking.free_space(str(machine.store), roots)
        assert frozen() == ids, "it has looked this minute"
        for left in (ids[:2], ids[:1], []):
            clock.advance(61)
            looking.free_space(str(machine.store), roots)
            assert frozen() == left
        clock.advance(61)
        looking.free_space(str(machine.store), roots)
        said = [line for line in caplog.messages if "removed the reflink copies of" in line]
        assert [line.split(" of ")[1].split(" ")[0] for line in said] == ids[::-1]

        daemon = machine.start()
        daemon.wait_for_log("serves")
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log()


def test_a_root_that_does_not_answer_is_asked_once_and_the_others_every_minute(
    tmp_path, monkeypatch
):
    answer, asked = threading.Event(), []

    def is_short(root, _reserve):
        asked.append(root)
        if root == b"/hangs":
            answer.wait()
        return False

    monkeypatch.setattr(space, "is_short_of_space", is_short)
    monkeypatch.setattr(asking, "_ANSWER_S", 0.5)
    clock = ManualClock()
    looking = Space(clock)
    for _ in range(2):
        looking.free_space(str(tmp_path), [b"/hangs", b"/answers"])
        clock.advance(61)
    answer.set()
    looking._asking[b"/hangs"].join()
    looking.free_space(str(tmp_path), [b"/hangs"])

    assert asked == [b"/hangs", b"/answers", b"/answers", b"/hangs"]


HANGS = """
import sys, threading
from ciuicd import service, space
def hang(*_):
    threading.Event().wait()
service.describe_schedulers = space.is_short_of_space = hang
from ciuicd.__main__ import main
sys.exit(main(sys.argv[4:]))
"""
"""The daemon of a machine on which no root answers. Its own command follows."""


def test_a_daemon_whose_roots_do_not_answer_serves_all_the_same(tmp_path):
    machine = Machine(tmp_path)
    daemon = machine.launch(wrapper=(sys.executable, "-c", HANGS))
    try:
        daemon.wait_for_log("serves")
        daemon.wait_for_log("no warnings")
        assert daemon.stop() == 0
    finally:
        machine.close()


def test_a_missing_root_or_store_is_ignored(tmp_path, caplog):
    machine = Machine(tmp_path)
    gone = os.fsencode(tmp_path / "gone")
    for store in (tmp_path / "store", machine.source):  # missing, and no store
        Space(ManualClock()).free_space(str(store), [gone, b"/"])
    assert caplog.messages == []
    assert sorted(os.listdir(tmp_path)) == ["ciuic.conf", "source"]
    assert os.listdir(machine.source) == ["weights.bin"]
