"""``Job``: a request for a snapshot."""

import os
import threading

from ciuic.control import Document
from ciuic.errors import CiuicError
from ciuic.model import DAEMON, ExcludeRules
from ciuic.snapshot.pace.pacer import Pacer
from ciuic.snapshot.report import TakeReport

__all__ = ["Job"]


class Job:
    """A request for a snapshot, shared by the thread that waits and the thread that takes it.

    Attributes:
        base: Take a full snapshot.
        tags: The tags of the snapshot.
        scope: Roots and exclude rules; None: those of the configuration.
        origin: What asked for it.
        schedule: The schedule that it belongs to. None: the first one if ``scope`` is None, else
            no schedule.
        names_schedule: The log says the name, because there are several schedules.
        pacer: Slows its readers down; None: they read at full speed.
        has_store: The child process that takes it has opened the store, and holds no lock that
            another one needs.
    """

    def __init__(
        self,
        *,
        base: bool = False,
        tags: tuple[str, ...] = (),
        scope: tuple[tuple[bytes, ...], ExcludeRules] | None = None,
        origin: str = DAEMON,
        schedule: str | None = None,
    ) -> None:
        self.base = base
        self.tags = tags
        self.scope = scope
        self.origin = origin
        self.schedule = schedule
        self.names_schedule = False
        self.pacer: Pacer | None = None
        self.has_store = False
        self._progress: Document = {"state": "waiting"}
        self._done = threading.Event()
        self._outcome: TakeReport | CiuicError | None = None

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """See ``ciuic.progress.Progress``."""
        name = os.fsdecode(path)
        self._progress = {"state": "taking", "files": files, "bytes": size_bytes, "path": name}

    def show(self, progress: Document) -> None:
        """Take over the progress that the process which takes the snapshot has told."""
        self._progress = progress

    @property
    def progress(self) -> Document:
        """What a waiting client receives."""
        pacer, known = self.pacer, self._progress
        if pacer is None or known["state"] != "taking":
            return known
        return known | {
            "waited_s": round(pacer.waited_s, 3),
            "pressure": round(pacer.pressure, 3),
            "rate_bytes": None if pacer.rate_bytes is None else round(pacer.rate_bytes),
        }

    def finish(self, outcome: TakeReport | CiuicError) -> None:
        """Wake the waiting threads; only the first outcome counts."""
        if not self._done.is_set():
            self._outcome = outcome
            self._done.set()

    @property
    def is_finished(self) -> bool:
        """Whether there is an outcome."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> TakeReport | CiuicError | None:
        """Return the outcome; None if there is none within ``timeout_s``."""
        self._done.wait(timeout_s)
        return self._outcome
