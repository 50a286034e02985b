"""Numpy and the compiled core work on the same random inputs, and must answer the same.

Each input goes to the functions that a snapshot and a restore call, without the core and with it:
plain C, and all vector instructions of this processor. Most are short, because the hard cases are
the ends of buffers and the remainders of vectors. The answers to damage, bytes or a sentence, are
compared as well. Inputs are made and worked on in batches, a core at a time.
"""

import functools
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from mmap import mmap

import numpy as np

from ciuic.codec import columns, dense_delta, planes, sparse_delta
from ciuic.codec.plan import PAIRS, RAW, ZSTD, Column, DeltaPlan, Plan
from ciuic.errors import CorruptionError
from ciuic.store.parity.galois import Coder
from ciuic.store.parity.parity_writer import ParityMaker
from ciuic.store.parity.shape import Shape
from ciuic.system.core import Core
from ciuic.system.hashing import checksums
from tests.kit.cores import using

__all__ = ["CASES", "DifferenceError", "compare"]

BATCH = 500
Work = Callable[[Core | None], object]


class DifferenceError(Exception):
    """A core gives another answer than numpy; the text names the input."""


def some_bytes(chance: random.Random, longest: int = 8000) -> bytes:
    """Noise, zeros, few values or numbers; nine in ten are at most 100 bytes."""
    size = chance.randrange(101) if chance.randrange(10) else chance.randrange(longest)
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(size)
    if kind == 1:
        return bytes(size)
    if kind == 2:
        return bytes(chance.choices(range(100, 120), k=size))
    numbers = np.frombuffer(chance.randbytes(size + 4)[: (size + 4) // 2 * 2], "<u2")
    return ((numbers & 0x81FF) | 0x3C00).astype("<u2").tobytes()[:size]


def damaged(chance: random.Random) -> Callable[[bytes], bytes]:
    """A function that flips a bit, cuts, or appends a byte: for every core at the same place."""
    kind, place, bit = chance.randrange(4), chance.random(), chance.randrange(8)

    def damage(stored: bytes) -> bytes:
        at = int(place * len(stored))
        if kind == 0:
            return stored[:at]
        if kind == 1:
            return stored + b"\0"
        flipped = bytearray(stored)
        flipped[at] ^= 1 << bit
        return bytes(flipped)

    return damage


def outcome(decode: Callable[..., object], *arguments: object) -> object:
    """What a decoder returns, or the sentence with which it refuses."""
    try:
        found = decode(*arguments)
    except CorruptionError as error:
        return str(error)
    return bytes(found) if isinstance(found, memoryview) else found


def column_of(chance: random.Random, width: int) -> Column:
    codings = (RAW, RAW, PAIRS, PAIRS, ZSTD) if width == 1 else (RAW, RAW, ZSTD)
    return Column(width, chance.choice(codings), chance.randrange(256))


def planes_case(chance: random.Random) -> Work:
    """Numbers in columns: split, joined, matched; the same with damage."""
    plain, width = some_bytes(chance), chance.choice((2, 4, 8))
    wide = {2: [], 4: [2], 8: chance.choice(([2, 4], [4, 2], [1, 1, 4], [2, 2, 2], [1] * 6))}
    found = [column_of(chance, size) for size in (*wide[width], 1, 1)]
    plan = Plan(width, chance.randrange(min(width, len(plain) + 1)), tuple(found), 1.0)
    damage = damaged(chance)

    def work(_: Core | None) -> object:
        stored = bytes(planes.encode(plain, plan))
        again = outcome(planes.decode, memoryview(stored), len(plain))
        hostile = memoryview(damage(stored))
        refused = outcome(planes.decode, hostile, len(plain))
        return stored, again == plain, refused, outcome(planes.matches, hostile, plain)

    return work


def deltas_case(chance: random.Random) -> Work:
    """Differences of numbers in classes: sorted and joined; the same with damage."""
    base, width = some_bytes(chance), chance.choice((2, 4, 8))
    plain = bytearray(base)
    for _ in range(chance.randrange(40) if base else 0):
        plain[chance.randrange(len(base))] = chance.randrange(256)
    cuts = bytes(sorted(chance.sample(range(256), chance.choice((0, 0, 1, 2, 7)))))
    columns_of = [tuple(column_of(chance, 1) for _ in range(width)) for _ in range(len(cuts) + 1)]
    classes = [(chance.randrange(8 * width), Plan(width, 0, one, 1.0)) for one in columns_of]
    skip = chance.randrange(min(width, len(base) + 1))
    plan, damage = DeltaPlan(width, skip, cuts, tuple(classes), 1.0), damaged(chance)

    def work(_: Core | None) -> object:
        stored = bytes(dense_delta.encode(bytes(plain), base, plan))
        again = outcome(dense_delta.decode, memoryview(stored), len(base), base)
        refused = outcome(dense_delta.decode, memoryview(damage(stored)), len(base), base)
        return stored, again == plain, refused

    return work


def sparse_case(chance: random.Random) -> Work:
    """The few elements that changed: found and put back; the same with damage."""
    base, width = some_bytes(chance, 70_000), chance.choice(sparse_delta.WIDTHS)
    plain = bytearray(base)
    for _ in range(chance.choice((0, 1, 5, 20)) if base else 0):
        plain[chance.randrange(len(base))] = chance.randrange(256)
    skip = chance.randrange(min(width, len(base) + 1))
    damage = damaged(chance)

    def work(_: Core | None) -> object:
        encoded = sparse_delta.encode(bytes(plain), base, width, skip)
        if encoded is None:
            return None
        stored = bytes(encoded)
        again = outcome(sparse_delta.decode, memoryview(stored), len(base), base)
        refused = outcome(sparse_delta.decode, memoryview(damage(stored)), len(base), base)
        return stored, again == plain, refused

    return work


def tally_case(chance: random.Random) -> Work:
    """How the bytes of a sample are spread."""
    sample, width = some_bytes(chance), chance.choice((2, 4, 8))
    skip = chance.randrange(min(8, len(sample) + 1))

    def work(compiled: Core | None) -> object:
        if compiled is None:
            return columns.tally(sample, width, skip)
        return compiled.functions.planes_tally(width, sample, skip)

    return work


def checksums_case(chance: random.Random) -> Work:
    """Checksums of the whole sectors of some bytes."""
    data, step = some_bytes(chance) * 8, chance.randrange(241, 1500)
    whole = len(data) // step

    def work(compiled: Core | None) -> object:
        if compiled is None:
            return list(checksums(data, step))[:whole]
        sums = array("Q", bytes(8 * whole))
        if whole:
            compiled.functions.sector_sums(compiled.targets, data, step, sums)
        return list(sums)

    return work


def galois_case(chance: random.Random) -> Work:
    """Rows of parity of a few segments."""
    size = chance.randrange(300)
    segments = [chance.randbytes(size) for _ in range(chance.randrange(1, 7))]
    count = chance.randrange(1, 10)

    def work(compiled: Core | None) -> object:
        coder = Coder(len(segments), count, compiled)
        rows = [bytearray(size) for _ in range(count)]
        for number, segment in enumerate(segments):
            coder.add(number, memoryview(segment), [memoryview(row) for row in rows])
        return rows

    return work


def parity_case(chance: random.Random) -> Work:
    """The parity file of a small pack that arrives in pieces of whole sectors."""
    sector, rows = chance.choice((256, 512)), chance.randrange(1, 6)
    shape = Shape(chance.randrange(1, 20), rows, sector, sector * chance.randrange(1, 4))
    data = chance.randbytes(chance.randrange(shape.segments * shape.segment_bytes + 1))
    step = sector * chance.randrange(1, 16)

    def work(compiled: Core | None) -> object:
        maker, buffer = ParityMaker(shape, compiled), mmap(-1, step)
        for at in range(0, len(data), step):
            part = data[at : at + step]
            buffer[: len(part)] = part
            maker.add(buffer, len(part))
        return [bytes(piece) for piece in maker.pieces(bytes(32))]

    return work


CASES: dict[str, Callable[[random.Random], Work]] = {
    "planes": planes_case,
    "deltas": deltas_case,
    "sparse": sparse_case,
    "tally": tally_case,
    "checksums": checksums_case,
    "galois": galois_case,
    "parity": parity_case,
}


def compare(count: int, seed: int, cores: list[Core]) -> Iterator[Counter[str]]:
    """Compare ``count`` inputs; after each batch tells how many there were of each kind.

    Raises:
        DifferenceError: At the first input that a core and numpy answer differently.
    """
    done: Counter[str] = Counter()
    for begin in range(0, count, BATCH):
        numbers = range(begin, min(begin + BATCH, count))
        kinds = [list(CASES)[number % len(CASES)] for number in numbers]
        works = [
            CASES[kind](random.Random(f"{seed} {number}"))
            for kind, number in zip(kinds, numbers, strict=True)
        ]
        expected = _answers(works, None)
        for compiled in cores:
            found = _answers(works, compiled)
            for number, kind, one, other in zip(numbers, kinds, expected, found, strict=True):
                if one != other:
                    text = f"{kind}, seed {seed}, input {number}, vectors {compiled.targets}"
                    raise DifferenceError(text)
        done.update(kinds)
        yield done


def _answers(works: list[Work], compiled: Core | None) -> list[object]:
    with using(compiled):
        return list(map(functools.partial(_answer, compiled), works))


def _answer(compiled: Core | None, work: Work) -> object:
    return work(compiled)
