"""Makes the golden store, once for each version of the format.

    python -m tests.format.make_golden

writes tests/format/golden: a store, and what its snapshots must restore to, as the operating system
shows it, without ciuic. It has four snapshots. The first is pinned, the second is in the trash, the
third is purged and its ID retired, and the fourth has a file whose recipe has slices. The source is
at a fixed path. Everything in it except inode numbers and change times is the same on every run.
"""

import hashlib
import json
import os
import random
import shutil
import stat
import struct
from pathlib import Path

from ciuic.maintain.label import set_pinned
from ciuic.model import ExcludeRules
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.records import layout
from ciuic.store.records.header import FIXED
from ciuic.store.records.recipe_nodes import Piece
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from tests.kit.clock import ManualClock
from tests.kit.spelled import spell

GOLDEN = Path(__file__).parent / "golden"
SOURCE = b"/tmp/ciuic-golden/run \xff"
CHUNK_BYTES = 64 * 1024
TAKEN_NS = 1_781_533_800_000_000_000
MTIME_NS = 1_781_000_000_123_456_789
PATCH = b"\x01\x3c" * 2048
PATCH_AT = 20_000
KEPT = {
    layout.HEADER,
    layout.MARKS,
    layout.PACKS,
    layout.PARITY,
    layout.RETIRED,
    layout.SNAPSHOTS,
}


def put(name: bytes, data: bytes) -> None:
    path = os.path.join(SOURCE, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def bf16(count: int) -> bytes:
    """Return weights of two bytes each: the upper halves of floats."""
    noise = random.Random(7)
    floats = struct.pack(f"<{count}f", *[noise.gauss(0, 0.02) for _ in range(count)])
    halves = bytearray(2 * count)
    halves[0::2], halves[1::2] = floats[2::4], floats[3::4]
    return bytes(halves)


def fill() -> None:
    """Write the source of the first snapshot."""
    put(b"empty", b"")
    put(b"notes.txt", b"learning rate 3e-4\n")
    put(b"train.log", b"".join([b"step %d loss %.4f\n" % (n, 2 / n) for n in range(1, 9000)]))
    put(b"weights.bin", bf16(CHUNK_BYTES // 2))
    put(b"caf\xc3\xa9/\xff not utf-8 \\", b"odd names\n")
    for number in range(40):
        put(b"shards/%02d" % number, b"shard %d\n" % (number % 3))
    os.mkdir(os.path.join(SOURCE, b"no entries"))
    with open(os.path.join(SOURCE, b"sparse"), "wb") as file:
        file.seek(1_000_000)
        file.write(b"data between holes")
        file.truncate(3_000_000)
    os.symlink(b"weights.bin", os.path.join(SOURCE, b"latest"))
    os.link(os.path.join(SOURCE, b"notes.txt"), os.path.join(SOURCE, b"shards", b"linked"))
    os.mkfifo(os.path.join(SOURCE, b"fifo"))
    os.setxattr(os.path.join(SOURCE, b"notes.txt"), b"user.by", b"\x00\xff")
    os.chmod(os.path.join(SOURCE, b"empty"), 0o400)
    os.chmod(os.path.join(SOURCE, b"fifo"), 0o620)
    os.chmod(os.path.join(SOURCE, b"no entries"), 0o1770)
    settle()


def change() -> None:
    """Change the source for the second snapshot."""
    put(b"train.log", b"".join([b"step %d loss %.4f\n" % (n, 2 / n) for n in range(1, 9100)]))
    os.unlink(os.path.join(SOURCE, b"latest"))
    os.symlink(b"shards/00", os.path.join(SOURCE, b"latest"))
    shutil.rmtree(os.path.join(SOURCE, b"no entries"))
    settle()


def patch() -> None:
    """Change the source for the third snapshot."""
    with open(os.path.join(SOURCE, b"weights.bin"), "r+b") as file:
        file.seek(PATCH_AT)
        file.write(PATCH)
    settle()


def settle() -> None:
    """Set the times of everything, deepest first."""
    for directory, directories, files in os.walk(SOURCE, topdown=False):
        for name in sorted(files + directories):
            set_time(os.path.join(directory, name))
    set_time(SOURCE)


def set_time(path: bytes) -> None:
    offset = int.from_bytes(hashlib.sha256(path).digest()[:4], "little")
    os.utime(path, ns=(0, MTIME_NS + offset), follow_symlinks=False)


def survey(top: bytes) -> dict[str, dict[str, object]]:
    """Return what a restored tree must have, by path relative to its top, in hex."""
    paths = [top]
    for directory, directories, files in os.walk(top):
        paths += [os.path.join(directory, name) for name in directories + files]
    first: dict[int, str] = {}
    found = {}
    for path in sorted(paths):
        status = os.lstat(path)
        name = os.path.relpath(path, top).hex()
        one: dict[str, object] = {"mode": oct(status.st_mode), "mtime_ns": status.st_mtime_ns}
        if stat.S_ISREG(status.st_mode):
            one["size"] = status.st_size
            with open(path, "rb") as file:
                one["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        if stat.S_ISLNK(status.st_mode):
            one["target"] = os.readlink(path).hex()
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            one["same_as"] = first.setdefault(status.st_ino, name)
        found[name] = one
    return found


def main() -> None:
    """Make the golden store."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    shutil.rmtree(os.path.dirname(SOURCE), ignore_errors=True)
    store = GOLDEN / "store"
    os.makedirs(SOURCE)
    clock = ManualClock(TAKEN_NS)
    create_store(str(store), clock, chunk_bytes=CHUNK_BYTES, chunking=FIXED)
    expected = []
    for number, act in enumerate((fill, change, patch)):
        act()
        clock.advance(3600)
        request = TakeRequest(
            (SOURCE,), exclude=ExcludeRules(("*.tmp",)), tags=(f"golden-{number}",)
        )
        with open_store(str(store), write=True) as opened:
            report = take_snapshot(opened, request, clock=clock)
        found = {"id": report.id, "kind": report.kind, "parent": report.parent}
        expected.append(found | {"taken_ns": report.taken_ns, "tree": survey(SOURCE)})
    old = bf16(CHUNK_BYTES // 2)
    pieces = (
        Piece(PATCH_AT, data_id(old)),
        Piece(len(PATCH), data_id(PATCH)),
        Piece(len(old) - PATCH_AT - len(PATCH), data_id(old), PATCH_AT + len(PATCH)),
    )
    _, forgotten, retired = (one["id"] for one in expected)
    with open_store(str(store), write=True) as opened:
        newest = opened.manifest(spell(opened, b"weights.bin", pieces, chunks=[PATCH])).summary
        opened.manifests.copies.keep(newest.id, opened.header)
        set_pinned(opened, expected[0]["id"], pinned=True)
        for name in (forgotten, retired):
            opened.trash.forget([name], clock.now_ns())
        opened.trash.empty([retired])
    expected[2] |= {"id": newest.id, "parent": newest.parent, "taken_ns": newest.taken_ns}
    for name in os.listdir(store):
        if name not in KEPT:
            path = store / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    # These are the modes that version control gives them.
    for directory, _, files in os.walk(store):
        os.chmod(directory, 0o755)
        for name in files:
            os.chmod(os.path.join(directory, name), 0o644)
    document = {"root": SOURCE.hex(), "retired": retired, "snapshots": expected}
    text = json.dumps(document, indent=1)
    (GOLDEN / "expected.json").write_text(text + "\n")
    shutil.rmtree(os.path.dirname(SOURCE))


if __name__ == "__main__":
    main()
