"""A line of a log -> the step, the rank and the fields that rules need.

A training program may log anything. A line that is not a JSON object, or has no step, is counted
and otherwise ignored. Python's ``json`` writes NaN and Infinity as they are, which is not JSON:
both are read here, and so are numbers in strings, such as ``"nan"``.

msgspec reads the usual line in a fraction of the time that ``json`` takes, since it builds only
the fields that are asked for. ``json`` reads what msgspec refuses. Many lines at once take even
less: ``Decoder.lines``.
"""

import json
import math
import operator
from collections.abc import Callable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import msgspec

from ciuic.system.clock import unix_seconds

__all__ = ["STEP_KEYS", "TIME_KEYS", "Columns", "Decoder", "Lines", "Record"]

STEP_KEYS: Final = ("step", "global_step", "iteration")
"""The field with the number of the step; the first that a line has."""
TIME_KEYS: Final = ("time", "timestamp", "ts")
_RANK_KEY: Final = "rank"
_RESERVED_COUNT: Final = len(STEP_KEYS) + len(TIME_KEYS) + 1
_STEP_MAX: Final = 2**63 - 1
_TEXT_MAX: Final = 40
_WORDS: Final = ((b"NaN", b'"nan"'), (b"-Infinity", b'"-inf"'), (b"Infinity", b'"inf"'))
_NO_OBJECT: Final = frozenset(b"%c" % byte for byte in range(0x21, 0x7F)) - {b"{"}
"""A line that begins with one of these is no JSON object, whatever its encoding."""


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
        times_s: When, in seconds since 1970; empty: no line says so.
    """

    steps: list[int]
    rank: str
    values: list[list[float] | None]
    times_s: list[float]


class Lines(NamedTuple):
    """What the lines with a step say, in their order.

    Attributes:
        steps: The number of the step in each line.
        ranks: The rank that logged it; empty if the line does not say.
        values: For each field that was asked for, its value in each line; None: it has none.
    """

    steps: list[int]
    ranks: list[str]
    values: list[list[float | None]]

    def record(self, place: int) -> Record:
        """Return what one of them says, without a time."""
        values = tuple([column[place] for column in self.values])
        return Record(self.steps[place], self.ranks[place], None, values)


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
        self._plain = None if self._type is None else msgspec.json.Decoder(self._type).decode
        loose_type = _line_type(self._fields, float | str)
        self._worded = None if loose_type is None else msgspec.json.Decoder(loose_type).decode
        self._loose = _loose_decoder(self._worded, len(self._fields))
        self._have_words = False

    def decode(self, line: bytes) -> Record | None:
        """Return what a line says; None if it has no step."""
        try:
            found = self._fast(line)
        except (ValueError, RecursionError):
            found = None
        return self._odd(line) if found is None else found

    def columns(self, lines: Sequence[bytes]) -> Columns | None:
        """Return what lines say, and when they were logged; None if they are not alike."""
        if self._plain is None or not lines:
            return None
        try:
            found = list(map(self._plain, lines))
        except (ValueError, RecursionError):
            return None
        steps, ranks, values = self._split(found)
        times_s = _times_s(found)
        if None in steps or len(set(ranks)) != 1 or times_s is None:
            return None
        if any(0 < column.count(None) < len(column) for column in values):
            return None
        own = [None if column[0] is None else column for column in values]
        return Columns(steps, _rank_text(ranks[0]), own, times_s)

    def lines(self, lines: Sequence[bytes]) -> Lines | None:
        """Return what lines say, without their times; None if ``decode`` must read each of them."""
        if self._plain is None or self._worded is None:
            return None
        nothing = self._type()
        # A training that has diverged has NaN in every line.
        if self._have_words:
            odd: Sequence[int] = range(len(lines))
            found, count = _read_words(lines, self._worded, nothing)
        else:
            found = _each(lines, self._plain, nothing)
            odd = [
                place
                for place, one in enumerate(found)
                if one is nothing and lines[place][:1] not in _NO_OBJECT
            ]
            read, count = _read_words([lines[place] for place in odd], self._worded, nothing)
            for place, one in zip(odd, read, strict=True):
                found[place] = one
        self._have_words = count > len(lines) // 2
        steps, kinds, values = self._split(found)
        if odd:
            values = list(map(_numbers, values))
        names = {kind: _rank_text(kind) for kind in set(kinds)}
        ranks = list(map(names.__getitem__, kinds))
        if type(None) not in set(map(type, steps)):
            return Lines(steps, ranks, values)
        # Not plain, or without a step. The others need not wait for those.
        for place, step in enumerate(steps):
            record = self._odd(lines[place]) if step is None else None
            if record is not None:
                steps[place], ranks[place] = record.step, record.rank
                for column, value in zip(values, record.values, strict=True):
                    column[place] = value
        has_step = [step is not None for step in steps]
        kept = [list(compress(column, has_step)) for column in (steps, ranks, *values)]
        return Lines(kept[0], kept[1], kept[2:])

    def _split(
        self, found: Sequence[Any]
    ) -> tuple[list[Any], list[int | str | None], list[list[Any]]]:
        """Return the steps, ranks and values of decoded lines."""
        values = [
            list(map(attrgetter(f"f{_RESERVED_COUNT + number}"), found))
            for number in range(len(self._fields))
        ]
        steps = [one.f0 for one in found]
        if msgspec.UnsetType in set(map(type, steps)):
            steps = list(map(_plain_step, found))
        return steps, [one.f6 for one in found], values

    def _odd(self, line: bytes) -> Record | None:
        """Return what a line says that has more than plain values, or no step."""
        if line[:1] in _NO_OBJECT:  # text, which ``json`` would take long to refuse
            self.broken += 1
            return None
        try:
            found = self._loose(line)
        except (ValueError, RecursionError):
            found = None
        return self._slow(line) if found is None else found

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


def _rank_text(rank: int | str | None) -> str:
    return "" if rank is None else str(rank)


def _line_type(fields: tuple[str, ...], number: Any = float) -> Any:
    """Return the type of a line; None if msgspec cannot read the fields.

    Args:
        fields: The fields that are asked for.
        number: The type of their values.
    """
    if not fields or any("." in field or not field.isprintable() for field in fields):
        return None
    if any("\\" in field or '"' in field for field in fields):  # msgspec cannot rename to them
        return None
    reserved = (*STEP_KEYS, *TIME_KEYS, _RANK_KEY)
    if set(fields) & set(reserved):
        return None
    names = {f"f{number}": key for number, key in enumerate((*reserved, *fields))}
    kinds: tuple[Any, ...] = (
        *[int | None | msgspec.UnsetType] * len(STEP_KEYS),
        *[float | str | None] * len(TIME_KEYS),
        int | str | None,
        *[number | None] * len(fields),
    )
    # A step that is null counts as there, and the next key does not.
    rest = len(kinds) - len(STEP_KEYS)
    lacking: list[Any] = [*[msgspec.UNSET] * len(STEP_KEYS), *[None] * rest]
    return msgspec.defstruct(
        "Line",
        list(zip(names, kinds, lacking, strict=True)),
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
        step = _plain_step(found)
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


def _each(lines: Sequence[bytes], decode: Callable[[bytes], Any], nothing: Any) -> list[Any]:
    """Decode lines; ``nothing`` stands for each that is refused."""
    found: list[Any] = []
    rest = iter(lines)
    while len(found) < len(lines):
        try:
            # What was decoded before a line that is refused stays, and the next call goes on.
            found.extend(map(decode, rest))
        except (ValueError, RecursionError):
            found.append(nothing)
    return found


def _read_words(
    lines: Sequence[bytes], decode: Callable[[bytes], Any], nothing: Any
) -> tuple[list[Any], int]:
    """Decode lines as ``_loose_decoder`` does; ``nothing`` stands for each that is refused.

    Returns:
        What they say, and how many of them have NaN or Infinity.
    """
    texts = _without_words(b"\n".join(lines)).split(b"\n") if lines else []
    if len(texts) != len(lines):
        return [nothing] * len(lines), 0
    found = _each(texts, decode, nothing)
    have_words = list(map(operator.ne, texts, lines))
    # A rank in text may be a word that was none.
    if str in {type(one.f6) for one in found}:
        found = [
            nothing if has_word and isinstance(one.f6, str) else one
            for one, has_word in zip(found, have_words, strict=True)
        ]
    return found, sum(have_words)


def _without_words(text: bytes) -> bytes:
    """Return the text of lines in JSON, without NaN and Infinity. Within a text they break it."""
    for word, written in _WORDS:
        if word in text:  # a search takes less than a replacement of nothing
            text = text.replace(word, written)
    return text


def _loose_decoder(
    decode: Callable[[bytes], Any] | None, count: int
) -> Callable[[bytes], Record | None]:
    """Return a function for lines with NaN and Infinity, which are not JSON, and numbers in text.

    It returns None, or raises, for others. A word in a text becomes no JSON at all.
    """
    if decode is None:
        return lambda _line: None
    names = [f"f{_RESERVED_COUNT + number}" for number in range(count)]

    def loose(line: bytes) -> Record | None:
        found: Any = decode(_without_words(line))
        step, rank = _plain_step(found), found.f6
        # A rank in text may be a word that was none.
        if step is None or found.f4 is not None or found.f5 is not None or isinstance(rank, str):
            return None
        moment = None if found.f3 is None else _time_s(found.f3)
        values = tuple([_number(getattr(found, name)) for name in names])
        return Record(step, _rank_text(rank), moment, values)

    return loose


def _plain_step(found: Any) -> int | None:
    """Return the step of a decoded line: of the first key that the line has."""
    for step in (found.f0, found.f1, found.f2):
        if step is not msgspec.UNSET:
            return cast("int | None", step)
    return None


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
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _TEXT_MAX):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None


def _numbers(column: list[Any]) -> list[float | None]:
    """Return decoded values of a field as numbers, each of those in text once."""
    if str not in set(map(type, column)):
        return column
    known = {text: _number(text) for text in set(column) if isinstance(text, str)}
    return list(map(known.get, column, column))


def _time_s(value: object) -> float | None:
    number = _number(value)
    if number is not None and math.isfinite(number):
        return number
    return unix_seconds(value) if isinstance(value, str) else None
