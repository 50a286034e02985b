"""Check what a program gives to the library. A wrong argument is refused before anything begins."""

import operator
import os
import reprlib
from collections.abc import Iterable
from math import isnan
from numbers import Real
from typing import Any, Final

from ciuic.errors import UsageError
from ciuic.store.addressed import absolute_address

__all__ = [
    "checked_address",
    "checked_channel",
    "checked_epoch",
    "checked_items",
    "checked_ref",
    "checked_run",
    "checked_step",
    "checked_step_of_save",
    "checked_timeout",
    "shown",
    "whole_number",
]

_STEP_MAX: Final = 2**63 - 1
_TIMEOUT_MAX_S: Final = 366 * 86_400.0
_CHANNELS: Final = ("full", "weights")


def shown(value: object) -> str:
    """Return a value for a message: one line, shortened."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:  # a number of thousands of digits
        return f"a value of the type {type(value).__name__}"


def whole_number(value: object) -> int | None:
    """Return a whole number of Python, numpy or torch as Python's own; None: it is none."""
    if isinstance(value, bool):
        return None
    try:
        # Any: the object decides whether it is a number.
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # what Python, numpy and torch raise
        return None


def checked_address(save_dir: object) -> str:
    """Return the absolute address of a store.

    Raises:
        UsageError: It is not text; or empty, which would mean the current directory; or relative to
            one that was removed.
    """
    path = os.fspath(save_dir) if isinstance(save_dir, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise UsageError(
            f"save_dir={shown(save_dir)} is not the path of a directory",
            hint="Give the store's directory, or the URL of its bucket, as text; '.' is the current"
            " directory.",
        )
    try:
        return absolute_address(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"save_dir={path!r} is relative to the current directory, which was removed",
            hint="Give an absolute path.",
        ) from error


def checked_run(run: object) -> None:
    """Check the name of a run.

    Raises:
        UsageError: It is not text, or empty.
    """
    if run is not None and (not isinstance(run, str) or not run):
        raise UsageError(
            f"run={shown(run)} is not a name",
            hint="Give text such as run='a', or None for the run without a name.",
        )


def checked_channel(channel: object) -> None:
    """Check the name of a channel.

    Raises:
        UsageError: It is neither ``full`` nor ``weights``.
    """
    # Not a set: the value may have no hash.
    if not isinstance(channel, str) or channel not in _CHANNELS:
        raise UsageError(
            f"channel={shown(channel)} is neither 'full' nor 'weights'",
            hint="Give channel='full', or channel='weights' for the weights alone.",
        )


def checked_step(step: object) -> int:
    """Return a step as a number of Python.

    Raises:
        UsageError: It is not a whole number, or less than 0.
    """
    number = whole_number(step)
    if number is None or not 0 <= number <= _STEP_MAX:
        raise UsageError(
            f"step={shown(step)} is not a whole number of 0 or more",
            hint="Give the number of the step, such as step=500.",
        )
    return number


def checked_step_of_save(step: object, *, has_ranks: bool) -> int | None:
    """Return the step of a save; see ``checked_step``. None: the save has none.

    Raises:
        UsageError: It is not a step, or is missing although there are several ranks.
    """
    if has_ranks and step is None:
        raise UsageError(
            "a save of several ranks needs step",
            hint="Give step to save_snapshot: the parts of the ranks are matched by it.",
        )
    return None if step is None else checked_step(step)


def checked_epoch(epoch: object) -> object:
    """Return an epoch; a whole number as one of Python.

    Raises:
        UsageError: It is neither a number nor text of one line.
    """
    if epoch is None or isinstance(epoch, bool | float):
        return epoch
    if (number := whole_number(epoch)) is not None:
        return number
    if isinstance(epoch, str):
        is_good = epoch.isprintable()
    else:
        try:
            # A number of numpy or torch has no dimensions.
            is_good = not getattr(epoch, "shape", None) and float(epoch) is not None  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            is_good = False
    if not is_good:
        raise UsageError(
            f"epoch={shown(epoch)} is neither a number nor text of one line",
            hint="Give the number of the epoch; other values belong in extra.",
        )
    return epoch


def checked_ref(ref: object) -> int | str:
    """Return what names a snapshot: a step as a number of Python, or text.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(ref, str):
        return ref
    number = whole_number(ref)
    if number is None or not 0 <= number <= _STEP_MAX:
        raise UsageError(
            f"{shown(ref)} does not name a snapshot",
            hint="Give a step such as 500, or text: a tag, an ID or a time.",
        )
    return number


def checked_timeout(timeout: object) -> float:
    """Return the longest wait in seconds; at most a year, which the system's calls can wait.

    Raises:
        UsageError: It is not a number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or isnan(timeout):
        raise UsageError(
            f"timeout={shown(timeout)} is not a number of seconds",
            hint="Give seconds such as timeout=60, or None to wait without a limit.",
        )
    return float(timeout) if timeout < _TIMEOUT_MAX_S else _TIMEOUT_MAX_S


def checked_items(
    name: str, values: object, kinds: Any, *, what: str, hint: str
) -> tuple[Any, ...]:
    """Return the items of a list that a program gave.

    Args:
        name: The argument.
        values: What the program gave for it.
        kinds: The class or classes of an item.
        what: What the items are, for the message.
        hint: What to give.

    Raises:
        UsageError: It is not a list of such items.
    """
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        found = tuple(values)
        if all(isinstance(one, kinds) for one in found):
            return found
    raise UsageError(f"{name}={shown(values)} is not a list of {what}", hint=hint)
