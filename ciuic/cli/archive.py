"""``ciuic cat --tar``: a tar stream on stdout; paths that are missing from it on stderr."""

import sys

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import printable
from ciuic.errors import DAMAGE, DONE, TROUBLE, CiuicError
from ciuic.restore.archive import Archive
from ciuic.store.store import Store
from ciuic.view.located import Located

__all__ = ["write_archive"]


def write_archive(store: Store, located: Located) -> int:
    """Write a path of a snapshot to stdout; return the exit code."""
    try:
        with progress("tar") as shown:
            archive = Archive(store, located, shown)
            for block in archive.blocks():
                sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    except CiuicError:
        _print_warnings(archive)
        raise
    _print_warnings(archive)
    if archive.damaged:
        return DAMAGE
    return TROUBLE if archive.marked else DONE


def _print_warnings(archive: Archive) -> None:
    for warning in [*archive.notes, *archive.marked]:
        click.echo(f"{printable(warning.path)}: {printable(warning.what)}", err=True)
    for warning in archive.damaged:
        what = f"not in the archive: {printable(warning.path)}: {printable(warning.what)}"
        click.echo(what, err=True)
