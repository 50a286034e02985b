"""Opens the store of a session, and names on stderr the snapshots in it that cannot be read."""

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import click

from ciuic import catalog
from ciuic.cli.error_output import advise
from ciuic.cli.render import brief, printable
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair, terminal_columns
from ciuic.errors import SnapshotNotFoundError, UnreachableError, UsageError
from ciuic.ids import SnapshotId, matching_ids
from ciuic.model import SnapshotSummary, complete_ones, preferred
from ciuic.store.directory.leftovers import IS_DIRECTORY
from ciuic.store.place.keys import is_url
from ciuic.store.store import Store, open_store
from ciuic.system.machine import this_machine

__all__ = [
    "CLOSER",
    "NEWER",
    "chosen_snapshots",
    "find_on",
    "find_snapshot",
    "list_and_warn",
    "note_machine",
    "of_configuration",
    "opened",
    "shown_ids",
    "warn_damaged",
    "warn_of_mark",
]

_ID: Final = r"cs-[0-9a-f]+"
NEWER: Final = "is newer and cannot be read"
"""Why a damaged snapshot is named: an older one is used as ``latest``."""
CLOSER: Final = "may be closer to that time and cannot be read"
"""Why a damaged snapshot is named: another one is used for a time."""


@contextlib.contextmanager
def opened(
    session: Session,
    *,
    write: bool = False,
    adds: bool = True,
    only_adds: bool = False,
    removes: bool = False,
    wait_s: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
    only: str = "",
) -> Iterator[Store]:
    """Open the session's store; a writer warns about leftovers that cannot be deleted.

    Args:
        session: Names the store.
        write: The command changes the store.
        adds: It may add chunks, and not marks alone. Marks in a bucket need no lock.
        only_adds: It removes and replaces nothing, so other processes may add meanwhile.
        removes: It removes packs and adds no snapshot. In a bucket, others may add meanwhile.
        wait_s: How long to wait for another writer.
        cancelled: Ends that wait once it turns true.
        only: The only snapshot that a reader asks for, as the user wrote it. If that is an ID, or
            the beginning of one, nothing is fetched of the other snapshots of a bucket.
    """
    path = session.store_path()
    if is_url(path):
        access = {"write": write and adds, "only_adds": only_adds, "removes": removes}
        # Anything else may be a tag of any snapshot.
        about = only if re.fullmatch(_ID, only) else ""
        with _in_bucket(session, path, access, wait_s, cancelled, only=about) as store:
            yield store
        return
    with open_store(
        path,
        write=write,
        only_adds=only_adds,
        wait_s=wait_s,
        cancelled=cancelled,
        owner=session.store_owner(),
    ) as store:
        for what in store.stuck.values():
            click.echo(f"ciuic: {printable(what)}; it stays", err=True)
        if any(not what.endswith(IS_DIRECTORY) for what in store.stuck.values()):
            advise(f"       {UnreachableError.default_hint}")
        yield store


@contextlib.contextmanager
def _in_bucket(
    session: Session,
    address: str,
    access: dict[str, bool],
    wait_s: float,
    cancelled: Callable[[], bool],
    *,
    only: str,
) -> Iterator[Store]:
    # Imported here because most stores are directories.
    from ciuic.cli.addresses import place_options
    from ciuic.store.addressed import open_at_address

    options = place_options(session, address)
    with open_at_address(
        address, os.environ, options, **access, wait_s=wait_s, cancelled=cancelled, only=only
    ) as store:
        yield store


def warn_damaged(session: Session, store: Store, *, except_for: Collection[str] = ()) -> None:
    """Name on stderr every snapshot, except some, whose manifest or mark cannot be read."""
    _warn(session, catalog.unreadable(store), except_for)


def list_and_warn(session: Session, store: Store) -> list[SnapshotSummary]:
    """Return every listed snapshot, the newest first, and warn as ``warn_damaged``."""
    found, unreadable = catalog.list_and_check(store)
    _warn(session, unreadable, ())
    return found


def _warn(session: Session, unreadable: catalog.Unreadable, except_for: Collection[str]) -> None:
    for snapshot_id, what in sorted(unreadable.manifests.items()):
        if snapshot_id not in except_for:
            session.damaged[snapshot_id] = what
            advise(f"ciuic: {snapshot_id} cannot be read: {printable(what)}")
    for snapshot_id, what in sorted(unreadable.marks.items()):
        if snapshot_id not in except_for:
            advise(f"ciuic: {snapshot_id} counts as pinned: {printable(what)}")


def chosen_snapshots(
    session: Session, store: Store, snapshot_id: str | None, host: str | None
) -> list[SnapshotSummary]:
    """Return one snapshot, or those of a host, or without both all of them, newest first.

    A host that has none is named on stderr.

    Raises:
        SnapshotNotFoundError: There is no such snapshot.
        UsageError: Both are given.
    """
    if snapshot_id is not None:
        if host is not None:
            raise UsageError("--host cannot be combined with -s", hint="Leave one of them out.")
        return [find_snapshot(session, store, snapshot_id)]
    snapshots = catalog.list_snapshots(store)
    warn_damaged(session, store)
    if host is None:
        return snapshots
    chosen = [one for one in snapshots if one.owner.machine.is_called(host)]
    if not chosen:
        # Imported here because 'ciuic list' must be quick, and needs no such message.
        from ciuic.cli.lists import none_matches

        click.echo(none_matches(snapshots, host=host), err=True)
    return chosen


def shown_ids(store: Store) -> dict[SnapshotId, str]:
    """Map each ID to its form in a table: the shortest unique prefix on a terminal.

    In a pipe a table has whole IDs, and the result is empty: a script may keep an ID until another
    snapshot has the same first digits.
    """
    return {} if terminal_columns() is None else store.short_ids()


def of_configuration(
    session: Session, store: Store, text: str, host: str | None
) -> Sequence[SnapshotSummary] | None:
    """Return the snapshots from which ``latest`` is chosen for a check; None: from all.

    They are those of the configured directories, if there are any, and of the host if one is given.
    A check of a snapshot that was taken of another directory would tell nothing about them.
    """
    if text not in {catalog.LATEST, catalog.LATEST_VALID}:
        return None
    known = complete_ones(catalog.list_snapshots(store))
    return preferred(known if host is None else _of_host(known, host), session.scopes)


def _of_host(snapshots: Sequence[SnapshotSummary], host: str) -> list[SnapshotSummary]:
    # Imported here because 'ciuic list' must be quick, and does not choose a machine.
    from ciuic.catalog.whose import of_host

    return of_host(snapshots, host)


def warn_of_mark(summary: SnapshotSummary) -> None:
    """Say on stderr if the newest mark of a snapshot cannot be read, and what counts instead."""
    if summary.mark_problem:
        advise(f"ciuic: {summary.id} counts as pinned: {printable(summary.mark_problem)}")


def find_snapshot(
    session: Session,
    store: Store,
    text: str,
    *,
    holding: Sequence[bytes] = (),
    listed: Sequence[SnapshotSummary] | None = None,
    host: str | None = None,
) -> SnapshotSummary:
    """Return the snapshot that ``text`` means: an ID, a prefix, ``latest``, a time or a tag.

    With ``holding``, ``latest`` means the newest snapshot whose roots hold these paths; with
    ``listed``, the newest of these; with ``host``, the newest of this machine. Names on stderr the
    snapshots that ``text`` may mean instead, and that cannot be read, and says if the snapshot is
    of another machine.
    """
    found = find_on(store, text, host, holding=holding, listed=listed)
    for snapshot_id, what in catalog.passed_over(store, text, found).items():
        session.damaged[snapshot_id] = what
        reason = NEWER if text == catalog.LATEST else CLOSER
        advise(f"ciuic: {snapshot_id} {reason}: {printable(what)}")
    if host is None:
        note_machine(store, text, found, holding=holding, listed=listed)
    return found


def find_on(
    store: Store,
    text: str,
    host: str | None,
    *,
    holding: Sequence[bytes] = (),
    listed: Sequence[SnapshotSummary] | None = None,
) -> SnapshotSummary:
    """Return the snapshot that ``text`` means, among those of a host or else of all machines.

    Raises:
        SnapshotNotFoundError: The host has none, or ``text`` is the ID of one of another machine.
        UsageError: Several machines have the name ``host``.
    """
    if host is not None:
        known = catalog.list_snapshots(store) if listed is None else listed
        listed = _of_host(known, host)
    found = catalog.find_snapshot(store, text, holding=holding, tagged=True, listed=listed)
    if host is not None and not found.owner.machine.is_called(host):
        raise SnapshotNotFoundError(f"{found.id} was taken on {brief(found.host)}, not on {host}")
    return found


def note_machine(
    store: Store,
    text: str,
    found: SnapshotSummary,
    *,
    holding: Sequence[bytes] = (),
    listed: Sequence[SnapshotSummary] | None = None,
) -> None:
    """Say on stderr that ``latest``, a time or a tag means a snapshot of another machine."""
    if found.owner.machine.is_same(this_machine()) or matching_ids(text, [found.id]):
        return
    from ciuic.catalog.whose import elsewhere

    known = catalog.list_snapshots(store) if listed is None else listed
    if remark := elsewhere(text, found, known, holding):
        print_pair("ciuic: ", remark, len("ciuic: "), err=True)
