"""A progress line for long work, on a terminal only. It disappears before the result is printed.

The work reports its progress as often as it likes. A few times a second the line is drawn again,
with the width of the terminal at that moment.
"""

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from ciuic.cli.render import printable
from ciuic.cli.table import cut_middle, display_width
from ciuic.progress import BYTE_STAGES
from ciuic.system.clock import SystemClock
from ciuic.units import format_bytes, format_duration, format_files

__all__ = ["Pace", "Reporter", "State", "line", "progress"]

_REFRESH_PER_S: Final = 5
_WINDOW_S: Final = 15.0
"""The pace is measured over this many seconds."""
_SURE_S: Final = 2.0
"""The time left is not shown before: the first estimates are far off."""
_SMOOTH: Final = 0.15
_FILE_BYTES: Final = 64 * 1024
"""The fixed cost of a file, in bytes that take the same time."""
_BAR: Final = 20
_BAR_COLUMNS: Final = 100
_PATH_MIN: Final = 12
_DUMB: Final = frozenset({"dumb", "unknown"})


class State:
    """The progress of the work; a total of 0 is not known.

    Attributes:
        stage: The part of the work; empty if it has none.
        about: The totals are estimates from the last time.
    """

    def __init__(
        self,
        stage: str = "",
        done_files: int = 0,
        files: int = 0,
        done_bytes: int = 0,
        size_bytes: int = 0,
        *,
        path: str = "",
        about: bool = False,
    ) -> None:
        self.stage = stage
        self.done_files = done_files
        self.files = files
        self.done_bytes = done_bytes
        self.bytes = size_bytes
        self.done_steps = 0
        self.steps = 0
        self.path = path
        self.about = about

    @property
    def fraction(self) -> float | None:
        """Return the share that is done; None if it is not known."""
        if self.steps:
            return min(1.0, self.done_steps / self.steps)
        whole = self.bytes + self.files * _FILE_BYTES
        done = self.done_bytes + (self.done_files * _FILE_BYTES if self.files else 0)
        if not whole or (self.about and done > whole):
            return None  # more than the last time, by an unknown amount
        return min(0.99 if self.about else 1.0, done / whole)


class Pace:
    """The rate and the time left, smoothed so that a person can read them."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._samples: deque[tuple[float, int, float]] = deque()
        self._left_s: float | None = None
        self._stage = ""

    def note(self, now_s: float, state: State) -> None:
        """Record the current progress."""
        if state.stage != self._stage:
            self._samples.clear()
            self._stage, self._left_s, self._began_s = state.stage, None, now_s
        before_s = self._samples[-1][0] if self._samples else now_s
        fraction = state.fraction
        self._samples.append((now_s, state.done_bytes, -1.0 if fraction is None else fraction))
        while now_s - self._samples[0][0] > _WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        found = self._estimate(now_s)
        if found is None or self._left_s is None:
            self._left_s = found
        else:
            expected = max(0.0, self._left_s - (now_s - before_s))
            self._left_s = expected + _SMOOTH * (found - expected)

    def _estimate(self, now_s: float) -> float | None:
        first_s, _, first = self._samples[0]
        _, _, last = self._samples[-1]
        if now_s - self._began_s < _SURE_S or first < 0 or last <= first:
            return None
        return (1.0 - last) * (now_s - first_s) / (last - first)

    @property
    def bytes_per_s(self) -> float:
        """Return the rate over the last seconds; 0 if it is not known."""
        if len(self._samples) < 2:
            return 0.0
        first_s, first, _ = self._samples[0]
        last_s, last, _ = self._samples[-1]
        return max(0.0, (last - first) / (last_s - first_s)) if last_s > first_s else 0.0

    @property
    def left_s(self) -> float | None:
        """Return the time left; None while it is not known."""
        return self._left_s


def line(what: str, state: State, pace: Pace, width: int) -> str:
    """Return the progress line for a width; the least important parts are left out first."""
    fraction = state.fraction
    named = f"{what}: {state.stage}" if state.stage else what
    percent = "" if fraction is None else f"{100 * fraction:3.0f}%"
    # The most important first; the key is the place in the line.
    texts = {
        0: named if display_width(named) + 24 <= width else what,
        2: percent,
        6: _time_left(pace),
        4: _amount(state.done_bytes, state.bytes, about=state.about),
        5: f"{format_bytes(int(pace.bytes_per_s))}/s" if pace.bytes_per_s >= 1 else "",
        3: _counts(state),
        1: _bar(fraction) if width >= _BAR_COLUMNS else "",
    }
    shown: dict[int, str] = {}
    left = width
    for place, text in texts.items():
        if text and display_width(text) + 2 <= left:
            shown[place] = text
            left -= display_width(text) + 2
    if state.path and left >= _PATH_MIN:
        shown[7] = cut_middle(state.path, left)
    return "  ".join([shown[place] for place in sorted(shown)])[:width]


def _bar(fraction: float | None) -> str:
    done = 0 if fraction is None else round(_BAR * fraction)
    return "" if fraction is None else f"[{'=' * done}{' ' * (_BAR - done)}]"


def _time_left(pace: Pace) -> str:
    # In whole seconds, because a number that changes five times a second cannot be read.
    return "" if pace.left_s is None else f"{_whole(pace.left_s)} left"


def _whole(duration_s: float) -> str:
    return f"{duration_s:.0f} s" if duration_s < 59.5 else format_duration(duration_s)


def _amount(done: int, total: int, *, about: bool) -> str:
    if not done and not total:
        return ""
    if not total or (about and done > total):
        return format_bytes(done)
    number, unit = format_bytes(done).split(" ")
    whole = format_bytes(total)
    same = unit == whole.split(" ")[1]
    return f"{number if same else f'{number} {unit}'} of {'about ' if about else ''}{whole}"


def _counts(state: State) -> str:
    if state.steps:
        return f"{state.done_steps:,} of {state.steps:,}"
    if not state.done_files:
        return ""
    if state.files and not state.about:
        return f"{state.done_files:,} of {format_files(state.files)}"
    return format_files(state.done_files)


class Reporter:
    """Takes progress from the work, from any thread and as often as it likes.

    Attributes:
        is_shown: The line is shown, because there is a terminal.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self.state = State()
        self.is_shown = is_shown
        self._away: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

    def take_away_by(self, away: Callable[[], AbstractContextManager[object]]) -> None:
        """Set what takes the line off the terminal; see ``away``."""
        self._away = away

    def away(self) -> AbstractContextManager[object]:
        """Take the line off the terminal while the caller prints a part of the result."""
        return self._away()

    def expect(self, files: int, size_bytes: int, *, about: bool = False) -> None:
        """Set the totals; ``about``: they are estimates."""
        self.state.files, self.state.bytes, self.state.about = files, size_bytes, about

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """Set the files and bytes that are done, and the path that the work is at."""
        self.state.done_files, self.state.done_bytes = files, size_bytes
        if path:
            self.state.path = printable(path)

    def amount(self, done_bytes: int, total_bytes: int) -> None:
        """Set the bytes that are done and their total; a total of 0 is not known yet."""
        self.state.done_bytes, self.state.bytes = done_bytes, total_bytes

    def fraction(self, done: int, total: int) -> None:
        """Set the steps that are done and their total."""
        self.state.done_steps, self.state.steps = done, total

    def stage(self, what: str, done: int, total: int) -> None:
        """Set the progress of one stage, in bytes or in steps as the stage counts."""
        state = State(what)
        if what in BYTE_STAGES:
            state.done_bytes, state.bytes = done, total
        else:
            state.done_steps, state.steps = done, total
        self.state = state


@contextlib.contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Reporter]:
    """Yield a reporter for the duration of the work; without a terminal nothing is shown."""
    is_dumb = os.environ.get("TERM", "dumb") in _DUMB
    reporter = Reporter(is_shown=not quiet and not is_dumb and sys.stderr.isatty())
    if not reporter.is_shown:
        yield reporter
        return
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live
    from rich.text import Text

    clock = SystemClock()
    pace = Pace(clock.monotonic_s())

    class Shown:
        """Renders the current line each time that rich draws it."""

        def __rich_console__(
            self, _console: Console, options: ConsoleOptions
        ) -> Iterator[RenderableType]:
            state = reporter.state
            pace.note(clock.monotonic_s(), state)
            # One column stays free: some terminals begin a new line after the last one.
            text = line(what, state, pace, max(1, options.max_width - 1))
            yield Text(text, no_wrap=True, overflow="crop", end="")

    # stdout is not redirected: it may be a pipe.
    with Live(
        Shown(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=_REFRESH_PER_S,
        redirect_stdout=False,
    ) as live:

        @contextlib.contextmanager
        def away() -> Iterator[None]:
            if not sys.stdout.isatty():
                yield
                return
            live.stop()
            try:
                yield
            finally:
                live.start()

        reporter.take_away_by(away)
        yield reporter
