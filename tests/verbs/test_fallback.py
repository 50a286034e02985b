"""``restore --fallback``: how much it reads, whom it believes, and what ends it."""

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.errors import CorruptionError, StoreError
from ciuic.hashing import data_id
from ciuic.limits import raise_open_files_limit
from ciuic.scan import DirectoryHandle
from ciuic.store import open_store
from ciuic.store.index import ChunkPlace
from ciuic.store.layout import pack_name
from ciuic.store.reader import StoreReader
from ciuic.verbs.sources import find_in_file, read_origin
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content, pack_of
from tests.kit.program import Outcome, ciuic

FILES = 2000
MIB = 1024 * 1024


@contextlib.contextmanager
def held_open(files: list[Path]) -> Iterator[None]:
    """Somebody is writing these files."""
    raise_open_files_limit()
    with contextlib.ExitStack() as opened:
        for file in files:
            opened.enter_context(file.open("r+b"))
        yield


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The nodes that are read, one after another."""
    names: list[bytes] = []
    node = StoreReader.node

    def counted(reader: StoreReader, kind: int, name: bytes) -> bytes:
        names.append(name)
        return node(reader, kind, name)

    monkeypatch.setattr(StoreReader, "node", counted)
    return names


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The directories that are listed, one after another."""
    paths: list[bytes] = []
    names = DirectoryHandle.names

    def counted(handle: DirectoryHandle) -> list[bytes]:
        paths.append(handle.path)
        return names(handle)

    monkeypatch.setattr(DirectoryHandle, "names", counted)
    return paths


@pytest.mark.parametrize("state", ["damaged", "in flux"])
@pytest.mark.parametrize("place", ["all/{}", "d{}/file"], ids=["files", "directories"])
def test_what_it_reads_and_lists_does_not_grow_with_the_files_it_looks_for(
    box: Box, tmp_path: Path, reads: list[bytes], listed: list[bytes], state: str, place: str
) -> None:
    """Half of them are in the snapshot before, all in the one before that, beside others."""
    files = [box.source / place.format(number) for number in range(FILES)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"first " + os.fsencode(file))
    box.take()
    for file in files[::2]:
        file.unlink()
        if not os.listdir(file.parent):
            file.parent.rmdir()
    box.take()
    newest = [b"newest " + os.fsencode(file) for file in files]
    for file, content in zip(files, newest, strict=True):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    with held_open(files) if state == "in flux" else contextlib.nullcontext():
        box.take()
    if state == "damaged":
        for pack in {pack_of(box.store, content) for content in newest}:
            pack.unlink()
    reads.clear()
    listed.clear()

    report = box.restore(to=tmp_path / "out", fallback=True)

    assert (report.failed, len(report.notes)) == ([], FILES)
    for file in files[:2]:
        restored = tmp_path / "out" / "source" / file.relative_to(box.source)
        assert restored.read_bytes() == b"first " + os.fsencode(file)
    # Once by the walk, and once for each older snapshot that is asked.
    assert max(Counter(reads).values()) <= 3
    assert max(Counter(listed).values()) <= 3


def test_a_node_that_is_damaged_is_tried_once_and_not_for_each_path_below_it(
    box: Box, tmp_path: Path, reads: list[bytes]
) -> None:
    (box.source / "d").mkdir()
    files = [box.source / "d" / str(number) for number in range(300)]
    lost: list[Path] = []
    for version in range(3):
        for file in files:
            file.write_bytes(b"%d " % version + os.fsencode(file))
        box.take()
        if version:
            lost.append(pack_of(box.store, b"%d " % version + os.fsencode(files[0])))
    tree = box.entries(box.snapshots()[1].id)[os.fsencode(box.source / "d")].content
    for pack in lost:
        pack.unlink()
    broken = StoreReader.node

    def node(reader: StoreReader, kind: int, name: bytes) -> bytes:
        return broken(reader, kind, bytes(32) if name == tree else name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreReader, "node", node)
        reads.clear()
        report = box.restore(to=tmp_path / "out", fallback=True)

    assert report.failed == []
    assert reads.count(bytes(32)) == 1
    assert (tmp_path / "out" / "source" / "d" / "0").read_bytes().startswith(b"0 ")


# A store that fails


def denied(box: Box, path: Path, *arguments: str | Path) -> Outcome:
    """Run a command that may not open one file of the store."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = ("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(path), "-e", "trace=openat")
    inject = "inject=openat:error=EACCES"
    return ciuic("--config", box.config, *arguments, wrapper=(*trace, "-e", inject))


@pytest.mark.parametrize("what", ["pack", "manifest"])
def test_a_store_that_fails_is_not_taken_for_a_snapshot_without_the_path(
    box: Box, tmp_path: Path, what: str
) -> None:
    model = box.source / "model"
    model.write_bytes(b"whole")
    older = box.take().id
    with open_store(str(box.store)) as store:
        tree = store.manifest(older).roots[0].tree
        pack = box.store / "packs" / pack_name(store.reader.places([tree])[tree].pack)
    model.write_bytes(b"half")
    with held_open([model]):
        newer = box.take().id
    path = pack if what == "pack" else box.store / "snapshots" / f"{older}.json"
    out = tmp_path / "out"
    arguments = ("restore", "-s", newer, "-p", model, "-d", out, "--fallback", "--no-hot", "--json")

    done = denied(box, path, *arguments)

    assert done.code == 1, done
    assert done.document["error"]["kind"] == "store"
    assert f"{path}: Permission denied" in done.document["error"]["message"]
    assert not (out / "model").exists()
    assert box.ciuic(*arguments).code == 0
    assert (out / "model").read_bytes() == b"whole"


def test_a_store_that_fails_is_not_taken_for_one_without_an_intact_version(box: Box) -> None:
    model = box.source / "model"
    model.write_bytes(os.urandom(1000))
    oldest = box.take().id
    model.unlink()
    (box.source / "other").write_bytes(b"other")
    between = box.take().id
    content = os.urandom(1000)
    model.write_bytes(content)
    newest = box.take().id
    flip_content(box.store, content)
    verify = ("verify", newest, "--checksum", "--json")

    done = denied(box, box.store / "snapshots" / f"{oldest}.json", *verify)

    assert done.code == 1, done
    assert f"{oldest}.json: Permission denied" in done.document["error"]["message"]
    [told] = box.ciuic(*verify).document["snapshots"]
    assert told["nearest_valid"] == between
    assert [one["intact_in"] for one in told["damaged"]] == [oldest]


def test_a_store_that_fails_is_not_taken_for_a_file_without_the_bytes(box: Box) -> None:
    """As ``repair`` asks the files for what packs have lost."""
    model = box.source / "model"
    model.write_bytes(b"content")
    name = box.take().id
    path, wanted = os.fsencode(model), {data_id(b"content")}
    with open_store(str(box.store)) as store:
        manifest = store.manifest(name)
        [origin] = find_in_file(store, manifest, path, wanted)
        store.reader.close()
        (box.store / "packs").rename(box.store / "packs away")
        (box.store / "packs").write_bytes(b"no directory")

        for ask in (
            lambda: list(find_in_file(store, manifest, path, wanted)),
            lambda: read_origin(store, origin),
        ):
            with pytest.raises(StoreError, match="Not a directory") as caught:
                ask()
            assert not isinstance(caught.value, CorruptionError)


# What is asked for twice, and what nobody asked for


def test_a_path_that_was_asked_for_twice_comes_back_at_both_places(
    box: Box, tmp_path: Path
) -> None:
    model = box.source / "sub" / "model"
    model.parent.mkdir()
    model.write_bytes(b"older")
    box.take()
    model.write_bytes(b"newer")
    box.take()
    flip_content(box.store, b"newer")

    report = box.restore(box.source, model.parent, to=tmp_path / "out", fallback=True)

    assert report.failed == []
    assert [one.path for one in report.notes] == [os.fsencode(model)]
    assert (tmp_path / "out" / "source" / "sub" / "model").read_bytes() == b"older"
    assert (tmp_path / "out" / "sub" / "model").read_bytes() == b"older"


# What is known to be damaged


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[bytes, int]]:
    """How often the frames at each place are read."""
    counted: Counter[tuple[bytes, int]] = Counter()
    read = StoreReader._read

    def counting(reader: StoreReader, place: ChunkPlace) -> bytes:
        counted[place.pack, place.offset_bytes] += 1
        return read(reader, place)

    monkeypatch.setattr(StoreReader, "_read", counting)
    return counted


def place_of(box: Box, content: bytes) -> tuple[bytes, int]:
    with open_store(str(box.store)) as store:
        name = data_id(content)
        place = store.reader.places([name])[name]
    return place.pack, place.offset_bytes


@pytest.mark.parametrize("count", [2, 20])
def test_a_damaged_chunk_is_read_once_however_many_snapshots_share_it(
    box: Box, tmp_path: Path, frames: Counter[tuple[bytes, int]], count: int
) -> None:
    model, other = box.source / "model", box.source / "other"
    model.write_bytes(b"first")
    box.take()
    content = os.urandom(1000)
    model.write_bytes(content)
    for number in range(count):
        other.write_bytes(b"%d" % number)
        box.take()
    lost = place_of(box, content)
    flip_content(box.store, content)
    frames.clear()

    report = box.restore(to=tmp_path / "out", fallback=True)

    assert report.failed == []
    assert (tmp_path / "out" / "source" / "model").read_bytes() == b"first"
    # With others of its frame, and then by itself.
    assert frames[lost] == 2


@pytest.mark.parametrize("keeps_old", [False, True])
def test_of_a_large_file_nothing_is_read_if_a_chunk_of_it_is_known_to_be_damaged(
    box: Box, tmp_path: Path, frames: Counter[tuple[bytes, int]], *, keeps_old: bool
) -> None:
    """Ten versions share their end, which is damaged; the oldest has another one."""
    model = box.source / "model"
    begins = [os.urandom(MIB) for _ in range(11)]
    shared, whole = os.urandom(MIB), os.urandom(MIB)
    model.write_bytes(begins[0] + whole)
    box.take()
    for begin in begins[1:]:
        model.write_bytes(begin + shared)
        box.take()
    lost = place_of(box, shared)
    between = [place_of(box, begin) for begin in begins[1:-1]]
    flip_content(box.store, shared)
    out = tmp_path / "out"
    if keeps_old:
        out.mkdir()
        (out / "model").write_bytes(begins[5] + bytes(MIB))
    frames.clear()

    report = box.restore(model, to=out, overwrite=keeps_old, fallback=True)

    assert report.failed == []
    assert len(report.notes) == 1
    assert (out / "model").read_bytes() == begins[0] + whole
    assert frames[lost] == 1
    assert [frames[one] for one in between] == [0] * 9


def test_a_damaged_chunk_that_the_target_holds_is_no_loss(box: Box, tmp_path: Path) -> None:
    """Of the newest file it is at another place, and of the older one where it stands already."""
    model = box.source / "model"
    shared, first, second = os.urandom(MIB), os.urandom(MIB), os.urandom(MIB)
    model.write_bytes(first + shared)
    box.take()
    model.write_bytes(shared + second)
    box.take()
    flip_content(box.store, shared)
    out = tmp_path / "out"
    out.mkdir()
    (out / "model").write_bytes(bytes(MIB) + shared)

    report = box.restore(model, to=out, overwrite=True, fallback=True)

    assert report.failed == []
    assert (out / "model").read_bytes() == first + shared


def test_a_damaged_node_is_read_once_however_many_snapshots_share_it(
    box: Box, tmp_path: Path, frames: Counter[tuple[bytes, int]]
) -> None:
    inner = box.source / "inner"
    inner.mkdir()
    (inner / "file").write_bytes(b"first")
    box.take()
    (inner / "file").write_bytes(b"second")
    for number in range(10):
        (box.source / "other").write_bytes(b"%d" % number)
        box.take()
    tree = box.entries()[os.fsencode(inner)].content
    with open_store(str(box.store)) as store:
        place = store.reader.places([tree])[tree]
    flip_byte(box.store / "packs" / place.pack.hex(), place.offset_bytes + place.frame_bytes - 1)
    frames.clear()

    report = box.restore(to=tmp_path / "out", fallback=True)

    assert report.failed == []
    assert (tmp_path / "out" / "source" / "inner" / "file").read_bytes() == b"first"
    # The node lies in one frame with that of the directory above, which one snapshot has.
    assert frames[place.pack, place.offset_bytes] <= 2
