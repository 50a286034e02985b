"""Threads that share tasks, and that start when there are two tasks or more."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

__all__ = ["Pool", "Running", "Workers", "start_pool"]

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Running(Protocol[R_co]):
    """A task that a thread has or gets: the part of ``Future`` that is used."""

    def result(self) -> R_co:
        """Wait for the task and return its result, or raise its error."""
        ...

    def exception(self) -> BaseException | None:
        """Wait for the task and return its error; None if it had none."""
        ...


class Pool(Protocol):
    """The part of ``ThreadPoolExecutor`` that is used."""

    def submit(self, task: Callable[[], R], /) -> Running[R]:
        """Run a task in a thread."""
        ...

    def map(self, function: Callable[[T], R], arguments: Iterable[T], /) -> Iterable[R]:
        """Return the results of a function, in the order of its arguments."""
        ...

    def shutdown(self, *, cancel_futures: bool) -> None:
        """Wait for the threads to end."""
        ...


def start_pool(count: int, name: str) -> Pool:
    """Return a pool of threads. Loading its module takes as long as restoring a hundred files."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(count, name)


class Workers:
    """Runs tasks in several threads. A single task runs in the calling thread.

    Args:
        count: How many threads.
        name: The prefix of their names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._pool: Pool | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the tasks that wait, and wait for the others."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[T], R], arguments: Iterable[T]) -> Iterable[R]:
        """Return the results of a function, in the order of its arguments."""
        tasks = list(arguments)
        if len(tasks) < 2:
            return [function(argument) for argument in tasks]
        return self._started().map(function, tasks)

    def run_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run tasks. When all have ended, raise the error of the first that failed."""
        if len(tasks) < 2:
            for task in tasks:
                task()
            return
        running = [self._started().submit(task) for task in tasks]
        errors = [error for one in running if (error := one.exception()) is not None]
        if errors:
            raise errors[0]

    def _started(self) -> Pool:
        if self._pool is None:
            self._pool = start_pool(self._count, self._name)
        return self._pool
