"""The OpenAPI document of the HTTP API."""

import functools
from typing import Final, NamedTuple

import ciuic
from ciuic.web.answers import COUNT_MAX, SKIP_MAX, Document
from ciuic.web.history.runs import RUNS_MIN
from ciuic.web.history.timelines import COMPARED_MAX
from ciuic.web.models import schemas

__all__ = ["ENDPOINTS", "Endpoint", "openapi"]


class Endpoint(NamedTuple):
    """A request of the API.

    Attributes:
        query: The names of its query, each with its meaning; those with ``*`` are required.
        answer: The name of the document of the answer; empty: the answer is not JSON.
        body: The names of the documents of the request; empty: it has none.
        has_ranges: A header may ask for a part of the answer.
    """

    method: str
    path: str
    summary: str
    query: dict[str, str]
    answer: str
    status: str = "200"
    media: str = "application/json"
    body: tuple[str, ...] = ()
    has_ranges: bool = False


_NUMBERS: Final[Document] = {"type": "integer", "minimum": 0, "maximum": SKIP_MAX}
_NAMES: Final[Document] = {"type": "array", "items": {"type": "string", "minLength": 1}}
_KINDS: Final[dict[str, Document]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": COUNT_MAX},
    "skip": _NUMBERS,
    "id": {**_NAMES, "minItems": 1, "maxItems": COMPARED_MAX},
    "run": {**_NAMES, "minItems": RUNS_MIN, "maxItems": COMPARED_MAX},
}
"""The schemas of what is not plain text, by the name in the query."""
_LIMIT: Final = "the most elements of the answer, up to 1000"
_NAME: Final = "an ID, a unique prefix of one, latest, latest-valid, or a time"

ENDPOINTS: Final = (
    Endpoint("get", "/v1/openapi.json", "This document.", {}, ""),
    Endpoint("get", "/v1/overview", "Whether all is well.", {}, "Overview"),
    Endpoint(
        "get",
        "/v1/snapshots",
        "Snapshots, newest first.",
        {"after": "the last ID of the part before", "text": "a search", "limit": _LIMIT},
        "SnapshotPage",
    ),
    Endpoint("get", "/v1/store", "What the snapshots take together.", {}, "StoreSpace"),
    Endpoint("get", "/v1/snapshots/{id}", "One snapshot.", {}, "SnapshotDetail"),
    Endpoint(
        "get",
        "/v1/snapshots/{id}/tree",
        "An entry of a snapshot, and what is in it.",
        {"path": "an absolute path", "after": "the last name of the part before", "limit": _LIMIT},
        "TreePage",
    ),
    Endpoint(
        "get",
        "/v1/snapshots/{id}/content",
        "The bytes of a file, or with a Range header some of them.",
        {"path*": "an absolute path"},
        "",
        media="application/octet-stream",
        has_ranges=True,
    ),
    Endpoint(
        "get",
        "/v1/diff",
        "What changed from one snapshot to another.",
        {"before*": _NAME, "after*": _NAME, "skip": "changes to leave out", "limit": _LIMIT},
        "ChangePage",
    ),
    Endpoint(
        "get",
        "/v1/timeline",
        "A logged field over the steps, with all snapshots.",
        {"field": "a field of the logs; without it, the loss or the first metric"},
        "TimelineAnswer",
    ),
    Endpoint(
        "get",
        "/v1/compare",
        "Snapshots beside each other: metrics, sizes, changed files, configuration.",
        {"id*": f"{_NAME}; repeated for each snapshot"},
        "SnapshotComparison",
    ),
    Endpoint("get", "/v1/runs", "Runs that can be compared.", {}, "RunList"),
    Endpoint(
        "get",
        "/v1/runs/compare",
        "Runs beside each other: a metric by step, and the last or the best snapshot of each.",
        {
            "run*": "the name of a run, a tag, or an absolute path; repeated for each run",
            "best": "a field: the snapshots with its lowest value; after max: the highest",
            "field": "the field of the curves; without it, the loss or the first metric",
            "limit": "the most steps of the table, up to 1000",
        },
        "RunComparison",
    ),
    Endpoint("get", "/v1/jobs", "The jobs of this server.", {}, "JobList"),
    Endpoint(
        "post",
        "/v1/jobs",
        "Start a job.",
        {},
        "Job",
        status="202",
        body=(
            *(
                "RestoreWork",
                "VerifyWork",
                "CompareWork",
                "CompareRunsWork",
                "TagWork",
                "PinWork",
                "ForgetWork",
            ),
            *("SnapshotWork", "StatsWork"),
        ),
    ),
    Endpoint("get", "/v1/jobs/{id}", "One job.", {}, "Job"),
    Endpoint("delete", "/v1/jobs/{id}", "Ask a job to stop.", {}, "Job"),
    Endpoint(
        "get",
        "/v1/jobs/{id}/events",
        "The job whenever it changes, as server-sent events named by its state.",
        {},
        "",
        media="text/event-stream",
    ),
)


@functools.cache
def openapi() -> Document:
    """Return the document."""
    paths: dict[str, Document] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ciuic", "version": ciuic.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(endpoint: Endpoint) -> Document:
    content = {"schema": _ref(endpoint.answer)} if endpoint.answer else {}
    responses: Document = {
        endpoint.status: {"description": "done", "content": {endpoint.media: content}},
        "default": {
            "description": "failed",
            "content": {"application/json": {"schema": _ref("ErrorAnswer")}},
        },
    }
    if endpoint.has_ranges:
        responses["206"] = {"description": "the range", "content": {endpoint.media: {}}}
        responses["416"] = {"description": "the range is past the end"}
    operation: Document = {
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint),
        "responses": responses,
    }
    if endpoint.body:
        kinds = [_ref(name) for name in endpoint.body]
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"oneOf": kinds}}},
        }
    return operation


def _parameters(endpoint: Endpoint) -> list[Document]:
    found = [_parameter("query", name, what) for name, what in endpoint.query.items()]
    if endpoint.has_ranges:
        what = "bytes=FIRST-LAST: some of the bytes"
        found.append(_parameter("header", "Range", what))
    if "{id}" in endpoint.path:
        what = "the job's ID" if "/jobs/" in endpoint.path else _NAME
        found.append(_parameter("path", "id*", what))
    return found


def _parameter(place: str, name: str, what: str) -> Document:
    bare, is_needed = name.rstrip("*"), name.endswith("*")
    text: Document = {"type": "string", "minLength": 1} if is_needed else {"type": "string"}
    return {
        "in": place,
        "name": bare,
        "description": what,
        "required": is_needed,
        "schema": _KINDS.get(bare, text) if place == "query" else text,
    }


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}
