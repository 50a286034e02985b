"""Commands that read from the configured copies what the store has lost."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import click

from ciuic.cli.error_output import advise
from ciuic.cli.opening import opened
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.copy.read_through import CopySource, Taken, reading_through
from ciuic.store.store import Store
from ciuic.units import counted

__all__ = ["opened_with_copies", "reading_copies", "sources_of"]


def sources_of(session: Session) -> tuple[CopySource, ...]:
    """Return the configured copies; none with ``--store`` or ``--no-copies``."""
    if not (session.reads_copies and session.copies()):
        return ()
    return tuple(
        CopySource(one.name, one.address, one.settings.place_options)
        for one in session.store_settings().copies
    )


@contextlib.contextmanager
def opened_with_copies(session: Session, *, only: str = "") -> Iterator[Store]:
    """Open the session's store for reading, as ``opened`` does, and the copies when needed."""
    with opened(session, only=only) as store, reading_copies(session, store):
        yield store


@contextlib.contextmanager
def reading_copies(
    session: Session,
    store: Store,
    *,
    is_told: bool = True,
    on_first: Callable[[str], None] = lambda _address: None,
) -> Iterator[Callable[[], Sequence[Taken]]]:
    """Have the store's reader take what it cannot read from the copies; at the end, say so.

    Yields a function that returns what was taken from each copy so far.

    Args:
        session: Has the configuration, and so the copies.
        store: The open store.
        is_told: Say on stderr at the end which copies were read.
        on_first: See ``ReadThrough``.
    """
    sources = sources_of(session)
    if not sources:
        yield tuple
        return
    with reading_through(store, lambda: sources, on_first) as through:
        try:
            yield through.taken
        finally:
            for one in through.taken() if is_told else ():
                _print_taken(one)


def _print_taken(one: Taken) -> None:
    where = printable(one.address)
    if one.chunks:
        more = "more than " if one.has_more else ""
        advise(
            f"ciuic: the store is damaged: {more}{counted(one.chunks, 'chunk')} came from the copy"
            f" {where}; 'ciuic repair --apply' repairs the store from there"
        )
    if one.problem:
        click.echo(f"ciuic: the copy {where}: {printable(one.problem)}", err=True)
