"""``ciuic compare --runs`` over real snapshots: runs by name, by tag and by directory."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.program import ciuic


def log_steps(path: Path, steps: range, rate: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for step in steps:
            loss = (step - 30) ** 2 / 100 + rate
            file.write(json.dumps({"step": step, "loss": loss, "top1": rate * step}) + "\n")


@pytest.fixture
def trained(box: Box) -> tuple[Box, list[str]]:
    """Two directories with 60 steps each, the best at step 30, and a snapshot every 20 steps."""
    ids = []
    for name, rate in (("run-a", 0.1), ("run-b", 0.2)):
        (box.source / name).mkdir()
        (box.source / name / "config.yaml").write_text(f"lr: {rate}\nmodel: small\n")
        np.save(box.source / name / "w.npy", np.full(1000, 1 + rate, np.float32))
    (box.source / "run-b" / "more.txt").write_text("only here")
    for first in (0, 20, 40):
        for name, rate in (("run-a", 0.1), ("run-b", 0.2)):
            log_steps(box.source / name / "logs" / "train.jsonl", range(first, first + 20), rate)
        ids.append(box.take().id)
    return box, ids


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the library. The second has one more step."""
    store = tmp_path_factory.mktemp("runs") / "store"
    for run, rate, count in (("one", 0.1, 3), ("two", 0.2, 4)):
        with SnapshotManager(store, run=run) as manager:
            for number in range(count):
                weights = {"w": np.full(100, 1 + rate * number, np.float32)}
                metrics = {"loss": (number - 1) ** 2 + rate}
                manager.save_snapshot(
                    weights, {}, 0, step=10 * number, metrics=metrics, extra={"lr": rate}, wait=True
                )
    return store


def test_files_are_compared_by_their_path_inside_each_directory(
    trained: tuple[Box, list[str]],
) -> None:
    box, ids = trained
    runs = [str(box.source / name) for name in ("run-a", "run-b")]

    found = box.ciuic("compare", "--runs", *runs, "--json")
    typed = ["compare", "--runs", "./run-a", "./run-b"]
    text = ciuic("--config", box.config, *typed, cwd=box.source)

    assert found.code == 0, found.err
    assert [(one["run"], one["snapshots"], one["last_step"]) for one in found.document["runs"]] == [
        (runs[0], 3, 59),
        (runs[1], 3, 59),
    ]
    first, second = found.document["snapshots"]
    assert (first["id"], second["id"]) == (ids[-1], ids[-1])
    assert second["changed_files"] == {"added": 1, "removed": 0, "changed": 3, "metadata": 0}
    (config,) = second["configuration"]
    assert config["path"] == f"{runs[0]}/config.yaml"
    assert config["diff"][3:] == ["-lr: 0.1", "+lr: 0.2", " model: small"]
    (row,) = found.document["tensors"]
    assert row["relative_distances"] == [None, pytest.approx(0.1 / 1.1, 1e-3)]
    assert text.code == 0, text.err
    assert re.search(r"^ +run-a +run-b$", text.out, re.MULTILINE)
    assert re.search(r"^moved tensors +1 of 1$", text.out, re.MULTILINE)


def test_metrics_are_side_by_side_by_step(trained: tuple[Box, list[str]]) -> None:
    box, _ = trained
    log_steps(box.source / "run-b" / "logs" / "train.jsonl", range(60, 70), 0.2)
    box.take()
    runs = [box.source / name for name in ("run-a", "run-b")]

    found = box.ciuic("compare", "--runs", *runs, "--quick", "--steps=8", "--json").document
    text = box.ciuic("compare", "--runs", *runs, "--quick", "--field", "top1")

    loss, top1 = found["metrics"]
    assert (loss["field"], top1["field"]) == ("loss", "top1")
    assert (loss["steps"][0], loss["steps"][-1], len(loss["steps"])) == (0, 69, 8)
    assert loss["values"][0] == [pytest.approx(9.1), pytest.approx(9.2)]
    assert loss["values"][-1] == [None, pytest.approx(15.41)]
    assert "\ntop1\n" in text.out
    assert "\nloss\n" not in text.out


@pytest.mark.parametrize(("best", "place"), [("loss", 1), ("max:loss", 2), ("max:top1", 2)])
def test_the_best_snapshot_of_each_run_is_compared(
    trained: tuple[Box, list[str]], best: str, place: int
) -> None:
    box, ids = trained
    runs = [box.source / name for name in ("run-a", "run-b")]

    found = box.ciuic("compare", "--runs", *runs, "--quick", "--best", best, "--json")

    # The log of the snapshot at 39 ends with 0.81, at 19 with 1.21, at 59 with 8.41.
    assert [one["id"] for one in found.document["snapshots"]] == [ids[place]] * 2
    assert [one["step"] for one in found.document["snapshots"]] == [20 * place + 19] * 2


def test_runs_of_the_library_are_compared_by_name_with_their_settings(saved: Path) -> None:
    found = ciuic("--store", saved, "compare", "--runs", "one", "two", "--best", "loss", "--json")
    assert found.code == 0, found.err
    document = found.document
    assert [(one["run"], one["snapshots"], one["last_step"]) for one in document["runs"]] == [
        ("one", 3, 20),
        ("two", 4, 30),
    ]
    assert [one["step"] for one in document["snapshots"]] == [10, 10]
    (loss,) = document["metrics"]
    assert loss["steps"] == [0, 10, 20, 30]
    assert loss["values"][1] == [pytest.approx(0.1), pytest.approx(0.2)]
    assert loss["values"][3] == [None, pytest.approx(4.2)]
    (settings,) = document["snapshots"][1]["configuration"]
    assert [line.strip() for line in settings["diff"] if "lr" in line] == [
        '-    "lr": 0.1',
        '+    "lr": 0.2',
    ]
    (row,) = document["tensors"]
    assert row["name"] == "w"


def test_log_lines_that_a_rollback_undid_are_left_out(box: Box) -> None:
    log = box.source / "run" / "train.jsonl"
    log_steps(log, range(30), 0.0)
    log_steps(log, range(10, 15), 5.0)
    box.take()
    run = box.source / "run"

    found = box.ciuic("compare", "--runs", run, run, "--json").document["metrics"][0]

    assert found["steps"][-1] == 14
    assert found["values"][-1] == [pytest.approx(5 + 16**2 / 100)] * 2


def test_a_run_by_a_tag_has_the_snapshots_with_the_tag(trained: tuple[Box, list[str]]) -> None:
    box, ids = trained
    for name, which in (("early", ids[:2]), ("late", ids[2:])):
        for one in which:
            assert box.ciuic("tag", one, "--add", name).code == 0

    found = box.ciuic("compare", "--runs", "early", "late", "--quick", "--json").document

    assert [one["id"] for one in found["snapshots"]] == [ids[1], ids[2]]
    assert [one["last_step"] for one in found["runs"]] == [39, 59]


def test_a_file_that_the_first_run_lacks_has_its_own_path(trained: tuple[Box, list[str]]) -> None:
    box, ids = trained
    assert box.ciuic("tag", ids[-1], "--add", "whole").code == 0
    (box.source / "run-a" / "old.yaml").write_text("a: 1\n")
    box.take()

    run = box.source / "run-a"
    found = box.ciuic("compare", "--runs", run, "whole", "--quick", "--json").document

    assert [file["path"] for file in found["snapshots"][1]["configuration"]] == [
        f"{run}/config.yaml",
        f"{run}/old.yaml",
        f"{run}/config.yaml",
        f"{box.source}/run-b/config.yaml",
    ]


def test_unknown_names_are_refused_with_the_existing_names(
    trained: tuple[Box, list[str]], saved: Path
) -> None:
    box, _ = trained
    run = box.source / "run-a"
    cases = [
        (["--runs", "none", run], 1, f"Give one of {box.source}"),
        (["--runs", run, box.source / "gone"], 1, "no snapshot has the directory"),
        (["--runs", run, box.source / "run-a" / "w.npy"], 1, "no snapshot has the directory"),
        (["--runs", run, run, "--log", "gone.jsonl"], 2, "no run has the log 'gone.jsonl'"),
        (["--runs", run, run, "--log", "/etc/passwd"], 2, "is not inside the runs"),
        (["--runs", run, run, "--best", "gone"], 1, "Its fields: loss, top1."),
        (["--runs", run, run, "--best", "max:"], 2, "names no field"),
        (["--runs", run, run, "--field", "gone"], 2, "Their fields: loss, top1."),
        (["latest", "latest", "--best", "loss"], 2, "Add --runs."),
    ]
    for arguments, code, said in cases:
        outcome = box.ciuic("compare", *arguments)
        assert (outcome.code, said in outcome.err) == (code, True), (arguments, outcome.err)
        assert "Traceback" not in outcome.err
    unknown = ciuic("--store", saved, "compare", "--runs", "one", "three")
    assert "Give one of one, two" in unknown.err


def test_a_damaged_log_is_named(box: Box) -> None:
    log = box.source / "run" / "train.jsonl"
    log_steps(log, range(2000), 0.0)
    box.take()
    flip_content(box.store, log.read_bytes())

    outcome = box.ciuic("compare", "--runs", box.source / "run", box.source / "run")

    assert outcome.code == 4
    assert "Traceback" not in outcome.err


def test_a_run_that_ends_without_finite_values_says_so(box: Box) -> None:
    for name, values in (("good", [3.0, 2.0, 1.0, 0.5]), ("bad", [3.0, 2.0, math.nan, math.inf])):
        (box.source / name).mkdir()
        lines = [json.dumps({"step": at, "loss": value}) for at, value in enumerate(values)]
        (box.source / name / "train.jsonl").write_text("\n".join(lines) + "\n")
    box.take()
    runs = [box.source / name for name in ("good", "bad")]

    text = box.ciuic("compare", "--runs", *runs)
    found = box.ciuic("compare", "--runs", *runs, "--json").document

    assert re.findall(r"^ *(\d) +(\S+) +(\S+)$", text.out, re.MULTILINE) == [
        ("0", "3", "3"),
        ("1", "2", "2"),
        ("2", "1", "nan"),
        ("3", "0.5", "inf"),
    ]
    assert [one["last_step"] for one in found["runs"]] == [3, 3]
    (loss,) = found["metrics"]
    assert loss["values"][1:] == [[2.0, 2.0], [1.0, None], [0.5, None]]
    assert loss["not_finite_from"] == [None, 2]
    assert found["snapshots"][1]["metrics"] == {"loss": None}
