"""All ranks load one snapshot: rank 0 chooses it."""

import contextlib
from collections.abc import Callable
from typing import Any

from ciuic.errors import CiuicError, StoreError
from ciuic.ids import SnapshotId
from ciuic.training.loading.state import LoadedState
from ciuic.training.ranks.job import Job

__all__ = ["Agreement"]


class Agreement:
    """Tells the ranks which snapshot to load. All ranks must load equally often.

    Args:
        job: Which rank this is.
        ask: Sends a request to the writer of rank 0; returns a future of the answer.
    """

    # Any: a future of a value of JSON.
    def __init__(self, job: Job, ask: Callable[[dict[str, Any]], Any]) -> None:
        self._rank = job.rank
        self._ask = ask
        self._number = 0

    def load(
        self,
        choose: Callable[[], LoadedState | None],
        read: Callable[[SnapshotId], LoadedState],
    ) -> LoadedState | None:
        """Load what rank 0 chooses.

        Args:
            choose: On rank 0: chooses a snapshot, and reads it.
            read: On the other ranks: reads the snapshot that was chosen.

        Raises:
            CiuicError: Rank 0 found no snapshot that it can load; all ranks raise this. Or this
                rank cannot read the snapshot.
        """
        self._number += 1
        if self._rank:
            answer = self._ask({"do": "resume", "number": self._number}).result()
            if answer["id"] is None:
                return None
            state = read(SnapshotId(answer["id"]))
            state.skipped = {SnapshotId(name): what for name, what in answer["skipped"].items()}
            return state
        try:
            chosen = choose()
        except BaseException as error:
            # The others wait. Ctrl-C ends this rank, and a lack of memory may do so too.
            with contextlib.suppress(CiuicError):
                self._send({"error": _written(error)})
            raise
        if chosen is None:
            self._publish({"id": None})
        else:
            self._publish({"id": chosen.snapshot_id, "skipped": chosen.skipped})
        return chosen

    def _publish(self, message: dict[str, Any]) -> None:
        self._send(message).result()

    # Any: a future of a value of JSON.
    def _send(self, message: dict[str, Any]) -> Any:
        return self._ask({"do": "publish", "number": self._number, "message": message})


def _written(error: BaseException) -> dict[str, str]:
    """Return the JSON of an error for the other ranks."""
    if isinstance(error, CiuicError):
        return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    what = f"rank 0 could not load a snapshot: {type(error).__name__}: {error}"
    return {"kind": StoreError.__name__, "message": what, "hint": "The log of rank 0 says more."}
