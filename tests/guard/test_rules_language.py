"""The text of rules: its meaning, and the messages for text that ciuic refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.config.load import load_settings
from ciuic.errors import ConfigError
from ciuic.guard.rules.language import DEFAULT_RULES, parse_rule


@pytest.mark.parametrize(
    ("when", "fields"),
    [
        ("loss rises more than 15% for 3 steps", ("loss",)),
        ("Loss FALLS more than .5 % for 1 step", ("Loss",)),
        ("loss rises more than 0% for 3 steps and gpu_util<40 for 3 steps", ("loss", "gpu_util")),
        ("train/loss >= -1.5e3", ("train/loss",)),
        ("metrics.loss is not finite and lr > 0", ("metrics.loss", "lr")),
        ("loss > 3 x median of 100 steps", ("loss",)),
        ("loss > 3x median of 100 steps", ("loss",)),
    ],
)
def test_a_condition_is_understood_in_each_form(when: str, fields: tuple[str, ...]) -> None:
    assert parse_rule("name", {"when": when}).fields == fields


def test_a_rule_about_silence_has_a_time_and_no_fields() -> None:
    rule = parse_rule("stuck", {"when": "no  step for 30m", "then": "pause", "severity": "warning"})

    assert (rule.silence_s, rule.fields) == (1800, ())
    assert (rule.action, rule.severity, rule.when) == ("pause", "warning", "no step for 30m")


def test_an_action_may_be_a_command() -> None:
    rule = parse_rule("a", {"when": "loss > 3", "then": "run  /usr/bin/stop --job 7"})

    assert (rule.action, rule.command) == ("run", "/usr/bin/stop --job 7")


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("", "it has no condition"),
        ("los rises 15%", "write it like: loss rises more than 15% for 3 steps"),
        ("loss is nan", "write it like: loss is not finite"),
        ("loss > median", "write it like: loss > 3 x median of 100 steps"),
        ("gpu_util = 40", "write it like: gpu_util < 40 for 3 steps"),
        ("no step", "write it like: no step for 30m"),
        ("loss rises more than 15% for 0 steps", "not a number of steps from 1 to 10,000"),
        ("loss rises more than 15% for 99999 steps", "not a number of steps from 1 to 10,000"),
        ("loss rises more than -15% for 3 steps", "write 'falls' for a falling field"),
        ("loss > 1e999", "is not a finite number"),
        ("loss > 0 x median of 10 steps", "is not a number above 0"),
        ("no step for 30", "is not a duration"),
        ("no step for 0", "is not a time from 1s to 30d"),
        ("loss > 1 and no step for 3m", "cannot be combined"),
        ("loss > 1 and", "is not a condition"),
        (" and ".join(["loss > 1"] * 9), "more than 8 conditions"),
    ],
)
def test_a_condition_with_a_typo_is_refused_with_the_form_that_was_meant(
    when: str, said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        parse_rule("name", {"when": when})

    assert said in caught.value.args[0]
    assert caught.value.args[1] == "when"


@given(st.text(max_size=80))
def test_any_other_text_is_refused_and_never_crashes(when: str) -> None:
    try:
        rule = parse_rule("name", {"when": when})
    except ValueError as error:
        assert error.args[1] == "when"
    else:
        assert rule.conditions or rule.silence_s


def written(path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_configuration_without_rules_has_the_default_ones(tmp_path) -> None:
    settings = load_settings(written(tmp_path / "ciuic.conf", "trash = 1d\n"))

    assert [rule.name for rule in settings.rules] == list(DEFAULT_RULES)
    assert settings.rules[0].action == "pause"


def test_rules_of_a_configuration_replace_the_default_ones(tmp_path) -> None:
    text = """trash = 2d
[rule spike]    # a comment
when = loss > 4 x median of 50 steps
then = alert
severity = warning
[ rule stuck ]
when = no step for 10m
"""
    settings = load_settings(written(tmp_path / "ciuic.conf", text))

    assert settings.trash_s == 2 * 86_400
    assert [rule.name for rule in settings.rules] == ["spike", "stuck"]
    assert settings.rules[0].severity == "warning"
    assert settings.rules[1].silence_s == 600


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[rule a]\nwhen = los is nan\n", 2, "when of [rule a]: 'los is nan' is not a condition"),
        ("[rule a]\nwhen = loss > 1\nthen = paus\n", 3, "'paus' is not one of alert, pause, run"),
        ("[rule a]\nwhen = loss > 1\nthen = run\n", 3, "'run' needs a command"),
        ("[rule a]\nwhen = loss > 1\nseverity = loud\n", 3, "'loud' is not one of warning, crit"),
        ("[rule a]\nwen = loss > 1\n", 2, "unknown key 'wen'"),
        ("[rule a]\nwhen =\n", 2, "when has no value"),
        ("[rule a]\nwhen = loss > 1\ntrash = 1d\n", 3, "'trash' is not a key of a rule"),
        ("[rule a]\nwhen = a > 1\nwhen = b > 1\n", 3, "when is set a second time; line 2"),
        ("\n[rule a]\nthen = pause\n", 2, "[rule a] lacks the key 'when'"),
        ("[rule a]\nwhen = a > 1\n[rule a]\nwhen = a > 2\n", 3, "begins a second time; line 1"),
        ("[rule]\nwhen = a > 1\n", 1, "the section has no name"),
        ("[rule a b]\nwhen = a > 1\n", 1, "'a b' is not a name"),
        ("[rules a]\nwhen = a > 1\n", 1, "'[rules a]' is not of the form 'key = value'"),
    ],
)
def test_a_mistake_in_a_section_is_named_with_its_line(tmp_path, text, line, said) -> None:
    path = written(tmp_path / "ciuic.conf", text)

    with pytest.raises(ConfigError) as caught:
        load_settings(path)

    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert said in caught.value.message
    assert caught.value.hint
