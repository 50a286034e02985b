"""Files of many chunks: the kernel copies the ranges that are right, the rest is written.

The kernel shares the blocks of copied ranges on btrfs and XFS. New data goes past the page cache
where the file system allows it.
"""

import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.restore.place.far.side_by_side import SideBySide
from ciuic.restore.place.job import Job, Pass, open_present
from ciuic.restore.place.output import Output, open_direct
from ciuic.restore.place.present_files import PresentFiles
from ciuic.restore.place.target import target_faults
from ciuic.restore.place.temporary_files import TemporaryFiles
from ciuic.source.stability import same_content
from ciuic.store.records.kinds import ALONE_BYTES
from ciuic.system.workers.threads import Workers
from ciuic.view.chunk_plan import Part, group_by_frame, matching_parts, read_parts, windows

__all__ = ["LargeFiles"]

_COPIED_TOGETHER_BYTES: Final = 32 * 1024 * 1024


class _Present(NamedTuple):
    """The file that has the name now.

    Attributes:
        fd: The open file; -1 if there is none.
        status: Its status before it was compared.
        is_right: One byte for each piece of the new file: 1 if this file has the same bytes at
            the same place. Empty without a file.
    """

    fd: int
    status: os.stat_result | None
    is_right: bytearray

    def is_same(self, size_bytes: int) -> bool:
        """Return whether all pieces are right, and nothing follows them."""
        has_size = self.status is not None and self.status.st_size == size_bytes
        return has_size and all(self.is_right)

    def has_changed(self) -> bool:
        """Return whether a program has written to the file since it was compared."""
        return self.status is not None and not same_content(self.status, os.fstat(self.fd))


class LargeFiles:
    """Places files of many chunks, one after another; several threads work on each."""

    def __init__(
        self, run: Pass, files: TemporaryFiles, present: PresentFiles, workers: Workers
    ) -> None:
        self._run = run
        self._reader = run.store.reader
        self._files = files
        self._present = present
        self._workers = workers
        # A disk reads a part of a pack again at less cost.
        is_far = run.store.bucket is not None and not run.dry_run
        self._side_by_side = SideBySide(run, files, workers) if is_far else None

    def close(self) -> None:
        """Forget what was written."""
        if self._side_by_side is not None:
            self._side_by_side.close()

    def place_all(self, jobs: Sequence[Job]) -> None:
        """Place files, each as ``place`` does."""
        far = self._side_by_side
        if far is None or not self._reader.failures.is_empty:
            for job in jobs:
                self.place(job)
            return
        batch = far.chosen(jobs)
        left = list(jobs)
        while left:
            alone, left = (batch, left[len(batch) :]) if batch else (left[:1], left[1:])
            following = far.chosen(left)
            self._run.check_cancelled()
            if not batch or not far.place(batch, following):
                for job in alone:
                    self.place(job)
            batch = following

    def place(self, job: Job) -> None:
        """Keep the file if it is right; else write it, or count it (dry run)."""
        fd = open_present(job)
        try:
            status = os.fstat(fd) if fd >= 0 else None
            present = _Present(fd, status, self._compare(job, fd))
            if present.is_same(job.entry.size_bytes) and self._present.keep(job, fd):
                return
            if self._run.dry_run:
                cloned_bytes = self._right_bytes(job, present.is_right)
                self._run.ledger.would_write(job.path, job.entry, cloned_bytes=cloned_bytes)
                return
            self._refuse_lost(job, present.is_right)
            self._files.write(job, lambda new_fd: self._fill(job, new_fd, present))
        except (CorruptionError, UnknownFormatError) as error:
            self._run.ledger.lost(job.path, error.message)
        finally:
            if fd >= 0:
                os.close(fd)

    def _compare(self, job: Job, fd: int) -> bytearray:
        """Return a byte for each piece: 1 if the open file has the same bytes at the same place."""
        is_right = bytearray()
        if fd >= 0:
            for window in windows(self._reader, job.entry):
                self._run.check_cancelled()
                is_right.extend(matching_parts(self._reader, self._workers, fd, window))
        return is_right

    def _right_bytes(self, job: Job, is_right: bytearray) -> int:
        if not is_right:
            return 0
        pairs = zip(self._parts(job), is_right, strict=True)
        return sum([part.piece.length_bytes for part, same in pairs if same and part.piece.id])

    def _refuse_lost(self, job: Job, is_right: bytearray) -> None:
        """Refuse a file that needs a chunk that is known to be lost, before anything is written.

        Raises:
            CorruptionError: A chunk is lost, or the recipe is damaged.
        """
        failures = self._reader.failures
        if failures.is_empty:
            return
        flags = itertools.chain(is_right, itertools.repeat(0))
        for part, same in zip(self._parts(job), flags, strict=False):
            why = None if same else failures.get(part.piece.id)
            if why is not None:
                raise CorruptionError(why)

    def _parts(self, job: Job) -> Iterator[Part]:
        return itertools.chain.from_iterable(windows(self._reader, job.entry))

    def _fill(self, job: Job, fd: int, present: _Present) -> int:
        """Write a file from the store and from the present file; return the bytes copied."""
        cloned_bytes = self._fill_windows(job, fd, present)
        if cloned_bytes and present.has_changed():
            # The bytes that were copied may differ from those that were compared.
            os.ftruncate(fd, 0)
            return self._fill_windows(job, fd, _Present(-1, None, bytearray()))
        return cloned_bytes

    def _fill_windows(self, job: Job, fd: int, present: _Present) -> int:
        """Write the pieces of a file, a window at a time, each in the order of the packs."""
        os.ftruncate(fd, job.entry.size_bytes)
        output = Output(fd, open_direct(fd, job.entry.size_bytes))
        cloned_bytes = number = 0
        try:
            for window in windows(self._reader, job.entry):
                self._run.check_cancelled()
                flags = present.is_right[number : number + len(window)] or bytes(len(window))
                number += len(window)
                pairs = [pair for pair in zip(window, flags, strict=True) if pair[0].piece.id]
                copied = [part for part, same in pairs if same]
                fresh = [part for part, same in pairs if not same]
                self._write_window(job, output, present.fd, copied, fresh)
                with target_faults(job.place):
                    output.write_edges()
                cloned_bytes += sum([part.piece.length_bytes for part in copied])
                end_bytes = window[-1].offset + window[-1].piece.length_bytes
                self._run.ledger.show_progress(job.path, end_bytes)
        finally:
            output.close()
        return cloned_bytes

    def _write_window(
        self, job: Job, output: Output, present_fd: int, copied: list[Part], fresh: list[Part]
    ) -> None:
        def copy(offset: int, length_bytes: int) -> None:
            output.copy(present_fd, offset, length_bytes)

        def write(group: list[Part]) -> None:
            if self._write_straight(job, output, group):
                return
            for offset, plain in read_parts(self._reader, group):
                with target_faults(job.place):
                    output.write(plain, offset)

        tasks = [functools.partial(copy, *stretch) for stretch in _stretches(copied)]
        groups = group_by_frame(self._reader, fresh)
        self._workers.run_all(tasks + [functools.partial(write, group) for group in groups])

    def _write_straight(self, job: Job, output: Output, group: list[Part]) -> bool:
        """Decode a chunk to where it is written from; False if there are slices, or damage."""
        offset, piece = group[0]
        if len(group) > 1 or piece.start_bytes or piece.length_bytes < ALONE_BYTES:
            return False
        with output.memory(piece.length_bytes, offset) as plain:
            if plain is None or not self._reader.read_into(piece.id, plain):
                return False
            with target_faults(job.place):
                output.write(plain, offset, is_lent=True)
        return True


def _stretches(parts: Iterable[Part]) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each run of adjacent parts, up to a useful length."""
    begin = end = 0
    for offset, piece in parts:
        if offset != end or end - begin >= _COPIED_TOGETHER_BYTES:
            if end > begin:
                yield begin, end - begin
            begin = offset
        end = offset + piece.length_bytes
    if end > begin:
        yield begin, end - begin
