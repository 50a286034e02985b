"""What each task of upkeep did last, for the daemon's status."""

from typing import Any

from ciuic.control import Document
from ciuic.store.store import Store
from ciuic.system.clock import Clock, rfc3339

__all__ = ["Outcomes", "refuse_other"]


class Outcomes:
    """The last outcome of each task.

    Attributes:
        last: The outcomes, by the name of the task.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last: dict[str, Document] = {}

    def __contains__(self, task: str) -> bool:
        return task in self.last

    def of(self, task: str) -> Document | None:
        """Return the last outcome of a task; None if it has not run."""
        return self.last.get(task)

    def note(self, task: str, **fields: Any) -> None:  # Any: values of every JSON type
        """Replace the outcome of a task."""
        self.last[task] = {"time": rfc3339(self._clock.now_ns()), **fields}


def refuse_other(store: Store, store_id: str | None) -> None:
    """Refuse a store with another ID, which was mounted here in between. None: any is right.

    Raises:
        StoreError: It is another store.
    """
    if store_id is not None:
        store.refuse_other(store_id)
