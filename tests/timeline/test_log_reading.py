"""Logs of training programs become curves and moments, whatever the lines hold."""

import itertools
import json
import math
import tracemalloc
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic.timeline.curve import GROUPS_MAX, Curve
from ciuic.timeline.logs import FIELDS_MAX, fields_of, main_field, read_log
from ciuic.timeline.moments import Moments

RECORDS = st.lists(
    st.tuples(st.integers(0, 50), st.floats(allow_nan=True) | st.none(), st.integers(0, 100)),
    max_size=30,
)
JUNK = st.sampled_from([b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"loss": 1}', b'{"step": "x"}'])


def write(path: Path, lines: list[bytes]) -> list[int]:
    """Write lines; return the offset of the end of each."""
    ends, at = [], 0
    for line in lines:
        at += len(line) + 1
        ends.append(at)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return ends


@settings(max_examples=60, deadline=None)
@given(
    records=RECORDS,
    junk=st.lists(JUNK, max_size=4),
    keys=st.lists(st.integers(0, 4000)),
    is_plain=st.booleans(),
)
def test_moments_are_those_that_a_simple_search_finds(
    tmp_path_factory, records, junk, keys, is_plain
):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    records = sorted(records, key=lambda record: record[2])
    if is_plain:  # such lines are decoded together
        junk, steps = [], sorted(record[0] for record in records)
        records = [(step, 1.5, at) for step, (_, _, at) in zip(steps, records, strict=True)]
    lines = [
        json.dumps({"step": step, "loss": loss, "time": moment}).encode()
        for step, loss, moment in records
    ]
    mixed = [*junk, *lines, *junk]
    all_ends = write(path, mixed)
    ends = all_ends[len(junk) : len(junk) + len(lines)]
    steps = [key % 60 for key in keys]
    times = [(key % 110) * 1_000_000_000 for key in keys]

    log = read_log(bytes(path), ["loss"], Moments(times, keys, steps))

    for offset in keys:
        before = [record for record, end in zip(records, ends, strict=True) if end <= offset]
        if offset > path.stat().st_size:  # the program has started the log again since
            before = []
        assert (before[-1][0] if before else None) == step_at(log.at_offset.get(offset))
    for time_ns in times:
        before = [record for record in records if record[2] * 1_000_000_000 <= time_ns]
        assert (before[-1][0] if before else None) == step_at(log.at_time.get(time_ns))
    for step in steps:
        known = [record[0] for record in records if record[0] <= step]
        assert (max(known) if known else None) == step_at(log.at_step.get(step))
    finite = [record for record in records if record[1] is not None and math.isfinite(record[1])]
    assert log.curves[0].count == len(finite)
    pairs = itertools.pairwise(records)
    assert log.rollbacks == sum(later[0] < earlier[0] for earlier, later in pairs)


def step_at(moment) -> int | None:
    return None if moment is None else moment.step


def test_the_value_at_a_moment_is_the_last_one_before_it(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [
        b'{"step": 1, "loss": 3, "eval": 9}',
        b'{"step": 2, "loss": 2}',
        b'{"step": 1, "loss": 2.5}',
    ]
    ends = write(path, lines)

    log = read_log(bytes(path), ["loss", "eval"], Moments(offsets_bytes=ends, steps=[1, 2, 7]))

    assert [log.at_offset[end].values for end in ends] == [(3, 9), (2, 9), (2.5, None)]
    # The training was rolled back, and logged this step again.
    assert log.at_step[1].values == (2.5, None)
    assert log.at_step[7].step == 2
    assert (log.first_step, log.last_step, log.rollbacks) == (1, 2, 1)
    assert [[tuple(point) for point in part] for part in log.curves[0].points()] == [
        [(1, 3.0), (2, 2.0)],
        [(1, 2.5)],
    ]


def test_a_line_that_is_too_long_is_counted_and_keeps_the_offsets_right(tmp_path):
    path = tmp_path / "log.jsonl"
    long = b'{"step": 5, "text": "' + b"x" * 3_000_000 + b'"}'
    ends = write(path, [b'{"step": 1, "loss": 1}', long, b'{"step": 9, "loss": 2}'])

    log = read_log(bytes(path), ["loss"], Moments(offsets_bytes=ends))

    assert log.long_lines == 1
    assert [log.at_offset[end].step for end in ends] == [1, 1, 9]


@settings(max_examples=15, deadline=None)
@given(
    count=st.integers(1, 12_000),
    peak=st.integers(0, 11_999),
    back=st.sampled_from([0, 1, 7, 1000]),
)
def test_a_thinned_curve_keeps_its_extremes_its_order_and_its_bound(count, peak, back):
    curve = Curve()
    for number in range(count):
        step = number % back if back else number
        curve.add(step, 1e6 if number == peak % count else math.sin(number))
    points = [point for part in curve.points() for point in part]

    assert len(points) <= 2 * GROUPS_MAX
    assert curve.count == count
    assert curve.stretches == (1 if back in {0, 1} else math.ceil(count / back))
    if back in {0, 1}:
        assert max(point.value for point in points) == 1e6
    for part in curve.points():
        steps = [point.step for point in part]
        assert steps == sorted(steps)


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(st.integers(1, 3000), min_size=1, max_size=6), back=st.booleans())
def test_values_that_are_added_together_make_the_same_curve(parts, back):
    together, alone = Curve(), Curve()
    at = 0
    for count in parts:
        if back:
            at = 0
        steps = [(at + number) // 2 for number in range(count)]
        values = [math.sin(step) for step in steps]
        together.extend(steps, values)
        for step, value in zip(steps, values, strict=True):
            alone.add(step, value)
        at += count

    assert together.points() == alone.points()
    assert (together.count, together.stretches) == (alone.count, alone.stretches)


def test_lines_that_are_decoded_together_say_what_each_says(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [
        b'{"step": %d, "loss": %d, "time": %d.5}' % (number // 2, number, number)
        for number in range(2000)
    ]
    ends = write(path, lines)
    moments = Moments(
        [number * 1_000_000_000 for number in range(2000)], ends, [1, 2, 3, 500, 999, 5000]
    )
    plain = read_log(bytes(path), ["loss"], moments)
    # A rank on each line: they are read one by one.
    lines = [line.replace(b"{", b'{"rank": %d, ' % (at % 2)) for at, line in enumerate(lines)]
    other_ends = write(path, lines)
    other = read_log(bytes(path), ["loss"], moments._replace(offsets_bytes=other_ends))

    assert plain.at_time == other.at_time
    assert len(plain.at_time) == 1999
    assert plain.at_step == other.at_step
    assert list(plain.at_offset.values()) == list(other.at_offset.values())
    assert plain.at_offset[ends[7]].values == (7,)
    assert plain.curves[0].points() == other.curves[0].points()
    assert (plain.first_step, plain.last_step, plain.has_times) == (0, 999, True)


def test_fields_in_nested_objects_are_found_and_the_loss_is_drawn_first(tmp_path):
    path = tmp_path / "log.jsonl"
    write(
        path, [b'{"step": 1, "lr": 1, "time": 3}', b'{"step": 2, "val": {"loss": 1}, "ok": true}']
    )

    assert fields_of(bytes(path)) == ["lr", "val.loss"]
    assert main_field(["lr", "acc", "val.loss"]) == "val.loss"
    assert main_field(["acc", "train/loss", "loss"]) == "loss"
    assert main_field(["lr", "acc"]) == "acc"
    assert main_field([]) is None


def test_a_log_may_hold_any_time(tmp_path):
    lines = [{"step": 1, "time": 1e300}, {"step": 2, "time": 5}, {"step": 3, "time": -1e300}]
    write(tmp_path / "log", [json.dumps({"loss": 1.0} | line).encode() for line in lines])

    log = read_log(bytes(tmp_path / "log"), ["loss"], Moments(times_ns=[4 * 10**9, 6 * 10**9]))

    assert {at: moment.step for at, moment in log.at_time.items()} == {4 * 10**9: 1, 6 * 10**9: 3}


def test_the_search_for_fields_ends_when_there_are_enough(tmp_path):
    lines = [{f"f{number}-{line}": 1 for number in range(5000)} for line in range(200)]
    write(tmp_path / "log", [json.dumps(line).encode() for line in lines])
    tracemalloc.start()
    found = fields_of(bytes(tmp_path / "log"))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [f"f{number}-0" for number in range(FIELDS_MAX)]
    assert peak_bytes < 16 * 1024 * 1024
