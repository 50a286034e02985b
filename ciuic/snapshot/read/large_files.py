"""Store large files, block by block: a frozen file is read once, a live one until it is stable."""

import contextlib
from collections.abc import Iterable, Iterator

from ciuic.chunking import Chunker
from ciuic.errors import SourceError, TornReadError, VanishedError
from ciuic.formats.headers import Span
from ciuic.model import BEING_WRITTEN, CONSISTENT, Entry
from ciuic.snapshot.bases.delta_base import DeltaBases
from ciuic.snapshot.bases.last_version import LastVersion
from ciuic.snapshot.read.changed_ranges import Gap, Kept
from ciuic.snapshot.read.chunk_pipeline import ChunkPipeline
from ciuic.snapshot.read.cutting import Cutter, Cutting
from ciuic.snapshot.read.opened_version import OpenedVersion
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.snapshot.read.recipe_reuse import Tracked, data_in, expected_pieces, plan_recipe, track
from ciuic.snapshot.read.recipe_writer import RecipeWriter
from ciuic.snapshot.read.source_file import Recipe, SourceFile
from ciuic.source.directory import read_xattrs
from ciuic.source.faults import source_faults
from ciuic.source.file import OpenFile
from ciuic.source.stability import ATTEMPTS, is_replaced

__all__ = ["LargeFiles"]


class LargeFiles:
    """Stores large files.

    Args:
        context: What the readers share.
        pipeline: Stores chunks.
    """

    def __init__(self, context: ReaderContext, pipeline: ChunkPipeline) -> None:
        self._context = context
        self._store = context.store
        self._pipeline = pipeline
        self._cutter = Cutter(context)

    def store(self, file: SourceFile) -> Entry | None:
        """Store a file; returns its entry, or None if the file has vanished.

        Raises:
            StoreError: The store failed.
            CancelledError: The snapshot was interrupted.
        """
        try:
            if not file.is_still:
                return self._store_live(file)
            with contextlib.closing(_open(file, uid=self._context.uid)) as opened:
                return self._store_frozen(file, opened)
        except SourceError as error:
            return self.unreadable(file, error)

    def unreadable(self, file: SourceFile, error: SourceError) -> Entry | None:
        """Return the entry of a file that cannot be read; None if it has vanished.

        If a live file is gone and has a frozen version, the frozen version is stored instead.
        """
        if file.frozen_directory is None:
            self._context.sinks.warn(file.path, error.message, False)
            return None if isinstance(error, VanishedError) else file.unreadable()
        frozen = file._replace(
            directory=file.frozen_directory, is_frozen=True, frozen_directory=None
        )
        entry = self.store(frozen)
        if entry is not None and entry.state == CONSISTENT:
            entry.state = BEING_WRITTEN
            inode = (file.status.st_dev, file.status.st_ino)
            what = "written shortly before the freeze, and gone since"
            self._context.sinks.being_written(file.path, inode, what)
        return entry

    def _store_frozen(self, file: SourceFile, opened: OpenFile) -> Entry:
        recipe = self._store_once(file, opened, track(self._store, file, opened))
        if file.reflink_copy is not None:
            return file.entry(recipe, file.reflink_copy.status, file.reflink_copy.xattrs)
        with source_faults():
            xattrs = read_xattrs(opened.fd)
        return file.entry(recipe, opened.before, xattrs)

    def _store_live(self, file: SourceFile) -> Entry:
        """Read a file in place; if the read was torn and the file replaced, open its name again."""
        for attempt in range(1, ATTEMPTS + 1):
            with contextlib.closing(_open(file, uid=self._context.uid)) as opened:
                recipe, is_torn = self._store_opened(file, opened)
                is_written = is_torn or opened.has_writer is True
                is_last = attempt == ATTEMPTS
                if is_written and not is_last and _is_replaced(file, opened):
                    continue
                self._context.note_capture()
                if is_written:
                    self._context.report_written(file, opened.before, is_torn=is_torn)
                with source_faults():
                    xattrs = read_xattrs(opened.fd)
                return file.entry(recipe, opened.before, xattrs, is_being_written=is_written)
        raise AssertionError("the last attempt returns")

    def _store_opened(self, file: SourceFile, opened: OpenFile) -> tuple[Recipe, bool]:
        """Store the content of an open file; also returns whether it changed in every attempt."""
        last: Recipe | None = None
        for attempt in range(1, ATTEMPTS + 1):
            recipe = self._store_once(file, opened, None)
            try:
                opened.check_unchanged(recipe.size_bytes, is_same=recipe == last)
            except TornReadError:
                if attempt < ATTEMPTS:
                    opened.look_again()
                last = recipe
            else:
                return recipe, False
        return recipe, True

    def _store_once(self, file: SourceFile, opened: OpenFile, tracked: Tracked | None) -> Recipe:
        """Store the data of a file, read once from its first byte to its last."""
        if tracked is not None and self._context.skip_unchanged:
            recipe = self._store_changes(file, opened, tracked)
            if recipe is not None:
                return recipe
        size_bytes = opened.before.st_size
        cutting = self._cutter.cutting(opened)
        expected = None
        if tracked is not None:
            expected = expected_pieces(self._store, tracked, size_bytes, cutting.chunker)
        writer = RecipeWriter(self._context.writer, expected)
        chunks = self._chunks(opened, cutting.chunker)
        base = self._delta_base(file, opened, cutting.spans)
        self._pipeline.store(writer, chunks, iter(()), base, cutting.chunker)
        if writer.missed is not None:
            what = (
                f"change tracking missed a change at byte {writer.missed}; this snapshot has the"
                " right bytes, but please report this bug"
            )
            self._context.sinks.warn(file.path, what, False)
        return writer.finish(0 if opened.ended_early else opened.before.st_size)

    def _store_changes(self, file: SourceFile, opened: OpenFile, tracked: Tracked) -> Recipe | None:
        """Read only the changed ranges; returns None if the store lacks an unchanged chunk."""
        # If no range has changed, nothing is cut, so no header needs to be read.
        cutting = self._cutter.cutting(opened) if tracked.changed else self._cutter.fixed
        plan = plan_recipe(self._store, tracked, opened.before.st_size, cutting.chunker)
        if plan is None:
            return None
        base = self._delta_base(file, opened, cutting.spans) if tracked.changed else None
        return self._store_plan(opened, plan, tracked, cutting, base)

    def _store_plan(
        self,
        opened: OpenFile,
        plan: list[Kept | Gap],
        tracked: Tracked,
        cutting: Cutting,
        delta_base: LastVersion | None,
    ) -> Recipe:
        writer = RecipeWriter(self._context.writer)
        chunker = cutting.chunker
        gaps = [part for part in plan if isinstance(part, Gap)]
        kept = iter([part for part in plan if isinstance(part, Kept)])
        gap_bytes = sum([gap.length_bytes for gap in gaps])
        self._context.handled(opened.before.st_size - gap_bytes)
        blocks = opened.scattered_blocks(data_in(gaps, tracked.data), chunker.block_end)
        chunks = chunker.chunks(self._counted(blocks))
        self._pipeline.store(writer, chunks, kept, delta_base, chunker)
        return writer.finish(opened.before.st_size)

    def _delta_base(
        self, file: SourceFile, opened: OpenFile, spans: tuple[Span, ...] | None
    ) -> LastVersion | None:
        if file.delta_bases is None:
            return None
        new = OpenedVersion(self._context, self._cutter, file, opened, spans)
        return DeltaBases(file.delta_bases).file(new)

    def _chunks(self, opened: OpenFile, chunker: Chunker) -> Iterator[tuple[int, memoryview]]:
        for extent in opened.extents():
            yield from chunker.chunks(self._counted(opened.blocks(extent, chunker.block_end)))

    def _counted(
        self, blocks: Iterable[tuple[int, memoryview]]
    ) -> Iterator[tuple[int, memoryview]]:
        for offset_bytes, block in blocks:
            self._context.check_stopped()
            self._context.count(len(block))
            self._context.pace(len(block))
            yield offset_bytes, block


def _is_replaced(file: SourceFile, opened: OpenFile) -> bool:
    return is_replaced(file.directory.fd, file.name, opened.before)


def _open(file: SourceFile, *, uid: int) -> OpenFile:
    """Open a file, or its reflink copy, for a process of this user.

    Raises:
        SourceError: It cannot be opened, or is no longer a regular file.
    """
    copy = file.reflink_copy
    if copy is not None:
        return OpenFile(copy.directory_fd, copy.name, owned=True, private=True)
    owned = file.is_owned_by(uid)
    return OpenFile(file.directory.fd, file.name, owned=owned, private=file.is_frozen)
