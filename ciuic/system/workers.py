"""Threads that share the tasks of some work, and start with the first two tasks."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["Workers"]

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Runs tasks in several threads. A task that comes alone runs in the thread that asks.

    Loading and starting a ``ThreadPoolExecutor`` takes as long as restoring a hundred small files.

    Args:
        count: How many threads.
        name: The prefix of their names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._started: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the tasks that wait, and wait for the others."""
        if self._started is not None:
            self._started.shutdown(cancel_futures=True)

    def map(self, function: Callable[[T], R], arguments: Iterable[T]) -> Iterable[R]:
        """Return the results of a function, in the order of its arguments."""
        tasks = list(arguments)
        if len(tasks) < 2:
            return [function(argument) for argument in tasks]
        return self._pool().map(function, tasks)

    def run_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run tasks. When all have ended, raise the error of the first that failed."""
        if len(tasks) < 2:
            for task in tasks:
                task()
            return
        futures = [self._pool().submit(task) for task in tasks]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _pool(self) -> "ThreadPoolExecutor":
        if self._started is None:
            from concurrent.futures import ThreadPoolExecutor

            self._started = ThreadPoolExecutor(self._count, self._name)
        return self._started
