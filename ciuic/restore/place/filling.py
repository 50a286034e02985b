"""Writes the content of files: compares the present files, and writes the files that differ.

A file that is right already stays, with its inode (``present_files.py``). Other files are written
under temporary names and wait to be published (``temporary_files.py``). If a file has a reflink
copy, it shares the blocks of the copy. Otherwise its content comes from the store, in the order of
the chunks in the packs (``small_files.py``, ``large_files.py``).
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ciuic.restore.place.job import Job, Pass
from ciuic.restore.place.present_files import PresentFiles
from ciuic.restore.place.small_files import SmallFiles
from ciuic.restore.place.temporary_files import TemporaryFiles
from ciuic.source.freeze.interface import REFLINK_BYTES_MIN
from ciuic.system.buffers import prepare_for_bulk
from ciuic.system.workers.threads import Workers

__all__ = ["Filler"]

_WORKERS_MAX: Final = 8
_GATHERED_FILES: Final = 2048
_GATHERED_BYTES: Final = 64 * 1024 * 1024
_COMPARED_TOGETHER: Final = 64
_FEW: Final = 100
"""Fewer small files are placed before more memory is of use."""
_CLONED_TOGETHER: Final = 4


class Filler:
    """Fills files. One thread calls ``add`` and ``flush``; several threads do the work.

    Attributes:
        files: The files that were written and wait to be published.
        present: Compares the target with the snapshot.
    """

    def __init__(self, run: Pass) -> None:
        self._run = run
        # Twice the cores: while one thread decodes, another waits for the disk.
        count = min(_WORKERS_MAX, 2 * len(os.sched_getaffinity(0)))
        if run.store.bucket is not None:  # others wait for what is fetched
            count = _WORKERS_MAX
        self._workers = Workers(count, "restore")
        self.files = TemporaryFiles(run.ledger)
        self.present = PresentFiles(run, self.files)
        self._small = SmallFiles(run, self.files, self._workers)
        self._place_large: Callable[[Sequence[Job]], None] | None = None
        self._closing = contextlib.ExitStack()
        self._gathered: list[Job] = []
        self._gathered_bytes = 0

    def close(self) -> None:
        """End the threads and remove the files that were not published."""
        self._workers.close()
        self._closing.close()
        self.files.close()

    def add(self, job: Job) -> None:
        """Place a file, now or together with others."""
        self._gathered.append(job)
        if not job.entry.level:
            self._gathered_bytes += job.entry.size_bytes
        if len(self._gathered) >= _GATHERED_FILES or self._gathered_bytes >= _GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Place the files that were gathered."""
        jobs, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if len(jobs) > _FEW:
            prepare_for_bulk()
        unsettled = self._unsettled(jobs)
        self._small.place([job for job in unsettled if not job.entry.level])
        large = [job for job in unsettled if job.entry.level]
        if large:
            self._large()(large)
        self._run.ledger.show_progress(jobs[-1].path if jobs else b"")

    def _large(self) -> Callable[[Sequence[Job]], None]:
        if self._place_large is None:
            # Imported here because a restore of small files is short.
            from ciuic.restore.place.large_files import LargeFiles

            prepare_for_bulk()
            large = LargeFiles(self._run, self.files, self.present, self._workers)
            self._closing.callback(large.close)
            self._place_large = large.place_all
        return self._place_large

    def _unsettled(self, jobs: list[Job]) -> list[Job]:
        """Keep the files that are right, write files with a reflink copy; return the others."""
        self._run.check_cancelled()
        light = [job for job in jobs if job.entry.size_bytes < REFLINK_BYTES_MIN]
        heavy = [job for job in jobs if job.entry.size_bytes >= REFLINK_BYTES_MIN]
        # A light file has no reflink copy; without a present file there is nothing to compare.
        new = [job for job in light if job.present is None]
        compared = [job for job in light if job.present is not None]
        parts = [*_parts(compared, _COMPARED_TOGETHER), *_parts(heavy, _CLONED_TOGETHER)]
        return new + [job for rest in self._workers.map(self._settle, parts) for job in rest]

    def _settle(self, jobs: list[Job]) -> list[Job]:
        self._run.check_cancelled()
        return [job for job in jobs if not self.present.settle(job)]


def _parts(jobs: list[Job], count: int) -> Iterator[list[Job]]:
    for at in range(0, len(jobs), count):
        yield jobs[at : at + count]
