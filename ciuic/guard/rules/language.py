"""The text of a rule -> its conditions.

A rule is one or more conditions, joined by ``and``::

    FIELD rises more than 15% for 3 steps
    FIELD falls more than 15% for 3 steps
    FIELD < 40                  also <=, >, >=
    FIELD < 40 for 3 steps
    FIELD is not finite
    FIELD > 3 x median of 100 steps

or one of these alone::

    no step for 30m
    job idle for 15m

``FIELD rises more than 15% for 3 steps`` compares four steps: each of the last three is higher than
the step before it. Spaces around symbols are optional, and ``1 step`` is accepted.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from ciuic.guard.rules.conditions import Above, Compared, Condition, Moves, NotFinite
from ciuic.units import parse_duration_s

__all__ = [
    "ACTIONS",
    "DEFAULT_RULES",
    "SEVERITIES",
    "Rule",
    "Severity",
    "default_rules",
    "parse_rule",
]

Severity = Literal["warning", "critical"]
SEVERITIES: Final = ("warning", "critical")
ACTIONS: Final = ("alert", "pause", "run")

_T = TypeVar("_T")

_STEPS_MAX: Final = 10_000
"""Windows are in memory, one number for each step."""
_CONDITIONS_MAX: Final = 8
_DURATION_S_MAX: Final = 30 * 86_400.0
_FIELD: Final = r"(?P<field>[^\W\d][\w./:@-]*)"
_NUMBER: Final = r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
_FOR: Final = r"\s+for\s+(?P<steps>\d{1,9})\s+steps?"
_MOVES: Final = re.compile(
    rf"{_FIELD}\s+(?P<way>rises|falls)\s+more\s+than\s+{_NUMBER}\s*%{_FOR}", re.IGNORECASE
)
_COMPARED: Final = re.compile(
    rf"{_FIELD}\s*(?P<sign><=|>=|<|>)\s*{_NUMBER}(?:{_FOR})?", re.IGNORECASE
)
_NOT_FINITE: Final = re.compile(rf"{_FIELD}\s+is\s+not\s+finite", re.IGNORECASE)
_ABOVE: Final = re.compile(
    rf"{_FIELD}\s*>\s*{_NUMBER}\s*x\s+median\s+of\s+(?P<steps>\d{{1,9}})\s+steps?", re.IGNORECASE
)
_SILENCE: Final = re.compile(r"no\s+step\s+for\s+(?P<duration>.+)", re.IGNORECASE)
_IDLE: Final = re.compile(r"job\s+(?:is\s+)?idle\s+for\s+(?P<duration>.+)", re.IGNORECASE)
_AND: Final = re.compile(r"\s+and\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rule:
    """A checked rule.

    Attributes:
        name: Its name in the configuration.
        when: Its text, with spaces normalized.
        conditions: Functions that make its conditions, each without any steps; empty for silence
            and idleness.
        fields: The fields that a step must have to count for this rule.
        silence_s: Fire when no new step came for this time; 0: the rule is of another kind.
        idle_s: Fire when the job did nothing for this time; 0: the rule is of another kind.
        action: What to do besides the alert.
        command: The shell command of the action ``run``.
        severity: The severity of the alert.
    """

    name: str
    when: str
    conditions: tuple[Callable[[], Condition], ...]
    fields: tuple[str, ...]
    silence_s: float = 0.0
    idle_s: float = 0.0
    action: Literal["alert", "pause", "run"] = "alert"
    command: str = ""
    severity: Severity = "critical"


def parse_rule(name: str, values: Mapping[str, str]) -> Rule:
    """Return the rule of a section.

    Args:
        name: The name of the section.
        values: The text of ``when``, and of ``then`` and ``severity`` if they are given.

    Raises:
        ValueError: A text is not valid. The second argument of the exception is its key.
    """
    when = " ".join(values.get("when", "").split())
    action, command = _keyed("then", _action, values.get("then", "alert"))
    severity = _keyed("severity", _severity, values.get("severity", "critical"))
    if (silence := _SILENCE.fullmatch(when)) is not None:
        silence_s = _keyed("when", _duration_s, silence["duration"])
        return Rule(name, when, (), (), silence_s, 0.0, action, command, severity)
    if (idle := _IDLE.fullmatch(when)) is not None:
        idle_s = _keyed("when", _duration_s, idle["duration"])
        return Rule(name, when, (), (), 0.0, idle_s, action, command, severity)
    made = _keyed("when", _conditions, when)
    fields = tuple(dict.fromkeys(make().field for make in made))
    return Rule(name, when, made, fields, 0.0, 0.0, action, command, severity)


def _keyed(key: str, convert: Callable[[str], _T], text: str) -> _T:
    try:
        return convert(text)
    except ValueError as error:
        raise ValueError(str(error), key) from None


def _conditions(when: str) -> tuple[Callable[[], Condition], ...]:
    if not when:
        raise ValueError("it has no condition")
    parts = _AND.split(when)
    if len(parts) > _CONDITIONS_MAX:
        raise ValueError(f"it has more than {_CONDITIONS_MAX} conditions")
    return tuple(_condition(part) for part in parts)


def _condition(text: str) -> Callable[[], Condition]:
    if (match := _MOVES.fullmatch(text)) is not None:
        field, share = match["field"], _share(match["number"])
        steps, sign = _steps(match["steps"]), 1 if match["way"].lower() == "rises" else -1
        return lambda: Moves(field, sign * share, steps, rises=sign > 0)
    if (match := _ABOVE.fullmatch(text)) is not None:
        field, factor = match["field"], _positive(match["number"])
        steps = _steps(match["steps"])
        return lambda: Above(field, factor, steps)
    if (match := _COMPARED.fullmatch(text)) is not None:
        field, mark, number = match["field"], match["sign"], _number(match["number"])
        steps = _steps(match["steps"] or "1")
        return lambda: Compared(field, mark, number, steps)
    if (match := _NOT_FINITE.fullmatch(text)) is not None:
        field = match["field"]
        return lambda: NotFinite(field)
    for name, form in (("no step for", _SILENCE), ("job idle for", _IDLE)):
        if form.fullmatch(text):
            raise ValueError(f"'{name}' cannot be combined with a condition; write a separate rule")
    quoted = text if len(text) <= 60 else f"{text[:57]}..."
    raise ValueError(f"'{quoted}' is not a condition; {_example(text)}")


def _example(text: str) -> str:
    """Return the form that the author probably meant."""
    lower = text.lower()
    if "median" in lower:
        return "write it like: loss > 3 x median of 100 steps"
    if "finite" in lower or "nan" in lower or "inf" in lower.split():
        return "write it like: loss is not finite"
    if "step for" in lower or lower.startswith("no "):
        return "write it like: no step for 30m"
    if "idle" in lower or lower.startswith("job "):
        return "write it like: job idle for 15m"
    if any(sign in text for sign in "<>=") and "%" not in text:
        return "write it like: gpu_util < 40 for 3 steps"
    return "write it like: loss rises more than 15% for 3 steps"


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"'{text[:60]}' is not a finite number")
    return number


def _positive(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise ValueError(f"'{text}' is not a number above 0")
    return number


def _share(text: str) -> float:
    number = _number(text)
    if number < 0:
        raise ValueError(f"'{text}%' is negative; write 'falls' for a falling field")
    return number / 100


def _steps(text: str) -> int:
    steps = int(text)
    if not 1 <= steps <= _STEPS_MAX:
        raise ValueError(f"'{text} steps' is not a number of steps from 1 to {_STEPS_MAX:,}")
    return steps


def _duration_s(text: str) -> float:
    duration_s = parse_duration_s(text)
    if not 1 <= duration_s <= _DURATION_S_MAX:
        raise ValueError(f"'{text}' is not a time from 1s to 30d")
    return duration_s


def _action(text: str) -> tuple[Literal["alert", "pause", "run"], str]:
    word, _, rest = text.strip().partition(" ")
    if word == "run":
        if not rest.strip():
            raise ValueError("'run' needs a command")
        return "run", rest.strip()
    if rest or word not in ACTIONS:
        raise ValueError(f"'{text[:60]}' is not one of alert, pause, run COMMAND")
    return ("pause" if word == "pause" else "alert"), ""


def _severity(text: str) -> Severity:
    if text == "warning":
        return "warning"
    if text == "critical":
        return "critical"
    raise ValueError(f"'{text[:60]}' is not one of {', '.join(SEVERITIES)}")


DEFAULT_RULES: Final = {
    "divergence": {
        "when": "loss rises more than 15% for 3 steps and gpu_util < 40 for 3 steps",
        "then": "pause",
    },
    "loss-not-finite": {"when": "loss is not finite"},
    "hang": {"when": "job idle for 15m"},
}
"""The rules if a configuration has none: name -> keys."""


def default_rules() -> tuple[Rule, ...]:
    """Return the rules of a configuration that has none."""
    return tuple(parse_rule(*named) for named in DEFAULT_RULES.items())
