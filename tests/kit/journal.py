"""Everything that real runs do to a directory, call by call, recorded for replay.

strace around the real program records all calls with all data. A layer below ``durable`` would miss
the calls of SQLite. It would also miss writes that bypass ``durable`` by mistake, which a test of
power cuts must find. A FUSE file system sees all calls, but only after the kernel has merged them,
and it cannot tell which thread waits for which sync. strace sees each call of each thread, and when
it began and returned. A comparison proves that nothing is missed: ``Journal.last`` must equal, byte
for byte, the directory after the runs.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = [
    "ROOT",
    "Attribute",
    "Image",
    "Journal",
    "Mark",
    "Names",
    "Node",
    "Operation",
    "Sync",
    "Truncate",
    "Write",
    "cut",
    "overwritten",
    "read_image",
    "write_image",
]

ROOT: Final = 0
"""The number of the recorded directory."""
Attributes = dict[str, object]


class Node(NamedTuple):
    """A new inode; ``kind`` is the type in its mode, ``link`` a symlink's target."""

    kind: int
    mode: int
    link: bytes = b""
    rdev: int = 0


class Names(NamedTuple):
    """Names that one call changed atomically: directory, name, and the inode from then on."""

    changes: tuple[tuple[int, bytes, int | None], ...]


class Write(NamedTuple):
    """Bytes into a file."""

    node: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + len(self.data)


class Truncate(NamedTuple):
    """A file's new length."""

    node: int
    size_bytes: int


class Attribute(NamedTuple):
    """Mode, owner, times or an extended attribute of an inode."""

    node: int
    key: str
    value: object


class Sync(NamedTuple):
    """A sync has returned.

    Attributes:
        node: The synced inode; None for the whole file system.
        begun: How many operations had returned before the call: those are durable.
        data_only: ``fdatasync``.
    """

    node: int | None
    begun: int
    data_only: bool = False


class Mark(NamedTuple):
    """A moment that a test needs: ``begin``, ``say`` or ``end`` of a command."""

    what: str
    text: str


Operation = Names | Write | Truncate | Attribute | Sync | Mark


class Image(NamedTuple):
    """A directory tree: nodes by number, contents of files, names in directories."""

    nodes: dict[int, Node]
    content: dict[int, bytes]
    names: dict[int, dict[bytes, int]]
    attributes: dict[int, Attributes]

    def walk(self) -> Iterator[tuple[bytes, int]]:
        """Yield every path below the top with its inode, directories before their entries."""
        waiting = [(b"", ROOT)]
        while waiting:
            path, number = waiting.pop()
            for name, inner in sorted(self.names.get(number, {}).items()):
                inside = os.path.join(path, name)
                yield inside, inner
                if stat.S_ISDIR(self.nodes[inner].kind):
                    waiting.append((inside, inner))


class Journal:
    """The state of a directory at the start, and every operation since.

    Attributes:
        nodes: Every inode that ever existed, by a number of its own.
        first: The directory at the start; all of it counts as durable.
        operations: The operations, in the order in which the calls returned.
        mtimes: The mtime of each inode after its last write.
    """

    def __init__(self, first: Image) -> None:
        self.first = first
        self.nodes = dict(first.nodes)
        self.operations: list[Operation] = []
        self.mtimes: dict[int, int] = {}

    def last(self) -> Image:
        """Return the directory after all operations, as processes see it."""
        return self.after(len(self.operations))

    def after(self, count: int) -> Image:
        """Return the directory after this many operations, as processes see it."""
        image = Image(
            self.nodes,
            dict(self.first.content),
            {number: dict(names) for number, names in self.first.names.items()},
            {number: dict(found) for number, found in self.first.attributes.items()},
        )
        for operation in self.operations[:count]:
            match operation:
                case Names(changes):
                    for directory, name, node in changes:
                        names = image.names.setdefault(directory, {})
                        if node is None:
                            names.pop(name, None)
                        else:
                            names[name] = node
                            image.names.setdefault(node, {})
                case Write(node, offset, data):
                    image.content[node] = overwritten(image.content.get(node, b""), offset, data)
                case Truncate(node, size_bytes):
                    image.content[node] = cut(image.content.get(node, b""), size_bytes)
                case Attribute(node, key, value):
                    image.attributes.setdefault(node, {})[key] = value
        return image


def overwritten(old: bytes, offset: int, data: bytes) -> bytes:
    """Return a file's bytes after a write."""
    return old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]


def cut(old: bytes, size_bytes: int) -> bytes:
    """Return a file's bytes after its length was set."""
    return old[:size_bytes].ljust(size_bytes, b"\0")


def read_image(top: Path) -> Image:
    """Read an existing directory."""
    nodes: dict[int, Node] = {ROOT: Node(stat.S_IFDIR, 0o755)}
    content: dict[int, bytes] = {}
    names: dict[int, dict[bytes, int]] = {ROOT: {}}
    attributes: dict[int, Attributes] = {}
    known: dict[tuple[int, int], int] = {}
    waiting = [(os.fsencode(top), ROOT)]
    while waiting:
        directory, number = waiting.pop()
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            key = (status.st_dev, status.st_ino)
            if key in known and not stat.S_ISDIR(status.st_mode):
                names[number][name] = known[key]
                continue
            inner = known[key] = len(nodes)
            names[number][name] = inner
            kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)
            link = os.readlink(path) if stat.S_ISLNK(kind) else b""
            nodes[inner] = Node(kind, mode, link, status.st_rdev)
            attributes[inner] = {"mtime": status.st_mtime_ns}
            if stat.S_ISREG(kind):
                with open(path, "rb") as file:
                    content[inner] = file.read()
            elif stat.S_ISDIR(kind):
                names[inner] = {}
                waiting.append((path, inner))
    return Image(nodes, content, names, attributes)


def write_image(image: Image, top: Path) -> None:
    """Replace a directory by an image."""
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir(parents=True)
    base = os.fsencode(top)
    made: dict[int, bytes] = {}
    for inside, number in image.walk():
        path = os.path.join(base, inside)
        if number in made and not stat.S_ISDIR(image.nodes[number].kind):
            os.link(made[number], path, follow_symlinks=False)
            continue
        made[number] = path
        node = image.nodes[number]
        if stat.S_ISDIR(node.kind):
            os.mkdir(path)
        elif stat.S_ISLNK(node.kind):
            os.symlink(node.link, path)
        elif stat.S_ISREG(node.kind):
            with open(path, "wb", buffering=0) as file:
                file.write(image.content.get(number, b""))
        else:
            os.mknod(path, node.kind | 0o600, node.rdev)
    # From the bottom up, since a new entry changes the time of its directory.
    for number, path in reversed(made.items()):
        _set_attributes(path, image.nodes[number], image.attributes.get(number, {}))


def _set_attributes(path: bytes, node: Node, attributes: Attributes) -> None:
    for key, value in attributes.items():
        if key.startswith("xattr "):
            assert isinstance(value, bytes)
            os.setxattr(path, key.removeprefix("xattr "), value, follow_symlinks=False)
        elif key == "owner":
            assert isinstance(value, tuple)
            os.chown(path, *value, follow_symlinks=False)
    if not stat.S_ISLNK(node.kind):
        mode = attributes.get("mode", node.mode)
        assert isinstance(mode, int)
        os.chmod(path, mode)
    mtime_ns = attributes.get("mtime")
    if isinstance(mtime_ns, int):
        os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
