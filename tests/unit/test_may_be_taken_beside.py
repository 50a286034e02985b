"""Which snapshots the daemon takes at once."""

from pathlib import Path

import pytest

from ciuic.config.load import load_settings
from ciuic.model import EMERGENCY_TAG, ExcludeRules
from ciuicd.jobs.at_once import Scope, may_be_taken_beside, scope_of
from ciuicd.jobs.job import Job


def beside(wanted: Scope, *others: Scope) -> bool:
    return may_be_taken_beside(wanted, others)


def scope(*roots: str, has_hooks: bool = False, is_urgent: bool = False) -> Scope:
    encoded = tuple(root.encode() for root in roots)
    return Scope(encoded, has_hooks=has_hooks, is_urgent=is_urgent)


def test_directories_apart_inside_and_around_are_taken_at_once() -> None:
    assert beside(scope("/data"))
    assert beside(scope("/home"), scope("/data"))
    assert beside(scope("/data/run7"), scope("/data"))
    assert beside(scope("/data"), scope("/data/run7"))


def test_one_directory_in_common_is_enough_to_wait() -> None:
    assert not beside(scope("/home", "/data"), scope("/etc"), scope("/data", "/srv"))


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
