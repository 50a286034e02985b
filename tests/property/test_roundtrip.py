"""Two snapshots of any directory can be restored exactly."""

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, note
from hypothesis import strategies as st

from tests.kit.box import Box
from tests.kit.trees import differences, photograph

CHUNK_BYTES = 4096
"""The smallest length that a store allows, so that small files have recipes too."""


class File(NamedTuple):
    """Ranges of data with holes between them. ``copies`` are further names."""

    pieces: tuple[tuple[int, bytes], ...]
    tail: int
    mode: int
    mtime_ns: int
    attribute: bytes | None


class Link(NamedTuple):
    """A symlink."""

    target: bytes


class Pipe(NamedTuple):
    """A FIFO."""

    mode: int


class Directory(NamedTuple):
    """Names and their entries. ``links`` are pairs of a new name and the number of a file."""

    items: dict[bytes, "Node"]
    mode: int
    mtime_ns: int


Node = File | Link | Pipe | Directory

NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda one: b"/" not in one and b"\0" not in one and one not in {b".", b".."}
) | st.sampled_from([b"a", b"b", b"c", b"\xff" * 255, b"new\nline", b"x|y"])
TIMES = st.integers(min_value=-(2**31) * 10**9, max_value=2**33 * 10**9)
HOLES = st.sampled_from([0, 0, 0, 1, 4096, 3 * 4096, 100_000])
BLOBS = st.binary(max_size=40) | st.builds(
    lambda unit, count: unit * count, st.binary(min_size=1, max_size=3), st.integers(1, 9000)
)
FILES = st.builds(
    File,
    pieces=st.lists(st.tuples(HOLES, BLOBS), max_size=4).map(tuple),
    tail=HOLES,
    mode=st.integers(0o400, 0o7777).map(lambda mode: mode | 0o400),
    mtime_ns=TIMES,
    attribute=st.none() | st.binary(max_size=30),
)
LEAVES = (
    FILES
    | st.builds(Link, st.binary(min_size=1, max_size=30).filter(lambda one: b"\0" not in one))
    | st.builds(Pipe, st.integers(0, 0o777))
)


def directories(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(
        Directory,
        items=st.dictionaries(NAMES, inner, max_size=5),
        mode=st.integers(0, 0o1777).map(lambda mode: mode | 0o700),
        mtime_ns=TIMES,
    )


TREES = directories(st.recursive(LEAVES, directories, max_leaves=8))
HARD_LINKS = st.lists(st.tuples(st.integers(0, 20), NAMES), max_size=3)


def build(node: Node, path: bytes) -> None:
    """Create the described tree. Directories get their times after their entries."""
    if isinstance(node, Directory):
        os.mkdir(path)
        for name, inner in node.items.items():
            build(inner, path + b"/" + name)
    elif isinstance(node, Link):
        os.symlink(node.target, path)
    elif isinstance(node, Pipe):
        os.mkfifo(path)
        os.chmod(path, node.mode)
    else:
        build_file(node, path)


def build_file(node: File, path: bytes) -> None:
    with open(path, "wb") as file:
        for hole, data in node.pieces:
            file.seek(hole, os.SEEK_CUR)
            file.write(data)
        file.truncate(file.tell() + node.tail)
    if node.attribute is not None:
        os.setxattr(path, b"user.thing", node.attribute)
    os.chmod(path, node.mode)
    os.utime(path, ns=(node.mtime_ns, node.mtime_ns))


def finish(node: Node, path: bytes) -> None:
    """Set the modes and times of directories, innermost first."""
    if isinstance(node, Directory):
        for name, inner in node.items.items():
            finish(inner, path + b"/" + name)
        os.chmod(path, node.mode)
        os.utime(path, ns=(node.mtime_ns, node.mtime_ns))


def add_hard_links(top: bytes, wanted: list[tuple[int, bytes]]) -> None:
    files = sorted(
        os.path.join(directory, name)
        for directory, _, names in os.walk(top)
        for name in names
        if stat.S_ISREG(os.lstat(os.path.join(directory, name)).st_mode)
    )
    for number, name in wanted:
        place = top + b"/" + name
        if files and not os.path.lexists(place):
            os.link(files[number % len(files)], place)


def change(top: bytes, other: Directory, removed: set[int]) -> None:
    """Return another state: some entries are removed, some added, some replaced."""
    for number, name in enumerate(sorted(os.listdir(top))):
        path = top + b"/" + name
        if number in removed or name in other.items:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
    for name, inner in other.items.items():
        build(inner, top + b"/" + name)
        finish(inner, top + b"/" + name)


@given(
    first=TREES,
    second=TREES,
    links=HARD_LINKS,
    removed=st.sets(st.integers(0, 5), max_size=3),
)
def test_two_states_of_a_tree_are_restored_exactly(
    first: Directory, second: Directory, links: list[tuple[int, bytes]], removed: set[int]
) -> None:
    with tempfile.TemporaryDirectory(prefix="ciuic-test-") as directory:
        box = Box(Path(directory), chunk_bytes=CHUNK_BYTES)
        box.source.rmdir()
        source = os.fsencode(box.source)
        build(first, source)
        add_hard_links(source, links)
        finish(first, source)
        photos = {box.take().id: photograph(source)}
        change(source, second, removed)
        photos[box.take().id] = photograph(source)
        photos[box.take().id] = photograph(source)
        assert box.verify().ok
        out = Path(directory) / "out"
        for number, (name, photo) in enumerate(photos.items()):
            # The last two restores overwrite the source, and the others go to new directories.
            place = out / str(min(number, 1))
            report = box.restore(snapshot=name, to=place, overwrite=True, delete=True)
            note(f"{name}: {report.as_json()}")
            assert report.failed == []
            assert differences(photo, photograph(place / "source")) == []
        oldest = next(iter(photos))
        report = box.restore(snapshot=oldest, to=out / "1", overwrite=True, delete=True)
        assert report.failed == []
        assert differences(photos[oldest], photograph(out / "1" / "source")) == []
