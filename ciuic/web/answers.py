"""Between HTTP and the rest: queries, documents and errors."""

import json
import os
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from ciuic.errors import (
    BusyError,
    CiuicError,
    ConfigError,
    PathNotFoundError,
    SnapshotNotFoundError,
    StoreError,
    TargetError,
    UsageError,
)
from ciuic.web.jobs.jobs import JobNotFoundError
from ciuic.web.models import Error, ErrorAnswer

__all__ = [
    "COUNT_MAX",
    "SKIP_MAX",
    "Document",
    "Query",
    "as_json",
    "document",
    "error_answer",
    "from_system",
    "status_of",
]

COUNT_MAX: Final = 1000
"""The most elements of an answer."""
SKIP_MAX: Final = 1_000_000_000
"""The most elements that a request may leave out."""
_STATUS: Final[tuple[tuple[type[CiuicError], int], ...]] = (
    (SnapshotNotFoundError, 404),
    (PathNotFoundError, 404),
    (JobNotFoundError, 404),
    (UsageError, 400),
    (ConfigError, 400),
    (TargetError, 409),
    (BusyError, 409),
    (StoreError, 503),
)
Document = dict[str, object]


class Query:
    """The query of a request. Its values are bytes with percent signs, which need not be UTF-8."""

    def __init__(self, request: Request) -> None:
        raw: bytes = request.scope["query_string"]
        text = raw.decode("latin-1")
        self._pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
        self._values = dict(self._pairs)

    def text(self, name: str, default: str = "") -> str:
        """Return a value as text."""
        return self._values.get(name, default)

    def texts(self, name: str) -> list[str]:
        """Return all values of a name that may be repeated."""
        return [value for key, value in self._pairs if key == name]

    def path(self, name: str, default: bytes = b"") -> bytes:
        """Return a value as raw bytes."""
        return os.fsencode(self._values[name]) if name in self._values else default

    def needed(self, name: str) -> str:
        """Return a value that must be there.

        Raises:
            UsageError: It is missing.
        """
        if not self._values.get(name):
            raise UsageError(f"the query has no '{name}'", hint="See /v1/openapi.json.")
        return self._values[name]

    def number(
        self, name: str, default: int, *, number_min: int = 1, number_max: int = COUNT_MAX
    ) -> int:
        """Return a value as a number from the minimum to the maximum.

        Raises:
            UsageError: It is not a number, or out of this range.
        """
        text = self._values.get(name, str(default))
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if not number_min <= number <= number_max:
            raise UsageError(
                f"'{name}' is not a number from {number_min} to {number_max:,}",
                hint="See /v1/openapi.json.",
            )
        return number


def as_json(body: object) -> str:
    """Encode a document; bytes that are not UTF-8 become lone surrogates and survive."""
    return json.dumps(body, ensure_ascii=True)


def document(body: Document, status: int = 200) -> Response:
    """Return an answer with a JSON document."""
    return Response(as_json(body) + "\n", status, media_type="application/json")


def status_of(error: CiuicError) -> int:
    """Return the status of the answer to a request that ended in an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def error_answer(error: CiuicError, status: int | None = None) -> Response:
    """Return the answer to a request that ended in an error; None: the status of its kind."""
    body = Error(
        kind=error.kind, message=os.fsencode(error.message), hint=os.fsencode(error.hint or "")
    )
    answer = ErrorAnswer(error=body).model_dump()
    return document(answer, status_of(error) if status is None else status)


def from_system(error: OSError) -> CiuicError:
    """Return an error of the operating system as an error of ciuic."""
    where = f" {os.fsdecode(error.filename)!r}" if error.filename else ""
    return StoreError(f"the operating system refused{where}: {error.strerror or error}")
