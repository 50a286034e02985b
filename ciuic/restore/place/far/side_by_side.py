"""Large files from a bucket, several at once: each part of a pack is fetched once, and soon done.

A snapshot reads several files at once, so its packs have their chunks in turn. One file after the
other would need what was fetched for the first again for the second.
"""

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.restore.place.far.written_chunks import WrittenChunks
from ciuic.restore.place.job import Job, Pass
from ciuic.restore.place.output import Output, open_direct
from ciuic.restore.place.target import target_faults
from ciuic.restore.place.temporary_files import TemporaryFiles
from ciuic.store.records.kinds import ALONE_BYTES
from ciuic.store.records.recipe_nodes import Piece
from ciuic.system.workers.threads import Workers
from ciuic.view.chunk_plan import Part, group_by_frame, read_parts, windows

__all__ = ["SideBySide"]

_SIDE_BY_SIDE: Final = 4
"""Files at once. A snapshot reads two large ones at once, and begins the next when one ends."""


class _File(NamedTuple):
    """A file that is written.

    Attributes:
        job: The file.
        output: Takes its bytes.
        number: Of the file in the chunks that were written.
    """

    job: Job
    output: Output
    number: int


class _FilePart(NamedTuple):
    """A part of one of the files."""

    offset: int
    piece: Piece
    file: _File


class SideBySide:
    """Writes new files of many chunks, several at once."""

    def __init__(self, run: Pass, files: TemporaryFiles, workers: Workers) -> None:
        self._run = run
        self._reader = run.store.reader
        self._files = files
        self._workers = workers
        self._written = WrittenChunks()
        self._read_frames: set[tuple[PackId, int]] = set()
        self._lock = threading.Lock()
        self._begun_bytes = 0

    def close(self) -> None:
        """Forget what was written."""
        self._written.close()

    def chosen(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the first of these files that can be written side by side.

        A file that has the name now may be right. A file whose chunks are deltas against another
        file is written after that one, and reads them from it.
        """
        found: list[Job] = []
        known: set[ChunkId] = set()
        for job in itertools.takewhile(lambda job: job.present is None, jobs):
            ids = {part.piece.id for part in self._first([job])}
            places = self._reader.places([one for one in ids if one]).values()
            if len(found) == _SIDE_BY_SIDE or any(
                base in known for place in places for base in place.delta_bases
            ):
                break
            found.append(job)
            known |= ids
        return found

    def place(self, jobs: Sequence[Job], following: Sequence[Job]) -> bool:
        """Write files.

        Args:
            jobs: The files: see ``chosen``.
            following: The files that are written next.

        Returns:
            False if one of them cannot be written: none of them is then, and each is to be written
            alone.
        """
        self._begun_bytes = 0
        before, is_written = self._written.last, False
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            is_written = self._files.write_side_by_side(
                jobs, lambda fds: self._fill(jobs, fds, following)
            )
        if not is_written:
            self._written.forget_after(before)
        return is_written

    def _fill(self, jobs: Sequence[Job], fds: Sequence[int], following: Sequence[Job]) -> None:
        files: list[_File] = []
        try:
            for job, fd in zip(jobs, fds, strict=True):
                os.ftruncate(fd, job.entry.size_bytes)
                output = Output(fd, open_direct(fd, job.entry.size_bytes))
                files.append(_File(job, output, self._written.add_file(fd)))
            for parts, upcoming in _with_next(self._rounds(files), self._first(following)):
                self._write_round(parts, upcoming)
                self._end_round(files, parts)
        finally:
            for file in files:
                file.output.close()

    def _rounds(self, files: Sequence[_File]) -> Iterator[list[_FilePart]]:
        """Yield the first windows of all files, then their second ones, and so on."""
        of_files = [windows(self._reader, file.job.entry) for file in files]
        for found in itertools.zip_longest(*of_files, fillvalue=()):
            yield [
                _FilePart(*part, file)
                for file, window in zip(files, found, strict=True)
                for part in window
                if part.piece.id
            ]

    def _first(self, jobs: Sequence[Job]) -> list[Part]:
        """Return the first windows of files; empty if one cannot be read: its turn will come."""
        try:
            found = [next(windows(self._reader, job.entry), []) for job in jobs]
        except (CorruptionError, UnknownFormatError):
            return []
        return list(itertools.chain.from_iterable(found))

    def _write_round(
        self, parts: Sequence[_FilePart], upcoming: Sequence[_FilePart | Part]
    ) -> None:
        groups = group_by_frame(self._reader, parts, written=self._written)
        # What follows is fetched while the end of this round is decoded.
        ids = {part.piece.id for part in upcoming if part.piece.id}
        wanted = [one for one in ids if one not in self._written]
        self._reader.read_ahead(self._reader.places(wanted).values())
        self._workers.run_all([functools.partial(self._write, group) for group in groups])

    def _end_round(self, files: Iterable[_File], parts: Iterable[_FilePart]) -> None:
        for file in files:
            with target_faults(file.job.place):
                file.output.write_edges()
        for number, found in itertools.groupby(parts, key=lambda part: part.file.number):
            self._written.add(number, [Part(part.offset, part.piece) for part in found])

    def _write(self, group: Sequence[_FilePart]) -> None:
        """Write the parts of one frame."""
        self._run.check_cancelled()
        if len(group) > 1 or not self._write_straight(group[0]):
            self._write_decoded(group)
        with self._lock:
            self._begun_bytes += sum([part.piece.length_bytes for part in group])
        self._run.ledger.show_progress(group[0].file.job.path, self._begun_bytes)

    def _write_decoded(self, group: Sequence[_FilePart]) -> None:
        for file, parts in itertools.groupby(group, key=lambda part: part.file):
            for offset, plain in read_parts(self._reader, [Part(*part[:2]) for part in parts]):
                with target_faults(file.job.place):
                    file.output.write(plain, offset)
        self._done(group[0].piece.id)

    def _done(self, chunk_id: ChunkId) -> None:
        """Say that a frame was read. A chunk of it may be read again for a later file."""
        place = self._reader.prepared.get(chunk_id)
        if place is not None and (place.pack_id, place.offset_bytes) not in self._read_frames:
            self._read_frames.add((place.pack_id, place.offset_bytes))
            self._reader.done(place)

    def _write_straight(self, part: _FilePart) -> bool:
        """Decode a chunk to where it is written from; False if it is a slice, or damaged."""
        offset, piece, file = part
        if piece.start_bytes or piece.length_bytes < ALONE_BYTES:
            return False
        with file.output.memory(piece.length_bytes, offset) as plain:
            if plain is None:
                return False
            if not self._reader.read_into(piece.id, plain, written=self._written):
                return False
            with target_faults(file.job.place):
                file.output.write(plain, offset, is_lent=True)
        return True


def _with_next(
    rounds: Iterator[list[_FilePart]], after: Sequence[Part]
) -> Iterator[tuple[list[_FilePart], Sequence[_FilePart | Part]]]:
    """Yield each round with the one after it."""
    this = next(rounds, None)
    while this is not None:
        following = next(rounds, None)
        yield this, after if following is None else following
        this = following
