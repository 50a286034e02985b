"""The group of commands: their names, and one line about each.

A command's file is imported when that command runs, so that ``ciuic list`` does not pay for
the imports of ``ciuic repair``.
"""

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Final

import click
from click.shell_completion import CompletionItem

import ciuic
from ciuic.cli.options import given, late_options, local_directory, local_file
from ciuic.system.lean_imports import load_msgspec

__all__ = ["COMMANDS", "cli"]

COMMANDS: Final = {
    "cat": "Write a file of a snapshot to stdout, or a path as tar.",
    "checkout": "Roll paths back to a snapshot, after saving what is there.",
    "compare": "Show snapshots beside each other: metrics, sizes, tensors, configuration.",
    "completion": "Print the script that makes a shell complete commands, IDs and paths.",
    "copy": "Copy snapshots to another store.",
    "diff": "Show what changed from snapshot A to snapshot B.",
    "doctor": "Check the configuration, the store, the daemon and the machine.",
    "drill": "Practice a recovery in a scratch directory.",
    "find": "Find paths by a glob in all snapshots, newest first.",
    "forget": "Forget the snapshots that the retention policy does not keep.",
    "init": "Create the store; do nothing if it exists.",
    "list": "List snapshots, newest first.",
    "log": "Show the history of a path, one line for each version.",
    "ls": "List a path of a snapshot, or its roots.",
    "mount": "Mount snapshots as a read-only file system.",
    "note": "Write a note on a snapshot, or show it.",
    "pause": "Have the daemon take no scheduled snapshots.",
    "pin": "Keep a snapshot from being forgotten.",
    "prune": "Free the space that no snapshot needs.",
    "recover": "Put back the newest valid versions of broken checkpoints.",
    "repair": "Repair damage in the store.",
    "restore": "Restore files or directories from a snapshot.",
    "resume": "Have the daemon take scheduled snapshots again.",
    "rules": "Show where the rules would have fired in a log.",
    "run": "Run a training program and guard it.",
    "runbook": "Write the page with the steps of a recovery.",
    "scrub": "Read the store's packs and record which are sound.",
    "show": "Show a snapshot's roots, sizes and warnings.",
    "snapshot": "Take a snapshot now.",
    "stats": "Show how many bytes the store holds, and what takes them.",
    "status": "Show the daemon's state and the newest snapshot's age.",
    "tag": "Show or change a snapshot's tags.",
    "timeline": "Draw what a training logged, with its snapshots.",
    "verify": "Check that snapshots can be restored.",
    "watch": "Guard a training program that is running already.",
    "web": "Serve a page and an HTTP API to this machine.",
}
"""Every command and its line in ``ciuic --help``; ``cmd_NAME.py`` has the command."""

_WITHOUT_STORE: Final = frozenset({"completion"})


class _LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name; the first access to a command imports its file."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._loaded:
            load_msgspec()
            command: click.Command = importlib.import_module(f"ciuic.cli.cmd_{name}").command
            command.short_help = COMMANDS[name]
            if name not in _WITHOUT_STORE:
                command.params += late_options()
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _LazyGroup(click.Group):
    """A group whose help and completion need no command's file."""

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - the signature is click's
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        found = [
            CompletionItem(name, help=line)
            for name, line in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=_LazyGroup,
    commands=_LazyCommands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 failed, and nothing is left half-written (restore: some paths"
    " could not be written; ciuic names them); 2 wrong usage; 3 done, but some paths were"
    " unreadable or being written; ciuic names them; 4 damage found; 5 another process holds the"
    " store; 130 and 143 interrupted by SIGINT and SIGTERM.",
)
@click.version_option(ciuic.__version__, prog_name="ciuic")
@click.option(
    "--config",
    metavar="FILE",
    callback=given,
    shell_complete=local_file,
    help="Configuration file.  [default: $CIUIC_CONFIG, /etc/ciuic.conf or /etc/ciuric.conf]",
)
@click.option(
    "--store",
    metavar="DIR",
    callback=given,
    shell_complete=local_directory,
    help="The store: a directory, or s3://BUCKET/PREFIX. Listing, verifying and restoring then"
    " need no configuration.",
)
@click.pass_context
def cli(context: click.Context, config: str | None, store: str | None) -> None:
    """Take, list, verify and restore snapshots of training directories."""
    from ciuic.cli.session import Session

    context.obj = Session(config, store)
