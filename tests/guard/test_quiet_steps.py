"""Many lines at once: rules find the same as line by line, and fast enough."""

import itertools
import json
import random
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ciuic.guard.rules.language import default_rules, parse_rule
from ciuic.guard.rules.watching import Finding, Watching
from tests.kit.chance import drawn_seed

TEXTS = [
    "loss rises more than 15% for 3 steps and gpu_util < 40 for 3 steps",
    "loss rises more than 15% for 1 steps",
    "loss falls more than 50% for 2 steps",
    "loss is not finite",
    "loss > 4 x median of 5 steps",
    "loss > 8 for 3 steps",
    "gpu_util < 40 for 6 steps",
    "gpu_util <= 20 and loss >= 9",
    "absent > 1",
    "no step for 30m",
]
LOSSES = [
    "loss rises more than 15% for 3 steps",
    "loss falls more than 50% for 2 steps",
    "loss is not finite",
    "loss > 4 x median of 5 steps",
    "loss > 8 for 3 steps",
]

ODDITIES = (
    *("", "", "", "nan", "text", "none", "broken", "back", "rank", "blank", "gap"),
    *("halves", "ranks", "global"),
)

levels = st.sampled_from([1.0, 1.0, 1.0, 1.2, 1.5, 2.0, 9.0])
stretches = st.tuples(
    st.integers(1, 60),  # how many steps
    st.lists(levels, min_size=1, max_size=6),  # the loss, repeated
    st.sampled_from([10, 30, 90]),  # gpu_util
    st.sampled_from(ODDITIES),
)


def lines_of(course: list[tuple[int, list[float], int, str]]) -> list[bytes]:
    found, step = [], 0
    for count, losses, util, oddity in course:
        for number in range(count):
            step += 1
            line = {"step": step, "loss": losses[number % len(losses)], "gpu_util": util}
            lines = [line]
            if oddity == "halves":
                lines = [{"step": step, "loss": line["loss"]}, {"step": step, "gpu_util": util}]
            elif oddity == "ranks":
                lines = [line | {"rank": rank} for rank in range(3)]
            elif oddity == "global":
                lines = [{"global_step": step, "loss": line["loss"], "gpu_util": util}]
            found += [json.dumps(one).encode() for one in lines]
        if oddity == "text":
            found.append(b'{"step": "%d", "loss": "inf", "gpu_util": 90}' % (step := step + 1))
        elif oddity == "nan":
            found.append(b'{"step": %d, "loss": NaN, "gpu_util": 90}' % (step := step + 1))
        elif oddity == "none":
            found.append(b'{"step": %d, "loss": 3}' % (step := step + 1))
        elif oddity == "broken":
            found.append(b'{"step": ')
        elif oddity == "back":
            step = step // 2
        elif oddity == "rank":
            found.append(b'{"step": %d, "loss": 9e9, "gpu_util": 1, "rank": 3}' % step)
        elif oddity == "blank":
            found.append(b"")
        elif oddity == "gap":
            step += 1000
    return found


def state_of(watching: Watching) -> tuple[int | None, str, int]:
    steps = watching.steps
    return steps.step, str(steps.values), steps.rollbacks  # NaN differs from itself


def by_step(found: list[Finding]) -> list[Finding]:
    """Order what is found at a step by rule: its fields may come in several lines."""
    steps = itertools.groupby(found, key=lambda one: one.step)
    return [one for _, some in steps for one in sorted(some, key=lambda one: one.rule.name)]


@given(
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4, unique=True),
    course=st.lists(stretches, min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 400), max_size=6),
    is_live=st.booleans(),
)
def test_any_lines_in_any_blocks_find_the_same_as_line_by_line(texts, course, cuts, is_live):
    rules = [parse_rule(f"r{number}", {"when": text}) for number, text in enumerate(texts)]
    lines = lines_of(course)
    times = {"since_ns": 7, "monotonic_s": 5.0} if is_live else {}
    one_by_one, at_once = Watching(rules), Watching(rules)
    expected = [one for line in lines for one in one_by_one.lines(0, [line], **times)]
    found, start = [], 0
    for cut in [*cuts, len(lines)]:
        found += at_once.lines(0, lines[start : start + cut], **times)
        start += cut
    found += at_once.lines(0, lines[start:], **times)

    assert by_step(found) == by_step(expected)
    for name in ("count", "_seen", "_last_s"):
        assert getattr(at_once, name) == getattr(one_by_one, name), name
    assert state_of(at_once) == state_of(one_by_one)
    assert (at_once.decoder.broken, at_once.decoder.without_step) == (
        one_by_one.decoder.broken,
        one_by_one.decoder.without_step,
    )
    assert at_once.blind() == one_by_one.blind()
    # The remembered state decides what they find next.
    after = lines_of([(8, [9.0, 30.0, 90.0, 300.0], 10, "nan")])
    last = at_once.steps.step or 0
    after = [json.dumps(json.loads(one) | {"step": last + n}).encode() for n, one in
             enumerate(after, 1)]  # fmt: skip
    assert at_once.lines(0, after[:3]) == one_by_one.lines(0, after[:3])
    assert at_once.lines(0, after[3:]) == one_by_one.lines(0, after[3:])


def line(step: int, loss: float, rank: str = "") -> bytes:
    document = {"step": step, "loss": loss, "gpu_util": 10} | ({"rank": rank} if rank else {})
    return json.dumps(document).encode()


def found_in_turn(texts: list[str], blocks: list[tuple[int, list[bytes]]]) -> None:
    """Compare the findings in blocks of several files with those in their lines, one by one."""
    rules = [parse_rule(f"r{number}", {"when": text}) for number, text in enumerate(texts)]
    one_by_one, at_once = Watching(rules), Watching(rules)
    for file, lines in blocks:
        expected = [one for line in lines for one in one_by_one.lines(file, [line])]
        assert at_once.lines(file, lines) == expected
    assert (at_once.count, at_once._seen) == (one_by_one.count, one_by_one._seen)
    assert state_of(at_once) == state_of(one_by_one)


def test_a_source_that_leads_only_after_some_lines_of_a_block_is_compared_from_there():
    text = "loss rises more than 15% for 3 steps"
    losses = [5, 5, 5, 2, 3, 4, *[4] * 20]
    block = [line(1030 + 30 * n, loss) for n, loss in enumerate(losses)]
    watching = Watching([parse_rule("r", {"when": text})])
    watching.lines(0, [line(1000, 1)])
    assert [one.step for one in watching.lines(1, block)] == [1180, 1210]
    found_in_turn([text], [(0, [line(1000, 1)]), (1, block)])


sources = st.tuples(
    st.integers(0, 2),  # the file
    st.sampled_from(["", "", "3"]),
    st.sampled_from([1, 30, 30, 101, -200]),  # where it begins, counted from the last block
    st.sampled_from([1, 30, 30, 60]),  # from step to step
    st.one_of(  # the loss at first
        st.sampled_from([3, 2, 4]).map(lambda n: [9.0] * n + [1.5, 2.0, 3.0]),
        st.lists(levels, min_size=1, max_size=8),
    ),
    st.sampled_from([[1.0], [3.0], [1.0, 1.2]]),  # and then, repeated
    st.sampled_from([30, 0]),
)


@settings(max_examples=300)
@given(
    texts=st.lists(st.sampled_from(LOSSES), min_size=1, max_size=2, unique=True),
    course=st.lists(sources, min_size=1, max_size=8),
)
@example(
    texts=["loss rises more than 15% for 3 steps"],
    course=[
        (0, "", 1, 1, [1.0], [1.0], 0),
        (1, "", 30, 30, [9.0] * 3 + [1.5, 2.0, 3.0], [1.0], 30),
    ],
)
def test_several_files_and_ranks_whose_leader_changes_find_the_same_as_line_by_line(texts, course):
    blocks, last = [], 1000
    for file, rank, begin, stride, first, then, count in course:
        losses = first + [then[n % len(then)] for n in range(count)]
        steps = range(last + begin, last + begin + stride * len(losses), stride)
        last = steps[-1]
        blocks.append((file, [line(*one, rank) for one in zip(steps, losses, strict=True)]))
    found_in_turn(texts, blocks)


@pytest.mark.parametrize(
    "gap", [b"", b" ", b'{"step":\n41,"loss":1,"gpu_util":1}'], ids=["none", "space", "cut"]
)
def test_two_objects_on_a_line_are_not_read_as_two_lines(gap):
    lines = [line(2 * step, 1.0) for step in range(40)]
    lines[10] += lines.pop(11)
    lines[20:20] = gap.split(b"\n")
    found_in_turn(["loss > 8 for 3 steps"], [(0, lines)])
    watching = Watching([parse_rule("r", {"when": "loss > 8"})])
    watching.lines(0, lines)
    assert watching.decoder.broken >= 1


@pytest.mark.parametrize(("growth", "text"), [(1.2, TEXTS[0]), (1.01, TEXTS[1])])
def test_what_grows_for_a_long_time_is_compared_with_its_own_beginning(growth, text):
    rules = [parse_rule("r", {"when": text})]
    flat = [{"step": n, "loss": 1.0, "gpu_util": 90} for n in range(100)]
    grown = [
        {"step": 100 + n, "loss": growth**n, "gpu_util": 90 if n < 150 else 10} for n in range(160)
    ]
    lines = [json.dumps(line).encode() for line in flat + grown]
    one_by_one, at_once = Watching(rules), Watching(rules)
    expected = [one for line in lines for one in one_by_one.lines(0, [line])]
    assert [one.go_back_step for one in expected] == ([100] if growth == 1.2 else [])
    assert at_once.lines(0, lines[:230]) + at_once.lines(0, lines[230:]) == expected


def noisy(count: int, kind: str) -> list[bytes]:
    draw = random.Random(drawn_seed())
    found = []
    for n in range(count):
        line = {"step": n, "loss": 2 * draw.uniform(0.8, 1.25), "gpu_util": 90.5}
        if kind == "evaluated" and n % 50 == 0:
            line = {"step": n, "eval_loss": 2.0}
        elif kind == "nearly":
            line |= {"loss": 1.2 ** (n % 4), "gpu_util": 30 if n % 4 != 3 else 50}
        elif kind == "broken" and n % 500 == 0:
            found.append(b'{"step": ')
        elif kind == "ranks":
            line["rank"] = 0
            found += [json.dumps(line | {"rank": rank}).encode() for rank in (0, 1)]
        found.append(json.dumps(line).encode())
    return found[:count]


@pytest.mark.parametrize("kind", ["", "evaluated", "nearly", "broken", "ranks"])
@pytest.mark.parametrize("text", ["", "loss > 4 x median of 100 steps"])
def test_a_log_of_a_training_that_is_well_takes_a_fraction_of_the_time_of_each_line(text, kind):
    rules = [parse_rule("spike", {"when": text})] if text else default_rules()
    lines = noisy(20_000, kind)
    count = len({json.loads(line)["step"] for line in lines if line.endswith(b"}")})

    def used_s(size: int) -> float:
        best_s = float("inf")
        for _ in range(3):
            watching = Watching(rules)
            began_s = time.process_time()
            for start in range(0, len(lines), size):
                assert watching.lines(0, lines[start : start + size], since_ns=1) == []
            best_s = min(best_s, time.process_time() - began_s)
            assert watching.count == count
        return best_s

    assert used_s(5000) < 0.7 * used_s(10)
