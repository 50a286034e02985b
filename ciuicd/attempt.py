"""How the daemon handles failures: a failure never ends it and is one line in its log."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from ciuic.control import Document
from ciuic.errors import CiuicError, StoreError, shortage
from ciuicd.jobs.job import Job

__all__ = ["attempt", "failure", "sentence"]

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def attempt(failed: Callable[[CiuicError], None]) -> Iterator[None]:
    """Pass any exception that leaves the block to ``failed``, as a ``CiuicError``.

    An unexpected exception is logged with its traceback, unless memory or threads ran short.
    """
    try:
        yield
    except CiuicError as error:
        failed(error)
    except OSError as error:
        failed(StoreError(f"{type(error).__name__}: {error}"))
    except Exception as error:  # noqa: BLE001 - the loop's edge: a bug must not end the daemon
        short = shortage(error)
        if short is None:
            _log.exception("this is a bug in ciuic; please report it")
        failed(short or StoreError(f"{type(error).__name__}: {error}", hint=""))


def sentence(error: CiuicError) -> str:
    """Return the error and its remedy on one line."""
    return f"{error.message}. {error.hint}" if error.hint else error.message


def failure(store: str, job: Job, error: CiuicError) -> dict[str, Document]:
    """Return what a program reads of a failed snapshot in the log."""
    fields = {"event": "failure", "store": store, "schedule": job.schedule, "kind": error.kind}
    return {"fields": fields}
