"""``ciuic cat``."""

import sys

import click

from ciuic.catalog.removed import naming_removal
from ciuic.cli.archive import write_archive
from ciuic.cli.candidates import SNAPSHOT, stored_path
from ciuic.cli.opening import find_snapshot, opened
from ciuic.cli.options import absolute, copies_option, given
from ciuic.cli.read_copies import reading_copies
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.errors import CiuicError, UsageError
from ciuic.model import UNREADABLE
from ciuic.report.entries import type_name
from ciuic.store.store import Store
from ciuic.view.content import read_file
from ciuic.view.located import Located
from ciuic.view.locator import locate

__all__ = ["command"]


@click.command("cat")
@click.argument("snapshot_id", type=SNAPSHOT, metavar="ID")
@click.argument("path", callback=given, shell_complete=stored_path)
@click.option("--tar", "as_tar", is_flag=True, help="Write PATH and everything below it as tar.")
@copies_option
@click.pass_obj
def command(session: Session, *, snapshot_id: str, path: str, as_tar: bool) -> None:
    """Write a file of a snapshot to stdout, or a directory as a tar stream (--tar).

    For example: ciuic cat latest /data/run7 --tar | ssh other tar -x -C /data

    The stream is POSIX pax. The names of its members begin with the last part of PATH. Owners are
    numbers. Extended attributes are included (GNU tar extracts them with --xattrs
    --xattrs-include='*'). Holes are written as zeros. Each file is read and checked before its
    header is written, so a file of more than 32 MiB is read twice. If a file is damaged, or could
    not be read when the snapshot was taken, ciuic omits it from the stream, names it, and exits
    with 4 or 3. If a large file turns out to be damaged while it is being written, the stream ends
    in the middle of that file, and tar reports that. If a chunk of the store is damaged, ciuic
    takes it from the configured copies; a file counts as damaged only if they lack the chunk too.
    """
    if as_tar and sys.stdout.isatty():
        raise UsageError(
            "a tar stream is not for a terminal",
            hint="Write it to a file with '> FILE', or pipe it into tar.",
        )
    with (
        opened(session, only=snapshot_id) as store,
        reading_copies(session, store),
    ):
        wanted = absolute(path)
        found = find_snapshot(session, store, snapshot_id, holding=[wanted])
        with naming_removal(store, found.id):
            located = locate(store, store.manifest(found.id), wanted)
            if as_tar:
                sys.exit(write_archive(store, located))
            _write_file(store, located)


def _write_file(store: Store, located: Located) -> None:
    if not located.entry.is_file:
        raise UsageError(
            f"{printable(located.path)} is a {type_name(located.entry)}, not a file",
            hint="Use --tar to write it as a tar stream; 'ciuic ls' lists a directory.",
        )
    if located.entry.state == UNREADABLE:
        raise CiuicError(
            f"{printable(located.path)} could not be read when the snapshot was taken",
            hint="Try an older snapshot; 'ciuic list --path PATH' shows which have it.",
        )
    for part in read_file(store, located.entry):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
