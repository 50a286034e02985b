"""The HTTP API: one function for each request. ``openapi`` describes them."""

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final
from urllib.parse import quote_from_bytes

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ciuic.errors import CiuicError, PathNotFoundError, UsageError
from ciuic.hints import aim
from ciuic.model import UNREADABLE, path_text
from ciuic.view.file import StoredFile
from ciuic.view.locator import locate
from ciuic.web.answers import SKIP_MAX, Query, as_json, document, error_answer, from_system
from ciuic.web.history.runs import Runs
from ciuic.web.history.timelines import Timelines
from ciuic.web.jobs.jobs import Jobs
from ciuic.web.models import Job, JobList
from ciuic.web.openapi import openapi
from ciuic.web.ranges import ByteSpan, RangeError, parse_range
from ciuic.web.reading import Reading
from ciuic.web.works import parse_work

__all__ = ["Api"]

_BODY_BYTES_MAX: Final = 1024 * 1024
_PART_BYTES: Final = 1024 * 1024
_LOOK_S: Final = 0.2
_BEAT_S: Final = 15.0
"""A proxy may close a connection on which nothing is sent."""
_Handler = Callable[[Request], Response]


class Api:
    """Answers the requests below ``/v1``.

    Args:
        reading: Reads the store.
        timelines: Reads the logs of a training.
        runs: Compares runs.
        jobs: Runs jobs.
        is_ending: Whether the server is about to end. It does not wait for listeners.
    """

    def __init__(
        self,
        reading: Reading,
        timelines: Timelines,
        runs: Runs,
        jobs: Jobs,
        is_ending: Callable[[], bool],
    ) -> None:
        self._reading = reading
        self._timelines = timelines
        self._runs_reading = runs
        self._jobs = jobs
        self._is_ending = is_ending

    def routes(self) -> list[Route]:
        """Return the routes of all requests."""
        timelines, runs = self._timelines.turns, self._runs_reading.turns
        return [
            Route("/v1/openapi.json", self._answering(lambda _: document(openapi()))),
            Route("/v1/overview", self._answering(self._overview)),
            Route("/v1/store", self._answering(self._store)),
            Route("/v1/snapshots", self._answering(self._snapshots)),
            Route("/v1/snapshots/{id}", self._answering(self._snapshot)),
            Route("/v1/snapshots/{id}/tree", self._answering(self._tree)),
            Route("/v1/snapshots/{id}/content", self._answering(self._content)),
            Route("/v1/diff", self._answering(self._diff)),
            Route("/v1/timeline", timelines.taking(self._answering(self._timeline))),
            Route("/v1/compare", timelines.taking(self._answering(self._compare))),
            Route("/v1/runs", self._answering(self._runs)),
            Route("/v1/runs/compare", runs.taking(self._answering(self._compare_runs))),
            # One route for each path: the answer to another method names all that the path has.
            Route("/v1/jobs", self._jobs_or_start, methods=["GET", "POST"]),
            Route("/v1/jobs/{id}", self._answering(self._job_or_cancel), methods=["GET", "DELETE"]),
            Route("/v1/jobs/{id}/events", self._answering(self._events)),
        ]

    def _overview(self, _request: Request) -> Response:
        return document(self._reading.overview().model_dump())

    def _store(self, _request: Request) -> Response:
        return document(self._reading.space().model_dump())

    def _snapshots(self, request: Request) -> Response:
        query = Query(request)
        found = self._reading.snapshots(
            after=query.text("after"),
            text=query.text("text"),
            count=query.number("limit", 100),
        )
        return document(found.model_dump())

    def _snapshot(self, request: Request) -> Response:
        return document(self._reading.snapshot(request.path_params["id"]).model_dump())

    def _tree(self, request: Request) -> Response:
        query = Query(request)
        found = self._reading.tree(
            request.path_params["id"],
            query.path("path", b"/"),
            after=query.path("after"),
            count=query.number("limit", 500),
        )
        return document(found.model_dump())

    def _diff(self, request: Request) -> Response:
        query = Query(request)
        found = self._reading.changes(
            query.needed("before"),
            query.needed("after"),
            skip=query.number("skip", 0, number_min=0, number_max=SKIP_MAX),
            count=query.number("limit", 500),
        )
        return document(found.model_dump())

    def _timeline(self, request: Request) -> Response:
        return document(self._timelines.timeline(Query(request).text("field")).model_dump())

    def _compare(self, request: Request) -> Response:
        return document(self._timelines.compare(Query(request).texts("id")).model_dump())

    def _runs(self, _request: Request) -> Response:
        return document(self._runs_reading.known().model_dump())

    def _compare_runs(self, request: Request) -> Response:
        query = Query(request)
        found = self._runs_reading.compare(
            query.texts("run"),
            best=query.text("best"),
            field=query.text("field"),
            rows=query.number("limit", 20),
        )
        return document(found.model_dump())

    def _content(self, request: Request) -> Response:
        path = os.fsencode(Query(request).needed("path"))
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(self._reading.opened(is_long=True))
            manifest = store.manifest(self._reading.find(store, request.path_params["id"]).id)
            located = locate(store, manifest, path)
            entry = located.entry
            if not entry.is_file:
                raise UsageError(f"{path_text(path)} is not a file", hint="Name a file.")
            if entry.state == UNREADABLE:
                raise PathNotFoundError(
                    f"{path_text(path)} could not be read when the snapshot was taken",
                    hint="Try an older snapshot.",
                )
            headers = _download_headers(os.path.basename(path))
            # Without content there is no range: If-Range cannot match either.
            wanted = None if "if-range" in request.headers else request.headers.get("range")
            try:
                span = parse_range(wanted, entry.size_bytes)
            except RangeError:
                return Response(
                    status_code=416, headers={"content-range": f"bytes */{entry.size_bytes}"}
                )
            status, span = (200, ByteSpan(0, entry.size_bytes)) if span is None else (206, span)
            if status == 206:
                place = f"bytes {span.begin}-{span.end - 1}/{entry.size_bytes}"
                headers["content-range"] = place
            headers["content-length"] = str(span.end - span.begin)
            if request.method == "HEAD":
                return Response(status_code=status, headers=headers)
            file = StoredFile(store, entry)
            # Read before the answer begins: damage there is an answer of its own.
            first = file.read(span.begin, min(_PART_BYTES, span.end - span.begin))
            parts = _parts(stack.pop_all(), file, first, span)
            return StreamingResponse(parts, status, headers)

    def _all_jobs(self, _request: Request) -> Response:
        return document(JobList(jobs=self._jobs.all()).model_dump())

    async def _jobs_or_start(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._start(request)
        return await run_in_threadpool(self._answering(self._all_jobs), request)

    def _job_or_cancel(self, request: Request) -> Response:
        return self._cancel(request) if request.method == "DELETE" else self._job(request)

    async def _start(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _BODY_BYTES_MAX:
                return error_answer(UsageError("the request is too long", hint="Name less."))

        def start(_request: Request) -> Response:
            try:
                work = parse_work(json.loads(body))
            except (ValueError, RecursionError) as error:
                what = str(error).replace("\n", "; ")[:500]
                raise UsageError(
                    f"the request does not describe a job: {what}", hint="See /v1/openapi.json."
                ) from error
            return document(self._jobs.start(work).model_dump(), 202)

        return await run_in_threadpool(self._answering(start), request)

    def _job(self, request: Request) -> Response:
        return document(self._jobs.get(request.path_params["id"])[1].model_dump())

    def _cancel(self, request: Request) -> Response:
        return document(self._jobs.cancel(request.path_params["id"]).model_dump())

    def _events(self, request: Request) -> Response:
        job_id = request.path_params["id"]
        self._jobs.get(job_id)
        return StreamingResponse(self._news(job_id), media_type="text/event-stream")

    def _answering(self, handler: _Handler) -> _Handler:
        """Return a handler that answers an error with a document, and does not raise it."""

        @functools.wraps(handler)
        def answer(request: Request) -> Response:
            try:
                return handler(request)
            except CiuicError as error:
                aim(error, self._jobs.options())
                return error_answer(error)
            except OSError as error:
                return error_answer(from_system(error))

        return answer

    async def _news(self, job_id: str) -> AsyncIterator[str]:
        """Send a job whenever it changes, until it has ended."""
        last, quiet_s = -1, 0.0
        while not self._is_ending():
            changes, job = self._jobs.get(job_id)
            if changes != last:
                last, quiet_s = changes, 0.0
                yield _event(job)
                if job.state != "running":
                    return
            elif quiet_s >= _BEAT_S:
                quiet_s = 0.0
                yield ": still running\n\n"
            await asyncio.sleep(_LOOK_S)
            quiet_s += _LOOK_S


def _event(job: Job) -> str:
    return f"event: {job.state}\ndata: {as_json(job.model_dump())}\n\n"


def _download_headers(name: bytes) -> dict[str, str]:
    """Return the headers of a download: a browser saves the file, and never shows or runs it."""
    return {
        "accept-ranges": "bytes",
        "content-disposition": f"attachment; filename*=UTF-8''{quote_from_bytes(name, safe='')}",
        "content-security-policy": "default-src 'none'; sandbox",
        "content-type": "application/octet-stream",
    }


def _parts(
    stack: contextlib.ExitStack, file: StoredFile, first: bytes, span: ByteSpan
) -> Iterator[bytes]:
    """Yield the bytes of a range. Damage breaks the connection: the length is sent already."""
    with stack:
        at = span.begin + len(first)
        yield first
        while at < span.end:
            part = file.read(at, min(_PART_BYTES, span.end - at))
            at += len(part)
            yield part
