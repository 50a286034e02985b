"""Every error that ciuic raises on purpose, as one tree sorted by what the caller must do.

    CiuicError
        UsageError              ask differently
        ConfigError             fix the file
        SourceError             one path is spoiled; the snapshot goes on and says so
            TornReadError       the file kept changing while it was read
            VanishedError       it is not there any longer
        StoreError              the run ends before anything is committed
            BusyError           try later
            UnknownFormatError  use a newer ciuic
            StoreFullError      make room; nothing was half written
            CorruptionError     stored bytes are wrong: never retried, never hidden
                ChunkMissingError
                DigestError
                UnreachableError    not even what it held can be told
        SnapshotNotFoundError   check the ID
        PathNotFoundError       check the path
        TargetError             the place to restore to is not as it must be
        CancelledError          asked to stop; nothing was committed
        ResourceError           this process may not open more files or use more memory

A SourceError never becomes a StoreError nor the other way round: a full store that is taken
for an unreadable file would be committed as a snapshot with a hole in it.
"""

import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "BusyError",
    "CancelledError",
    "ChunkMissingError",
    "CiuicError",
    "ConfigError",
    "CorruptionError",
    "DigestError",
    "PathNotFoundError",
    "ResourceError",
    "SnapshotNotFoundError",
    "SourceError",
    "StoreError",
    "StoreFullError",
    "TargetError",
    "TornReadError",
    "UnknownFormatError",
    "UnreachableError",
    "UsageError",
    "VanishedError",
    "shortage",
]


class CiuicError(Exception):
    """Something that can happen and has a known remedy.

    Attributes:
        message: One sentence: what is wrong, with the evidence in it.
        hint: One sentence in the imperative: what to do next. May be empty.
        done: What was done before it, as a part of the command's document.
    """

    default_hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        self.done: Mapping[str, Any] = {}

    @property
    def kind(self) -> str:
        """Name of the error for machines: the class in snake case, without ``Error``."""
        name = type(self).__name__.removesuffix("Error")
        return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class UsageError(CiuicError):
    """The command was asked for in a way that has no meaning."""


class ConfigError(CiuicError):
    """The configuration file can't be used."""

    default_hint = "Correct the configuration file; etc/ciuic.conf shows every key."


class SourceError(CiuicError):
    """One path can't be read; the snapshot goes on without it and names it."""


class TornReadError(SourceError):
    """A file kept changing while it was read, however often it was tried."""


class VanishedError(SourceError):
    """A file that was listed is gone when it is to be read."""


class StoreError(CiuicError):
    """The store failed; the run ends and commits nothing."""

    default_hint = "Look at the store's disk, then run the command again."


class BusyError(StoreError):
    """Another process holds the store."""

    default_hint = "Try again when the other process has finished."


class UnknownFormatError(StoreError):
    """The store needs something that this version of ciuic does not know."""

    default_hint = "Use a newer version of ciuic with this store."


class StoreFullError(StoreError):
    """There is no room left for the store; what was committed before is whole."""

    default_hint = "Make room on the store's file system, then run the command again."


class CorruptionError(StoreError):
    """Stored bytes are not what they claim to be."""

    default_hint = "Run 'ciuic verify --all --checksum' to see which snapshots are affected."


class ChunkMissingError(CorruptionError):
    """A chunk that a snapshot refers to is in no pack."""


class DigestError(CorruptionError):
    """Bytes do not hash to their own name."""


class UnreachableError(CorruptionError):
    """The file system has the name of a file of the store, and can't give out the file itself."""

    default_hint = (
        "Check the file system that the store is on (fsck, xfs_repair, btrfs scrub), then run"
        " 'ciuic repair'."
    )


class SnapshotNotFoundError(CiuicError):
    """No snapshot, or more than one, answers to this ID."""

    default_hint = "Run 'ciuic list' to see which snapshots there are."


class PathNotFoundError(CiuicError):
    """The snapshot does not hold this path."""


class TargetError(CiuicError):
    """The place to restore to exists already, or can't be written."""


class ResourceError(CiuicError):
    """The process ran into a limit of its own: no path is to blame, and none is spoiled."""

    default_hint = "Raise the limit (ulimit -n, or LimitNOFILE= in the unit) and run it again."


class CancelledError(CiuicError):
    """The run was asked to stop and has; nothing was committed."""

    default_hint = "Run the command again; what was already stored is reused."


def shortage(error: BaseException) -> ResourceError | None:
    """What this process ran short of, if that is what one of Python's own exceptions says."""
    if isinstance(error, MemoryError):
        hint = "Free memory, or raise the limit (ulimit -v, or MemoryMax= in the unit)."
        return ResourceError("there is not enough memory", hint=hint)
    if isinstance(error, ImportError):
        # numpy puts a page of advice before the reason.
        reason = (str(error).strip().splitlines() or ["no reason is given"])[-1]
        hint = "Look at free memory and at the disk that Python lies on; else install ciuic anew."
        return ResourceError(f"a part of the program can't be loaded: {reason}", hint=hint)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        hint = "Free memory, or raise the limit (ulimit -u, or TasksMax= in the unit)."
        return ResourceError("no more threads can be started", hint=hint)
    return None
