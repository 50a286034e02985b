"""``ciuic snapshot PATH``: without a configuration, or instead of its roots."""

import os
import re
import time
from pathlib import Path

import pytest

from ciuic.catalog import list_snapshots
from ciuic.maintain.forget import plan_forget
from ciuic.retention import parse_policy
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.program import ciuic

HOUR_S = 3600


@pytest.fixture
def other(tmp_path: Path) -> Path:
    directory = tmp_path / "other"
    directory.mkdir()
    (directory / "file").write_bytes(b"of another directory")
    return directory


def test_a_store_and_a_path_are_all_that_a_snapshot_needs(tmp_path: Path, other: Path) -> None:
    store = tmp_path / "fresh"
    assert ciuic("--store", store, "init", cwd=tmp_path).code == 0
    outcome = ciuic("--store", store, "snapshot", "other", "other/.", "--json", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    report = outcome.document
    assert (report["kind"], report["files"], report["parent"]) == ("base", 1, None)
    shown = ciuic("--store", store, "show", "latest", "--json").document
    assert [root["path"] for root in shown["roots"]] == [str(other)]
    out = tmp_path / "out"
    out.mkdir()
    restored = ciuic("--store", store, "restore", "-s", "latest", "-p", other, "-d", out)
    assert restored.code == 0, restored.err
    assert (out / "other" / "file").read_bytes() == b"of another directory"


def test_a_store_that_is_not_there_is_not_made_by_a_snapshot(tmp_path: Path, other: Path) -> None:
    store = tmp_path / "none"
    outcome = ciuic("--store", store, "snapshot", other)
    assert outcome.code == 1
    assert f"there is no store at {store}" in outcome.err
    # First what keeps the snapshots of a store that was moved.
    assert re.search(r"put its directory back.* init' creates it", " ".join(outcome.err.split()))
    assert not store.exists()


def test_without_a_path_and_a_configuration_the_way_out_is_named(tmp_path: Path) -> None:
    store = tmp_path / "fresh"
    ciuic("--store", store, "init")
    outcome = ciuic("--store", store, "snapshot")
    assert outcome.code == 2
    assert "snapshot PATH" in outcome.err


@pytest.mark.parametrize("name", ["missing", "file", "missing/below", "file/below"])
def test_a_path_that_is_no_directory_is_refused_and_nothing_is_taken(
    box: Box, other: Path, name: str
) -> None:
    outcome = box.ciuic("snapshot", other, other / name)
    assert outcome.code == 2
    assert str(other / name) in outcome.err
    assert outcome.err.count("\n") == 2, "a sentence and its remedy"
    assert box.snapshots() == []


def test_an_empty_path_is_refused(box: Box) -> None:
    outcome = box.ciuic("snapshot", "")
    assert outcome.code == 2
    assert "is empty" in outcome.err


def test_the_store_does_not_hold_itself(box: Box, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(box.store)
    for path in (box.store, box.store / "packs", link, link / "packs"):
        outcome = box.ciuic("snapshot", path)
        assert outcome.code == 2, outcome.err
        assert "is in the store" in outcome.err
    assert box.snapshots() == []


def test_a_path_replaces_what_is_configured_and_all_else_holds(box: Box, other: Path) -> None:
    (box.source / "mine").write_bytes(b"x")
    (other / "a.tmp").write_bytes(b"x")
    box.configure(exclude="*.tmp")
    assert box.ciuic("snapshot", other).code == 0
    newest = box.snapshots()[0]
    assert newest.roots == (bytes(other),)
    assert newest.files == 1


def test_a_broken_configuration_of_the_system_is_no_matter_with_a_store(
    box: Box, other: Path
) -> None:
    """Only --config and $CIUIC_CONFIG count."""
    box.config.write_text("nonsense\n")
    assert ciuic("--config", box.config, "--store", box.store, "snapshot", other).code == 2
    assert ciuic("--store", box.store, "snapshot", other).code == 0


class _Roots:
    """A store that snapshots of two directories go to."""

    def __init__(self, box: Box, other: Path) -> None:
        self.box = box
        self.sources = {"mine": bytes(box.source), "other": bytes(other)}
        (box.source / "file").write_bytes(b"mine")
        self.clock = ManualClock(time.time_ns() + 10**10)

    def take(self, name: str, *, base: bool = False, wait_s: float = HOUR_S) -> tuple[str, int]:
        self.clock.advance(wait_s)
        request = TakeRequest((self.sources[name],), base=base, base_interval_s=12 * HOUR_S)
        with open_store(str(self.box.store), write=True) as store:
            report = take_snapshot(store, request, clock=self.clock)
        return report.kind, report.read_bytes


def test_a_base_of_another_directory_is_no_base_of_this_one(box: Box, other: Path) -> None:
    roots = _Roots(box, other)
    assert roots.take("mine")[0] == "base"
    assert roots.take("other")[0] == "base", "nothing of it was ever read"
    assert roots.take("mine") == ("delta", 0)
    roots.take("other", base=True, wait_s=8 * HOUR_S)
    assert roots.take("mine", wait_s=4 * HOUR_S)[0] == "base", "its own is 14 hours old"
    assert roots.take("other") == ("delta", 0)


def test_any_number_of_snapshots_of_another_directory_may_lie_between(
    box: Box, other: Path
) -> None:
    roots = _Roots(box, other)
    roots.take("mine")
    for _ in range(60):
        roots.take("other", wait_s=1)
    assert roots.take("mine") == ("delta", 0), "what has not changed is not read again"


def test_no_policy_forgets_the_last_of_one_directory_for_those_of_another(
    box: Box, other: Path
) -> None:
    roots = _Roots(box, other)
    roots.take("mine")
    for _ in range(3):
        roots.take("other")
    with open_store(str(box.store)) as store:
        plan = plan_forget(store, parse_policy("last:1"), roots.clock.now_ns())
        forgotten = {one.id for one, _ in plan.forgotten}
        kept = [one for one in list_snapshots(store) if one.id not in forgotten]
    assert {one.roots for one in kept} == {(bytes(other),), (bytes(box.source),)}


def test_latest_is_the_newest_of_any_directory(box: Box, other: Path) -> None:
    assert box.ciuic("snapshot").code == 0
    assert box.ciuic("snapshot", other).code == 0
    assert box.ciuic("ls", "latest", other).code == 0
    outcome = box.ciuic("list", "--path", box.source, "--json")
    assert [one["roots"] for one in outcome.document] == [[str(box.source)]]
    assert os.fsdecode(box.snapshots()[0].roots[0]) == str(other)


def test_latest_means_the_newest_snapshot_that_holds_the_path(box: Box) -> None:
    """A store that several directories share: the newest snapshot of all may be of another one."""
    other = box.directory / "other"
    other.mkdir()
    (other / "b").write_bytes(b"b")
    (box.source / "a").write_bytes(b"a")
    assert ciuic("--store", box.store, "snapshot", box.source).code == 0
    assert ciuic("--store", box.store, "snapshot", other).code == 0

    for name in ("latest", "latest-valid", "2999-01-01 00:00"):
        out = box.directory / f"out-{name[:9]}"
        done = ciuic("--store", box.store, "restore", "-s", name, "-p", box.source / "a", "-d", out)

        assert done.code == 0, done.err
        assert (out / "a").read_bytes() == b"a"
