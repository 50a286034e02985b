"""``ciuic rules test``: the rules over old logs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ciuic.guard.rules.language import DEFAULT_RULES
from tests.kit.installed import Place, run_here
from tests.kit.program import REPOSITORY, ciuic

DIVERGED = "".join(
    json.dumps({"step": at, "loss": loss, "gpu_util": 20}) + "\n"
    for at, loss in enumerate([2, 2, 2, 2.4, 2.9, 3.5, 3.4], 1)
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text(DIVERGED + "no JSON\n" + '{"loss": 1}\n' + "x" * 1_100_000 + "\n")
    return path


def test_it_shows_the_step_and_the_step_to_go_back_to(log: Path) -> None:
    """Without any configuration: the default rules."""
    done = ciuic("rules", "test", "--log", log)

    assert done.code == 0
    assert done.out == (
        "step 6: divergence: loss rose 2 → 2.4 → 2.9 → 3.5, and gpu_util was 20, 20, 20;"
        " go back to step 3; it ended at step 7\n"
    )
    assert "1 of 2 rules fired, 1 time in 7 steps" in done.err
    assert "1 line that is not a JSON object" in done.err
    assert "1 line that has no step" in done.err
    assert "1 line that is longer than 1 MiB" in done.err


def test_the_document_has_the_rules_and_what_they_found(tmp_path: Path, log: Path) -> None:
    place = Place(tmp_path)
    place.configure(
        "[rule spike]\nwhen = loss > 1.4 x median of 3 steps\nthen = run /bin/true -x\n"
        "severity = warning\n"
    )
    document = place.run_here("rules", "test", "--log", log, "--json").document

    assert document["rules"] == [
        {
            "name": "spike",
            "when": "loss > 1.4 x median of 3 steps",
            "then": "run /bin/true -x",
            "severity": "warning",
        }
    ]
    (fault,) = document["fired"]
    assert fault.pop("what") == "loss was 2.9, and its median was 2"
    assert fault == {
        "rule": "spike",
        "severity": "warning",
        "step": 5,
        "until_step": 7,
        "go_back_step": 4,
    }
    assert (document["steps"], document["last_step"], document["rollbacks"]) == (7, 7, 0)
    counts = [document[key] for key in ("broken_lines", "lines_without_step", "long_lines")]
    assert counts == [1, 1, 1]


@pytest.mark.parametrize("content", ["", "no JSON\n", '{"loss": 1}\n'])
def test_a_log_without_a_step_is_a_warning(tmp_path: Path, log: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    done = run_here("rules", "test", "--log", tmp_path / "a.txt")
    document = run_here("rules", "test", "--log", tmp_path / "a.txt", "--json")

    assert done.code == document.code == 0
    assert "no line holds a step" in done.err
    assert "no line holds a step" in document.err
    assert "no line holds a step" not in run_here("rules", "test", "--log", log).err


def test_several_logs_are_read_in_the_order_of_their_steps(tmp_path: Path) -> None:
    losses, gpus = tmp_path / "a-loss.jsonl", tmp_path / "b-gpu.jsonl"
    losses.write_text("".join(f'{{"step": {at}, "loss": {2 * 1.2**at}}}\n' for at in range(9)))
    gpus.write_text("".join(f'{{"step": {at}, "gpu_util": {90 - at * 15}}}\n' for at in range(9)))
    apart = run_here("rules", "test", "--log", losses, "--log", gpus, "--json").document
    matched = run_here("rules", "test", "--log", tmp_path / "*.jsonl", "--json").document

    # 4 is the first step under 40, 6 the third.
    assert [(one["step"], one["go_back_step"]) for one in apart["fired"]] == [(6, 0)]
    assert matched == apart
    assert apart["steps"] == 9


def test_the_reference_has_each_field_and_the_default_rules(log: Path) -> None:
    text = (REPOSITORY / "docs" / "reference.md").read_text()
    section = text.partition("### ciuic rules")[2].partition("### ciuic")[0]
    document = run_here("rules", "test", "--log", log, "--json").document

    for fields in (document, document["rules"][0], document["fired"][0]):
        assert [key for key in fields if f"`{key}`" not in section] == []
    for name, keys in DEFAULT_RULES.items():
        lines = [f"[rule {name}]", *[f"{key} = {value}" for key, value in keys.items()]]
        assert "\n".join(f"    {line}" for line in lines) in text


@pytest.mark.parametrize("log", ["/nowhere/x.jsonl", "/dev/null", "/tmp", "/nowhere/*.jsonl"])
def test_a_log_that_cannot_be_read_is_named(log: str) -> None:
    done = run_here("rules", "test", "--log", log)

    assert done.code == 2
    assert log in done.err
    assert "Name a file" in done.err


def test_a_rule_with_a_typo_is_named_with_its_line(tmp_path: Path, log: Path) -> None:
    place = Place(tmp_path)
    place.configure("trash = 1d\n\n[rule a]\nwhen = los rose by 15%\n")
    for command in (["rules", "test", "--log", log], ["list"]):
        done = place.run_here(*command)

        assert done.code == 2
        assert f"{place.config}:4: when of [rule a]: 'los rose by 15%'" in done.err


def test_the_daemon_does_not_start_with_a_typo_in_a_rule(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.configure(f"snapshot_dir = {place.store}\n[rule a]\nwhen = los rose\n")
    command = [sys.executable, "-m", "ciuicd", "--config", str(place.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert f"{place.config}:3: when of [rule a]" in done.stderr
