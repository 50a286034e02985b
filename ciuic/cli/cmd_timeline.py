"""``ciuic timeline``."""

from collections.abc import Mapping, Sequence
from typing import Final

import click

from ciuic.catalog import HOW_TO_TAKE, list_snapshots
from ciuic.cli.candidates import known_tags
from ciuic.cli.chart import Mark, chart_lines, has_unicode, number_text
from ciuic.cli.error_output import advise
from ciuic.cli.lists import matching, none_matches
from ciuic.cli.opening import shown_ids, warn_damaged
from ciuic.cli.options import (
    WholeNumber,
    absolute,
    copies_option,
    given,
    host_option,
    json_option,
    logs_option,
)
from ciuic.cli.progress import progress
from ciuic.cli.read_copies import opened_with_copies
from ciuic.cli.render import brief, coloured, labels, print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import Column, cut_end, cut_time, print_table, terminal_columns
from ciuic.documents import Document
from ciuic.errors import UsageError
from ciuic.guard.logs.paths import log_files
from ciuic.ids import SnapshotId
from ciuic.maintain.scrub.pack_health import health
from ciuic.model import SnapshotSummary, path_text
from ciuic.system.clock import local_time_text
from ciuic.timeline.logs import fields_of
from ciuic.timeline.placing import BY_STORED
from ciuic.timeline.timeline import (
    DAMAGED,
    IN_FLUX,
    STATES,
    SUSPECT,
    WHOLE,
    Marker,
    Timeline,
    make_timeline,
)
from ciuic.units import counted, format_bytes, inflected

__all__ = ["command"]

_HEIGHT: Final = 12
_WIDTH_IN_PIPE: Final = 80
_ROWS: Final = 20
_SIGNS: Final = {
    WHOLE: ("▲", "^", "green"),
    IN_FLUX: ("~", "~", "yellow"),
    SUSPECT: ("!", "!", "magenta"),
    DAMAGED: ("x", "x", "red"),
}
_PINNED: Final = ("◆", "P", "blue")
_COLUMNS: Final = (
    Column("ID"),
    Column("STEP", right=True),
    Column("VALUE", right=True, drop=1),
    Column("TAKEN", cut=cut_time, least=16, drop=4),
    Column("STATE", drop=2),
    Column("SIZE", right=True, drop=5),
    Column("TAGS", drop=3, cut=cut_end, least=6),
)


@click.command("timeline")
@logs_option(
    "A log with a JSON object in each line, or a pattern that names several; may be repeated."
)
@click.option(
    "--field",
    metavar="NAME",
    callback=given,
    help="The field to draw; 'a.b' is b in a.  [default: loss, or the first metric]",
)
@click.option("--tag", metavar="T", shell_complete=known_tags, help="Only snapshots with this tag.")
@host_option
@click.option("--root", metavar="P", callback=given, help="Only snapshots of this root.")
@click.option(
    "--top", type=WholeNumber(1), metavar="N", help="List the newest N snapshots.  [default: 20]"
)
@copies_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    logs: tuple[str, ...],
    field: str | None,
    tag: str | None,
    host: str | None,
    root: str | None,
    top: int | None,
    as_json: bool,
) -> None:
    """Draw what a training logged, with the snapshots below it.

    A snapshot is placed at its step. A snapshot of the library holds its step. For other snapshots,
    ciuic looks where the log that they hold ends in FILE. If FILE was started over later, and does
    not begin with that log, the step is the last step in that log. If they don't hold the log,
    ciuic compares the time of the snapshot with the times in FILE ('time', 'timestamp' or 'ts').
    VALUE is the last value before the snapshot. Without --log, the curve shows the metrics in
    snapshots of the library.

    STATE is whole, in flux (a program was writing), suspect (taken after a rule had fired) or
    damaged, as far as ciuic knows without reading content.
    """
    paths = log_files([absolute(log) for log in logs])
    if logs and not paths:
        raise UsageError(
            f"no log matches {', '.join(map(repr, logs))}",
            hint="Name a file with a JSON object in each line.",
        )
    covered = None if root is None else absolute(root)
    with opened_with_copies(session) as store:
        listed = list_snapshots(store)
        snapshots = matching(listed, tag=tag, root=covered, host=host)
        warn_damaged(session, store)
        with progress("timeline", quiet=as_json) as shown:
            found = make_timeline(
                store,
                snapshots,
                paths,
                field=field,
                read=lambda size_bytes, path: shown.update(0, size_bytes, path),
            )
        checks = health(store, is_asked=False)
        unchecked = checks.unchecked if checks.is_known else None
        short = {} if as_json else shown_ids(store)
    if as_json:
        print_json({**_document(found), "unchecked_packs": unchecked})
        return
    _draw(found)
    _print(found, short, _ROWS if top is None else top)
    _explain(found, none_matches(listed, tag=tag, root=root, host=host), has_logs=bool(paths))
    if found.markers and unchecked != 0:
        _explain_unchecked(unchecked)


def _document(found: Timeline) -> Document:
    return {
        "field": found.field,
        "logs": [
            {
                "path": path_text(log.path),
                "first_step": log.first_step,
                "last_step": log.last_step,
                "rollbacks": log.rollbacks,
                "broken_lines": log.broken_lines,
                "lines_without_step": log.lines_without_step,
                "long_lines": log.long_lines,
            }
            for log in found.logs
        ],
        "curves": [[list(point) for point in curve] for curve in found.curves],
        "not_finite": found.not_finite,
        "snapshots": [
            {
                **marker.snapshot.as_json(),
                "state": marker.state,
                "step": marker.step,
                "value": _finite(marker.value),
                "placed_by": marker.placed_by or None,
            }
            for marker in found.markers
        ],
    }


def _finite(value: float | None) -> float | None:
    """Return a value as JSON can hold it."""
    return value if value is not None and abs(value) < float("inf") else None


def _draw(found: Timeline) -> None:
    marks = [
        Mark(marker.step, *_sign(marker), _rank(marker))
        for marker in found.markers
        if marker.step is not None
    ]
    if not marks and not found.curves:
        return
    if found.field is not None:
        click.echo(printable(brief(found.field)))
    width = terminal_columns() or _WIDTH_IN_PIPE
    for line in chart_lines(found.curves, marks, width=width, height=_HEIGHT):
        click.echo(line)
    states = {marker.state for marker in found.markers if not marker.snapshot.pinned}
    legend = [f"{_colour(*_SIGNS[state])} {state}" for state in STATES if state in states]
    if any(marker.snapshot.pinned for marker in found.markers):
        legend.append(f"{_colour(*_PINNED)} pinned")
    if marks:
        click.echo(f"snapshots: {'  '.join(legend)}\n")


def _colour(sign: str, plain: str, colour: str) -> str:
    return coloured(sign if has_unicode() else plain, colour)


def _sign(marker: Marker) -> tuple[str, str]:
    is_pin = marker.snapshot.pinned and marker.state != DAMAGED
    sign, plain, colour = _PINNED if is_pin else _SIGNS[marker.state]
    return sign if has_unicode() else plain, colour


def _rank(marker: Marker) -> int:
    """Return the priority of a snapshot where several share a column of the chart."""
    return 2 * STATES.index(marker.state) + marker.snapshot.pinned


def _print(found: Timeline, short: Mapping[SnapshotId, str], top: int) -> None:
    rows = [_row(marker, short) for marker in found.markers[:top]]
    if rows:
        print_table(_COLUMNS, rows)
    if len(found.markers) > top:
        click.echo(f"and {len(found.markers) - top:,} older; --top shows them", err=True)


def _row(marker: Marker, short: Mapping[SnapshotId, str]) -> Sequence[str]:
    one: SnapshotSummary = marker.snapshot
    return (
        short.get(one.id, one.id),
        "" if marker.step is None else f"{marker.step:,}",
        "" if marker.value is None else number_text(marker.value),
        local_time_text(one.taken_ns),
        marker.state,
        format_bytes(one.logical_bytes),
        labels(one.tags, pinned=one.pinned),
    )


def _explain(found: Timeline, absence: str, *, has_logs: bool) -> None:
    """Say on stderr what the chart lacks."""
    if not found.markers:
        click.echo(absence or f"no snapshot. {HOW_TO_TAKE}", err=True)
    placed = sum(marker.step is not None for marker in found.markers)
    if len(found.markers) > placed:
        count = counted(len(found.markers) - placed, "snapshot")
        why = (
            "the log was not in them, and has no times that fit"
            if has_logs
            else "only snapshots of the library hold their step; name a log with --log"
        )
        click.echo(f"ciuic: {count} without a step: {why}", err=True)
    other = sum(marker.placed_by == BY_STORED for marker in found.markers)
    if other:
        hold = f"{counted(other, 'snapshot')} {inflected(other, 'holds', 'hold')}"
        click.echo(
            f"ciuic: {hold} a log that has been started over; STEP and VALUE are from its end",
            err=True,
        )
    if found.field is None and has_logs:
        click.echo("ciuic: no log has a field with numbers", err=True)
    elif not found.curves and found.field is not None:
        click.echo(f"ciuic: no value of '{printable(brief(found.field))}' was found", err=True)
        known = dict.fromkeys(name for log in found.logs for name in fields_of(log.path))
        if known:
            click.echo(
                f"ciuic: fields with numbers: {printable(brief(', '.join(known)))}", err=True
            )
    if found.not_finite:
        click.echo(f"ciuic: {counted(found.not_finite, 'value')} not finite", err=True)
    broken = sum(log.broken_lines + log.lines_without_step + log.long_lines for log in found.logs)
    if broken:
        click.echo(f"ciuic: left out {counted(broken, 'line')} without a step", err=True)


def _explain_unchecked(packs: int | None) -> None:
    if packs is None:
        advise(
            "ciuic: this machine does not know which packs of the bucket were read, nor of damage"
            " there: see 'ciuic scrub'"
        )
        return
    were, they = ("was", "it was") if packs == 1 else ("were", "they were")
    advise(
        f"ciuic: {counted(packs, 'pack')} {were} not read since {they} written, so no damage"
        " there is known yet: see 'ciuic scrub'"
    )
