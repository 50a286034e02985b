"""A model of the protocol of many writers on one store, small enough for an exhaustive walk.

docs/decisions/0019-many-writers.md states the protocol and argues for it. Here each kind of process
is a generator that sends one request at a time and gets the answer. ``explore`` visits every state
that any interleaving reaches. A process that never runs again has crashed, and a process that runs
again after others have run is one that was paused, so neither needs a case of its own. A request
that changes something may also take effect later: a second time, or for the first time after its
sender gave up.

Chunks are letters, and a pack holds one chunk.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from tests.model.walks import Walk, walk

__all__ = [
    "Commit",
    "Look",
    "Mark",
    "Pack",
    "Place",
    "Rules",
    "Runner",
    "Segment",
    "Verdict",
    "explore",
    "take_step",
    "whole",
]

Session = str
"""The ID under which a process commits."""
What = Literal["forget", "undo", "pin", "purge"]
Prefix = Literal["packs", "segments", "leases", "commits", "marks", "verdicts", "looks"]


class Pack(NamedTuple):
    """A pack's name, which holds who writes it, and the chunk in it."""

    owner: Session
    chunk: str


Packs = frozenset[Pack]


class Segment(NamedTuple):
    """A part of the index: the packs that its writer added."""

    owner: Session
    packs: Packs


class Commit(NamedTuple):
    """The object under a session's ID. Only the first one created there counts.

    ``snapshot`` needs chunks, ``condemned`` says which packs no session may rely on any more,
    ``revoked`` keeps the session from committing. From the commit of a repair on, its ``damaged``
    packs count as empty.
    """

    session: Session
    kind: Literal["snapshot", "condemned", "revoked"]
    chunks: frozenset[str] = frozenset()
    packs: Packs = frozenset()
    damaged: Packs = frozenset()


class Mark(NamedTuple):
    """A mark of a snapshot, by number. The last one counts, and ``purge`` is final."""

    snapshot: Session
    number: int
    what: What


class Verdict(NamedTuple):
    """Which packs of a condemnation are deleted. The others may be relied on again."""

    session: Session
    deleted: Packs


class Look(NamedTuple):
    """For which leases a condemnation waits: those that its first look found."""

    session: Session
    leases: frozenset[Session]


class Place(NamedTuple):
    """Every object of a store, and what the machine that prunes remembers of it."""

    packs: Packs = frozenset()
    segments: frozenset[Segment] = frozenset()
    leases: frozenset[Session] = frozenset()
    commits: frozenset[Commit] = frozenset()
    marks: frozenset[Mark] = frozenset()
    verdicts: frozenset[Verdict] = frozenset()
    looks: frozenset[Look] = frozenset()


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol. If any one is missing, a walk finds a lost chunk."""

    lease_before_reading: bool = True
    heed_condemned: bool = True
    end_leases: bool = True
    tombstone_when_revoked: bool = True
    create_commits_if_absent: bool = True
    mark_again: bool = True
    heed_other_condemned: bool = True
    unique_pack_names: bool = True
    number_marks: bool = True
    purge_before_condemning: bool = True
    merge_before_removing_segments: bool = True
    merge_what_is_not_judged: bool = True
    decide_before_lease_ends: bool = True
    one_verdict: bool = True
    condemn_damaged: bool = True
    store_before_condemning_damaged: bool = True
    keep_verdicts: bool = True
    look_after_condemning: bool = True
    look_for_each_condemnation: bool = True
    lists_whole_leases: bool = True
    wait_for_repairs: bool = True
    wait_for_repairs_after_the_verdict: bool = True


class Read(NamedTuple):
    """List and read all objects of a prefix. The answer is the result of ``digest``."""

    prefix: Prefix
    digest: Callable[[Any], Any]


class Put(NamedTuple):
    """Create an object. An existing commit, mark or verdict is not replaced.

    The answer is the object that has the key afterwards.
    """

    prefix: Prefix
    value: Any


class Delete(NamedTuple):
    """Delete an object."""

    prefix: Prefix
    value: Any


Request = Read | Put | Delete
Process = Generator[Request, Any, Any]
"""It returns None, or the name and arguments of the process that continues it."""


class Runner(NamedTuple):
    """A process at one moment: its role, and the answers that it has received."""

    name: str
    arguments: tuple[Any, ...]
    answers: tuple[Any, ...] = ()


def condemned(commits: Iterable[Commit], verdicts: Iterable[Verdict]) -> Packs:
    """Return the packs on which no session may rely."""
    judged: dict[Session, Packs] = {}
    for verdict in verdicts:
        judged[verdict.session] = judged.get(verdict.session, frozenset()) | verdict.deleted
    found = [judged.get(commit.session, commit.packs) for commit in commits]
    return frozenset[Pack]().union(*found)


def listed(segments: Iterable[Segment]) -> Packs:
    """Return the packs that segments list."""
    return frozenset[Pack]().union(*(segment.packs for segment in segments))


def naming_packs(commits: Iterable[Commit]) -> frozenset[Commit]:
    """Return the condemnations."""
    return frozenset(commit for commit in commits if commit.packs)


def deleted(verdicts: Iterable[Verdict]) -> Packs:
    """Return the packs that are deleted or will be."""
    return frozenset[Pack]().union(*(verdict.deleted for verdict in verdicts))


def last_marks(marks: Iterable[Mark]) -> dict[Session, Mark]:
    """Return the last mark of each snapshot."""
    return {mark.snapshot: mark for mark in sorted(marks, key=lambda mark: mark.number)}


class Roles:
    """The processes. They follow the protocol as far as the rules say."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def name(self, session: Session, chunk: str) -> Pack:
        """Return the name of a new pack."""
        return Pack(session if self._rules.unique_pack_names else "S0", chunk)

    def is_gone(self, mark: Mark | None) -> bool:
        """Return whether no chunk of the marked snapshot is needed any more."""
        if mark is None:
            return False
        return mark.what == "purge" or (
            mark.what == "forget" and not self._rules.purge_before_condemning
        )

    def needs(self, snapshots: Iterable[Commit], marks: Iterable[Mark]) -> frozenset[str]:
        """Return the chunks that snapshots need."""
        last = last_marks(marks)
        kept = [one.chunks for one in snapshots if not self.is_gone(last.get(one.session))]
        return frozenset[str]().union(*kept)

    def writer(self, session: Session, wanted: frozenset[str]) -> Process:
        """Take a snapshot: store the chunks that no listed, uncondemned pack has; then commit."""
        if self._rules.lease_before_reading:
            yield Put("leases", session)
        packs = yield Read("segments", listed)
        named = yield Read("commits", naming_packs)
        shut = yield Read("verdicts", lambda found: condemned(named, found))
        found = chunks(packs - shut if self._rules.heed_condemned else packs)
        if not self._rules.lease_before_reading:
            yield Put("leases", session)
        return "store", session, wanted, wanted - found

    def store(self, session: Session, wanted: frozenset[str], lacking: frozenset[str]) -> Process:
        """The second half of a writer."""
        added = [self.name(session, chunk) for chunk in sorted(lacking)]
        for pack in added:
            yield Put("packs", pack)
        if added:
            yield Put("segments", Segment(session, frozenset(added)))
        yield Put("commits", Commit(session, "snapshot", chunks=wanted))
        return "end_lease", session

    def rewriter(self, session: Session, old: Pack) -> Process:
        """Move the chunk of a pack to a new pack, and condemn the old one."""
        yield Put("leases", session)
        named = yield Read("commits", naming_packs)
        if old in (yield Read("verdicts", lambda found: condemned(named, found) & {old})):
            return "end_lease", session
        if not (yield Read("packs", lambda packs: old in packs)):
            return "end_lease", session
        new = self.name(session, old.chunk)
        yield Put("packs", new)
        yield Put("segments", Segment(session, frozenset([new])))
        return "condemn", session, frozenset([old])

    def repairer(self, session: Session, old: Pack) -> Process:
        """Store the chunk of a damaged pack again, from a live file, and condemn the pack."""
        yield Put("leases", session)
        named = yield Read("commits", naming_packs)
        if old in (yield Read("verdicts", lambda found: condemned(named, found) & {old})):
            return "end_lease", session
        new = self.name(session, old.chunk)
        if self._rules.store_before_condemning_damaged:
            yield Put("packs", new)
            yield Put("segments", Segment(session, frozenset([new])))
        damaged = frozenset([old])
        condemns = damaged if self._rules.condemn_damaged else frozenset[Pack]()
        mine = Commit(session, "condemned", packs=condemns, damaged=damaged)
        if (yield Put("commits", mine)) != mine or not condemns:
            return "end_lease", session
        yield Delete("leases", session)
        return "finish", session, damaged

    def salvager(self, session: Session, old: Pack) -> Process:
        """Find the chunk of a damaged pack in another one, which may be condemned.

        A real repair has two leases, which end together: one as a prune, one that says that it is
        a repair. Here the second one is both.
        """
        lease = f"{REPAIR}{session}"
        yield Put("leases", lease)
        gone = yield Read("verdicts", deleted)
        copies = yield Read(
            "packs",
            lambda packs: tuple(
                pack for pack in sorted(packs - gone) if pack.chunk == old.chunk and pack != old
            ),
        )
        return ("salvage", session, old, copies[0]) if copies else ("end_lease", lease)

    def salvage(self, session: Session, old: Pack, copy: Pack) -> Process:
        """Store the chunk again from the pack that was found, and condemn the damaged one."""
        lease = f"{REPAIR}{session}"
        if not (yield Read("packs", lambda packs: copy in packs)):
            revoked = Commit(session, "revoked")
            is_revoked = yield Read("commits", lambda commits: revoked in commits)
            return ("end_lease", lease) if is_revoked else (LOST, session)
        new = self.name(session, old.chunk)
        yield Put("packs", new)
        yield Put("segments", Segment(session, frozenset([new])))
        damaged = frozenset([old])
        mine = Commit(session, "condemned", packs=damaged, damaged=damaged)
        if (yield Put("commits", mine)) != mine:
            return "end_lease", lease
        yield Delete("leases", lease)
        return "finish", session, damaged

    def pruner(self, session: Session, snapshot: Session) -> Process:
        """Purge a forgotten snapshot; condemn unneeded packs and redundant copies."""
        yield Put("leases", session)
        mark = yield Read("marks", lambda marks: last_marks(marks).get(snapshot))
        if mark is not None and mark.what == "forget" and self._rules.purge_before_condemning:
            yield Put("marks", Mark(snapshot, mark.number + 1, "purge"))
        return "choose", session

    def choose(self, session: Session) -> Process:
        """The second step of a pruner: choose the packs to condemn."""
        packs = yield Read("segments", listed)
        commits = yield Read("commits", lambda commits: commits)
        shut = yield Read("verdicts", lambda found: condemned(commits, found))
        need = yield Read("marks", lambda marks: self.needs(commits, marks))
        alive = packs - shut
        kept = {min(pack for pack in alive if pack.chunk == chunk) for chunk in chunks(alive)}
        useless = alive - frozenset(pack for pack in kept if pack.chunk in need)
        decided = frozenset(commit.session for commit in commits)
        useless = frozenset(pack for pack in useless if pack.owner in decided)
        orphans = yield Read(
            "packs",
            lambda packs: frozenset(
                pack for pack in packs - shut if Commit(pack.owner, "revoked") in commits
            ),
        )
        return "condemn", session, useless | orphans

    def condemn(self, session: Session, packs: Packs) -> Process:
        """Commit the condemnation, end the lease, and delete the packs that no session needs."""
        if not packs:
            return "end_lease", session
        mine = Commit(session, "condemned", packs=packs)
        if not self._rules.look_after_condemning:
            found = yield Read("leases", lambda leases: leases)
            yield Put("looks", Look(session, found - {session}))
        if (yield Put("commits", mine)) != mine:
            return "end_lease", session
        yield Delete("leases", session)
        return "finish", session, packs

    def look(self, session: Session) -> Generator[Request, Any, frozenset[Session]]:
        """Return for which leases a condemnation waits, and remember them."""
        about = session if self._rules.look_for_each_condemnation else ""
        known = yield Read("looks", lambda looks: _look_of(looks, about))
        if known is not None:
            return known.leases
        found = yield Read("leases", lambda leases: leases)
        if not self._rules.lists_whole_leases:
            found = frozenset(sorted(found)[1:])
        yield Put("looks", Look(about, found))
        return found

    def finish(self, session: Session, packs: Packs) -> Process:
        """Wait for each session that may rely on condemned packs, or revoke it; then judge."""
        if self._rules.end_leases:
            for lease in sorted((yield from self.look(session))):
                if self._rules.tombstone_when_revoked:
                    yield Put("commits", Commit(lease.removeprefix(REPAIR), "revoked"))
        if not self._rules.wait_for_repairs_after_the_verdict:
            yield from self.end_repairs()
        return "judge", session, packs

    def end_repairs(self) -> Generator[Request, Any, None]:
        """Wait for each repair, which may read a pack of a verdict, or revoke it."""
        found = yield Read(
            "leases", lambda leases: tuple(one for one in sorted(leases) if one.startswith(REPAIR))
        )
        for lease in found:
            yield Put("commits", Commit(lease.removeprefix(REPAIR), "revoked"))

    def patient(self, session: Session, packs: Packs) -> Process:
        """Like ``finish``, but revoke nothing: leave the rest to the next prune."""
        wanted = yield from self.look(session)
        if (yield Read("leases", lambda leases: leases & wanted)):
            return None
        return "judge", session, packs

    def judge(self, session: Session, packs: Packs) -> Process:
        """Delete the condemned packs, except packs that hold the last copy of a needed chunk."""
        every = yield Read("segments", listed)
        commits = yield Read("commits", lambda commits: commits)
        others = [commit for commit in commits if commit.session != session]
        shut = yield Read("verdicts", lambda found: condemned(others, found))
        if not self._rules.heed_other_condemned:
            shut = frozenset()
        keep = yield Read(
            "marks",
            lambda marks: self._without_others(every, packs, shut, self.needs(commits, marks)),
        )
        if not self._rules.mark_again or any(one.damaged for one in commits - set(others)):
            keep = frozenset()
        verdict = yield Put("verdicts", Verdict(session, packs - keep))
        if self._rules.wait_for_repairs and self._rules.wait_for_repairs_after_the_verdict:
            yield from self.end_repairs()
        return "delete", verdict.deleted

    @staticmethod
    def _without_others(every: Packs, packs: Packs, shut: Packs, need: frozenset[str]) -> Packs:
        """Return the condemned packs that hold the last copy of a needed chunk."""
        elsewhere = chunks(every - packs - shut)
        return frozenset(
            pack for pack in packs & every if pack.chunk in need and pack.chunk not in elsewhere
        )

    def delete(self, packs: Packs) -> Process:
        """Delete packs."""
        for pack in sorted(packs):
            yield Delete("packs", pack)

    def sweeper(self, session: Session) -> Process:
        """Delete a verdict and its condemnation, if no object shows a use for either."""
        verdicts = yield Read(
            "verdicts", lambda found: frozenset(one for one in found if one.session == session)
        )
        if self._rules.keep_verdicts or not verdicts:
            return
        gone = deleted(verdicts)
        if (yield Read("packs", lambda packs: packs & gone)):
            return
        if (yield Read("segments", lambda segments: listed(segments) & gone)):
            return
        commits = yield Read("commits", lambda commits: commits)
        if (yield Read("leases", lambda leases: leases)):
            return
        for commit in sorted(one for one in commits if one.session == session):
            yield Delete("commits", commit)
        for verdict in sorted(verdicts):
            yield Delete("verdicts", verdict)

    def merger(self, session: Session) -> Process:
        """Replace all segments by one. This needs no lease, because only the content counts."""
        old = yield Read("segments", lambda segments: segments)
        commits = yield Read("commits", naming_packs)
        dead = yield Read(
            "verdicts",
            lambda found: (
                deleted(found)
                if self._rules.merge_what_is_not_judged
                else condemned(commits, found)
            ),
        )
        return "merge", session, old, listed(old) - dead

    def merge(self, session: Session, old: frozenset[Segment], packs: Packs) -> Process:
        """The second half of a merger."""
        merged = Segment(session, packs)
        if len(old) < 2:
            return
        if self._rules.merge_before_removing_segments:
            yield Put("segments", merged)
        for segment in sorted(old):
            yield Delete("segments", segment)
        yield Put("segments", merged)

    def abort(self, session: Session) -> Process:
        """Continue without an answer to a commit."""
        if self._rules.decide_before_lease_ends:
            yield Put("commits", Commit(session, "revoked"))
        return "end_lease", session

    def end_lease(self, session: Session) -> Process:
        """End a lease."""
        yield Delete("leases", session)

    def marker(self, snapshot: Session, what: What) -> Process:
        """Forget, bring back, pin or purge a snapshot, if its last mark allows it."""
        allowed = {
            "undo": {"forget"}, "purge": {"forget"}, "pin": {"", "undo"}, "forget": {"", "undo"},
        }  # fmt: skip
        last = yield Read("marks", lambda marks: last_marks(marks).get(snapshot))
        if ("" if last is None else last.what) in allowed[what]:
            number = 1 if last is None else last.number + 1
            yield Put("marks", Mark(snapshot, number, what))

    def reader(self, snapshot: Session, chunk: str, tries: int) -> Process:
        """Read a chunk of a snapshot that it found in a listing."""
        packs = yield Read("segments", listed)
        here = yield Read("verdicts", lambda found: packs - deleted(found))
        if (yield Read("packs", lambda packs: chunk in chunks(packs & here))):
            return None
        if (yield Read("marks", lambda marks: self.is_gone(last_marks(marks).get(snapshot)))):
            return None
        return ("reader", snapshot, chunk, tries - 1) if tries > 1 else (LOST, snapshot)


def _look_of(looks: Iterable[Look], session: Session) -> Look | None:
    return next((one for one in looks if one.session == session), None)


LOST: Final = "lost"
REPAIR: Final = "repair "
"""In front of the session in the lease of a salvager."""


def chunks(packs: Iterable[Pack]) -> frozenset[str]:
    """Return the chunks in packs."""
    return frozenset(pack.chunk for pack in packs)


def answer(rules: Rules, place: Place, request: Request) -> tuple[Place, Any]:
    """Return the place after a request, and the answer."""
    objects = getattr(place, request.prefix)
    if isinstance(request, Read):
        return place, request.digest(objects)
    if isinstance(request, Delete):
        return place._replace(**{request.prefix: objects - {request.value}}), None
    present = _present(rules, objects, request.value)
    if present == request.value:
        return place, present
    if present is None or not _is_kept(rules, request.value):
        objects = objects - {present} | {request.value}
        return place._replace(**{request.prefix: objects}), request.value
    return place, present


def _present(rules: Rules, objects: frozenset[Any], value: Any) -> Any:
    """Return the object that has the key of another one."""
    if isinstance(value, Mark):
        numbered = rules.number_marks
        same = [
            mark for mark in objects
            if mark.snapshot == value.snapshot and (not numbered or mark.number == value.number)
        ]  # fmt: skip
        return same[0] if same else None
    if isinstance(value, Commit | Verdict | Look):
        same = [found for found in objects if found.session == value.session]
        return same[0] if same else None
    return value if value in objects else None


def _is_kept(rules: Rules, value: Any) -> bool:
    """Return whether an object that has the key already stays."""
    if isinstance(value, Mark):
        return rules.number_marks
    if isinstance(value, Look):
        return False
    return rules.one_verdict if isinstance(value, Verdict) else rules.create_commits_if_absent


def lost_chunk(place: Place) -> str:
    """Return the chunk that an unpurged snapshot has lost; empty: none."""
    damaged = frozenset[Pack]().union(*(commit.damaged for commit in place.commits))
    there = chunks((listed(place.segments) & place.packs) - damaged)
    last = last_marks(place.marks)
    for commit in place.commits:
        mark = last.get(commit.session)
        if commit.chunks - there and (mark is None or mark.what != "purge"):
            return f"{commit.session} lost {', '.join(sorted(commit.chunks - there))}"
    return ""


def whole(rules: Rules, runner: Runner) -> Process:
    """Return a process and what continues it as one process."""
    roles = Roles(rules)
    then: tuple[Any, ...] | None = (runner.name, *runner.arguments)
    while then is not None:
        then = yield from getattr(roles, then[0])(*then[1:])


def take_step(rules: Rules, place: Place, process: Process, got: Any = None) -> tuple[Place, Any]:
    """Return the place after the next request of a process, and the answer for its next step.

    Raises:
        StopIteration: The process has ended.
    """
    return answer(rules, place, process.send(got))


class State(NamedTuple):
    """A state of the entire system."""

    place: Place
    late: int
    """The number of requests that may still be held back."""
    held: tuple[Put | Delete, ...]
    """Requests that take effect later."""
    runners: tuple[Runner, ...]


def explore(
    rules: Rules, place: Place, runners: Iterable[Runner], late: int = 0, states_max: int = 0
) -> Walk:
    """Visit every reachable state, until a chunk is lost.

    Args:
        rules: The rules that the processes keep.
        place: What is in the store.
        runners: The processes.
        late: How many requests may be held back.
        states_max: Give up, without a loss, after this many states; 0: never.
    """
    lost_in = cache(lost_chunk)  # many states have the same place

    def lost(state: State) -> str:
        if any(runner.name == LOST for runner in state.runners):
            return "a reader or a repair did not find a chunk that a snapshot needs"
        return lost_in(state.place)

    first = State(place, late, (), tuple(sorted(runners)))
    return walk(first, _Walker(rules).steps, lost, states_max)


class _Walker:
    """Finds the steps that can follow a state."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._roles = Roles(rules)
        self._next: dict[Runner, Request | Runner | None] = {}
        # It is most of the work, and a walk meets each runner thousands of times.
        self._text = cache(repr)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield each step, in words, and the state after it."""
        for runner in state.runners:
            request = self._request(runner)
            others = list(state.runners)
            others.remove(runner)
            place, got = answer(self._rules, state.place, request)
            ahead = self._ahead(runner, got)
            told = f"{runner.name}{runner.arguments[:1]}: {_shown(request)}"
            yield told, state._replace(place=place, runners=self._with(others, ahead))
            if not state.late or isinstance(request, Read):
                continue
            held = state._replace(late=state.late - 1, held=(*state.held, request))
            yield (
                f"{told}, and again later",
                held._replace(place=place, runners=self._with(others, ahead)),
            )
            if isinstance(request.value, Commit) and request.value.kind != "revoked":
                gone = self._settled(Runner("abort", (request.value.session,)))
                yield f"{told}, only later", held._replace(runners=self._with(others, gone))
        for number, request in enumerate(state.held):
            place, _ = answer(self._rules, state.place, request)
            left = state.held[:number] + state.held[number + 1 :]
            yield f"held back: {_shown(request)}", state._replace(place=place, held=left)

    def _ahead(self, runner: Runner, got: Any) -> Runner | None:
        return self._settled(runner._replace(answers=(*runner.answers, got)))

    def _settled(self, runner: Runner) -> Runner | None:
        """Return the runner, or the process that continues it if it has no request left."""
        found = self._peek(runner)
        while isinstance(found, Runner):
            if found.name == LOST:
                return found
            runner, found = found, self._peek(found)
        return None if found is None else runner

    def _request(self, runner: Runner) -> Request:
        found = self._peek(runner)
        assert isinstance(found, Read | Put | Delete)
        return found

    def _peek(self, runner: Runner) -> Request | Runner | None:
        if runner not in self._next:
            process: Process = getattr(self._roles, runner.name)(*runner.arguments)
            try:
                request = next(process)
                for got in runner.answers:
                    request = process.send(got)
            except StopIteration as end:
                then = None if end.value is None else Runner(end.value[0], end.value[1:])
                self._next[runner] = then
            else:
                self._next[runner] = request
        return self._next[runner]

    def _with(self, others: list[Runner], runner: Runner | None) -> tuple[Runner, ...]:
        people = others if runner is None else [*others, runner]
        return tuple(sorted(people, key=self._text))


def _shown(request: Request) -> str:
    if isinstance(request, Read):
        return f"read {request.prefix}"
    return f"{type(request).__name__.lower()} {request.value}"
