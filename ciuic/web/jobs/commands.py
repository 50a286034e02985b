"""The command that does the same as a job. Some jobs are no more than that command."""

import os
from collections.abc import Sequence

from ciuic.guard.logs.paths import log_files
from ciuic.web.works import (
    CommandWork,
    CompareRunsWork,
    CompareWork,
    ForgetWork,
    PinWork,
    RestoreWork,
    SnapshotWork,
    StatsWork,
    TagWork,
    VerifyWork,
)

__all__ = ["arguments", "needs_configuration"]

_TENSORS_SHOWN = 300


def needs_configuration(work: RestoreWork | VerifyWork | CommandWork) -> bool:
    """Return whether a command reads more than the store: roots, or the retention policy."""
    return isinstance(work, SnapshotWork | ForgetWork)


def arguments(
    work: RestoreWork | VerifyWork | CommandWork,
    *,
    logs: Sequence[bytes] = (),
    json: bool = False,
) -> list[bytes]:
    """Return the arguments of the command that does a job.

    Args:
        work: The job.
        logs: Logs of training programs, which tell the steps of snapshots.
        json: For a program: the command prints a document.
    """
    if isinstance(work, RestoreWork):
        return _restore(work)
    if isinstance(work, VerifyWork):
        return [b"verify", work.snapshot.encode(), *[b"--checksum"] * work.checksum]
    options, names = _parts(work, logs)
    # After "--" no name can be an option.
    separated = [b"--", *names] if json and names else names
    command = "compare" if isinstance(work, CompareRunsWork) else work.do
    return [command.encode(), *options, *[b"--json"] * json, *separated]


def _parts(work: CommandWork, logs: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the options and the names of snapshots."""
    match work:
        case CompareWork():
            # The command refuses a log that is not there; the page shows what there is.
            named = [b"--log=" + log for log in logs if any(map(os.path.exists, log_files([log])))]
            return [b"--top=%d" % _TENSORS_SHOWN, *named], _encoded(work.snapshots)
        case CompareRunsWork():
            best = [] if not work.best else [b"--best=" + work.best]
            return [b"--runs", b"--top=%d" % _TENSORS_SHOWN, *best], list(work.runs)
        case TagWork():
            added = [b"--add=" + tag for tag in work.add]
            return [*added, *[b"--remove=" + tag for tag in work.remove]], _encoded([work.snapshot])
        case PinWork():
            return [b"--remove"] * work.remove, _encoded([work.snapshot])
        case ForgetWork():
            return [b"--dry-run"] * work.dry_run, _encoded(work.snapshots)
        case SnapshotWork():
            return [b"--base"] * work.base, []
        case StatsWork():
            return [f"--by={work.by}".encode()], []


def _encoded(names: list[str]) -> list[bytes]:
    return [name.encode() for name in names]


def _restore(work: RestoreWork) -> list[bytes]:
    words = [b"restore", b"-s", work.snapshot.encode()]
    for path in work.paths:
        words += [b"-p", path]
    if work.destination is not None:
        words += [b"-d", work.destination]
    flags = {"overwrite": work.overwrite, "delete": work.delete, "fallback": work.fallback}
    words += [f"--{name}".encode() for name, is_set in flags.items() if is_set]
    return [*words, *[b"--dry-run"] * work.dry_run]
