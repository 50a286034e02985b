"""How long one thread takes to encode chunks of training state, and to decode them.

    codec_speed.py EARLIER LATER CHAIN_COST

Run by the interpreter that ciuic is installed for. Cuts two files of tensors as a snapshot cuts
them, encodes all chunks of the later one, each alone and as a difference from the chunk at the
same place of the earlier one, and decodes what came of it. Prints one JSON object: for each step
the processor time in seconds, and how many plain bytes it was for.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ciuic import codec
from ciuic.chunking import TensorChunker
from ciuic.chunking.tensors import layout

CHUNK_BYTES = 1024 * 1024
Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Processor time of this thread in seconds, and what came of it."""
    began_s = time.thread_time()
    result = work()
    return time.thread_time() - began_s, result


def chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """A file's chunks, each after the width of its elements as far as it is told."""
    data = path.read_bytes()
    spans = layout(lambda at, count: data[at : at + count], len(data))
    if spans is None:
        raise SystemExit(f"{path} is no file of tensors")
    chunker = TensorChunker(spans, CHUNK_BYTES)
    at = 0
    while at < len(data):
        end = min(chunker.after(at), len(data))
        yield chunker.width_bytes(at), data[at:end]
        at = end


def steps(
    old: bytes, plain: bytes, width: int, chain_cost: float
) -> Iterator[tuple[str, float, bytes | memoryview]]:
    """What is done with one chunk: the step, its seconds, and what is decoded in the end."""
    size = len(plain)
    took_s, (number, stored) = timed(lambda: codec.encode(plain, width=width))
    yield "encode alone", took_s, plain
    yield "decode alone", *timed(lambda: codec.decode(number, stored, size))
    if len(old) != size:
        return
    # In memory: to have it from the store is a restore, which has rows of its own.
    reference = codec.Reference(lambda: old, 0, size)
    took_s, found = timed(lambda: codec.encode_delta(plain, [reference], chain_cost, width))
    if found is None:
        yield "encode delta, refused", took_s, plain
        return
    yield "encode delta", took_s, plain
    yield "decode delta", *timed(lambda: codec.decode(found.codec, found.stored, size, old))


def main(earlier: Path, later: Path, chain_cost: float) -> None:
    """Measures and prints."""
    # All modules are loaded before the clock starts.
    some = bytes(range(256)) * 4096
    codec.encode_delta(some, [codec.Reference(lambda: some[::-1], 0, len(some))], chain_cost)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for (_, old), (width, plain) in zip(chunks(earlier), chunks(later), strict=False):
        for step, took_s, again in steps(old, plain, width, chain_cost):
            if bytes(again) != plain:
                raise SystemExit(f"{step}: a chunk came back as something else")
            spent[step][0] += took_s
            spent[step][1] += len(plain)
    print(json.dumps(spent))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
