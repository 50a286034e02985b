"""``ciuic stats``."""

import sys

import click

from ciuic.catalog import latest_snapshot, list_snapshots
from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.checks import check_lines
from ciuic.cli.error_output import advise, hinted
from ciuic.cli.opening import opened, warn_damaged
from ciuic.cli.options import (
    ShortOptionsCommand,
    WholeNumber,
    given,
    json_option,
)
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json
from ciuic.cli.session import Session
from ciuic.cli.shares import show_shares
from ciuic.cli.table import Column, cut_end, print_pair, print_table
from ciuic.cli.weights import print_weights
from ciuic.documents import Document
from ciuic.errors import DAMAGE, UsageError
from ciuic.maintain.scrub.pack_health import Health, health
from ciuic.report.amounts import Breakdown
from ciuic.report.breakdown import break_down
from ciuic.report.shares import By
from ciuic.store.store import Store
from ciuic.units import counted, format_bytes

__all__ = ["command"]


@click.command("stats", cls=ShortOptionsCommand)
@click.option(
    "--detail",
    is_flag=True,
    help="Also show totals by codec, file format and element type; takes longer.",
)
@click.option(
    "--by",
    type=click.Choice(["path", "kind", "age"]),
    help="Show what takes the space: by directory (path), file name suffix (kind), or time of last"
    " modification (age).",
)
@click.option(
    "-s",
    "--snapshot",
    "snapshot_id",
    type=SNAPSHOT,
    metavar="ID",
    callback=given,
    help="With --by: count only this snapshot.",
)
@click.option(
    "--host", metavar="H", callback=given,
    help="With --by: count only snapshots of this host: its name, or as HOST of 'list' shows it.",
)  # fmt: skip
@click.option(
    "--depth",
    type=WholeNumber(0, 64),
    metavar="N",
    help="With --by path: how far below the roots.  [default: 1]",
)
@click.option(
    "--top", type=WholeNumber(1), metavar="N", help="With --by: the largest N.  [default: 20]"
)
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    detail: bool,
    by: By | None,
    snapshot_id: str | None,
    host: str | None,
    depth: int | None,
    top: int | None,
    as_json: bool,
) -> None:
    """Show how much the store holds: logical, unique and stored bytes.

    With --by, show what takes the space. SIZE is the size of all files in all snapshots. STORED is
    what their content takes in the store; content that several groups share counts for the first of
    them: newer snapshots come first, then paths in their order. ONLY is what no other group needs:
    the space that would be freed without the group.

    With --detail, also show the packs by codec, and the newest snapshot by file format (from the
    first bytes of each file; files below 64 KiB are 'small') and by element type of its tensors.
    SIZE is the size of the files or tensors. STORED counts each chunk and each delta base once, for
    one of the files that share it; the total is the same as in 'ciuic stats --by kind -s latest'.
    The last lines describe deltas: how many chunks are deltas, how long the delta chains are, and
    how much must be read to restore the snapshot, as a multiple of its size without deltas (an
    estimate).
    """
    if by is not None:
        if detail:
            raise UsageError(
                "--by cannot be combined with --detail", hint="Run 'ciuic stats' once with each."
            )
        if depth is not None and by != "path":
            raise UsageError("--depth requires --by path", hint="Leave --depth out.")
        depth = 1 if depth is None else depth
        show_shares(session, by, snapshot_id, host, depth=depth, top=top, as_json=as_json)
        return
    if any(value is not None for value in (snapshot_id, host, depth, top)):
        raise UsageError(
            "-s, --host, --depth and --top require --by", hint="Add --by path, kind or age."
        )
    with opened(session) as store:
        document, checks = _totals(session, store)
        weights = _break_down(store, as_json=as_json) if detail else None
    if weights is not None:
        document["detail"] = weights.as_json()
    if as_json:
        print_json(document)
    else:
        _print(document, checks)
        if weights is not None:
            print_weights(weights)
    if weights is not None and weights.unknown_count:
        count = counted(weights.unknown_count, "file or chunk", "files or chunks")
        advise(
            f"ciuic: {count} of {weights.snapshot_id} cannot be read; 'ciuic verify' shows which"
        )
        sys.exit(DAMAGE)


def _totals(session: Session, store: Store) -> tuple[Document, Health]:
    """Return the command's document, and what the scrubs found."""
    snapshots = list_snapshots(store)
    warn_damaged(session, store)
    unique, stored, chunks = store.index_keeper.totals()
    checks = health(store)
    document: Document = {
        "snapshots": len(snapshots),
        "logical_bytes": sum(summary.logical_bytes for summary in snapshots),
        "unique_bytes": unique,
        "stored_bytes": stored,
        "chunks": chunks,
        "checks": checks.as_json(),
        "damaged_snapshots": session.damaged_snapshots,
    }
    return document, checks


def _break_down(store: Store, *, as_json: bool) -> Breakdown:
    newest = latest_snapshot(store)
    with progress("stats", quiet=as_json) as reporter:
        return break_down(store, None if newest is None else newest.id, progress=reporter.update)


def _print(document: Document, checks: Health) -> None:
    rows = [
        ("logical", format_bytes(document["logical_bytes"]), "all files of all snapshots"),
        ("unique", format_bytes(document["unique_bytes"]), "each piece of content once"),
        ("stored", format_bytes(document["stored_bytes"]), "in packs, encoded"),
    ]
    count = document["snapshots"]
    click.echo(counted(count, "snapshot"))
    print_table(("BYTES", Column("SIZE", right=True), Column("OF WHAT", cut=cut_end)), rows)
    for key, value in check_lines(checks):
        print_pair(f"{key}:", hinted(value), len(key) + 2)
