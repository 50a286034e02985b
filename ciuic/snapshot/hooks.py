"""Hooks: commands of the configuration that run before and after each snapshot.

    before   after the store has been opened for writing, so that it never runs for a snapshot that
             cannot begin. If it fails, the snapshot is taken and records a warning
    after    whenever it was the turn of ``before``, even if the snapshot failed, so that it can
             restart what ``before`` stopped. If it fails, the report has a warning. If the process
             that takes the snapshot is killed, it does not run

``hook_process`` runs a hook.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from ciuic.errors import UsageError
from ciuic.model import PathWarning
from ciuic.progress import Pace, Progress
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.report import TakeReport
from ciuic.snapshot.take import take_snapshot
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = ["HOOK_WARNING", "Hooks", "refuse_in_hook", "take_with_hooks"]

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
        progress: See ``take_snapshot``.
        pacer: Makes the readers wait for other programs; None: they never do.

    Raises:
        CiuicError: The error of ``take_snapshot`` or of ``opened``.
    """
    runner = _Runner(hooks, clock, say)
    try:
        with opened() as store:
            request = runner.before(store.name, request, cancelled)
            report = take_snapshot(
                store, request, clock=clock, cancelled=cancelled, progress=progress, pacer=pacer
            )
    except BaseException:
        runner.after_failure()
        raise
    return runner.after(request, report)


class _Runner:
    """Runs the hooks of one snapshot; ``after`` runs only if ``before`` had its turn."""

    def __init__(self, hooks: Hooks, clock: Clock, say: Callable[[str], None]) -> None:
        self._hooks = hooks
        self._clock = clock
        self._say = say
        self._has_begun = False
        self._environ: dict[bytes, bytes] = {}

    def before(
        self, store_path: str, request: TakeRequest, cancelled: Callable[[], bool]
    ) -> TakeRequest:
        """Run ``before``; returns the request, with a warning if the hook failed."""
        self._has_begun = True
        self._environ = _environ(store_path, request)
        what = self._run("before", self._hooks.before, {}, cancelled)
        if what is None:
            return request
        return request._replace(trouble=(*request.trouble, _warning(request, what)))

    def after(self, request: TakeRequest, report: TakeReport) -> TakeReport:
        """Run ``after``; returns the report, with a warning if the hook failed."""
        outcome = {
            b"CIUIC_SNAPSHOT_ID": report.id.encode(),
            b"CIUIC_KIND": report.kind.encode(),
            b"CIUIC_TROUBLE_COUNT": b"%d" % report.trouble_count,
            b"CIUIC_EXIT_STATUS": b"3" if report.trouble_count else b"0",
        }
        what = self._run("after", self._hooks.after, outcome, _never)
        return report if what is None else report.with_warning(_warning(request, what))

    def after_failure(self) -> None:
        """Run ``after`` although the snapshot failed."""
        if self._has_begun:
            outcome = {b"CIUIC_EXIT_STATUS": b"1"}
            what = self._run("after", self._hooks.after, outcome, _never)
            if what is not None:
                self._say(f"{HOOK_WARNING}{what}")

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

        what = run_hook(
            command,
            self._environ | outcome | {b"CIUIC_HOOK": name.encode()},
            timeout_s=self._hooks.timeout_s,
            clock=self._clock,
            cancelled=cancelled,
            say=lambda line: self._say(f"{name}: {line}"),
        )
        return None if what is None else f"'{name}' {what}"


def _never() -> bool:
    return False


def _warning(request: TakeRequest, what: str) -> PathWarning:
    return PathWarning(request.roots[0] if request.roots else b"/", f"{HOOK_WARNING}{what}")


def _environ(store_path: str, request: TakeRequest) -> dict[bytes, bytes]:
    kept = {key: value for key, value in os.environb.items() if key not in _NOT_FOR_HOOKS}
    return kept | {
        b"CIUIC_STORE": os.fsencode(store_path),
        b"CIUIC_ROOTS": b"\n".join(request.roots),
        b"CIUIC_TAGS": "\n".join(request.tags).encode("utf-8", "surrogateescape"),
    }
