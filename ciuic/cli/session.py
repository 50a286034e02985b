"""What every command shares: which store, how errors are told, how a person interrupts."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ciuic.cli.render import as_json_text, printable
from ciuic.errors import (
    BusyError,
    CiuicError,
    ConfigError,
    CorruptionError,
    UnreachableError,
    UsageError,
)
from ciuic.units import parse_duration_s

__all__ = [
    "BUSY",
    "DAMAGE",
    "DONE",
    "FAILED",
    "NEWER",
    "SNAPSHOT",
    "TROUBLE",
    "USAGE",
    "Session",
    "absolute",
    "exit_code",
    "found_snapshot",
    "given",
    "interruptible",
    "json_option",
    "late_options",
    "report_error",
    "report_json",
    "trash_option",
    "wait_option",
]

T = TypeVar("T")

DONE = 0
FAILED = 1
USAGE = 2
TROUBLE = 3
DAMAGE = 4
BUSY = 5

NEWER = "is newer and can't be read"
"""What is said of a snapshot when the one before it is taken for the latest."""

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


def _duration_s(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """Seconds, of an option that takes a duration."""
    if value is None:
        return None
    try:
        return parse_duration_s(given(context, parameter, value))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


wait_option = click.option(
    "--wait",
    "wait_s",
    default="10s",
    callback=_duration_s,
    metavar="TIME",
    show_default=True,
    help="How long to wait for another process that is writing to the store.",
)
trash_option = click.option(
    "--trash",
    "trash_s",
    callback=_duration_s,
    metavar="TIME",
    help="How long forgotten snapshots can be brought back; 0: not at all.  [default: as"
    " configured]",
)


class Session:
    """Finds the store that the command line or the configuration names."""

    def __init__(self, config: str | None, store: str | None) -> None:
        self._config = config
        self._store = store
        self._settings: tuple[str, Any] | None = None

    def override(self, option: str, value: str) -> None:
        """Take ``--config`` or ``--store`` from behind the command, where people type it, too."""
        setattr(self, f"_{option}", value)

    @property
    def config_path(self) -> str | None:
        """The configuration file that is in force, if there is one."""
        from ciuic.config import find_config

        return find_config(self._config, os.environ)

    def settings(self) -> Any:
        """The whole configuration.

        Raises:
            ConfigError: There is none, or it is wrong.
        """
        from ciuic.config import load_settings

        path = self.config_path
        if path is None:
            raise ConfigError(
                "there is no configuration: neither --config, $CIUIC_CONFIG nor /etc/ciuic.conf",
                hint="Write one; etc/ciuic.conf in the source shows every key.",
            )
        if self._settings is None or self._settings[0] != path:
            self._settings = (path, load_settings(path))
        return self._settings[1]

    def _dispensable_settings(self) -> Any:
        """The same, for what could do without them."""
        try:
            return self.settings()
        except ConfigError as error:
            hint = f"{error.hint} Or name the store with --store DIR."
            raise ConfigError(error.message, hint=hint) from error

    def store_path(self, *, checked: bool = True) -> str:
        """The store's directory.

        Args:
            checked: Refuse a configuration with a mistake in it, wherever that is.

        Raises:
            ConfigError: Nothing names one.
        """
        if self._store is not None:
            return os.path.abspath(self._store)
        from ciuic.config import read_store_path

        path = self.config_path
        if path is None:
            raise ConfigError(
                "no store was given and there is no configuration",
                hint="Name the store with --store DIR, or a configuration with --config FILE.",
            )
        if not checked:
            return read_store_path(path)
        store: str = self._dispensable_settings().snapshot_dir
        return store

    def trash_s(self) -> float:
        """How long a forgotten snapshot can be brought back; the default for ``--store``."""
        from ciuic.config import DEFAULTS

        if self._store is not None or self.config_path is None:
            return parse_duration_s(DEFAULTS["trash"])
        trash_s: float = self._dispensable_settings().trash_s
        return trash_s

    def retention_policy(self) -> str:
        """The policy of the configuration: for its own store, and for no other.

        Raises:
            ConfigError: There is none.
        """
        if self._store is not None or self.config_path is None:
            raise ConfigError(
                "no configuration says what to keep in this store",
                hint="Give --policy, or the IDs of snapshots to forget.",
            )
        policy: str = self.settings().retention_policy
        return policy

    def parity(self) -> float:
        """The share of a pack that its parity takes; the default for ``--store``."""
        from ciuic.store.parity import PARITY_DEFAULT

        if self._store is not None or self.config_path is None:
            return PARITY_DEFAULT
        parity: float = self._dispensable_settings().parity
        return parity

    @contextlib.contextmanager
    def opened(self, *, write: bool = False, wait_s: float = 0.0) -> Iterator[Any]:
        """The open store; a writer says what stands in it that no file system can remove."""
        from ciuic.store import open_store

        with open_store(self.store_path(), write=write, wait_s=wait_s) as store:
            for what in store.stuck.values():
                click.echo(f"ciuic: {printable(what)}; it stays", err=True)
            if store.stuck:
                click.echo(f"       {UnreachableError.default_hint}", err=True)
            yield store


def exit_code(error: CiuicError) -> int:
    """The exit code for an error; the same for every command."""
    if isinstance(error, (UsageError, ConfigError)):
        return USAGE
    if isinstance(error, BusyError):
        return BUSY
    if isinstance(error, CorruptionError):
        return DAMAGE
    return FAILED


def report_error(error: CiuicError, *, as_json: bool) -> None:
    """Say on stderr what went wrong and what to do; in JSON on stdout as well.

    What can't be written is left out: a full disk under the log must not put an error of its own in
    place of this one, and the exit code tells it still.
    """
    if as_json:
        with contextlib.suppress(OSError):
            report_json(error)
    with contextlib.suppress(OSError):
        click.echo(f"ciuic: {printable(error.message)}", err=True)
        if error.hint:
            click.echo(f"       {printable(error.hint)}", err=True)


def report_json(error: CiuicError) -> None:
    """The document of an error, on stdout."""
    body = {"kind": error.kind, "message": error.message, "hint": error.hint}
    click.echo(as_json_text({**error.done, "error": body}))


def given(context: click.Context, parameter: click.Parameter, value: T) -> T:
    """Refuse an empty argument: it is an unset shell variable more often than it is meant."""
    values = value if isinstance(value, tuple) else (value,)
    if any(one == "" for one in values):
        raise click.BadParameter("is empty", context, parameter)
    return value


def late_options() -> list[click.Parameter]:
    """``--config`` and ``--store`` once more, for behind a command; the later one counts."""
    return [
        click.Option(
            [f"--{name}"],
            expose_value=False,
            hidden=True,
            callback=_override,
            help="The same as before the command.",
        )
        for name in ("config", "store")
    ]


def _override(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    session = context.find_object(Session)
    if session is not None and value is not None and parameter.name is not None:
        session.override(parameter.name, given(context, parameter, value))


def absolute(path: str) -> bytes:
    """An absolute path, raw bytes, from one that may count from the current directory.

    Raises:
        UsageError: The current directory is gone.
    """
    try:
        return os.fsencode(os.path.abspath(path))
    except FileNotFoundError as error:
        raise UsageError(
            f"{path!r} counts from the current directory, which is gone",
            hint="Give an absolute path.",
        ) from error


def found_snapshot(store: Any, text: str) -> Any:
    """The snapshot that a person means; if it is not the newest of all, that is said on stderr."""
    from ciuic.catalog import LATEST, damaged_since, find_snapshot

    found = find_snapshot(store, text)
    if text == LATEST:
        for name, what in damaged_since(store, found).items():
            click.echo(f"ciuic: {name} {NEWER}: {printable(what)}", err=True)
    return found


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A question for long work: has SIGINT or SIGTERM asked to stop? Asking twice stops at once."""
    asked = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        click.echo("ciuic: stopping; press again to stop at once", err=True)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _SnapshotType(click.ParamType[str]):
    """A snapshot's ID; completes from the store that the command line names."""

    name = "id"

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - the signature is click's
        incomplete: str,
    ) -> list[CompletionItem]:
        # A completion has nobody to complain to.
        with contextlib.suppress(CiuicError, OSError):
            options = ctx.find_root().params
            session = Session(options.get("config"), options.get("store"))
            with session.opened() as store:
                names = sorted(store.snapshot_files())
            return [
                CompletionItem(name)
                for name in [*names, "latest", "latest-valid"]
                if name.startswith(incomplete)
            ]
        return []


SNAPSHOT = _SnapshotType()
