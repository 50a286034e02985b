"""``ciuic drill``."""

import os
import sys
from collections.abc import Sequence

import click

from ciuic.catalog import LATEST, list_snapshots
from ciuic.catalog.whose import of_this_machine
from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.error_output import advise
from ciuic.cli.interrupt import interruptible
from ciuic.cli.lists import shown_part
from ciuic.cli.opening import find_snapshot, of_configuration, opened
from ciuic.cli.options import (
    ShortOptionsCommand,
    WholeNumber,
    given,
    host_option,
    json_option,
    local_directory,
)
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.drill.drill import DrillRequest, drill, record_drill
from ciuic.drill.report import DrillReport
from ciuic.errors import DAMAGE, DONE, FAILED, TROUBLE, UsageError
from ciuic.model import SnapshotSummary, complete_ones, path_text, preferred
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock, local_time_text
from ciuic.units import (
    counted,
    format_bytes,
    format_duration,
    format_files,
    parse_size_bytes,
)

__all__ = ["command"]

_SHOWN_MAX = 20


@click.command("drill", cls=ShortOptionsCommand)
@click.option(
    "-s",
    "--snapshot",
    "snapshot_id",
    type=SNAPSHOT,
    metavar="ID",
    help="The snapshot to restore from.  [default: the newest of this machine]",
)
@host_option
@click.option("--full", is_flag=True, help="Restore every path instead of a sample.")
@click.option(
    "--files",
    "files_max",
    type=WholeNumber(1, 100_000),
    default=20,
    show_default=True,
    metavar="N",
    help="How many files to choose.",
)
@click.option(
    "--size",
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    callback=given,
    help="How much to restore at most, if it is not a full drill.",
)
@click.option(
    "--scratch",
    metavar="DIR",
    callback=given,
    shell_complete=local_directory,
    help="An existing directory for the restored files, which are removed again.  [default: $TMPDIR"
    " or /var/tmp]",
)
@click.option("--dry-run", is_flag=True, help="Name the chosen files, and restore nothing.")
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    snapshot_id: str | None,
    host: str | None,
    full: bool,
    files_max: int,
    size: str,
    scratch: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Practice a recovery: restore files, compare them, and load checkpoints.

    ciuic chooses files of the newest snapshot of this machine at random, the newest checkpoint
    among them, and restores them from the store into a scratch directory. It reads them again from
    the disk, and compares each byte with the snapshot. Then the packages that are installed for
    ciuic's Python (safetensors, torch, numpy, h5py) load the checkpoints, without running code in
    them. At the end ciuic removes the files, and records the result and the time for 'ciuic
    doctor'. If this machine has no snapshot, ciuic takes that of the only other one, and says so.

    Exits with 4 if the store is damaged or a restored file differs, with 1 if the scratch directory
    could not take a file, and with 3 if only a checkpoint did not load, or if the snapshot has no
    file and an older one has some.
    """
    try:
        size_max_bytes = parse_size_bytes(size)
    except ValueError as error:
        raise UsageError(f"--size: {error}", hint="Give a size such as 500MiB.") from error
    clock = SystemClock()
    request = DrillRequest(
        scratch=os.path.abspath(scratch or os.environ.get("TMPDIR") or "/var/tmp"),  # noqa: S108
        is_full=full,
        files_max=files_max,
        size_max_bytes=size_max_bytes,
        seed=clock.now_ns(),
        is_dry_run=dry_run,
    )
    with interruptible() as cancelled, opened(session) as store, progress("drill") as shown:
        chosen = _chosen(session, store, snapshot_id, host)
        manifest = store.manifest(chosen.id)
        report = drill(store, manifest, request, clock=clock, cancelled=cancelled, progress=shown)
    if not dry_run:
        record_drill(
            lambda wait_s: opened(session, write=True, wait_s=wait_s), report, clock.now_ns()
        )
    if report.problem:
        click.echo(f"ciuic: {printable(report.problem)}", err=True)
    if as_json:
        print_json(report.as_json())
    else:
        _print(report)
    sys.exit(_exit_code(report))


def _chosen(
    session: Session, store: Store, snapshot_id: str | None, host: str | None
) -> SnapshotSummary:
    """Return the snapshot to practice on; without an ID or a host, one that is chosen by itself."""
    text = LATEST if snapshot_id is None else snapshot_id
    listed: Sequence[SnapshotSummary] | None
    if snapshot_id is None and host is None:
        own, remark = of_this_machine(complete_ones(list_snapshots(store)))
        listed = preferred(own, session.scopes)
        if remark:
            click.echo(f"ciuic: {printable(remark)}", err=True)
    else:
        listed = of_configuration(session, store, text, host)
    return find_snapshot(session, store, text, listed=listed, host=host)


def _exit_code(report: DrillReport) -> int:
    if report.damaged or report.different:
        return DAMAGE
    if report.unrestored:
        return FAILED
    return DONE if report.ok else TROUBLE


def _print(report: DrillReport) -> None:
    when = local_time_text(report.taken_ns)
    if report.is_dry_run:
        for path in report.chosen:
            click.echo(printable(path_text(path)))
        what = counted(len(report.chosen), "path")
        click.echo(f"would restore {what} of {report.snapshot_id} ({when})", err=True)
    for what, found in (
        ("DAMAGED", report.damaged),
        ("DIFFERENT", report.different),
        ("not restored", report.unrestored),
    ):
        for bad in shown_part(found, shown_max=_SHOWN_MAX):
            click.echo(f"{printable(path_text(bad.path))}: {what}: {printable(bad.what)}")
        if len(found) > _SHOWN_MAX:
            click.echo(f"and {len(found) - _SHOWN_MAX:,} more {what}; --json has all")
    for bad_load in shown_part(report.unloadable, shown_max=_SHOWN_MAX):
        name = printable(path_text(bad_load.path))
        click.echo(f"{name}: restored, but it does not load: {printable(bad_load.what)}")
    if not report.is_dry_run:
        _print_restored(report, when)
    if report.damaged or report.different:
        advise("'ciuic verify --checksum' names all that is damaged")


def _print_restored(report: DrillReport, when: str) -> None:
    click.echo(
        f"{report.snapshot_id} ({when}): {format_files(report.files)} restored and compared,"
        f" {format_bytes(report.restored_bytes)} in {format_duration(report.restore_s)}:"
        f" {_outcome(report)}"
    )
    _print_loaded(report)
    if report.not_recorded:
        click.echo(f"the result could not be recorded: {printable(report.not_recorded)}", err=True)


def _outcome(report: DrillReport) -> str:
    if report.outcome:
        return report.outcome
    return "no fault" if report.files else "the snapshot has no complete file to practice on"


def _print_loaded(report: DrillReport) -> None:
    loaded = [found for found in report.loaded if found.by]
    if loaded:
        packages = ", ".join(sorted({found.by for found in loaded}))
        tensors = counted(sum(found.tensors for found in loaded), "tensor")
        click.echo(f"{counted(len(loaded), 'checkpoint')} loaded by {packages}, {tensors}")
    for what in sorted(
        {found.what for found in report.loaded if not found.by and not found.is_bad}
    ):
        count = sum(found.what == what for found in report.loaded)
        click.echo(f"{counted(count, 'checkpoint')} not loaded: {printable(what)}", err=True)
