"""A model of the records of damage: who writes them, who removes them, and when.

docs/protocol.md, "Damage that all machines know". One pack is at stake. Scrubs of several machines
read it, and its disk may damage it, or give it back whole, as after a read through a faulty cable.
Each scrub lists the records, reads the pack, creates a record if the pack is damaged, and removes
the records that it has listed. A removal may take effect late, also after the scrub has ended or
was killed.

The promise: if the pack is damaged, and a scrub that has finished has found that, there is a
record.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.model.walks import Walk, walk

__all__ = ["Pack", "Rules", "Scrub", "explore"]

Names = frozenset[str]
_NONE: Final[Names] = frozenset()


@dataclass(frozen=True)
class Rules:
    """The rules. If any one is missing, a walk finds a broken promise."""

    list_before_read: bool = True
    """A scrub removes only records that were there before it read the pack."""
    name_once: bool = True
    """No two records have the same name."""
    always_record: bool = True
    """A scrub that finds damage creates a record, even if there is one."""
    record_first: bool = True
    """A scrub removes records when the object store has confirmed its own one."""


class Pack(NamedTuple):
    """The pack and its records.

    ``faults`` are changes of the pack that are still to come. ``found`` means that a scrub has
    found the present damage, and has finished.
    """

    is_damaged: bool = False
    faults: int = 1
    records: Names = _NONE
    late: frozenset[Names] = frozenset()
    """Removals that a server may still carry out."""
    found: bool = False
    reads: int = 0
    """How often the pack has changed: a scrub that read it before a change proves nothing."""


class Scrub(NamedTuple):
    """A scrub; ``listed`` are the records before its read, ``saw`` what it has read."""

    name: str
    step: str = "list"
    listed: Names = _NONE
    saw: bool = False
    at: int = 0


State = tuple[Pack, tuple[Scrub, ...]]


def explore(rules: Rules, pack: Pack, scrubs: tuple[Scrub, ...]) -> Walk:
    """Visit every reachable state, until the promise is broken."""
    return walk((pack, scrubs), lambda state: _steps(rules, *state), _broken)


def _broken(state: State) -> str:
    pack, _ = state
    is_hidden = pack.is_damaged and pack.found and not pack.records
    return "no record of damage that is known" if is_hidden else ""


def _steps(rules: Rules, pack: Pack, scrubs: tuple[Scrub, ...]) -> Iterator[tuple[str, State]]:
    if pack.faults:
        changed = pack._replace(
            is_damaged=not pack.is_damaged,
            faults=pack.faults - 1,
            found=False,
            reads=pack.reads + 1,
        )
        yield "the pack changes", (changed, scrubs)
    for names in pack.late:
        after = pack._replace(records=pack.records - names, late=pack.late - {names})
        yield "a late removal", (after, scrubs)
    for number, one in enumerate(scrubs):
        for after, ahead in _scrub(rules, pack, one):
            others = (*scrubs[:number], ahead, *scrubs[number + 1 :])
            yield f"{one.name} {one.step}", (after, others)
            if after != pack:  # killed: it does nothing more, and what it asked for is done
                ended = (*scrubs[:number], Scrub(one.name, "done"), *scrubs[number + 1 :])
                yield f"{one.name} {one.step}, killed", (after._replace(found=pack.found), ended)


def _scrub(rules: Rules, pack: Pack, me: Scrub) -> Iterator[tuple[Pack, Scrub]]:
    match me.step:
        case "list":
            yield pack, me._replace(step="read", listed=pack.records)
        case "read":
            me = me._replace(step="record", saw=pack.is_damaged, at=pack.reads)
            yield pack, me if rules.list_before_read else me._replace(step="list again")
        case "list again":
            yield pack, me._replace(step="record", listed=pack.records)
        case "record":
            step = "remove" if rules.record_first else "recorded"
            if not me.saw or (not rules.always_record and me.listed):
                # Without the rule, the earlier record stands for what this scrub has found.
                yield pack, me._replace(step="remove", listed=_NONE if me.saw else me.listed)
                return
            if not rules.record_first:
                yield from _removed(pack, me, "create")
                return
            yield _created(rules, pack, me), me._replace(step=step)
        case "create":
            yield _created(rules, pack, me), me._replace(step="end")
        case "remove":
            yield from _removed(pack, me, "end")
        case "end":
            is_found = pack.found or (me.saw and me.at == pack.reads)
            yield pack._replace(found=is_found), Scrub(me.name, "done")


def _created(rules: Rules, pack: Pack, me: Scrub) -> Pack:
    name = me.name if rules.name_once else "damaged"
    return pack._replace(records=pack.records | {name})


def _removed(pack: Pack, me: Scrub, step: str) -> Iterator[tuple[Pack, Scrub]]:
    """Remove what was listed, now or later."""
    ahead = me._replace(step=step, listed=_NONE)
    if not me.listed:
        yield pack, ahead
        return
    yield pack._replace(records=pack.records - me.listed), ahead
    yield pack._replace(late=pack.late | {me.listed}), ahead
