"""``ciuic diff --tensors``: what became of each tensor, for people and for programs."""

import math
from typing import Any, Final

import click

from ciuic.chunking.tensors.described import Tensor
from ciuic.chunking.tensors.headers import WIDTHS
from ciuic.cli.look import change_json
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, print_table, printable
from ciuic.model import path_text
from ciuic.units import format_bytes
from ciuic.verbs.browse import Change
from ciuic.verbs.tensors import FileTensors, TensorChange, diff_tensors, relative

__all__ = ["print_tensor_changes"]

_WORDS: Final = {"+": "added", "-": "removed", "M": "changed", "?": "unknown"}
_HEADER: Final = ("", "TENSOR", "TYPE", "SHAPE", "EQUAL", "DISTANCE")


def print_tensor_changes(store: Any, before: Any, after: Any, *, as_json: bool) -> bool:
    """Print what changed between two snapshots; returns whether anything could not be read."""
    is_damaged = False
    documents = []
    for change, comparison in diff_tensors(store, before, after):
        tensors = None
        if comparison is not None:
            # One at a time: as long as a bar is shown nothing can be printed.
            with progress("compare", quiet=as_json) as reporter:
                tensors = comparison(reporter.fraction)
        if tensors is not None:
            is_damaged |= bool(tensors.what) or any(one.what for one in tensors.changes)
        if as_json:
            documents.append(_change_json(change, tensors))
        else:
            _print_change(change, tensors)
    if as_json:
        print_json(documents)
    return is_damaged


def _change_json(change: Change, tensors: FileTensors | None) -> dict[str, Any]:
    return change_json(change) | {"tensors": None if tensors is None else _tensors_json(tensors)}


def _tensors_json(tensors: FileTensors) -> dict[str, Any]:
    return {
        "compared_with": path_text(tensors.compared_with),
        "same": tensors.same,
        "trouble": tensors.what or None,
        "changes": [_tensor_json(one) for one in tensors.changes],
    }


def _tensor_json(change: TensorChange) -> dict[str, Any]:
    distance = change.distance
    document: dict[str, Any] = {
        "change": _WORDS[change.sign],
        "name": change.name,
        "type_before": change.before.element if change.before else None,
        "type_after": change.after.element if change.after else None,
        "shape_before": change.before.shape if change.before else None,
        "shape_after": change.after.shape if change.after else None,
        "size_before_bytes": change.before.length_bytes if change.before else None,
        "size_after_bytes": change.after.length_bytes if change.after else None,
        "trouble": change.what or None,
        "compared": None,
        "equal_share": None,
        "relative_distance": None,
        "distance": None,
        "not_finite": None,
    }
    if distance is None or change.after is None:
        return document
    is_numeric = change.after.element in WIDTHS
    document["compared"] = "elements" if is_numeric else "bytes"
    document["equal_share"] = distance.equal / distance.elements
    if is_numeric:
        document["relative_distance"] = relative(distance)
        document["distance"] = _finite(math.sqrt(distance.apart_squared))
        document["not_finite"] = distance.odd
    return document


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _print_change(change: Change, tensors: FileTensors | None) -> None:
    if tensors is None:
        click.echo(f"{change.sign} {printable(change.path)}")
        return
    with_other = tensors.compared_with != change.path
    other = f"  against {printable(tensors.compared_with)}" if with_other else ""
    click.echo(f"{change.sign} {printable(change.path)}{other}")
    if tensors.what:
        click.echo(f"  its tensors can't be read: {printable(tensors.what)}")
        return
    if tensors.changes:
        print_table(_HEADER, [_row(one) for one in tensors.changes], right=frozenset({4, 5}))
    for one in tensors.changes:
        if one.what:
            click.echo(f"  {printable(one.name)} can't be read: {printable(one.what)}")
    click.echo(f"  {_summary(tensors)}")


def _summary(tensors: FileTensors) -> str:
    counts = dict.fromkeys(_WORDS.values(), 0)
    for one in tensors.changes:
        counts[_WORDS[one.sign]] += 1
    told = [f"{count:,} {word}" for word, count in counts.items() if count]
    return ", ".join([*told, f"{tensors.same:,} the same"])


def _row(change: TensorChange) -> tuple[str, ...]:
    sides = [one for one in (change.before, change.after) if one is not None]
    return (
        f"  {change.sign}",
        change.name,
        _both([one.element or "bytes" for one in sides]),
        _both([_shape(one) for one in sides]),
        _equal(change),
        _distance(change),
    )


def _both(texts: list[str]) -> str:
    """What it was and what it is, if that is not the same."""
    return " > ".join(dict.fromkeys(texts))


def _shape(tensor: Tensor) -> str:
    if tensor.shape is None:
        return format_bytes(tensor.length_bytes)
    return "x".join(map(str, tensor.shape)) or "scalar"


def _equal(change: TensorChange) -> str:
    if change.distance is None:
        return ""
    # Rounded down: only what is equal is 100 %.
    share = math.floor(10_000 * change.distance.equal / change.distance.elements) / 100
    return f"{share:.2f} %"


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
