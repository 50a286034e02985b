"""The files that a pattern names: ``logs/rank*.jsonl``."""

import glob
import os
import stat
from collections.abc import Sequence
from typing import Final

__all__ = ["FILES_MAX", "log_files"]

FILES_MAX: Final = 1024
"""One for each rank of a large job."""
_COMPRESSED: Final = (b".gz", b".bz2", b".xz", b".zst")


def log_files(patterns: Sequence[bytes]) -> list[bytes]:
    """Return the paths that patterns name, in order, each file once.

    A path that exists is taken as it is, whatever characters it has. A pattern leaves out
    compressed files: rotated logs. A path without wildcards is returned even if it does
    not exist yet.
    """
    found: dict[bytes, None] = {}
    for pattern in patterns:
        if os.path.lexists(pattern) or not glob.has_magic(pattern):
            found[pattern] = None
            continue
        matches = sorted(path for path in glob.iglob(pattern) if not path.endswith(_COMPRESSED))
        found.update(dict.fromkeys(path for path in matches if _is_regular(path)))
    return list(found)[:FILES_MAX]


def _is_regular(path: bytes) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
