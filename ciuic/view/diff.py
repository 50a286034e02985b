"""Comparing two snapshots."""

from collections.abc import Iterator
from typing import NamedTuple

from ciuic.model import Entry, ExcludeRules
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.view.content import has_same_bytes
from ciuic.view.located import inner_path, root_entry
from ciuic.view.locator import Locator
from ciuic.view.tree_walk import KEPT_MAX, Cursor, PathBudget, relax

__all__ = ["Change", "diff", "has_same_content"]


class Change(NamedTuple):
    """One difference between two snapshots.

    Attributes:
        sign: ``+`` added, ``-`` removed, ``M`` content changed, ``m`` metadata changed, ``T`` type
            changed, ``x`` left out of the second snapshot by its rules, ``?`` a root that one of
            the two snapshots could not read, or a file whose entry is damaged.
        path: Absolute.
        before: The entry in the first snapshot; None if it has none, or if nothing is known.
        after: The entry in the second snapshot; None as above.
    """

    sign: str
    path: bytes
    before: Entry | None
    after: Entry | None

    @property
    def size_before(self) -> int | None:
        """Bytes of the file in the first snapshot; None without an entry."""
        return None if self.before is None else self.before.size_bytes

    @property
    def size_after(self) -> int | None:
        """Bytes of the file in the second snapshot; None without an entry."""
        return None if self.after is None else self.after.size_bytes


def diff(store: Store, before: Manifest, after: Manifest) -> Iterator[Change]:
    """Yield the changes from one snapshot to the other, sorted by path within each root.

    A path that the rules of the second snapshot leave out is not called removed: the source may
    still have it.
    """
    if after.exclude == before.exclude or after.exclude == ExcludeRules():
        yield from _differences(store, before, after)
        return
    left_out = Locator(store, after).left_out
    for change in _differences(store, before, after):
        is_file = change.before is not None and change.before.is_file
        size_bytes = change.size_before if is_file else None
        is_left_out = change.sign == "-" and left_out.rule(change.path, size_bytes)
        yield change._replace(sign="x") if is_left_out else change


def has_same_content(store: Store, old: Entry, new: Entry) -> bool:
    """Return whether two entries that are not directories have equal bytes, targets or devices."""
    return _sign(store, old, new) in {"", "m"}


def _differences(store: Store, before: Manifest, after: Manifest) -> Iterator[Change]:
    old_roots = {root.path: root for root in before.roots}
    new_roots = {root.path: root for root in after.roots}
    for path in sorted(old_roots.keys() | new_roots.keys()):
        old, new = old_roots.get(path), new_roots.get(path)
        if (old is not None and not old.tree) or (new is not None and not new.tree):
            # The root could not be read. Its files must not look as if they were deleted.
            yield Change("?", path, None, None)
            continue
        yield from _compare(
            store,
            path,
            None if old is None else root_entry(store, old),
            None if new is None else root_entry(store, new),
        )


class _Pair(NamedTuple):
    """The entries of one name in two directories; None in the directory that lacks it."""

    name: bytes
    old: Entry | None
    new: Entry | None


class _Level(NamedTuple):
    """One directory in both snapshots.

    Attributes:
        path: Of the directory.
        cursors: Of the directories that exist.
        pairs: The entries of both, side by side.
    """

    path: bytes
    cursors: list[Cursor]
    pairs: Iterator[_Pair]


def _compare(store: Store, path: bytes, old: Entry | None, new: Entry | None) -> Iterator[Change]:
    """Yield the changes at a path and below it.

    Not by recursion: trees can be deeper than the stack.
    """
    budget = PathBudget(store.pack_lengths)
    levels = [_Level(path, [], iter([_Pair(b"", old, new)]))]
    while levels:
        level = levels[-1]
        pair = next(level.pairs, None)
        if pair is None:
            levels.pop()
            continue
        inside = inner_path(level.path, pair.name) if pair.name else path
        change = _change(store, inside, pair)
        if change is not None:
            yield change
        if _tree(pair.old) != _tree(pair.new):
            levels.append(_enter(store, inside, pair, len(levels) - 1, budget))
            relax([cursor for level in levels[-KEPT_MAX:] for cursor in level.cursors])


def _enter(store: Store, path: bytes, pair: _Pair, depth: int, budget: PathBudget) -> _Level:
    old = _cursor(store, pair.old, depth, budget)
    new = _cursor(store, pair.new, depth, budget)
    cursors = [cursor for cursor in (old, new) if cursor is not None]
    return _Level(path, cursors, _merged(old or iter(()), new or iter(())))


def _cursor(store: Store, entry: Entry | None, depth: int, budget: PathBudget) -> Cursor | None:
    if entry is None or not entry.is_directory or not entry.content:
        return None
    return Cursor(store.reader.node, entry, depth=depth, budget=budget)


def _tree(entry: Entry | None) -> tuple[bytes, int] | None:
    if entry is None or not entry.is_directory:
        return None
    return entry.content, entry.level


def _merged(old: Iterator[Entry], new: Iterator[Entry]) -> Iterator[_Pair]:
    """Yield the pairs of two directories, by name. Both iterators are sorted."""
    left, right = next(old, None), next(new, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.name < right.name):
            assert left is not None  # noqa: S101 - for the type checker: not both are None
            yield _Pair(left.name, left, None)
            left = next(old, None)
        elif left is None or right.name < left.name:
            yield _Pair(right.name, None, right)
            right = next(new, None)
        else:
            yield _Pair(left.name, left, right)
            left, right = next(old, None), next(new, None)


def _change(store: Store, path: bytes, pair: _Pair) -> Change | None:
    _, old, new = pair
    if old is not None and new is not None:
        sign = _sign(store, old, new)
        return Change(sign, path, old, new) if sign else None
    if new is not None:
        return Change("+", path, None, new)
    return Change("-", path, old, None) if old is not None else None


def _sign(store: Store, old: Entry, new: Entry) -> str:
    """Return the sign of a change between two entries; empty if they are the same."""
    if old.mode >> 12 != new.mode >> 12:
        return "T"
    if old.lacks_content or new.lacks_content:
        return "?"
    if not old.is_directory and (old.size_bytes, old.rdev) != (new.size_bytes, new.rdev):
        return "M"
    if not old.is_directory and old.content != new.content and not has_same_bytes(store, old, new):
        return "M"
    same = (old.mode, old.uid, old.gid, old.xattrs) == (new.mode, new.uid, new.gid, new.xattrs)
    moved = old.mtime_ns != new.mtime_ns and not old.is_directory
    return "" if same and not moved else "m"
