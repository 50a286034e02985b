"""Everything that real runs do to a directory, call by call, recorded so that it can be played.

Recorded with strace around the real program, all data included. A layer under ``ciuic.durable``
would see neither what SQLite does nor what is written around it by mistake, which is what a test
of power cuts is to find; a FUSE file system sees all of it, but only after the kernel has put calls
together, and not which thread waits for which sync. strace sees each call of each thread, when it
began and when it returned. That nothing is missed is not believed but compared: ``Journal.last``
must be, byte for byte, the directory that the runs have left.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.kit.program import Outcome, ciuic

__all__ = [
    "ROOT",
    "Attribute",
    "Image",
    "Journal",
    "Mark",
    "Names",
    "Node",
    "Operation",
    "Recorder",
    "Sync",
    "Truncate",
    "Write",
    "read_image",
    "write_image",
]

ROOT: Final = 0
"""The number of the directory that is watched."""
Attributes = dict[str, object]


class Node(NamedTuple):
    """An inode as it was made; ``kind`` is the type in its mode, ``link`` a symlink's target."""

    kind: int
    mode: int
    link: bytes = b""
    rdev: int = 0


class Names(NamedTuple):
    """Names that one call changed at once: directory, name, and what it means from then on."""

    changes: tuple[tuple[int, bytes, int | None], ...]


class Write(NamedTuple):
    """Bytes into a file."""

    node: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """Where the next byte would go."""
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
        node: What was synced; None for the whole file system.
        begun: How many operations had returned when it was called: those are durable.
        data_only: ``fdatasync``.
    """

    node: int | None
    begun: int
    data_only: bool = False


class Mark(NamedTuple):
    """Something that a test wants to know the moment of: ``begin``, ``say`` or ``end``."""

    what: str
    text: str


Operation = Names | Write | Truncate | Attribute | Sync | Mark


class Image(NamedTuple):
    """A directory tree: nodes by number, what files hold, what directories hold."""

    nodes: dict[int, Node]
    content: dict[int, bytes]
    names: dict[int, dict[bytes, int]]
    attributes: dict[int, Attributes]

    def walk(self) -> Iterator[tuple[bytes, int]]:
        """Every path below the top with its inode, directories before what is in them."""
        waiting = [(b"", ROOT)]
        while waiting:
            path, number = waiting.pop()
            for name, inner in sorted(self.names.get(number, {}).items()):
                inside = os.path.join(path, name)
                yield inside, inner
                if stat.S_ISDIR(self.nodes[inner].kind):
                    waiting.append((inside, inner))


class Journal:
    """What happened to a directory: how it was, and every operation since.

    Attributes:
        nodes: Every inode that there ever was, by a number of its own.
        first: The directory before; all of it counts as durable.
        operations: What was done, in the order in which the calls returned.
        mtimes: The time that the last write to each inode has left it with.
    """

    def __init__(self, first: Image) -> None:
        self.first = first
        self.nodes = dict(first.nodes)
        self.operations: list[Operation] = []
        self.mtimes: dict[int, int] = {}

    def last(self) -> Image:
        """The directory after all operations, as every process sees it."""
        return self.after(len(self.operations))

    def after(self, count: int) -> Image:
        """The directory after so many operations, as every process sees it."""
        image = Image(
            self.nodes,
            dict(self.first.content),
            {number: dict(names) for number, names in self.first.names.items()},
            {number: dict(found) for number, found in self.first.attributes.items()},
        )
        for one in self.operations[:count]:
            match one:
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
    """A file's bytes after a write."""
    return old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]


def cut(old: bytes, size_bytes: int) -> bytes:
    """A file's bytes after its length was set."""
    return old[:size_bytes].ljust(size_bytes, b"\0")


def read_image(top: Path) -> Image:
    """A directory as it stands there."""
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
    """Make a directory be as an image says; whatever was there before goes."""
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
    # From the bottom up: what is made in a directory moves its time.
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


class _Open:
    """An open file of the traced process."""

    def __init__(self, node: int, appends: bool) -> None:
        self.node = node
        self.appends = appends
        self.offset = 0


class Recorder:
    """Runs ``ciuic`` and records what it does below one directory.

    Args:
        top: The directory; nothing but the recorded runs may write to it.
        scratch: A directory for traces.
        journal: Goes on with this one instead of beginning with what is there.
    """

    def __init__(self, top: Path, scratch: Path, journal: Journal | None = None) -> None:
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed")
        self.top = top
        self.journal = journal or Journal(read_image(top))
        self._trace = scratch / "trace"
        self._top = os.path.realpath(os.fsencode(top))

    def run(self, *arguments: str | Path, codes: Sequence[int] = (0,)) -> Outcome:
        """Run a command to its end, and take down what it does."""
        options = ("-f", "-qq", "-xx", "-s", str(1 << 28), "--seccomp-bpf")
        traced = ("-o", str(self._trace), "-e", f"trace={','.join(sorted(_CALLS))}")
        self.mark("begin", " ".join(str(one) for one in arguments))
        done = ciuic(*arguments, wrapper=("strace", *options, *traced))
        assert done.code in codes, done
        with self._trace.open("rb") as lines:
            _Replay(self.journal, self._top).play(lines)
        self._trace.unlink()
        self.mark("end", " ".join(str(one) for one in arguments))
        self._take_times()
        return done

    @property
    def position(self) -> int:
        """How many operations there are so far."""
        return len(self.journal.operations)

    def reported(self, begin: int) -> int:
        """When the command that began there had said its last word; else, when it had ended."""
        marks = [
            at
            for at, one in enumerate(self.journal.operations)
            if isinstance(one, Mark) and one.what == "say" and one.text.strip() and at >= begin
        ]
        return marks[-1] if marks else self.position - 1

    def mark(self, what: str, text: str) -> None:
        """Remember this moment."""
        self.journal.operations.append(Mark(what, text))

    def _take_times(self) -> None:
        """The catalog knows manifests by their times, so a file that is made again has its own."""
        for inside, number in self.journal.last().walk():
            status = os.lstat(os.path.join(self._top, inside))
            self.journal.mtimes.setdefault(number, status.st_mtime_ns)


# Reading a trace

_CALLS: Final = {
    *("open", "openat", "openat2", "creat", "close", "dup", "dup2", "dup3", "fcntl", "lseek"),
    *("write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "truncate", "fallocate"),
    *("copy_file_range", "sendfile", "splice", "ioctl", "mmap", "io_uring_setup"),
    *("fsync", "fdatasync", "syncfs", "sync", "sync_file_range", "msync"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "rmdir", "symlink", "symlinkat", "mknod", "mknodat"),
    *("chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utimensat"),
    *("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
}
_LINE: Final = re.compile(rb"^(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)$", re.DOTALL)
_RESULT: Final = re.compile(rb"\) += (-?\d+|0x[0-9a-f]+)(?: .*)?$")
_TIMES: Final = re.compile(
    r"\{tv_sec=(-?\d+), tv_nsec=(\d+|UTIME_NOW|UTIME_OMIT)\}"
    r"|(UTIME_NOW|UTIME_OMIT)"
)
_AGAIN: Final = re.compile(rb"/proc/self/fd/(\d+)")
_UNFINISHED: Final = b" <unfinished ...>"
_CWD: Final = "AT_FDCWD"


class _Call(NamedTuple):
    """A call that has returned well; strings among its arguments are bytes."""

    name: str
    arguments: list[str | bytes]
    result: int
    begun: int

    def number(self, at: int) -> int:
        return int(str(self.arguments[at]), 0)

    def text(self, at: int) -> str:
        return str(self.arguments[at])

    def data(self, at: int) -> bytes:
        found = self.arguments[at]
        assert isinstance(found, bytes), self
        return found


class _Replay:
    """Turns the calls of one traced program into operations."""

    def __init__(self, journal: Journal, top: bytes) -> None:
        self._journal = journal
        self._top = top
        image = journal.last()
        self._names = image.names
        self._content = image.content
        self._open: dict[int, _Open] = {}

    def play(self, lines: Iterator[bytes]) -> None:
        """Add what the trace says to the journal."""
        begun: dict[bytes, tuple[bytes, int]] = {}
        for line in lines:
            match = _LINE.match(line.rstrip(b"\n"))
            if match is None:
                continue  # a signal, or the end of a thread
            thread, resumed, name, rest = match.groups()
            position = len(self._journal.operations)
            if rest.endswith(_UNFINISHED):
                begun[thread] = (rest.removesuffix(_UNFINISHED), position)
                if name == b"close":
                    # From now on another thread may be given its number.
                    self._open.pop(int(begun.pop(thread)[0]), None)
                continue
            if resumed == b"close":
                continue
            if resumed is not None:
                head, position = begun.pop(thread)
                rest, name = head + rest, resumed
            result = _RESULT.search(rest)
            if result is None or result[1] == b"-1":
                continue
            arguments = _arguments(rest[: result.start()])
            self._do(_Call(name.decode(), arguments, int(result[1], 0), position))

    def _add(self, one: Operation) -> None:
        self._journal.operations.append(one)
        match one:
            case Names(changes):
                for directory, name, node in changes:
                    names = self._names.setdefault(directory, {})
                    if node is None:
                        names.pop(name, None)
                    else:
                        names[name] = node
            case Write(node, offset, data):
                self._content[node] = overwritten(self._content.get(node, b""), offset, data)
            case Truncate(node, size_bytes):
                self._content[node] = cut(self._content.get(node, b""), size_bytes)

    def _do(self, call: _Call) -> None:
        handler = _HANDLERS.get(call.name)
        if handler is not None:
            handler(self, call)
        elif call.name in {"mmap", "ioctl"}:
            self._refuse_unseen(call)
        else:
            used = [one for one in call.arguments if str(one).isdigit() and int(one) in self._open]
            assert not used, f"{call.name} changes files in a way that nobody takes down: {call}"

    def _refuse_unseen(self, call: _Call) -> None:
        """Memory that is written back by the kernel, and clones, leave no bytes in the trace."""
        if call.name == "mmap":
            changes = "PROT_WRITE" in call.text(2) and "MAP_SHARED" in call.text(3)
            assert not (changes and int(call.text(4), 0) in self._open), call
        elif call.number(0) in self._open:
            assert "CLONE" not in call.text(1), call

    # Where a path leads

    def _find(self, directory: str, path: bytes) -> tuple[int, bytes] | None:
        """The directory that a path's last name is in, and that name; None outside of the top."""
        if path.startswith(b"/"):
            whole = os.path.normpath(path)
            if not whole.startswith(self._top + b"/"):
                return None
            number, path = ROOT, whole[len(self._top) + 1 :]
        elif directory != _CWD and int(directory) in self._open:
            number = self._open[int(directory)].node
        else:
            return None
        *way, name = path.split(b"/")
        for one in way:
            inner = self._names[number].get(one)
            if inner is None:
                return None
            number = inner
        return number, name

    def _node(self, directory: str, path: bytes) -> int | None:
        if path.startswith(b"/") and os.path.normpath(path) == self._top:
            return ROOT
        found = self._find(directory, path)
        if found is None:
            return None
        return found[0] if found[1] in {b".", b""} else self._names[found[0]].get(found[1])

    def _make(self, where: tuple[int, bytes] | None, node: Node) -> int | None:
        if where is None:
            return None
        number = max(self._journal.nodes) + 1
        self._journal.nodes[number] = node
        if stat.S_ISDIR(node.kind):
            self._names[number] = {}
        self._add(Names(((*where, number),)))
        return number

    # One method for each kind of call

    def _openat(self, call: _Call) -> None:
        at = 1 if call.name == "openat" else 0
        directory = call.text(0) if at else _CWD
        path, flags = call.data(at), call.text(at + 1)
        self._open.pop(call.result, None)
        again = _AGAIN.fullmatch(path)
        if again is not None:
            # An open file, opened once more past its name.
            one = self._open.get(int(again[1]))
            if one is not None:
                self._open[call.result] = _Open(one.node, appends=False)
            return
        where = self._find(directory, path)
        number = self._node(directory, path)
        if number is None and where is not None:
            assert "O_CREAT" in flags, call
            mode = int(call.text(at + 2), 8)
            number = self._make(where, Node(stat.S_IFREG, mode & ~0o022))
        if number is None:
            return
        assert "SYNC" not in flags.replace("O_ASYNC", ""), f"every write is a sync: {call}"
        if "O_TRUNC" in flags:
            self._add(Truncate(number, 0))
        self._open[call.result] = _Open(number, "O_APPEND" in flags)

    def _close(self, call: _Call) -> None:
        self._open.pop(call.number(0), None)

    def _dup(self, call: _Call) -> None:
        if call.name == "fcntl" and not call.text(1).startswith("F_DUPFD"):
            return
        one = self._open.get(call.number(0))
        self._open.pop(call.result, None)
        if one is not None:
            self._open[call.result] = one

    def _lseek(self, call: _Call) -> None:
        if call.number(0) in self._open:
            self._open[call.number(0)].offset = call.result

    def _write(self, call: _Call) -> None:
        fd = call.number(0)
        if fd == 1 and fd not in self._open:
            self._add(Mark("say", call.data(1).decode("utf-8", "replace")))
        one = self._open.get(fd)
        if one is None:
            return
        if call.name == "pwrite64":
            offset = call.number(3)
        else:
            offset = len(self._content.get(one.node, b"")) if one.appends else one.offset
            one.offset = offset + call.result
        self._add(Write(one.node, offset, call.data(1)[: call.result]))

    def _ftruncate(self, call: _Call) -> None:
        number = (
            self._node(_CWD, call.data(0))
            if call.name == "truncate"
            else self._node_of(call.number(0))
        )
        if number is not None:
            self._add(Truncate(number, call.number(1)))

    def _node_of(self, fd: int) -> int | None:
        one = self._open.get(fd)
        return None if one is None else one.node

    def _fallocate(self, call: _Call) -> None:
        number = self._node_of(call.number(0))
        if number is None or "KEEP_SIZE" in call.text(1):
            assert number is None or "PUNCH" not in call.text(1), call
            return
        size_bytes = max(len(self._content.get(number, b"")), call.number(2) + call.number(3))
        self._add(Truncate(number, size_bytes))

    def _copy_range(self, call: _Call) -> None:
        target = self._open.get(call.number(2))
        if target is None:
            return
        source = self._open.get(call.number(0))
        assert source is not None, f"copied from a file that nobody watches: {call}"
        begin, end = (int(call.text(at).strip("[]")) for at in (1, 3))
        data = self._content[source.node][begin : begin + call.result]
        self._add(Write(target.node, end, data))

    def _sync(self, call: _Call) -> None:
        if call.name == "sync":
            self._add(Sync(None, call.begun))
            return
        number = self._node_of(call.number(0))
        if number is None:
            return
        whole = call.name == "syncfs"
        self._add(Sync(None if whole else number, call.begun, call.name == "fdatasync"))

    def _rename(self, call: _Call) -> None:
        plain = call.name == "rename"
        assert call.name != "renameat2" or call.text(4) in {"0", "RENAME_NOREPLACE"}, call
        old = self._find(_CWD if plain else call.text(0), call.data(0 if plain else 1))
        new = self._find(_CWD if plain else call.text(2), call.data(1 if plain else 3))
        if old is None and new is None:
            return
        assert old is not None, f"something came in that nobody has seen grow: {call}"
        assert new is not None, f"something was moved out: {call}"
        number = self._names[old[0]][old[1]]
        if self._names[new[0]].get(new[1]) == number:
            return  # two names of one file: rename(2) does nothing
        self._add(Names(((*new, number), (*old, None))))

    def _link(self, call: _Call) -> None:
        plain = call.name == "link"
        number = self._node(_CWD if plain else call.text(0), call.data(0 if plain else 1))
        new = self._find(_CWD if plain else call.text(2), call.data(1 if plain else 3))
        if number is not None and new is not None:
            self._add(Names(((*new, number),)))

    def _unlink(self, call: _Call) -> None:
        plain = call.name in {"unlink", "rmdir"}
        where = self._find(_CWD if plain else call.text(0), call.data(0 if plain else 1))
        if where is not None:
            self._add(Names(((*where, None),)))

    def _mkdir(self, call: _Call) -> None:
        at = 0 if call.name == "mkdir" else 1
        where = self._find(call.text(0) if at else _CWD, call.data(at))
        self._make(where, Node(stat.S_IFDIR, int(call.text(at + 1), 8) & ~0o022))

    def _symlink(self, call: _Call) -> None:
        at = 1 if call.name == "symlink" else 2
        where = self._find(_CWD if at == 1 else call.text(1), call.data(at))
        self._make(where, Node(stat.S_IFLNK, 0o777, call.data(0)))

    def _mknod(self, call: _Call) -> None:
        at = 0 if call.name == "mknod" else 1
        where = self._find(call.text(0) if at else _CWD, call.data(at))
        kind, _, mode = call.text(at + 1).partition("|")
        makedev = re.search(
            r"makedev\((0x[0-9a-f]+|\d+), (0x[0-9a-f]+|\d+)\)", repr(call.arguments)
        )
        rdev = os.makedev(int(makedev[1], 0), int(makedev[2], 0)) if makedev else 0
        self._make(where, Node(getattr(stat, kind), int(mode, 8) & ~0o022, b"", rdev))

    def _attribute(self, call: _Call) -> None:
        """The ``f`` form names a descriptor, the ``at`` form a directory and a path."""
        name = call.name
        first = call.arguments[0]
        at = 1
        if name.endswith("at"):
            second = call.arguments[1]
            number = (
                self._node(call.text(0), second)
                if isinstance(second, bytes)
                else self._node_of(call.number(0))
            )
            at = 2
        elif isinstance(first, bytes):
            number = self._node(_CWD, first)
        else:
            number = self._node_of(int(first))
        if number is None:
            return
        if "chmod" in name:
            self._add(Attribute(number, "mode", int(call.text(at), 8)))
        elif "chown" in name:
            self._add(Attribute(number, "owner", (call.number(at), call.number(at + 1))))
        elif "removexattr" in name:
            self._add(Attribute(number, f"xattr {call.data(at).decode()}", None))
        elif "setxattr" in name:
            self._add(Attribute(number, f"xattr {call.data(at).decode()}", call.data(at + 1)))
        else:
            times = _TIMES.findall(", ".join(str(one) for one in call.arguments[at:]))
            seconds, nanoseconds, _ = times[1]
            if nanoseconds.isdigit():
                value = int(seconds) * 1_000_000_000 + int(nanoseconds)
                self._add(Attribute(number, "mtime", value))


def _arguments(text: bytes) -> list[str | bytes]:
    """Arguments as strace prints them; with -xx a string holds no quote and no comma."""
    found: list[str | bytes] = []
    for at, part in enumerate(text.split(b'"')):
        if at % 2:
            found.append(bytes.fromhex(part.replace(b"\\x", b"").decode()))
            continue
        assert not (at and part.startswith(b"...")), "a string was cut short"
        plain = part.decode().strip(", ")
        found.extend(re.split(r", (?![^{]*\})", plain) if plain else [])
    return found


_HANDLERS: Final[dict[str, Callable[[_Replay, _Call], None]]] = {
    **dict.fromkeys(("open", "openat"), _Replay._openat),
    "close": _Replay._close,
    **dict.fromkeys(("dup", "dup2", "dup3", "fcntl"), _Replay._dup),
    "lseek": _Replay._lseek,
    **dict.fromkeys(("write", "pwrite64"), _Replay._write),
    **dict.fromkeys(("truncate", "ftruncate"), _Replay._ftruncate),
    "fallocate": _Replay._fallocate,
    "copy_file_range": _Replay._copy_range,
    **dict.fromkeys(("fsync", "fdatasync", "syncfs", "sync"), _Replay._sync),
    **dict.fromkeys(("sync_file_range",), lambda _replay, _call: None),  # promises nothing
    **dict.fromkeys(("rename", "renameat", "renameat2"), _Replay._rename),
    **dict.fromkeys(("link", "linkat"), _Replay._link),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), _Replay._unlink),
    **dict.fromkeys(("mkdir", "mkdirat"), _Replay._mkdir),
    **dict.fromkeys(("symlink", "symlinkat"), _Replay._symlink),
    **dict.fromkeys(("mknod", "mknodat"), _Replay._mknod),
    **dict.fromkeys(
        ("chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utimensat"),
        _Replay._attribute,
    ),
    **dict.fromkeys(
        ("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
        _Replay._attribute,
    ),
}
