"""Which of the processes of a training this is, and how they find each other."""

import errno
import hashlib
import os
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

from ciuic.errors import StoreError, UsageError
from ciuic.system.clock import Clock

__all__ = ["Job", "check_ranks", "job_of_torchrun", "rank_directory"]

_RETRY_S: Final = 0.05
_BACKLOG: Final = 1024
_NEEDED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_ATTEMPT: Final = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


def rank_directory(rank: int) -> str:
    """Return the directory of a rank's part below the root, if there are several ranks."""
    return f"rank-{rank:05}/"


class Job(NamedTuple):
    """The processes of a training, and which of them this is.

    Attributes:
        rank: The number of this process; 0 commits.
        world_size: The number of processes.
        address: The name of the local socket on which rank 0 listens.
        timeout_s: How long a rank waits for another one.
    """

    rank: int
    world_size: int
    address: str
    timeout_s: float

    def listen(self, clock: Clock) -> socket.socket:
        """Return the socket on which rank 0 listens.

        Raises:
            StoreError: Another process keeps the address for longer than ``timeout_s``.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end_s = clock.monotonic_s() + self.timeout_s
        while True:
            try:
                # A name without a file: it vanishes with the last process that has the socket.
                listener.bind(f"\0{self.address}")
            except OSError as error:
                if error.errno == errno.EADDRINUSE and clock.monotonic_s() < end_s:
                    clock.sleep(_RETRY_S)
                    continue
                listener.close()
                raise StoreError(
                    f"rank 0 cannot wait for the other ranks: {error}",
                    hint="Does another SnapshotManager of this job have the same save_dir and run?",
                ) from error
            listener.listen(_BACKLOG)
            return listener


def check_ranks(ranks: str, *, seconds: object, grace_s: float | None) -> None:
    """Refuse arguments of a manager that make the ranks save at different steps.

    Args:
        ranks: The argument of that name.
        seconds: An interval that is a time; None: there is none.
        grace_s: The grace period of a preemption; None: there is none.

    Raises:
        UsageError: Always, unless ``ranks`` is ``torchrun`` and the others are None.
    """
    if ranks != "torchrun":
        raise UsageError(
            f"ranks={ranks!r} is not 'torchrun'",
            hint="Give ranks='torchrun', or leave it out for one process.",
        )
    if seconds is not None:
        raise UsageError(
            f"interval={seconds!r} is a time, and ranks reach it at different steps",
            hint="Give a number of steps, such as interval='500 steps'.",
        )
    if grace_s is not None:
        raise UsageError(
            "preemption_grace cannot be combined with ranks: a signal reaches the ranks at"
            " different steps",
            hint="Leave it out, and save every few steps.",
        )


def job_of_torchrun(
    environment: Mapping[str, str], store_path: str, run: str | None, timeout_s: float
) -> Job:
    """Return the job that the variables of ``torchrun`` describe.

    The address depends on the attempt: no process of an earlier attempt of torchrun can connect.

    Raises:
        UsageError: The variables are missing, or name a machine besides this one.
    """
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise UsageError(
            f"ranks='torchrun', and the environment lacks {', '.join(missing)}",
            hint="Start the program with torchrun, or leave out ranks.",
        )
    try:
        rank, count = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_count = int(environment.get("LOCAL_WORLD_SIZE", count))
    except ValueError as error:
        raise UsageError(
            f"RANK, WORLD_SIZE or LOCAL_WORLD_SIZE is not a number: {error}"
        ) from error
    if not 0 <= rank < count:
        raise UsageError(f"RANK={rank} and WORLD_SIZE={count} do not fit each other")
    if local_count != count:
        raise UsageError(
            f"{local_count} of {count} ranks run on this machine",
            hint="All ranks of one SnapshotManager must run on one machine.",
        )
    names = (*_NEEDED[1:], *_ATTEMPT)
    which = [str(os.geteuid()), os.path.realpath(store_path), repr(run)]
    which += [environment.get(name, "") for name in names]
    digest = hashlib.sha256("\0".join(which).encode(errors="surrogateescape")).hexdigest()
    return Job(rank, count, f"ciuic-ranks-{digest[:32]}", timeout_s)
