"""When a save is due. Arithmetic only: no clock, no store."""

import re
from numbers import Real
from typing import Final

from ciuic.errors import UsageError
from ciuic.training.values.arguments import shown, whole_number
from ciuic.units import parse_duration_s

__all__ = ["Cadence", "duration_s"]

_STEPS: Final = re.compile(r"\s*([1-9]\d*)\s*steps?\s*")


def duration_s(name: str, value: float | str | None) -> float | None:
    """Return an argument that is a number of seconds or a duration such as ``1h``, in seconds.

    Raises:
        UsageError: It is neither, or not more than 0.
    """
    if isinstance(value, str):
        try:
            value = parse_duration_s(value)
        except ValueError as error:
            raise UsageError(
                f"{name}={value!r} is not a duration",
                hint="Give seconds, or a duration such as '1h'; interval also takes '500 steps'.",
            ) from error
    elif value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        raise UsageError(
            f"{name}={shown(value)} is neither a number of seconds nor a duration",
            hint="Give seconds, or a duration such as '1h'; interval also takes '500 steps'.",
        )
    if value is None:
        return None
    if not value > 0:
        raise UsageError(
            f"{name}={value!r} is not more than 0", hint="Give seconds, or a duration such as '1h'."
        )
    return float(value)


class Cadence:
    """Decides at which steps to save.

    Args:
        interval: Seconds, a duration such as ``1h``, or a number of steps such as ``500 steps``
            between two full states; None: no rule.
        full_every: Save the full state at each multiple of this number of steps.
        weights_every: Save the weights alone at each multiple of this number of steps.
        now_s: The time, in seconds of the monotonic clock.

    Raises:
        UsageError: ``interval`` is not an interval, or a number of steps is not more than 0.
    """

    def __init__(
        self,
        interval: float | str | None,
        full_every: int | None,
        weights_every: int | None,
        now_s: float,
    ) -> None:
        steps = _STEPS.fullmatch(interval) if isinstance(interval, str) else None
        full = _steps("full_every", full_every)
        if steps is not None:
            full = int(steps[1]) if full is None else min(full, int(steps[1]))
        self._interval_s = None if steps is not None else duration_s("interval", interval)
        self._every = {"full": full, "weights": _steps("weights_every", weights_every)}
        self._last_step: int | None = None
        self._last_s = now_s

    @property
    def has_rule(self) -> bool:
        """The caller gave at least one rule."""
        return self._interval_s is not None or any(self._every.values())

    @property
    def counts_seconds(self) -> bool:
        """A rule depends on the time."""
        return self._interval_s is not None

    def due(self, step: int, now_s: float) -> str | None:
        """Return the channel to save at a step: ``full``, ``weights``, or None.

        A loop may skip steps: a multiple between the last call's step and this one counts.
        """
        last = max(step - 1, 0) if self._last_step is None else self._last_step
        self._last_step = step
        if self._interval_s is not None and now_s - self._last_s >= self._interval_s:
            return "full"
        for channel, every in self._every.items():
            if every and step // every > last // every:
                return channel
        return None

    def saved_full(self, now_s: float) -> None:
        """Note that a full state was saved; the interval begins again."""
        self._last_s = now_s


def _steps(name: str, value: object) -> int | None:
    """Return a number of steps that a constructor was given; None: it was given none.

    Raises:
        UsageError: It is not a whole number, or not more than 0.
    """
    number = whole_number(value)
    if value is not None and (number is None or number < 1):
        raise UsageError(
            f"{name}={shown(value)} must be a whole number and more than 0",
            hint=f"Give a number of steps, such as {name}=500.",
        )
    return number
