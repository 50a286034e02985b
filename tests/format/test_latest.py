"""ciuic and the independent reader agree on the latest snapshot."""

import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ciuic.catalog import find_snapshot
from ciuic.model import SnapshotSummary, newest_first
from ciuic.store.store import open_store
from tests.format import reader
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.program import REPOSITORY

HOUR_S = 3600.0
YEAR_S = 365 * 86_400.0

parents = st.one_of(st.none(), st.integers(0, 14), st.just("gone"))


@given(st.lists(st.tuples(st.integers(0, 6), parents), max_size=12))
def test_both_agree_whatever_times_and_parents_say(drawn):
    """Parents may be removed, not yet present, or in circles."""
    found = []
    for number, (taken_ns, parent) in enumerate(drawn):
        named = f"cs-{parent:06x}" if isinstance(parent, int) else parent
        name = f"cs-{number:06x}"
        found.append(SnapshotSummary(name, "delta", named, taken_ns, 1, 1, 1, 1, (), 0, (b"/",)))
    manifests = {one.id: {"taken_ns": one.taken_ns, "parent": one.parent} for one in found}
    expected = next((one.id for one in newest_first(found)), None)
    assert reader.latest_of(manifests) == expected


def test_both_agree_on_a_store_whose_clock_was_ahead(box: Box) -> None:
    clock = ManualClock()

    def take() -> str:
        clock.advance(HOUR_S)
        (box.source / "file").write_bytes(b"%d" % clock.now_ns())
        return box.take(clock=clock).id

    def latest() -> str:
        with open_store(str(box.store)) as store:
            found: str = find_snapshot(store, "latest").id
        assert reader.Store(str(box.store)).latest() == found
        return found

    assert reader.Store(str(box.store)).latest() is None
    take()
    clock.advance(YEAR_S)
    ahead = [take(), take()]
    assert latest() == ahead[1]
    clock.set_back(YEAR_S)
    known = [take() for _ in range(3)]
    assert latest() == known[2]
    # If the snapshot from the future that the others name is removed, the times decide.
    for name in (known[2], ahead[1]):
        with open_store(str(box.store), write=True) as store:
            store.trash.forget([name], clock.now_ns())
        latest()
    for name in (known[1], ahead[0]):
        (box.store / "snapshots" / f"{name}.json").write_bytes(b"{}")
        latest()


def test_the_reader_restores_the_latest(box: Box, tmp_path: Path) -> None:
    (box.source / "file").write_bytes(b"older")
    box.take()
    (box.source / "file").write_bytes(b"newer")
    box.take()
    out = tmp_path / "out"
    out.mkdir()
    program = REPOSITORY / "tests" / "format" / "reader.py"
    subprocess.run([sys.executable, program, box.store, "latest", out], check=True, timeout=60)
    assert (out / str(box.source).lstrip("/") / "file").read_bytes() == b"newer"
