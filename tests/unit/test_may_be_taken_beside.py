"""Which snapshots the daemon takes at once."""

from pathlib import Path

import pytest

from ciuic.config.load import load_settings
from ciuic.model import EMERGENCY_TAG, ExcludeRules
from ciuic.source.freeze.methods import Choice
from ciuicd.jobs import at_once
from ciuicd.jobs.at_once import Scope, may_be_taken_beside, scope_of
from ciuicd.jobs.job import Job
from tests.kit.clock import ManualClock


def beside(wanted: Scope, *others: Scope) -> bool:
    return may_be_taken_beside(wanted, others, ManualClock())


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

    monkeypatch.setattr(at_once, "choose", choose)
    at_once._freezing_places.cache_clear()
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
