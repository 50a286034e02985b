"""Every error that ciuic raises on purpose, as one tree sorted by what the caller must do.

Also the exit codes of the programs.

    CiuicError
        UsageError              ask differently
        ConfigError             fix the file
        SourceError             one path cannot be captured; the snapshot continues and names it
            TornReadError       the file changed during every attempt to read it
            VanishedError       the path no longer exists
        StoreError              the run ends before anything is committed
            ChildDiedError      the daemon's process was killed: see what it had committed
            BusyError           try later
            UnresponsiveError   look at the daemon
            UnknownFormatError  use a newer ciuic
            StoreFullError      free some space; nothing is half written
            ReadOnlyError       mount the store's file system for writing
            CommitUncertainError  committed, but a power cut may still undo it: check the place
            MissingError        the place has no object with this key
            LostRaceError       another writer was first: read the object, then decide
            AccessDeniedError   correct the permissions or the credentials
            OfflineError        the place gave no answer; a write may have happened: try later
            UnsupportedError    the place cannot do this: use another place
            CorruptionError     stored bytes are wrong: never retried, never hidden
                ChunkMissingError
                DigestError
                UnreachableError    it is listed, and cannot be read
        SnapshotNotFoundError   check the ID
        PathNotFoundError       check the path
        TargetError             the place to restore to cannot be used
        CancelledError          the run was asked to stop; nothing was committed
        ResourceError           this process has reached a limit on files, threads or memory

A SourceError never becomes a StoreError, and a StoreError never becomes a SourceError. If a full
store were taken for an unreadable file, a snapshot with a hole in it would be committed.
"""

import errno
import re
from collections.abc import Mapping
from typing import Any, Final, Self

__all__ = [
    "BUSY",
    "DAMAGE",
    "DONE",
    "FAILED",
    "FILE_SIZE_HINT",
    "TROUBLE",
    "USAGE",
    "AccessDeniedError",
    "BusyError",
    "CancelledError",
    "ChildDiedError",
    "ChunkMissingError",
    "CiuicError",
    "CommitUncertainError",
    "ConfigError",
    "CorruptionError",
    "DigestError",
    "LostRaceError",
    "MissingError",
    "OfflineError",
    "PathNotFoundError",
    "ReadOnlyError",
    "ResourceError",
    "SnapshotNotFoundError",
    "SourceError",
    "StoreError",
    "StoreFullError",
    "TargetError",
    "TornReadError",
    "UnknownFormatError",
    "UnreachableError",
    "UnresponsiveError",
    "UnsupportedError",
    "UsageError",
    "VanishedError",
    "exit_code",
    "shortage",
]


DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
TROUBLE: Final = 3
"""Done, with warnings."""
DAMAGE: Final = 4
BUSY: Final = 5


class CiuicError(Exception):
    """An expected error with a known remedy.

    Attributes:
        message: One sentence: what is wrong, with the evidence.
        hint: One sentence in the imperative: what to do next. May be empty.
        done: The work done before the error, as a part of the command's JSON document.
    """

    default_hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        if self.hint:
            # Python prints it below the message, if a program lets the error through.
            self.add_note(self.hint)
        # Any: a part of a JSON document.
        self.done: Mapping[str, Any] = {}

    # Any: what BaseException takes.
    def __setstate__(self, state: Any) -> None:
        """Set what another process has pickled: no note of a default hint, if it had none."""
        vars(self).pop("__notes__", None)
        super().__setstate__(state)

    def after(self, what: str, *, hint: str, done: Mapping[str, Any]) -> Self:
        """Return this error as the end of a run that did part of its work.

        Args:
            what: The work done, and what then failed; the message follows it.
            hint: A further hint, which follows the hint of this error.
            done: See the attribute.
        """
        later = type(self)(f"{what}: {self.message}", hint=f"{self.hint} {hint}".lstrip())
        later.done = done
        return later

    @property
    def kind(self) -> str:
        """The error's name for programs: its public class in snake case, without ``Error``."""
        public = next(base for base in type(self).__mro__ if not base.__name__.startswith("_"))
        name = public.__name__.removesuffix("Error")
        return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class UsageError(CiuicError):
    """The command line makes no sense."""


class ConfigError(CiuicError):
    """The configuration file cannot be used."""

    default_hint = "Correct the configuration file; etc/ciuic.conf shows every key."


class SourceError(CiuicError):
    """One path cannot be read; the snapshot continues without it and names it."""


class TornReadError(SourceError):
    """A file changed during every attempt to read it."""


class VanishedError(SourceError):
    """A file vanished between listing and reading."""


class StoreError(CiuicError):
    """The store failed; the run ends and commits nothing."""

    default_hint = "Check the store's disk or server, then run the command again."


class ChildDiedError(StoreError):
    """The daemon's process that did the work was killed: by the kernel for memory, or by a person.

    What it had committed by then stays.

    Attributes:
        exit_status: As a shell has it: 128 and the number of the signal that killed the process.
    """

    exit_status = FAILED


class BusyError(StoreError):
    """Another process holds the store."""

    default_hint = "Try again when the other process has finished."


class UnresponsiveError(StoreError):
    """The daemon is running, but is stopped or does not answer."""

    default_hint = "Its log may say why; under systemd, 'journalctl -u ciuicd' shows it."


class UnknownFormatError(StoreError):
    """The store uses a feature that this version of ciuic does not know."""

    default_hint = "Use a newer version of ciuic with this store."


class StoreFullError(StoreError):
    """The store's file system is full; all committed snapshots are intact."""

    default_hint = (
        "Free space on the store's file system, then run the command again. 'ciuic prune --trash 0'"
        " frees the space of forgotten snapshots."
    )


class ReadOnlyError(StoreError):
    """The store's file system is mounted read-only; all committed snapshots are intact."""

    default_hint = "Mount the store's file system for writing."


class CommitUncertainError(StoreError):
    """A commit is visible, but the disk has not confirmed that it is durable."""

    default_hint = "Check the store's disk or server: until it works, a power cut may undo this."


class MissingError(StoreError):
    """The place of a store has no object with this key."""

    default_hint = (
        "Check the bucket: its lifecycle rules, and which other programs delete objects there; an"
        " older version of the object may still be there."
    )


class LostRaceError(StoreError):
    """Another writer has created or replaced the object first."""

    default_hint = "Run the command again: it begins with what the other writer wrote."


class AccessDeniedError(StoreError):
    """The place of a store refuses this process: it has no right, or wrong credentials."""

    default_hint = (
        "Correct the credentials, or give them the right to read, write, list and delete."
    )


class OfflineError(StoreError):
    """The place of a store gave no usable answer in time; a write may have happened."""

    default_hint = "Check the network and the store's address, then run the command again."


class UnsupportedError(StoreError):
    """The place of a store cannot do what several writers at once need."""

    default_hint = "Use an object store that has conditional writes, or a directory."


class CorruptionError(StoreError):
    """Stored bytes are not what they claim to be."""

    default_hint = "Run 'ciuic verify --all --checksum' to see which snapshots are affected."


class ChunkMissingError(CorruptionError):
    """A snapshot refers to a chunk that is in no pack."""


class DigestError(CorruptionError):
    """The hash of a chunk's bytes is not the chunk's ID."""


class UnreachableError(CorruptionError):
    """The file system, or the bucket, lists a file of the store but this process cannot read it."""

    default_hint = (
        "Check the file system that the store is on (fsck, xfs_repair, btrfs scrub), then run"
        " 'ciuic repair --apply'."
    )


class SnapshotNotFoundError(CiuicError):
    """No snapshot has this ID, or several IDs begin with it."""

    default_hint = "Run 'ciuic list' to see which snapshots there are."


class PathNotFoundError(CiuicError):
    """The snapshot does not hold this path."""


class TargetError(CiuicError):
    """The place to restore to exists already, or cannot be written."""


class ResourceError(CiuicError):
    """The process has reached a limit of its own; no path is at fault or damaged."""

    default_hint = "Raise the limit (ulimit -n, or LimitNOFILE= in the unit) and run it again."


FILE_SIZE_HINT: Final = "Raise the limit on file sizes (ulimit -f, or LimitFSIZE= in the unit)."


class CancelledError(CiuicError):
    """The run stopped on request; nothing was committed."""

    default_hint = "Run the command again; it continues where it stopped."


def exit_code(error: CiuicError) -> int:
    """Return the exit code for an error; it is the same for every command and for the daemon."""
    if isinstance(error, (UsageError, ConfigError)):
        return USAGE
    if isinstance(error, BusyError):
        return BUSY
    if isinstance(error, CorruptionError):
        return DAMAGE
    return FAILED


def shortage(error: BaseException) -> ResourceError | None:
    """Return a ResourceError for a built-in exception that reports a shortage; else None."""
    if isinstance(error, MemoryError):
        hint = "Free memory, or raise the limit (ulimit -v, or MemoryMax= in the unit)."
        return ResourceError("there is not enough memory", hint=hint)
    if isinstance(error, ImportError):
        # numpy puts a page of advice before the reason.
        reason = (str(error).strip().splitlines() or ["no reason is given"])[-1]
        hint = (
            "Check free memory and the disk that Python is installed on; if both are fine, install"
            " ciuic again."
        )
        return ResourceError(f"a part of the program cannot be loaded: {reason}", hint=hint)
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        return ResourceError("too many files are open")
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return ResourceError("that exceeds the limit on file sizes", hint=FILE_SIZE_HINT)
    if isinstance(error, RuntimeError) and str(error).endswith("start new thread"):
        # Each thread reserves address space for its stack.
        hint = (
            "Free memory, or raise the limits (ulimit -u and -v, or TasksMax= and MemoryMax= in the"
            " unit)."
        )
        return ResourceError("no more threads can be started", hint=hint)
    return None
