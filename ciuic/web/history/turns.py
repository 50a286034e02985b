"""Turns of requests that may take long, such as those that read large logs.

Each request takes a thread, and the server has a limited number of them. Without turns, a few dozen
of these requests would take them all, and the other pages would wait, even if the browsers have
given up.
"""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ciuic.errors import CancelledError

__all__ = ["Turns", "go_on"]

_TOGETHER: Final = 2
_LOOK_S: Final = 0.5
"""How often to look whether the client is still there."""
_GIVEN_UP: Final = 499
"""No client reads this status. nginx logs the same one."""
_gone: ContextVar[threading.Event | None] = ContextVar("gone", default=None)
"""Of the request that the current thread works for: set when its client is gone."""


class Turns:
    """Lets two requests work at once; the others wait without a thread, first come, first served.

    A request whose client is gone when its turn comes does not begin, and one that has begun ends
    at its next call of ``go_on``. Its turn ends with its work, even if the server gives it up.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_TOGETHER)

    def taking(
        self, handler: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that waits for its turn."""

        @functools.wraps(handler)
        async def answer(request: Request) -> Response:
            gone = threading.Event()
            working: asyncio.Future[Response] | None = None
            await self._free.acquire()
            try:
                if await request.is_disconnected():
                    return Response(status_code=_GIVEN_UP)
                token = _gone.set(gone)  # the thread of the handler gets a copy of the context
                try:
                    working = asyncio.ensure_future(run_in_threadpool(handler, request))
                finally:
                    _gone.reset(token)
                while not (await asyncio.wait({working}, timeout=_LOOK_S))[0]:
                    if await request.is_disconnected():
                        gone.set()
                return await working
            finally:
                gone.set()
                if working is None:
                    self._free.release()
                else:
                    # Not now: if this task was cancelled, the thread still works.
                    working.add_done_callback(self._end)

        return answer

    def _end(self, working: asyncio.Future[Response]) -> None:
        """Give the turn to the next request."""
        self._free.release()
        if not working.cancelled():
            working.exception()  # asyncio logs one that was not asked for


def go_on() -> None:
    """End the work for a request that was given up; harmless in other work.

    Raises:
        CancelledError: The client of the request is gone.
    """
    gone = _gone.get()
    if gone is not None and gone.is_set():
        raise CancelledError("the request was given up", hint="")
