"""``ciuic timeline`` and ``ciuic compare`` over real snapshots."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.program import Outcome, ciuic


def log_steps(path: Path, steps: range, *, loss: float, **more: object) -> None:
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "loss": loss - step / 1000, **more}) + "\n")


def placed(outcome: Outcome) -> list[tuple[str, int | None, str | None]]:
    """Return the ID and step of each snapshot, and how the step was found, oldest first."""
    assert outcome.code == 0, outcome.err
    found = outcome.document["snapshots"]
    return [(one["id"], one["step"], one["placed_by"]) for one in found[::-1]]


@pytest.fixture
def trained(box: Box) -> tuple[Box, Path, list[str]]:
    """A log that three snapshots have: steps 0..9, steps 0..19, and after a rollback to 5."""
    log = box.source / "train.jsonl"
    ids = []
    for steps in (range(10), range(10, 20), range(5, 12)):
        log_steps(log, steps, loss=2.0)
        ids.append(box.take().id)
    return box, log, ids


def test_a_snapshot_is_at_the_step_where_its_log_ends(trained: tuple[Box, Path, list[str]]) -> None:
    box, log, ids = trained
    log_steps(log, range(12, 40), loss=2.0)

    found = box.ciuic("timeline", "--log", log, "--json")

    assert placed(found) == [(ids[0], 9, "log"), (ids[1], 19, "log"), (ids[2], 11, "log")]
    document = found.document
    assert document["snapshots"][0]["value"] == pytest.approx(2.0 - 0.011)
    assert document["logs"][0]["rollbacks"] == 1
    assert [len(curve) for curve in document["curves"]] == [20, 35]
    assert document["field"] == "loss"


def test_snapshots_are_placed_by_the_times_of_a_log_outside_the_roots(
    box: Box, tmp_path: Path
) -> None:
    log = tmp_path / "train.jsonl"
    (box.source / "a").write_text("x")
    first = box.take()
    second = box.take()
    taken = {one.id: one.taken_ns for one in box.snapshots()}
    lines = [(1, taken[first.id] - 10**9), (2, taken[second.id] - 10**9), (3, taken[second.id] * 2)]
    log.write_text(
        "".join(f'{{"step": {step}, "loss": 1, "ts": {at / 1e9}}}\n' for step, at in lines)
    )

    found = box.ciuic("timeline", "--log", log, "--json")

    assert placed(found) == [(first.id, 1, "time"), (second.id, 2, "time")]


def test_states_and_pins_are_shown_and_the_chart_names_the_field(
    trained: tuple[Box, Path, list[str]],
) -> None:
    box, log, ids = trained
    assert box.ciuic("pin", ids[0]).code == 0
    assert box.ciuic("tag", ids[1], "--add", "suspect").code == 0
    (box.source / "big").write_bytes(b"damaged" * 1000)
    damaged = box.take().id
    flip_content(box.store, b"damaged" * 1000)
    assert box.ciuic("scrub").code == 4

    found = box.ciuic("timeline", "--log", log)
    states = {
        one["id"]: one["state"] for one in box.ciuic("timeline", "--json").document["snapshots"]
    }

    assert states == {ids[0]: "whole", ids[1]: "suspect", ids[2]: "whole", damaged: "damaged"}
    lines = found.out.splitlines()
    assert lines[0] == "loss"
    signs = next(line for line in lines if re.fullmatch(r"[ ▲◆!x^P~]+", line) and line.strip())
    assert set(signs) - {" "} == set("◆x!") or set(signs) - {" "} == set("Px!")
    assert "\x1b" not in found.out
    assert found.err == ""


def test_only_checked_snapshots_are_shown_as_whole_and_the_others_are_counted(
    trained: tuple[Box, Path, list[str]],
) -> None:
    box, log, _ = trained
    before = box.ciuic("timeline", "--log", log)
    unchecked = box.ciuic("timeline", "--log", log, "--json").document["unchecked_packs"]
    assert box.ciuic("scrub").code == 0
    after = box.ciuic("timeline", "--log", log)

    assert unchecked > 0
    assert f"{unchecked} packs were not read since they were written" in before.err
    assert "not read" not in after.err
    assert box.ciuic("timeline", "--log", log, "--json").document["unchecked_packs"] == 0


def test_hostile_logs_are_drawn_without_their_escapes(box: Box) -> None:
    log = box.source / "train.jsonl"
    name = "\x1b[31mloss\x07"
    log.write_text(
        "".join(
            json.dumps({"step": step, name: value}) + "\n"
            for step, value in [(-(2**62), 1e308), (2**62, -1e308), (0, float("nan")), (1, 1e400)]
        )
        + "\x1b]0;title\x07\n{"
        + "[" * 100_000
        + "\n"
    )
    box.take()

    found = box.ciuic("timeline", "--log", log)

    assert found.code == 0, found.err
    assert "\x1b" not in found.out + found.err
    assert "2 values not finite" in found.err
    assert "left out 2 lines without a step" in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log", "/nowhere.jsonl"], "cannot be read: No such file"),
        (["--log", "/tmp"], "is not a regular file"),
        (["--log", "/nowhere/*.jsonl"], "no log matches"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_sentence(box: Box, arguments, message) -> None:
    (box.source / "a").write_text("x")
    box.take()
    for command in (["timeline"], ["compare", "latest", "latest"]):
        found = box.ciuic(*command, *arguments)
        assert (found.code, message in found.err) == (2, True), found.err
        assert len(found.err.splitlines()) == 2


def test_snapshots_without_a_step_and_an_empty_store_are_named(box: Box) -> None:
    empty = box.ciuic("timeline")
    (box.source / "a").write_text("x")
    box.take()
    unplaced = box.ciuic("timeline")

    assert (empty.code, empty.out) == (0, "")
    assert "no snapshot" in empty.err
    assert unplaced.code == 0
    assert "1 snapshot without a step: only snapshots of the library" in unplaced.err


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, list[str]]:
    """Three snapshots of the library. Each save grows the first layer by 1 %; the other stays."""
    store = tmp_path / "library"
    grows, stays = np.ones(4096, np.float32), np.ones(16, np.float32)
    ids = []
    with SnapshotManager(str(store)) as manager:
        for number in range(3):
            state = {"grows": grows * np.float32(1 + number / 100), "stays": stays}
            metrics = {"loss": 3.0 - number, "eval": {"top1": number / 4}, "bad": float("inf")}
            handle = manager.save_snapshot(state, None, number, step=100 * number, metrics=metrics)
            handle.wait()
            ids.append(str(handle.id))
    return store, ids


def test_the_library_needs_no_log(saved: tuple[Path, list[str]]) -> None:
    store, ids = saved

    found = ciuic("--store", store, "timeline", "--json")

    assert placed(found) == [(one, 100 * at, "state") for at, one in enumerate(ids)]
    assert found.document["curves"] == [[[0, 3.0], [100, 2.0], [200, 1.0]]]


def test_compare_shows_metrics_and_how_far_each_layer_moved(saved: tuple[Path, list[str]]) -> None:
    store, ids = saved

    found = ciuic("--store", store, "compare", *ids, "--json")
    text = ciuic("--store", store, "compare", *ids)

    assert found.code == 0, found.err
    assert [one["id"] for one in found.document["snapshots"]] == ids
    assert [one["step"] for one in found.document["snapshots"]] == [0, 100, 200]
    assert found.document["snapshots"][1]["metrics"] == {
        "loss": 2.0,
        "eval.top1": 0.25,
        "bad": None,
    }
    (row,) = [row for row in found.document["tensors"] if row["name"] == "grows"]
    assert row["relative_distances"] == [None, pytest.approx(0.01, 1e-3), pytest.approx(0.02, 1e-3)]
    assert "stays" not in {row["name"] for row in found.document["tensors"]}
    assert text.code == 0
    assert re.search(r"^loss +3 +2 +1$", text.out, re.MULTILINE)
    assert re.search(r"weights\.safetensors:grows +0\.01 +0\.02", text.out)


def test_compare_reads_the_log_at_the_step_and_shows_the_configuration(
    trained: tuple[Box, Path, list[str]],
) -> None:
    box, log, ids = trained
    config = box.source / "config.yaml"
    config.write_text("model: small\nlr: 0.1\n")
    end = box.source / "end.toml"
    end.write_text("a = 1")
    before = box.take().id
    config.write_text("model: small\nlr: 0.2\n")
    (box.source / ".env").write_text("LR=1\n")
    end.write_text("a = 1\n")
    (box.source / os.fsdecode(b"odd\xff\x1b.json")).write_bytes(b"\xff")
    after = box.take().id

    found = box.ciuic("compare", before, after, ids[0], "--log", log, "--json", "--quick")
    text = box.ciuic("compare", before, after)

    assert found.code == 0, found.err
    first, second, third = found.document["snapshots"]
    assert [one["step"] for one in (first, second, third)] == [11, 11, 9]
    assert third["metrics"]["loss"] == pytest.approx(2.0 - 0.009)
    assert second["moves"] is None
    assert second["changed_files"]["added"] == 2
    files = {one["path"]: one for one in second["configuration"]}
    assert files[str(config)]["diff"][2:] == [
        "@@ -1,2 +1,2 @@",
        " model: small",
        "-lr: 0.1",
        "+lr: 0.2",
    ]
    assert files[str(box.source / ".env")]["diff"][2:] == ["@@ -0,0 +1 @@", "+LR=1"]
    assert files[str(end)] == {
        "path": str(end),
        "diff": [],
        "what": "only the end of the last line, or an empty file, differs",
    }
    (odd,) = [one for one in files.values() if "odd" in one["path"]]
    assert odd["what"] == "it is not text in UTF-8"
    assert "no lines to show: only the end" in text.out
    assert "  -lr: 0.1\n  +lr: 0.2\n" in text.out
    assert "\x1b" not in text.out


def test_compare_names_tensors_that_cannot_be_read(box: Box) -> None:
    file, ids = box.source / "weights.npy", []
    for number in range(2):
        np.save(file, np.arange(4096, dtype=np.float32) * (1 + number / 7))
        ids.append(box.take(base=True).id)
    flip_content(box.store, file.read_bytes())

    found = box.ciuic("compare", *ids, "--json")

    assert found.code == 4
    assert found.document["snapshots"][1]["moves"]["unread"] > 0
    assert "some tensors cannot be read" in found.err


def test_an_unknown_field_is_refused_with_the_existing_fields(
    trained: tuple[Box, Path, list[str]],
) -> None:
    box, log, _ = trained
    found = box.ciuic("timeline", "--log", log, "--field", "los")
    assert found.code == 0
    assert "no value of 'los' was found" in found.err
    assert "fields with numbers: loss\n" in found.err


def test_a_log_that_was_started_again_places_no_snapshot_that_had_more_of_it(
    trained: tuple[Box, Path, list[str]],
) -> None:
    box, log, ids = trained
    log.write_text("")
    log_steps(log, range(12), loss=2.0)
    found = placed(box.ciuic("timeline", "--log", log, "--json"))
    assert found == [(ids[0], 9, "log"), (ids[1], 19, "stored"), (ids[2], 11, "stored")]
