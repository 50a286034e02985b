"""Options and argument checks that commands share.

Nothing here imports the store: help must be instant.
"""

import contextlib
import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
import click.parser
from click.decorators import FC
from click.shell_completion import CompletionItem

from ciuic.errors import UsageError
from ciuic.units import parse_duration_s, parse_size_bytes

__all__ = [
    "Number",
    "ShortOptionsCommand",
    "WholeNumber",
    "absolute",
    "copies_option",
    "given",
    "host_option",
    "json_option",
    "late_options",
    "local_directory",
    "local_file",
    "logs_option",
    "revoke_option",
    "rule_logs_option",
    "size_bytes",
    "trash_option",
    "wait_option",
]

T = TypeVar("T")


class ShortOptionsCommand(click.Command):
    """A command whose short options are found at once.

    click looks for a short option among the long ones first. Before it looks among the short ones,
    it searches for similar names and loads ``difflib``, which takes 1 to 4 ms of every restore.
    """

    def make_parser(self, ctx: click.Context) -> "click.parser._OptionParser":
        """Return a parser that knows short options as long ones, too."""
        parser = super().make_parser(ctx)
        # The names are click's own: without them, click is as quick as it is.
        getattr(parser, "_long_opt", {}).update(getattr(parser, "_short_opt", {}))
        return parser


def given(context: click.Context, parameter: click.Parameter, value: T) -> T:
    """Refuse an empty argument: an unset shell variable is its usual cause."""
    values = value if isinstance(value, tuple) else (value,)
    if any(item == "" for item in values):
        raise click.BadParameter("is empty", context, parameter)
    return value


def size_bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Convert the value of an option that takes a size to bytes."""
    if value is None:
        return None
    try:
        return parse_size_bytes(given(context, parameter, value))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def _duration_s(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """Convert the value of an option that takes a duration to seconds."""
    if value is None:
        return None
    try:
        return parse_duration_s(given(context, parameter, value))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


class WholeNumber(click.IntRange):
    """A whole number between bounds that are allowed themselves, refused in plain words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert what was typed; click itself would say "not in the range 1<=x<=9"."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"'{value}' is not a whole number{_between(self.min, self.max)}", param, ctx)


class Number(click.FloatRange):
    """A number between bounds that are allowed themselves, refused in plain words."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert what was typed; click takes ``nan`` for a number within any bounds."""
        number = math.nan
        with contextlib.suppress(click.BadParameter):
            number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"'{value}' is not a number{_between(self.min, self.max)}", param, ctx)
        return number


def _between(least: float | None, most: float | None) -> str:
    return f" of at least {least:,}" if most is None else f" from {least:,} to {most:,}"


def _leave_copies(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    from ciuic.cli.session import Session

    session = context.find_object(Session)
    if value and session is not None:  # a completion has no session
        session.reads_copies = False


copies_option = click.option(
    "--no-copies",
    is_flag=True,
    expose_value=False,
    callback=_leave_copies,
    help="Do not read damaged data from the configured copies.",
)
host_option = click.option(
    "--host",
    metavar="H",
    callback=given,
    help="Only snapshots of this host: its name, or as HOST of 'list' shows it.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
wait_option = click.option(
    "--wait",
    "wait_s",
    default="10s",
    callback=_duration_s,
    metavar="TIME",
    show_default=True,
    help="How long to wait for another process that is writing to the store.",
)
revoke_option = click.option(
    "--revoke-after",
    "revoke_after_s",
    callback=_duration_s,
    metavar="TIME",
    help="In a bucket: revoke a writer that has given no sign of life for this long.  [default:"
    " 1h]",
)
trash_option = click.option(
    "--trash",
    "trash_s",
    callback=_duration_s,
    metavar="TIME",
    help="How long forgotten snapshots can be brought back; 0 empties the whole trash now. "
    " [default: as configured]",
)


def late_options() -> list[click.Parameter]:
    """``--config`` and ``--store`` again, for after the command, where people type them too."""
    return [
        click.Option(
            [f"--{name}"],
            expose_value=False,
            hidden=True,
            callback=_override,
            help="The same as this option before the command.",
        )
        for name in ("config", "store")
    ]


def _override(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Let an option after the command replace the same option before it."""
    from ciuic.cli.session import Session

    if value is None:
        return
    session = context.find_object(Session)
    if context.resilient_parsing:
        context.meta[f"ciuic.{parameter.name}"] = value  # a completion has no session
    elif session is not None:
        checked = given(context, parameter, value)
        if parameter.name == "config":
            session.config = checked
        else:
            session.store = checked


def absolute(path: str) -> bytes:
    """Make a path absolute, and return its raw bytes.

    POSIX lets ``//srv`` mean another place than ``/srv``, so Python keeps two slashes; on Linux
    both are the same.

    Raises:
        UsageError: The path is relative, and the current directory is gone.
    """
    try:
        return b"/" + os.fsencode(os.path.abspath(path)).lstrip(b"/")
    except FileNotFoundError as error:
        raise UsageError(
            f"{path!r} is relative, and the current directory no longer exists",
            hint="Give an absolute path.",
        ) from error


def local_directory(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Let the shell complete a directory of this machine."""
    return [CompletionItem(incomplete, "dir")]


def local_file(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Let the shell complete a file of this machine."""
    return [CompletionItem(incomplete, "file")]


def logs_option(help_text: str) -> Callable[[FC], FC]:
    """Return the option ``--log`` of a command."""
    return click.option(
        "--log",
        "logs",
        metavar="FILE",
        multiple=True,
        callback=given,
        shell_complete=local_file,
        help=help_text,
    )


rule_logs_option = logs_option(
    "A log of the program that the rules watch, or a pattern that names several; may be repeated."
)
