"""Commands that read from the configured copies what the store has lost."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence

import click

from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.copy.read_through import CopySource, ReadThrough, Taken
from ciuic.store.store import Store
from ciuic.units import counted

__all__ = ["reading_copies"]


@contextlib.contextmanager
def reading_copies(
    session: Session,
    store: Store,
    *,
    is_on: bool,
    is_told: bool = True,
    on_first: Callable[[str], None] = lambda _address: None,
) -> Iterator[Callable[[], Sequence[Taken]]]:
    """Have the store's reader take what it can't read from the copies; at the end, say so.

    Yields a function that returns what was taken from each copy so far.

    Args:
        session: Has the configuration, and so the copies.
        store: The open store.
        is_on: Do so. False: leave the reader as it is.
        is_told: Say on stderr at the end which copies were read.
        on_first: See ``ReadThrough``.
    """
    copies = session.store_settings().copies if is_on and session.copies() else ()
    if not copies:
        yield tuple
        return
    # Most configurations name none.
    from ciuic.store.addressed import open_at_address

    sources = [
        CopySource(
            copy.address,
            functools.partial(
                open_at_address, copy.address, os.environ, copy.settings.place_options
            ),
        )
        for copy in copies
    ]
    through = ReadThrough(store, sources, on_first)
    store.reader.elsewhere = through
    try:
        yield through.taken
    finally:
        store.reader.elsewhere = None
        through.close()
        for one in through.taken() if is_told else ():
            _print_taken(one)


def _print_taken(one: Taken) -> None:
    where = printable(one.address)
    if one.chunks:
        more = "more than " if one.has_more else ""
        click.echo(
            f"ciuic: the store is damaged: {more}{counted(one.chunks, 'chunk')} came from the copy"
            f" {where}; 'ciuic repair --apply' repairs the store from there",
            err=True,
        )
    if one.problem:
        click.echo(f"ciuic: the copy {where}: {printable(one.problem)}", err=True)
