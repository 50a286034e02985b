"""The rules that exclude paths from a snapshot."""

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from typing import Final

from ciuic.model import ExcludeRules
from ciuic.source.directory import DirectoryHandle

__all__ = ["BY_MARK", "BY_PATTERN", "BY_SIZE", "CACHE_TAG", "Exclusions"]

_OPEN_TAG: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CACHE_TAG: Final = b"CACHEDIR.TAG"
_CACHE_SIGNATURE: Final = b"Signature: 8a477f597d28d172789f06886806bc55"
# At the start of a path component, "**/" matches any number of directories.
_DEEP: Final = rb"(?:(?<![^/])\*\*/|\*\*)"
_SET: Final = rb"\[([!^]?+)(\][^\]]*|[^\]]+)\]"
_MEMBERS: Final = rb".-.|."
BY_PATTERN: Final = "a pattern"
BY_SIZE: Final = "larger than the limit"
BY_MARK: Final = "the directory is marked by"


class Exclusions:
    """Decides which paths the configuration excludes.

    A pattern that begins with ``/`` matches absolute paths. A pattern with a ``/`` elsewhere
    matches the last components of a path, and any other pattern matches a name at any depth. ``*``
    and ``?`` don't match a ``/``, ``**`` does; ``[abc]`` and ``[!abc]`` are sets. An excluded
    directory is excluded with all its content.

    Of a marked directory, the snapshot has the entry and the mark only, so that the directory is
    still marked after a restore. The mark is CACHEDIR.TAG with its signature
    (https://bford.info/cachedir/), or any entry with a name from ``if_present``.

    Raises:
        ValueError: A pattern has a reversed range, or a marker is not a file name.
    """

    def __init__(self, rules: ExcludeRules | Sequence[str]) -> None:
        if not isinstance(rules, ExcludeRules):
            rules = ExcludeRules(tuple(rules))
        self.rules = rules
        self._markers = [_marker(name) for name in rules.if_present]
        self.has_marks = rules.caches or bool(self._markers)
        patterns = rules.patterns
        names, paths = [], []
        for pattern in patterns:
            raw = os.fsencode(pattern)
            bare = raw.rstrip(b"/") or b"/"
            if bare.startswith(b"/"):
                paths.append(_translated(bare))
            elif b"/" in bare:
                paths.append(_translated(b"**/" + bare))
            else:
                names.append(_translated(bare))
        self._names = _compiled(names)
        self._paths = _compiled(paths)
        self.any = bool(patterns)
        self.largest_bytes = rules.larger_than_bytes or None

    def match(self, directory: DirectoryHandle, name: bytes) -> bool:
        """Return whether a pattern excludes a name in a directory."""
        return self.match_path(directory.path, name)

    def match_path(self, directory_path: bytes, name: bytes) -> bool:
        """Return whether a pattern excludes a name in the directory of this path."""
        if self._names is not None and self._names.fullmatch(name):
            return True
        if self._paths is None:
            return False
        path = directory_path.rstrip(b"/") + b"/" + name
        return bool(self._paths.fullmatch(path))

    def pattern_of(self, directory_path: bytes, name: bytes) -> str:
        """Return the first pattern that excludes a name."""
        for pattern in self.rules.patterns:
            if Exclusions((pattern,)).match_path(directory_path, name):
                return pattern
        return "no pattern"

    def is_too_large(self, status: os.stat_result) -> bool:
        """Return whether a file is excluded for its size."""
        limit = self.largest_bytes
        return limit is not None and status.st_size > limit and stat.S_ISREG(status.st_mode)

    def mark(self, directory_fd: int) -> bytes | None:
        """Return the name that marks an open directory, whose content is then excluded."""
        for name in self._markers:
            with contextlib.suppress(OSError):
                os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
                return name
        return CACHE_TAG if self.rules.caches and _is_cache(directory_fd) else None


def _marker(name: str) -> bytes:
    if "/" in name or "\0" in name or name in {"", ".", ".."}:
        raise ValueError(f"the marker '{name}' is not the name of a file")
    return os.fsencode(name)


def _open_tag(directory_fd: int) -> int:
    # The kernel allows O_NOATIME only to the file's owner and to root.
    with contextlib.suppress(PermissionError):
        return os.open(CACHE_TAG, _OPEN_TAG | os.O_NOATIME, dir_fd=directory_fd)
    return os.open(CACHE_TAG, _OPEN_TAG, dir_fd=directory_fd)


def _is_cache(directory_fd: int) -> bool:
    """Return whether a directory has a readable CACHEDIR.TAG with the right signature."""
    try:
        fd = _open_tag(directory_fd)
    except OSError:
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        return is_file and os.read(fd, len(_CACHE_SIGNATURE)) == _CACHE_SIGNATURE
    except OSError:
        return False
    finally:
        os.close(fd)


def _compiled(patterns: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(patterns), re.DOTALL) if patterns else None


def _translated(pattern: bytes) -> bytes:
    """Translate a glob to a regular expression over bytes.

    If a name matches with a later place of the fixed part between two wildcards, it also matches
    with the first place. So an atomic group keeps the first place: with a dozen stars, backtracking
    would try every combination of places.
    The last wildcards are left to backtracking, which is faster for a few places.
    """
    stretches, at, parts = [], 0, [b""]
    deep = b""
    while at < len(pattern):
        found = re.compile(_DEEP).match(pattern, at)
        if found:
            stretches.append((deep, parts))
            deep = b"(?:.*/)?" if found[0].endswith(b"/") else b".*"
            parts, at = [b""], found.end()
        elif pattern[at : at + 1] == b"*":
            parts.append(b"")
            at += 1
        else:
            expression, at = _next_part(pattern, at)
            parts[-1] += expression
    out = b""
    for before, fixed in stretches:
        shortest = before.replace(b"*", b"*?").replace(b")?", b")??")
        out += b"(?>" + shortest + _first_places(fixed) + b")"
    sure = max(len(parts) - 2, 1)
    rest = b"".join([b"[^/]*" + part for part in parts[sure:]])
    return b"(?:" + out + deep + _first_places(parts[:sure]) + rest + b")"


def _first_places(parts: list[bytes]) -> bytes:
    return parts[0] + b"".join([b"(?>[^/]*?" + part + b")" for part in parts[1:]])


def _next_part(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Return the expression for the next character or set of a glob, and where that part ends."""
    first = pattern[at : at + 1]
    if first == b"?":
        return b"[^/]", at + 1
    found = re.compile(_SET).match(pattern, at) if first == b"[" else None
    if found is None:
        return re.escape(first), at + 1
    members = b"".join([_members(part[0]) for part in re.finditer(_MEMBERS, found[2], re.DOTALL)])
    return b"(?!/)[" + (b"^" if found[1] else b"") + members + b"]", found.end()


def _members(part: bytes) -> bytes:
    """Return the regular expression for a byte or a range of bytes in a set."""
    if len(part) == 1:
        return re.escape(part)
    first, last = part[:1], part[2:]
    if first > last:
        raise ValueError(
            f"the range {os.fsdecode(part)} in [...] is reversed; write the lower character first"
        )
    return re.escape(first) + b"-" + re.escape(last)
