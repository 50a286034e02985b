"""``scripts/demo``: reads the arguments, runs the demonstration, and always cleans up.

Exit codes: 0 every claim came true, 1 a claim failed and a sentence says which, 2 wrong usage.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from types import FrameType

from demonstration.acts import FULL, QUICK, play
from demonstration.stage import DemoError, Stage, StoppedError

__all__ = ["main"]


def main() -> int:
    """Run the demonstration; return the exit code (see the module)."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Kill a real training run in the middle of a checkpoint, and recover it. "
        "Takes about a minute, needs no root, and leaves nothing behind.",
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory, to look around")
    parser.add_argument("--quick", action="store_true", help="fewer snapshots, fewer steps")
    parser.add_argument(
        "--no-install", action="store_true", help="use the ciuic and the python that are on PATH"
    )
    arguments = parser.parse_args()

    began_s = time.monotonic()
    directory = os.path.realpath(tempfile.mkdtemp(prefix="ciuic-demo-"))
    stage = Stage(directory, _environment(), colours=_wants_colours())

    def ask_to_stop(number: int, _frame: FrameType | None) -> None:
        stage.stopped_by = number

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ask_to_stop)
    code = 1
    try:
        play(
            stage,
            os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
            QUICK if arguments.quick else FULL,
            install=not arguments.no_install,
        )
        code = 0
    except DemoError as error:
        stage.stop_all()
        sys.stdout.flush()
        print(f"\n{stage.last_words()}scripts/demo: FAILED: {error}.", file=sys.stderr)
    except StoppedError:
        print("\nscripts/demo: stopped by a signal.", file=sys.stderr)
        code = 128 + (stage.stopped_by or 0)
    finally:
        stage.stop_all()
        _clean_up(directory, keep=arguments.keep)
    if code == 0:
        print(f"\nEvery claim came true, in {time.monotonic() - began_s:.0f} s.", flush=True)
    return code


def _clean_up(directory: str, *, keep: bool) -> None:
    """Remove everything, or print how to continue in the directory."""
    if keep:
        print(f"\nTo look around:\n  cd {directory}", file=sys.stderr)
        if os.path.exists(os.path.join(directory, "venv")):
            print("  . venv/bin/activate", file=sys.stderr)
        print(f"  export CIUIC_CONFIG={directory}/ciuic.conf", file=sys.stderr)
        return
    try:
        shutil.rmtree(directory)
    except OSError as error:
        print(f"scripts/demo: {directory} could not be removed: {error}", file=sys.stderr)


def _environment() -> dict[str, str]:
    """Return the environment without variables that select another ciuic or another store."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "CIUIC_CONFIG", "CIUIC_STORE"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _wants_colours() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        # The reader is gone; the flush of the remaining output at exit must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
