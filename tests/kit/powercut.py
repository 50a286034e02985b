"""What a disk may hold after the power went, at any moment of a recorded run.

Two kinds of file systems. ``ORDERED`` is what ext4 does by default: changes of names, lengths and
modes reach the disk in the order in which they were made, any fsync takes all earlier ones with it,
and a file that grows shows no bytes that were not written to it. ``WEAKEST`` is all that POSIX
promises: what was not synced is there or not, each name and each sector by itself, in any order;
where a length is there and its bytes are not, anything may stand. Only two things hold in it that
POSIX leaves open: a name is never torn, and a rename does not lose the file under both names.
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
"""Of what was not synced: the states that most mistakes show in. Others are drawn by chance."""

_Pending = tuple[int, Operation]


class _Name(NamedTuple):
    """What a name meant from some operation on."""

    at: int
    node: int | None


class Disk:
    """A disk while operations go by: what is durable, and what may or may not be.

    Attributes:
        passed: How many operations have gone by.
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
        """The next operation goes by."""
        one = self._journal.operations[self.passed]
        at, self.passed = self.passed, self.passed + 1
        match one:
            case Names(changes):
                for directory, name, node in changes:
                    names = self._names.setdefault(directory, {})
                    names.setdefault(name, [_Name(-1, None)]).append(_Name(at, node))
            case Write(node) | Truncate(node) | Attribute(node):
                self._pending.setdefault(node, []).append((at, one))
            case Sync():
                self._settle(one)
        return one

    def _settle(self, sync: Sync) -> None:
        if sync.node is None:
            directories, nodes = [*self._names], [*self._pending]
        else:
            directories = [sync.node] if sync.node in self._names else []
            nodes = [sync.node]
        # In place and without a new length, fdatasync leaves ext4's journal of names alone.
        if not sync.data_only or directories or self._grows(sync):
            self._committed = max(self._committed, sync.begun)
        for number in directories:
            self._settle_names(number, sync.begun)
        for number in nodes:
            self._settle_node(number, sync.begun)

    def _grows(self, sync: Sync) -> bool:
        assert sync.node is not None
        size_bytes = len(self._content.get(sync.node, b""))
        for at, one in self._pending.get(sync.node, []):
            if at < sync.begun and isinstance(one, Truncate):
                return True
            if at < sync.begun and isinstance(one, Write) and one.end > size_bytes:
                return True
        return False

    def _settle_names(self, directory: int, begun: int) -> None:
        for history in self._names.get(directory, {}).values():
            while len(history) > 1 and history[1].at < begun:
                del history[0]

    def _settle_node(self, node: int, begun: int) -> None:
        """What was done to an inode before is durable, and nobody can tell it from the rest."""
        left = []
        for at, one in self._pending.pop(node, []):
            if at >= begun:
                left.append((at, one))
                continue
            match one:
                case Write(_, offset, data):
                    self._content[node] = overwritten(self._content.get(node, b""), offset, data)
                case Truncate(_, size_bytes):
                    self._content[node] = cut(self._content.get(node, b""), size_bytes)
                case Attribute(_, key, value):
                    self._attributes.setdefault(node, {})[key] = value
        if left:
            self._pending[node] = left

    def sample(self, kind: str, rng: random.Random, extreme: str = "") -> Image:
        """One thing that the disk may hold if the power goes now."""
        if kind == ORDERED:
            return _Ordered(self, rng, extreme).image()
        return _Weakest(self, rng, extreme).image()

    @property
    def is_settled(self) -> bool:
        """Everything that was done is durable: the disk can hold one thing only."""
        return not self._pending and all(
            len(history) == 1 for names in self._names.values() for history in names.values()
        )


class _Sample:
    """What both kinds have in common: the tree is made of single decisions."""

    def __init__(self, disk: Disk, rng: random.Random, extreme: str) -> None:
        self._disk = disk
        self._rng = rng
        self._keeps_names = {"names only": True, "everything": True}.get(extreme, False)
        self._keeps_data = {"data only": True, "everything": True}.get(extreme, False)
        self._by_chance = not extreme
        # Half of the draws lose a little or keep a little; even odds would show neither.
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
                node = [one.node for one in history if one.at < self._until][-1:]
                if node and node[0] is not None:
                    chosen[name] = node[0]
        return found

    def _content(self, base: bytes, pending: list[_Pending]) -> bytes:
        """Writes in order up to some moment; of the last one some pages."""
        data = base
        changes = [one for one in pending if not isinstance(one[1], Attribute)]
        for number, (at, one) in enumerate(changes):
            if isinstance(one, Truncate) and at >= self._until:
                changes = changes[:number]  # what comes after it goes to blocks of its own
                break
        if self._by_chance:
            count = self._rng.randint(0, len(changes))
        else:
            count = len(changes) if self._keeps_data else 0
        for _, one in changes[:count]:
            if isinstance(one, Write):
                data = overwritten(data, one.offset, one.data)
            elif isinstance(one, Truncate):
                data = cut(data, one.size_bytes)
        if self._by_chance and count < len(changes):
            one = changes[count][1]
            if isinstance(one, Write):
                data = self._torn(data, one)
        return data

    def _torn(self, data: bytes, one: Write) -> bytes:
        """Of bytes that were there before any page may be new; a file grows from its end."""
        for start, part in pieces(one, PAGE):
            is_inside = start + len(part) <= len(data)
            if self._chance():
                data = overwritten(data, start, part)
            elif not is_inside:
                break
        return data

    def _keep_attributes(self, attributes: Attributes, pending: list[_Pending]) -> None:
        for at, one in pending:
            if isinstance(one, Attribute) and at < self._until:
                attributes[one.key] = one.value


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
        """A file's old name does not go before its new one has come."""
        operations = self._disk._journal.operations
        changed = True
        while changed:
            changed = False
            for (directory, name), at in chosen.items():
                one = self._disk._names[directory][name][at]
                moved = operations[one.at] if one.at >= 0 else None
                if one.node is not None or not isinstance(moved, Names) or len(moved.changes) < 2:
                    continue
                to_directory, to_name, _ = moved.changes[0]
                reached = self._disk._names[to_directory][to_name]
                if reached[chosen[to_directory, to_name]].at < one.at and reached[0].at < one.at:
                    chosen[directory, name] = max(0, at - 1)
                    changed = at > 0

    def _content(self, base: bytes, pending: list[_Pending]) -> bytes:
        data = base
        longest = len(base)
        how = self._rng.choice(("whole", "sectors", "pages", "begin"))
        for _, one in pending:
            if isinstance(one, Truncate):
                if self._by_chance and not self._chance():
                    continue
                if self._by_chance or self._keeps_data or self._keeps_names:
                    data, longest = cut(data, one.size_bytes), one.size_bytes
            elif isinstance(one, Write):
                longest = max(longest, one.end)
                data = self._part(data, one, how)
        if self._keeps_names and not self._keeps_data:
            return cut(data, longest)  # its length is there, and its bytes are not
        if self._by_chance and len(data) < longest and self._chance():
            rest = longest - len(data)
            data += bytes(rest) if self._chance() else self._rng.randbytes(rest)
        return data

    def _part(self, data: bytes, one: Write, how: str) -> bytes:
        if not self._by_chance:
            return overwritten(data, one.offset, one.data) if self._keeps_data else data
        if how == "whole":
            return overwritten(data, one.offset, one.data) if self._chance() else data
        if how == "begin":
            parts = list(pieces(one, SECTOR))
            for start, part in parts[: self._rng.randint(0, len(parts))]:
                data = overwritten(data, start, part)
            return data
        for start, part in pieces(one, SECTOR if how == "sectors" else PAGE):
            if self._chance():
                data = overwritten(data, start, part)
        return data

    def _keep_attributes(self, attributes: Attributes, pending: list[_Pending]) -> None:
        for _, one in pending:
            kept = self._chance() if self._by_chance else self._keeps_names
            if isinstance(one, Attribute) and kept:
                attributes[one.key] = one.value


def pieces(one: Write, unit: int) -> Iterator[tuple[int, bytes]]:
    """A write, cut where the disk may cut it."""
    start, end = one.offset, one.end
    while start < end:
        stop = min(end, start - start % unit + unit)
        yield start, one.data[start - one.offset : stop - one.offset]
        start = stop


def disks(journal: Journal) -> Iterator[Disk]:
    """One disk, given out after each operation and when a command has ended."""
    disk = Disk(journal)
    yield disk
    while disk.passed < len(journal.operations):
        one = disk.advance()
        if not isinstance(one, Mark) or one.what == "end":
            yield disk
