"""Packs are removed in the background. A wait ends once they are removed, or with the error."""

import threading
import time
from pathlib import Path

import pytest

from ciuic.errors import StoreError
from ciuic.store.gc import remove
from ciuic.store.gc.remove import Removals
from ciuic.store.records import layout

NAMES = [bytes([number]) * 32 for number in range(40)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that has packs, each with its parity."""
    for name in (layout.PACKS, layout.PARITY):
        (tmp_path / name).mkdir()
        for one in NAMES:
            (tmp_path / name / layout.pack_name(one)).write_bytes(b"content")
    return tmp_path


def left(store: Path, place: str) -> set[str]:
    return {path.name for path in (store / place).iterdir()}


def test_exactly_the_added_packs_are_removed_at_the_end(store: Path) -> None:
    with Removals(str(store)) as removals:
        removals.add(NAMES[:30])
        removals.add(NAMES[30:35])
    kept = {layout.pack_name(one) for one in NAMES[35:]}
    assert left(store, layout.PACKS) == kept
    assert left(store, layout.PARITY) == kept


def test_a_wait_for_space_ends_once_the_packs_are_removed(store: Path) -> None:
    with Removals(str(store)) as removals:
        removals.add(NAMES)
        removals.wait()
        assert left(store, layout.PACKS) == set()
        assert left(store, layout.PARITY) == set()


def test_the_number_of_waiting_packs_is_bounded(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remove, "_WAITING_MAX", 3)
    with Removals(str(store)) as removals:
        removals.add(NAMES)
        assert len(left(store, layout.PACKS)) <= 3
    assert left(store, layout.PACKS) == set()


def test_no_pack_is_removed_before_or_without_the_step_that_must_precede(store: Path) -> None:
    held = threading.Event()
    with Removals(str(store)) as removals:
        removals.begin_with(
            lambda: None if held.wait(60) else pytest.fail("the removal did not begin")
        )
        removals.add(NAMES[:20])
        time.sleep(0.05)
        assert len(left(store, layout.PACKS)) == len(NAMES)
        held.set()
    assert len(left(store, layout.PACKS)) == len(NAMES) - 20

    def fails() -> None:
        raise StoreError("the disk says no")

    def refused(removals: Removals) -> None:
        with pytest.raises(StoreError, match="the disk says no"):
            removals.wait()

    with pytest.raises(StoreError, match="the disk says no"), Removals(str(store)) as removals:
        removals.begin_with(fails)
        removals.add(NAMES[20:])
        refused(removals)
    assert len(left(store, layout.PACKS)) == len(NAMES) - 20
    with pytest.raises(StoreError, match="the disk says no"), Removals(str(store)) as removals:
        removals.begin_with(fails)  # and then there is nothing to remove


def test_a_pack_that_cannot_be_removed_is_an_error_and_the_others_stay(store: Path) -> None:
    stuck = store / layout.PACKS / layout.pack_name(NAMES[7])
    stuck.unlink()
    stuck.mkdir()
    with pytest.raises(StoreError, match="cannot remove"), Removals(str(store)) as removals:
        removals.add(NAMES)
    assert left(store, layout.PACKS) == {stuck.name}
    # The parity of a pack is removed after the pack.
    assert left(store, layout.PARITY) == {stuck.name}


def test_an_error_of_a_removal_does_not_hide_another_error(store: Path) -> None:
    stuck = store / layout.PACKS / layout.pack_name(NAMES[0])
    stuck.unlink()
    stuck.mkdir()
    with pytest.raises(KeyError), Removals(str(store)) as removals:
        removals.add(NAMES[:1])
        raise KeyError
