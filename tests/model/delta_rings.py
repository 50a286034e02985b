"""A model of two writers that store the same chunks as deltas against different chunks.

docs/protocol.md, "Deltas of several writers". Chunks are letters. A copy sends the frames of its
source in order, and a frame is a chunk with its delta base. Each frame is a pack of its own. In a
directory, the writers share the chunk index; in a bucket, each has one, from the packs that were
there when it began. A chain is limited to four deltas here.

The walk looks at every state: each chunk of a committed snapshot must be decodable, with the shared
index as well as with an index that is built again from the packs in any order, and also after a
prune that removes any set of packs that its rules allow.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from tests.model.walks import Walk, walk

__all__ = ["Frame", "Rules", "State", "Writer", "explore"]

CHAIN_MAX: Final = 4
ENDLESS: Final = CHAIN_MAX + 1


@dataclass(frozen=True)
class Rules:
    """The rules. If any one is missing, a walk finds a chunk that cannot be decoded."""

    shorter_chain_wins: bool = True
    """A recorded delta is replaced by another delta only if the other has a shorter chain."""
    settle_what_is_built: bool = True
    """After an index was built from packs in any order, it chooses again among all copies."""
    replace_by_same_bases: bool = True
    """A prune removes a delta only if a copy without a base or a delta with the same base stays."""
    stop_at_half: bool = True
    """A copy sends a delta only if each part of its chain has at most half the permitted length."""


class Frame(NamedTuple):
    """A chunk, and its delta base; "" if it is no delta."""

    chunk: str
    base: str = ""


Packs = frozenset[tuple[str, Frame]]
"""Packs, with the name of the writer."""
Index = tuple[Frame, ...]
"""The recorded frame of each chunk, sorted."""


class Writer(NamedTuple):
    """A process that copies a snapshot: what it sends, and its progress.

    ``choice`` is the frame that it is about to store. ``own`` is its index, in a bucket.
    """

    name: str
    sends: tuple[Frame, ...]
    at: int = -1
    choice: Frame | None = None
    stored: tuple[Frame, ...] = ()
    recorded: int = 0
    own: Index = ()
    is_done: bool = False


class State(NamedTuple):
    """The store and its writers. ``index`` is shared by the writers of a directory."""

    packs: Packs
    index: Index
    writers: tuple[Writer, ...]
    is_bucket: bool = False


def lengths(frames: Iterable[Frame]) -> Mapping[str, int]:
    """Return the length of the shortest delta chain of each chunk, over all its copies."""
    return _lengths(frozenset(frames))


@cache  # walks ask for the same ones a million times
def _lengths(options: frozenset[Frame]) -> Mapping[str, int]:
    found: dict[str, int] = {one.chunk: 0 for one in options if not one.base}
    for _ in range(CHAIN_MAX):
        for one in options:
            length = found.get(one.base, ENDLESS) + 1
            if one.base and length <= CHAIN_MAX and length < found.get(one.chunk, ENDLESS):
                found[one.chunk] = length
    return found


@cache
def added(rules: Rules, index: Index, frame: Frame) -> Index:
    """Return the index with one more frame."""
    rows = {one.chunk: one for one in index}
    old = rows.get(frame.chunk)
    if old is not None:
        if not old.base:
            return index
        there = lengths(index)
        is_shorter = not frame.base or there.get(frame.base, ENDLESS) + 1 < there.get(
            frame.chunk, ENDLESS
        )
        if rules.shorter_chain_wins and frame.chunk in there and not is_shorter:
            return index
    return tuple(sorted({**rows, frame.chunk: frame}.values()))


def built(rules: Rules, order: Iterable[Frame]) -> Index:
    """Return an index that is built from packs in this order."""
    frames = list(order)
    index: Index = ()
    for frame in frames:
        index = added(rules, index, frame)
    if not rules.settle_what_is_built:
        return index
    there = lengths(frames)
    rows = {one.chunk: one for one in index}
    for one in frames:
        length = there.get(one.base, ENDLESS) + 1 if one.base else 0
        if length == there.get(one.chunk):
            rows[one.chunk] = one
    return tuple(sorted(rows.values()))


def explore(rules: Rules, first: State) -> Walk:
    """Visit every reachable state, until a chunk cannot be decoded."""
    # Many states have the same packs, and many prunes leave the same frames.
    rebuilt = cache(lambda frames, chunks: _lost_in_any_order(rules, frames, chunks))
    lost_in = cache(lambda packs, chunks: _lost(rules, packs, chunks, rebuilt))

    def lost(state: State) -> str:
        needed = _needed(state)
        there = {one.chunk for one in state.index} & lengths(state.index).keys()
        if not state.is_bucket and not needed <= there:
            return f"by the index {state.index}"
        return lost_in(state.packs, needed) if needed else ""

    return walk(first, lambda state: _steps(rules, state), lost)


def _needed(state: State) -> frozenset[str]:
    """Return the chunks of committed snapshots, and the delta bases of all their copies."""
    done = [writer for writer in state.writers if writer.is_done]
    return frozenset(frame.chunk for writer in done for frame in writer.sends)


def _lost(
    rules: Rules,
    packs: Packs,
    needed: frozenset[str],
    rebuilt: Callable[[frozenset[Frame], frozenset[str]], str],
) -> str:
    """Return what loses a chunk if the index is rebuilt, now or after a prune."""
    for left in _pruned(rules, packs, needed):
        if lost := rebuilt(frozenset(frame for _, frame in left), needed):
            return f"{lost}, after a prune that left {sorted(left)}"
    return ""


def _lost_in_any_order(rules: Rules, frames: frozenset[Frame], needed: frozenset[str]) -> str:
    """Return an order of packs with these frames that makes an index without a needed chunk."""
    for order in itertools.permutations(sorted(frames)):
        if not needed <= lengths(built(rules, order)).keys():
            return f"by an index of {order}"
    return ""


def _pruned(rules: Rules, packs: Packs, needed: frozenset[str]) -> Iterator[Packs]:
    """Yield the packs, and every set that a prune may leave while no writer works."""
    wanted = set(needed)
    for _ in packs:
        wanted |= {frame.base for _, frame in packs if frame.chunk in wanted and frame.base}
    for count in range(len(packs) + 1):
        for gone in itertools.combinations(sorted(packs), count):
            left = packs - set(gone)
            frames = {frame for _, frame in left}
            there = lengths(frames)
            if all(
                frame.chunk not in wanted
                or (
                    frame.chunk in there
                    and (
                        not rules.replace_by_same_bases
                        or frame in frames
                        or Frame(frame.chunk) in frames
                    )
                )
                for _, frame in gone
            ):
                yield left


def _steps(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    for number, writer in enumerate(state.writers):
        for packs, index, after in _step(rules, state, writer):
            writers = (*state.writers[:number], after, *state.writers[number + 1 :])
            yield writer.name, state._replace(packs=packs, index=index, writers=writers)


def _step(rules: Rules, state: State, me: Writer) -> Iterator[tuple[Packs, Index, Writer]]:
    packs, index = state.packs, state.index
    seen = me.own if state.is_bucket else index
    if me.recorded < len(me.stored):
        # A writer records several packs together, now or later.
        frame = me.stored[me.recorded]
        mine = me._replace(recorded=me.recorded + 1)
        if state.is_bucket:
            yield packs, index, mine._replace(own=added(rules, me.own, frame))
        else:
            yield packs, added(rules, index, frame), mine
    if me.is_done:
        return
    if me.at < 0:
        own = built(rules, [frame for _, frame in sorted(packs)]) if state.is_bucket else ()
        yield packs, index, me._replace(at=0, own=own)
    elif me.at == len(me.sends):
        if me.recorded == len(me.stored):
            yield packs, index, me._replace(is_done=True)
    elif me.choice is None:
        yield packs, index, _chosen(rules, seen, me)
    else:
        frame = me.choice
        ahead = me._replace(at=me.at + 1, choice=None, stored=(*me.stored, frame))
        yield packs | {(me.name, frame)}, index, ahead


def _chosen(rules: Rules, index: Index, me: Writer) -> Writer:
    """Decide whether to send a chunk, and as a delta or not."""
    there, pending = lengths(index), {one.chunk for one in me.stored}
    frame = me.sends[me.at]
    if frame.chunk in there or frame.chunk in pending:
        return me._replace(at=me.at + 1)
    if not frame.base:
        return me._replace(choice=frame)
    half = CHAIN_MAX // 2
    is_short = lengths(me.sends)[frame.chunk] <= half and there.get(frame.base, 0) <= half
    has_base = frame.base in there or frame.base in pending
    takes = has_base and (is_short or not rules.stop_at_half)
    return me._replace(choice=frame if takes else Frame(frame.chunk))
