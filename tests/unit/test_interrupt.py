"""Signals that ask a command to end."""

import signal
import time
import weakref
from typing import Any

import pytest

from ciuic.cli.interrupt import interrupted_code, raising_interrupts


class _Object:
    """Something that a weak reference may refer to."""


def test_a_signal_in_a_callback_of_an_import_ends_the_command_a_little_later() -> None:
    """Python ignores exceptions there."""
    lines = "def callback(_):\n    signal.raise_signal(signal.SIGTERM)\n"
    names: dict[str, Any] = {"signal": signal}
    exec(compile(lines, "<frozen importlib._bootstrap>", "exec"), names)
    target = _Object()
    reference = weakref.ref(target, names["callback"])

    with pytest.raises(KeyboardInterrupt), raising_interrupts():
        del target
        time.sleep(60)

    assert reference() is None
    assert interrupted_code() == 128 + signal.SIGTERM
