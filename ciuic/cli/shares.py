"""``ciuic stats --by``: what takes the space in the store, group by group."""

import sys
from collections.abc import Sequence
from typing import Final

import click

from ciuic.cli.chart import has_unicode
from ciuic.cli.error_output import advise
from ciuic.cli.opening import chosen_snapshots, opened
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json
from ciuic.cli.session import Session
from ciuic.cli.table import Column, cut_middle, print_table
from ciuic.documents import Document
from ciuic.errors import DAMAGE
from ciuic.report.shares import By, find_shares
from ciuic.system.clock import SystemClock
from ciuic.units import counted, format_bytes

__all__ = ["show_shares"]

_TOP_DEFAULT: Final = 20
_BAR: Final = 20
"""Characters of a bar."""


def show_shares(
    session: Session,
    by: By,
    snapshot_id: str | None,
    host: str | None,
    *,
    depth: int,
    top: int | None,
    as_json: bool,
) -> None:
    """Print what takes the space; end the command with the code for damage if any is damaged.

    Args:
        session: Names the store.
        by: What makes a group.
        snapshot_id: Count only this snapshot; None: all.
        host: Count only the snapshots of this host; None: all.
        depth: With ``path``: how far below its root a group's directory is.
        top: Print only this many groups; None: all in JSON, 20 in a table.
        as_json: Print one document instead of a table.
    """
    with opened(session) as store:
        chosen = chosen_snapshots(session, store, snapshot_id, host)
        with progress("stats", quiet=as_json) as shown:
            shown.expect(0, sum(summary.logical_bytes for summary in chosen), about=True)
            shares = find_shares(
                store,
                chosen,
                by=by,
                depth=depth,
                now_ns=SystemClock().now_ns(),
                progress=shown.update,
            )
    document = {"snapshots": len(chosen), **shares.as_json(by)}
    groups = document["groups"]
    if as_json:
        document["groups"] = groups[:top]
        print_json(document)
    else:
        _print(by, groups, _TOP_DEFAULT if top is None else top)
    if shares.unread_count:
        count = counted(shares.unread_count, "file or directory", "files or directories")
        advise(f"ciuic: {count} cannot be read: see 'ciuic verify'")
        sys.exit(DAMAGE)


def _bar(part: int, whole: int) -> str:
    """Return a share as a bar and a number; a share that is not 0 has a bar."""
    if not part:
        return ""
    length = max(1, round(_BAR * part / whole))
    return f"{('█' if has_unicode() else '#') * length} {100 * part / whole:.0f}%"


def _print(by: By, groups: Sequence[Document], top: int) -> None:
    columns = (
        Column(by.upper(), cut=cut_middle),
        Column("FILES", right=True, drop=2),
        Column("SIZE", right=True, drop=1),
        Column("STORED", right=True),
        Column("ONLY", right=True),
        Column("SHARE", drop=3),
    )
    stored = sum(group["stored_bytes"] for group in groups)
    rows = [
        (
            group[by],
            f"{group['files']:,}",
            format_bytes(group["logical_bytes"]),
            format_bytes(group["stored_bytes"]),
            format_bytes(group["only_bytes"]),
            _bar(group["stored_bytes"], stored),
        )
        for group in groups[:top]
    ]
    print_table(columns, rows)
    if len(groups) > top:
        rest = sum(group["stored_bytes"] for group in groups[top:])
        more = f"{len(groups) - top:,} more with {format_bytes(rest)} stored"
        click.echo(f"and {more}; --top shows them", err=True)
