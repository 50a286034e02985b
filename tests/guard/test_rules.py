"""Rules over steps: when they fire, and which step to go back to."""

import itertools
import json
import math
import random
import statistics
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic.guard.logs.records import Decoder
from ciuic.guard.rules.language import DEFAULT_RULES, parse_rule
from ciuic.guard.rules.watching import Finding, Watching
from tests.kit.chance import drawn_seed

USERS_RULE = DEFAULT_RULES["divergence"]["when"]


def watching(*rules: str) -> Watching:
    return Watching([parse_rule(f"rule-{at}", {"when": when}) for at, when in enumerate(rules)])


def fired(found: Iterable[Finding]) -> list[tuple[int | None, int | None]]:
    """The steps at which a rule fired, each with the step to go back to."""
    return [(one.step, one.go_back_step) for one in found if not one.is_end]


def logged(*steps: dict[str, object]) -> list[bytes]:
    return [json.dumps(step).encode() for step in steps]


def losses(values: Iterable[float], gpu_util: float = 20.0) -> list[bytes]:
    return logged(
        *[{"step": at, "loss": loss, "gpu_util": gpu_util} for at, loss in enumerate(values, 1)]
    )


@pytest.mark.parametrize(
    ("values", "gpu_util", "expected"),
    [
        ([2, 2.4, 2.9, 3.5], 20, [(4, 1)]),
        ([2, 2, 2, 2.4, 2.9, 3.5], 20, [(6, 3)]),
        ([2, 2.4, 2.9, 3.5], 40, []),  # not under 40
        ([2, 2.4, 2.9, 3.5], 39.9, [(4, 1)]),
        ([2, 2.4, 2.9, 3.0], 20, []),  # the third rise is too small
        ([2, 2.3, 2.645, 3.04175], 20, []),  # exactly 15 % is not more
        ([2, 2.4, 2.3, 2.9, 3.5], 20, []),  # a fall in between
        ([2, 2.4, 2.9, 3.5, 4.2, 5.0], 20, [(4, 1)]),  # one fault, one finding
        ([2, 2.4, 2.9, 3.5, 3.5, 4.2, 5.0, 6.0], 20, [(4, 1), (8, 5)]),
        ([-2, -1.6, -1.3, -1.0], 20, [(4, 1)]),  # a log-likelihood
        ([2, math.nan, 2.9, 3.5, 4.2], 20, []),
        ([2, 2.4, math.inf, math.inf], 20, []),
    ],
)
def test_the_users_rule_fires_after_three_rises_in_a_row(values, gpu_util, expected) -> None:
    assert fired(watching(USERS_RULE).lines(0, losses(values, gpu_util))) == expected


def test_gpu_util_counts_at_each_of_the_steps_that_rose_and_not_before() -> None:
    values = [(2.0, 90), (2.4, 20), (2.9, 20), (3.5, 20)]
    lines = [{"step": at, "loss": loss, "gpu_util": gpu} for at, (loss, gpu) in enumerate(values)]
    assert fired(watching(USERS_RULE).lines(0, logged(*lines))) == [(3, 0)]

    lines[2]["gpu_util"] = 90
    assert fired(watching(USERS_RULE).lines(0, logged(*lines))) == []


def test_a_step_without_a_field_of_the_rule_does_not_count() -> None:
    lines = losses([2, 2.4, 2.9, 3.5])
    lines[1:1] = logged({"step": 1, "lr": 0.1})
    lines[3] = json.dumps({"step": 3, "loss": 2.9}).encode()

    assert fired(watching(USERS_RULE).lines(0, lines)) == []


def test_several_ranks_that_log_a_step_are_one_step() -> None:
    lines = []
    for step, loss in enumerate([2, 2.4, 2.9], 1):
        for rank in range(4):
            lines += logged({"step": step, "rank": rank, "loss": loss, "gpu_util": 20})
    rules = watching(USERS_RULE)

    assert fired(rules.lines(0, lines)) == []
    assert rules.count == 3
    last = logged({"step": 4, "rank": 0, "loss": 3.5, "gpu_util": 20})
    assert fired(rules.lines(0, last)) == [(4, 1)]


def test_a_late_line_of_another_rank_is_no_rollback() -> None:
    rules = watching(USERS_RULE)
    lines = []
    for step, loss in enumerate([2, 2.4, 2.9, 3.5], 1):
        lines += logged({"step": step, "rank": 0, "loss": loss, "gpu_util": 20})
        lines += logged({"step": step - 1, "rank": 1, "loss": 9.0, "gpu_util": 90})

    assert fired(rules.lines(0, lines)) == [(4, 1)]
    assert rules.steps.rollbacks == 0


def test_fields_of_a_step_may_come_in_several_lines_and_files() -> None:
    rules = watching(USERS_RULE)
    found = []
    for step, loss in enumerate([2, 2.4, 2.9, 3.5], 1):
        found += rules.lines(0, logged({"step": step, "loss": loss}))
        found += rules.lines(1, logged({"step": step, "gpu_util": 20}))

    assert fired(found) == [(4, 1)]


def test_a_loss_that_is_not_finite_on_any_rank_fires_once() -> None:
    rules = watching("loss is not finite")
    lines = [
        b'{"step": 1, "rank": 0, "loss": 2.0}',
        b'{"step": 2, "rank": 0, "loss": 2.0}',
        b'{"step": 2, "rank": 1, "loss": NaN}',
        b'{"step": 3, "rank": 0, "loss": -Infinity}',
        b'{"step": 4, "rank": 0, "loss": "nan"}',
        b'{"step": 5, "rank": 0, "loss": 2.0}',
        b'{"step": 6, "rank": 0, "loss": Infinity}',
    ]
    found = rules.lines(0, lines)

    assert fired(found) == [(2, 1), (6, 5)]
    assert [one.step for one in found if one.is_end] == [5]


def test_steps_that_go_back_empty_the_windows() -> None:
    rules = watching(USERS_RULE)
    found = rules.lines(0, losses([2, 2.4, 2.9]))
    found += rules.lines(0, logged({"step": 2, "loss": 3.5, "gpu_util": 20}))

    assert fired(found) == []
    assert rules.steps.rollbacks == 1
    more = [{"step": at, "loss": 3.5 * 1.2**at, "gpu_util": 20} for at in range(3, 6)]
    assert fired(rules.lines(0, logged(*more))) == [(5, 2)]


def test_a_rollback_ends_a_fault() -> None:
    rules = watching("loss is not finite")
    found = rules.lines(0, [b'{"step": 5, "loss": NaN}', b'{"step": 3, "loss": NaN}'])

    assert [(one.step, one.is_end) for one in found] == [(5, False), (3, True), (3, False)]


def test_another_file_leads_when_the_log_of_the_leader_has_ended() -> None:
    rules = watching("loss > 5")
    rules.lines(0, logged({"step": 10, "loss": 1}))
    found = rules.lines(1, logged(*[{"step": at, "loss": at / 40} for at in range(11, 211)]))

    assert fired(found) == [(201, 200)]


def test_spike_above_the_median_of_the_last_steps() -> None:
    rules = watching("loss > 3 x median of 5 steps")
    found = rules.lines(0, losses([9, 1, 1, 1, 1, 2.9, 3.1, 1, 3.1]))

    assert fired(found) == [(7, 6), (9, 8)]


@settings(max_examples=50)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80),
    st.integers(1, 12),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_the_running_median_is_the_median(values, window, factor) -> None:
    rules = watching(f"loss > {factor} x median of {window} steps")
    found = rules.lines(0, losses(values))
    holds = [
        at >= window and value > factor * statistics.median(values[at - window : at])
        for at, value in enumerate(values)
    ]
    begins = [at + 1 for at, now in enumerate(holds) if now and not (at and holds[at - 1])]

    assert [step for step, _ in fired(found)] == begins


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([1.0, 1.2, 1.5, 2.0, 2.5, 3.0]), min_size=1, max_size=40),
    st.integers(1, 4),
)
def test_rises_are_those_of_a_plain_reading(values, steps) -> None:
    rules = watching(f"loss rises more than 15% for {steps} steps")
    found = rules.lines(0, losses(values))
    rises = [after > before * 1.15 for before, after in itertools.pairwise(values)]
    holds = [False] + [
        at + 1 >= steps and all(rises[at + 1 - steps : at + 1]) for at in range(len(rises))
    ]
    begins = [at + 1 for at, now in enumerate(holds) if now and not (at and holds[at - 1])]

    assert [step for step, _ in fired(found)] == begins


def test_no_new_step_fires_once_and_ends_with_the_next_step() -> None:
    rules = watching("no step for 10m")
    assert rules.time_passed(100.0) == []
    rules.lines(0, logged({"step": 1}), since_ns=1, monotonic_s=200.0)
    assert rules.time_passed(799.0) == []
    found = [*rules.time_passed(800.0), *rules.time_passed(900.0)]
    assert fired(found) == [(1, 1)]

    ended = rules.lines(0, logged({"step": 2}), since_ns=2, monotonic_s=1000.0)
    assert [one.is_end for one in ended] == [True]
    assert fired(rules.time_passed(1600.0)) == [(2, 2)]


def test_a_job_that_never_logs_a_step_is_found_too() -> None:
    rules = watching("no step for 1m")
    rules.time_passed(0.0)

    assert fired(rules.time_passed(60.0)) == [(None, None)]


def test_old_logs_with_times_show_where_no_step_came() -> None:
    rules = watching("no step for 10m")
    moments = ["2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z", "2026-01-01T00:20:00+00:00"]
    found = rules.lines(0, logged(*[{"step": at, "time": one} for at, one in enumerate(moments)]))

    assert fired(found) == [(1, 1)]
    seconds = [{"step": at, "ts": moment} for at, moment in enumerate([0, 100.5, 1000])]
    assert fired(watching("no step for 10m").lines(0, logged(*seconds))) == [(1, 1)]


def test_fields_may_be_nested_or_have_a_dot() -> None:
    lines = [b'{"global_step": 1, "train": {"loss": 7}}', b'{"global_step": 2, "train.loss": 1}']
    found = watching("train.loss > 5").lines(0, lines)

    assert [(one.step, one.is_end) for one in found] == [(1, False), (2, True)]


def test_lines_of_any_kind_are_counted_and_cause_nothing() -> None:
    lines = [
        b"",
        b"Traceback (most recent call last):",
        b'{"step": 1, "loss": 2',
        b"[1, 2]",
        b'{"loss": 2}',
        b'{"step": "one"}',
        b'{"step": true, "loss": 1}',
        b'{"step": 1e400}',
        b'{"step": [1]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe{}",
        b'{"step": 1, "loss": {"a": 1}, "gpu_util": null}',
    ]
    rules = watching(USERS_RULE, "loss is not finite")

    assert rules.lines(0, lines) == []
    assert rules.decoder.broken == 6
    assert rules.decoder.without_step == 5
    assert rules.count == 1


def test_both_decoders_read_the_same() -> None:
    """The fast decoder passes on lines that it cannot read; a dot in a field turns it off."""
    chance = random.Random(drawn_seed())
    lines = []
    for step in range(1000):
        loss = chance.choice([1, 2.5, "3.5", None, "x", math.nan, math.inf, True, [1], 10**400])
        record = {"step": step, "loss": loss, "rank": chance.choice([0, "1", None, 2.5])}
        record["time"] = chance.choice([step, "2026-01-01T00:00:00", None, "x", []])
        lines += logged({key: value for key, value in record.items() if chance.random() > 0.1})
    fast = watching("loss > 1", "loss is not finite")
    slow = watching("loss > 1", "loss is not finite", "a.b > 1")
    slow_found = slow.lines(0, lines)

    assert [(one.step, one.is_end) for one in fast.lines(0, lines)] == [
        (one.step, one.is_end) for one in slow_found
    ]
    assert fast.count == slow.count
    assert fast.decoder.broken == slow.decoder.broken == 0
    assert fast.decoder.without_step == slow.decoder.without_step


def test_a_rank_beside_nan_is_what_the_line_says_also_if_it_is_nan_itself() -> None:
    lines = [b'{"step": 1, "loss": NaN, "rank": NaN}', b'{"step": 2, "loss": NaN, "rank": "x"}']
    one_by_one = [Decoder(("loss",)).decode(line) for line in lines]
    decoder = Decoder(("loss",))
    for _ in range(2):  # the second time, it expects words in every line
        together = decoder.lines(lines)
        assert together is not None
        assert together.ranks == [one.rank for one in one_by_one if one is not None] == ["", "x"]
