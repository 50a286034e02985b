"""``ciuic list``."""

import itertools
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import click

from ciuic.catalog import HOW_TO_TAKE, list_snapshots
from ciuic.chains import SnapshotChain, snapshot_chains
from ciuic.cli.candidates import known_tags, stored_path
from ciuic.cli.copies import copies_of
from ciuic.cli.opening import opened, shown_ids, warn_damaged
from ciuic.cli.options import absolute, given, json_option
from ciuic.cli.render import brief, labels, print_json_array, printable
from ciuic.cli.session import Session
from ciuic.cli.table import Column, cut_end, cut_middle, cut_time, print_table
from ciuic.errors import DAMAGE, UsageError
from ciuic.ids import SnapshotId
from ciuic.model import COMMAND, DAEMON, LIBRARY, SnapshotSummary, path_text
from ciuic.store.store import Store
from ciuic.system.clock import local_time_text
from ciuic.units import counted, format_bytes

__all__ = ["command"]

_NONE: Final = "none"
_MACHINE_DIGITS: Final = 4
_DAY_LENGTH: Final = len("2026-06-15")
_COLUMNS: Final = (
    Column("ID"),
    Column("TAKEN", cut=cut_time, least=16),
    Column("KIND", drop=7),
    Column("CHAIN", right=True, drop=9),
    Column("FILES", right=True, drop=11),
    Column("SIZE", right=True, drop=1),
    Column("NEW", right=True, drop=10),
    Column("STORED", right=True, drop=6),
    Column("TROUBLE", right=True, drop=2),
    Column("FLUX", right=True, drop=8),
    Column("HOST", drop=5, cut=cut_end, least=6),
    Column("ORIGIN", drop=12),
    Column("SCHEDULE", drop=13, cut=cut_end, least=6),
    Column("ROOTS", drop=4, cut=cut_middle),
    Column("TAGS", drop=3, cut=cut_end, least=6),
    Column("NOTE", drop=14, cut=cut_end, least=12),
)


@click.command("list")
@click.option("--machine-readable", is_flag=True, help="ID|YYYY-mm-dd HH:MM:SS|SIZE in bytes.")
@click.option(
    "--path", metavar="P", callback=given, shell_complete=stored_path,
    help="Only snapshots that hold this path, and whether it is intact there.",
)  # fmt: skip
@click.option("--tag", metavar="T", shell_complete=known_tags, help="Only snapshots with this tag.")
@click.option(
    "--host", metavar="H", callback=given,
    help="Only snapshots of this host: its name, or as HOST shows it.",
)  # fmt: skip
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

    KIND is base for a full snapshot and delta for an incremental one. CHAIN is the number of
    snapshots since the last full one: 0 is a full snapshot; 2+ means two or more, because the full
    one was forgotten or can't be read. SIZE is the total size of all files. NEW is the number of
    bytes that the store did not have before. STORED is the number of bytes added to the store.
    TROUBLE is the number of paths with a warning. FLUX is the number of files that a program was
    writing. HOST, ORIGIN, SCHEDULE and ROOTS are shown if the snapshots differ in them. A narrow
    terminal gets fewer columns; a pipe and --json get all.

    With --path, SIZE is the size of the file P, and empty for a directory: snapshots don't record
    its size. STATE is whole, in flux, unreadable, left out or damaged, as far as ciuic knows
    without reading content; for a directory it is the worst state in it. SAME AS names the previous
    snapshot that has the path, if its content is the same there. --machine-readable then prints
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
        snapshots = list_snapshots(store)
        warn_damaged(session, store)
        short = shown_ids(store)
        held = copies_of(session, store)
        if wanted.path is not None:
            form = _Form(short, as_json=as_json, machine_readable=machine_readable)
            _list_path(store, snapshots, wanted.path, wanted, form)
            return
    matching = [summary for summary in snapshots if wanted.matches(summary)]
    chains = snapshot_chains(snapshots)
    if as_json:
        print_json_array(
            {
                **summary.as_json(),
                **chains[summary.id].as_json(),
                "copies": held.get(summary.id, []),
            }
            for summary in matching
        )
    elif machine_readable:
        _print_lines(matching)
    elif matching:
        left_out = _needless_columns(snapshots)
        for day, group in _days(matching) if by_day else [("", matching)]:
            if day:
                click.echo(day)
            _print_snapshots(group, chains, short, left_out=left_out)
    elif not session.damaged:
        click.echo(wanted.absence(), err=True)


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
            and (self.host is None or self.host in {summary.host, _host_text(summary)})
            and (self.origin is None or self.origin == summary.origin)
            and (self.schedule is None or self.schedule == (summary.schedule or _NONE))
            and (self.root is None or self.root in summary.roots)
        )

    def absence(self) -> str:
        """Return the message for an empty list."""
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
            return f"no snapshot {' and '.join(conditions)}"
        return f"no snapshot yet. {HOW_TO_TAKE}"


_ALL: Final = _Filter(None, None, None, None, None, None)


def _refuse_combinations(
    wanted: _Filter, *, machine_readable: bool, by_day: bool, trash: bool, as_json: bool
) -> None:
    """Refuse options that can't be combined.

    Raises:
        UsageError: They can't be combined.
    """
    if machine_readable and as_json:
        raise UsageError(
            "--machine-readable can't be combined with --json", hint="Use one of them."
        )
    if by_day and (machine_readable or as_json or trash or wanted.path is not None):
        raise UsageError(
            "--by-day can't be combined with --machine-readable, --json, --path or --trash",
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
        click.echo(wanted.absence(), err=True)
    elif print_versions(found, snapshot_chains(snapshots), path=path, **form._asdict()):
        sys.exit(DAMAGE)


def _days(
    snapshots: Sequence[SnapshotSummary],
) -> Iterator[tuple[str, list[SnapshotSummary]]]:
    """Yield the local days of snapshots, in their order, each with a heading."""
    dated = itertools.groupby(snapshots, lambda one: local_time_text(one.taken_ns)[:_DAY_LENGTH])
    for number, (day, group) in enumerate(dated):
        found = list(group)
        stored = format_bytes(sum(one.stored_bytes for one in found))
        gap = "\n" if number else ""
        yield f"{gap}{day}: {counted(len(found), 'snapshot')}, {stored} stored", found


def _print_lines(snapshots: Sequence[SnapshotSummary]) -> None:
    """Print a line for each snapshot, for scripts: its ID, its time and its size."""
    for summary in snapshots:
        when = local_time_text(summary.taken_ns)
        click.echo(f"{summary.id}|{when}|{summary.logical_bytes}")


def _needless_columns(snapshots: Sequence[SnapshotSummary]) -> set[str]:
    """Return the columns that would say the same for every snapshot of the store."""
    hosts = {(summary.host, summary.machine) for summary in snapshots}
    origins = {summary.origin for summary in snapshots}
    schedules = {summary.schedule for summary in snapshots}
    roots = {frozenset(summary.roots) for summary in snapshots}
    counts = {
        "HOST": len(hosts),
        "ORIGIN": len(origins),
        "SCHEDULE": len(schedules),
        "ROOTS": len(roots),
        "NOTE": 2 if any(summary.note for summary in snapshots) else 0,
    }
    return {name for name, count in counts.items() if count <= 1}


def _host_text(summary: SnapshotSummary) -> str:
    """Return the name of the machine, with digits that tell machines of one name apart."""
    return (
        f"{summary.host}:{summary.machine[:_MACHINE_DIGITS]}" if summary.machine else summary.host
    )


def _print_snapshots(
    snapshots: Sequence[SnapshotSummary],
    chains: Mapping[SnapshotId, SnapshotChain],
    short: Mapping[SnapshotId, str],
    *,
    left_out: set[str],
) -> None:
    # Machine IDs are shown only where two machines have one name.
    machines = Counter(host for host, _ in {(found.host, found.machine) for found in snapshots})
    names = {host for host, count in machines.items() if count == 1}
    columns = [column for column in _COLUMNS if column.name not in left_out]
    rows = [
        {"ID": short.get(summary.id, summary.id), **_row(summary, chains[summary.id], names)}
        for summary in snapshots
    ]
    print_table(columns, [[row[column.name] for column in columns] for row in rows])


def _row(summary: SnapshotSummary, chain: SnapshotChain, names: Collection[str]) -> dict[str, str]:
    """Return a snapshot's cell for each column except the ID.

    ``names`` has the host names that only one machine has.
    """
    return {
        "TAKEN": local_time_text(summary.taken_ns),
        "KIND": brief(summary.kind),
        "CHAIN": str(chain),
        "FILES": f"{summary.files:,}",
        "SIZE": format_bytes(summary.logical_bytes),
        "NEW": format_bytes(summary.new_bytes),
        "STORED": format_bytes(summary.stored_bytes),
        "TROUBLE": str(summary.trouble_count or ""),
        "FLUX": str(summary.flux_count or ""),
        "HOST": brief(summary.host if summary.host in names else _host_text(summary)),
        "ORIGIN": brief(summary.origin),
        "SCHEDULE": brief(summary.schedule or _NONE),
        "ROOTS": ", ".join(map(path_text, summary.roots)),
        "TAGS": labels(summary.tags, pinned=summary.pinned),
        "NOTE": brief(summary.note),
    }
