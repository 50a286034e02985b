"""``ciuic diff --tensors``: how each tensor changed, as text and as JSON."""

import math
from collections.abc import Iterator
from typing import Final

import click

from ciuic.cli.changes import ChangeCost, ChangeTotals, sizes_text
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json_array, printable
from ciuic.cli.table import (
    Column,
    cut_end,
    cut_middle,
    display_width,
    echo_path,
    print_table,
    terminal_columns,
)
from ciuic.formats.headers import WIDTHS
from ciuic.formats.names import Tensor
from ciuic.report.change_documents import change_json
from ciuic.report.tensor_documents import TENSOR_WORDS, tensors_json
from ciuic.report.tensors import FileTensors, TensorChange, diff_tensors, relative
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.units import format_bytes
from ciuic.view.diff import Change

__all__ = ["print_tensor_changes"]

_COLUMNS: Final = (
    Column(""),
    Column("TENSOR", cut=cut_middle),
    Column("TYPE", drop=1, cut=cut_end, least=5),
    Column("SHAPE", drop=2, cut=cut_end, least=9),
    Column("EQUAL", right=True),
    Column("DISTANCE", right=True),
)


def print_tensor_changes(
    store: Store, before: Manifest, after: Manifest, *, quick: bool, as_json: bool
) -> bool:
    """Print what ``diff`` prints, and the changed tensors of each file.

    Args:
        store: An open store.
        before: The older snapshot.
        after: The newer one.
        quick: Don't compute new content.
        as_json: Print one JSON document instead of text.

    Returns:
        Whether anything could not be read.
    """
    cost = ChangeCost(store, before, quick=quick)
    is_damaged = False

    def compared() -> Iterator[tuple[Change, int | None, FileTensors | None]]:
        nonlocal is_damaged
        for change, comparison in diff_tensors(store, before, after):
            new_bytes = cost.new_bytes(change)
            tensors = None
            if comparison is not None:
                # Nothing can be printed while a bar is shown, so each file has a bar of its own.
                with progress("compare", quiet=as_json) as reporter:
                    tensors = comparison(reporter.fraction)
            if tensors is not None:
                is_damaged |= bool(tensors.what) or any(found.what for found in tensors.changes)
            yield change, new_bytes, tensors

    if as_json:
        print_json_array(
            {
                **change_json(change, new_bytes),
                "tensors": None if tensors is None else tensors_json(tensors),
            }
            for change, new_bytes, tensors in compared()
        )
    else:
        totals = ChangeTotals()
        for change, new_bytes, tensors in compared():
            _print_change(change, sizes_text(change, new_bytes), tensors)
            totals.add(change)
        totals.print(cost)
    return is_damaged or cost.is_damaged


def _print_change(change: Change, sizes: str, tensors: FileTensors | None) -> None:
    sizes = f"  {sizes}" if sizes else ""
    if tensors is None:
        echo_path(f"{change.sign} ", change.path, sizes)
        return
    _print_heading(change, sizes, tensors.compared_with)
    if tensors.what:
        click.echo(f"  its tensors cannot be read: {printable(tensors.what)}")
        return
    if tensors.changes:
        print_table(_COLUMNS, [_row(tensor_change) for tensor_change in tensors.changes])
    for tensor_change in tensors.changes:
        if tensor_change.what:
            click.echo(
                f"  {printable(tensor_change.name)} cannot be read: {printable(tensor_change.what)}"
            )
    click.echo(f"  {_summary(tensors)}")


def _print_heading(change: Change, sizes: str, compared_with: bytes) -> None:
    """Print both paths on one line, or each on its own line if the terminal is too narrow."""
    path, other = printable(change.path), printable(compared_with)
    if compared_with == change.path:
        echo_path(f"{change.sign} ", path, sizes)
        return
    line = f"{change.sign} {path}{sizes}  against {other}"
    available = terminal_columns()
    if available is None or display_width(line) <= available:
        click.echo(line)
        return
    echo_path(f"{change.sign} ", path, sizes)
    echo_path("  against ", other)


def _summary(tensors: FileTensors) -> str:
    counts = dict.fromkeys(TENSOR_WORDS.values(), 0)
    for tensor_change in tensors.changes:
        counts[TENSOR_WORDS[tensor_change.sign]] += 1
    parts = [f"{count:,} {word}" for word, count in counts.items() if count]
    return ", ".join([*parts, f"{tensors.same:,} the same"])


def _row(change: TensorChange) -> tuple[str, ...]:
    sides = [side for side in (change.before, change.after) if side is not None]
    return (
        f"  {change.sign}",
        change.name,
        _both([side.element or "bytes" for side in sides]),
        _both([_shape(side) for side in sides]),
        _equal(change),
        _distance(change),
    )


def _both(texts: list[str]) -> str:
    """Join the old and the new text; return one of them if they are equal."""
    return " > ".join(dict.fromkeys(texts))


def _shape(tensor: Tensor) -> str:
    if tensor.shape is None:
        return format_bytes(tensor.length_bytes)
    return "x".join(map(str, tensor.shape)) or "scalar"


def _equal(change: TensorChange) -> str:
    if change.distance is None:
        return ""
    # Rounded down, so that 100% means equal.
    share = math.floor(10_000 * change.distance.equal / change.distance.elements) / 100
    return f"{share:.2f}%"


def _distance(change: TensorChange) -> str:
    distance = change.distance
    if distance is None or change.after is None or change.after.element not in WIDTHS:
        return ""
    share = relative(distance)
    if share is not None:
        text = f"{share:.3g}"
    else:
        text = "from zero" if distance.before_squared == 0 else "too large"
    return f"{text}, {distance.odd:,} not finite" if distance.odd else text
