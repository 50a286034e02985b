"""Repairs a pack by its parity, written from docs/format.md, "Parity and copies", without ciuic.

It is slow and short: one sector at a time, and arithmetic by a table of logarithms.
"""

import struct

from xxhash import xxh3_64_intdigest as xxh3

__all__ = ["DamagedError", "coefficient", "multiply", "read_header", "repair"]

HEADER = struct.Struct("<8sQIIIIQ32sQ")
EXP, LOG = [0] * 510, [0] * 256
_value = 1
for _power in range(255):
    EXP[_power] = EXP[_power + 255] = _value
    LOG[_value] = _power
    _value = (_value << 1) ^ (0x11D if _value & 0x80 else 0)


class DamagedError(Exception):
    """More is damaged than parity can repair."""


def multiply(a, b):
    return EXP[LOG[a] + LOG[b]] if a and b else 0


def inverse(a):
    return EXP[255 - LOG[a]]


def coefficient(segments, row, segment):
    return inverse((segments + row) ^ segment)


def times(data, factor):
    return data.translate(bytes(multiply(value, factor) for value in range(256)))


def plus(a, b):
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(len(a), "big")


def read_header(file, pack):
    for data in (file[: HEADER.size], file[-HEADER.size :]):
        if len(data) == HEADER.size and xxh3(data[:72]) == int.from_bytes(data[72:], "little"):
            magic, size, segments, rows, sector, code, segment, name, _ = HEADER.unpack(data)
            if (magic, code, name) == (b"CIUICPR1", 1, pack):
                return size, segments, rows, sector, segment
    raise DamagedError("no header")


def read_sums(file, at, count, pack):
    """Return one copy of the table, with None for each sum on a damaged page."""
    sums = []
    for page in range(-(-count // 511)):
        length = 8 * min(511, count - 511 * page)
        data = file[at : at + length]
        own = file[at + length : at + length + 8]
        good = len(own) == 8 and xxh3(pack + struct.pack("<Q", page) + data) == int.from_bytes(
            own, "little"
        )
        sums += struct.unpack(f"<{length // 8}Q", data) if good else [None] * (length // 8)
        at += length + 8
    return sums, at


def repair(damaged, file, pack):
    """Return the original pack, from what is left of it and of its parity file."""
    size, segments, rows, sector, segment = read_header(file, pack)
    in_pack, per = -(-size // sector), segment // sector
    count = in_pack + rows * per
    front, at = read_sums(file, HEADER.size, count, pack)
    at = -(-at // 4096) * 4096
    back, _ = read_sums(file, at + rows * segment, count, pack)
    sums = [a if a is not None else b for a, b in zip(front, back, strict=True)]
    whole = damaged[:size].ljust(segments * segment, b"\0")
    parity = file[at : at + rows * segment].ljust(rows * segment, b"\0")
    result = bytearray(whole)
    for place in range(per):
        words = [whole[(s * per + place) * sector :][:sector] for s in range(segments)]
        lost = []
        for number, data in enumerate(words):
            index = number * per + place
            if index < in_pack and xxh3(data[: min(sector, size - index * sector)]) != sums[index]:
                lost.append(number)
        checks = [parity[(r * per + place) * sector :][:sector] for r in range(rows)]
        used = [r for r in range(rows) if xxh3(checks[r]) == sums[in_pack + r * per + place]]
        if len(used) < len(lost):
            raise DamagedError(f"sector {place} of the segments")
        for number, data in zip(lost, solve(segments, words, lost, checks, used), strict=True):
            start = (number * per + place) * sector
            result[start : start + sector] = data
    return bytes(result[:size])


def solve(segments, words, lost, checks, used):
    """Solve by Gaussian elimination, with one equation for each lost sector."""
    equations = []
    for row in used[: len(lost)]:
        right = checks[row]
        for number, data in enumerate(words):
            if number not in lost:
                right = plus(right, times(data, coefficient(segments, row, number)))
        equations.append(([coefficient(segments, row, number) for number in lost], right))
    for step in range(len(lost)):
        pivot = next(i for i in range(step, len(lost)) if equations[i][0][step])
        equations[step], equations[pivot] = equations[pivot], equations[step]
        left, right = equations[step]
        factor = inverse(left[step])
        left, right = [multiply(value, factor) for value in left], times(right, factor)
        equations[step] = left, right
        for other in range(len(lost)):
            factor = equations[other][0][step]
            if other != step and factor:
                old, data = equations[other]
                new = [a ^ multiply(b, factor) for a, b in zip(old, left, strict=True)]
                equations[other] = new, plus(data, times(right, factor))
    return [right for _, right in equations]
