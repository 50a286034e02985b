"""Upkeep beside the daemon's main thread: in a child process, or on a thread.

The work runs at idle priority, which a thread cannot give up again: so the main thread never has
it.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from ciuic.errors import ChildDiedError
from ciuic.system.clock import Clock
from ciuic.system.priority import lower_priority
from ciuic.units import format_duration
from ciuicd.jobs.child import Child, in_child
from ciuicd.jobs.steps import all_steps
from ciuicd.jobs.watching import ENDS_WITHIN_S

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
    clock: Clock,
    must_stop: Asks,
    is_ending: Asks,
    note_progress: Callable[[], None],
) -> Result:
    """Do work and return what it returned; the calling thread waits.

    Args:
        what: Its name.
        work: What to do. Apart, it changes nothing in this process.
        apart: Do it in a child process.
        clock: Tells the time.
        must_stop: Asked about twenty times a second.
        is_ending: Asked as often.
        note_progress: Called as often as long as the work goes on. Some phases of the work never
            ask whether to stop: apart, work that uses a processor goes on.

    Raises:
        ChildDiedError: The child process was killed, or the daemon ends and the thread does not.
    """
    if apart:

        def begin(child: Child) -> Result:
            _lower(what)
            return work(child.is_cancelled, child.is_ending)

        return all_steps(
            in_child(
                begin,
                clock=clock,
                is_cancelled=must_stop,
                note_progress=note_progress,
                is_ending=is_ending,
                counts_processor_time=True,
            )
        )
    return _on_thread(
        what,
        work,
        clock=clock,
        must_stop=must_stop,
        is_ending=is_ending,
        note_progress=note_progress,
    )


def _on_thread(
    what: str,
    work: Work[Result],
    *,
    clock: Clock,
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

    # A daemon: one that hangs must not keep the process from ending.
    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    ending_s: float | None = None
    while thread.is_alive():
        note_progress()
        if must_stop():
            stop.set()
        if is_ending():
            now_s = clock.monotonic_s()
            ending_s = now_s if ending_s is None else ending_s
            if now_s > ending_s + ENDS_WITHIN_S:
                raise ChildDiedError(
                    f"the thread that did the work did not end in"
                    f" {format_duration(now_s - ending_s)}, although the daemon ends",
                    hint="If a disk does not answer, the kernel's log says so (journalctl -k).",
                )
        thread.join(_POLL_S)
    if failure:
        raise failure[0]
    return found[0]


def _lower(what: str) -> None:
    problem = lower_priority("idle")
    if problem is not None:
        _log.warning("%s: %s", what, problem)
