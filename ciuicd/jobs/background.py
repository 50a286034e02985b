"""Upkeep beside the daemon's main thread: in a child process, or on a thread.

The work runs at idle priority, which a thread cannot give up again: so the main thread never has
it.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from ciuic.system.priority import lower_priority
from ciuicd.jobs.child import Child, in_child

__all__ = ["Work", "in_background"]

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.05

Result = TypeVar("Result")
Asks = Callable[[], bool]
Work = Callable[[Asks, Asks], Result]
"""Is given two functions: whether to stop, and whether the daemon ends."""


def in_background(
    what: str,
    work: Work[Result],
    *,
    apart: bool,
    must_stop: Asks,
    is_ending: Asks,
    note_progress: Callable[[], None],
) -> Result:
    """Do work and return what it returned; the calling thread waits.

    Args:
        what: Its name.
        work: What to do. Apart, it changes nothing in this process.
        apart: Do it in a child process.
        must_stop: Asked about twenty times a second.
        is_ending: Asked as often.
        note_progress: Called as often. Some phases of the work never ask whether to stop, so
            that they ask is no measure of its health.
    """
    if apart:

        def begin(child: Child) -> Result:
            _lower(what)
            return work(child.is_cancelled, child.is_ending)

        def asked() -> bool:
            note_progress()
            return must_stop()

        return in_child(begin, is_cancelled=asked, is_ending=is_ending)
    return _on_thread(what, work, must_stop, is_ending, note_progress)


def _on_thread(
    what: str,
    work: Work[Result],
    must_stop: Asks,
    is_ending: Asks,
    note_progress: Callable[[], None],
) -> Result:
    stop = threading.Event()
    found: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            _lower(what)
            found.append(work(stop.is_set, is_ending))
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            failure.append(error)

    thread = threading.Thread(target=run, name=what)
    thread.start()
    while thread.is_alive():
        note_progress()
        if must_stop():
            stop.set()
        thread.join(_POLL_S)
    if failure:
        raise failure[0]
    return found[0]


def _lower(what: str) -> None:
    problem = lower_priority("idle")
    if problem is not None:
        _log.warning("%s: %s", what, problem)
