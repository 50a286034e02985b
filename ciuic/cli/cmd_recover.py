"""``ciuic recover``."""

import contextlib
import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import click

from ciuic.cli.interrupt import interruptible
from ciuic.cli.options import absolute, copies_option, given, host_option, json_option
from ciuic.cli.read_copies import opened_with_copies
from ciuic.cli.render import brief, print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair
from ciuic.errors import DONE, FAILED, TROUBLE, USAGE, SnapshotNotFoundError, UsageError
from ciuic.guard.recovery.find import Window
from ciuic.guard.recovery.recover import Search, recover
from ciuic.guard.recovery.report import BrokenFile, RecoveryReport
from ciuic.guard.recovery.versions import Source, sources_of
from ciuic.model import ExcludeRules, PathWarning, path_text
from ciuic.system.clock import SystemClock, local_time_text, unix_seconds
from ciuic.system.machine import this_machine
from ciuic.units import counted, format_duration, format_files, inflected

__all__ = ["command"]

_NS: Final = 1_000_000_000


def _time_ns(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Convert a time to nanoseconds since 1970."""
    if value is None:
        return None
    if given(context, parameter, value).startswith("@"):
        with contextlib.suppress(ValueError, ArithmeticError):
            return int(Decimal(value[1:]) * _NS)
    elif (seconds := unix_seconds(value)) is not None:
        return round(seconds * _NS)
    raise click.BadParameter(
        f"{value!r} is not a time: write '2026-06-15 14:30' or @SECONDS", context, parameter
    )


@click.command("recover")
@click.argument("paths", metavar="[PATH]...", nargs=-1, callback=given)
@click.option(
    "--since",
    "since_ns",
    metavar="TIME",
    callback=_time_ns,
    help="Look at files that changed at TIME or later, and at each file that is a PATH.  [default:"
    " with PATHs, any time; else the time of the newest snapshot of each directory that no failure"
    " caused]",
)
@click.option(
    "--until",
    "until_ns",
    metavar="TIME",
    callback=_time_ns,
    help="Leave files alone that changed after TIME.",
)
@host_option
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@copies_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    paths: tuple[str, ...],
    since_ns: int | None,
    until_ns: int | None,
    host: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find broken checkpoints, and put back the newest valid version of each.

    A checkpoint is broken if its own format says so: it is cut short, or a part differs from its
    checksum. A file of torch that was a checkpoint, and no longer is one, is broken too. ciuic
    looks below the configured directories, or at PATHs if given. The version comes from the newest
    snapshot that has a valid one, and is checked before it gets the name. The broken file stays in
    its directory as .NAME.broken-1. A broken file without a valid version is only moved aside. All
    other files stay as they are.

    Versions come from the snapshots of this machine. If it has none of a directory, they come from
    those of another machine, which ciuic names; if several others have some, ciuic leaves that
    directory alone: choose with --host.

    Exits with 1 if a file could not be put back, with 2 if a directory was left alone, and with 3
    if a file has no valid version.
    """
    clock = SystemClock()
    roots = tuple(absolute(path) for path in paths)
    exclude = ExcludeRules()
    if not roots:
        settings = session.take_settings(names_paths=False)
        roots = tuple(os.fsencode(path) for path in settings.all_paths)
        exclude = settings.exclude_rules
    for path in roots if paths else ():
        if not os.path.lexists(path):
            raise UsageError(
                f"{printable(path_text(path))} does not exist",
                hint="'ciuic restore -s latest -p PATH' restores what is gone.",
            )
    with interruptible() as cancelled, opened_with_copies(session) as store:
        found = sources_of(store, roots, host)
        sources = [source for source in found if source.refusal is None]
        refusals = {one.root: one.refusal for one in found if one.refusal is not None}
        for remark in dict.fromkeys(source.remark for source in sources if source.remark):
            print_pair("ciuic:", printable(remark), len("ciuic: "), err=True)
        if since_ns is None and not any(source.snapshots for source in sources):
            sources = []
        if not sources:
            raise next(
                iter(refusals.values()),
                SnapshotNotFoundError(
                    "no snapshot has a version of any file",
                    hint="With --since TIME, broken files are moved aside.",
                ),
            )
        searches = _searches(sources, since_ns, until_ns, are_named=bool(paths))
        report = recover(
            store,
            searches,
            skipped=[PathWarning(root, why.message) for root, why in refusals.items()],
            exclude=exclude,
            clock=clock,
            is_dry_run=dry_run,
            planned=lambda found: _print_planned(found, err=as_json),
            cancelled=cancelled,
        )
    windows = [search.window for search in searches]
    _print_done(report, _period_text(windows, is_default=since_ns is None), err=as_json)
    if as_json:
        print_json(report.as_json())
    sys.exit(USAGE if refusals else FAILED if report.failed else TROUBLE if report.lost else DONE)


def _searches(
    sources: Sequence[Source], since_ns: int | None, until_ns: int | None, *, are_named: bool
) -> list[Search]:
    newest_ns = max(source.saved_ns for source in sources)
    searches = []
    for source in sources:
        # Without any snapshot, there is nothing that an earlier beginning could bring back.
        saved_ns = source.saved_ns if source.snapshots else newest_ns
        early_ns = (0 if are_named else saved_ns) if since_ns is None else since_ns
        window = Window(early_ns, until_ns, saved_ns, are_named=are_named)
        searches.append(Search(source.root, window, source.snapshots))
    return searches


def _print_planned(found: BrokenFile, *, err: bool) -> None:
    print_pair("", f"{printable(path_text(found.path))} is broken: {found.what}", 0, err=err)
    version = found.version
    if version is None:
        text = "no snapshot has a valid version: it is only moved aside"
    else:
        taken = local_time_text(version.taken_ns)
        if version.host != this_machine().name:
            taken += f", on {printable(brief(version.host))}"
        text = f"{version.snapshot_id} ({taken}) has the newest valid version, which replaces it"
    print_pair("", text, 7, err=err)


def _period_text(windows: Sequence[Window], *, is_default: bool) -> str:
    """Say which files were looked at; an empty text if all were."""
    since = {window.since_ns for window in windows}
    if not any(since):
        return ""
    when = "the newest snapshot of their directory"
    if len(since) == 1:
        when = local_time_text(min(since))
    named = " or are named" if windows[0].are_named else ""
    further = "; --since TIME looks further back" if is_default else ""
    return f" (those that changed since {when}{named}{further})"


def _print_done(report: RecoveryReport, period: str, *, err: bool) -> None:
    def line(text: str) -> None:
        print_pair("", text, 0, err=err)

    for warning in report.left_alone:
        line(f"{printable(path_text(warning.path))} is left alone: {printable(warning.what)}")
    for found in report.failed:
        line(f"{printable(path_text(found.path))} stays broken: {printable(found.failure)}")
    checked = f"{format_files(report.checked)} looked at{period}"
    unknown = ""
    if report.not_judged:
        unknown = f"; {format_files(report.not_judged)} in no known format, not judged"
    if not report.broken:
        line(f"{checked}, none is broken{unknown}")
    elif report.is_dry_run:
        count = counted(len(report.broken), "broken file")
        line(f"{checked}, {count}; nothing was changed{unknown}")
    else:
        moved = [found for found in report.broken if found.aside]
        back = sum(found.version is not None for found in moved)
        took = format_duration(report.total_s)
        line(
            f"{checked}; {format_files(back)} {inflected(back, 'was', 'were')} put back,"
            f" {len(moved)} moved aside as .NAME.broken-N, {took}{unknown}"
        )
