"""Machines that share a store in a bucket, each with its own cache."""

import os
import time

from ciuic.catalog import list_snapshots
from ciuic.model import ExcludeRules
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.addressed import create_at_address, open_at_address
from ciuic.store.place.address import open_place
from ciuic.store.place.location import PlaceOptions
from ciuic.store.records.header import Chunking
from ciuic.system.clock import SystemClock
from ciuic.verify.verify import verify_all
from tests.kit.clock import ManualClock

__all__ = ["MIB", "Machine"]

MIB = 1024 * 1024


class Machine:
    """One machine: its cache, its environment, and the store."""

    def __init__(self, address, server, endpoint, cache):
        self.address = address
        self.environ = {**server.environment, "XDG_CACHE_HOME": str(cache)}
        self.options = PlaceOptions(endpoint=endpoint, quick_s=5, patience_s=20)
        self.cache = cache

    def init(self):
        chunking = Chunking.of("content", MIB)
        return create_at_address(self.address, self.environ, SystemClock(), chunking, self.options)

    def opened(self, *, write=False):
        return open_at_address(self.address, self.environ, self.options, write=write)

    def place(self):
        return open_place(self.address, self.environ, self.options)

    def store_id(self):
        with self.opened() as store:
            return store.header.store_id

    def take(self, *roots):
        request = TakeRequest(
            tuple(map(os.fsencode, roots)), exclude=ExcludeRules(), base_interval_s=0
        )
        clock = ManualClock(time.time_ns() + 10_000_000_000)
        with self.opened(write=True) as store:
            return take_snapshot(store, request, clock=clock)

    def restore(self, source, to):
        request = RestoreRequest((os.fsencode(source),), destination=os.fsencode(to), hot=False)
        with self.opened() as store:
            manifest = store.manifest(list_snapshots(store)[0].id)
            return restore(store, manifest, request, clock=SystemClock())

    def ids(self):
        with self.opened() as store:
            return {summary.id for summary in list_snapshots(store)}

    def verify(self):
        with self.opened() as store:
            return verify_all(store, checksum=True, clock=SystemClock())
