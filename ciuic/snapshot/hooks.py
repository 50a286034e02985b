"""Hooks: commands of the configuration that run before and after each snapshot.

    before   after the store has been opened for writing, so that it never runs for a snapshot that
             cannot begin. If it fails, the snapshot is taken and records a warning
    after    whenever it was the turn of ``before``, even if the snapshot failed, so that it can
             restart what ``before`` stopped. If it fails, the report has a warning. If the process
             that takes the snapshot is killed, its parent runs it: ``run_after_death``

``hook_process`` runs a hook.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, Protocol

from ciuic.errors import FAILED, UsageError
from ciuic.model import PathWarning
from ciuic.progress import Pace, Progress
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.report import TakeReport
from ciuic.snapshot.take import take_snapshot
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = [
    "HOOK_WARNING",
    "HookState",
    "Hooks",
    "refuse_in_hook",
    "run_after_death",
    "take_with_hooks",
]

HOOK_WARNING: Final = "the hook "
"""Warnings about failed hooks begin with this text. Their path is that of the first root."""
_NOT_FOR_HOOKS: Final = (b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID")


class Hooks(NamedTuple):
    """The commands; an empty command is not run.

    Attributes:
        timeout_s: Time limit of each command.
    """

    before: str = ""
    after: str = ""
    timeout_s: float = 60.0


class HookState(NamedTuple):
    """How far the hooks of a snapshot are, for the parent of the process that takes it.

    Attributes:
        store_path: As the hooks learn it.
        running: The run of the hook that runs now; empty: none does.
        is_over: ``after`` has run to its end.
    """

    store_path: str
    running: bytes = b""
    is_over: bool = False


def refuse_in_hook(environ: Mapping[str, str]) -> None:
    """Refuse to take a snapshot in a hook: the hooks of that snapshot would take more, endlessly.

    Raises:
        UsageError: A hook started this process.
    """
    name = environ.get("CIUIC_HOOK", "")
    if name:
        raise UsageError(
            f"the hook '{name}' may not take a snapshot; no snapshot was taken",
            hint="Remove the command from the hook. To run ciuic outside a hook, unset CIUIC_HOOK.",
        )


class GivesWay(Protocol):
    """The block in which a snapshot gives way to other programs: see ``pace.idling``."""

    def __enter__(self) -> None:
        """Begin it."""
        ...

    def __exit__(self, *_: object) -> None:
        """End it."""
        ...

    def watching(self, cancelled: Callable[[], bool]) -> Callable[[], bool]:
        """Return ``cancelled``; a call of it may end the giving way earlier."""
        ...


def take_with_hooks(
    opened: Callable[[], AbstractContextManager[Store]],
    request: TakeRequest,
    hooks: Hooks,
    *,
    clock: Clock,
    say: Callable[[str], None],
    cancelled: Callable[[], bool],
    progress: Progress | None = None,
    pacer: Pace | None = None,
    note: Callable[[HookState], None] = lambda _state: None,
    idling: GivesWay | None = None,
) -> TakeReport:
    """Run the hook ``before``, ``take_snapshot``, and the hook ``after``.

    Args:
        opened: Opens the store for writing. The store is closed again before ``after`` runs.
        request: What to take.
        hooks: The commands.
        clock: Measures the time.
        say: Receives the output of the hooks; also told if ``after`` fails after a snapshot that
            failed.
        cancelled: Returns whether to stop: ``before`` is then killed, and ``after`` still runs.
            Called often all the time, also while ``after`` runs: it shows that the work goes on.
        progress: See ``take_snapshot``.
        pacer: Makes the readers wait for other programs; None: they never do.
        note: Receives each state from the turn of ``before`` on.
        idling: The snapshot gives way to other programs, but no hook does.

    Raises:
        CiuicError: The error of ``take_snapshot`` or of ``opened``.
    """
    runner = _Runner(hooks, clock, say, note)
    try:
        with opened() as store:
            request = runner.before(store.name, request, cancelled)
            watching = cancelled if idling is None else idling.watching(cancelled)
            with idling or nullcontext():
                report = take_snapshot(
                    store, request, clock=clock, cancelled=watching, progress=progress, pacer=pacer
                )
    except BaseException:
        runner.after_failure(cancelled)
        raise
    return runner.after(request, report, cancelled)


def run_after_death(
    state: HookState,
    request: TakeRequest,
    hooks: Hooks,
    *,
    exit_status: int,
    clock: Clock,
    say: Callable[[str], None],
    waits: Callable[[], None],
) -> None:
    """Run the hook ``after`` of a snapshot whose process was killed, unless it was over.

    A hook that still runs is killed first: nothing reads its output any more. If it was ``after``,
    it runs again.

    Args:
        state: The last one that the process noted.
        request: What it took.
        hooks: The commands.
        exit_status: What ``after`` learns.
        clock: Measures the time.
        say: Receives the output, and is told if ``after`` fails.
        waits: Called often meanwhile.
    """
    if state.running:
        from ciuic.snapshot.hook_process import kill_run

        kill_run(state.running)
    if not state.is_over:
        runner = _Runner(hooks, clock, say, lambda _state: None)
        runner.after_death(state.store_path, request, exit_status, waits)


class _Runner:
    """Runs the hooks of one snapshot; ``after`` runs only if ``before`` had its turn."""

    def __init__(
        self,
        hooks: Hooks,
        clock: Clock,
        say: Callable[[str], None],
        note: Callable[[HookState], None],
    ) -> None:
        self._hooks = hooks
        self._clock = clock
        self._say = say
        self._note = note
        self._state: HookState | None = None
        self._environ: dict[bytes, bytes] = {}

    def before(
        self, store_path: str, request: TakeRequest, cancelled: Callable[[], bool]
    ) -> TakeRequest:
        """Run ``before``; returns the request, with a warning if the hook failed."""
        self._environ = _environ(store_path, request)
        self._state = HookState(store_path)
        self._note(self._state)
        what = self._run("before", self._hooks.before, {}, cancelled)
        if what is None:
            return request
        return request._replace(trouble=(*request.trouble, _warning(request, what)))

    def after(
        self, request: TakeRequest, report: TakeReport, waits: Callable[[], object]
    ) -> TakeReport:
        """Run ``after``; returns the report, with a warning if the hook failed."""
        outcome = {
            b"CIUIC_SNAPSHOT_ID": report.id.encode(),
            b"CIUIC_KIND": report.kind.encode(),
            b"CIUIC_TROUBLE_COUNT": b"%d" % report.trouble_count,
            b"CIUIC_EXIT_STATUS": b"3" if report.trouble_count else b"0",
        }
        what = self._run("after", self._hooks.after, outcome, _waiting(waits))
        return report if what is None else report.with_warning(_warning(request, what))

    def after_failure(self, waits: Callable[[], object]) -> None:
        """Run ``after`` although the snapshot failed."""
        if self._state is not None:
            self._after_none(FAILED, waits)

    def after_death(
        self,
        store_path: str,
        request: TakeRequest,
        exit_status: int,
        waits: Callable[[], None],
    ) -> None:
        """Run ``after`` for a process that was killed."""
        self._environ = _environ(store_path, request)
        self._state = HookState(store_path)
        self._after_none(exit_status, waits)

    def _after_none(self, exit_status: int, waits: Callable[[], object]) -> None:
        outcome = {b"CIUIC_EXIT_STATUS": b"%d" % exit_status}
        what = self._run("after", self._hooks.after, outcome, _waiting(waits))
        if what is not None:
            self._say(f"{HOOK_WARNING}{what}")

    def _now(self, *, running: bytes = b"", is_over: bool = False) -> None:
        if self._state is not None:
            self._state = self._state._replace(running=running, is_over=is_over)
            self._note(self._state)

    def _run(
        self,
        name: str,
        command: str,
        outcome: dict[bytes, bytes],
        cancelled: Callable[[], bool],
    ) -> str | None:
        """Run a hook; returns None if it succeeded, or its name and what happened."""
        if not command:
            return None
        # Imported here: most configurations have no hooks, and a snapshot may be short.
        from ciuic.snapshot.hook_process import run_hook

        def began(token: bytes) -> None:
            self._now(running=token)

        what = run_hook(
            command,
            self._environ | outcome | {b"CIUIC_HOOK": name.encode()},
            timeout_s=self._hooks.timeout_s,
            clock=self._clock,
            cancelled=cancelled,
            say=lambda line: self._say(f"{name}: {line}"),
            began=began,
        )
        self._now(is_over=name == "after")
        return None if what is None else f"'{name}' {what}"


def _waiting(waits: Callable[[], object]) -> Callable[[], bool]:
    """Return what a hook asks that is never cancelled."""

    def is_cancelled() -> bool:
        waits()
        return False

    return is_cancelled


def _warning(request: TakeRequest, what: str) -> PathWarning:
    return PathWarning(request.roots[0] if request.roots else b"/", f"{HOOK_WARNING}{what}")


def _environ(store_path: str, request: TakeRequest) -> dict[bytes, bytes]:
    kept = {key: value for key, value in os.environb.items() if key not in _NOT_FOR_HOOKS}
    return kept | {
        b"CIUIC_STORE": os.fsencode(store_path),
        b"CIUIC_ROOTS": b"\n".join(request.roots),
        b"CIUIC_TAGS": "\n".join(request.tags).encode("utf-8", "surrogateescape"),
    }
