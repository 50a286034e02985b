"""A progress line for long work: on a terminal only, and never in the way of the result."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from ciuic.cli.render import printable
from ciuic.units import format_bytes, format_files

__all__ = ["Reporter", "progress"]


class Reporter:
    """Shows how far the work has come; shows nothing when nobody is looking."""

    def __init__(self, show: Callable[[str, float | None], None] | None) -> None:
        self._show = show

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """So many files and bytes are done; ``path`` is where the work is."""
        if self._show is not None:
            text = f"{format_files(files)}, {format_bytes(size_bytes)}"
            self._show(f"{text}  {printable(path)[-60:]}", None)

    def fraction(self, done: int, total: int) -> None:
        """So many steps of all are done."""
        if self._show is not None:
            self._show(f"{done:,} of {total:,}", done / total if total else 1.0)

    def stage(self, what: str, done: int, total: int) -> None:
        """As ``fraction``, of one part of the work."""
        if self._show is not None:
            self._show(f"{what}: {done:,} of {total:,}", done / total if total else 1.0)


@contextlib.contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Reporter]:
    """A reporter for the duration of the work."""
    if quiet or not sys.stderr.isatty():
        yield Reporter(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, detail="")

        def show(detail: str, fraction: float | None) -> None:
            if fraction is None:
                bar.update(task, detail=detail)
            else:
                bar.update(task, detail=detail, total=1.0, completed=fraction)

        yield Reporter(show)
