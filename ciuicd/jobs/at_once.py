"""Which snapshots the daemon takes at once, so that a small one does not wait for a large one.

A snapshot waits for one under way

    if they have a directory in common: the second one then reads only what has changed since, and
    one that is due may not be needed any more
    if there are hooks: what one stops before its snapshot, the other would start again in the
    middle
    if that one is the emergency snapshot of a failed job, which has the disk to itself

It does not wait if its directories are only inside those of the other one, or around them. What is
in both is then read twice, once for each. That costs as much as the smaller one reads, and waiting
would cost its user as much time as the larger one takes.

A directory that has two names, by a symlink, counts as two: both snapshots are then right, too.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ciuic.config.settings import Settings
from ciuic.model import EMERGENCY_TAG
from ciuicd.jobs.job import Job

__all__ = ["Scope", "may_be_taken_beside", "scope_of"]

_AT_ONCE_MAX: Final = 4
"""Each has ``buffer_memory`` of its own."""


class Scope(NamedTuple):
    """What a snapshot needs for itself.

    Attributes:
        roots: Its directories.
        has_hooks: Commands of the user run before or after it.
        is_urgent: It is the emergency snapshot of a job.
    """

    roots: tuple[bytes, ...]
    has_hooks: bool
    is_urgent: bool


def scope_of(job: Job, settings: Settings, roots: tuple[bytes, ...]) -> Scope:
    """Return the scope of a job whose schedule has these settings and directories."""
    return Scope(
        job.scope[0] if job.scope is not None else roots,
        has_hooks=bool(settings.before or settings.after),
        is_urgent=EMERGENCY_TAG in job.tags,
    )


def may_be_taken_beside(wanted: Scope, others: Iterable[Scope]) -> bool:
    """Return whether a snapshot may begin while the others are being taken."""
    others = list(others)
    if not others:
        return True
    if len(others) >= _AT_ONCE_MAX or wanted.has_hooks:
        return False
    return not any(
        one.has_hooks or one.is_urgent or not set(one.roots).isdisjoint(wanted.roots)
        for one in others
    )
