"""Turns of requests that may take long, such as those that read large logs.

Each request takes a thread, and the server has a limited number of them. Without turns, a few dozen
of these requests would take them all, and the other pages would wait, even if the browsers have
given up.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["Turns"]

_TOGETHER: Final = 2
_GIVEN_UP: Final = 499
"""No client reads this status. nginx logs the same one."""


class Turns:
    """Lets two requests work at once; the others wait without a thread, first come, first served.

    A request whose client is gone when its turn comes does not begin. One that has begun ends its
    work.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_TOGETHER)

    def taking(
        self, handler: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that waits for its turn."""

        @functools.wraps(handler)
        async def answer(request: Request) -> Response:
            async with self._free:
                if await request.is_disconnected():
                    return Response(status_code=_GIVEN_UP)
                return await run_in_threadpool(handler, request)

        return answer
