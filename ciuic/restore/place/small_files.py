"""Files of one chunk: those that differ are written from the store, a frame at a time."""

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.restore.place.job import Job, Pass
from ciuic.restore.place.temporary_files import TOGETHER, TemporaryFiles
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records.kinds import DATA, check_chunk
from ciuic.system.workers.threads import Workers

__all__ = ["SmallFiles"]

_Places = dict[ChunkId, ChunkPlace]
_MISSING: Final = "its content is missing from the store"


class SmallFiles:
    """Writes files of one chunk. Each frame is read once, in the order of the packs."""

    def __init__(self, run: Pass, files: TemporaryFiles, workers: Workers) -> None:
        self._run = run
        self._reader = run.store.reader
        self._files = files
        self._workers = workers

    def place(self, jobs: list[Job]) -> None:
        """Write files that differ, or count them (dry run)."""
        if self._run.dry_run:
            for job in jobs:
                self._run.ledger.would_write(job.path, job.entry)
            return
        empty = [job for job in jobs if not job.entry.content]
        parts = [empty[at : at + TOGETHER] for at in range(0, len(empty), TOGETHER)]
        self._workers.run_all([functools.partial(self._write_empty, part) for part in parts])
        self._place_filled(self._without_lost([job for job in jobs if job.entry.content]))

    def _without_lost(self, jobs: list[Job]) -> list[Job]:
        """Report the files whose chunk is known to be lost; return the others."""
        left = []
        for job in jobs:
            why = self._reader.failures.get(job.chunk_id)
            if why is None:
                left.append(job)
            else:
                self._run.ledger.lost(job.path, why)
        return left

    def _place_filled(self, jobs: list[Job]) -> None:
        places = self._reader.places([job.chunk_id for job in jobs])
        frames: dict[tuple[PackId, int], list[Job]] = defaultdict(list)
        missing: list[Job] = []
        for job in jobs:
            place = places.get(job.chunk_id)
            if place is not None:
                frames[place.pack_id, place.offset_bytes].append(job)
            elif self._reader.elsewhere is not None:
                missing.append(job)
            else:
                self._run.ledger.lost(job.path, _MISSING)
        ordered = [frames[key] for key in sorted(frames)]
        tasks = [functools.partial(self._write_frame, group, places) for group in ordered]
        tasks += [functools.partial(self._write_missing, job) for job in missing]
        self._workers.run_all(tasks)

    def _write_missing(self, job: Job) -> None:
        """Write a file whose chunk is in no pack, if it is elsewhere."""
        try:
            found = self._checked(job, memoryview(b""))
        except (CorruptionError, UnknownFormatError):
            self._run.ledger.lost(job.path, _MISSING)
        else:
            self._write([(job, found)])

    def _write_frame(self, jobs: Sequence[Job], places: _Places) -> None:
        """Write all files whose content is in one frame."""
        try:
            _, plain = self._reader.frame(places[jobs[0].chunk_id])
        except (CorruptionError, UnknownFormatError):
            plain = b""
        view = memoryview(plain)
        ready: list[tuple[Job, bytes | memoryview]] = []
        for job in jobs:
            place = places[job.chunk_id]
            part = view[place.start_bytes : place.start_bytes + place.length_bytes]
            try:
                ready.append((job, self._checked(job, part)))
            except (CorruptionError, UnknownFormatError) as error:
                self._run.ledger.lost(job.path, error.message)
            if len(ready) == TOGETHER:
                self._write(ready)
                ready = []
        self._write(ready)

    def _write_empty(self, jobs: Sequence[Job]) -> None:
        self._write([(job, b"") for job in jobs])

    def _checked(self, job: Job, part: memoryview) -> bytes | memoryview:
        """Return the content of a small file: from its frame if sound, else from any other source.

        Raises:
            CorruptionError: No source has the chunk, or its length is not that of the file.
        """
        found: bytes | memoryview = part
        try:
            check_chunk(DATA, job.chunk_id, part)
        except CorruptionError:
            found = self._reader.chunk(job.chunk_id, kind=DATA)
        if len(found) != job.entry.size_bytes:
            raise CorruptionError("its content does not have the length of the file")
        return found

    def _write(self, files: Sequence[tuple[Job, bytes | memoryview]]) -> None:
        # A frame, and a batch of empty files, may take seconds on a busy file system.
        self._run.check_cancelled()
        self._files.write_together(files)
