"""Questions to file systems that may never answer, such as a network one whose server is gone."""

import contextlib
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["ask"]

_ANSWER_S: Final = 2.0


def ask(question: Callable[[], None]) -> threading.Thread:
    """Have a thread ask, and wait for at most two seconds.

    Args:
        question: Asks, and keeps the answer. It must hold no lock: this process may fork meanwhile.

    Returns:
        The thread. As long as it is alive, there is no answer.
    """
    asking = threading.Thread(target=question, daemon=True)
    with contextlib.suppress(RuntimeError):  # there can be no further thread
        asking.start()
        asking.join(_ANSWER_S)
    return asking
