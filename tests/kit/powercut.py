"""The states that a disk may have after a power cut, at any moment of a recorded run.

There are two kinds of file systems. ``ORDERED`` is ext4 by default: changes of names, lengths and
modes reach the disk in order, each fsync makes all earlier ones durable, and a growing file shows
only bytes that were written to it. ``WEAKEST`` is all that POSIX promises: each name and each
sector that was not synced may be on the disk or not, independently and in any order; a durable
length without its bytes may show any bytes. Two rules of ``WEAKEST`` go beyond POSIX: a name is
never torn, and a rename does not lose the file under both names.
"""

import random
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.kit.journal import (
    Attribute,
    Attributes,
    Image,
    Journal,
    Mark,
    Names,
    Operation,
    Sync,
    Truncate,
    Write,
    cut,
    overwritten,
)

__all__ = ["EXTREMES", "ORDERED", "WEAKEST", "Disk", "disks"]

ORDERED: Final = "ordered"
WEAKEST: Final = "weakest"
SECTOR: Final = 512
PAGE: Final = 4096
EXTREMES: Final = ("nothing", "everything", "names only", "data only")
"""The states of unsynced changes that reveal most bugs. Other states are random."""

_Pending = tuple[int, Operation]


class _Name(NamedTuple):
    """The inode of a name from an operation on."""

    at: int
    node: int | None


class Disk:
    """A disk while operations are replayed: what is durable, and what may be.

    Attributes:
        passed: The number of replayed operations.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.passed = 0
        self._names: dict[int, dict[bytes, list[_Name]]] = {
            number: {name: [_Name(-1, node)] for name, node in names.items()}
            for number, names in journal.first.names.items()
        }
        self._content = dict(journal.first.content)
        self._attributes = {
            number: dict(found) for number, found in journal.first.attributes.items()
        }
        self._pending: dict[int, list[_Pending]] = {}
        self._committed = 0

    def advance(self) -> Operation:
        """Replay the next operation."""
        change = self._journal.operations[self.passed]
        at, self.passed = self.passed, self.passed + 1
        match change:
            case Names(changes):
                for directory, name, node in changes:
                    names = self._names.setdefault(directory, {})
                    names.setdefault(name, [_Name(-1, None)]).append(_Name(at, node))
            case Write(node) | Truncate(node) | Attribute(node):
                self._pending.setdefault(node, []).append((at, change))
            case Sync():
                self._settle(change)
        return change

    def _settle(self, sync: Sync) -> None:
        if sync.node is None:
            directories, nodes = [*self._names], [*self._pending]
        else:
            directories = [sync.node] if sync.node in self._names else []
            nodes = [sync.node]
        # After writes in place without a new length, fdatasync does not commit ext4's journal.
        if not sync.data_only or directories or self._grows(sync):
            self._committed = max(self._committed, sync.begun)
        for number in directories:
            self._settle_names(number, sync.begun)
        for number in nodes:
            self._settle_node(number, sync.begun)

    def _grows(self, sync: Sync) -> bool:
        assert sync.node is not None
        size_bytes = len(self._content.get(sync.node, b""))
        for at, change in self._pending.get(sync.node, []):
            if at < sync.begun and isinstance(change, Truncate):
                return True
            if at < sync.begun and isinstance(change, Write) and change.end > size_bytes:
                return True
        return False

    def _settle_names(self, directory: int, begun: int) -> None:
        for history in self._names.get(directory, {}).values():
            while len(history) > 1 and history[1].at < begun:
                del history[0]

    def _settle_node(self, node: int, begun: int) -> None:
        """Make all earlier changes of an inode durable."""
        left = []
        for at, change in self._pending.pop(node, []):
            if at >= begun:
                left.append((at, change))
                continue
            match change:
                case Write(_, offset, data):
                    self._content[node] = overwritten(self._content.get(node, b""), offset, data)
                case Truncate(_, size_bytes):
                    self._content[node] = cut(self._content.get(node, b""), size_bytes)
                case Attribute(_, key, value):
                    self._attributes.setdefault(node, {})[key] = value
        if left:
            self._pending[node] = left

    def sample(self, kind: str, rng: random.Random, extreme: str = "") -> Image:
        """Return a state that the disk may have if the power goes now."""
        if kind == ORDERED:
            return _Ordered(self, rng, extreme).image()
        return _Weakest(self, rng, extreme).image()

    @property
    def is_settled(self) -> bool:
        """Whether everything is durable, so that only one state is possible."""
        return not self._pending and all(
            len(history) == 1 for names in self._names.values() for history in names.values()
        )


class _Sample:
    """The base of both kinds: a series of single decisions makes the tree."""

    def __init__(self, disk: Disk, rng: random.Random, extreme: str) -> None:
        self._disk = disk
        self._rng = rng
        self._keeps_names = {"names only": True, "everything": True}.get(extreme, False)
        self._keeps_data = {"data only": True, "everything": True}.get(extreme, False)
        self._by_chance = not extreme
        # Half of the draws lose little or keep little; with even odds, hardly any draw would.
        self._odds = rng.choice((0.05, 0.5, 0.95))

    def _chance(self) -> bool:
        return self._rng.random() < self._odds

    def image(self) -> Image:
        disk = self._disk
        names = self._chosen_names()
        nodes = disk._journal.nodes
        content = dict(disk._content)
        attributes = {number: dict(found) for number, found in disk._attributes.items()}
        for number, pending in disk._pending.items():
            if stat.S_ISREG(nodes[number].kind):
                content[number] = self._content(content.get(number, b""), pending)
            self._keep_attributes(attributes.setdefault(number, {}), pending)
        for number, mtime_ns in disk._journal.mtimes.items():
            attributes.setdefault(number, {}).setdefault("mtime", mtime_ns)
        return Image(nodes, content, names, attributes)

    def _chosen_names(self) -> dict[int, dict[bytes, int]]:
        raise NotImplementedError

    def _content(self, base: bytes, pending: list[_Pending]) -> bytes:
        raise NotImplementedError

    def _keep_attributes(self, attributes: Attributes, pending: list[_Pending]) -> None:
        raise NotImplementedError


class _Ordered(_Sample):
    def __init__(self, disk: Disk, rng: random.Random, extreme: str) -> None:
        super().__init__(disk, rng, extreme)
        first = disk._committed
        if extreme:
            self._until = disk.passed if self._keeps_names else first
        else:
            self._until = rng.randint(first, disk.passed)

    def _chosen_names(self) -> dict[int, dict[bytes, int]]:
        found: dict[int, dict[bytes, int]] = {}
        for directory, names in self._disk._names.items():
            chosen = found[directory] = {}
            for name, history in names.items():
                node = [binding.node for binding in history if binding.at < self._until][-1:]
                if node and node[0] is not None:
                    chosen[name] = node[0]
        return found

    def _content(self, base: bytes, pending: list[_Pending]) -> bytes:
        """Return the writes up to a random moment; of the last write, some pages."""
        data = base
        changes = [change for change in pending if not isinstance(change[1], Attribute)]
        for number, (at, change) in enumerate(changes):
            if isinstance(change, Truncate) and at >= self._until:
                changes = changes[:number]  # later writes go to other blocks
                break
        if self._by_chance:
            count = self._rng.randint(0, len(changes))
        else:
            count = len(changes) if self._keeps_data else 0
        for _, change in changes[:count]:
            if isinstance(change, Write):
                data = overwritten(data, change.offset, change.data)
            elif isinstance(change, Truncate):
                data = cut(data, change.size_bytes)
        if self._by_chance and count < len(changes):
            change = changes[count][1]
            if isinstance(change, Write):
                data = self._torn(data, change)
        return data

    def _torn(self, data: bytes, change: Write) -> bytes:
        """Return the content: any existing page may be new; a file grows from its end."""
        for start, part in pieces(change, PAGE):
            is_inside = start + len(part) <= len(data)
            if self._chance():
                data = overwritten(data, start, part)
            elif not is_inside:
                break
        return data

    def _keep_attributes(self, attributes: Attributes, pending: list[_Pending]) -> None:
        for at, change in pending:
            if isinstance(change, Attribute) and at < self._until:
                attributes[change.key] = change.value


class _Weakest(_Sample):
    def _chosen_names(self) -> dict[int, dict[bytes, int]]:
        chosen: dict[tuple[int, bytes], int] = {}
        for directory, names in self._disk._names.items():
            for name, history in names.items():
                last = len(history) - 1
                if self._by_chance:
                    at = self._rng.randint(0, last) if self._chance() else 0
                else:
                    at = last if self._keeps_names else 0
                chosen[directory, name] = at
        self._keep_renamed(chosen)
        found: dict[int, dict[bytes, int]] = {number: {} for number in self._disk._names}
        for (directory, name), at in chosen.items():
            node = self._disk._names[directory][name][at].node
            if node is not None:
                found[directory][name] = node
        return found

    def _keep_renamed(self, chosen: dict[tuple[int, bytes], int]) -> None:
        """Keep a file's old name until its new name is there."""
        operations = self._disk._journal.operations
        changed = True
        while changed:
            changed = False
            for (directory, name), at in chosen.items():
                binding = self._disk._names[directory][name][at]
                moved = operations[binding.at] if binding.at >= 0 else None
                if (
                    binding.node is not None
                    or not isinstance(moved, Names)
                    or len(moved.changes) < 2
                ):
                    continue
                to_directory, to_name, _ = moved.changes[0]
                reached = self._disk._names[to_directory][to_name]
                if (
                    reached[chosen[to_directory, to_name]].at < binding.at
                    and reached[0].at < binding.at
                ):
                    chosen[directory, name] = max(0, at - 1)
                    changed = at > 0

    def _content(self, base: bytes, pending: list[_Pending]) -> bytes:
        data = base
        longest = len(base)
        how = self._rng.choice(("whole", "sectors", "pages", "begin"))
        for _, change in pending:
            if isinstance(change, Truncate):
                if self._by_chance and not self._chance():
                    continue
                if self._by_chance or self._keeps_data or self._keeps_names:
                    data, longest = cut(data, change.size_bytes), change.size_bytes
            elif isinstance(change, Write):
                longest = max(longest, change.end)
                data = self._part(data, change, how)
        if self._keeps_names and not self._keeps_data:
            return cut(data, longest)  # the length is durable, the bytes are not
        if self._by_chance and len(data) < longest and self._chance():
            rest = longest - len(data)
            data += bytes(rest) if self._chance() else self._rng.randbytes(rest)
        return data

    def _part(self, data: bytes, change: Write, how: str) -> bytes:
        if not self._by_chance:
            return overwritten(data, change.offset, change.data) if self._keeps_data else data
        if how == "whole":
            return overwritten(data, change.offset, change.data) if self._chance() else data
        if how == "begin":
            parts = list(pieces(change, SECTOR))
            for start, part in parts[: self._rng.randint(0, len(parts))]:
                data = overwritten(data, start, part)
            return data
        for start, part in pieces(change, SECTOR if how == "sectors" else PAGE):
            if self._chance():
                data = overwritten(data, start, part)
        return data

    def _keep_attributes(self, attributes: Attributes, pending: list[_Pending]) -> None:
        for _, change in pending:
            kept = self._chance() if self._by_chance else self._keeps_names
            if isinstance(change, Attribute) and kept:
                attributes[change.key] = change.value


def pieces(operation: Write, unit: int) -> Iterator[tuple[int, bytes]]:
    """Yield a write in the pieces that the disk writes atomically."""
    start, end = operation.offset, operation.end
    while start < end:
        stop = min(end, start - start % unit + unit)
        yield start, operation.data[start - operation.offset : stop - operation.offset]
        start = stop


def disks(journal: Journal) -> Iterator[Disk]:
    """Yield the same disk after each operation and at the end of each command."""
    disk = Disk(journal)
    yield disk
    while disk.passed < len(journal.operations):
        operation = disk.advance()
        if not isinstance(operation, Mark) or operation.what == "end":
            yield disk
