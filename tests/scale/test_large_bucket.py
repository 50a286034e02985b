"""A machine that comes cold to a bucket of 100 TB: hundreds of requests to open it, then a dozen.

The store is real and small. Index segments of packs that are not there make it look large: 1.5
million packs of 64 MiB with ``CIUIC_LONG=1``, else fewer packs in as many segments. No pack of them
is read, as a listing needs none.
"""

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from ciuic.catalog import find_snapshot
from ciuic.ids import SessionId
from ciuic.store.format.frame import encode_frame
from ciuic.store.format.pack import MAGIC, PackedFrame, encode_footer, new_label
from ciuic.store.format.segment import PackEnd, encode_segment
from ciuic.store.place.bucket import open_bucket
from ciuic.store.place.objects import Clients, ObjectPlace
from ciuic.store.place.segments import segments
from ciuic.store.records import layout
from ciuic.store.records.kinds import DATA
from ciuic.store.store import Store, open_in_bucket
from ciuic.system.hashing import data_id
from ciuic.view.listing import children
from ciuic.view.locator import locate
from tests.kit.buckets import FolderMachine, write

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(7200)]

PACKS_OF_100_TB = 1_500_000
PACKS = PACKS_OF_100_TB if os.environ.get("CIUIC_LONG") else 30_000
PACK_BYTES = 64 * 1024 * 1024
CHUNKS = 96
"""Chunks in a pack of checkpoints, which compress to about two thirds."""
SNAPSHOTS = 40
HUNDREDS = 900
DOZEN = 12


class CountingPlace(ObjectPlace):
    """A place that counts its requests, the pages of listings too."""

    requests = 0

    def _run(self, doing, key, act):
        self.requests += 1
        return super()._run(doing, key, act)

    def _pages(self, folder, after):
        for page in super()._pages(folder, after):
            self.requests += 1
            yield page


def ends(count: int) -> Iterator[PackEnd]:
    """Yield the ends of packs that are not there, each with a chunk of its own."""
    session = SessionId(os.urandom(8))
    for number in range(count):
        content = b"%d" % number
        frame, _ = encode_frame(DATA, [(data_id(content), content)])
        listed = PackedFrame(len(MAGIC), frame, frame.encode_header())
        offset = len(MAGIC) + frame.total_bytes
        pack_id, end = encode_footer([listed], offset, new_label(session))
        yield PackEnd(pack_id, offset + len(end), end)


def packs_of_a_segment() -> int:
    """Return how many packs of checkpoints a segment lists."""
    frame, _ = encode_frame(DATA, [(data_id(b"x"), b"x")])
    listed = [PackedFrame(len(MAGIC), frame, frame.encode_header())] * CHUNKS
    _, end = encode_footer(listed, 0, new_label(SessionId(bytes(8))))
    return segments._BYTES // len(end)


@pytest.fixture
def bucket(tmp_path: Path) -> MemoryStore:
    """The objects of a store with as many index segments as one of 100 TB."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    for number in range(SNAPSHOTS):
        write(tmp_path / "source" / f"run{number % 4}", [f"{number}"], 2000)
        machine.take_at(machine.place(), tmp_path / "source")
    memory = MemoryStore()
    for key in machine.place().keys(""):
        memory.put(key, (tmp_path / "bucket" / key).read_bytes())
    group: list[PackEnd] = []
    size = packs_of_a_segment() * PACKS // PACKS_OF_100_TB
    for end in ends(PACKS):
        group.append(end)
        if len(group) == size:
            data = encode_segment(group)
            memory.put(f"{layout.SEGMENTS}/{layout.segment_name(data)}", data)
            group.clear()
    return memory


def names(store: Store, top: Path) -> list[bytes]:
    """Return what ``ciuic ls latest`` shows of a directory."""
    manifest = store.manifest(find_snapshot(store, "latest", tagged=True).id)
    found = locate(store, manifest, os.fsencode(top / "source" / "run1"))
    return [os.path.basename(one.path) for one in children(store, found)]


def test_a_cold_reader_opens_100_tb_with_hundreds_of_requests_and_lists_with_a_dozen(
    bucket: MemoryStore, tmp_path: Path
) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cold")}
    expected = sorted(b"%d" % number for number in range(1, SNAPSHOTS, 4))

    def place() -> CountingPlace:
        return CountingPlace("memory://bucket", Clients(bucket, bucket, bucket))

    first = place()
    began_s = time.monotonic()
    with open_in_bucket(open_bucket(first, environ)) as store:
        assert len(store.index.packs()) >= PACKS
        opening = first.requests
        assert sorted(names(store, tmp_path)) == expected
    listing = first.requests - opening
    took_s = time.monotonic() - began_s

    second = place()
    with open_in_bucket(open_bucket(second, environ)) as store:
        assert sorted(names(store, tmp_path)) == expected
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{PACKS:,} packs in {len(bucket.list_with_delimiter('segments')['objects'])} segments:"
        f" {opening} requests to open, {listing} to list, {second.requests} to open and list"
        f" later; {took_s:.0f} s, {peak_mib} MiB with the bucket itself"
    )
    assert 500 < opening < HUNDREDS
    assert listing <= DOZEN
    assert second.requests <= DOZEN
