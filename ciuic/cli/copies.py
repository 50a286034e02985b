"""What commands say about the configured copies."""

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator

import click

from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.copy.read_through import CopySource, ReadThrough, Taken
from ciuic.store.addressed import open_at_address
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock
from ciuic.units import counted

__all__ = ["copies_of", "print_holders", "reading_copies"]


def copies_of(session: Session, store: Store) -> dict[str, list[str]]:
    """Map snapshots to the names of the copies that have or had them; name those behind on stderr.

    Args:
        session: Has the configuration, and so the copies.
        store: The store that is copied.
    """
    copies = session.copies()
    if not copies:
        return {}
    # Most configurations name none.
    from ciuic.copy.record import holders, standings

    for copy in standings(store, copies, SystemClock().now_ns()):
        if copy.is_behind:
            click.echo(printable(f"copy {copy.name}: {copy.sentence()}"), err=True)
    return holders(store.path, copies)


@contextlib.contextmanager
def reading_copies(
    session: Session,
    store: Store,
    *,
    is_on: bool,
    is_told: bool = True,
    on_first: Callable[[str], None] = lambda _address: None,
) -> Iterator[ReadThrough]:
    """Have the store's reader take what it can't read from the copies; at the end, say so.

    Args:
        session: Has the configuration, and so the copies.
        store: The open store.
        is_on: Do so. False: leave the reader as it is.
        is_told: Say on stderr at the end which copies were read.
        on_first: See ``ReadThrough``.
    """
    copies = session.store_settings().copies if is_on and session.copies() else ()
    sources = [
        CopySource(
            one.address,
            functools.partial(open_at_address, one.address, os.environ, one.settings.place_options),
        )
        for one in copies
    ]
    through = ReadThrough(store, sources, on_first)
    if sources:
        store.reader.elsewhere = through
    try:
        yield through
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
            f" {where}; 'ciuic repair --apply' mends the store from there",
            err=True,
        )
    if one.problem:
        click.echo(f"ciuic: the copy {where}: {printable(one.problem)}", err=True)


def print_holders(
    session: Session,
    store_path: str,
    damaged: Iterable[str],
    *,
    except_for: Collection[str] = (),
) -> None:
    """Name on stderr the copies that have damaged snapshots, and how to take them from there.

    Args:
        session: Has the configuration, and so the copies.
        store_path: The directory of the store, or of this machine for a store in a bucket.
        damaged: IDs of the snapshots.
        except_for: Addresses of copies that were asked for what is damaged, and did not have it.
    """
    copies = [copy for copy in session.copies() if copy[1] not in except_for]
    if not copies:
        return
    from ciuic.copy.record import holders

    held = holders(store_path, copies)
    names = {name: None for snapshot_id in damaged for name in held.get(snapshot_id, ())}
    for name, address in copies:
        if name in names:
            where = printable(address)
            click.echo(
                f"the copy {where} has what is damaged: 'ciuic repair --apply' takes it from there,"
                f" 'ciuic --store {where} restore' restores from there",
                err=True,
            )
