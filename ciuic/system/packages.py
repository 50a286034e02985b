"""How to install a package for the Python that runs ciuic."""

import shlex
import sys

__all__ = ["pip_install"]


def pip_install(*arguments: str) -> str:
    """Return the command that installs packages where this process would import them.

    A plain ``pip`` may belong to another environment: ciuic's own is rarely first in ``$PATH``.
    """
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *arguments])
