"""``ciuic log``: histories as tables, as graphs and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Final

from ciuic.cli.chart import number_text
from ciuic.cli.render import labels
from ciuic.cli.table import Column, cut_end, cut_time, print_table
from ciuic.documents import Document
from ciuic.ids import SnapshotId
from ciuic.model import Entry, Follow, SnapshotSummary, path_text
from ciuic.report.histories.changes import Change, Descent
from ciuic.report.histories.graph import draw
from ciuic.report.histories.tensor import TensorVersion
from ciuic.system.clock import local_time_text, rfc3339
from ciuic.units import format_bytes

__all__ = [
    "change_json",
    "print_changes",
    "print_descent",
    "print_tensor",
    "snapshot_json",
    "tensor_json",
]

_Short = Mapping[SnapshotId, str]
_TAKEN: Final = Column("TAKEN", cut=cut_time, least=16)
_TAGS: Final = Column("TAGS", drop=3, cut=cut_end, least=6)
_FOLLOWS: Final = Column("FOLLOWS", drop=5)


def print_descent(rows: Sequence[Descent], short: _Short, *, graph: bool) -> None:
    """Print a line for each snapshot."""
    columns = [
        Column("ID"),
        _TAKEN,
        Column("KIND", drop=2),
        Column("SIZE", right=True, drop=1),
        _FOLLOWS,
        _TAGS,
        Column("NOTE", drop=4, cut=cut_end, least=6),
    ]
    cells = [
        [
            short.get(row.snapshot.id, row.snapshot.id),
            local_time_text(row.snapshot.taken_ns),
            row.snapshot.kind,
            format_bytes(row.snapshot.logical_bytes),
            _names(row.snapshot.follows, short),
            labels(row.snapshot.tags, pinned=row.snapshot.pinned),
            row.snapshot.note,
        ]
        for row in rows
    ]
    edges = [(row.snapshot.id, row.before) for row in rows] if graph else None
    _print(columns, cells, edges)


def print_changes(found: Sequence[Change], short: _Short, *, graph: bool) -> None:
    """Print a line for each version of a path."""
    columns = [
        Column("ID"),
        _TAKEN,
        Column("CHANGE"),
        Column("SIZE", right=True, drop=2),
        Column("MODIFIED", drop=4),
        Column("SNAPSHOTS", right=True, drop=1),
        _FOLLOWS,
        _TAGS,
    ]
    edges = [(change.first.id, change.before) for change in found] if graph else None
    _print(columns, [_row(change, short) for change in found], edges)


def print_tensor(found: Sequence[TensorVersion], short: _Short, *, graph: bool) -> None:
    """Print a line for each version of a tensor."""
    columns = [
        Column("ID"),
        _TAKEN,
        Column("CHANGE"),
        Column("DISTANCE", right=True),
        _FOLLOWS,
        _TAGS,
    ]
    cells = [
        [
            short.get(one.change.first.id, one.change.first.id),
            local_time_text(one.change.first.taken_ns),
            one.what,
            "" if one.distance is None else number_text(one.distance),
            _names([one.change.follows] if one.change.follows else [], short),
            labels(one.change.first.tags, pinned=one.change.first.pinned),
        ]
        for one in found
    ]
    edges = [(one.change.first.id, one.before) for one in found] if graph else None
    _print(columns, cells, edges)


def _print(
    columns: Sequence[Column],
    cells: Sequence[Sequence[str]],
    edges: Sequence[tuple[SnapshotId, SnapshotId | None]] | None,
) -> None:
    """Print a table; with edges, the graph in its first column. Empty columns are left out."""
    used = [
        at
        for at, column in enumerate(columns)
        if column is not _FOLLOWS or any(row[at] for row in cells)
    ]
    columns, cells = [columns[at] for at in used], [[row[at] for at in used] for row in cells]
    if edges is None:
        print_table(columns, cells)
        return
    empty = [""] * len(columns)
    print_table(
        [Column(""), *columns],
        [[line.lanes, *(empty if line.row is None else cells[line.row])] for line in draw(edges)],
    )


def _row(change: Change, short: _Short) -> list[str]:
    entry, first, size_bytes = _entry(change), change.first, _size_bytes(change)
    return [
        short.get(first.id, first.id),
        local_time_text(first.taken_ns),
        change.what,
        "" if size_bytes is None else format_bytes(size_bytes),
        "" if entry is None else local_time_text(entry.mtime_ns),
        f"{change.snapshots:,}",
        _names([change.follows] if change.follows else [], short),
        labels(first.tags, pinned=first.pinned),
    ]


def _names(follows: Sequence[Follow], short: _Short) -> str:
    names = dict.fromkeys(short.get(followed.snapshot, followed.snapshot) for followed in follows)
    return ", ".join(names)


def _entry(change: Change) -> Entry | None:
    return None if change.version is None else change.version.entry


def _size_bytes(change: Change) -> int | None:
    """Return the size of a file; None for a directory, because no snapshot records its size."""
    entry = _entry(change)
    return None if entry is None or entry.is_directory else entry.size_bytes


def snapshot_json(one: Descent) -> Document:
    """Return an element of ``ciuic log --json`` without a path."""
    return {**one.snapshot.as_json(), "before": one.before}


def change_json(change: Change, path: bytes) -> Document:
    """Return an element of ``ciuic log PATH --json``."""
    entry = _entry(change)
    return {
        "path": path_text(path),
        "change": change.what,
        "state": None if change.version is None else change.version.state,
        "what": (change.version.what or None) if change.version else None,
        "size_bytes": _size_bytes(change),
        "mtime": None if entry is None else rfc3339(entry.mtime_ns),
        "first": _id_json(change.first),
        "last": _id_json(change.last),
        "snapshots": change.snapshots,
        "before": change.before,
        "follows": None if change.follows is None else change.follows.as_json(),
    }


def tensor_json(one: TensorVersion, path: bytes, name: str) -> Document:
    """Return an element of ``ciuic log PATH --tensor NAME --json``."""
    change = one.change
    return {
        "path": path_text(path),
        "tensor": name,
        "change": one.what,
        "relative_distance": one.distance,
        "what": one.why or None,
        "first": _id_json(change.first),
        "before": one.before,
        "follows": None if change.follows is None else change.follows.as_json(),
    }


def _id_json(summary: SnapshotSummary) -> Document:
    return {"id": summary.id, "taken": rfc3339(summary.taken_ns), "tags": list(summary.tags)}
