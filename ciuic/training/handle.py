"""``SaveHandle``: a save that is under way."""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from ciuic.ids import SnapshotId
from ciuic.training.values.arguments import checked_timeout

__all__ = ["SaveHandle"]

_REFUSED_S: Final = 0.15
"""The kernel refuses another change of priority for a tenth of a second."""


class SaveHandle:
    """A save: first staged, then durable.

    Args:
        answer: The writer's answer.
        hurry: Gives the writer the priority of this program. The handle calls it when the
            program waits for the save, and once more if it returns False.

    Attributes:
        was_raised: ``wait`` has raised the failure of this save.
    """

    def __init__(
        self, answer: "Future[dict[str, Any]]", hurry: Callable[[], bool] = lambda: True
    ) -> None:
        # Any: values of JSON.
        self._answer = answer
        self._hurry = hurry
        self.was_raised = False

    @property
    def id(self) -> SnapshotId | None:
        """The snapshot's ID; None until it is durable, or if the save failed."""
        if not self._answer.done() or self._answer.exception() is not None:
            return None
        return SnapshotId(self._answer.result()["id"])

    @property
    def is_reduced(self) -> bool:
        """The disk was full, and only the weights of the full state are durable."""
        return self.id is not None and bool(self._answer.result()["is_reduced"])

    @property
    def frozen_until_ns(self) -> int:
        """Until then the frozen layers need no copy; 0: the save failed, or they need one now."""
        return 0 if self.id is None else int(self._answer.result()["frozen_until_ns"])

    @property
    def done(self) -> bool:
        """The save is durable, or has failed."""
        return self._answer.done()

    def wait_staged(self, timeout: float | None = None) -> None:
        """Return when the state is copied and the program may change it.

        ``save_snapshot`` copies the state before it returns, so this returns at once.
        """

    def wait(self, timeout: float | None = None) -> SnapshotId:
        """Wait until the snapshot is durable; returns its ID.

        Args:
            timeout: The longest wait in seconds; None: no limit.

        Raises:
            CiuicError: The save failed.
            TimeoutError: It is still under way.
        """
        self.wait_done(timeout)
        try:
            return SnapshotId(self._answer.result()["id"])
        except Exception:
            self.was_raised = True
            raise

    def wait_done(self, timeout: float | None = None) -> None:
        """Wait until the save is durable or has failed; a failure is not raised.

        Raises:
            TimeoutError: It is still under way.
            UsageError: ``timeout`` is not a number.
        """
        if timeout is not None:
            timeout = checked_timeout(timeout)
        try:
            if not self._answer.done() and not self._hurry():
                with contextlib.suppress(TimeoutError):
                    self._answer.exception(
                        _REFUSED_S if timeout is None else min(timeout, _REFUSED_S)
                    )
                self._hurry()
            self._answer.exception(timeout)
        except TimeoutError:
            raise TimeoutError(f"the save is not durable after {timeout or 0:g} s") from None

    def notes(self) -> list[str]:
        """Return what failed after the commit; empty while the save is under way."""
        if self.id is None:
            return []
        return list(self._answer.result()["notes"])
