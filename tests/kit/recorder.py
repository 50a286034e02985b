"""Running ``ciuic`` under strace, and recording what it does to a directory."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.journal import Journal, Mark, read_image
from tests.kit.program import Outcome, ciuic
from tests.kit.replay import CALLS, Replay

__all__ = ["Recorder"]


class Recorder:
    """Runs ``ciuic`` and records what it does below one directory.

    Args:
        top: The directory; only the recorded runs may write to it.
        scratch: A directory for traces.
        journal: A journal to continue, instead of starting with the existing directory.
    """

    def __init__(self, top: Path, scratch: Path, journal: Journal | None = None) -> None:
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed")
        self.top = top
        self.journal = journal or Journal(read_image(top))
        self._trace = scratch / "trace"
        self._top = os.path.realpath(os.fsencode(top))

    def run(self, *arguments: str | Path, codes: Sequence[int] = (0,)) -> Outcome:
        """Run a command to its end, and record its operations."""
        options = ("-f", "-qq", "-xx", "-s", str(1 << 28), "--seccomp-bpf")
        traced = ("-o", str(self._trace), "-e", f"trace={','.join(sorted(CALLS))}")
        self.mark("begin", " ".join(str(argument) for argument in arguments))
        done = ciuic(*arguments, wrapper=("strace", *options, *traced))
        assert done.code in codes, done
        with self._trace.open("rb") as lines:
            Replay(self.journal, self._top).play(lines)
        self._trace.unlink()
        self.mark("end", " ".join(str(argument) for argument in arguments))
        self._take_times()
        return done

    @property
    def position(self) -> int:
        """The number of operations so far."""
        return len(self.journal.operations)

    def reported(self, begin: int) -> int:
        """Return when the command that began there had printed its last line, or had ended."""
        marks = [
            at
            for at, operation in enumerate(self.journal.operations)
            if isinstance(operation, Mark)
            and operation.what == "say"
            and operation.text.strip()
            and at >= begin
        ]
        return marks[-1] if marks else self.position - 1

    def mark(self, what: str, text: str) -> None:
        """Record this moment."""
        self.journal.operations.append(Mark(what, text))

    def _take_times(self) -> None:
        """Record mtimes: the chunk index identifies manifests by them, so a replay sets them."""
        for inside, number in self.journal.last().walk():
            status = os.lstat(os.path.join(self._top, inside))
            self.journal.mtimes.setdefault(number, status.st_mtime_ns)
