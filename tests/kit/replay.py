"""Replays a trace of strace into a journal: each traced call becomes operations."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tests.kit.journal import (
    ROOT,
    Attribute,
    Journal,
    Mark,
    Names,
    Node,
    Operation,
    Sync,
    Truncate,
    Write,
    cut,
    overwritten,
)

__all__ = ["CALLS", "Replay"]

CALLS: Final = {
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


class _Open:
    """An open file of the traced process."""

    def __init__(self, node: int, appends: bool) -> None:
        self.node = node
        self.appends = appends
        self.offset = 0


class _Call(NamedTuple):
    """A successful call; strings among its arguments are bytes."""

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


class Replay:
    """Turns the calls of one traced program into operations."""

    def __init__(self, journal: Journal, top: bytes) -> None:
        self._journal = journal
        self._top = top
        image = journal.last()
        self._names = image.names
        self._content = image.content
        self._open: dict[int, _Open] = {}
        # Directories above the top; paths reach it from them, one name after another.
        self._outside: dict[int, bytes] = {}

    def play(self, lines: Iterator[bytes]) -> None:
        """Add the trace to the journal."""
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
                    # From now on, another thread may get this number.
                    number = int(begun.pop(thread)[0])
                    self._open.pop(number, None)
                    self._outside.pop(number, None)
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

    def _add(self, operation: Operation) -> None:
        self._journal.operations.append(operation)
        match operation:
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
            used = [
                argument
                for argument in call.arguments
                if str(argument).isdigit() and int(argument) in self._open
            ]
            assert not used, (
                f"{call.name} changes files in a way that the recorder does not handle: {call}"
            )

    def _refuse_unseen(self, call: _Call) -> None:
        """Refuse shared mappings and clones: they leave no bytes in the trace."""
        if call.name == "mmap":
            changes = "PROT_WRITE" in call.text(2) and "MAP_SHARED" in call.text(3)
            assert not (changes and int(call.text(4), 0) in self._open), call
        elif call.number(0) in self._open:
            assert "CLONE" not in call.text(1), call

    # Where a path leads

    def _above(self, directory: str, path: bytes) -> bytes | None:
        """Return the absolute path of a place outside of the top, if it is known."""
        if path.startswith(b"/"):
            return os.path.normpath(path)
        above = None if directory == _CWD else self._outside.get(int(directory))
        return None if above is None else os.path.normpath(os.path.join(above, path))

    def _find(self, directory: str, path: bytes) -> tuple[int, bytes] | None:
        """Return the directory of a path's last name, and that name; None outside of the top."""
        path = self._above(directory, path) or path
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
        for part in way:
            inner = self._names[number].get(part)
            if inner is None:
                return None
            number = inner
        return number, name

    def _node(self, directory: str, path: bytes) -> int | None:
        if self._above(directory, path) == self._top:
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
        self._outside.pop(call.result, None)
        again = _AGAIN.fullmatch(path)
        if again is not None:
            # An open file, opened again through its descriptor.
            opened = self._open.get(int(again[1]))
            if opened is not None:
                self._open[call.result] = _Open(opened.node, appends=False)
            return
        where = self._find(directory, path)
        number = self._node(directory, path)
        if number is None and where is not None:
            assert "O_CREAT" in flags, call
            mode = int(call.text(at + 2), 8)
            number = self._make(where, Node(stat.S_IFREG, mode & ~0o022))
        if number is None:
            above = self._above(directory, path)
            if above is not None:
                self._outside[call.result] = above
            return
        assert "SYNC" not in flags.replace("O_ASYNC", ""), f"every write is a sync: {call}"
        if "O_TRUNC" in flags:
            self._add(Truncate(number, 0))
        self._open[call.result] = _Open(number, "O_APPEND" in flags)

    def _close(self, call: _Call) -> None:
        self._open.pop(call.number(0), None)
        self._outside.pop(call.number(0), None)

    def _dup(self, call: _Call) -> None:
        if call.name == "fcntl" and not call.text(1).startswith("F_DUPFD"):
            return
        opened = self._open.get(call.number(0))
        self._open.pop(call.result, None)
        if opened is not None:
            self._open[call.result] = opened

    def _lseek(self, call: _Call) -> None:
        if call.number(0) in self._open:
            self._open[call.number(0)].offset = call.result

    def _write(self, call: _Call) -> None:
        fd = call.number(0)
        if fd == 1 and fd not in self._open:
            self._add(Mark("say", call.data(1).decode("utf-8", "replace")))
        opened = self._open.get(fd)
        if opened is None:
            return
        if call.name == "pwrite64":
            offset = call.number(3)
        else:
            offset = len(self._content.get(opened.node, b"")) if opened.appends else opened.offset
            opened.offset = offset + call.result
        self._add(Write(opened.node, offset, call.data(1)[: call.result]))

    def _ftruncate(self, call: _Call) -> None:
        number = (
            self._node(_CWD, call.data(0))
            if call.name == "truncate"
            else self._node_of(call.number(0))
        )
        if number is not None:
            self._add(Truncate(number, call.number(1)))

    def _node_of(self, fd: int) -> int | None:
        opened = self._open.get(fd)
        return None if opened is None else opened.node

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
        assert source is not None, f"copied from a file that is not watched: {call}"
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
        assert old is not None, f"a file was moved in that was not watched: {call}"
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
        """Return the inode; the ``f`` form has a descriptor, the ``at`` form a path."""
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
            times = _TIMES.findall(", ".join(str(argument) for argument in call.arguments[at:]))
            seconds, nanoseconds, _ = times[1]
            if nanoseconds.isdigit():
                value = int(seconds) * 1_000_000_000 + int(nanoseconds)
                self._add(Attribute(number, "mtime", value))


def _arguments(text: bytes) -> list[str | bytes]:
    """Split arguments as strace prints them; with -xx, strings have no quotes and no commas."""
    found: list[str | bytes] = []
    for at, part in enumerate(text.split(b'"')):
        if at % 2:
            found.append(bytes.fromhex(part.replace(b"\\x", b"").decode()))
            continue
        assert not (at and part.startswith(b"...")), "a string was cut short"
        plain = part.decode().strip(", ")
        found.extend(re.split(r", (?![^{]*\})", plain) if plain else [])
    return found


_HANDLERS: Final[dict[str, Callable[[Replay, _Call], None]]] = {
    **dict.fromkeys(("open", "openat"), Replay._openat),
    "close": Replay._close,
    **dict.fromkeys(("dup", "dup2", "dup3", "fcntl"), Replay._dup),
    "lseek": Replay._lseek,
    **dict.fromkeys(("write", "pwrite64"), Replay._write),
    **dict.fromkeys(("truncate", "ftruncate"), Replay._ftruncate),
    "fallocate": Replay._fallocate,
    "copy_file_range": Replay._copy_range,
    **dict.fromkeys(("fsync", "fdatasync", "syncfs", "sync"), Replay._sync),
    **dict.fromkeys(("sync_file_range",), lambda _replay, _call: None),  # guarantees nothing
    **dict.fromkeys(("rename", "renameat", "renameat2"), Replay._rename),
    **dict.fromkeys(("link", "linkat"), Replay._link),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), Replay._unlink),
    **dict.fromkeys(("mkdir", "mkdirat"), Replay._mkdir),
    **dict.fromkeys(("symlink", "symlinkat"), Replay._symlink),
    **dict.fromkeys(("mknod", "mknodat"), Replay._mknod),
    **dict.fromkeys(
        ("chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utimensat"),
        Replay._attribute,
    ),
    **dict.fromkeys(
        ("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
        Replay._attribute,
    ),
}
