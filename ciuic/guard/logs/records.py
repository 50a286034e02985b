"""A line of a log -> the step, the rank and the fields that rules need.

A training program may log anything. A line that is not a JSON object, or has no step, is counted
and otherwise ignored. Python's ``json`` writes NaN and Infinity as they are, which is not JSON:
both are read here, and so are numbers in strings, such as ``"nan"``.

msgspec reads the usual line in a fraction of the time that ``json`` takes, since it builds only
the fields that are asked for. ``json`` reads what msgspec refuses. Many usual lines of one rank at
once take even less: ``Decoder.runs``.
"""

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from ciuic.system.clock import unix_seconds

__all__ = ["STEP_KEYS", "TIME_KEYS", "Columns", "Decoder", "Record", "Run"]

STEP_KEYS: Final = ("step", "global_step", "iteration")
"""The field with the number of the step; the first that a line has."""
TIME_KEYS: Final = ("time", "timestamp", "ts")
_RANK_KEY: Final = "rank"
_RESERVED_COUNT: Final = len(STEP_KEYS) + len(TIME_KEYS) + 1
_STEP_MAX: Final = 2**63 - 1
_TEXT_MAX: Final = 40


class Record(NamedTuple):
    """What a line says.

    Attributes:
        step: The number of the step.
        rank: The rank that logged it; empty if the line does not say.
        time_s: When, in seconds since 1970; None if the line does not say.
        values: A value for each field that was asked for; None: the line does not have it.
    """

    step: int
    rank: str
    time_s: float | None
    values: tuple[float | None, ...]


class Columns(NamedTuple):
    """What many lines of one rank say, in their order.

    Attributes:
        steps: The number of the step in each line.
        rank: The rank that logged them; empty if they do not say.
        values: For each field that was asked for, its value in each line; None: no line has it.
        times_s: When, in seconds since 1970; empty: no line says so, or runs were asked for.
    """

    steps: list[int]
    rank: str
    values: list[list[float] | None]
    times_s: list[float]


class Run(NamedTuple):
    """Lines that follow each other.

    Attributes:
        end: How many lines there are up to their end.
        columns: What they say; None: they must be read one by one.
    """

    end: int
    columns: Columns | None


class Decoder:
    """Decodes the lines of logs.

    Args:
        fields: The fields that are asked for. ``a.b`` is the field ``a.b``, or else ``b`` in ``a``.

    Attributes:
        broken: Lines that were not JSON objects.
        without_step: Objects without a usable step.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.broken = 0
        self.without_step = 0
        self._fields = tuple(fields)
        self._type = _line_type(self._fields)
        self._fast = _fast_decoder(self._type, len(self._fields))
        self._lines = None if self._type is None else msgspec.json.Decoder(self._type).decode_lines

    def decode(self, line: bytes) -> Record | None:
        """Return what a line says; None if it has no step."""
        try:
            found = self._fast(line)
        except (ValueError, RecursionError):
            found = None
        return self._slow(line) if found is None else found

    def columns(self, lines: Sequence[bytes]) -> Columns | None:
        """Return what lines say, and when they were logged; None if they are not alike."""
        found = self._together(lines)
        if not found:
            return None
        steps, ranks, values = self._split(found)
        times_s = _times_s(found)
        if None in steps or len(set(ranks)) != 1 or times_s is None:
            return None
        if any(0 < column.count(None) < len(column) for column in values):
            return None
        own = [None if column[0] is None else column for column in values]
        return Columns(steps, _rank_text(ranks[0]), own, times_s)

    def runs(self, lines: Sequence[bytes], least: int) -> list[Run] | None:
        """Divide lines into those that can be read as columns and those in between.

        Args:
            lines: The lines.
            least: Shorter columns are not worth it.

        Returns:
            The runs, which have all lines in their order; None if ``decode`` must read every line.
        """
        found = self._together(lines)
        if found is None:
            return None
        steps, ranks, values = self._split(found)
        runs: list[Run] = []
        for begin, end in _alike(ranks, [steps, *values]):
            rank = ranks[begin]
            if end - begin >= least and steps[begin] is not None:
                own = [None if one[begin] is None else one[begin:end] for one in values]
                runs.append(Run(end, Columns(steps[begin:end], _rank_text(rank), own, [])))
            elif runs and runs[-1].columns is None:
                runs[-1] = Run(end, None)
            else:
                runs.append(Run(end, None))
        return runs

    def _together(self, lines: Sequence[bytes]) -> list[Any] | None:
        """Decode lines with plain values; None if some are not."""
        if self._lines is None:
            return None
        try:
            found: list[Any] = self._lines(b"\n".join(lines))
        except (ValueError, RecursionError):
            return None
        # Two objects on a line, and none on another, would shift those in between. Where each line
        # begins and ends as an object does, none goes on in the next line.
        is_each_one = {line[:1] + line[-1:] for line in map(bytes.strip, lines)} == {b"{}"}
        return found if is_each_one and len(found) == len(lines) else None

    def _split(
        self, found: Sequence[Any]
    ) -> tuple[list[Any], list[int | str | None], list[list[Any]]]:
        """Return the steps, ranks and values of decoded lines."""
        values = [
            list(map(attrgetter(f"f{_RESERVED_COUNT + number}"), found))
            for number in range(len(self._fields))
        ]
        return [one.f0 for one in found], [one.f6 for one in found], values

    def _slow(self, line: bytes) -> Record | None:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError, MemoryError):
            document = None
        if not isinstance(document, dict):
            self.broken += bool(line.strip())
            return None
        step = next((_step(document[key]) for key in STEP_KEYS if key in document), None)
        if step is None:
            self.without_step += 1
            return None
        moment = next((_time_s(document[key]) for key in TIME_KEYS if key in document), None)
        rank = document.get(_RANK_KEY)
        return Record(
            step,
            str(rank)[:_TEXT_MAX] if isinstance(rank, (int, str)) else "",
            moment,
            tuple([_value(document, field) for field in self._fields]),
        )


def _alike(
    ranks: list[int | str | None], columns: Sequence[list[Any]]
) -> Iterator[tuple[int, int]]:
    """Yield beginning and end of each run of lines from one rank that have the same fields."""
    mixed = [column for column in columns if 0 < column.count(None) < len(column)]
    if not mixed and ranks.count(ranks[0]) == len(ranks):
        yield 0, len(ranks)
        return
    kinds = zip(ranks, *[[value is None for value in column] for column in mixed], strict=True)
    begin = 0
    for _, alike in itertools.groupby(kinds):
        end = begin + sum(1 for _ in alike)
        yield begin, end
        begin = end


def _rank_text(rank: int | str | None) -> str:
    return "" if rank is None else str(rank)


def _line_type(fields: tuple[str, ...]) -> Any:
    """Return the type of a line with plain values; None if msgspec cannot read the fields."""
    if not fields or any("." in field or not field.isprintable() for field in fields):
        return None
    if any("\\" in field or '"' in field for field in fields):  # msgspec cannot rename to them
        return None
    reserved = (*STEP_KEYS, *TIME_KEYS, _RANK_KEY)
    if set(fields) & set(reserved):
        return None
    names = {f"f{number}": key for number, key in enumerate((*reserved, *fields))}
    kinds: tuple[Any, ...] = (
        *[int | None] * len(STEP_KEYS),
        *[float | str | None] * len(TIME_KEYS),
        int | str | None,
        *[float | None] * len(fields),
    )
    return msgspec.defstruct(
        "Line",
        [(name, kind, None) for name, kind in zip(names, kinds, strict=True)],
        rename=names,
        gc=False,
    )


def _fast_decoder(made: Any, count: int) -> Callable[[bytes], Record | None]:
    """Return a function for lines with plain values; it returns None, or raises, for others."""
    if made is None:
        return lambda _line: None
    decode = msgspec.json.Decoder(made).decode
    values = attrgetter(*[f"f{_RESERVED_COUNT + number}" for number in range(count)])
    single = count == 1

    def fast(line: bytes) -> Record | None:
        found: Any = decode(line)
        step = found.f0
        if step is None:
            return None
        moment = found.f3
        if moment is not None:
            moment = _time_s(moment)
        elif found.f4 is not None or found.f5 is not None:
            return None
        rank = found.f6
        taken = values(found)
        return Record(
            step, "" if rank is None else str(rank), moment, (taken,) if single else taken
        )

    return fast


def _times_s(found: Sequence[Any]) -> list[float] | None:
    """Return the times of lines, empty if none has one; None if some lack one, or it is text."""
    if any(one.f4 is not None or one.f5 is not None for one in found):
        return None
    times = [one.f3 for one in found]
    kinds = set(map(type, times))
    if kinds == {type(None)}:
        return []
    return times if kinds == {float} and all(map(math.isfinite, times)) else None


def _step(value: object) -> int | None:
    number = _number(value)
    if number is None or not math.isfinite(number) or abs(number) > _STEP_MAX:
        return None
    return int(value) if isinstance(value, int) else int(number)


def _value(document: dict[str, Any], field: str) -> float | None:
    if field in document:
        return _number(document[field])
    inner: object = document
    for part in field.split("."):
        if not isinstance(inner, dict) or part not in inner:
            return None
        inner = inner[part]
    return _number(inner)


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _TEXT_MAX):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    return None


def _time_s(value: object) -> float | None:
    number = _number(value)
    if number is not None and math.isfinite(number):
        return number
    return unix_seconds(value) if isinstance(value, str) else None
