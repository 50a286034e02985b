"""The time one thread takes to encode chunks of training state, and to decode them.

    codec_speed.py EARLIER LATER CHAIN_COST

Runs with the interpreter that ciuic is installed for. Cuts two files of tensors as a snapshot does.
Encodes each chunk of the later file without a base and as a delta against the chunk at the same
offset of the earlier file, and decodes both. Prints one JSON object: for each step the processor
time in seconds, and the number of plain bytes.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ciuic import codec
from ciuic.chunking import TensorChunker
from ciuic.formats.spans import layout

CHUNK_BYTES = 1024 * 1024
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class InMemory:
    """A delta base in memory: reading it from the store is a restore, which has rows of its own."""

    plain: bytes
    worth_bytes: int
    cost_bytes: int = 0
    bytes_min: int = 0

    def read(self) -> bytes:
        """Return the bytes."""
        return self.plain


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the processor time of this thread in seconds, and the result."""
    began_s = time.thread_time()
    result = work()
    return time.thread_time() - began_s, result


def chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield a file's chunks, each after the width of its elements, if it is known."""
    data = path.read_bytes()
    spans = layout(lambda at, count: data[at : at + count], len(data))
    if spans is None:
        raise SystemExit(f"{path} is not a file of tensors")
    chunker = TensorChunker(spans, CHUNK_BYTES)
    at = 0
    while at < len(data):
        end = min(chunker.after(at), len(data))
        yield chunker.width_bytes(at), data[at:end]
        at = end


def steps(
    old: bytes, plain: bytes, width: int, chain_cost: float
) -> Iterator[tuple[str, float, bytes | memoryview]]:
    """Yield each step for one chunk: its name, its seconds, and the decoded bytes."""
    size = len(plain)
    took_s, (number, stored) = timed(lambda: codec.encode(plain, width=width))
    yield "encode alone", took_s, plain
    yield "decode alone", *timed(lambda: codec.decode(number, stored, size))
    if len(old) != size:
        return
    delta_base = InMemory(old, size)
    took_s, found = timed(lambda: codec.encode_delta(plain, [delta_base], chain_cost, width))
    if found is None:
        yield "encode delta, refused", took_s, plain
        return
    yield "encode delta", took_s, plain
    yield "decode delta", *timed(lambda: codec.decode(found.codec, found.stored, size, old))


def main(earlier: Path, later: Path, chain_cost: float) -> None:
    """Measure and print."""
    # All modules are loaded before the clock starts.
    some = bytes(range(256)) * 4096
    codec.encode_delta(some, [InMemory(some[::-1], len(some))], chain_cost)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for (_, old), (width, plain) in zip(chunks(earlier), chunks(later), strict=False):
        for step, took_s, again in steps(old, plain, width, chain_cost):
            if bytes(again) != plain:
                raise SystemExit(f"{step}: a chunk was decoded to other bytes")
            spent[step][0] += took_s
            spent[step][1] += len(plain)
    print(json.dumps(spent))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
