"""``ciuic init``."""

import os

import click
from click.core import ParameterSource

from ciuic.cli.options import (
    json_option,
)
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.config.settings import Settings
from ciuic.errors import UsageError
from ciuic.store.directory.create import create_store
from ciuic.store.directory.find import read_header, refuse_unmounted
from ciuic.store.place.keys import is_url
from ciuic.store.records.header import Chunking
from ciuic.system.clock import SystemClock
from ciuic.units import (
    format_bytes,
    parse_size_bytes,
)

__all__ = ["command"]


@click.command("init")
@click.option(
    "--chunking",
    type=click.Choice(["content", "tensors", "fixed"]),
    default="content",
    show_default=True,
    help="How files are cut.",
)
@click.option(
    "--chunk-size",
    default="1 MiB",
    show_default=True,
    metavar="SIZE",
    help="Maximum chunk size, 4 KiB to 16 MiB.",
)
@click.option(
    "--chunk-average",
    metavar="SIZE",
    help="Average size of chunks cut by content, a power of two.  [default: half the chunk size]",
)
@click.option(
    "--chunk-least",
    metavar="SIZE",
    help="Minimum size of chunks cut by content, a power of two.  [default: a quarter of the"
    " average]",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    chunking: str,
    chunk_size: str,
    chunk_average: str | None,
    chunk_least: str | None,
    as_json: bool,
) -> None:
    """Create the store; do nothing if it exists.

    How ciuic cuts files into chunks is fixed for the life of the store; 'ciuic init' refuses an
    option that differs from an existing store. With 'content', files of tensors are cut where their
    tensors begin, databases and disk images at fixed offsets, and other files at places that their
    content determines: if bytes are inserted into such a file, ciuic stores only the chunks around
    them.
    With 'tensors', files without tensors are cut at multiples of the chunk size. With 'fixed', all
    files are.
    """
    if chunking != "content" and (chunk_average or chunk_least):
        raise UsageError(
            "--chunk-average and --chunk-least require --chunking content",
            hint="Leave these options out, or use --chunking content.",
        )
    path = session.store_path()
    wanted = Chunking.of(chunking, _size(chunk_size), _size(chunk_average), _size(chunk_least))
    if is_url(path):
        _create_in_bucket(path, wanted, session.store_settings(), as_json=as_json)
        return
    refuse_unmounted(path, os.environ)
    created = create_store(
        path,
        SystemClock(),
        chunk_bytes=wanted.size_bytes,
        chunking=wanted.kind,
        average_bytes=wanted.average_bytes,
        least_bytes=wanted.least_bytes,
        owner=session.store_owner(),
    )
    if not created:
        _refuse_other_chunking(path, wanted, read_header(path).chunking)
    _print_outcome(path, created=created, as_json=as_json)


def _print_outcome(path: str, *, created: bool, as_json: bool) -> None:
    if as_json:
        print_json({"store": path, "created": created})
    else:
        click.echo(
            f"{printable(path)}: {'store created' if created else 'the store exists already'}"
        )


def _create_in_bucket(
    address: str,
    wanted: Chunking,
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    # Imported here because the client of object stores is heavy.
    from ciuic.store.addressed import create_at_address

    created, chunking = create_at_address(
        address, os.environ, SystemClock(), wanted, settings.place_options
    )
    if not created:
        _refuse_other_chunking(address, wanted, chunking)
    _print_outcome(address, created=created, as_json=as_json)


def _refuse_other_chunking(path: str, wanted: Chunking, is_now: Chunking) -> None:
    """Refuse an option that differs from how the existing store cuts files.

    Raises:
        UsageError: An option differs.
    """
    pairs: dict[str, tuple[str | int, str | int]] = {
        "chunking": (wanted.kind, is_now.kind),
        "chunk_size": (wanted.size_bytes, is_now.size_bytes),
        "chunk_average": (wanted.average_bytes, is_now.average_bytes),
        "chunk_least": (wanted.least_bytes, is_now.least_bytes),
    }
    context = click.get_current_context()
    for name, (asked, found) in pairs.items():
        was_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if was_given and asked != found:
            option = name.replace("_", "-")
            text = found if isinstance(found, str) else format_bytes(found)
            raise UsageError(
                f"the store {path} exists already, with --{option} {text}, which cannot be changed",
                hint=f"Leave --{option} out, or create a new store at a different path.",
            )


def _size(text: str | None) -> int:
    if text is None:
        return 0
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise UsageError(str(error), hint="No store was created.") from error
