"""Threads that share tasks, and that start when there are two tasks or more."""

import threading
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, Protocol, TypeVar

from ciuic.errors import ResourceError, shortage
from ciuic.system.clock import SystemClock

__all__ = ["Pool", "Running", "Workers", "share", "start", "start_pool"]

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_CHECK_S: Final = 1.0
_LOOK_S: Final = 0.01


class Running(Protocol[R_co]):
    """A task that a thread has or gets: the part of ``Future`` that is used."""

    def result(self) -> R_co:
        """Wait for the task and return its result, or raise its error."""
        ...

    def exception(self) -> BaseException | None:
        """Wait for the task and return its error; None if it had none."""
        ...

    def cancel(self) -> bool:
        """Keep the task from beginning; False if it has begun."""
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


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        ResourceError: No more threads can be started.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise shortage(error) or error from error


def share(work: Callable[[T], object], items: Sequence[T], count: int, name: str) -> None:
    """Work on all items, in this thread and in others, and return when no thread works any more.

    If no thread can be started, this one does all the work.

    Args:
        work: Called with each item; the items begin in their order.
        items: The items.
        count: The most threads that work at once.
        name: The name of the other threads.

    Raises:
        BaseException: The first failure of ``work``, or of a signal; no further item has begun.
    """
    left, failures = iter(items), list[BaseException]()

    def go(ended: threading.Event) -> None:
        try:
            for item in left:
                if failures:
                    return
                work(item)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)
        finally:
            ended.set()

    helpers: list[tuple[threading.Thread, threading.Event]] = []
    try:
        for _ in range(min(count, len(items)) - 1):
            ended = threading.Event()
            helper = threading.Thread(target=go, args=(ended,), name=name, daemon=True)
            # First: a signal may raise when the thread runs already.
            helpers.append((helper, ended))
            try:
                start(helper)
            except ResourceError:
                helpers.pop()
                break
        go(threading.Event())
    except BaseException as error:  # noqa: BLE001 - it is raised below
        failures.append(error)
    while helpers:
        try:
            helper, ended = helpers[-1]
            # Not ``join`` alone: one that a signal ends takes the thread for ended ever after. A
            # thread that is not alive yet finds the failure, and begins nothing.
            while helper.is_alive() and not ended.wait(_CHECK_S):
                pass
            if helper.is_alive():
                helper.join()
            helpers.pop()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)
    if failures:
        raise failures[0]


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
        """Run tasks. When all have ended, raise the error of the first that failed.

        A signal that raises does not end the wait, so that no task works on what its caller closes:
        tasks that have not begun do not begin, and its error is raised when the others have ended.
        """
        if len(tasks) < 2:
            for task in tasks:
                task()
            return
        left, failures = iter(range(len(tasks))), list[tuple[int, BaseException]]()
        stopped, begun, ended = list[BaseException](), list[None](), list[None]()
        over = threading.Lock()
        over.acquire()

        def go(work: Callable[[], None]) -> None:
            # First: it is counted below, or finds that a signal has stopped the work.
            begun.append(None)
            try:
                if not stopped:
                    work()
            finally:
                ended.append(None)

        def take_tasks() -> None:
            for number in left:
                if stopped:
                    return
                try:
                    tasks[number]()
                except BaseException as error:  # noqa: BLE001 - it is raised below
                    failures.append((number, error))

        def submit() -> None:
            try:
                pool, count = self._started(), min(self._count, len(tasks))
                running = [pool.submit(lambda: go(take_tasks)) for _ in range(count)]
                for one in running:
                    one.result()
            except BaseException as error:  # noqa: BLE001 - it is raised below
                stopped.append(error)
            finally:
                over.release()

        # In a thread, which gets no signals: one that raises in ``submit`` or ``result`` may leave
        # a lock of the pool locked for ever, and loses the future of a task that runs.
        try:
            start(threading.Thread(target=go, args=(submit,), name=self._name, daemon=True))
            over.acquire()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            stopped.append(error)
        while stopped:
            try:
                while len(begun) > len(ended):
                    SystemClock().sleep(_LOOK_S)
                break
            except BaseException as error:  # noqa: BLE001 - it is raised below
                stopped.append(error)
        if stopped:
            raise stopped[0]
        if failures:
            raise min(failures, key=itemgetter(0))[1]

    def _started(self) -> Pool:
        if self._pool is None:
            self._pool = start_pool(self._count, self._name)
        return self._pool
