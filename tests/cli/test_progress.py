"""The progress line: its content, its width, and when it is absent."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.cli.progress import Pace, Reporter, State, line
from ciuic.cli.table import display_width
from tests.kit.installed import Place
from tests.kit.terminal import Shown, on_terminal, resize

MIB = 1024 * 1024
PATH = "/data/experiments/a-long-sweep/run-0007/checkpoints/検証用の重み/step_000600.safetensors"


def paced(*samples: tuple[float, int], total: int, files: int = 0) -> tuple[Pace, State]:
    """A pace after these moments, with the bytes done at each."""
    pace, state = Pace(samples[0][0]), State(size_bytes=total, files=files, path=PATH)
    for now_s, done in samples:
        state.done_bytes = done
        pace.note(now_s, state)
    return pace, state


def test_a_steady_run_tells_its_rate_and_the_time_that_is_left():
    pace, state = paced(*[(one / 5, one * 20 * MIB) for one in range(51)], total=4000 * MIB)

    assert pace.bytes_per_s == pytest.approx(100 * MIB)
    assert pace.left_s == pytest.approx(30, abs=0.5)
    shown = line("restore", state, pace, 120)
    assert "100 MiB/s" in shown
    assert "30 s left" in shown
    assert " 25%" in shown
    assert "1000 MiB of 3.91 GiB" in shown


def test_no_time_left_is_shown_before_it_can_be_estimated():
    early, _ = paced((0.0, 0), (0.2, MIB), (0.4, 2 * MIB), total=100 * MIB)
    unknown, state = paced(*[(one / 5, one * MIB) for one in range(50)], total=0)
    idle, _ = paced(*[(one / 5, 0) for one in range(50)], total=100 * MIB)

    assert early.left_s is unknown.left_s is idle.left_s is None
    shown = line("snapshot", state, unknown, 80)
    assert "left" not in shown
    assert "%" not in shown
    assert "5.00 MiB/s" in shown


def test_the_time_left_does_not_jump_when_the_pace_does():
    samples = [(one / 5, one * 20 * MIB) for one in range(51)]
    steady, _ = paced(*samples, total=4000 * MIB)
    stalled, _ = paced(*samples, (10.2, samples[-1][1]), (10.4, samples[-1][1]), total=4000 * MIB)

    assert steady.left_s is not None
    assert stalled.left_s is not None
    assert abs(stalled.left_s - steady.left_s) < 1.0


def test_many_small_files_count_as_well_as_their_bytes():
    state = State(files=1000, size_bytes=1000, done_files=500, done_bytes=500)

    assert state.fraction == pytest.approx(0.5)


def test_more_than_the_last_time_is_no_share_of_it():
    state = State(size_bytes=100 * MIB, done_bytes=150 * MIB, about=True)
    pace = Pace(0.0)
    pace.note(0.0, state)

    assert state.fraction is None
    shown = line("snapshot", state, pace, 80)
    assert "%" not in shown
    assert "of" not in shown


def test_an_estimate_is_never_shown_as_the_end():
    assert State(size_bytes=100, done_bytes=100, about=True).fraction == 0.99
    assert State(size_bytes=100, done_bytes=100).fraction == 1.0


def test_parts_of_a_run_count_steps_or_bytes():
    reporter = Reporter(is_shown=True)
    reporter.stage("mark", 3, 4)
    assert reporter.state.fraction == 0.75
    reporter.stage("read packs", MIB, 2 * MIB)
    assert (reporter.state.fraction, reporter.state.done_bytes) == (0.5, MIB)


@given(
    st.integers(0, 2**60), st.integers(0, 2**60), st.integers(0, 10**9), st.integers(0, 10**9),
    st.text(max_size=80), st.booleans(), st.integers(1, 200),
)  # fmt: skip
def test_a_line_is_never_wider_than_it_may_be(done, total, done_files, files, path, about, width):
    state = State("read packs", done_files, files, done, total, path=path, about=about)
    pace = Pace(0.0)
    pace.note(0.0, state)
    pace.note(9.0, state)

    assert display_width(line("repair", state, pace, width)) <= width


@pytest.mark.parametrize("width", [39, 59, 79, 199])
def test_the_time_left_and_the_share_are_the_last_to_go(width):
    pace, state = paced(*[(one / 5, one * 20 * MIB) for one in range(51)], total=4000 * MIB)

    shown = line("restore", state, pace, width)

    assert "restore" in shown
    assert "25%" in shown
    assert "30 s left" in shown
    if width >= 79:
        assert shown.endswith(".safetensors")


WORK = [
    ["snapshot", "--base"],
    ["verify", "--checksum"],
    ["scrub"],
    ["repair"],
    ["prune", "--dry-run"],
    ["restore", "-s", "latest", "-p", "{source}", "-d", "{out}"],
]


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Place:
    place = Place(tmp_path_factory.mktemp("full"))
    deep = place.source / "experiments-with-a-long-name" / "検証用の重みと最適化の状態"
    deep.mkdir(parents=True)
    for number in range(8):
        (deep / f"step_{number:06}.bin").write_bytes(os.urandom(4 * MIB))
    assert place.run_here("init").code == 0
    place.snapshot()
    return place


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("arguments", WORK, ids=lambda arguments: arguments[0])
def test_the_line_of_every_long_command_fits_the_terminal(full, tmp_path, columns, arguments):
    filled = [one.format(source=full.source, out=tmp_path / "out") for one in arguments]

    done = on_terminal(columns, "ciuic", "--config", full.config, *filled)

    assert done.code == 0, done.text
    drawn = [one for one in done.lines if re.match(rf"{arguments[0]}(:|  |$)", one)]
    assert drawn, done.text
    assert max(map(display_width, drawn)) < columns


@pytest.mark.parametrize("arguments", WORK, ids=lambda arguments: arguments[0])
def test_a_dumb_terminal_gets_no_line(full, tmp_path, arguments):
    filled = [one.format(source=full.source, out=tmp_path / "out") for one in arguments]

    done = on_terminal(80, "ciuic", "--config", full.config, *filled, env={"TERM": "dumb"})

    assert done.code == 0
    assert "\x1b" not in done.raw
    assert not [one for one in done.lines if re.match(rf"{arguments[0]}(:|  |$)", one)]


def test_the_line_has_no_colour_where_none_is_wanted(full):
    done = on_terminal(
        80, "ciuic", "--config", full.config, "verify", "--checksum", env={"NO_COLOR": "1"}
    )

    assert "verify" in done.lines
    assert not re.search(r"\x1b\[[0-9;]*m", done.raw)


RUN = """
import sys
from ciuic.cli.progress import progress
with progress("restore") as shown:
    shown.expect(1000, 10**10)
    for number, _ in enumerate(sys.stdin):
        shown.update(number, number * 10**8, {path!r}.encode())
"""


def driven(columns: int, then: int) -> tuple[Shown, int]:
    """A line on a terminal whose width changes while it runs, and its position at that time."""
    script = RUN.format(path=PATH)
    changed: list[int] = []
    ended: list[bool] = []

    def meanwhile(leader: int, shown: str) -> None:
        if not changed and shown.count("restore") >= 3:
            resize(leader, then)
            changed.append(len(shown))
        if changed and not ended and shown.count("restore", changed[0]) >= 4:
            ended.append(True)
            os.write(leader, b"\n\x04")
        elif not ended:
            os.write(leader, b"\n")

    done = on_terminal(
        columns, "sh", "-c", 'stty -echo; exec "$0" -c "$1"', sys.executable, script,
        env={"PYTHONPATH": str(Path(__file__).parents[2])}, meanwhile=meanwhile,
    )  # fmt: skip
    return done, changed[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("columns", "then"), [(200, 60), (80, 40), (60, 200)])
def test_the_line_follows_a_terminal_that_is_made_wider_or_narrower(columns, then):
    done, at = driven(columns, then)

    assert done.code == 0, done.text
    before, after = Shown(0, done.raw[:at]), Shown(0, done.raw[at:])
    assert max(map(display_width, before.lines)) < columns
    # One more may have been on its way when the terminal changed.
    drawn = [one for one in after.lines if one.startswith("restore")][1:]
    assert drawn
    assert max(map(display_width, drawn)) < then
    if then > columns:
        assert max(map(display_width, drawn)) > columns


def screen(raw: str) -> list[str]:
    """Return what stays on the terminal of an output of short lines."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", raw, re.DOTALL):
        if part == "\x1b[2K":
            rows[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif not part.startswith("\x1b"):
            rows[row] = rows[row].ljust(column)[:column] + part + rows[row][column + 1 :]
            column += 1
    return rows


def test_no_part_of_the_line_stays_beside_the_lines_of_a_copy(full, tmp_path):
    full.snapshot()
    copy = (sys.executable, "-c", "from ciuic.cli import main; main()", "--config", full.config)
    done = on_terminal(
        120, *copy, "copy", "--to", tmp_path / "copy", "--init",
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip

    assert done.code == 0, done.text
    shown = [one for one in screen(done.raw) if one]
    assert len([one for one in shown if re.match(r"cs-[0-9a-f]+  20\d\d-", one)]) >= 2, shown
    assert not [one for one in shown if not re.match(r"cs-|\d+ snapshots copied", one)], shown


def test_without_a_terminal_nothing_is_counted_and_nothing_is_shown(full, tmp_path):
    inner = next(full.source.iterdir())
    done = full.run("restore", "-s", "latest", "-p", inner, "-d", tmp_path / "out", "--json")

    assert done.code == 0
    assert done.err == ""
    assert json.loads(done.out)["written_files"] == 8
