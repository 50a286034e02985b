"""Which paths a restore takes: ``--include`` and ``--exclude``.

The verdict about a path depends on the path alone, not on where the walk began. So the same verdict
also protects paths in the target from deletion.
"""

import enum
import os
from collections.abc import Sequence

from ciuic.errors import UsageError
from ciuic.source.exclusions import Exclusions

__all__ = ["Selection", "Verdict"]


class Verdict(enum.Enum):
    """Whether a restore takes a path."""

    LEFT_OUT = "left out"
    """Neither the path nor anything below it is taken."""
    PASSAGE = "passage"
    """The path is not taken; a path below it may be."""
    TAKEN = "taken"
    """The path is taken."""


class Selection:
    """The include and exclude patterns of a restore. Without patterns, every path is taken.

    A path is taken unless an exclude pattern matches it or a directory above it. If there are
    include patterns, at least one must match the path or a directory above it. Patterns have the
    syntax of ``exclude_patterns`` and are matched against absolute paths.

    Raises:
        UsageError: A pattern has a range that runs backwards.
    """

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include = _Patterns("--include", include)
        self._exclude = _Patterns("--exclude", exclude)
        self.any = bool(include or exclude)

    def verdict(self, path: bytes) -> Verdict:
        """Return the verdict about an absolute path."""
        verdict = self._top
        at = b"/"
        for name in path.split(b"/"):
            if name and verdict is not Verdict.LEFT_OUT:
                verdict = self.inner(at, name, verdict)
                at = os.path.join(at, name)
        return verdict

    def inner(self, directory_path: bytes, name: bytes, above: Verdict) -> Verdict:
        """Return the verdict about a name in a directory whose own verdict is ``above``."""
        if not self.any:
            return Verdict.TAKEN
        if above is Verdict.LEFT_OUT or self._exclude.match(directory_path, name):
            return Verdict.LEFT_OUT
        if above is Verdict.TAKEN:
            self._include.see(directory_path, name)
            return Verdict.TAKEN
        if self._include.match(directory_path, name):
            return Verdict.TAKEN
        is_way = self._include.may_match_below(os.path.join(directory_path, name))
        return Verdict.PASSAGE if is_way else Verdict.LEFT_OUT

    @property
    def unmatched(self) -> list[str]:
        """The options whose patterns have matched no path so far."""
        return self._include.unmatched + self._exclude.unmatched

    @property
    def text(self) -> str:
        """The options, as on the command line."""
        return " ".join([*self._include.options.values(), *self._exclude.options.values()])

    @property
    def _top(self) -> Verdict:
        return Verdict.PASSAGE if self._include.options else Verdict.TAKEN


class _Patterns:
    """The patterns of one option, and which of them have matched a path."""

    def __init__(self, option: str, patterns: Sequence[str]) -> None:
        self.options = {pattern: f"{option} '{pattern}'" for pattern in patterns}
        try:
            self._all = Exclusions(patterns)
            self._unmatched = {pattern: Exclusions([pattern]) for pattern in patterns}
        except ValueError as error:
            raise UsageError(
                f"{option}: {error}", hint="'ciuic restore --help' explains patterns."
            ) from (error)
        self._fixed = [_fixed_parts(os.fsencode(pattern)) for pattern in patterns]

    @property
    def unmatched(self) -> list[str]:
        """The options whose patterns have matched no path so far."""
        return [self.options[pattern] for pattern in self._unmatched]

    def match(self, directory_path: bytes, name: bytes) -> bool:
        if not self._all.any or not self._all.match_path(directory_path, name):
            return False
        self.see(directory_path, name)
        return True

    def see(self, directory_path: bytes, name: bytes) -> None:
        """Note which of the patterns without a match so far match this path."""
        matched = [
            pattern
            for pattern, rule in self._unmatched.items()
            if rule.match_path(directory_path, name)
        ]
        for pattern in matched:
            del self._unmatched[pattern]

    def may_match_below(self, path: bytes) -> bool:
        """Return whether a pattern may match a path below a directory: else it is not entered."""
        names = [name for name in path.split(b"/") if name]
        return any(_leads_below(parts, names) for parts in self._fixed)


def _fixed_parts(pattern: bytes) -> list[Exclusions] | None:
    """Return a rule for each part of an absolute pattern; None if it may match at any depth."""
    if not pattern.startswith(b"/") or b"**" in pattern or b"[" in pattern:
        return None
    return [Exclusions([os.fsdecode(part)]) for part in pattern.split(b"/") if part]


def _leads_below(parts: list[Exclusions] | None, names: list[bytes]) -> bool:
    """Return whether a pattern may match a path below the directory with these names."""
    if parts is None:
        return True
    if len(names) >= len(parts):
        return False
    return all(part.match_path(b"/", name) for part, name in zip(parts, names, strict=False))
