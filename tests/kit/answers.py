"""Functions that worker processes run in tests of ``ciuic.system.workers.processes``."""

import os
from collections.abc import Callable

__all__ = ["answering"]


def answering(first: str, second: str, last: bytes) -> Callable[[bytes], bytes]:
    """Return the arguments, the process ID, or the request; or kill this process."""
    imported_by = os.getpid()

    def answer(request: bytes) -> bytes:
        if request == b"die":
            os._exit(1)
        if request == b"who":
            return str(os.getpid()).encode()
        if request == b"parent":
            return str(imported_by).encode()
        return b"\0".join(
            [*map(os.fsencode, (first, second)), last] if request == b"arguments" else [request]
        )

    return answer
