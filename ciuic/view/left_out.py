"""Which rule of a snapshot leaves out a path that the snapshot does not have."""

import os
from collections.abc import Callable
from functools import cached_property
from typing import Final

from ciuic.model import ExcludeRules
from ciuic.source.exclusions import CACHE_TAG, Exclusions
from ciuic.store.records.manifest import Manifest
from ciuic.units import format_bytes

__all__ = ["LeftOut", "rules_text"]

_MARKS_MAX: Final = 1000
"""Directories whose mark files are remembered."""


class LeftOut:
    """Explains why one snapshot does not have a path.

    Args:
        manifest: The snapshot's manifest.
        has: Returns whether the snapshot has an absolute path.
    """

    def __init__(self, manifest: Manifest, has: Callable[[bytes], bool]) -> None:
        self._manifest = manifest
        self._has = has
        self._marks: dict[bytes, bytes] = {}

    @cached_property
    def _exclusions(self) -> Exclusions | None:
        try:
            return Exclusions(self._manifest.exclude)
        except ValueError:
            return None  # a hostile manifest: its rules explain nothing

    def rule(self, path: bytes, size_bytes: int | None = None) -> str:
        """Return the rule that leaves out an absolute path, in words; empty if no rule is known to.

        Args:
            path: Absolute.
            size_bytes: Size of the regular file that another snapshot has at this path; None if
                it has none.
        """
        exclusions = self._exclusions
        top = self._root_of(path)
        if exclusions is None or top is None:
            return ""
        at = top
        for name in path[len(top) :].split(b"/"):
            if not name:
                continue
            if exclusions.match_path(at, name):
                return f"'{exclusions.pattern_of(at, name)}'"
            mark = self._mark(at)
            if mark and name != mark:
                return f"the mark {os.fsdecode(mark)} in {os.fsdecode(at)}"
            at = os.path.join(at, name)
        limit = exclusions.largest_bytes
        if limit is not None and size_bytes is not None and size_bytes > limit:
            return f"the limit of {format_bytes(limit)}"
        return ""

    def _root_of(self, path: bytes) -> bytes | None:
        for root in self._manifest.roots:
            if root.tree and path.startswith(root.path.rstrip(b"/") + b"/"):
                return root.path
        return None

    def _mark(self, directory: bytes) -> bytes:
        """Return the mark for which the snapshot left out the rest of a directory; else nothing."""
        rules = self._manifest.exclude
        names = [os.fsencode(name) for name in rules.if_present]
        names += [CACHE_TAG] if rules.caches else []
        if names and directory not in self._marks:
            if len(self._marks) >= _MARKS_MAX:
                self._marks.clear()
            found = (name for name in names if self._has(os.path.join(directory, name)))
            self._marks[directory] = next(found, b"")
        return self._marks.get(directory, b"")


def rules_text(rules: ExcludeRules) -> str:
    """Return exclude rules in words; empty if they leave nothing out."""
    texts = list(rules.patterns)
    if rules.larger_than_bytes:
        texts.append(f"files longer than {format_bytes(rules.larger_than_bytes)}")
    if rules.caches:
        texts.append("caches")
    texts += [f"what is beside {name}" for name in rules.if_present]
    return ", ".join(texts)
