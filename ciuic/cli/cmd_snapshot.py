"""``ciuic snapshot``."""

import os
import stat
import sys
from typing import NamedTuple

import click

from ciuic.cli.candidates import known_tags
from ciuic.cli.expected import told_by_daemon
from ciuic.cli.lists import print_rest, shown_part
from ciuic.cli.options import absolute, given, json_option, size_bytes, wait_option
from ciuic.cli.render import print_json, printable, warning_text
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair
from ciuic.config.settings import Settings
from ciuic.documents import Document
from ciuic.errors import TROUBLE, StoreError, UnresponsiveError, UsageError
from ciuic.model import ExcludeRules
from ciuic.report.entries import KINDS
from ciuic.store.directory.find import read_header
from ciuic.store.place.keys import is_url
from ciuic.store.records.layout import CONTROL_SOCKET
from ciuic.units import format_bytes, format_duration, format_files

__all__ = ["command"]


@click.command("snapshot")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(), callback=given)
@click.option("--base", is_flag=True, help="Take a full snapshot: read every file again.")
@click.option(
    "--tag", "tags", multiple=True, metavar="T", shell_complete=known_tags,
    help="Label the snapshot; may be repeated.",
)  # fmt: skip
@click.option(
    "--schedule", metavar="NAME", callback=given,
    help="Take it for this schedule of the configuration.  [default: the first one]",
)  # fmt: skip
@click.option(
    "--exclude",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    callback=given,
    help="Exclude what PATTERN matches, in addition to the configured patterns; may be repeated.",
)
@click.option(
    "--exclude-larger-than",
    "larger_than_bytes",
    metavar="SIZE",
    callback=size_bytes,
    help="Exclude files that are larger than SIZE.",
)
@click.option(
    "--exclude-caches",
    "caches",
    is_flag=True,
    help="Exclude the content of directories that CACHEDIR.TAG marks, except that file.",
)
@click.option(
    "--exclude-if-present",
    "markers",
    multiple=True,
    metavar="NAME",
    callback=given,
    help="Exclude the content of directories that hold a file NAME, except that file; may be"
    " repeated.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be taken, read and excluded, and do nothing.",
)
@wait_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    paths: tuple[str, ...],
    base: bool,
    tags: tuple[str, ...],
    schedule: str | None,
    patterns: tuple[str, ...],
    larger_than_bytes: int | None,
    caches: bool,
    markers: tuple[str, ...],
    dry_run: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Take a snapshot now, through the daemon if it is running, and print the snapshot's ID.

    The snapshot covers the configured directories, or PATHs if given. If the configuration has
    several schedules, it covers the directories of the first one, or of --schedule. With PATHs and
    --store, no configuration is needed: 'ciuic --store DIR snapshot PATH'. Snapshots of different
    directories can share a store.
    """
    # Imported here because the modules that take snapshots are heavy, and help must be instant.
    from ciuic.snapshot.hooks import refuse_in_hook

    if not dry_run:
        refuse_in_hook(os.environ)
    settings = session.take_settings(names_paths=bool(paths))
    if schedule is not None:
        settings = _of_schedule(settings, schedule, paths)
    store_path = session.store_path()
    unreadable = None if is_url(store_path) else _unreadable(store_path)
    more = ExcludeRules(patterns, larger_than_bytes or 0, caches, markers)
    roots = _directories(paths) or tuple(os.fsencode(path) for path in settings.snapshot_paths)
    _note_nested(paths)
    exclude = settings.exclude_rules.with_more(more)
    # Of two schedules with the same directories, only the name tells which is meant.
    is_own = exclude == settings.exclude_rules and not paths
    name = settings.schedule if is_own else settings.schedule_of(roots, exclude)
    wanted = _Wanted(roots, exclude, base, tags, name)
    if dry_run:
        from ciuic.cli.previewing import preview
        from ciuic.cli.taking import take_request

        preview(session, take_request(settings, **wanted._asdict()), as_json=as_json)
        return
    report = _taken_by_daemon(
        session, store_path, unreadable, wanted, named=schedule if is_own else None
    )
    if report is None:
        from ciuic.cli.taking import take_here, take_request

        request = take_request(settings, **wanted._asdict())
        report = take_here(session, settings, request, wait_s=wait_s)
    if as_json:
        print_json(report)
    else:
        click.echo(report["id"])
        _print_summary(report)
    sys.exit(TROUBLE if report["trouble_count"] else 0)


class _Wanted(NamedTuple):
    """The snapshot to take.

    Attributes:
        roots: The directories.
        exclude: What to leave out of them.
        base: Read every file again.
        tags: The tags to give it.
        schedule: The schedule that it belongs to; empty if none.
    """

    roots: tuple[bytes, ...]
    exclude: ExcludeRules
    base: bool
    tags: tuple[str, ...]
    schedule: str


def _taken_by_daemon(
    session: Session,
    store_path: str,
    unreadable: StoreError | None,
    wanted: _Wanted,
    *,
    named: str | None,
) -> Document | None:
    """Have the store's daemon take a snapshot; returns its report, or None if no daemon answers.

    Args:
        session: Names the store.
        store_path: The store's directory, or the URL of its bucket.
        unreadable: Why this user cannot read the store. Its daemon may still answer: the
            ``control_group`` may use the daemon's socket, but not the store.
        wanted: The snapshot.
        named: The schedule that the user named, if the snapshot is as that schedule says.

    Raises:
        StoreError: The daemon failed, or no daemon answers and this user cannot read the store.
    """
    control = _control_directory(session, store_path) if is_url(store_path) else store_path
    report = None
    if control is not None and _has_socket(control):
        # Imported here because most of what follows needs no socket.
        from ciuic.control import request_snapshot

        with told_by_daemon(session, wanted.roots) as news:
            try:
                report = request_snapshot(
                    control,
                    base=wanted.base,
                    tags=wanted.tags,
                    roots=wanted.roots if named is None else None,
                    exclude=wanted.exclude,
                    schedule=named,
                    progress=news,
                )
            except UnresponsiveError as error:
                hint = f"{error.hint} {_without_daemon(session)}".rstrip()
                raise UnresponsiveError(error.message, hint=hint) from error
            except StoreError as error:
                if unreadable is None or not isinstance(error.__cause__, PermissionError):
                    raise
    if report is None and unreadable is not None:
        raise unreadable
    return report


def _without_daemon(session: Session) -> str:
    """Say which command takes a snapshot beside a daemon that does not answer."""
    if session.store is not None:
        return ""  # it needs a configuration
    # Imported here because few daemons are stopped.
    import shlex

    from ciuic.config.load import config_options

    once = shlex.join(["ciuicd", *config_options(session.config_path), "--once"])
    return f"'{once}' takes a snapshot of the configured directories without it."


def _of_schedule(settings: Settings, name: str, paths: tuple[str, ...]) -> Settings:
    """Return the settings of a schedule.

    Raises:
        UsageError: There is no such schedule, or PATHs say something else.
    """
    if paths:
        raise UsageError(
            "--schedule cannot be combined with PATHs", hint="A schedule has its own directories."
        )
    found = settings.find_schedule(name)
    if found is None:
        known = ", ".join(schedule.schedule for schedule in settings.schedules)
        raise UsageError(
            f"there is no schedule {printable(name)!r}", hint=f"{settings.path} has: {known}."
        )
    return found


def _control_directory(session: Session, address: str) -> str | None:
    # Imported here because most stores are directories.
    from ciuic.cli.addresses import place_options
    from ciuic.store.addressed import control_directory

    return control_directory(address, os.environ, place_options(session, address))


def _has_socket(control: str) -> bool:
    """Return whether a daemon may serve a store; the client says why it cannot be reached."""
    try:
        os.lstat(os.path.join(control, CONTROL_SOCKET))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _unreadable(store_path: str) -> StoreError | None:
    """Return the error of a store that this user may not read; raise other errors."""
    try:
        read_header(store_path)
    except StoreError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        return error
    return None


def _directories(paths: tuple[str, ...]) -> tuple[bytes, ...]:
    """Make paths absolute.

    A path on the command line that does not exist was mistyped; a configured one may come back.

    Raises:
        UsageError: A path is not a directory.
    """
    found = tuple(absolute(path) for path in paths)
    for path in found:
        try:
            is_directory = stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            raise UsageError(
                f"{os.fsdecode(path)!r}: {os.strerror(error.errno or 0)}; no snapshot was taken",
                hint="Name directories that exist.",
            ) from error
        if not is_directory:
            raise UsageError(
                f"{os.fsdecode(path)!r} is not a directory; no snapshot was taken",
                hint="Name the directory that it is in.",
            )
    return found


def _note_nested(paths: tuple[str, ...]) -> None:
    """Say on stderr which directories need no mention, because others contain them."""
    found = sorted({absolute(path) for path in paths})
    for inner in found:
        outer = next((path for path in found if inner.startswith(path.rstrip(b"/") + b"/")), None)
        if outer is not None and inner != outer:
            click.echo(f"ciuic: {printable(inner)} is part of {printable(outer)}", err=True)


def _print_summary(report: Document) -> None:
    """Print the result for a person on stderr: stdout has the ID and nothing else."""
    print_pair(
        "",
        f"{KINDS[report['kind']]} snapshot of {format_files(report['files'])},"
        f" {format_bytes(report['logical_bytes'])}:"
        f" {format_bytes(report['read_bytes'])} read,"
        f" {format_bytes(report['new_bytes'])} new,"
        f" {format_bytes(report['stored_bytes'])} stored,"
        f" {format_duration(report['total_s'])}",
        0,
        err=True,
    )
    if report.get("unscanned_why"):
        click.echo(f"ciuic: nothing was scanned: {report['unscanned_why']}", err=True)
    for note in report.get("notes", ()):  # a daemon of an older version has none
        click.echo(f"ciuic: {printable(note['what'])}", err=True)
    for warning in shown_part(report["trouble"], err=True):
        click.echo(warning_text(warning), err=True)
    named = len(report["trouble"])
    total = max(named, report["trouble_count"])
    print_rest(total, named, "warning", err=True, document=f"'ciuic show {report['id']}'")
