"""Which snapshots the daemon takes at once."""

import threading
from pathlib import Path

import pytest

from ciuic.config.load import load_settings
from ciuic.model import EMERGENCY_TAG, ExcludeRules
from ciuic.source.freeze.methods import Choice
from ciuicd.jobs import freezing_places
from ciuicd.jobs.at_once import Scope, may_be_taken_beside, scope_of
from ciuicd.jobs.freezing_places import FreezingPlaces
from ciuicd.jobs.job import Job
from tests.kit.clock import ManualClock
from tests.kit.daemon import wait_until


def beside(wanted: Scope, *others: Scope) -> bool:
    return may_be_taken_beside(wanted, others, FreezingPlaces(ManualClock()).of)


def scope(*roots: str, has_hooks: bool = False, is_urgent: bool = False) -> Scope:
    encoded = tuple(root.encode() for root in roots)
    return Scope(encoded, has_hooks=has_hooks, is_urgent=is_urgent)


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, str]:
    """Have a directory freeze in the area at this place; without one, it is read in place."""
    found: dict[bytes, str] = {}

    def choose(root: bytes) -> Choice:
        if root == b"/goes":
            raise FileNotFoundError(2, "No such file or directory")
        place = found.get(root)
        return Choice("reflink" if place else "in place", "", place.encode() if place else None)

    monkeypatch.setattr(freezing_places, "choose", choose)
    return found


def test_directories_apart_inside_and_around_are_taken_at_once() -> None:
    assert beside(scope("/data"))
    assert beside(scope("/home"), scope("/data"))
    assert beside(scope("/data/run7"), scope("/data"))
    assert beside(scope("/data"), scope("/data/run7"))
    assert beside(scope("/goes"), scope("/data"))


def test_one_directory_in_common_is_enough_to_wait() -> None:
    assert not beside(scope("/home", "/data"), scope("/etc"), scope("/data", "/srv"))


def test_two_that_freeze_on_one_file_system_wait_for_each_other(places: dict[bytes, str]) -> None:
    places |= {b"/mnt/a": "/mnt", b"/mnt/b": "/mnt", b"/disk/c": "/disk"}
    assert not beside(scope("/home", "/mnt/a"), scope("/mnt/b"))
    assert not beside(scope("/mnt"), scope("/mnt")), "as ever"
    assert beside(scope("/mnt/a"), scope("/disk/c"))
    assert beside(scope("/mnt/a"), scope("/home"))


def test_what_was_learned_of_a_file_system_counts_for_a_minute(places: dict[bytes, str]) -> None:
    clock = ManualClock()
    asked = FreezingPlaces(clock)
    assert asked.of((b"/mnt/a",)) == frozenset()
    places[b"/mnt/a"] = "/mnt"
    clock.advance(59)
    assert asked.of((b"/mnt/a",)) == frozenset()
    clock.advance(1)
    assert asked.of((b"/mnt/a",)) == {b"/mnt"}


def test_a_file_system_that_hangs_is_asked_once_and_its_snapshots_wait_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, asked = threading.Event(), []

    def choose(root: bytes) -> Choice:
        asked.append(root)
        if root == b"/hangs":
            answer.wait()
        return Choice("in place", "", None)

    monkeypatch.setattr(freezing_places, "choose", choose)
    monkeypatch.setattr(freezing_places, "_ANSWER_S", 0.1)
    clock = ManualClock()
    found = FreezingPlaces(clock)

    def fits(wanted: str, other: str) -> bool:
        return may_be_taken_beside(scope(wanted), [scope(other)], found.of)

    for _ in range(3):
        assert not fits("/hangs", "/a")
        assert not fits("/a", "/hangs")
        clock.advance(3600)
    assert asked.count(b"/hangs") == 1
    answer.set()
    wait_until("it has answered", lambda: found.of((b"/hangs",)) is not None)
    assert fits("/hangs", "/a")


def test_hooks_and_emergencies_are_alone_but_an_emergency_may_begin_beside_others() -> None:
    hooked, urgent = scope("/a", has_hooks=True), scope("/b", is_urgent=True)
    plain = scope("/c")
    assert beside(hooked)
    assert not beside(hooked, plain)
    assert not beside(plain, hooked)
    assert not beside(plain, urgent)
    assert beside(urgent, plain)


def test_no_more_than_four_are_taken_at_once() -> None:
    others = [scope(f"/{number}") for number in range(4)]
    assert beside(scope("/a"), *others[:3])
    assert not beside(scope("/a"), *others)


@pytest.mark.parametrize("hook", ["", "before = true\n", "after = true\n"])
def test_the_scope_of_a_job_comes_from_its_request_and_the_configuration(
    tmp_path: Path, hook: str
) -> None:
    config = tmp_path / "ciuic.conf"
    config.write_text(f"snapshot_dir = {tmp_path}/store\n{hook}")
    settings = load_settings(str(config))
    roots = (b"/data",)
    assert scope_of(Job(), settings, roots) == Scope(roots, bool(hook), is_urgent=False)
    named = Job(tags=(EMERGENCY_TAG,), scope=((b"/home",), ExcludeRules()))
    assert scope_of(named, settings, roots) == Scope((b"/home",), bool(hook), is_urgent=True)
