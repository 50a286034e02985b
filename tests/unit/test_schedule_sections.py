"""``[schedule NAME]`` sections, and which schedule is next."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.config.load import load_settings
from ciuic.config.settings import Settings
from ciuic.errors import ConfigError
from ciuic.model import ExcludeRules
from ciuicd.schedules.turns import Turns
from tests.kit.clock import ManualClock

LAYERS = """\
retention_policy = 14d
exclude_patterns = *.tmp

[schedule checkpoints]
snapshot_paths = /srv/checkpoints
retention_policy = hourly:24

[schedule increments]
snapshot_paths = /srv/checkpoints
snapshot_interval = 10m
base_interval = 0
exclude_patterns =

[schedule system]
snapshot_paths = /
"""
NOW_NS = 1_800_000_000 * 10**9


def load(directory: Path, text: str) -> Settings:
    path = directory / "ciuic.conf"
    path.write_text(text)
    return load_settings(str(path))


def refused(directory: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(directory, text)
    return caught.value


def test_a_schedule_section_inherits_the_keys_that_it_does_not_set(tmp_path):
    settings = load(tmp_path, LAYERS)
    assert settings.schedule == "checkpoints"
    assert [
        (one.schedule, one.snapshot_paths, one.snapshot_interval_s, one.base_interval_s)
        for one in settings.schedules
    ] == [
        ("checkpoints", ("/srv/checkpoints",), 3600, 43_200),
        ("increments", ("/srv/checkpoints",), 600, 0),
        ("system", ("/",), 3600, 43_200),
    ]
    assert [one.retention_policy for one in settings.schedules] == ["hourly:24", "14d", "14d"]
    patterns = [one.exclude_patterns for one in settings.schedules]
    assert patterns == [("*.tmp",), (), ("*.tmp",)]
    assert settings.all_paths == ("/srv/checkpoints", "/")
    assert settings.top_retention_policy == "14d"
    assert {name: terms.policy.text for name, terms in settings.terms.items()} == {
        "checkpoints": "hourly:24",
        "increments": "14d",
        "system": "14d",
    }


def test_the_top_section_is_a_schedule_if_it_names_directories_or_is_the_only_one(tmp_path):
    alone = load(tmp_path, "snapshot_interval = 2h\n")
    assert [one.schedule for one in alone.schedules] == ["default"]
    assert (alone.snapshot_paths, alone.others) == (("/",), ())
    both = load(tmp_path, "snapshot_paths = /a\n[schedule b]\nsnapshot_interval = 1m\n")
    assert [(one.schedule, one.snapshot_paths) for one in both.schedules] == [
        ("default", ("/a",)),
        ("b", ("/a",)),
    ]


def test_directories_and_patterns_say_which_schedule_is_meant(tmp_path):
    settings = load(tmp_path, LAYERS)
    rules = ExcludeRules(("*.tmp",))
    assert settings.schedule_of((b"/srv/checkpoints",), rules) == "checkpoints"
    assert settings.schedule_of((b"/srv/checkpoints",), ExcludeRules()) == "increments"
    assert settings.schedule_of((b"/",), rules) == "system"
    assert settings.schedule_of((b"/srv",), rules) == ""
    assert settings.find_schedule("nothing") is None


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[schedule a]\n", ":1: [schedule a] has no snapshot_paths", "Set snapshot_paths"),
        ("[schedule none]\nsnapshot_paths = /a\n", ":1: [schedule none]: 'none' cannot be", "none"),
        ("[schedule default]\nsnapshot_paths = /a\n", "'default' cannot be the name", "top"),
        ("[schedule a]\npaths = /a\n", ":2: unknown key 'paths'", "snapshot_paths"),
        ("[schedule a]\ninterval = 1h\n", ":2: unknown key 'interval'", "_interval"),
        ("[schedule a]\nsnapshot_paths = a\n", ":2: snapshot_paths: 'a' is not an absolute", ""),
        ("[schedule a]\nsnapshot_paths = /a\nsnapshot_interval = 1x\n", ":3: snapshot_int", ""),
        ("[schedule a]\nsnapshot_paths = /a\nretention_policy = 0\n", ":3: retention_pol", ""),
        ("[schedule a]\nsnapshot_paths =\n", ":2: snapshot_paths has no value", ""),
        ("[schedule a]\nsnapshot_dir = /s\n", ":2: 'snapshot_dir' is not a key of a sch", "above"),
        ("[schedule]\n", ":1: the section has no name", "[schedule my-schedule]"),
        (
            "snapshot_dir = /s\n[schedule a]\nsnapshot_paths = /s/inside\n",
            ":3: snapshot_paths: /s/inside is inside the store /s",
            "elsewhere",
        ),
    ],
)
def test_a_wrong_section_is_named_with_its_line(tmp_path, text, said, hint):
    error = refused(tmp_path, text)
    assert said in error.message
    assert hint in (error.hint or "")


def turns_of(directory: Path, *intervals: str) -> tuple[Turns, ManualClock]:
    sections = [
        f"[schedule s{number}]\nsnapshot_paths = /s{number}\nsnapshot_interval = {interval}\n"
        for number, interval in enumerate(intervals)
    ]
    clock = ManualClock(NOW_NS)
    return Turns(load(directory, "".join(sections)), clock, lambda: None), clock


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(1, 7))
def test_no_schedule_waits_for_more_than_one_snapshot_of_each_other(
    tmp_path_factory, intervals_s, took_s
):
    turns, clock = turns_of(tmp_path_factory.mktemp("turns"), *(f"{one}s" for one in intervals_s))
    waiting: dict[str, int] = {}
    for _ in range(60):
        due = turns.due()
        assert {state.name for state in due} == {state.name for state in turns if state.is_due}
        for state in due:
            waiting[state.name] = waiting.get(state.name, -1) + 1
            assert waiting[state.name] < len(intervals_s)
        clock.advance(took_s if due else 1)
        if due:
            state = due[0]
            state.newest_ns = clock.now_ns() - took_s * 10**9
            state.attempt_ended()
            waiting[state.name] = -1


def test_a_clock_that_was_wrong_for_a_while_changes_no_order(tmp_path):
    turns, clock = turns_of(tmp_path, "1s", "1s")
    a_year_s = 365 * 86_400
    clock.advance(a_year_s)
    turns.find("s0").attempt_ended()
    clock.set_back(a_year_s)
    took = []
    for _ in range(4):
        clock.advance(2)
        state = turns.due()[0]
        took.append(state.name)
        state.attempt_ended()
    assert took == ["s1", "s0", "s1", "s0"]


def test_new_directories_start_a_schedule_again_and_a_new_interval_does_not(tmp_path):
    turns, clock = turns_of(tmp_path, "1h", "1h")
    for state in turns:
        state.newest_ns = clock.now_ns()
    assert turns.due() == []
    text = (
        "[schedule s0]\nsnapshot_paths = /s0\nsnapshot_interval = 1d\n"
        "[schedule s1]\nsnapshot_paths = /elsewhere\n"
        "[schedule s2]\nsnapshot_paths = /s2\n"
    )
    turns.replace(load(tmp_path, text))
    assert [state.name for state in turns if state.is_due] == ["s1", "s2"]
    assert turns.first.settings.snapshot_interval_s == 86_400
    assert turns.find("s1").roots == (os.fsencode("/elsewhere"),)
    assert turns.find("gone") is None
