"""A source, a real store and a configuration in one directory, and all verbs on them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from ciuic.catalog import find_snapshot, list_snapshots
from ciuic.clock import Clock
from ciuic.model import Entry, RestoreReport, SnapshotSummary, TakeReport, VerifyReport
from ciuic.store import create_store, open_store
from ciuic.store.header import TENSORS
from ciuic.verbs.browse import Located, read_file, root_entry, walk
from ciuic.verbs.restore import RestoreRequest, restore
from ciuic.verbs.take import TakeRequest, take_snapshot
from ciuic.verbs.verify import verify_all
from tests.kit.clock import ManualClock
from tests.kit.program import Outcome, ciuic

__all__ = ["Box", "settle"]

_LATER_NS = 10_000_000_000


def _never() -> bool:
    return False


class Box:
    """What most tests start from.

    Attributes:
        source: The root that is configured.
        store: The store's directory.
        config: A configuration that names both.
        parity: The share of a pack that its parity takes. None unless a test asks for it: damage
            is to hurt. Likewise files are cut at known places, not by their content as a store is
            that ``ciuic init`` makes: who damages a chunk must know where it lies.
        chain_cost: What a chunk may cost to read as a delta.
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
        """Write the configuration."""
        paths = ", ".join(str(root) for root in roots or (self.source,))
        self.config.write_text(
            f"snapshot_paths = {paths}\nsnapshot_dir = {self.store}\n"
            f"exclude_patterns = {exclude}\nbase_interval = 0\nparity = {self.parity:%}\n"
        )

    def take(
        self,
        *roots: Path | bytes,
        exclude: tuple[str, ...] = (),
        base: bool = False,
        tags: tuple[str, ...] = (),
        cancelled: Callable[[], bool] = _never,
        clock: Clock | None = None,
    ) -> TakeReport:
        """Take a snapshot in this process; by a clock that shows every file to be long settled."""
        if clock is None:
            self.clock = ManualClock(max(time.time_ns(), self.clock.now_ns()) + _LATER_NS)
            clock = self.clock
        request = TakeRequest(
            tuple(os.fsencode(root) for root in roots or (self.source,)),
            exclude=exclude,
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
    ) -> RestoreReport:
        """Put paths back in this process, from the store alone; without any path, the source."""
        request = RestoreRequest(
            tuple(os.fsencode(path) for path in paths or (self.source,)),
            destination=None if to is None else os.fsencode(to),
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
        """What is committed, newest first."""
        with open_store(str(self.store)) as store:
            return list_snapshots(store)

    def entries(self, snapshot: str = "latest") -> dict[bytes, Entry]:
        """Every entry of a snapshot by its whole path."""
        with open_store(str(self.store)) as store:
            manifest = store.manifest(find_snapshot(store, snapshot).id)
            return {
                path: entry
                for root in manifest.roots
                if root.tree
                for path, entry in walk(store, Located(root.path, root_entry(store, root)))
            }

    def read(self, path: Path, snapshot: str = "latest") -> bytes:
        """A file's bytes as a snapshot has them."""
        entry = self.entries(snapshot)[os.fsencode(path)]
        with open_store(str(self.store)) as store:
            return b"".join(read_file(store, entry))

    def ciuic(self, *arguments: str | bytes | Path, user: int | None = None) -> Outcome:
        """Run a command on this box's configuration."""
        return ciuic("--config", self.config, *arguments, user=user)


def settle() -> None:
    """Return when everything written so far counts as settled for the snapshot that comes next."""
    end_ns = time.time_ns() + 30_000_000
    while time.time_ns() < end_ns:
        time.sleep(0.005)
