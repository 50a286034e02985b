"""A reader that was written from docs/format.md alone restores an entire snapshot."""

import ast
import hashlib
import json
import os
import random
import stat
import struct
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.records import layout
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.format import reader
from tests.format.make_golden import GOLDEN
from tests.format.make_golden import SOURCE as GOLDEN_ROOT
from tests.format.make_golden import survey as survey_of_golden

CHUNK_BYTES = 4096
CROWD = 5200
MTIME_NS = 1_700_000_000_123_456_789
NOT_UTF8 = b"\xff\xfe odd \x80\n name\\x41"


def fill(top):
    """Write an entry of every kind."""
    noise = random.Random(20)
    os.makedirs(os.path.join(top, b"deep", b"er", b"est"))
    os.mkdir(os.path.join(top, b"no entries"))
    put(top, b"empty", b"")
    put(top, b"small", b"one line\n")
    put(top, b"exactly one chunk", noise.randbytes(CHUNK_BYTES))
    put(top, b"one byte more", noise.randbytes(CHUNK_BYTES + 1))
    put(top, b"many chunks", noise.randbytes(700 * CHUNK_BYTES + 77))
    put(top, b"text", b"".join([b"step %d loss %f\n" % (n, n**-0.5) for n in range(1, 20_000)]))
    put(top, b"zeros that are data", bytes(10 * CHUNK_BYTES))
    put(top, b"weights", struct.pack("<40000f", *[noise.gauss(0, 0.02) for _ in range(40_000)]))
    put(top, NOT_UTF8, b"bytes are names")
    put(top, b"deep/er/est/" + b"n" * 255, b"the longest name")
    with open(os.path.join(top, b"sparse"), "wb") as file:
        file.seek(5_000_000)
        file.write(b"in the middle")
        file.truncate(50_000_000)
    with open(os.path.join(top, b"only a hole"), "wb") as file:
        file.truncate(1_000_000)
    for number in range(CROWD):
        put(top, b"crowd/%05d" % number, b"%d\n" % (number % 100))
    os.symlink(b"small", os.path.join(top, b"link"))
    os.symlink(b"/nowhere/\xff", os.path.join(top, b"deep", b"dangling"))
    os.link(os.path.join(top, b"small"), os.path.join(top, b"deep", b"same as small"))
    os.link(os.path.join(top, b"many chunks"), os.path.join(top, b"deep", b"er", b"same"))
    os.link(os.path.join(top, b"link"), os.path.join(top, b"link, again"), follow_symlinks=False)
    os.mkfifo(os.path.join(top, b"fifo"), 0o620)
    set_metadata(top)


def put(top, name, data):
    path = os.path.join(top, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def set_metadata(top):
    """Set unusual modes and times, and extended attributes where the file system has them."""
    os.chmod(os.path.join(top, b"small"), 0o4755)
    os.chmod(os.path.join(top, b"empty"), 0 if os.geteuid() == 0 else 0o400)
    os.chmod(os.path.join(top, b"no entries"), 0o1777)
    os.utime(os.path.join(top, b"link"), ns=(MTIME_NS, MTIME_NS), follow_symlinks=False)
    os.utime(os.path.join(top, b"text"), ns=(-1, -1_500_000_001))
    os.utime(os.path.join(top, b"fifo"), ns=(MTIME_NS, MTIME_NS))
    if os.geteuid() == 0:
        os.mknod(os.path.join(top, b"null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chown(os.path.join(top, b"one byte more"), 1234, 70_000)
        # A change of the owner clears these bits, so the owner is set before the mode.
        for name in (b"fifo", b"null"):
            os.chown(os.path.join(top, name), 1234, 70_000)
            os.chmod(os.path.join(top, name), 0o6620)
        os.utime(os.path.join(top, b"fifo"), ns=(MTIME_NS, MTIME_NS))
    try:
        os.setxattr(os.path.join(top, b"text"), b"user.origin", b"\x00\xff binary")
        os.setxattr(os.path.join(top, b"no entries"), b"user.note", b"")
    except OSError:
        pass
    os.utime(os.path.join(top, b"no entries"), ns=(MTIME_NS, MTIME_NS))
    os.chmod(os.path.join(top, b"deep"), 0o500)
    os.utime(os.path.join(top, b"deep"), ns=(MTIME_NS, MTIME_NS + 1))


def survey(top):
    """Return everything that must be equal in two trees, by path, and the groups of hard links."""
    found, names = {}, defaultdict(set)
    paths = [top]
    for directory, directories, files in os.walk(top):
        paths += [os.path.join(directory, name) for name in directories + files]
    for path in paths:
        status = os.lstat(path)
        name = os.path.relpath(path, top)
        content = b""
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        owner = (status.st_uid, status.st_gid)
        attributes = {
            one: os.getxattr(path, one, follow_symlinks=False)
            for one in os.listxattr(path, follow_symlinks=False)
        }
        kind, mode = stat.S_IFMT(status.st_mode), oct(stat.S_IMODE(status.st_mode))
        seen = (kind, mode, owner, status.st_mtime_ns, size, status.st_rdev)
        found[name] = (seen, content, attributes)
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            names[status.st_dev, status.st_ino].add(name)
    return found, sorted(sorted(one) for one in names.values())


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A source, a store with one snapshot of it, and the ID of the snapshot."""
    directory = tmp_path_factory.mktemp("taken")
    source, store = os.fsencode(directory) + b"/so\xfcrce", str(directory / "store")
    os.mkdir(source)
    fill(source)
    create_store(store, SystemClock(), chunk_bytes=CHUNK_BYTES)
    with open_store(store, write=True) as opened:
        report = take_snapshot(opened, TakeRequest((source,)), clock=SystemClock())
    assert report.trouble == ()
    return source, store, report.id


@pytest.fixture
def copied(taken, tmp_path):
    """Copy that store, without its chunk index and locks, so that a test can damage it."""
    source, store, snapshot = taken
    path = tmp_path / "copied"
    for name in (layout.PACKS, layout.SNAPSHOTS):
        (path / name).mkdir(parents=True)
        for file in os.listdir(os.path.join(store, name)):
            data = Path(store, name, file).read_bytes()
            (path / name / file).write_bytes(data)
    (path / layout.HEADER).write_bytes(Path(store, layout.HEADER).read_bytes())
    return source, path, snapshot


def root_entry(store, snapshot):
    return store.root(store.manifest(snapshot)["roots"][0]["tree"])


def test_the_reader_imports_nothing_of_ciuic():
    tree = ast.parse(Path(reader.__file__).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.name.split(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module.split(".")[0])
    assert names - set(sys.stdlib_module_names) == {"blake3", "xxhash", "zstandard"}


@pytest.mark.parametrize(
    "value",
    [
        0,
        127,
        128,
        255,
        256,
        65535,
        65536,
        2**32,
        2**64 - 1,
        -1,
        -32,
        -33,
        -128,
        -129,
        -(2**63),
        b"",
        b"x" * 255,
        b"x" * 256,
        b"x" * 65536,
        [],
        [1] * 15,
        [1] * 16,
        [[b"a", -1]] * 70000,
    ],
    ids=range(23),
)
def test_its_msgpack_decoder_reads_what_a_common_one_writes(value):
    assert reader.unpack_msgpack(msgspec.msgpack.encode(value)) == value


@pytest.mark.parametrize("wide", ["cc07", "cd0007", "ce00000007", "cf0000000000000007", "d007"])
def test_integers_may_be_wider_than_they_need_to_be(wide):
    data = bytes.fromhex(f"92{wide}dc0000")
    assert reader.unpack_msgpack(data) == [7, []]
    assert msgspec.msgpack.decode(data) == [7, []]


@pytest.mark.parametrize("data", ["", "92", "c0", "c405aa", "a161", "80", "ca00000000", "0000"])
def test_values_that_no_node_has_are_refused(data):
    with pytest.raises(reader.FormatError):
        reader.unpack_msgpack(bytes.fromhex(data))


def test_an_entire_snapshot_is_restored(taken, tmp_path):
    source, path, snapshot = taken
    store = reader.Store(path)
    assert store.snapshots() == [snapshot]
    restorer = reader.Restorer(store)
    restorer.restore(snapshot, os.fsencode(tmp_path / "target"))
    assert restorer.problems == []
    restored = os.fsencode(tmp_path / "target") + source
    before, after = survey(source), survey(restored)
    assert len(before[0]) > CROWD + 20
    assert after == before
    assert os.stat(os.path.join(restored, b"sparse")).st_blocks * 512 < 1_000_000


def test_ciuic_restores_special_files_in_the_order_of_the_page(taken, tmp_path):
    source, path, snapshot = taken
    with open_store(path) as opened:
        request = RestoreRequest((source,), os.fsencode(tmp_path))
        restore(opened, opened.manifest(snapshot), request, clock=SystemClock())
    before, after = survey(source), survey(os.path.join(os.fsencode(tmp_path), b"so\xfcrce"))
    for name in (b"fifo", b"null", b"one byte more") if os.geteuid() == 0 else (b"fifo",):
        assert after[0][name] == before[0][name]


@pytest.mark.parametrize(
    ("field", "value"),
    [("content", bytes(32)), ("size", 8), ("mode", 0o100600), ("uid", 7), ("mtime", 5)],
)
def test_entries_of_one_inode_that_differ_are_not_one_file(field, value):
    first = reader.Entry(b"a", 0o100644, 1, 1, 1, 1, 1, 9, content=bytes(31) + b"1", link_device=1)
    assert reader.is_same_file(first, replace(first, name=b"b", ctime=2))
    assert not reader.is_same_file(first, replace(first, name=b"b", **{field: value}))


def test_the_snapshot_has_index_nodes_of_both_kinds_and_holes(taken):
    _, path, snapshot = taken
    store = reader.Store(path)
    root = root_entry(store, snapshot)
    entries = {one.name: one for one in store.entries(root.content, root.level)}
    assert entries[b"crowd"].level >= 1
    assert entries[b"many chunks"].level >= 2
    assert entries[b"small"].level == 0
    holes = [length for length, name, _ in store.pieces(entries[b"sparse"]) if not name]
    assert sum(holes) > 49_000_000
    assert [name for _, name, _ in store.pieces(entries[b"only a hole"])] == [b""]
    codecs = {place.frame.codec for places in store._places.values() for place in places}
    assert codecs >= {0, 1}


def test_without_footers_packs_are_walked(copied):
    _, path, snapshot = copied
    before = reader.Store(str(path))._places
    for pack in (path / layout.PACKS).iterdir():
        data = pack.read_bytes()
        footer = int.from_bytes(data[-32:-24], "little")
        pack.write_bytes(data[:footer])
    assert reader.Store(str(path))._places == before
    assert unreadable(path, snapshot) == set()


def test_damage_loses_what_the_page_says_and_no_more(copied):
    _, path, snapshot = copied
    store = reader.Store(str(path))
    root = root_entry(store, snapshot)
    (entry,) = [one for one in store.entries(root.content, root.level) if one.name == b"weights"]
    _, chunk, _ = next(iter(store.pieces(entry)))
    (place,) = store._places[chunk]
    assert unreadable(path, snapshot) == set()
    # Damage the header in front of a payload. The footer has a copy.
    flip(path / layout.PACKS / place.pack, place.offset + 20)
    assert unreadable(path, snapshot) == set()
    # Damage the payload. The files that need it are lost.
    flip(path / layout.PACKS / place.pack, place.offset + place.frame.header_length)
    assert unreadable(path, snapshot) == {b"weights"}
    # Damage the magic of a pack. Nothing is lost.
    flip(path / layout.PACKS / place.pack, 0)
    assert unreadable(path, snapshot) == {b"weights"}


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def unreadable(path, snapshot):
    """Return the files in the root's own directory whose content is lost."""
    store = reader.Store(str(path))
    root = root_entry(store, snapshot)
    found = set()
    for entry in store.entries(root.content, root.level):
        if not stat.S_ISREG(entry.mode):
            continue
        try:
            for _, name, _ in store.pieces(entry):
                if name:
                    store.chunk(reader.DATA, name)
        except reader.FormatError:
            found.add(entry.name)
    return found


def test_the_reader_is_a_program(tmp_path):
    expected = json.loads((GOLDEN / "expected.json").read_text())
    snapshot = expected["snapshots"][0]
    store, target = str(GOLDEN / "store"), str(tmp_path / "target")
    command = [sys.executable, reader.__file__, store, snapshot["id"], target]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # For an ordinary user, the reader reports that it cannot give the files to root.
    assert (run.returncode, run.stderr) == (0, "") or os.geteuid() != 0
    assert survey_of_golden(os.fsencode(target) + GOLDEN_ROOT) == snapshot["tree"]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b'"format": 1', b'"format": 2', "format 2"),
        (b'"required": []', b'"required": ["keyed"]', "keyed"),
        (b'"created": "2', b'"created": "3', "checksum"),
    ],
)
def test_a_header_that_is_not_understood_is_refused(copied, old, new, what):
    _, path, _ = copied
    header = path / layout.HEADER
    header.write_bytes(header.read_bytes().replace(old, new))
    with pytest.raises(reader.FormatError, match=what):
        reader.Store(str(path))


def test_an_empty_store_that_lost_its_empty_directories_has_no_snapshots(taken, tmp_path):
    header = Path(taken[1], layout.HEADER).read_bytes()
    (tmp_path / layout.HEADER).write_bytes(header)
    assert reader.Store(str(tmp_path)).snapshots() == []
    with open_store(str(tmp_path)) as opened:
        assert opened.manifests.files() == {}


def test_a_non_file_with_the_name_of_a_pack_is_not_opened(copied):
    _, path, snapshot = copied
    os.mkfifo(path / layout.PACKS / ("0" * 64))
    (path / layout.PACKS / ("1" * 64)).mkdir()
    (path / layout.SNAPSHOTS / "notes.txt").write_text("a file of a user")
    assert reader.Store(str(path)).snapshots() == [snapshot]
    assert unreadable(path, snapshot) == set()
