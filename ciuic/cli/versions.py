"""``ciuic list --path``: the snapshots that hold a path, and whether it is intact there."""

from collections.abc import Mapping, Sequence
from typing import Final

import click

from ciuic.chains import SnapshotChain
from ciuic.cli.error_output import advise
from ciuic.cli.render import brief, labels, print_json_array, printable
from ciuic.cli.table import Column, cut_end, cut_time, print_table
from ciuic.documents import Document
from ciuic.ids import SnapshotId
from ciuic.model import path_text
from ciuic.report.versions import DAMAGED, Version
from ciuic.system.clock import local_time_text, rfc3339
from ciuic.system.machine import Machine, names_of
from ciuic.units import format_bytes

__all__ = ["print_versions"]

_COLUMNS: Final = (
    Column("ID"),
    Column("TAKEN", cut=cut_time, least=16),
    Column("SIZE", right=True, drop=2),
    Column("MODIFIED", drop=4),
    Column("STATE"),
    Column("SAME AS", drop=1),
    Column("HOST", drop=5, cut=cut_end, least=6),
    Column("TAGS", drop=3, cut=cut_end, least=6),
)


def print_versions(
    found: Sequence[Version],
    chains: Mapping[SnapshotId, SnapshotChain],
    *,
    path: bytes,
    short: Mapping[SnapshotId, str],
    as_json: bool,
    machine_readable: bool,
) -> bool:
    """Print versions of a path, in a table with short IDs; return whether any is damaged."""
    if as_json:
        print_json_array(_json(version, chains, path) for version in found)
    elif machine_readable:
        for version in found:
            click.echo(_line(version))
    else:
        _print_table(found, short)
    damaged = [version for version in found if version.state == DAMAGED]
    for version in damaged:
        click.echo(
            f"ciuic: {printable(path)} in {version.snapshot.id}: {printable(version.what)}",
            err=True,
        )
    if damaged:
        advise("       'ciuic verify ID' names what is damaged.")
    return bool(damaged)


def _json(version: Version, chains: Mapping[SnapshotId, SnapshotChain], path: bytes) -> Document:
    return {
        **version.snapshot.as_json(),
        **chains[version.snapshot.id].as_json(),
        "path": {
            "path": path_text(path),
            "state": version.state,
            "what": version.what or None,
            "size_bytes": _size_bytes(version),
            "mtime": None if version.entry is None else rfc3339(version.entry.mtime_ns),
            "same_as": version.same_as,
        },
    }


def _size_bytes(version: Version) -> int | None:
    """Return the size of the path; None for a directory, because no snapshot records its size."""
    entry = version.entry
    return None if entry is None or entry.is_directory else entry.size_bytes


def _line(version: Version) -> str:
    summary, size_bytes = version.snapshot, _size_bytes(version)
    return (
        f"{summary.id}|{local_time_text(summary.taken_ns)}|{summary.logical_bytes}"
        f"|{version.state}|{version.same_as or ''}|{'' if size_bytes is None else size_bytes}"
    )


def _print_table(found: Sequence[Version], short: Mapping[SnapshotId, str]) -> None:
    """Print the versions; HOST only if they are of several machines."""
    names = names_of(version.snapshot.owner.machine for version in found)
    columns = [column for column in _COLUMNS if column.name != "HOST" or len(names) > 1]
    rows = [
        dict(zip((column.name for column in _COLUMNS), _row(version, short, names), strict=True))
        for version in found
    ]
    print_table(columns, [[row[column.name] for column in columns] for row in rows])


def _row(
    version: Version, short: Mapping[SnapshotId, str], names: Mapping[Machine, str]
) -> list[str]:
    entry, summary, size_bytes = version.entry, version.snapshot, _size_bytes(version)
    return [
        short.get(summary.id, summary.id),
        local_time_text(summary.taken_ns),
        "" if size_bytes is None else format_bytes(size_bytes),
        "" if entry is None else local_time_text(entry.mtime_ns),
        version.state,
        "" if version.same_as is None else short.get(version.same_as, version.same_as),
        brief(names[summary.owner.machine]),
        labels(summary.tags, pinned=summary.pinned),
    ]
