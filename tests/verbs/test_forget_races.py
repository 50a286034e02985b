"""Two changes of one snapshot at once: one comes first, and the other sees it."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ciuic.errors import BusyError, SnapshotNotFoundError, UsageError
from ciuic.maintain.forget import apply_forget, bring_back, plan_forget_by_id
from ciuic.maintain.label import change_tags, set_pinned
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.model import SnapshotSummary
from ciuic.store.store import open_store
from ciuic.system import durable
from tests.kit.box import Box
from tests.kit.clock import ManualClock

NOW_NS = 2_000_000_000_123_456_789


@pytest.fixture
def taken(box: Box) -> Box:
    """Four snapshots."""
    for number in range(4):
        (box.source / "file").write_bytes(b"%d" % number * 20_000)
        box.take(tags=(f"number-{number}",))
    return box


def names(box: Box) -> list[str]:
    """The listed snapshots, oldest first."""
    return [one.id for one in reversed(box.snapshots())]


def trash(box: Box) -> list[str]:
    """The snapshots in the trash, oldest first."""
    with open_store(str(box.store)) as store:
        return [one.id for one in store.trash.read()]


def forget(box: Box, *wanted: str) -> None:
    with open_store(str(box.store), write=True) as store:
        apply_forget(store, plan_forget_by_id(store, wanted, NOW_NS), NOW_NS)


def undo(box: Box, name: str) -> SnapshotSummary:
    with open_store(str(box.store), write=True) as store:
        return bring_back(store, name)


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once, before the next mark is created."""
    real, left = durable.create_named, [act]
    one = durable.create_whole

    def create_named(directory: str, files: Any, **options: Any) -> set[str]:
        while left:
            left.pop()()
        return real(directory, files, **options)

    def create_whole(path: str, data: bytes, **options: Any) -> None:
        while left and f"{os.sep}marks{os.sep}" in path:
            left.pop()()
        one(path, data, **options)

    monkeypatch.setattr(durable, "create_named", create_named)
    monkeypatch.setattr(durable, "create_whole", create_whole)


def other_process(box: Box, code: str) -> Callable[[], object]:
    """Return an action of another process, without the write lock."""
    program = (
        "import sys\n"
        "from ciuic.ids import SnapshotId\n"
        "from ciuic.maintain.label import change_tags, set_pinned\n"
        "from ciuic.store.store import open_store\n"
        "with open_store(sys.argv[1]) as store:\n"
        f"    {code}\n"
    )
    return lambda: subprocess.run(
        [sys.executable, "-c", program, str(box.store)], check=True, timeout=120
    )


def test_a_snapshot_that_is_pinned_meanwhile_is_not_forgotten(
    taken: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = names(taken)
    meanwhile(monkeypatch, other_process(taken, f"set_pinned(store, '{known[1]}', pinned=True)"))
    with pytest.raises(UsageError, match=f"{known[1]} is pinned"):
        forget(taken, known[1])
    assert names(taken) == known


def test_a_tag_that_is_added_meanwhile_stays_with_the_forgotten_snapshot(
    taken: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = names(taken)
    meanwhile(monkeypatch, other_process(taken, f"change_tags(store, '{known[1]}', add=['new'])"))
    forget(taken, known[0], known[1])
    assert trash(taken) == known[:2]
    assert undo(taken, known[1]).tags == ("number-1", "new")


def test_a_tag_comes_too_late_for_a_snapshot_that_is_forgotten_meanwhile(
    taken: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = names(taken)
    meanwhile(
        monkeypatch, other_process(taken, f"store.trash.forget([SnapshotId('{known[1]}')], 5)")
    )
    with (
        open_store(str(taken.store), write=True) as store,
        pytest.raises(SnapshotNotFoundError, match="was forgotten"),
    ):
        change_tags(store, known[1], add=["late"])
    assert undo(taken, known[1]).tags == ("number-1",)


def test_a_snapshot_that_two_forget_at_once_is_forgotten_once(
    taken: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = names(taken)
    meanwhile(
        monkeypatch, other_process(taken, f"store.trash.forget([SnapshotId('{known[1]}')], 5)")
    )
    forget(taken, known[0], known[1])
    with open_store(str(taken.store)) as store:
        assert [one.forgotten_ns for one in store.trash.read()] == [NOW_NS, 5]


def test_a_snapshot_that_is_brought_back_meanwhile_is_not_deleted(
    taken: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = names(taken)
    forget(taken, known[0], known[1])
    act = other_process(taken, f"store.trash.bring_back(SnapshotId('{known[1]}'))")
    with open_store(str(taken.store), write=True) as store:
        plan = plan_prune(store, trash_s=0, now_ns=NOW_NS)
        meanwhile(monkeypatch, act)
        with pytest.raises(BusyError, match=f"{known[1]} was brought back"):
            apply_prune(store, plan, clock=ManualClock())
    monkeypatch.undo()
    assert names(taken) == known[1:]
    assert taken.verify().ok, "no pack was removed"
    assert taken.ciuic("prune").code == 0
    assert not list(taken.store.glob(f"snapshots/{known[0]}*"))
    assert taken.verify().ok


def test_a_snapshot_that_is_purged_meanwhile_is_not_brought_back(
    taken: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = names(taken)
    forget(taken, known[0], known[1])
    meanwhile(monkeypatch, other_process(taken, f"store.trash.empty([SnapshotId('{known[1]}')])"))
    with pytest.raises(SnapshotNotFoundError, match="gone for good"):
        undo(taken, known[1])
    assert (names(taken), trash(taken)) == (known[2:], known[:1])
    assert taken.ciuic("prune").code == 0
    assert not list(taken.store.glob(f"marks/{known[1]}*")), "the late mark is gone too"


def test_a_pin_comes_too_late_for_a_snapshot_that_is_removed_meanwhile(
    taken: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marks are gone too, so that the number of the pin is free."""
    known = names(taken)
    name = f"[SnapshotId('{known[1]}')]"
    act = f"store.trash.forget({name}, 5); store.trash.empty({name})"
    meanwhile(monkeypatch, other_process(taken, act))
    with (
        open_store(str(taken.store), write=True) as store,
        pytest.raises(SnapshotNotFoundError, match="removed for good"),
    ):
        set_pinned(store, known[1], pinned=True)
    monkeypatch.undo()
    assert names(taken) == [known[0], *known[2:]]
    assert taken.ciuic("prune").code == 0
    assert not list(taken.store.glob(f"marks/{known[1]}*"))
