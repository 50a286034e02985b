"""The column STATE of ``ciuic list`` costs little, and its lack costs no list."""

import itertools
import os

import pytest

from ciuic.cli import cmd_list
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.installed import run_here


@pytest.fixture
def ids(box: Box) -> list[str]:
    """Three snapshots, newest first; a scrub has found that the middle one lost content."""
    taken = []
    for name in ("a", "b", "c"):
        content = os.urandom(300_000)
        (box.source / name).write_bytes(content)
        taken.append(box.take().id)
        (box.source / name).unlink()
        if name == "b":
            lost = content
    flip_content(box.store, lost)
    assert box.ciuic("scrub").code == 4
    return taken[::-1]


def states(box: Box) -> dict[str, bool | None]:
    """Return ``damaged`` of each snapshot."""
    document = run_here("--config", box.config, "list", "--json").document
    return {one["id"]: one["damaged"] for one in document}


class Slow:
    """A clock that is a second later whenever it is asked."""

    def __init__(self) -> None:
        self.monotonic_s = itertools.count().__next__


@pytest.mark.parametrize(("limit_s", "looked_at"), [(-1.0, 0), (4.0, 2), (100.0, 3)])
def test_what_takes_too_long_is_not_looked_at_and_said_not_to_be(
    box: Box, ids: list[str], monkeypatch: pytest.MonkeyPatch, limit_s: float, looked_at: int
) -> None:
    """Each snapshot asks twice: before it is read, and after its only leaf."""
    monkeypatch.setattr(cmd_list, "SystemClock", Slow)
    monkeypatch.setattr(cmd_list, "_LOOK_S", limit_s)
    true = dict(zip(ids, (False, True, False), strict=True))
    known = {one: true[one] if ids.index(one) < looked_at else None for one in ids}

    listed = run_here("--config", box.config, "list")

    header, *rows = listed.out.splitlines()
    assert ("STATE" in header) == (looked_at > 1)
    assert len(rows) == 3
    assert [" ? " in row for row in rows] == [looked_at == 2 and known[one] is None for one in ids]
    assert (f"{3 - looked_at} snapshot" in listed.err) == (looked_at < 3)
    assert ("'ciuic --config" in listed.err and "verify --all'" in listed.err) == (looked_at < 3)
    assert listed.code == 0
    assert states(box) == known


def test_a_store_that_cannot_be_read_further_is_listed_without_states(
    box: Box, ids: list[str]
) -> None:
    true = dict(zip(ids, (False, True, False), strict=True))
    assert states(box) == true
    (box.store / "packs").rename(box.store / "moved")
    (box.store / "packs").symlink_to("moved")

    listed = run_here("--config", box.config, "list")

    header, *rows = listed.out.splitlines()
    assert "STATE" not in header
    assert len(rows) == 3
    (said,) = [line for line in listed.err.splitlines() if "lost content" in line]
    assert "3 snapshots not checked for lost content: cannot " in said
    assert "is a symlink" in said
    assert listed.code == 0
    assert states(box) == dict.fromkeys(ids)
