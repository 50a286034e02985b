"""The command line: one file per command, ``cmd_NAME.py``, each thin over a verb.

``group`` knows the commands and imports a command's file when that command runs; ``entry`` turns
errors into exit codes.
"""

from ciuic.cli.entry import main, program
from ciuic.cli.group import cli

__all__ = ["cli", "main", "program"]
