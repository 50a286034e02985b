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
from ciuic.store.layout import pack_name
from ciuic.store.reader import StoreReader
from ciuic.verbs.sources import find_in_file, read_origin
from tests.kit.box import Box
from tests.kit.damage import flip_content, pack_of
from tests.kit.program import Outcome, ciuic

FILES = 2000


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
