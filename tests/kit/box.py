"""A source, a real store and a configuration in one directory, with all commands on them."""

import copy
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ciuic.catalog import find_snapshot, list_snapshots
from ciuic.model import Entry, ExcludeRules, SnapshotSummary
from ciuic.restore.report import RestoreReport
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.report import TakeReport
from ciuic.snapshot.take import take_snapshot
from ciuic.source.stability import is_settled
from ciuic.store.directory.create import create_store
from ciuic.store.records.header import TENSORS
from ciuic.store.store import open_store
from ciuic.system.clock import Clock
from ciuic.verify.report import VerifyReport
from ciuic.verify.verify import verify_all
from ciuic.view.content import read_file
from ciuic.view.listing import walk
from ciuic.view.located import Located, root_entry
from tests.kit.clock import ManualClock
from tests.kit.program import Outcome, ciuic

__all__ = ["Box", "settle", "wait_until_settled"]

_LATER_NS = 10_000_000_000


def _never() -> bool:
    return False


class Box:
    """The start of most tests.

    Files are cut at fixed places, not by content as in a store by ``ciuic init``: a test that
    damages a chunk must know where it is.

    Attributes:
        source: The configured root.
        store: The store's directory.
        config: A configuration that names both.
        parity: Parity's share of a pack. 0 unless a test sets it, so that damage has an effect.
        chain_cost: The ``chain_cost`` of snapshots.
    """

    parity = 0.0
    chain_cost = 2.0

    def __init__(
        self,
        directory: Path,
        *,
        chunk_bytes: int = 1024 * 1024,
        parity: float = 0.0,
        chunking: str = TENSORS,
    ) -> None:
        self.parity = parity
        self.directory = directory
        self.source = directory / "source"
        self.store = directory / "store"
        self.config = directory / "ciuic.conf"
        self.source.mkdir()
        self.clock = ManualClock()
        create_store(str(self.store), self.clock, chunk_bytes=chunk_bytes, chunking=chunking)
        self.configure()

    def configure(self, *roots: Path, exclude: str = "") -> None:
        """Write the configuration; a snapshot of it does not wait for the tests beside it."""
        paths = ", ".join(str(root) for root in roots or (self.source,))
        self.config.write_text(
            f"snapshot_paths = {paths}\nsnapshot_dir = {self.store}\n"
            f"exclude_patterns = {exclude}\nbase_interval = 0\nparity = {self.parity:%}\n"
            "io_priority = none\n"
        )

    def copied(self, directory: Path) -> "Box":
        """Return a box with the same source, and a copy of the store in a new directory."""
        directory.mkdir()
        other = copy.copy(self)
        other.directory, other.store = directory, directory / "store"
        other.config = directory / "ciuic.conf"
        shutil.copytree(self.store, other.store)
        other.configure()
        return other

    def take(
        self,
        *roots: Path | bytes,
        exclude: tuple[str, ...] | ExcludeRules = (),
        base: bool = False,
        tags: tuple[str, ...] = (),
        cancelled: Callable[[], bool] = _never,
        clock: Clock | None = None,
    ) -> TakeReport:
        """Take a snapshot in this process, with a clock for which all files are old."""
        if clock is None:
            self.clock = ManualClock(max(time.time_ns(), self.clock.now_ns()) + _LATER_NS)
            clock = self.clock
        request = TakeRequest(
            tuple(os.fsencode(root) for root in roots or (self.source,)),
            exclude=exclude if isinstance(exclude, ExcludeRules) else ExcludeRules(exclude),
            base=base,
            base_interval_s=0,
            tags=tags,
            parity=self.parity,
            chain_cost=self.chain_cost,
        )
        with open_store(str(self.store), write=True) as store:
            return take_snapshot(store, request, clock=clock, cancelled=cancelled)

    def restore(
        self,
        *paths: Path | bytes,
        to: Path | None = None,
        snapshot: str = "latest",
        overwrite: bool = False,
        delete: bool = False,
        dry_run: bool = False,
        fallback: bool = False,
        place: Path | None = None,
        include: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
    ) -> RestoreReport:
        """Restore paths in this process, from the store alone; without paths, the source."""
        request = RestoreRequest(
            tuple(os.fsencode(path) for path in paths or (self.source,)),
            destination=None if to is None else os.fsencode(to),
            place=None if place is None else os.fsencode(place),
            include=include,
            exclude=exclude,
            overwrite=overwrite,
            delete=delete,
            dry_run=dry_run,
            fallback=fallback,
            hot=False,
        )
        with open_store(str(self.store)) as store:
            manifest = store.manifest(find_snapshot(store, snapshot).id)
            return restore(store, manifest, request, clock=self.clock)

    def verify(self, *, checksum: bool = True) -> VerifyReport:
        """Verify every snapshot."""
        with open_store(str(self.store)) as store:
            return verify_all(store, checksum=checksum, clock=self.clock)

    def snapshots(self) -> list[SnapshotSummary]:
        """Return the committed snapshots, newest first."""
        with open_store(str(self.store)) as store:
            return list_snapshots(store)

    def entries(self, snapshot: str = "latest") -> dict[bytes, Entry]:
        """Return every entry of a snapshot by its full path."""
        with open_store(str(self.store)) as store:
            manifest = store.manifest(find_snapshot(store, snapshot).id)
            return {
                path: entry
                for root in manifest.roots
                if root.tree
                for path, entry in walk(store, Located(root.path, root_entry(store, root)))
            }

    def read(self, path: Path, snapshot: str = "latest") -> bytes:
        """Return a file's content in a snapshot."""
        entry = self.entries(snapshot)[os.fsencode(path)]
        with open_store(str(self.store)) as store:
            return b"".join(read_file(store, entry))

    def ciuic(self, *arguments: str | bytes | Path, user: int | None = None) -> Outcome:
        """Run a command with this box's configuration."""
        return ciuic("--config", self.config, *arguments, user=user)


def wait_until_settled(top: Path) -> None:
    """Return once a change of any file below ``top`` must change its times."""
    statuses = [path.lstat() for path in top.rglob("*")]
    while not all(
        is_settled(status.st_mtime_ns, status.st_ctime_ns, time.time_ns()) for status in statuses
    ):
        time.sleep(0.005)


def settle() -> None:
    """Return once the next snapshot can trust the times of everything written so far."""
    end_ns = time.time_ns() + 30_000_000
    while time.time_ns() < end_ns:
        time.sleep(0.005)
