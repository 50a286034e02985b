"""What processes of the tests answer: see ``ciuic.processes``."""

import os
from collections.abc import Callable

__all__ = ["answering"]


def answering(*arguments: str) -> Callable[[bytes], bytes]:
    """Gives back the arguments, the process's number, or the request itself; or dies of it."""

    def answer(request: bytes) -> bytes:
        if request == b"die":
            os._exit(1)
        if request == b"who":
            return str(os.getpid()).encode()
        return os.fsencode("\0".join(arguments)) if request == b"arguments" else request

    return answer
