"""The application: the API, the page and its static files; ``Admission`` wraps all of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from starlette.applications import Starlette

from ciuic.copy.read_through import CopySource
from ciuic.report.doctor.findings import Subject
from ciuic.store.place.location import PlaceOptions
from ciuic.system.buffers import keep_little
from ciuic.system.clock import Clock
from ciuic.web.admission import Admission
from ciuic.web.api import Api
from ciuic.web.history.runs import Runs
from ciuic.web.history.timelines import Timelines
from ciuic.web.jobs.jobs import Jobs
from ciuic.web.pages import Pages
from ciuic.web.reading import Reading
from ciuic.web.statics import Statics

__all__ = ["App", "make_app"]


class App(NamedTuple):
    """The application, with the parts that its server needs.

    ``prepare`` begins the work that takes long at the first request.
    """

    admission: Admission
    jobs: Jobs
    prepare: Callable[[], None]


def make_app(
    store_path: str,
    subject: Callable[[], Subject],
    *,
    logs: Sequence[bytes] = (),
    words: Callable[[], Sequence[bytes]] = tuple,
    clock: Clock,
    is_ending: Callable[[], bool],
    options: PlaceOptions | None = None,
    copies: Callable[[], Sequence[CopySource]] = tuple,
    names: Sequence[str] = (),
    is_encrypted: bool = False,
) -> App:
    """Return the application for a store.

    Args:
        store_path: The store's directory, or the URL of its bucket.
        subject: Returns what ``doctor`` examines.
        logs: Logs of training programs, or patterns that name several.
        words: Returns what a command needs before its name to find the store and its configuration.
        clock: Tells the time.
        is_ending: Whether the server is about to end.
        options: How to reach the bucket.
        copies: Returns the copies, which have what is lost here.
        names: Names of this machine under which the page is reached, besides those of loopback.
        is_encrypted: Requests come over TLS.
    """
    keep_little()
    reading = Reading(store_path, subject, clock, options, copies)
    jobs = Jobs(store_path, clock, options, words, reading.changed, copies=copies, logs=logs)
    timelines = Timelines(reading, logs, clock)
    runs = Runs(reading)
    statics = Statics()
    pages = Pages(reading, timelines, runs, jobs, statics.address)
    routes = [
        *Api(reading, timelines, runs, jobs, is_ending).routes(),
        *pages.routes(),
        statics.route(),
    ]
    inner = Starlette(
        routes=routes, exception_handlers={404: pages.missing, 405: pages.not_allowed}
    )

    def prepare() -> None:
        pages.prepare()
        reading.prepare()
        timelines.prepare()

    return App(Admission(inner, names, is_encrypted=is_encrypted), jobs, prepare)
