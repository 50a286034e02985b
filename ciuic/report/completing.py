"""Completes a path that is being typed, from one directory of a snapshot."""

import os
import re
from collections.abc import Iterator
from typing import Final

from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.view.listing import children
from ciuic.view.locator import Locator

__all__ = ["continuations"]

_SLASHES: Final = re.compile(b"/+")
_CONTROLS: Final = frozenset([*range(32), 127])


def continuations(store: Store, manifest: Manifest, typed: bytes) -> Iterator[bytes]:
    """Yield the paths that begin with the typed text; directories end with a slash.

    A relative path starts at the current directory. Names with control characters are left out,
    because a shell would print them.

    Raises:
        CorruptionError: The directory is damaged.
        OSError: The current directory is gone.
    """
    if typed.startswith(b"~"):
        typed = os.path.expanduser(typed)
    # Bash adds a slash of its own after a quoted directory that exists.
    typed = _SLASHES.sub(b"/", typed)
    above, slash, begun = typed.rpartition(b"/")
    directory = os.path.abspath(above or slash or b".")
    found = {above + slash + rest: True for rest in _roots_below(manifest, directory)}
    if not typed:
        found |= {root.path: True for root in manifest.roots}
    located = Locator(store, manifest).find(directory)
    if located is not None:
        for child in children(store, located):
            if child.entry.name.startswith(begun):
                found.setdefault(above + slash + child.entry.name, child.entry.is_directory)
    for path, is_directory in found.items():
        if path.startswith(typed) and _CONTROLS.isdisjoint(path):
            yield path.rstrip(b"/") + b"/" if is_directory else path


def _roots_below(manifest: Manifest, directory: bytes) -> Iterator[bytes]:
    """Yield the roots below a directory, relative to it."""
    prefix = directory.rstrip(b"/") + b"/"
    for root in manifest.roots:
        if root.path.startswith(prefix) and root.path != prefix:
            yield root.path[len(prefix) :]
