"""Looks for checkpoints that no snapshot has: files outside every root that a program has open."""

import os
from collections.abc import Iterator, Sequence
from typing import Final

from ciuic.formats.soundness import CHECKPOINT_SUFFIXES
from ciuic.model import path_text
from ciuic.report.doctor.findings import NOTE, OK, WARNING, Finding, join
from ciuic.source.writers import find_checkpoints
from ciuic.units import counted

__all__ = ["examine_coverage"]

_NOT_STATE: Final = (b"/proc/", b"/sys/", b"/dev/", b"/usr/", b"/memfd:")
_PACKAGES: Final = b"/site-packages/"
"""Files of an installed package, not the state of a training."""


def examine_coverage(roots: Sequence[bytes], store_path: str | None) -> Iterator[Finding]:
    """Name the files that look like checkpoints, are open, and are outside every root."""
    if not roots:
        what = "no directory is configured, so snapshots cover nothing"
        yield Finding(WARNING, "coverage", what, "Set snapshot_paths in the configuration.")
        return
    covered = [os.path.realpath(root) for root in roots]
    if store_path is not None:
        covered.append(os.path.realpath(os.fsencode(store_path)))
    below = tuple(place.rstrip(b"/") + b"/" for place in covered)
    outside = {
        path: holder
        for path, holder in sorted(find_checkpoints(CHECKPOINT_SUFFIXES).items())
        if not path.startswith((*below, *_NOT_STATE)) and _PACKAGES not in path
    }
    if outside:
        named = [f"{path_text(path)} of {holder}" for path, holder in outside.items()]
        count = counted(len(outside), "open file")
        what = f"{count} of checkpoints outside every directory of snapshots: {join(named)}"
        advice = "Add the directories to snapshot_paths, unless another tool protects them."
        yield Finding(WARNING, "coverage", what, advice)
    elif os.geteuid():
        what = "no program of this user has a checkpoint open outside the directories of snapshots"
        yield Finding(NOTE, "coverage", what, "Run doctor as root to see all programs.")
    else:
        what = (
            "every checkpoint that a program has open is in a directory of snapshots; programs in"
            " containers were not looked at"
        )
        yield Finding(OK, "coverage", what)
