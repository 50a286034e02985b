"""Rules over logs that are complete: where they would have fired.

The lines of several files are taken in the order of their steps, as if the ranks had logged at the
same pace.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ciuic.errors import UsageError
from ciuic.guard.logs.records import Decoder, Record
from ciuic.guard.logs.tail import Tail
from ciuic.guard.rules.language import Rule
from ciuic.guard.rules.watching import Finding, Watching

__all__ = ["FOUND_MAX", "replay"]

FOUND_MAX: Final = 100_000


def replay(
    rules: Sequence[Rule], paths: Sequence[bytes], *, read: Callable[[int, bytes], None]
) -> tuple[Watching, list[Finding], int]:
    """Run rules over whole logs.

    Args:
        rules: The rules.
        paths: The logs.
        read: Called with the bytes that were read so far, and the path.

    Returns:
        The state after the last line, the first ``FOUND_MAX`` findings, and the number of lines
        that were left out because of their length.

    Raises:
        UsageError: A log cannot be read.
    """
    for path in paths:
        _check(path)
    watching = Watching(rules)
    tails = [Tail(path, from_end=False) for path in paths]
    found: list[Finding] = []
    try:
        if len(tails) == 1:
            size_bytes = 0
            for lines in _blocks(tails[0]):
                found += watching.lines(0, lines)
                size_bytes += sum(map(len, lines)) + len(lines)
                read(size_bytes, paths[0])
                del found[FOUND_MAX:]
        else:
            for file, record in _by_step([_records(tail, watching.decoder) for tail in tails]):
                found += watching.record(file, record)
                del found[FOUND_MAX:]
    finally:
        for tail in tails:
            tail.close()
    return watching, found, sum(tail.too_long for tail in tails)


def _check(path: bytes) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(
            f"the log {os.fsdecode(path)!r} cannot be read: {os.strerror(error.errno or 0)}",
            hint="Name a file with a JSON object in each line.",
        ) from error
    try:
        if not os.path.isfile(f"/proc/self/fd/{fd}"):
            raise UsageError(
                f"the log {os.fsdecode(path)!r} is not a regular file",
                hint="Name a file with a JSON object in each line.",
            )
    finally:
        os.close(fd)


def _blocks(tail: Tail) -> Iterator[list[bytes]]:
    yield from tail.read()
    yield tail.rest()


def _records(tail: Tail, decoder: Decoder) -> Iterator[Record]:
    for lines in _blocks(tail):
        for line in lines:
            record = decoder.decode(line)
            if record is not None:
                yield record


def _by_step(files: Sequence[Iterator[Record]]) -> Iterator[tuple[int, Record]]:
    """Yield the records of all files, always from the file with the earliest next step."""
    heads = {number: record for number, file in enumerate(files) if (record := next(file, None))}
    while heads:
        number = min(heads, key=lambda one: (heads[one].step, one))
        record = heads[number]
        yield number, record
        following = next(files[number], None)
        if following is None:
            del heads[number]
        else:
            heads[number] = following
