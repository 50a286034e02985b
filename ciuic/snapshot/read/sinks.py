"""The callbacks for warnings, files being written, and excluded names."""

from collections.abc import Callable
from typing import NamedTuple

from ciuic.source.directory import DirectoryHandle

__all__ = ["BeingWrittenSink", "ExcludedSink", "Sinks", "WarningSink"]

WarningSink = Callable[[bytes, str, bool], None]
"""Receives a path, what happened to it, and whether that is harmless."""
BeingWrittenSink = Callable[[bytes, tuple[int, int], str], None]
"""Receives a path, its device and inode, and the evidence that the file is being written. An empty
text means that a program has the file open for writing."""
ExcludedSink = Callable[[DirectoryHandle, bytes, str], None]
"""Receives a directory, a name in it, and the rule that excludes the name."""


def _ignore(*_: object) -> None:
    pass


class Sinks(NamedTuple):
    """The callbacks of the walk and the readers.

    Attributes:
        warn: Called, from several threads, for every path that is not in the snapshot as it should
            be.
        being_written: Called, from several threads, for every file that a program was writing.
        excluded: Called for every excluded name.
    """

    warn: WarningSink
    being_written: BeingWrittenSink = _ignore
    excluded: ExcludedSink = _ignore
