"""A log of a training program -> curves, and what had been logged at given moments.

The log is read once, line by line, in bounded memory. Anybody can write anything into a log: what
is not a JSON object with a step is counted and otherwise ignored.
"""

import json
import math
import operator
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import BinaryIO, Final, NamedTuple

from ciuic.errors import UsageError
from ciuic.guard.logs.records import STEP_KEYS, TIME_KEYS, Columns, Decoder, Record
from ciuic.guard.logs.tail import LINE_BYTES_MAX
from ciuic.timeline.curve import Curve
from ciuic.timeline.moments import Moment, Moments, Nearest, Passed

__all__ = [
    "FIELDS_MAX",
    "Log",
    "curves_of",
    "fields_in",
    "fields_of",
    "last_moment",
    "main_field",
    "open_log",
    "read_log",
]

FIELDS_MAX: Final = 64
_LOOKED_AT_MAX: Final = 500
"""Lines in which fields are searched."""
_NAME_MAX: Final = 100
_NOT_METRICS: Final = frozenset([*STEP_KEYS, *TIME_KEYS, "rank", "epoch", "lr", "learning_rate"])
_NS: Final = 1_000_000_000
_TIME_S_MAX: Final = 2**63 / _NS
"""No snapshot is as late; a log may hold any number."""
_TOGETHER_MAX: Final = 500
_TOGETHER_BYTES: Final = 256 * 1024
"""Lines are decoded together until there are this many lines or bytes."""
_HINT: Final = "Name a file with a JSON object in each line."


class Log(NamedTuple):
    """What a log holds.

    Attributes:
        path: The file.
        fields: The fields that were asked for.
        curves: Their values.
        at_time: Moments by time, for the times that were asked for, as far as lines have times.
        at_offset: Moments by offset.
        at_step: Moments by step.
        has_times: At least one line says when it was logged.
        first_step: The smallest step; None: no line has one.
        last_step: The greatest step.
        rollbacks: How often a step was smaller than the one before.
        broken_lines: Lines that are not JSON objects.
        lines_without_step: Objects without a step.
        long_lines: Lines of more than 1 MiB, which were left out.
    """

    path: bytes
    fields: tuple[str, ...]
    curves: tuple[Curve, ...]
    at_time: dict[int, Moment]
    at_offset: dict[int, Moment]
    at_step: dict[int, Moment]
    has_times: bool
    first_step: int | None
    last_step: int | None
    rollbacks: int
    broken_lines: int
    lines_without_step: int
    long_lines: int


def fields_of(path: bytes) -> list[str]:
    """Return the fields of a log that hold numbers, as far as its first lines have them.

    Raises:
        UsageError: The log cannot be read.
    """
    with open_log(path) as file:
        return fields_in(line for _, line in _lines(file))


def fields_in(lines: Iterable[bytes]) -> list[str]:
    """Return the fields with numbers in the first lines of a log."""
    found: dict[str, None] = {}
    for line in islice(lines, _LOOKED_AT_MAX):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            found.update(dict.fromkeys(_numbers(document)))
        if len(found) >= FIELDS_MAX:
            break
    return list(found)[:FIELDS_MAX]


def main_field(fields: Sequence[str]) -> str | None:
    """Return the field to draw: the loss, or else the first that is not a step, time or rate."""
    if "loss" in fields:
        return "loss"
    metrics = [name for name in fields if name not in _NOT_METRICS]
    losses = [name for name in metrics if "loss" in name.lower()]
    return next(iter([*losses, *metrics]), None)


def read_log(
    path: bytes,
    fields: Sequence[str],
    moments: Moments,
    *,
    curves: bool = True,
    read: Callable[[int], None] = lambda _size_bytes: None,
) -> Log:
    """Read a log.

    Args:
        path: The file.
        fields: The fields to read.
        moments: What to find on the way.
        curves: Make the curves, which takes half of the time; False: they are empty.
        read: Called now and then with the bytes that were read so far.

    Raises:
        UsageError: The log cannot be read.
    """
    reader = _Reader(fields, moments, has_curves=curves)
    long_lines = end = 0
    with open_log(path) as file:
        for together in _grouped(_lines(file)):
            usable = [one for one in together if len(one[1]) <= LINE_BYTES_MAX]
            long_lines += len(together) - len(usable)
            reader.add_all([line for _, line in usable], [end for end, _ in usable])
            end = together[-1][0]
            read(end)
    return reader.log(path, long_lines, end)


def last_moment(lines: Iterable[bytes], fields: Sequence[str]) -> Moment | None:
    """Return what lines had said at their end; None: none of them has a step."""
    reader = _Reader(fields, Moments())
    for line in lines:
        reader.add(line, 0)
    return reader.last


def curves_of(lines: Iterable[bytes], fields: Sequence[str]) -> tuple[Curve, ...]:
    """Return the curves of fields in the lines of a log."""
    reader = _Reader(fields, Moments())
    for line in lines:
        reader.add(line, 0)
    return reader.curves


class _Reader:
    """Collects what one log says."""

    def __init__(self, fields: Sequence[str], moments: Moments, *, has_curves: bool = True) -> None:
        self._fields = tuple(fields)
        self._has_curves = has_curves
        self._decoder = Decoder(self._fields)
        self._curves = tuple([Curve() for _ in self._fields])
        self._times = Passed(moments.times_ns)
        self._offsets = Passed(moments.offsets_bytes)
        self._steps = Nearest(moments.steps)
        self._values: list[float | None] = [None] * len(self._fields)
        self._last: Moment | None = None
        self._has_times = False
        self._first_step: int | None = None
        self._last_step: int | None = None
        self._rollbacks = 0

    @property
    def last(self) -> Moment | None:
        """What it had said by now."""
        return self._last

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The values of each field by now."""
        return self._curves

    def add(self, line: bytes, end: int) -> None:
        """Add a line that ends at an offset of the file."""
        record = self._decoder.decode(line.rstrip(b"\n"))
        self._offsets.reach(end - 1, self._last)
        if record is not None:
            self._add(record)

    def add_all(self, lines: Sequence[bytes], ends: Sequence[int]) -> None:
        """Add lines with the offset of the end of each."""
        columns = self._decoder.columns(lines) if lines else None
        if columns is not None and self._is_plain(columns):
            self._add_plain(columns, ends)
            return
        for line, end in zip(lines, ends, strict=True):
            self.add(line, end)

    def _is_plain(self, columns: Columns) -> bool:
        """Return whether lines have only usual numbers, and no training goes back in them."""
        steps = columns.steps
        return (
            (self._last is None or self._last.step <= steps[0])
            and all(map(operator.le, steps, steps[1:]))
            and all(all(map(math.isfinite, column)) for column in columns.values if column)
            and all(abs(time_s) < _TIME_S_MAX for time_s in columns.times_s)
        )

    def _add_plain(self, columns: Columns, ends: Sequence[int]) -> None:
        """Add lines as ``_add`` does, without a look at each of them."""
        steps, last, known = columns.steps, self._last, self._values

        def moment(number: int) -> Moment:
            values = [
                before if column is None else column[number]
                for before, column in zip(known, columns.values, strict=True)
            ]
            return Moment(steps[number], tuple(values))

        def before(number: int) -> Moment | None:
            return moment(number - 1) if number else last

        self._offsets.reach_all([end - 1 for end in ends], before)
        if columns.times_s:
            self._has_times = True
            passed = accumulate([int(time_s * _NS) - 1 for time_s in columns.times_s], max)
            self._times.reach_all(list(passed), before)
        self._steps.add_all(steps, moment)
        for curve, column in zip(self._curves, columns.values, strict=True):
            if column is not None and self._has_curves:
                curve.extend(steps, column)
        self._last = moment(len(steps) - 1)
        self._values = list(self._last.values)
        if self._first_step is None or steps[0] < self._first_step:
            self._first_step = steps[0]
        if self._last_step is None or steps[-1] > self._last_step:
            self._last_step = steps[-1]

    def _add(self, record: Record) -> None:
        if record.time_s is not None and abs(record.time_s) < _TIME_S_MAX:
            self._has_times = True
            self._times.reach(int(record.time_s * _NS) - 1, self._last)
        if self._last is not None and record.step < self._last.step:
            self._rollbacks += 1
            # What was logged before the training went back is not the state that goes on.
            self._values = [None] * len(self._fields)
        for at, value in enumerate(record.values):
            if value is not None:
                self._values[at] = value
                if self._has_curves:
                    self._curves[at].add(record.step, value)
        self._last = Moment(record.step, tuple(self._values))
        self._steps.add(self._last)
        if self._first_step is None or record.step < self._first_step:
            self._first_step = record.step
        if self._last_step is None or record.step > self._last_step:
            self._last_step = record.step

    def log(self, path: bytes, long_lines: int, end: int) -> Log:
        """Return what was collected."""
        return Log(
            path=path,
            fields=self._fields,
            curves=self._curves,
            at_time=self._times.found(self._last) if self._has_times else {},
            # A log that was longer once has been started over: its earlier lines are gone.
            at_offset=self._offsets.found(self._last, end),
            at_step=self._steps.found(),
            has_times=self._has_times,
            first_step=self._first_step,
            last_step=self._last_step,
            rollbacks=self._rollbacks,
            broken_lines=self._decoder.broken,
            lines_without_step=self._decoder.without_step,
            long_lines=long_lines,
        )


def _numbers(document: dict[object, object]) -> Iterator[str]:
    """Yield the names of the fields with numbers, as ``Decoder`` takes them."""
    for name, value in document.items():
        if isinstance(value, dict):
            inner = [f"{name}.{key}" for key, number in value.items() if _is_number(number)]
            yield from _usable(inner)
        elif _is_number(value):
            yield from _usable([str(name)])


def _usable(names: Iterable[str]) -> list[str]:
    skipped = (*STEP_KEYS, *TIME_KEYS, "rank")
    return [name for name in names if len(name) <= _NAME_MAX and name not in skipped]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def open_log(path: bytes) -> BinaryIO:
    """Open a log. A named pipe must not make ciuic wait for its writer.

    Raises:
        UsageError: It cannot be opened, or is not a regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        what = os.strerror(error.errno or 0)
        raise UsageError(
            f"the log {os.fsdecode(path)!r} cannot be read: {what}", hint=_HINT
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError(f"the log {os.fsdecode(path)!r} is not a regular file", hint=_HINT)
    return os.fdopen(fd, "rb", buffering=1024 * 1024)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each line with the offset of its end; the beginning of one that is too long."""
    end = 0
    while line := file.readline(LINE_BYTES_MAX + 2):
        end += len(line)
        if len(line) > LINE_BYTES_MAX:
            while not line.endswith(b"\n"):
                rest = file.readline(LINE_BYTES_MAX)
                if not rest:
                    break
                end += len(rest)
                if rest.endswith(b"\n"):
                    break
        yield end, line


def _grouped(lines: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    group: list[tuple[int, bytes]] = []
    size_bytes = 0
    for one in lines:
        group.append(one)
        size_bytes += len(one[1])
        if len(group) >= _TOGETHER_MAX or size_bytes >= _TOGETHER_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group
