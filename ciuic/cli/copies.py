"""What commands say about the configured copies."""

import click

from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock

__all__ = ["copies_of"]


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
