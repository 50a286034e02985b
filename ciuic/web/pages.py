"""The page: HTML of what the API answers. It changes the store only through the API.

Every value of a template is escaped twice: invisible characters by ``shown``, markup by Jinja. So
a name cannot run a script, even if a template forgets ``shown``.
"""

import os
from collections.abc import Callable
from datetime import datetime
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ciuic.errors import CiuicError, PathNotFoundError, UsageError
from ciuic.hints import aim, aimed
from ciuic.units import counted, format_bytes, format_duration
from ciuic.web.answers import SKIP_MAX, Query, as_json, error_answer, from_system, status_of
from ciuic.web.history.runs import RUNS_MIN, Runs, bests
from ciuic.web.history.timelines import Timelines
from ciuic.web.jobs.jobs import Jobs
from ciuic.web.models import Job, TreePage
from ciuic.web.reading import Reading
from ciuic.web.shown import address, by_day, farthest, heat, ladder, local_time, meant, shown
from ciuic.web.works import (
    PATHS_MAX,
    CompareRunsWork,
    CompareWork,
    ForgetWork,
    RestoreWork,
    TagWork,
)

__all__ = ["Pages"]

_ROWS: Final = 100
_STEPS: Final = 20


class Pages:
    """Answers the requests for pages.

    Args:
        reading: Reads the store.
        timelines: Reads the logs of a training.
        runs: Compares runs.
        jobs: The jobs to show.
        static: Returns the address of a static file.
    """

    def __init__(
        self,
        reading: Reading,
        timelines: Timelines,
        runs: Runs,
        jobs: Jobs,
        static: Callable[[str], str],
    ) -> None:
        self._reading = reading
        self._timelines = timelines
        self._runs_reading = runs
        self._jobs = jobs
        self._templates = Environment(
            loader=PackageLoader("ciuic.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalize,
        )
        self._templates.filters |= {
            "aimed": lambda text: aimed(text, jobs.options()),
            "bytes": format_bytes,
            "command": lambda text: jobs.reading(*os.fsencode(text).split()),
            "counted": counted,
            "duration": format_duration,
            "days": by_day,
            "farthest": farthest,
            "heat": heat,
            "name": os.path.basename,
            "job": lambda work: as_json(work.model_dump()),
            "line": jobs.command,
            "shown": shown,
            "side": lambda line: {b"+": "added", b"-": "removed"}.get(line[:1], ""),
            "time": local_time,
        }
        self._templates.globals |= {
            "address": address,
            "ladder": ladder,
            "static": static,
            "untag": _untag,
        }

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        timelines, runs = self._timelines.turns, self._runs_reading.turns
        return [
            Route("/", self._answering(self._overview)),
            Route("/snapshots", self._answering(self._snapshots)),
            Route("/snapshots/{id}", self._answering(self._snapshot)),
            Route("/snapshots/{id}/restore", self._answering(self._restore)),
            Route("/timeline", timelines.taking(self._answering(self._timeline))),
            Route("/compare", timelines.taking(self._answering(self._compare))),
            Route("/runs", runs.taking(self._answering(self._runs))),
            Route("/store", self._answering(self._store)),
            Route("/diff", self._answering(self._diff)),
            Route("/jobs", self._answering(self._all_jobs)),
            Route("/jobs/{id}", self._answering(self._job)),
        ]

    def prepare(self) -> None:
        """Compile the templates, which takes as long as several requests."""
        for name in self._templates.list_templates():
            self._templates.get_template(name)

    def missing(self, request: Request, _error: Exception) -> Response:
        """Answer a request for a page that does not exist."""
        if request.url.path.startswith("/v1/"):
            what = "the API has no such request"
            return error_answer(PathNotFoundError(what, hint="See /v1/openapi.json."))
        return self._failed(PathNotFoundError("there is no such page", hint=""), 404)

    def not_allowed(self, request: Request, error: Exception) -> Response:
        """Answer a request with a method that its path does not have."""
        what = f"{request.url.path} does not accept {request.method}"
        answer = error_answer(UsageError(what, hint="See /v1/openapi.json."), 405)
        answer.headers.update(getattr(error, "headers", None) or {})
        return answer

    def _answering(self, handler: Callable[[Request], str]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            try:
                with self._reading.noting_copies():
                    return HTMLResponse(handler(request))
            except CiuicError as error:
                aim(error, self._jobs.options())
                return self._failed(error, status_of(error))
            except OSError as error:
                found = from_system(error)
                return self._failed(found, status_of(found))

        return answer

    def _failed(self, error: CiuicError, status: int) -> Response:
        text = self._page("error.html", error=error, here="", status=status)
        return HTMLResponse(text, status)

    def _page(self, template: str, **values: object) -> str:
        copies_read = self._reading.copies_read()
        return self._templates.get_template(template).render(copies_read=copies_read, **values)

    def _overview(self, _request: Request) -> str:
        running = [job for job in self._jobs.all() if job.state == "running"]
        found = self._reading.overview()
        return self._page("overview.html", here="overview", overview=found, running=running)

    def _snapshots(self, request: Request) -> str:
        query = Query(request)
        text, after = query.text("text").strip(), query.text("after")
        found = self._reading.snapshots(after=after, text=text, count=_ROWS)
        return self._page("snapshots.html", here="snapshots", page=found, text=text, after=after)

    def _snapshot(self, request: Request) -> str:
        query = Query(request)
        found = self._reading.snapshot(request.path_params["id"])
        path = query.path("path", b"/")
        tree = self._reading.tree(found.snapshot.id, path, after=query.path("after"), count=_ROWS)
        changes = None
        is_top = "path" not in request.query_params
        if found.before is not None and is_top:
            changes = self._reading.changes(found.before, found.snapshot.id, count=20)
        return self._page(
            "snapshot.html",
            here="snapshots",
            detail=found,
            snapshot=found.snapshot,
            why={one.path: one.what.removeprefix(b"in flux: ") for one in found.trouble},
            changes=changes,
            **_browsed(tree, path),
        )

    def _restore(self, request: Request) -> str:
        query = Query(request)
        found = self._reading.snapshot(request.path_params["id"])
        path = query.path("path", b"/")
        tree = self._reading.tree(found.snapshot.id, path, count=1)
        # Above the roots, the entries are the roots.
        paths = [path] if tree.entry is not None else [root.path for root in tree.entries]
        work = RestoreWork(do="restore", snapshot=found.snapshot.id, paths=paths)
        return self._page("restore.html", here="snapshots", snapshot=found.snapshot, work=work)

    def _diff(self, request: Request) -> str:
        query = Query(request)
        skip = query.number("skip", 0, number_min=0, number_max=SKIP_MAX)
        found = self._reading.changes(
            query.needed("before"), query.needed("after"), skip=skip, count=_ROWS
        )
        line = self._jobs.reading(b"diff", found.before.encode(), found.after.encode())
        return self._page("diff.html", here="snapshots", page=found, rows=_ROWS, line=line)

    def _store(self, _request: Request) -> str:
        kept = [job for job in self._jobs.all() if job.work.do in {"stats", "forget"}]
        return self._page("store.html", here="store", space=self._reading.space(), jobs=kept)

    def _timeline(self, request: Request) -> str:
        field = Query(request).text("field")
        found = self._timelines.timeline(field)
        return self._page("timeline.html", here="timeline", timeline=found, rows=_ROWS)

    def _compare(self, request: Request) -> str:
        names = Query(request).texts("id")
        found = self._timelines.compare(names).snapshots
        metrics = dict.fromkeys(metric.name for one in found for metric in one.metrics)
        values = [{metric.name: metric.value for metric in one.metrics} for one in found]
        return self._page(
            "compare.html",
            here="timeline",
            snapshots=found,
            metrics=metrics,
            values=values,
            work=CompareWork(do="compare", snapshots=[one.snapshot.id for one in found])
            if len(found) > 1
            else None,
        )

    def _runs(self, request: Request) -> str:
        query = Query(request)
        names = [name for name in query.texts("run") if name]
        best, field = query.text("best"), query.text("field")
        found = None
        if len(names) >= RUNS_MIN:
            found = self._runs_reading.compare(names, best=best, field=field, rows=_STEPS)
            # A form has sent names with escapes, as they are shown.
            names = [os.fsdecode(one.run) for one in found.runs]
            best = meant(best, bests(map(os.fsdecode, found.fields)))
        chosen = [] if found is None else [one.chosen for one in found.runs]
        return self._page(
            "runs.html",
            here="runs",
            known=self._runs_reading.known().runs,
            names=[os.fsencode(name) for name in names],
            best=best,
            comparison=found,
            chosen=chosen,
            metrics=dict.fromkeys(metric.name for one in chosen for metric in one.metrics),
            values=[{metric.name: metric.value for metric in one.metrics} for one in chosen],
            work=None
            if found is None
            else CompareRunsWork(
                do="compare_runs",
                runs=[one.run for one in found.runs],
                best=os.fsencode(best) if best else None,
            ),
        )

    def _all_jobs(self, _request: Request) -> str:
        return self._page("jobs.html", here="jobs", jobs=self._jobs.all())

    def _job(self, request: Request) -> str:
        job = self._jobs.get(request.path_params["id"])[1]
        again = None
        is_plan = isinstance(job.work, RestoreWork | ForgetWork) and job.work.dry_run
        if is_plan and job.state == "done" and _has_work(job):
            again = job.work.model_copy(update={"dry_run": False, **_chosen(job)})
        return self._page(
            "job.html",
            here="jobs",
            job=job,
            again=again,
            is_plan=is_plan,
            took_s=_seconds(job.began, job.ended),
        )


def _browsed(tree: TreePage, path: bytes) -> dict[str, object]:
    """Return what the template of a directory or a file needs."""
    entry = tree.entry
    is_file = entry is not None and entry.type != "directory"
    return {"tree": tree, "entry": entry, "path": path, "is_file": is_file}


def _untag(snapshot_id: str, tag: bytes) -> TagWork:
    return TagWork(do="tag", snapshot=snapshot_id, remove=[tag])


def _has_work(job: Job) -> bool:
    """Return whether carrying a plan out would change anything."""
    return job.work.do != "forget" or bool((job.report or {}).get("forgotten"))


def _chosen(job: Job) -> dict[str, object]:
    """Return the names of what a plan forgets: later, the policy may choose other snapshots."""
    report = job.report or {}
    forgotten = report.get("forgotten") if job.work.do == "forget" else None
    if not isinstance(forgotten, list) or len(forgotten) > PATHS_MAX:
        return {}
    return {"snapshots": [one["id"] for one in forgotten]}


def _seconds(began: str, ended: str | None) -> float | None:
    if ended is None:
        return None
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def _finalize(value: object) -> object:
    # Markup is a string of Jinja's own: what a macro has written.
    is_markup = hasattr(value, "__html__")
    return shown(value) if isinstance(value, str | bytes) and not is_markup else value
