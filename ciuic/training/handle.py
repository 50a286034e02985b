"""``SaveHandle``: a save that is under way."""

from concurrent.futures import Future
from typing import Any

from ciuic.ids import SnapshotId

__all__ = ["SaveHandle"]


class SaveHandle:
    """A save: first staged, then durable.

    Args:
        answer: Gets the writer's answer.

    Attributes:
        was_raised: ``wait`` has raised the failure of this save.
    """

    def __init__(self, answer: "Future[dict[str, Any]]") -> None:
        # Any: values of JSON.
        self._answer = answer
        self.was_raised = False

    @property
    def id(self) -> SnapshotId | None:
        """The snapshot's ID; None until it is durable, or if the save failed."""
        if not self._answer.done() or self._answer.exception() is not None:
            return None
        return SnapshotId(self._answer.result()["id"])

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
        try:
            return SnapshotId(self._answer.result(timeout)["id"])
        except TimeoutError:
            raise TimeoutError(f"the save is not durable after {timeout} s") from None
        except Exception:
            self.was_raised = True
            raise

    def notes(self) -> list[str]:
        """Return what failed after the commit; empty while the save is under way."""
        if self.id is None:
            return []
        return list(self._answer.result()["notes"])
