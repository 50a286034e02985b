"""Recorded stories of a store, and what must hold in every state after a power cut.

A ``StoreStory`` is a sequence of commands on one store; each step knows the content of the store
before and after. A new command needs one line in a story: what must hold follows from both.
A ``RestoreStory`` is one restore over a target. Both can check a directory made from a state.
"""

import os
import random
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ciuic.catalog import damaged_manifests, list_snapshots
from ciuic.ids import SnapshotId
from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.plan import plan_repair
from ciuic.model import Root
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.parity.shape import PARITY_DEFAULT
from ciuic.store.store import Store, open_store
from ciuic.verify.verify import verify_all
from tests.kit.clock import ManualClock
from tests.kit.journal import Image, Journal, write_image
from tests.kit.program import Outcome
from tests.kit.recorder import Recorder
from tests.kit.trees import Photo, differences, photograph

__all__ = ["RestoreStory", "StoreStory", "Story"]

CHUNK_BYTES: Final = 4096
_LATER_NS: Final = 100_000_000_000
_LEFTOVER: Final = b".ciuic-restore-"


class Kept(NamedTuple):
    """The content of a snapshot: only its tags and pin ever change."""

    taken_ns: int
    roots: tuple[Root, ...]
    words: tuple[object, ...]


class Holdings(NamedTuple):
    """The snapshots of a store: listed, in the trash, and expired."""

    live: dict[SnapshotId, Kept]
    trash: frozenset[SnapshotId]
    retired: frozenset[SnapshotId]


_NOTHING: Final = Holdings({}, frozenset(), frozenset())


class Step(NamedTuple):
    """One command of a story: where it begins, and from where on it was reported done."""

    begin: int
    said: int
    before: Holdings | None
    after: Holdings | None
    was_damaged: bool = False
    is_damaged: bool = False


class Moment(NamedTuple):
    """The allowed contents at a moment: before a command, or after it."""

    before: Holdings | None
    after: Holdings | None
    is_damaged: bool = False


class Story(Protocol):
    """A recorded run that can be checked."""

    name: str
    journal: Journal

    def phase(self, cut: int) -> int:
        """Return the phase of a moment; all moments of a phase promise the same."""

    def check(self, cut: int, directory: Path, scratch: Path, rng: random.Random) -> None:
        """Check a state after this many operations; raise AssertionError."""


def holdings(store: Store, *, is_damaged: bool = False) -> Holdings:
    """Return the content of an open store; unexpected damage fails."""
    assert is_damaged or damaged_manifests(store) == {}
    live = {}
    for summary in list_snapshots(store):
        manifest = store.manifest(summary.id)
        words = (summary.tags, summary.pinned)
        assert not summary.mark_problem
        live[summary.id] = Kept(summary.taken_ns, manifest.roots, words)
    trash = frozenset(SnapshotId(entry.id) for entry in store.trash.read())
    if not is_damaged:
        for name in trash:
            store.manifest(name, copy=False)  # undamaged without its copy
    return Holdings(live, trash, frozenset(store.trash.used_ids()))


class Recording(Protocol):
    """Runs commands, and records what they do to a disk."""

    def run(self, *arguments: str | Path, codes: Sequence[int] = (0,)) -> Outcome:
        """Run ``ciuic`` to its end."""

    @property
    def position(self) -> int:
        """The current moment: the number of recorded operations."""

    def reported(self, begin: int) -> int:
        """Return when the command that began there had printed its last line."""


class StoreStory:
    """Commands on a store that is alone on a disk.

    Args:
        name: For messages.
        directory: A directory for everything except the disk.
        top: The empty disk; None to make a directory that is recorded call by call.
        recording: Records what happens to another disk.

    Attributes:
        source: The root of the snapshots, on another disk.
        store: The store.
        journal: The operations, recorded call by call.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        top: Path | None = None,
        recording: Recording | None = None,
    ) -> None:
        self.name = name
        self._directory = directory
        self.source = directory / "source"
        self.source.mkdir(parents=True)
        self.top = top or directory / "disk"
        self.top.mkdir(exist_ok=True)
        self.store = self.top / "store"
        self._config = directory / "ciuic.conf"
        self.configure()
        self.journal = Journal(Image({}, {}, {}, {}))
        self._recording = recording or self._record_calls()
        self._steps: list[Step] = []
        self._photos: dict[str, dict[bytes, Photo]] = {}
        self._now: Holdings | None = None
        self._is_damaged = False
        self._harmed: list[bytes] = []

    def configure(self, **keys: str) -> None:
        """Write the configuration."""
        settings = {"snapshot_paths": self.source, "snapshot_dir": self.store, "base_interval": 0}
        lines = [f"{key} = {value}\n" for key, value in {**settings, **keys}.items()]
        self._config.write_text("".join(lines))

    def make_store(self) -> None:
        """Make an existing, durable store with small chunks: many packs and nodes."""
        create_store(str(self.store), ManualClock(), chunk_bytes=CHUNK_BYTES)
        self._begin_here()

    def run(self, *arguments: str, codes: Sequence[int] = (0,), mends: bool = True) -> Outcome:
        """Run a command, and record the content of the store before and after."""
        begin = self._recording.position
        outcome = self._recording.run("--config", self._config, *arguments, codes=codes)
        after = self._look(is_damaged=self._is_damaged and not mends)
        said = self._recording.reported(begin)
        was_damaged, self._is_damaged = self._is_damaged, self._is_damaged and not mends
        self._steps.append(Step(begin, said, self._now, after, was_damaged, self._is_damaged))
        known = self._now.live if self._now is not None else {}
        for name in after.live.keys() - known.keys() - self._photos.keys():
            self._photos[name] = photograph(self.source, holes=False)
        self._now = after
        return outcome

    def _record_calls(self) -> Recording:
        recorder = Recorder(self.top, self._directory)
        self.journal = recorder.journal
        return recorder

    def newest(self, number: int = 0) -> str:
        """Return the ID of a snapshot, counted from the newest."""
        live = self._now.live if self._now is not None else {}
        return sorted(live, key=lambda snapshot_id: live[snapshot_id].taken_ns)[-1 - number]

    def take(self, *, parity: float = PARITY_DEFAULT) -> None:
        """Take a durable snapshot before the story begins; without parity, nothing has a copy."""
        request = TakeRequest((os.fsencode(self.source),), base_interval_s=0, parity=parity)
        with open_store(str(self.store), write=True) as store:
            taken = take_snapshot(store, request, clock=ManualClock(time.time_ns() + _LATER_NS))
        self._photos[taken.id] = photograph(self.source, holes=False)
        self._begin_here()

    def forget(self, *names: str) -> None:
        """Forget snapshots before the story begins."""
        with open_store(str(self.store), write=True) as store:
            store.trash.forget([SnapshotId(name) for name in names], time.time_ns())
        self._begin_here()

    def _begin_here(self) -> None:
        self._now = self._look()
        self._recording = self._record_calls()

    def begin_again(self, image: Image) -> None:
        """Continue the story from this state after a power cut."""
        write_image(image, self.top)
        self._steps = []
        self._begin_here()

    def damage(self, harm: Callable[[Path], None]) -> None:
        """Damage the idle store; the next command must repair it."""
        before = read_tree(self.store)
        harm(self.store)
        self._harmed = [
            data for path, data in read_tree(self.store).items() if before.get(path) != data
        ]
        self._steps = []
        self._is_damaged = True
        self._recording = self._record_calls()

    def _look(self, *, is_damaged: bool = False) -> Holdings:
        with open_store(str(self.store)) as store:
            return holdings(store, is_damaged=is_damaged)

    def _moment(self, cut: int) -> Moment:
        now = Moment(None, None)
        if self._steps:
            first = self._steps[0]
            now = Moment(first.before, first.before, first.was_damaged)
        for step in self._steps:
            if cut > step.said:
                now = Moment(step.after, step.after, step.is_damaged)
            elif cut > step.begin:
                now = Moment(step.before, step.after, step.was_damaged)
        return now

    def phase(self, cut: int) -> int:
        """See ``Story``."""
        return sum([(cut > step.begin) + (cut > step.said) for step in self._steps])

    def check(self, cut: int, directory: Path, scratch: Path, rng: random.Random) -> None:
        """Check every promise about the store, and that it still works."""
        moment = self._moment(cut)
        path = str(directory / "store")
        if moment.before is None:
            # No store, a partial store, or a complete one: init completes all of them.
            create_store(path, ManualClock())
            moment = Moment(_NOTHING, moment.after)
        clock = ManualClock(time.time_ns() + _LATER_NS)
        kept = {*read_tree(directory / "store").values()} if self._harmed else set()
        assert kept.issuperset(self._harmed), "what was damaged is gone for good"
        with open_store(path) as store:
            found = holdings(store, is_damaged=moment.is_damaged)
            check_holdings(moment, found)
            if not moment.is_damaged:
                check_sound(store)
            if found.live:
                self._check_restored(store, rng.choice(sorted(found.live)), scratch)
            # Snapshots in the trash are complete too: bringing them back proves it.
            brought = sorted(found.trash - found.live.keys())
        request = TakeRequest(
            (os.fsencode(self.source),), base_interval_s=0, base=rng.random() < 0.3
        )
        if moment.is_damaged:
            repair(path, clock)
        with open_store(path, write=True) as store:
            for name in brought:
                store.trash.bring_back(name)
            again = take_snapshot(store, request, clock=clock)
            assert again.trouble_count == 0, again.trouble
        assert os.listdir(directory / "store" / "tmp") == []
        with open_store(path) as store:
            later = holdings(store)
            assert later.live.keys() == {*found.live, *brought, again.id}
            assert all(later.live[name] == found.live[name] for name in found.live)
            check_sound(store)
            self._photos[again.id] = photograph(self.source, holes=False)
            self._check_restored(store, again.id, scratch)
            del self._photos[again.id]

    def _check_restored(self, store: Store, name: SnapshotId, scratch: Path) -> None:
        out = scratch / "out"
        request = RestoreRequest(
            (os.fsencode(self.source),), destination=os.fsencode(out), hot=False
        )
        done = restore(store, store.manifest(name), request, clock=ManualClock())
        assert done.failed == []
        found = photograph(out / self.source.name, holes=False)
        assert differences(self._photos[name], found) == [], name
        shutil.rmtree(out)


def check_holdings(moment: Moment, found: Holdings) -> None:
    """Check that each snapshot is where it was before the command or where it is after it."""
    before = moment.before or _NOTHING
    after = moment.after or before
    possible = before.live.keys() | after.live.keys()
    sure = before.live.keys() & after.live.keys()
    assert found.live.keys() <= possible, "listed, and was never committed"
    assert sure <= found.live.keys(), "committed, and not listed"
    had = possible | before.trash | after.trash
    assert found.trash <= had, "in the trash, and was never a snapshot"
    for name in had:
        states = {state for holding in (before, after) for state in where(name, holding)}
        assert where(name, found) & states or "nowhere" in states, f"{name} is lost"
        if where(name, before) != {"nowhere"} == where(name, found):
            assert name in found.retired, f"the ID {name} may be used again"
    for name, kept in found.live.items():
        known = [holding.live[name] for holding in (before, after) if name in holding.live]
        assert any(
            (kept.taken_ns, kept.roots) == (summary.taken_ns, summary.roots) for summary in known
        )
        assert kept.words in [summary.words for summary in known], (
            f"{name} has words that no command wrote"
        )


def read_tree(top: Path) -> dict[Path, bytes]:
    """Return the content of every file below."""
    return {path: path.read_bytes() for path in top.rglob("*") if path.is_file()}


def where(name: str, holding: Holdings) -> set[str]:
    """Return where a snapshot is; it may be both listed and in the trash."""
    found = {"live"} if name in holding.live else set()
    if name in holding.trash:
        found.add("trash")
    return found or {"nowhere"}


def repair(path: str, clock: ManualClock) -> None:
    """Repair what can be repaired."""
    with open_store(path, write=True) as store:
        plan = plan_repair(store, parity=PARITY_DEFAULT)
        apply_repair(store, plan, parity=PARITY_DEFAULT, clock=clock)


def check_sound(store: Store) -> None:
    """Check that all listed snapshots can be read, decoded and verified."""
    report = verify_all(store, checksum=True, clock=ManualClock())
    assert report.ok, report.as_json()


class RestoreStory:
    """One restore over a target that is alone on a disk; the store is on another disk."""

    def __init__(
        self, name: str, directory: Path, *, delete: bool = False, in_place: bool = False
    ) -> None:
        self.name = name
        self._directory = directory
        self._delete = delete
        self._in_place = in_place
        self.top = directory / "disk"
        self.top.mkdir(parents=True)
        self.source = (self.top if in_place else directory) / "source"
        self.source.mkdir()
        self._store = directory / "store"
        self._config = directory / "ciuic.conf"
        self._config.write_text(
            f"snapshot_paths = {self.source}\nsnapshot_dir = {self._store}\nbase_interval = 0\n"
        )
        create_store(str(self._store), ManualClock(), chunk_bytes=CHUNK_BYTES)
        self.journal = Journal(Image({}, {}, {}, {}))
        self._old: dict[bytes, Photo] = {}
        self._new: dict[bytes, Photo] = {}
        self._said = 0

    def take(self) -> None:
        """Take the snapshot to restore."""
        request = TakeRequest((os.fsencode(self.source),), base_interval_s=0)
        with open_store(str(self._store), write=True) as store:
            take_snapshot(store, request, clock=ManualClock(time.time_ns() + _LATER_NS))

    def run(self) -> None:
        """Restore it over the current target."""
        self._old = self._photograph(self.top)
        recorder = Recorder(self.top, self._directory)
        options = ("--overwrite", "--delete") if self._delete else ("--overwrite",)
        place = () if self._in_place else ("-d", self.top)
        arguments = ("restore", "-s", "latest", "-p", self.source, *place, *options)
        recorder.run("--config", self._config, *arguments)
        self.journal = recorder.journal
        self._new = self._photograph(self.top)
        self._said = recorder.reported(0)

    @staticmethod
    def _photograph(top: Path) -> dict[bytes, Photo]:
        found = photograph(top, holes=False)
        del found[b"."]  # the restore does not touch the directory of the target
        return found

    def phase(self, cut: int) -> int:
        """See ``Story``."""
        return int(cut > self._said)

    def check(self, cut: int, directory: Path, scratch: Path, rng: random.Random) -> None:
        """Check that files are old or new, reported files are new, and a second run finishes."""
        del scratch, rng
        found = self._photograph(directory)
        if cut > self._said:
            assert differences(self._new, found) == []
        for path, photo in found.items():
            if os.path.basename(path).startswith(_LEFTOVER):
                continue
            known = [tree[path] for tree in (self._old, self._new) if path in tree]
            assert known, f"{path!r} is neither old nor new"
            self._check_either(path, photo, known)
        for path in self._old:
            assert path in found or self._may_be_gone(path), f"{path!r} is gone"
        self._check_again(directory)

    def _may_be_gone(self, path: bytes) -> bool:
        """No single call can replace a file by a directory, or a directory by a file."""
        if path not in self._new:
            return self._delete
        return stat.S_ISDIR(self._old[path].mode) != stat.S_ISDIR(self._new[path].mode)

    @staticmethod
    def _check_either(path: bytes, found: Photo, known: list[Photo]) -> None:
        kinds = [stat.S_IFMT(photo.mode) for photo in known]
        assert stat.S_IFMT(found.mode) in kinds, path
        if not stat.S_ISDIR(found.mode):
            assert (found.size_bytes, found.content, found.rdev) in [
                (photo.size_bytes, photo.content, photo.rdev) for photo in known
            ], f"{path!r} is torn"

    def _check_again(self, directory: Path) -> None:
        request = RestoreRequest(
            (os.fsencode(self.source),),
            destination=os.fsencode(directory),
            overwrite=True,
            delete=self._delete,
            hot=False,
        )
        with open_store(str(self._store)) as store:
            manifest = store.manifest(list_snapshots(store)[0].id)
            done = restore(store, manifest, request, clock=ManualClock())
        assert done.failed == []
        assert differences(self._new, self._photograph(directory)) == []
