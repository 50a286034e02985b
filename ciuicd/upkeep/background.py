"""Work on a thread at idle priority."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from ciuic.system.priority import lower_priority

__all__ = ["run_in_background"]

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.05


def run_in_background(
    task: str, work: Callable[[Callable[[], bool]], None], should_stop: Callable[[], bool]
) -> None:
    """Run ``work`` on a thread at idle priority: this thread could not raise its own again.

    Args:
        task: The name of the thread.
        work: Called with a function that returns whether it should stop.
        should_stop: Called about twenty times a second. Once it returns true, ``work`` should stop.

    Raises:
        BaseException: What ``work`` raised.
    """
    stop = threading.Event()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            problem = lower_priority("idle")
            if problem is not None:
                _log.warning("%s: %s", task, problem)
            work(stop.is_set)
        except BaseException as error:  # noqa: BLE001 - raised again by the calling thread
            failure.append(error)

    thread = threading.Thread(target=run, name=task)
    thread.start()
    while thread.is_alive():
        if should_stop():
            stop.set()
        thread.join(_POLL_S)
    if failure:
        raise failure[0]
