"""A store that disappears or is replaced during a scrub is not reported as damaged."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ciuic.errors import CorruptionError, StoreError
from ciuic.maintain.scrub import damage_cost, subject
from ciuic.maintain.scrub import scrub as scrubbing
from ciuic.maintain.scrub.pack_health import health
from ciuic.maintain.scrub.report import (
    DamagedPack,
    ScrubReport,
    complete_costs,
    lost_before,
    search_for,
)
from ciuic.maintain.scrub.scrub import scrub
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.damage import flip_content, pack_of

KIB = 1024


class Place:
    """A damaged store, and another store that appears at its path."""

    def __init__(self, box: Box, other: Path) -> None:
        self.box = box
        self.other = other
        self.away = box.directory / "away"
        for _ in range(4):
            (box.source / "file").write_bytes(os.urandom(100 * KIB))
            box.take()
        self.lost = (box.source / "file").read_bytes()
        self.pack = pack_of(box.store, self.lost).name
        flip_content(box.store, self.lost)
        (box.source / "file").unlink()
        self.told: list[DamagedPack] = []
        self.untouched = files_of(other)

    @property
    def is_swapped(self) -> bool:
        return self.away.exists()

    def swap(self) -> None:
        self.box.store.rename(self.away)
        self.other.rename(self.box.store)

    def swap_back(self) -> None:
        self.box.store.rename(self.other)
        self.away.rename(self.box.store)

    def scrub(self, cancelled: Callable[[], bool] = lambda: False) -> ScrubReport:
        return scrub(
            str(self.box.store), clock=self.box.clock, cancelled=cancelled, found=self.told.append
        )

    def check(self) -> None:
        """Reports and records are about the first store, and the other store is unchanged."""
        assert {one.check.pack_id.hex() for one in self.told} <= {self.pack}
        assert all(len(one.lost) == 1 for one in self.told)
        assert files_of(self.other) == self.untouched
        with open_store(str(self.box.store)) as store:
            known = health(store)
        assert {one.pack_id.hex() for one in known.damaged} <= {self.pack}
        assert known.lost_chunks <= 1


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(directory.rglob("*")) if one.is_file()}


@pytest.fixture(params=["another store", "nothing"])
def place(request: pytest.FixtureRequest, box: Box) -> Place:
    other = box.directory / "other"
    other.mkdir()
    if request.param == "another store":
        clock = ManualClock()
        create_store(str(other), clock)
        (box.source / "file").write_bytes(os.urandom(10 * KIB))
        with open_store(str(other), write=True) as store:
            roots = (os.fsencode(box.source),)
            take_snapshot(store, TakeRequest(roots=roots, parity=0), clock=clock)
    return Place(box, other)


def test_a_scrub_ends_with_an_error_whenever_the_store_disappears(place: Place) -> None:
    """The store disappears at each check for cancellation, which comes before each read."""
    spare = place.box.directory / "spare"
    shutil.copytree(place.box.store, spare)
    for at in range(1, 1000):
        asked = 0

        def cancelled(at: int = at) -> bool:
            nonlocal asked
            asked += 1
            if asked == at:
                place.swap()
            return False

        try:
            report = place.scrub(cancelled)
        except StoreError as error:
            assert place.is_swapped
            assert not isinstance(error, CorruptionError)
            assert "store" in error.message
        else:
            assert not place.is_swapped
            [pack] = report.damaged
            assert len(pack.files) == 1
            break
        place.swap_back()
        place.check()
        shutil.rmtree(place.box.store)
        shutil.copytree(spare, place.box.store)
    assert at > 10
    assert place.told


@pytest.mark.parametrize(
    "step", ["unreadable", "sound_copies", "damaged_manifests", "recorded_checks"]
)
def test_chunks_missing_after_the_store_disappeared_are_not_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The store disappears in the middle of a step that has found it."""
    module = subject if step == "damaged_manifests" else scrubbing
    before = getattr(module, step)

    def swapped(*arguments: Any) -> Any:
        if not place.is_swapped:
            place.swap()
        return before(*arguments)

    monkeypatch.setattr(module, step, swapped)
    with pytest.raises(StoreError) as caught:
        place.scrub()
    assert not isinstance(caught.value, CorruptionError)
    assert place.told == []
    place.swap_back()
    place.check()


def test_damaged_files_are_not_searched_in_another_store(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = os.fsencode(place.box.source / "file")
    place.scrub()
    with open_store(str(place.box.store)) as store:
        report = lost_before(store)
    newest = place.box.snapshots()[0].id
    assert report is not None
    path = str(place.box.store)
    place.swap()
    with pytest.raises(StoreError):
        complete_costs(report, path)
    place.swap_back()
    assert not complete_costs(report, path, lambda: True)
    known = damage_cost.all_snapshots

    def swapped(store: Any) -> Any:
        place.swap()
        return known(store)

    with monkeypatch.context() as patched:
        patched.setattr(damage_cost, "all_snapshots", swapped)
        report.pending = search_for(report, store.header.store_id)
        with pytest.raises(StoreError):
            complete_costs(report, path)
    assert not report.is_complete
    place.swap_back()
    assert complete_costs(report, path)
    assert [(one.path, one.snapshots) for one in report.missing] == [(file, (newest,))]
    assert files_of(place.other) == place.untouched


def test_a_snapshot_is_not_committed_to_another_store(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks are in the first store, so its manifest would name missing chunks."""
    write = StoreWriter.finish

    def swapped(writer: StoreWriter, **how: Any) -> Any:
        totals = write(writer, **how)
        place.swap()
        return totals

    before = [snapshot.id for snapshot in place.box.snapshots()]
    monkeypatch.setattr(StoreWriter, "finish", swapped)
    with pytest.raises(StoreError) as caught:
        place.box.take()
    assert not isinstance(caught.value, CorruptionError)
    assert str(place.box.store) in caught.value.message
    place.swap_back()
    assert files_of(place.other) == place.untouched
    assert [snapshot.id for snapshot in place.box.snapshots()] == before
