"""``restore --fallback``: how much it reads, what it trusts, and when it stops."""

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.errors import CorruptionError, StoreError
from ciuic.maintain.repair.sources import find_in_file, read_origin
from ciuic.source.directory import DirectoryHandle
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.layout import pack_name
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from ciuic.system.limits import raise_open_files_limit
from ciuic.view.locator import Locator
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content, pack_of
from tests.kit.program import Outcome, ciuic
from tests.kit.strace import strace

FILES = 2000
MIB = 1024 * 1024


@contextlib.contextmanager
def held_open(files: list[Path]) -> Iterator[None]:
    """A program has these files open for writing."""
    raise_open_files_limit()
    with contextlib.ExitStack() as opened:
        for file in files:
            opened.enter_context(file.open("r+b"))
        yield


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The nodes that are read, in order."""
    names: list[bytes] = []
    node = StoreReader.node

    def counted(reader: StoreReader, kind: int, name: bytes) -> bytes:
        names.append(name)
        return node(reader, kind, name)

    monkeypatch.setattr(StoreReader, "node", counted)
    return names


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The directories that are listed, in order."""
    paths: list[bytes] = []
    names = DirectoryHandle.names

    def counted(handle: DirectoryHandle) -> list[bytes]:
        paths.append(handle.path)
        return names(handle)

    monkeypatch.setattr(DirectoryHandle, "names", counted)
    return paths


@pytest.mark.parametrize("state", ["damaged", "in flux"])
@pytest.mark.parametrize("place", ["all/{}", "d{}/file"], ids=["files", "directories"])
def test_a_fallback_reads_and_lists_no_more_for_more_files(
    box: Box, tmp_path: Path, reads: list[bytes], listed: list[bytes], state: str, place: str
) -> None:
    """The snapshot before has half of the files; the one before that has all, and others."""
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
    # Once by the walk, and once for each older snapshot that is searched.
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


# I/O errors of the store


def denied(box: Box, path: Path, *arguments: str | Path) -> Outcome:
    """Run a command that is not allowed to open one of the files of the store."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    wrapper = strace("openat", "-P", path.name, inject="error=EACCES")
    return ciuic("--config", box.config, *arguments, wrapper=wrapper)


@pytest.mark.parametrize("what", ["pack", "manifest"])
def test_an_error_of_the_store_is_not_taken_for_a_snapshot_without_the_path(
    box: Box, tmp_path: Path, what: str
) -> None:
    model = box.source / "model"
    model.write_bytes(b"whole")
    older = box.take().id
    with open_store(str(box.store)) as store:
        tree = store.manifest(older).roots[0].tree
        pack = box.store / "packs" / pack_name(store.reader.places([tree])[tree].pack_id)
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


def test_an_error_of_the_store_is_not_taken_for_a_missing_intact_version(box: Box) -> None:
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


def test_an_error_of_the_store_is_not_taken_for_a_file_without_the_bytes(box: Box) -> None:
    """``repair`` searches the files for lost chunks."""
    model = box.source / "model"
    model.write_bytes(b"content")
    name = box.take().id
    path, wanted = os.fsencode(model), {data_id(b"content")}
    with open_store(str(box.store)) as store:
        manifest = store.manifest(name)
        locator = Locator(store, manifest)
        [origin] = find_in_file(store, manifest, locator, path, wanted)
        store.reader.close()
        (box.store / "packs").rename(box.store / "packs away")
        (box.store / "packs").write_bytes(b"no directory")

        for ask in (
            lambda: list(find_in_file(store, manifest, Locator(store, manifest), path, wanted)),
            lambda: read_origin(store, origin),
        ):
            with pytest.raises(StoreError, match="Not a directory") as caught:
                ask()
            assert not isinstance(caught.value, CorruptionError)


# Paths that were requested twice, or not


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


# Known damage


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[bytes, int]]:
    """How often the frames at each place are read."""
    counted: Counter[tuple[bytes, int]] = Counter()
    read, view = OpenPacks.read, OpenPacks.view

    def counting_read(packs: OpenPacks, place: ChunkPlace) -> bytes:
        counted[place.pack_id, place.offset_bytes] += 1
        return read(packs, place)

    def counting_view(packs: OpenPacks, place: ChunkPlace) -> bytes | memoryview:
        counted[place.pack_id, place.offset_bytes] += 1
        return view(packs, place)

    monkeypatch.setattr(OpenPacks, "read", counting_read)
    monkeypatch.setattr(OpenPacks, "view", counting_view)
    return counted


def place_of(box: Box, content: bytes) -> tuple[bytes, int]:
    with open_store(str(box.store)) as store:
        name = data_id(content)
        place = store.reader.places([name])[name]
    return place.pack_id, place.offset_bytes


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
    # Once with the others of its frame, and once alone.
    assert frames[lost] == 2


@pytest.mark.parametrize("keeps_old", [False, True])
def test_a_large_file_with_a_known_damaged_chunk_is_not_read(
    box: Box, tmp_path: Path, frames: Counter[tuple[bytes, int]], *, keeps_old: bool
) -> None:
    """Ten versions share their damaged end; the oldest has another end."""
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
    assert frames[lost] == 2  # once directly, and once with parity
    assert [frames[one] for one in between] == [0] * 9


def test_a_damaged_chunk_that_the_target_has_is_not_lost(box: Box, tmp_path: Path) -> None:
    """It is at another offset in the newest file, and at the same offset in the older one."""
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
    flip_byte(box.store / "packs" / place.pack_id.hex(), place.offset_bytes + place.frame_bytes - 1)
    frames.clear()

    report = box.restore(to=tmp_path / "out", fallback=True)

    assert report.failed == []
    assert (tmp_path / "out" / "source" / "inner" / "file").read_bytes() == b"first"
    # The node is in a frame with the node of the directory above, which one snapshot has.
    assert frames[place.pack_id, place.offset_bytes] <= 2


@pytest.mark.parametrize("which", ["older", "newer"])
def test_an_older_snapshot_that_cannot_be_read_is_named_where_it_may_have_been_wanted(
    box: Box, tmp_path: Path, which: str
) -> None:
    names = []
    for content in (b"older" * 2000, b"middle" * 2000, b"newer" * 2000):
        (box.source / "model").write_bytes(content)
        names.append(box.take().id)
    wanted = names[1] if which == "older" else names[0]
    unread = names[0] if which == "older" else names[1]
    flip_content(box.store, (b"middle" if which == "older" else b"older") * 2000)
    (box.store / "snapshots" / f"{unread}.json").write_bytes(b"{}")
    out = tmp_path / "out"

    done = box.ciuic("restore", "-s", wanted, "-p", box.source, "-d", out, "--fallback", "--json")

    assert done.code == 4
    named = [one["path"] for one in done.document["notes"]]
    assert named == ([unread] if which == "older" else [])


def test_a_directory_is_no_older_version_of_a_file(box: Box, tmp_path: Path) -> None:
    versions = [os.urandom(MIB) for _ in range(2)]
    model = box.source / "model"
    model.write_bytes(versions[0])
    first = box.take().id
    model.unlink()
    (model / "inner").mkdir(parents=True)
    box.take()
    shutil.rmtree(model)
    model.write_bytes(versions[1])
    box.take()
    flip_content(box.store, versions[1])
    found = box.ciuic("verify", "latest", "--checksum", "--json").document["snapshots"][0]
    assert [one["intact_in"] for one in found["damaged"]] == [first]
    report = box.restore(to=tmp_path / "out", fallback=True)
    assert report.failed == []
    assert (tmp_path / "out" / "source" / "model").read_bytes() == versions[0]


def test_a_restore_says_that_it_read_damaged_frames_with_parity(box: Box, tmp_path: Path) -> None:
    box.parity = 0.04
    content = os.urandom(2 * MIB)
    (box.source / "model").write_bytes(content)
    box.take()
    restore = ("restore", "-s", "latest", "-p", box.source, "--no-hot")
    sound = box.ciuic(*restore, "-d", tmp_path / "sound", "--json")
    assert sound.document["repaired_frames"] == 0
    flip_content(box.store, content[MIB:])
    told = box.ciuic(*restore, "-d", tmp_path / "told")
    assert told.code == 0
    assert "1 frame had to be read with parity" in told.err
    assert f"ciuic --config {box.config} repair" in told.err
    out = box.ciuic(*restore, "-d", tmp_path / "out", "--json")
    assert out.document["repaired_frames"] == 1
    assert (tmp_path / "out" / "source" / "model").read_bytes() == content


def test_a_restore_of_damaged_files_says_once_what_helps(box: Box, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (box.source / name).write_bytes(f"content of {name}".encode() * 500)
    snapshot = box.take().id
    remedies = (
        "--fallback takes damaged files from older snapshots\n"
        f"'ciuic --config {box.config} repair' shows what can be repaired, and"
        f" 'ciuic --config {box.config} repair --apply' repairs it\n"
    )

    def said(name: str, *more: str) -> str:
        done = box.ciuic("restore", "-s", snapshot, "-p", box.source, "-d", tmp_path / name, *more)
        assert done.code == 4, done
        return done.err

    pack_of(box.store, (box.source / "a").read_bytes()).unlink()
    done = said("damaged")
    assert done.count("not restored: ") == 2
    assert done.endswith(remedies)
    assert "--fallback" not in said("asked", "--fallback")

    missing = box.ciuic("restore", "-s", snapshot, "-p", box.source / "none", "-d", tmp_path)
    assert missing.code not in (0, 4)
    assert "--fallback" not in missing.err
