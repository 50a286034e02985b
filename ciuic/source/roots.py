"""Which configured directories are not there: a misspelled one, or one that is not mounted yet."""

import os
import stat
from collections.abc import Iterable

from ciuic.system.workers.asking import ask

__all__ = ["absent_roots"]


def absent_roots(roots: Iterable[str]) -> list[str]:
    """Return the roots at which there is no directory; not those that this user may not look at.

    A network file system whose server is gone may never answer. The roots that this user learns
    nothing about within two seconds are left out as well.
    """
    absent: list[str] = []
    wanted = list(roots)
    ask(lambda: _look(wanted, absent))
    return list(absent)


def _look(roots: Iterable[str], absent: list[str]) -> None:
    for root in roots:
        try:
            is_there = stat.S_ISDIR(os.stat(root).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        except OSError:
            continue
        if not is_there:
            absent.append(root)
