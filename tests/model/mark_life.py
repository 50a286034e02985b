"""A model of the life of one snapshot's marks, small enough for an exhaustive walk.

docs/protocol.md states the rules. Each process is a generator that sends one request at a time and
gets the answer. ``explore`` visits every state that any interleaving reaches. A process that never
runs again has crashed, and one that runs again after others have run was paused.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from tests.model.walks import Walk, walk

__all__ = ["Rules", "Store", "explore"]

What = Literal["listed", "pinned", "forgotten", "purged"]


class Store(NamedTuple):
    """The files about one snapshot: its marks by number, its manifest, its retired ID."""

    marks: frozenset[tuple[int, What]] = frozenset()
    has_manifest: bool = True
    is_retired: bool = False
    chunks: bool = True
    """The packs have every chunk that the snapshot needs."""


@dataclass(frozen=True)
class Rules:
    """The rules. If any one is missing, a walk finds a broken promise."""

    create_if_absent: bool = True
    purge_by_mark: bool = True
    retire_before_manifest: bool = True
    manifest_before_marks: bool = True
    look_after_undo: bool = True
    look_after_pin: bool = True
    refuse_pinned: bool = True
    delete_before_packs: bool = True


Step = Callable[[Store], tuple[Store, Any]]
Process = Generator[Step, Any, str]


def newest(store: Store) -> tuple[int, What]:
    """Return the newest mark; without one, the snapshot is listed."""
    return max(store.marks, default=(0, "listed"))


def _look(store: Store) -> tuple[Store, Any]:
    """List the marks, and then look for the manifest."""
    return store, newest(store)


def _has_manifest(store: Store) -> tuple[Store, Any]:
    return store, store.has_manifest


class _Roles:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def _create(self, number: int, what: What) -> Step:
        def act(store: Store) -> tuple[Store, Any]:
            if self._rules.create_if_absent and any(one == number for one, _ in store.marks):
                return store, False
            kept = frozenset(mark for mark in store.marks if mark[0] != number)
            return store._replace(marks=kept | {(number, what)}), True

        return act

    def _change(self, allowed: set[What], what: What, *, looks: bool) -> Process:
        while True:
            number, state = yield _look
            if state not in allowed or not (yield _has_manifest):
                return "refused"
            if (yield self._create(number + 1, what)):
                break
        if looks and not (yield _has_manifest):
            return "refused"
        return "done"

    def undo(self) -> Process:
        return self._change({"forgotten"}, "listed", looks=self._rules.look_after_undo)

    def pin(self) -> Process:
        return self._change({"listed", "pinned"}, "pinned", looks=self._rules.look_after_pin)

    def forget(self) -> Process:
        allowed: set[What] = {"listed"} if self._rules.refuse_pinned else {"listed", "pinned"}
        return self._change(allowed, "forgotten", looks=False)

    def prune(self) -> Process:
        """Plan, purge, delete, and remove packs. A second prune finishes a first one."""
        number, state = yield _look
        if (yield lambda store: (store, not store.has_manifest and not store.is_retired)):
            return "refused"  # the manifest is lost
        if state not in {"forgotten", "purged"}:
            return "refused"
        if not self._rules.delete_before_packs:
            yield lambda store: (store._replace(chunks=False), None)
        while state == "forgotten" and self._rules.purge_by_mark:
            if (yield self._create(number + 1, "purged")):
                break
            number, state = yield _look
        if state not in {"forgotten", "purged"}:
            return "refused"
        steps: list[Step] = [
            lambda store: (store._replace(is_retired=True), None),
            lambda store: (store._replace(has_manifest=False), None),
            lambda store: (store._replace(marks=frozenset()), None),
        ]
        if not self._rules.retire_before_manifest:
            steps = [steps[1], steps[0], steps[2]]
        if not self._rules.manifest_before_marks:
            steps = [steps[0], steps[2], steps[1]]
        yield from steps
        yield lambda store: (store._replace(chunks=False), None)
        return "deleted"


class _Runner(NamedTuple):
    name: str
    answers: tuple[Any, ...] = ()
    result: str = ""


class _State(NamedTuple):
    store: Store
    runners: tuple[_Runner, ...]
    said: frozenset[str] = frozenset()
    """The command reported as done, ``undo`` or ``pin``, as long as its effect must last."""


FORGOTTEN: Final = Store(frozenset({(1, "forgotten")}))


def explore(rules: Rules, store: Store, names: Iterable[str]) -> Walk:
    """Visit every reachable state, until a promise is broken."""
    first = _State(store, tuple(sorted(map(_Runner, names))))
    return walk(first, lambda state: _steps(rules, state), _broken)


def _steps(rules: Rules, state: _State) -> Iterator[tuple[str, _State]]:
    for index, runner in enumerate(state.runners):
        if not runner.result:
            yield runner.name, _stepped(rules, state, index)


def _stepped(rules: Rules, state: _State, index: int) -> _State:
    runner = state.runners[index]
    process: Process = getattr(_Roles(rules), runner.name.split(" ")[0])()
    step = next(process)
    for got in runner.answers:
        step = process.send(got)
    store, answer = step(state.store)
    moved = runner._replace(answers=(*runner.answers, answer))
    said = state.said
    if newest(store) != newest(state.store) and newest(store)[1] == "forgotten":
        said -= {"undo"}  # another process may forget the snapshot again
    try:
        process.send(answer)
    except StopIteration as end:
        moved = _Runner(runner.name, result=str(end.value))
        number, what = newest(store)
        if end.value == "done" and number and what in {"listed", "pinned"}:
            said |= {runner.name.split(" ")[0]} & {"undo", "pin"}
    others = (*state.runners[:index], moved, *state.runners[index + 1 :])
    return _State(store, tuple(sorted(others)), said)


def _broken(state: _State) -> str:
    """Return the promise that a state breaks; empty: none."""
    store = state.store
    if not store.has_manifest and not store.is_retired:
        return "a manifest is gone that no process may remove: it counts as lost"
    if store.has_manifest and newest(store)[1] in {"listed", "pinned"} and not store.chunks:
        return "a listed snapshot has no chunks"
    if store.has_manifest and newest(store)[1] == "forgotten" and not store.chunks:
        return "a snapshot in the trash has no chunks"
    if "pin" in state.said and not (store.has_manifest and newest(store)[1] == "pinned"):
        return "a pin was reported as done, and the snapshot is forgotten or gone"
    if "undo" in state.said and not store.has_manifest:
        return "an undo was reported as done, and the snapshot is gone"
    return ""
