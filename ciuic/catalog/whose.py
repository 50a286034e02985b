"""Whose snapshots count in a store that several machines share.

A path may have other content on each of them. So recoveries, drills and rules take the snapshots of
this machine. Without any, as on a machine that replaces another, they take those of the only other
one, and say so. A person who writes ``latest`` gets the newest snapshot of any machine, and is told
whose it is.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ciuic.catalog.find import LATEST, LATEST_VALID, holding_roots
from ciuic.errors import SnapshotNotFoundError, UsageError
from ciuic.ids import matching_ids
from ciuic.model import SnapshotSummary, complete_ones, holds_part, newest_first
from ciuic.system.clock import from_local_text, local_time_text
from ciuic.system.machine import Machine, names_of, this_machine
from ciuic.units import counted, listed

__all__ = [
    "Chosen",
    "elsewhere",
    "is_elsewhere",
    "machines_called",
    "newest_here",
    "of_host",
    "of_this_machine",
]

_NAMED_MAX: Final = 5
_NAME_MAX: Final = 80


class Chosen(NamedTuple):
    """The snapshots of one machine.

    Attributes:
        snapshots: In the order in which they were given.
        remark: A sentence for the user: whose they are, or that another machine has a newer one;
            empty if there is nothing to say.
    """

    snapshots: list[SnapshotSummary]
    remark: str = ""


def of_this_machine(snapshots: Iterable[SnapshotSummary], *, what: str = "") -> Chosen:
    """Return the snapshots that a recovery, a drill or a rule may use.

    They are those of this machine if it has any, or else those of the only other one.

    Args:
        snapshots: Those that hold what is wanted.
        what: For messages, what they hold.

    Raises:
        UsageError: This machine has none, and several others have some: a user must choose.
    """
    found = list(snapshots)
    here = this_machine()
    own = [one for one in found if one.owner.machine.is_same(here)]
    others = [one for one in found if not one.owner.machine.is_same(here)]
    if not others:
        return Chosen(own)
    names = _names([here, *(one.owner.machine for one in found)])
    theirs = newest_first(others)[0]
    name = names[theirs.owner.machine]
    if own:
        mine = newest_first(own)[0]
        if theirs.taken_ns <= mine.taken_ns:
            return Chosen(own)
        newer = f"{theirs.id}, of {local_time_text(theirs.taken_ns)}, was taken on {name}"
        return Chosen(own, f"{newer} and is newer than those of this machine, which are used")
    different = _different(others)
    if len(different) > 1:
        raise UsageError(
            f"this machine has no snapshot{what}, and {counted(len(different), 'other machine')}"
            f" have some: choose {_listed(names, different)} with --host",
            hint="'ciuic list' shows their snapshots.",
        )
    return Chosen(
        others,
        f"this machine has no snapshot{what}: {theirs.id}, of"
        f" {local_time_text(theirs.taken_ns)}, was taken on {name}",
    )


def of_host(snapshots: Iterable[SnapshotSummary], host: str) -> list[SnapshotSummary]:
    """Return the snapshots of the machine that a user chose with ``--host``.

    Raises:
        UsageError: Several machines have the name.
        SnapshotNotFoundError: None of the snapshots is of this machine.
    """
    known = list(snapshots)
    named = machines_called(known, host)
    if len(named) > 1:
        raise UsageError(
            f"{counted(len(named), 'machine')} are called {host}: {listed(named, len(named))}",
            hint="Give --host one of these names.",
        )
    found = [one for one in known if one.owner.machine.is_called(host)]
    if not found:
        names = _names(one.owner.machine for one in known)
        instead = f"; the hosts are {_listed(names, names)}" if names else ""
        raise SnapshotNotFoundError(f"no snapshot was taken on the host '{host}'{instead}")
    return found


def machines_called(snapshots: Iterable[SnapshotSummary], host: str) -> list[str]:
    """Return the long names of the machines that ``--host`` means: several may have one name."""
    machines = _different(one for one in snapshots if one.owner.machine.is_called(host))
    return sorted({one.long_name[:_NAME_MAX] for one in machines})


def is_elsewhere(text: str, found: SnapshotSummary) -> bool:
    """Return whether ``latest``, a time or a tag, but no ID, means a snapshot of another machine.

    Args:
        text: What the user typed.
        found: The snapshot that it means.
    """
    is_here = found.owner.machine.is_same(this_machine())
    return not is_here and not matching_ids(text, [found.id])


def newest_here(
    snapshots: Iterable[SnapshotSummary], paths: Sequence[bytes]
) -> SnapshotSummary | None:
    """Return the newest snapshot of this machine's files that holds paths, or a part of them."""
    here = this_machine()
    own = [
        one
        for one in snapshots
        if one.owner.machine.is_same(here)
        and not one.owner.is_library
        and any(holds_part(one.roots, path) for path in paths)
    ]
    return next(iter(newest_first(holding_roots(own, paths))), None)


def elsewhere(
    text: str,
    found: SnapshotSummary,
    snapshots: Sequence[SnapshotSummary],
    holding: Sequence[bytes] = (),
) -> str:
    """Return what to say about the snapshot that a user's text means; empty: nothing.

    There is nothing to say about an ID, about a snapshot of this machine, and about the snapshots
    of the only machine that has any: then this machine replaces that one.

    Args:
        text: What the user typed.
        found: The snapshot that it means.
        snapshots: Those among which it was found, newest first.
        holding: The paths that the snapshot was to hold.
    """
    if not is_elsewhere(text, found):
        return ""
    here = this_machine()
    known = holding_roots(complete_ones(snapshots), holding)
    meant, which = known, ""
    if from_local_text(text) is not None:
        meant, which = [one for one in known if one.taken_ns <= found.taken_ns], " until then"
    elif text not in {LATEST, LATEST_VALID}:
        meant, which = [one for one in known if text in one.tags], f" with the tag '{text}'"
    names = _names([here, *(one.owner.machine for one in [found, *known])])
    said = f"{found.id} was taken on {names[found.owner.machine]}"
    files = [one for one in meant if not one.owner.is_library]
    own = next((one for one in files if one.owner.machine.is_same(here)), None)
    if own is not None:
        return f"{said}; the newest snapshot of this machine{which} is {own.id}"
    if len(_different(known)) < 2:
        return ""
    others = [one for one in _different(meant) if not one.is_same(found.owner.machine)]
    older = f"; those of {_listed(names, others)} are older" if others else ""
    return f"{said}, because this machine has none{which}{older}"


def _different(snapshots: Iterable[SnapshotSummary]) -> list[Machine]:
    """Return the machines that took snapshots, each once."""
    found: list[Machine] = []
    machines = dict.fromkeys(one.owner.machine for one in snapshots)
    # Those without an ID come last: one of them can be the same as each of several with one.
    for machine in sorted(machines, key=lambda one: not one.id):
        if not any(machine.is_same(other) for other in found):
            found.append(machine)
    return found


def _names(machines: Iterable[Machine]) -> dict[Machine, str]:
    """Name machines in a sentence. A store may hold longer names than a machine can have."""
    return {one: name[:_NAME_MAX] for one, name in names_of(machines).items()}


def _listed(names: dict[Machine, str], machines: Iterable[Machine]) -> str:
    shown = sorted({names[one] for one in machines})
    return listed(shown[:_NAMED_MAX], len(shown))
