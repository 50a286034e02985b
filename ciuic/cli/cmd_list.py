"""``ciuic list``."""

import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import click

from ciuic.catalog import HOW_TO_TAKE, known_damaged, known_lost
from ciuic.chains import snapshot_chains
from ciuic.cli.candidates import known_tags, stored_path
from ciuic.cli.copies import copies_of
from ciuic.cli.error_output import advise
from ciuic.cli.opening import list_and_warn, opened, shown_ids
from ciuic.cli.options import absolute, given, host_option, json_option
from ciuic.cli.render import NO_SCHEDULE, print_json_array, printable
from ciuic.cli.session import Session
from ciuic.errors import (
    DAMAGE,
    CancelledError,
    SnapshotNotFoundError,
    StoreError,
    UsageError,
)
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import COMMAND, DAEMON, LIBRARY, SnapshotSummary, newest_first
from ciuic.store.records import layout
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock, local_time_text
from ciuic.units import counted, format_duration

__all__ = ["command"]

_LOOK_S: Final = 2.0


@click.command("list")
@click.option("--machine-readable", is_flag=True, help="ID|YYYY-mm-dd HH:MM:SS|SIZE in bytes.")
@click.option(
    "--path", metavar="P", callback=given, shell_complete=stored_path,
    help="Only snapshots that hold this path, and whether it is intact there.",
)  # fmt: skip
@click.option("--tag", metavar="T", shell_complete=known_tags, help="Only snapshots with this tag.")
@host_option
@click.option(
    "--origin", metavar="O", type=click.Choice([DAEMON, COMMAND, LIBRARY]),
    help="Only snapshots that the daemon, a command or the library asked for.",
)  # fmt: skip
@click.option(
    "--schedule", metavar="S", callback=given,
    help="Only snapshots of this schedule: its name, 'default', or 'none'.",
)  # fmt: skip
@click.option("--root", metavar="P", callback=given, help="Only snapshots of this root.")
@click.option("--by-day", is_flag=True, help="One table for each day, with what it stored.")
@click.option("--trash", is_flag=True, help="Forgotten snapshots that can be brought back.")
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    machine_readable: bool,
    path: str | None,
    tag: str | None,
    host: str | None,
    origin: str | None,
    schedule: str | None,
    root: str | None,
    by_day: bool,
    trash: bool,
    as_json: bool,
) -> None:
    """List snapshots, newest first.

    A snapshot comes before the one that it follows, even if it has an earlier time because a clock
    was wrong: the first complete one is 'latest'.

    KIND is base for a full snapshot and delta for an incremental one. CHAIN is the number of
    snapshots since the last full one: 0 is a full snapshot; 2+ means two or more, because the full
    one, or one since then, was forgotten or cannot be read. SIZE is the total size of all files.
    NEW is the number of bytes that the store did not have before. STORED is the number of bytes
    added to the store. TROUBLE is the number of paths with a warning. FLUX is the number of files
    that a program was writing. HOST, ORIGIN, SCHEDULE and ROOTS are shown if the snapshots differ
    in them. STATE is shown if listed snapshots are known to be damaged, and says which these are.
    It shows "?" for those that could not be checked within two seconds, or at all, because their
    directories are in a bucket; if that is so for all, a message says it. A narrow terminal gets
    fewer columns; a pipe and --json get all.

    With --path, SIZE is the size of the file P, and empty for a directory: snapshots don't record
    its size. STATE is whole, in flux, unreadable, left out or damaged, as far as ciuic knows
    without reading content; for a directory it is the worst state in it. SAME AS names the previous
    snapshot that has the path, of the same machine if there is one, if its content is the same
    there. HOST is shown if the snapshots differ in it. --machine-readable then prints
    ID|YYYY-mm-dd HH:MM:SS|SIZE OF THE SNAPSHOT|STATE|SAME AS|SIZE OF P.
    """
    wanted = _Filter(
        tag,
        host,
        origin,
        schedule,
        None if root is None else absolute(root),
        None if path is None else absolute(path),
    )
    _refuse_combinations(
        wanted, machine_readable=machine_readable, by_day=by_day, trash=trash, as_json=as_json
    )
    if trash:
        from ciuic.cli.trash import list_trash

        list_trash(session, as_json=as_json)
        return
    with opened(session) as store:
        snapshots = newest_first(list_and_warn(session, store))
        short = shown_ids(store)
        held = copies_of(session, store)
        if wanted.path is not None:
            form = _Form(short, as_json=as_json, machine_readable=machine_readable)
            _list_path(store, snapshots, wanted.path, wanted, form)
            return
        matching = [summary for summary in snapshots if wanted.matches(summary)]
        damaged = {} if machine_readable else _damaged(store, matching)
    chains = snapshot_chains(snapshots)
    if as_json:
        print_json_array(
            {
                **summary.as_json(),
                **chains[summary.id].as_json(),
                "copies": held.get(summary.id, []),
                "damaged": damaged.get(summary.id, False),
            }
            for summary in matching
        )
    elif machine_readable:
        _print_lines(matching)
    elif matching:
        from ciuic.cli.list_table import needless_columns, print_list

        left_out = needless_columns(snapshots, damaged)
        print_list(matching, left_out, chains, short, damaged, by_day=by_day)
    elif not session.damaged:
        advise(wanted.absence(snapshots))


def _damaged(
    store: Store, snapshots: Sequence[SnapshotSummary]
) -> Mapping[SnapshotId, bool | None]:
    """Return whether snapshots need a chunk that is known to be lost, or to have a damaged copy.

    So does a snapshot whose manifest a scrub found damaged, though a copy of it can be listed.

    Trees are read only if there is such a chunk, so that a list of a sound store stays fast, and
    for a short time, so that one of a damaged store stays usable: snapshots that were not looked at
    get None, and a message says so. In a bucket, where reading them takes many requests, only roots
    that are lost are known.
    """
    documents = known_damaged(store)
    manifests: dict[SnapshotId, bool | None] = {
        summary.id: True for summary in snapshots if layout.manifest_key(summary.id) in documents
    }
    lost = known_lost(store)
    if store.bucket is not None and lost:
        return {**_without_requests(store, snapshots, lost), **manifests}
    if not lost and (store.bucket is not None or not store.known_damage()):
        return manifests
    # Imported here because few stores are damaged.
    from ciuic.view.damage import DamageSurvey

    clock = SystemClock()
    end_s = clock.monotonic_s() + _LOOK_S

    def check() -> None:
        if clock.monotonic_s() > end_s:
            raise CancelledError(f"that takes longer than {format_duration(_LOOK_S)}")

    survey = DamageSurvey(store, lost)
    survey.resume(store, lost, check)
    states: dict[SnapshotId, bool | None] = {summary.id: None for summary in snapshots}
    try:
        for summary in snapshots:
            check()
            try:
                states[summary.id] = not survey.is_sound(summary.id)
            except SnapshotNotFoundError:  # another process has removed it since it was listed
                states[summary.id] = False
    except (CancelledError, StoreError) as error:
        _tell_unchecked(states, error.message)
    return states | manifests


def _without_requests(
    store: Store, snapshots: Sequence[SnapshotSummary], lost: Collection[ChunkId]
) -> Mapping[SnapshotId, bool | None]:
    """Do the same in a bucket: this machine has its manifests, and no trees."""
    states: dict[SnapshotId, bool | None] = {summary.id: None for summary in snapshots}
    for summary in snapshots:
        with contextlib.suppress(SnapshotNotFoundError, StoreError):  # since it was listed
            if any(root.tree in lost for root in store.manifest(summary.id).roots):
                states[summary.id] = True
    _tell_unchecked(states, "a scrub has found some, and the directories are in the bucket")
    return states


def _tell_unchecked(states: Mapping[SnapshotId, bool | None], why: str) -> None:
    """Say on stderr that the states of some snapshots are not known, if that is so."""
    unknown = list(states.values()).count(None)
    if unknown:
        what = f"{counted(unknown, 'snapshot')} not checked for lost content: {printable(why)}."
        advise(f"ciuic: {what} 'ciuic verify --all' checks all")


class _Form(NamedTuple):
    """How a list is printed: as JSON, for scripts, or as a table with short IDs."""

    short: Mapping[SnapshotId, str]
    as_json: bool
    machine_readable: bool


class _Filter(NamedTuple):
    """Which snapshots are listed; None accepts all."""

    tag: str | None
    host: str | None
    origin: str | None
    schedule: str | None
    root: bytes | None
    path: bytes | None

    def matches(self, summary: SnapshotSummary) -> bool:
        """Return whether a snapshot meets all conditions; ``path`` is not checked."""
        return (
            (self.tag is None or self.tag in summary.tags)
            and (self.host is None or summary.owner.machine.is_called(self.host))
            and (self.origin is None or self.origin == summary.origin)
            and (self.schedule is None or self.schedule == (summary.schedule or NO_SCHEDULE))
            and (self.root is None or self.root in summary.roots)
        )

    def absence(self, snapshots: Sequence[SnapshotSummary]) -> str:
        """Return the message for an empty list of these snapshots."""
        conditions = []
        if self.path is not None:
            conditions.append(f"holds {printable(self.path)}")
        if self.tag is not None:
            conditions.append(f"has the tag '{printable(self.tag)}'")
        if self.host is not None:
            conditions.append(f"was taken on the host '{printable(self.host)}'")
        if self.origin is not None:
            conditions.append(f"has the origin '{printable(self.origin)}'")
        if self.schedule is not None:
            conditions.append(f"belongs to the schedule '{printable(self.schedule)}'")
        if self.root is not None:
            conditions.append(f"has the root {printable(self.root)}")
        if conditions:
            return f"no snapshot {' and '.join(conditions)}{self._present(snapshots)}"
        return f"no snapshot yet. {HOW_TO_TAKE}"

    def _present(self, snapshots: Sequence[SnapshotSummary]) -> str:
        """Return what there is instead of a host or a schedule that no snapshot has."""
        # Imported here because few lists are empty, and every list waits for what is imported.
        from ciuic.cli.lists import hosts_instead, those

        more = "" if self.host is None else hosts_instead(self.host, snapshots)
        schedules = {found.schedule or NO_SCHEDULE for found in snapshots}
        if self.schedule is not None and self.schedule not in schedules:
            more += those("schedules", schedules)
        return more


_ALL: Final = _Filter(None, None, None, None, None, None)


def _refuse_combinations(
    wanted: _Filter, *, machine_readable: bool, by_day: bool, trash: bool, as_json: bool
) -> None:
    """Refuse options that cannot be combined.

    Raises:
        UsageError: They cannot be combined.
    """
    if machine_readable and as_json:
        raise UsageError(
            "--machine-readable cannot be combined with --json", hint="Use one of them."
        )
    if by_day and (machine_readable or as_json or trash or wanted.path is not None):
        raise UsageError(
            "--by-day cannot be combined with --machine-readable, --json, --path or --trash",
            hint="Leave one of them out.",
        )
    if trash and (machine_readable or wanted != _ALL):
        raise UsageError(
            "--trash can be combined only with --json", hint="Leave the other options out."
        )


def _list_path(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    path: bytes,
    wanted: _Filter,
    form: _Form,
) -> None:
    """List the versions of a path; end the command with the code for damage if any is damaged."""
    from ciuic.cli.versions import print_versions
    from ciuic.report.versions import versions

    found = [
        version for version in versions(store, snapshots, path) if wanted.matches(version.snapshot)
    ]
    if not found and not (form.as_json or form.machine_readable):
        click.echo(wanted.absence(snapshots), err=True)
    elif print_versions(found, snapshot_chains(snapshots), path=path, **form._asdict()):
        sys.exit(DAMAGE)


def _print_lines(snapshots: Sequence[SnapshotSummary]) -> None:
    """Print a line for each snapshot, for scripts: its ID, its time and its size."""
    lines = [
        f"{summary.id}|{local_time_text(summary.taken_ns)}|{summary.logical_bytes}\n"
        for summary in snapshots
    ]
    click.echo("".join(lines), nl=False)
