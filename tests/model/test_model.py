"""A store is compared with a dictionary: each snapshot equals the source of its time.

Hypothesis draws the steps: files change; snapshots are taken, forgotten, brought back, pinned and
pruned; processes are killed at a durable step; packs rot; records of damage are wrong; the chunk
index is lost. The dictionary has the state of the source for each snapshot. After every step, the
store must list the same snapshots, and restore one of them bit for bit. A long run:
HYPOTHESIS_PROFILE=long.
"""

import contextlib
import dataclasses
import functools
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ciuic.errors import CorruptionError, UsageError
from ciuic.maintain.forget import (
    ForgetPlan,
    apply_forget,
    bring_back,
    plan_forget,
    plan_forget_by_id,
)
from ciuic.maintain.label import change_tags, set_pinned
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.plan import plan_repair
from ciuic.maintain.scrub.scrub import scrub
from ciuic.model import SnapshotSummary, newest_first
from ciuic.retention import parse_policy
from ciuic.store.damage_records import note_read
from ciuic.store.gc.usage import DEAD_FRACTION
from ciuic.store.health.inspect import pack_frames
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.records.damage import ByteSpan, KnownDamage
from ciuic.store.records.kinds import DATA
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.trees import Photo, photograph

CHUNK_BYTES = 4096
PARITY = 0.25
LENGTHS = {"ci": (15, 60), "long": (200, 60)}
"""Runs, and steps of each, by profile of hypothesis."""
NAMES = ["a", "b", "c.pt", "d/e", "d/f", "d/g/h"]
names = st.sampled_from(NAMES)
sizes = st.sampled_from([0, 1, 100, 4096, 4097, 20_000, 70_000])
seeds = st.integers(0, 5)
which = st.integers(0, 1_000_000)
Photos = dict[bytes, Photo]


def content(seed: int, size: int) -> bytes:
    """Return incompressible bytes. Equal arguments give equal bytes, which are stored once."""
    return random.Random(seed).randbytes(size)


@dataclasses.dataclass
class Expected:
    """What the model knows about one snapshot."""

    photos: Photos
    chunks: frozenset[bytes] = frozenset()
    """The IDs of every piece of every file, including holes."""
    pinned: bool = False
    tags: tuple[str, ...] = ()
    spoiled: bool = False
    """A pack without parity was damaged during its life, so lost paths must be named."""


def expected_of(source: Path, tags: tuple[str, ...] = ()) -> Expected:
    """Return what a snapshot must have that is taken now."""
    files = [one.read_bytes() for one in source.rglob("*") if one.is_file()]
    chunks = {
        data_id(data[at : at + CHUNK_BYTES])
        for data in files
        for at in range(0, len(data), CHUNK_BYTES)
    }
    return Expected(photograph(source), frozenset(chunks), tags=tags)


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a process that is killed just before its durable step of this number."""
    pid = os.fork()
    if pid == 0:
        left = [step]

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def wrapped(*arguments: object, **named: object) -> object:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return call(*arguments, **named)

            return wrapped

        for name in ("fsync", "rename", "unlink", "link", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        code = 1
        with contextlib.suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, "it failed before it was killed"
        return False
    return True


def patiently(work: Callable[..., Any]) -> Callable[..., Any]:
    """Repeat a command once: a damaged chunk index may end it, and the next run then works."""

    @functools.wraps(work)
    def tried(*arguments: Any, **named: Any) -> Any:
        try:
            return work(*arguments, **named)
        except IndexDamagedError:
            return work(*arguments, **named)

    return tried


def only_if(has: Callable[["StoreMachine"], Any]) -> Callable[..., Callable[..., None]]:
    """Make a step do nothing if the store lacks what it needs.

    A precondition would not do: a kill hits another place in each run, so other steps are possible
    after it, and hypothesis then calls the test unreliable.
    """

    def decorated(step: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(step)
        def taken(self: "StoreMachine", *given: Any, **drawn: Any) -> None:
            if has(self):
                step(self, *given, **drawn)

        return taken

    return decorated


class PatientBox(Box):
    """A box that repeats a command once if the chunk index is damaged."""

    take = patiently(Box.take)
    restore = patiently(Box.restore)
    verify = patiently(Box.verify)
    snapshots = patiently(Box.snapshots)


class StoreMachine(RuleBasedStateMachine):
    """The store, and the model of its content."""

    @initialize(parity=st.sampled_from([0.0, PARITY]))
    def begin(self, parity: float) -> None:
        place = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.directory = Path(tempfile.mkdtemp(prefix="ciuic-model-", dir=place))
        self.box = PatientBox(self.directory, chunk_bytes=CHUNK_BYTES, parity=parity)
        (self.box.source / "d" / "g").mkdir(parents=True)
        self.live: dict[str, Expected] = {}
        self.trash: dict[str, Expected] = {}
        self.gone: set[str] = set()
        self.random = random.Random(1)
        # Two snapshots share one file but not the other, so that every step has work to do.
        self.write("b", 1, 20_000)
        for seed in (2, 3):
            self.write("a", seed, 70_000)
            self.snapshot(base=False, tags=())

    def teardown(self) -> None:
        if not hasattr(self, "box"):
            return
        try:
            for name in sorted(self.trash):
                self._bring_back(name)
            for name, expected in self.live.items():
                self._check(name, expected)
            assert self.box.verify().ok or any(one.spoiled for one in self.live.values())
        finally:
            shutil.rmtree(self.directory)

    # The source

    def _path(self, name: str) -> Path:
        path = self.box.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @rule(name=names, seed=seeds, size=sizes)
    def write(self, name: str, seed: int, size: int) -> None:
        self._path(name).write_bytes(content(seed, size))

    @rule(name=names, seed=seeds, size=sizes)
    def append(self, name: str, seed: int, size: int) -> None:
        with self._path(name).open("ab") as file:
            file.write(content(seed, size))

    @rule(name=names, size=sizes)
    def cut_or_lengthen(self, name: str, size: int) -> None:
        with self._path(name).open("ab") as file:
            file.truncate(size)

    @rule(name=names, seed=seeds, at=st.integers(0, 60_000))
    def write_over_and_keep_the_time(self, name: str, seed: int, at: int) -> None:
        path = self._path(name)
        if not path.exists():
            return
        status = path.stat()
        with path.open("r+b") as file:
            file.seek(min(at, max(0, status.st_size - 1)))
            file.write(content(seed, min(5000, max(0, status.st_size - at))))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        if self._path(old).exists():
            self._path(old).rename(self._path(new))

    @rule(old=names, new=names)
    def link(self, old: str, new: str) -> None:
        if self._path(old).exists() and not self._path(new).exists():
            self._path(new).hardlink_to(self._path(old))

    @rule(name=names)
    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    @rule()
    def remove_directory(self) -> None:
        shutil.rmtree(self.box.source / "d", ignore_errors=True)

    # Snapshots

    @rule(name=names, seed=seeds)
    def write_and_snapshot(self, name: str, seed: int) -> None:
        self.write(name, seed, 70_000)
        self.snapshot(base=False, tags=())

    @rule(base=st.booleans(), tags=st.sampled_from([(), ("x",), ("x", "y")]))
    def snapshot(self, base: bool, tags: tuple[str, ...]) -> None:
        self._tick()
        expected = expected_of(self.box.source, tags)
        report = self.box.take(base=base, tags=tags)
        assert report.trouble == ()
        self._took(report.id, expected)

    @rule(name=names, seed=seeds)
    def snapshot_while_a_writer_is_at_it(self, name: str, seed: int) -> None:
        with self._path(name).open("ab") as writer:
            writer.write(content(seed, 3000))
            writer.flush()
            self._tick()
            expected = expected_of(self.box.source)
            report = self.box.take()
            # A warning names the first name of an inode with several names.
            inode = self._path(name).stat().st_ino
            assert inode in {os.stat(one.path).st_ino for one in report.trouble}
        self._took(report.id, expected)

    def _tick(self) -> None:
        """Wait: a file that changes twice within one tick of the kernel's clock looks unchanged."""
        time.sleep(0.005)

    def _took(self, name: str, expected: Expected) -> None:
        assert name not in {*self.live, *self.trash, *self.gone}
        self.live[name] = expected

    @rule(step=st.integers(0, 25))
    def snapshot_is_killed(self, step: int) -> None:
        self._tick()
        expected = expected_of(self.box.source)
        killed_at(step, self.box.take)
        new = [one for one in self.box.snapshots() if one.id not in self.live]
        assert len(new) <= 1
        for one in new:
            # Only the clock of the killed process has advanced.
            self.box.clock.advance(max(0, one.taken_ns - self.box.clock.now_ns()) / 1e9)
            self._took(one.id, expected)

    # Bringing back files

    @rule(at=which)
    @only_if(lambda self: self.live)
    def restore_in_place(self, at: int) -> None:
        name = self._pick(self.live, at)
        expected = self.live[name]
        try:
            report = self.box.restore(snapshot=name, overwrite=True, delete=True)
        except CorruptionError:
            assert expected.spoiled
            return
        if not report.failed:
            assert same(photograph(self.box.source), expected.photos) == set()
        assert expected.spoiled or not report.failed

    @rule(at=which, inside=which)
    @only_if(lambda self: self.live)
    def restore_one_path_elsewhere(self, at: int, inside: int) -> None:
        name = self._pick(self.live, at)
        expected = self.live[name]
        path = sorted(expected.photos)[inside % len(expected.photos)]
        with tempfile.TemporaryDirectory(dir=self.directory) as out:
            whole = os.path.normpath(os.path.join(os.fsencode(self.box.source), path))
            try:
                report = self.box.restore(whole, to=Path(out), snapshot=name)
            except CorruptionError:
                assert expected.spoiled
                return
            assert expected.spoiled or not report.failed
            if not report.failed:
                found = photograph(os.path.join(os.fsencode(out), os.path.basename(whole)))
                below = {
                    os.path.relpath(one, path): photo
                    for one, photo in expected.photos.items()
                    if path == b"." or one == path or one.startswith(path + b"/")
                }
                assert same(found, below, links=path == b".") == set()

    # Forgetting

    @rule(at=which)
    @only_if(lambda self: self.live)
    def forget(self, at: int) -> None:
        name = self._pick(self.live, at)
        try:
            self._forget(name)
        except UsageError:
            newest = newest_first(self.box.snapshots())[0].id
            troubled = any(one.trouble_count for one in self.box.snapshots())
            spoiled = any(one.spoiled for one in self.live.values())
            assert self.live[name].pinned or name == newest or troubled or spoiled
        except CorruptionError:
            assert self.live[name].spoiled
        else:
            assert not self.live[name].pinned
            self.trash[name] = self.live.pop(name)

    @patiently
    def _forget(self, name: str) -> None:
        now_ns = self.box.clock.now_ns()
        with open_store(str(self.box.store), write=True) as store:
            apply_forget(store, plan_forget_by_id(store, [name], now_ns), now_ns)

    @rule(policy=st.sampled_from(["last:1", "last:3", "hourly:2, last:1", "15s"]))
    def forget_by_policy(self, policy: str) -> None:
        plan = self._forget_by_policy(policy)
        for one, _ in plan.forgotten:
            assert not self.live[one.id].pinned
            self.trash[one.id] = self.live.pop(one.id)
        assert bool(self.live) == bool(plan.kept)

    @patiently
    def _forget_by_policy(self, policy: str) -> ForgetPlan:
        with open_store(str(self.box.store), write=True) as store:
            now_ns = self.box.clock.now_ns()
            plan = plan_forget(store, parse_policy(policy), now_ns)
            apply_forget(store, plan, now_ns)
        return plan

    @rule(at=which, step=st.integers(0, 6))
    @only_if(lambda self: len(self.live) > 1)
    def forget_is_killed(self, at: int, step: int) -> None:
        name = self._pick(self.live, at)
        try:
            self._may_be_forgotten(name)
        except (UsageError, CorruptionError):
            return
        killed_at(step, lambda: self._forget(name))
        if name not in {one.id for one in self.box.snapshots()}:
            self.trash[name] = self.live.pop(name)

    @patiently
    def _may_be_forgotten(self, name: str) -> None:
        with open_store(str(self.box.store)) as store:
            plan_forget_by_id(store, [name], self.box.clock.now_ns())

    @rule(at=which)
    @only_if(lambda self: self.trash)
    def bring_back(self, at: int) -> None:
        self._bring_back(self._pick(self.trash, at))

    def _bring_back(self, name: str) -> None:
        self._put_back(name)
        self.live[name] = self.trash.pop(name)

    @patiently
    def _put_back(self, name: str) -> None:
        with open_store(str(self.box.store), write=True) as store:
            if name in {one.id for one in store.trash.read()}:
                assert bring_back(store, name).id == name

    @rule(at=which, pinned=st.booleans(), tag=st.sampled_from(["x", "z"]), add=st.booleans())
    @only_if(lambda self: self.live)
    def label(self, at: int, pinned: bool, tag: str, add: bool) -> None:
        name = self._pick(self.live, at)
        summary = self._label(name, pinned, {"add" if add else "remove": [tag]})
        one = self.live[name]
        one.pinned = pinned
        one.tags = tuple(set(one.tags) | {tag} if add else set(one.tags) - {tag})
        assert set(summary.tags) == set(one.tags)

    @patiently
    def _label(self, name: str, pinned: bool, change: dict[str, list[str]]) -> SnapshotSummary:
        with open_store(str(self.box.store), write=True) as store:
            set_pinned(store, name, pinned=pinned)
            return change_tags(store, name, **change)

    # The store itself

    @rule(keep_trash=st.booleans())
    def prune(self, keep_trash: bool) -> None:
        if not self._prune(1e9 if keep_trash else 0.0):
            return
        if not keep_trash:
            self.gone |= self.trash.keys()
            self.trash.clear()
        self._is_pruned()

    @rule(at=which, keep_trash=st.booleans())
    @only_if(lambda self: self.live)
    def forget_and_prune(self, at: int, keep_trash: bool) -> None:
        self.forget(at)
        self.prune(keep_trash)

    @patiently
    def _is_pruned(self) -> None:
        with open_store(str(self.box.store), write=True) as store:
            again = plan_prune(store, trash_s=1e9, now_ns=self.box.clock.now_ns())
            assert (again.removed, again.rewritten, again.expired) == ((), (), ())
            self._no_unneeded_chunk_stays(store.pack_files())

    @patiently
    def _prune(self, trash_s: float) -> bool:
        """Return whether it pruned. A prune refuses if it cannot find out what is needed."""
        clock = self.box.clock
        with open_store(str(self.box.store), write=True) as store:
            try:
                plan = plan_prune(store, trash_s=trash_s, now_ns=clock.now_ns())
            except CorruptionError:
                assert any(one.spoiled for one in (*self.live.values(), *self.trash.values()))
                return False
            apply_prune(store, plan, parity=self.box.parity, clock=clock)
        return True

    def _no_unneeded_chunk_stays(self, packs: dict[bytes, int]) -> None:
        kept = [*self.live.values(), *self.trash.values()]
        if any(one.spoiled for one in kept):
            return
        needed = {name for one in kept for name in one.chunks}
        for pack, size_bytes in packs.items():
            dead_bytes = sum(
                one.frame.total_bytes
                for one in pack_frames(str(self.box.store), pack)
                if one.frame.kind == DATA
                and not any(name in needed for name, _ in one.frame.chunks)
            )
            assert dead_bytes <= DEAD_FRACTION * size_bytes

    @rule(step=st.integers(0, 20))
    @only_if(lambda self: self.trash)
    def prune_is_killed(self, step: int) -> None:
        if any(one.spoiled for one in (*self.live.values(), *self.trash.values())):
            return
        killed_at(step, lambda: self._prune(0.0))
        with open_store(str(self.box.store), write=True) as store:
            left = {one.id for one in store.trash.read()}
            assert left <= self.trash.keys()
        self.gone |= self.trash.keys() - left
        self.trash = {name: one for name, one in self.trash.items() if name in left}

    @rule()
    def delete_the_catalog(self) -> None:
        (self.box.store / "catalog.sqlite").unlink(missing_ok=True)

    @rule(at=which)
    def spoil_the_catalog(self, at: int) -> None:
        path = self.box.store / "catalog.sqlite"
        if path.exists() and path.stat().st_size:
            with path.open("r+b") as file:
                file.seek(at % path.stat().st_size)
                file.write(b"\xa5" * 100)

    @rule()
    def verify_and_scrub(self) -> None:
        spoiled = any(one.spoiled for one in (*self.live.values(), *self.trash.values()))
        assert self.box.verify().ok or spoiled
        report = patiently(scrub)(str(self.box.store), clock=self.box.clock)
        assert report.manifests == [] or spoiled

    @rule()
    def repair(self) -> None:
        self._repair()

    @patiently
    def _repair(self) -> None:
        with open_store(str(self.box.store), write=True) as store:
            plan = plan_repair(store, parity=self.box.parity)
            apply_repair(store, plan, parity=self.box.parity, clock=self.box.clock)

    @rule(at=which, where=which, how=st.sampled_from(["flip", "zero", "cut", "gone"]))
    @only_if(lambda self: self.live)
    def a_pack_rots(self, at: int, where: int, how: str) -> None:
        packs = sorted((self.box.store / "packs").iterdir(), key=lambda one: one.stat().st_size)
        if not packs:
            return
        pack = packs[at % len(packs)]
        before = pack.read_bytes()
        within_reach = self.box.parity and how in {"flip", "zero"}
        damage(pack, where, how)
        if within_reach:
            for name, expected in self.live.items():
                self._check(name, expected)
            self._repair()
            assert pack.read_bytes() == before
            return
        for one in (*self.live.values(), *self.trash.values()):
            one.spoiled = True
        named = [self._check(name, expected) for name, expected in self.live.items()]
        assert not (any(named) and self.box.verify().ok)
        self._repair()

    @rule(at=which, where=which)
    def a_record_of_damage_is_wrong(self, at: int, where: int) -> None:
        with open_store(str(self.box.store)) as store:
            sizes = sorted(store.pack_files().items())
            if sizes:
                pack_id, size_bytes = sizes[at % len(sizes)]
                begin = where % size_bytes
                note_read(store, pack_id, [ByteSpan(begin, begin + 10_000)], KnownDamage())

    @rule(at=which, where=which)
    @only_if(lambda self: self.live)
    def a_manifest_rots(self, at: int, where: int) -> None:
        name = self._pick(self.live, at)
        path = self.box.store / "snapshots" / f"{name}.json"
        before = path.read_bytes()
        damage(path, where, "flip")
        # A run that was killed right after its commit has left no copy of the manifest. A repair
        # adds it.
        if (self.box.store / "parity" / path.name).exists():
            self._check(name, self.live[name])
            self._repair()
            assert path.read_bytes() == before
        else:
            assert name not in {one.id for one in self.box.snapshots()}
            assert not self.box.verify(checksum=False).ok
            path.write_bytes(before)

    # What always holds

    @invariant()
    def what_is_listed_is_what_is_there(self) -> None:
        if not hasattr(self, "box"):
            return
        listed = {one.id: one for one in self.box.snapshots()}
        assert listed.keys() == self.live.keys()
        with open_store(str(self.box.store)) as store:
            assert {one.id for one in store.trash.read()} == self.trash.keys()
        for name, expected in self.live.items():
            assert listed[name].pinned == expected.pinned
            assert set(listed[name].tags) == set(expected.tags)
        if self.live and self.random.random() < 0.3:
            name = self.random.choice(sorted(self.live))
            self._check(name, self.live[name])

    def _check(self, name: str, expected: Expected) -> bool:
        """Restore a snapshot; check that each wrong path is named; return whether there was one."""
        with tempfile.TemporaryDirectory(dir=self.directory) as out:
            try:
                report = self.box.restore(to=Path(out), snapshot=name)
            except CorruptionError:
                assert expected.spoiled
                return True
            assert expected.spoiled or report.failed == []
            top = os.path.join(os.fsencode(out), os.path.basename(os.fsencode(self.box.source)))
            found = photograph(top) if os.path.lexists(top) else {}
            wrong = same(found, expected.photos, links=not report.failed)
            named = {one.path for one in report.failed}
            for path in wrong:
                whole = os.path.normpath(os.path.join(os.fsencode(self.box.source), path))
                assert any(is_within(whole, one) for one in named), (
                    path,
                    found.get(path),
                    expected.photos.get(path),
                    named,
                )
            return bool(named)

    def _pick(self, some: dict[str, Expected], at: int) -> str:
        return list(some)[at % len(some)]


def same(found: Photos, expected: Photos, *, links: bool = True) -> set[bytes]:
    """Return the paths that differ, or that only one side has."""

    def seen(photos: Photos, path: bytes) -> Photo | None:
        photo = photos.get(path)
        return photo if photo is None or links else photo._replace(names=())

    return {path for path in {*found, *expected} if seen(found, path) != seen(expected, path)}


def is_within(path: bytes, named: bytes) -> bool:
    """Return whether a path is ``named``, below it, or a directory above it."""
    return path == named or path.startswith(named + b"/") or named.startswith(path + b"/")


def damage(path: Path, where: int, how: str) -> None:
    """Damage a file as a disk does."""
    size = path.stat().st_size
    if how == "gone":
        path.unlink()
    elif how == "cut":
        os.truncate(path, where % size)
    else:
        with path.open("r+b") as file:
            at = where % size
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x10]) if how == "flip" else bytes(min(100, size - at)))


@pytest.mark.timeout(1800)
def test_the_store_has_what_the_model_says():
    runs, steps = LENGTHS.get(os.environ.get("HYPOTHESIS_PROFILE", ""), (8, 25))
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=int(os.environ.get("CIUIC_MODEL_RUNS", runs)),
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Stored files have random names and real times, so no two runs are equal.
            phases=(Phase.generate,),
            database=None,
            report_multiple_bugs=False,
            verbosity=Verbosity[os.environ.get("CIUIC_MODEL_VERBOSITY", "normal")],
        ),
    )
