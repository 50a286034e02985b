"""The command line: one file per command, ``cmd_NAME.py``, each thin over a verb.

``group`` knows the commands and imports a command's file when that command runs; ``entry`` turns
errors into exit codes.
"""

import gc

# Set before the imports: Python looked for garbage while they create objects that stay, which took
# 7 % of a short command. A command creates few cycles, so little garbage stays.
gc.set_threshold(100_000)

try:
    from ciuic.cli.entry import main, program
    from ciuic.cli.group import cli
except KeyboardInterrupt:
    # Nothing has begun, and Python would print where. As a shell has it: 128 and SIGINT.
    raise SystemExit(130) from None

__all__ = ["cli", "main", "program"]
