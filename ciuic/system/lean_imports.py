"""Loads a package without a module that it prefers and that costs more than it gives here."""

import importlib
import sys
from typing import Final

__all__ = ["load_msgspec"]

_PACKAGE: Final = "msgspec"
_SPARED: Final = "typing_extensions"


def load_msgspec() -> None:
    """Load msgspec without ``typing_extensions``, for a process that may be short.

    Another package needs that module, so it is installed, and msgspec then prefers it to
    ``typing``. What msgspec uses of it is also in ``typing``, from Python 3.11 on. Loading it took
    a tenth of ``ciuic list``.
    """
    if _SPARED in sys.modules:
        return
    # An import of a name with this value fails: Python's reference, "The module cache".
    sys.modules[_SPARED] = None  # type: ignore[assignment]
    try:
        importlib.import_module(_PACKAGE)
    finally:
        del sys.modules[_SPARED]
