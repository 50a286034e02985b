"""The command line: one file per command, ``cmd_NAME.py``, each thin over a verb.

``group`` knows the commands and imports a command's file when that command runs; ``entry`` turns
errors into exit codes.
"""

import gc

# Before the imports: they create so many lasting objects that searching them for garbage took 7 %
# of a short command. What a command leaves behind in cycles is little.
gc.set_threshold(100_000)

from ciuic.cli.entry import main, program  # noqa: E402 - see above
from ciuic.cli.group import cli  # noqa: E402

__all__ = ["cli", "main", "program"]
