"""``ciuic snapshot`` without a daemon: take the snapshot in this process."""

import click

from ciuic.cli.expected import expect_like_last
from ciuic.cli.interrupt import interruptible
from ciuic.cli.opening import opened
from ciuic.cli.progress import progress
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.config.settings import Settings
from ciuic.documents import Document
from ciuic.model import EMERGENCY_TAG, ExcludeRules
from ciuic.snapshot.hooks import Hooks, take_with_hooks
from ciuic.snapshot.plan import TakeRequest
from ciuic.system.clock import SystemClock
from ciuic.system.priority import lower_priority

__all__ = ["take_here", "take_request"]


def take_request(
    settings: Settings,
    roots: tuple[bytes, ...],
    exclude: ExcludeRules,
    *,
    base: bool,
    tags: tuple[str, ...],
    schedule: str,
) -> TakeRequest:
    """Return the request for a snapshot of some directories, by the settings."""
    return TakeRequest(
        roots=roots,
        exclude=exclude,
        base=base,
        base_interval_s=0.0 if EMERGENCY_TAG in tags else settings.base_interval_s,
        tags=tags,
        hot_snapshots=settings.hot_snapshots,
        hot_by_schedule=settings.hot_by_schedule,
        parity=settings.parity,
        chain_cost=settings.chain_cost,
        schedule=schedule,
        threads=settings.threads,
        memory_bytes=settings.buffer_memory_bytes * 2 // 3,
    )


def take_here(
    session: Session, settings: Settings, request: TakeRequest, *, wait_s: float
) -> Document:
    """Take a snapshot in this process, and return its report."""
    # If the priority cannot be lowered, the snapshot is taken anyway; doctor and the daemon's log
    # say so. After a failure, no training runs that must be spared, and the job waits for the
    # snapshot.
    if EMERGENCY_TAG not in request.tags:
        lower_priority(settings.io_priority)
    with interruptible() as cancelled, progress("snapshot") as shown:
        expect_like_last(session, request.roots, shown)
        return take_with_hooks(
            lambda: opened(session, write=True, only_adds=True, wait_s=wait_s, cancelled=cancelled),
            request,
            Hooks(settings.before, settings.after, settings.hook_timeout_s),
            clock=SystemClock(),
            say=lambda line: click.echo(printable(line), err=True),
            cancelled=cancelled,
            progress=shown,
        ).as_json()
