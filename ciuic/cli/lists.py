"""Long lists: a terminal shows the first items, a pipe gets all of them."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import click

from ciuic.cli.error_output import hinted
from ciuic.cli.render import brief, printable
from ciuic.cli.table import terminal_columns
from ciuic.model import SnapshotSummary
from ciuic.system.machine import names_of
from ciuic.units import counted

__all__ = ["hosts_instead", "matching", "none_matches", "print_rest", "shown_part", "those"]

T = TypeVar("T")

_SHOWN_MAX: Final = 20
_NAMES_MAX: Final = 10


def shown_part(
    items: Sequence[T], *, err: bool = False, shown_max: int = _SHOWN_MAX
) -> Sequence[T]:
    """Return the items to print: all of them, or on a terminal the first ones.

    Args:
        items: The items.
        err: They are printed on stderr.
        shown_max: How many of them a terminal shows.
    """
    return items if terminal_columns(err=err) is None else items[:shown_max]


def print_rest(
    total: int, named: int, what: str, *, indent: str = "", err: bool = False, document: str = ""
) -> None:
    """Print how many items follow those that ``shown_part`` returned, if any do.

    Args:
        total: The number of all items.
        named: How many of them the report names: a report may keep the first ones only.
        what: What an item is, in the singular.
        indent: Spaces before the line.
        err: Print on stderr.
        document: The command that has the named items; empty: the same one with ``--json``.
    """
    on_terminal = terminal_columns(err=err) is not None
    shown = min(named, _SHOWN_MAX) if on_terminal else named
    if total <= shown:
        return
    more = f"{indent}... and {counted(total - shown, f'more {what}')}"
    if named <= shown:
        more += ", which the report does not name"
    else:
        which = "them" if named == total else f"the first {named:,}"
        more += f"; {hinted(document) or '--json'} names {which}"
    click.echo(more, err=err)


def those(what: str, names: Iterable[str]) -> str:
    """Return the end of a message that a name is unknown: which names there are, if any.

    Args:
        what: What the names are of, in the plural.
        names: The names.
    """
    known = sorted(printable(brief(name)) for name in names)
    shown = [*known[:_NAMES_MAX], *(["..."] if len(known) > _NAMES_MAX else [])]
    return f"; the {what} are {', '.join(shown)}" if known else ""


def hosts_instead(host: str, snapshots: Iterable[SnapshotSummary]) -> str:
    """Return the end of a message that no snapshot is of a host: which hosts have some.

    Args:
        host: The value of ``--host``.
        snapshots: All snapshots. If one is of this host, the result is empty.
    """
    hosts = names_of(one.owner.machine for one in snapshots)
    return "" if any(one.is_called(host) for one in hosts) else those("hosts", hosts.values())


def matching(
    snapshots: Iterable[SnapshotSummary], *, tag: str | None, root: bytes | None, host: str | None
) -> list[SnapshotSummary]:
    """Return the snapshots with a tag, of a root and of a host; None accepts all."""
    return [
        one
        for one in snapshots
        if (tag is None or tag in one.tags)
        and (root is None or root in one.roots)
        and (host is None or one.owner.machine.is_called(host))
    ]


def none_matches(
    snapshots: Iterable[SnapshotSummary],
    *,
    tag: str | None = None,
    root: str | None = None,
    host: str | None = None,
) -> str:
    """Return the message for a list that options leave empty; empty without these options.

    Args:
        snapshots: All snapshots.
        tag: The value of ``--tag``.
        root: The value of ``--root``.
        host: The value of ``--host``.
    """
    options = (("--tag", tag), ("--root", root), ("--host", host))
    named = [f"{option} '{printable(value)}'" for option, value in options if value is not None]
    if not named:
        return ""
    instead = "" if host is None else hosts_instead(host, snapshots)
    return f"no snapshot matches {' and '.join(named)}{instead}"
