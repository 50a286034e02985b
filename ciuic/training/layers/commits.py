"""Commit a state group after group, so that a crash leaves the first ones durable."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ciuic.errors import CorruptionError
from ciuic.model import Entry, SnapshotSummary
from ciuic.snapshot.memory import (
    STATE_ROOT,
    MemoryRequest,
    StoredFile,
    take_from_memory,
)
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.snapshot.read.parent_nodes import can_reuse
from ciuic.snapshot.report import TakeReport
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.training.files import STATE_NAME, encoded
from ciuic.training.finding import run_of, saved_snapshots
from ciuic.training.layers.groups import Layer
from ciuic.training.layers.sessions import Sessions
from ciuic.training.loading.files import StateFiles
from ciuic.training.ranks.job import rank_directory
from ciuic.training.reducing import weights_alone
from ciuic.training.values.structure import UNREADABLE
from ciuic.view.locator import Locator

__all__ = ["PARTIAL", "take_in_order"]

PARTIAL: Final = "partial"
"""The tag of an incomplete snapshot. It is for people: the manifest says it as well."""
_SEARCHED_MAX: Final = 10
"""The most snapshots to search for a group that is not due."""


def take_in_order(
    sessions: Sessions,
    request: MemoryRequest,
    layers: Sequence[Layer],
    *,
    copied_frozen: bool,
    clock: Clock,
) -> tuple[TakeReport, list[str]]:
    """Commit a state; before that, an incomplete snapshot after each group of its parameters.

    Each incomplete snapshot has the groups of the one before and one more. This removes none of
    them.

    Args:
        sessions: The store; each commit is in a session of its own where that is needed.
        request: A state as ``Stager`` has written it.
        layers: The groups; none: only the complete snapshot is committed.
        copied_frozen: Frozen layers are stored as they are in the request. False: they are taken
            from an earlier snapshot, if one has them.
        clock: Gives the time.

    Returns:
        The report of the complete snapshot, and a sentence for each layer that has changed although
        it was declared frozen.

    Raises:
        StoreError: The store failed. Groups that were committed stay as an incomplete snapshot.
    """
    store = sessions.store
    state = _State.of(request) if layers else None
    if state is None or not state.groups:
        return take_from_memory(store, request, clock=clock), []
    earlier = dict(_earlier(store, state, layers, run_of(request.tags)))
    kept = {name: one for name, one in earlier.items() if not (one.is_frozen and copied_frozen)}
    stored: dict[str, StoredFile] = {}
    waiting = []
    for group in state.groups:
        found = kept.get(group["name"])
        if found is None:
            waiting.append(state.path(group))
        else:
            stored[state.path(group)] = found.file
            group["step"] = found.step
    others = state.files.keys() - {state.path(group) for group in state.groups}
    if others == {state.name}:
        del waiting[-1:]  # nothing follows the last group: it is in the complete snapshot
    begun = _commit_begun(sessions, request, state, waiting, stored, clock=clock)
    store = sessions.store
    whole = MemoryFile(os.fsencode(state.name), (encoded(state.document),))
    left = [state.files[path] for path in state.files.keys() - stored.keys() - {state.name}]
    files = (whole, *sorted(left, key=lambda file: file.path))
    request = replace(request, files=files, stored=tuple(stored.values()), replaces=begun)
    report = take_from_memory(store, request, clock=clock)
    renewed = {name: one for name, one in earlier.items() if name not in kept}
    return report, _changed(StateFiles(store, store.manifest(report.id).summary), renewed)


def _commit_begun(
    sessions: Sessions,
    request: MemoryRequest,
    state: "_State",
    waiting: Sequence[str],
    stored: dict[str, StoredFile],
    *,
    clock: Clock,
) -> SnapshotSummary | None:
    """Commit an incomplete snapshot after each file; returns the last one.

    Args:
        sessions: The store. Afterwards it is ready for another commit.
        request: The state.
        state: The same, taken apart.
        waiting: The files of the groups that are to be stored.
        stored: The files that the store has. Those that are committed are added, and those on which
            the next commit cannot rely are removed.
        clock: Gives the time.
    """
    begun: SnapshotSummary | None = None
    paths = list(stored)
    for path in waiting:
        store = sessions.store
        paths.append(path)
        written = encoded(weights_alone(state.document)[0])
        missing = [one for one in paths if one not in stored]
        asked = replace(
            request,
            files=(
                MemoryFile(os.fsencode(state.name), (written,)),
                *[state.files[one] for one in missing],
            ),
            stored=tuple(stored.values()),
            tags=(*request.tags, PARTIAL),
            replaces=begun,
            is_complete=False,
        )
        manifest = store.manifest(take_from_memory(store, asked, clock=clock).id)
        begun = manifest.summary
        locator = Locator(store, manifest)
        for one in missing:
            name = os.fsencode(one)
            stored[one] = StoredFile(name, locator.locate(STATE_ROOT + b"/" + name).entry)
        if sessions.begin_next() is not store:
            _let_go(sessions.store, state, stored)
    return begun


def _let_go(store: Store, state: "_State", stored: dict[str, StoredFile]) -> None:
    """Remove the files on which this session cannot rely: a prune may have condemned their packs.

    They are stored again from the memory, as parts of the present state.
    """
    for path in [path for path, file in stored.items() if not can_reuse(store, file.entry)]:
        del stored[path]
        for group in state.groups:
            if state.path(group) == path:
                group["step"] = state.step


class _State(NamedTuple):
    """A state that is to be committed.

    Attributes:
        files: Its files by their names.
        directory: The directory of rank 0, if there are several ranks; else empty.
        document: The content of ``state.json``.
        groups: The part of it that names the groups.
    """

    files: dict[str, MemoryFile]
    directory: str
    document: dict[str, Any]
    groups: list[dict[str, Any]]

    @classmethod
    def of(cls, request: MemoryRequest) -> "_State":
        files = {os.fsdecode(file.path): file for file in request.files}
        directory = "" if STATE_NAME in files else rank_directory(0)
        document = json.loads(b"".join(files[directory + STATE_NAME].parts))
        return cls(files, directory, document, document.get("layers", []))

    @property
    def name(self) -> str:
        """The name of ``state.json``."""
        return self.directory + STATE_NAME

    @property
    def step(self) -> Any:  # whatever the user has given
        """The step of the state."""
        return self.document["state"].get("step")

    def path(self, group: Mapping[str, Any]) -> str:
        """Return the name of the file of a group."""
        return self.directory + str(group["file"])


class _Earlier(NamedTuple):
    """The file of a group in an earlier snapshot, and the step that the new one records for it."""

    file: StoredFile
    step: int | None
    is_frozen: bool


def _changed(files: StateFiles, renewed: Mapping[str, _Earlier]) -> list[str]:
    """Return a sentence for each frozen layer whose new content is not the earlier one."""
    names = [
        name
        for name, earlier in renewed.items()
        if files.entry(os.fsdecode(earlier.file.path)).content != earlier.file.entry.content
    ]
    return [
        f"the layer {name} is declared frozen, but it has changed: the snapshots that this training"
        " has saved since the last full one have its older parameters"
        for name in names
    ]


def _earlier(
    store: Store, state: _State, layers: Sequence[Layer], run: str | None
) -> Iterator[tuple[str, _Earlier]]:
    """Yield the groups that the new snapshot can take from an earlier one: frozen, or not due."""
    step = state.step
    limits = {layer.name: layer.every for layer in layers if layer.every is not None}
    frozen = {layer.name for layer in layers if layer.frozen}
    if type(step) is not int:
        limits.clear()
    left = {one["name"]: one for one in state.groups if one["name"] in limits.keys() | frozen}
    earlier = [one for one in saved_snapshots(store) if run_of(one.tags) == run]
    for summary in earlier[:_SEARCHED_MAX]:
        if not left:
            return
        files = StateFiles(store, summary, state.directory)
        for old in _groups_of(files):
            name = str(old.get("name"))
            if name not in left:
                continue
            is_frozen = name in frozen
            if not is_frozen and not (
                type(old.get("step")) is int and 0 <= step - old["step"] < limits[name]
            ):
                del left[name]
                continue
            path = state.path(left[name])
            entry = _reusable(store, files, old["file"], state.files[path])
            if entry is not None:
                del left[name]
                of_step = step if is_frozen else old["step"]
                yield name, _Earlier(StoredFile(os.fsencode(path), entry), of_step, is_frozen)


def _groups_of(files: StateFiles) -> list[dict[str, Any]]:
    """Return what ``state.json`` of an earlier snapshot says of its groups."""
    try:
        return list(json.loads(files.bytes_of(STATE_NAME).tobytes()).get("layers", ()))
    except (CorruptionError, *UNREADABLE):
        return []


def _reusable(store: Store, files: StateFiles, name: str, new: MemoryFile) -> Entry | None:
    """Return the entry of an earlier file, if it is sound and has the header of the new one."""
    head = bytes(new.parts[0])
    try:
        if files.bytes_of(name, 0, min(len(head), files.size_bytes(name))).tobytes() != head:
            return None
        entry = files.entry(name)
    except CorruptionError:
        return None
    return entry if can_reuse(store, entry) else None
