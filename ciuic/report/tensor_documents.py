"""The changes of tensors between two snapshots as JSON: for ``ciuic diff`` and the library."""

import math
from collections.abc import Iterator
from typing import Final

from ciuic.documents import Document
from ciuic.formats.headers import WIDTHS
from ciuic.model import path_text
from ciuic.report.change_documents import change_json
from ciuic.report.tensors import FileTensors, TensorChange, diff_tensors, relative
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store

__all__ = ["TENSOR_WORDS", "tensor_diff_json", "tensors_json"]

TENSOR_WORDS: Final = {"+": "added", "-": "removed", "M": "changed", "?": "unknown"}


def tensor_diff_json(store: Store, before: Manifest, after: Manifest) -> Iterator[Document]:
    """Yield the document of ``ciuic diff --tensors --quick --json``, element by element.

    Args:
        store: An open store.
        before: The first snapshot.
        after: The second.

    Raises:
        CorruptionError: A tree is damaged.
    """
    for change, comparison in diff_tensors(store, before, after):
        tensors = None if comparison is None else comparison(lambda _done, _total: None)
        yield {
            **change_json(change),
            "tensors": None if tensors is None else tensors_json(tensors),
        }


def tensors_json(tensors: FileTensors) -> Document:
    """Return the member ``tensors`` of an element of ``ciuic diff --tensors --json``."""
    return {
        "compared_with": path_text(tensors.compared_with),
        "same": tensors.same,
        "trouble": tensors.what or None,
        "changes": [_tensor_json(tensor_change) for tensor_change in tensors.changes],
    }


def _tensor_json(change: TensorChange) -> Document:
    distance = change.distance
    document: Document = {
        "change": TENSOR_WORDS[change.sign],
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
