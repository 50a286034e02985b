"""What commands say about the configured copies."""

from collections.abc import Collection, Iterable
from typing import Final

import click

from ciuic.cli.error_output import advise
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock

__all__ = ["CHECK_BUCKET", "copies_of", "print_bucket_advice", "print_holders"]

CHECK_BUCKET: Final = (
    "check the bucket: its lifecycle rules, which other programs write there, and whether it keeps"
    " older versions of its objects"
)
_FROM_COPY: Final = "'ciuic repair --apply --from PLACE' takes what is lost from a copy"


def copies_of(session: Session, store: Store) -> dict[str, list[str]]:
    """Map snapshots to the copies that have or had them; name outdated copies on stderr.

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


def print_holders(
    session: Session,
    store_path: str,
    damaged: Iterable[str],
    *,
    except_for: Collection[str] = (),
) -> None:
    """Name on stderr the copies that have damaged snapshots intact, and how to use them.

    Args:
        session: Has the configuration, and so the copies.
        store_path: The directory of the store, or of this machine for a store in a bucket.
        damaged: IDs of the snapshots.
        except_for: Addresses of copies that were asked for what is damaged, and did not have it.
    """
    copies = [copy for copy in session.copies() if copy[1] not in except_for]
    if not copies:
        return
    import shlex

    from ciuic.copy.record import holders

    held = holders(store_path, copies)
    names = {name: None for snapshot_id in damaged for name in held.get(snapshot_id, ())}
    for name, address in copies:
        if name in names:
            where = shlex.quote(address)
            advise(
                f"the copy {printable(address)} has the damaged data intact: 'ciuic repair --apply'"
                f" takes it from there, 'ciuic --store {printable(where)} restore -s ID -p PATH'"
                " restores from there"
            )


def print_bucket_advice() -> None:
    """Say on stderr what to do about damage of a bucket: no disk of this machine is at fault."""
    advise(f"ciuic: {_FROM_COPY}\n       Also {CHECK_BUCKET}.")
