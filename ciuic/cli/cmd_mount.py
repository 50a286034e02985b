"""``ciuic mount``."""

import os
import sys
from typing import NamedTuple

import click

from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.opening import find_snapshot, opened
from ciuic.cli.options import (
    ShortOptionsCommand,
    copies_option,
    given,
    local_directory,
)
from ciuic.cli.read_copies import reading_copies
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.errors import DONE, FAILED, CiuicError
from ciuic.ids import SnapshotId
from ciuic.mount.mount import MountRequest, check_point, mount_snapshots, require_fuse
from ciuic.mount.nodes import Owned
from ciuic.system.clock import SystemClock

__all__ = ["command"]


@click.command("mount", cls=ShortOptionsCommand)
@click.argument("directory", metavar="DIR", callback=given, shell_complete=local_directory)
@click.option("-s", "--snapshot", "snapshot_id", type=SNAPSHOT, help="Mount only this snapshot.")
@click.option("--background", is_flag=True, help="Return when the snapshots are mounted.")
@click.option(
    "--allow-other",
    is_flag=True,
    help="Let other users read what owners and modes allow.",
)
@copies_option
@click.pass_obj
def command(
    session: Session,
    *,
    directory: str,
    snapshot_id: str | None,
    background: bool,
    allow_other: bool,
) -> None:
    """Mount snapshots as a read-only file system at the empty directory DIR.

    DIR/by-id/ID, DIR/by-time and DIR/by-tag/TAG hold each snapshot with its roots under their full
    paths; DIR/latest and DIR/latest-valid lead to the newest. With -s, DIR itself holds the roots,
    under their full paths. New snapshots appear while the store is mounted. To unmount, press
    Ctrl-C, or run 'fusermount3 -u DIR'. Reading a damaged path fails with an input/output error,
    and ciuic names the path once: on stderr, or with --background in the system log. ciuic takes
    damaged chunks from the configured copies.
    """
    asked = _Asked(os.path.abspath(directory), snapshot_id, allow_other)
    if background:
        sys.exit(_in_background(session, asked))
    _mount(session, asked, ready=None)


class _Asked(NamedTuple):
    """What the command line asks for.

    Attributes:
        point: The mount point.
        snapshot_id: The only snapshot; None: all.
        is_for_all: Other users may read.
    """

    point: str
    snapshot_id: str | None
    is_for_all: bool


def _mount(session: Session, asked: _Asked, *, ready: int | None) -> None:
    """Mount and serve; ``ready`` is a pipe to a process that waits for the mount."""
    told = _tell if ready is None else _log

    def say_copy(address: str) -> None:
        what = f"the store is damaged: what is lost is read from the copy {address}"
        told(Owned(SnapshotId(""), b""), what)

    point, snapshot_id = asked.point, asked.snapshot_id
    with (
        opened(session) as store,
        reading_copies(session, store, on_first=say_copy),
    ):
        require_fuse()
        check_point(point, store.path)
        wanted = None if snapshot_id is None else find_snapshot(session, store, snapshot_id).id

        def say() -> None:
            if ready is None:
                click.echo(
                    f"ciuic: mounted at {printable(point)}; Ctrl-C or"
                    f" 'fusermount3 -u {printable(point)}' unmounts",
                    err=True,
                )
            else:
                _detach(ready)

        is_done = mount_snapshots(
            store,
            MountRequest(point, wanted, is_for_all=asked.is_for_all),
            clock=SystemClock(),
            ready=say,
            told=told,
        )
    if not is_done:
        rights = "you need the right to write to DIR and to /dev/fuse"
        rights += ", and user_allow_other in /etc/fuse.conf" if asked.is_for_all else ""
        raise CiuicError(
            f"{point} could not be mounted", hint=f"The line above says why; {rights}."
        )


def _in_background(session: Session, asked: _Asked) -> int:
    """Mount in another process; return its exit code, or 0 as soon as it has mounted.

    It is started before the store is opened: no database may be used by two processes.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.setsid()
        _mount(session, asked, ready=writing)
        return DONE
    os.close(writing)
    is_mounted = bool(os.read(reading, 1))
    os.close(reading)
    if is_mounted:
        return DONE
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) or FAILED


def _detach(ready: int) -> None:
    """Tell the waiting process that the mount is there, and let go of its terminal."""
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    os.close(nothing)
    os.write(ready, b".")
    os.close(ready)


def _tell(owned: Owned, what: str) -> None:
    click.echo(f"ciuic: {_where(owned)}{printable(what)}", err=True)


def _log(owned: Owned, what: str) -> None:
    import syslog

    syslog.openlog("ciuic")
    syslog.syslog(syslog.LOG_ERR, f"{_where(owned)}{printable(what)}")


def _where(owned: Owned) -> str:
    """Return the beginning of a message about a path."""
    snapshot = f"in {owned.snapshot}" if owned.snapshot and owned.path else owned.snapshot
    parts = [part for part in (printable(owned.path), snapshot) if part]
    return f"{' '.join(parts)}: " if parts else ""
