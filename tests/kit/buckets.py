"""Stores in a bucket without a server: the place is a directory, the code is that of buckets."""

import contextlib
import os
import time
from types import SimpleNamespace

from ciuic.maintain.forget import apply_forget, plan_forget_by_id
from ciuic.maintain.prune.bucket.prune import prune_bucket
from ciuic.maintain.prune.bucket.waiting import Patience
from ciuic.model import ExcludeRules
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.place.bucket import open_bucket
from ciuic.store.store import open_in_bucket
from tests.kit.clock import ManualClock
from tests.kit.machine import Machine

__all__ = [
    "HOUR_NS",
    "FolderMachine",
    "KilledError",
    "PlaceWithFaults",
    "machine_with",
    "write",
]

HOUR_NS = 3600 * 10**9


class KilledError(BaseException):
    """The process ends here: no handler of an ``Exception`` runs."""


class PlaceWithFaults:
    """A place in front of another one, which calls a hook before each change.

    Args:
        place: The other place.
        before: Receives the number of the change, its kind and its keys. When it has raised
            ``KilledError``, no further change has an effect.
    """

    def __init__(self, place, before):
        self._place = place
        self._before = before
        self._is_killed = False
        self.changes = []

    def __getattr__(self, name):
        method = getattr(self._place, name)
        if name not in {"put", "put_file", "stage", "create", "replace", "delete"}:
            return method
        kind = "put" if name == "put_file" else name

        def changed(keys, *rest):
            keys = sorted(keys) if name == "delete" else keys
            number = len(self.changes)
            self.changes.append((kind, keys))
            if self._is_killed:
                return None
            try:
                self._before(number, kind, keys)
            except KilledError:
                self._is_killed = True
                raise
            return method(keys, *rest)

        return changed


class FolderMachine(Machine):
    """A machine whose bucket is a directory."""

    def __init__(self, directory, cache):
        directory.mkdir(exist_ok=True)
        super().__init__(f"file://{directory}", SimpleNamespace(environment={}), None, cache)
        self.clock = ManualClock(time.time_ns() + HOUR_NS)

    @contextlib.contextmanager
    def opened_at(self, place, *, removes=False, only_adds=False):
        """Open the store for writing, through another place."""
        bucket = open_bucket(place, self.environ, write=True)
        with open_in_bucket(bucket, write=True, removes=removes, only_adds=only_adds) as store:
            yield store

    def take_at(self, place, *roots):
        """Take a snapshot through another place."""
        with self.opened_at(place) as store:
            return self.take_into(store, *roots)

    def take_into(self, store, *roots):
        """Take a snapshot in a store that is open."""
        request = TakeRequest(
            tuple(map(os.fsencode, roots)), exclude=ExcludeRules(), base_interval_s=0
        )
        self.clock.advance(10)
        return take_snapshot(store, request, clock=self.clock)

    def forget(self, *snapshot_ids):
        with self.opened() as store:
            now_ns = self.clock.now_ns()
            plan = plan_forget_by_id(store, snapshot_ids, now_ns, last_whole=True)
            apply_forget(store, plan, now_ns)

    def prune(self, *, place=None, wait_s=0.0, revoke_after_s=1e9, dry_run=False):
        with self.opened_at(place or self.place(), removes=True) as store:
            return prune_bucket(
                store,
                trash_s=0,
                now_ns=self.clock.now_ns(),
                clock=self.clock,
                patience=Patience(wait_s, revoke_after_s),
                dry_run=dry_run,
            )

    def names(self, prefix):
        """Return the names of the objects below a prefix."""
        return sorted(key.partition("/")[2] for key in self.place().keys(prefix))

    def check(self, *, listed):
        """Verify every byte; return the snapshots, which must be these."""
        report = self.verify()
        assert report.ok, report
        assert self.ids() == set(listed)


def write(directory, names, size_bytes=30_000):
    """Write files of random bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(os.urandom(size_bytes))


def machine_with(directory, names, size_bytes=30_000):
    """Return a machine with a snapshot of new files in a bucket, all of them below a directory."""
    machine = FolderMachine(directory / "bucket", directory / "cache")
    machine.init()
    write(directory / "source", names, size_bytes)
    machine.take_at(machine.place(), directory / "source")
    return machine
