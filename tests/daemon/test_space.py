"""Frozen copies on a disk that runs full, with a real daemon on a real file system."""

import os

import pytest

from ciuic.capture.frozen import frozen_snapshots, is_short_of_space
from ciuic.store.header import read_header
from ciuicd.space import Space
from tests.kit.clock import ManualClock
from tests.kit.daemon import Machine
from tests.kit.filesystems import disk

pytestmark = pytest.mark.root


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_frozen_copies_go_oldest_first_one_a_minute_when_space_runs_short(tmp_path, kind, caplog):
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
        space = Space(clock)
        space.make_room(str(machine.store), roots)
        assert frozen() == ids

        for _ in range(10):
            # XFS sets room aside for a file that grows, and takes it back when it is closed.
            mounted.leave_free(10 * 1024 * 1024)
        assert is_short_of_space(roots[0])
        space.make_room(str(machine.store), roots)
        assert frozen() == ids, "it has looked this minute"
        for left in (ids[:2], ids[:1], []):
            clock.advance(61)
            space.make_room(str(machine.store), roots)
            assert frozen() == left
        clock.advance(61)
        space.make_room(str(machine.store), roots)
        said = [line for line in caplog.messages if "gave up frozen copies of" in line]
        assert [line.split(" of ")[1].split(" ")[0] for line in said] == ids[::-1]

        daemon = machine.start()
        daemon.wait_for_log("serves")
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log()


def test_a_root_or_a_store_that_is_not_there_is_no_trouble(tmp_path):
    Space(ManualClock()).make_room(str(tmp_path / "store"), [os.fsencode(tmp_path / "gone"), b"/"])
