"""Cuts files as section 20 of docs/format.md says, written from that page and without ciuic.

It is slow and short, because it follows the page's pseudocode line by line.
"""

import hashlib
import itertools

__all__ = ["cuts_by_content", "cuts_by_tensor", "gear"]

SMALL = 65_536
WORD = 2**64 - 1


def gear(byte):
    return int.from_bytes(hashlib.md5(bytes([byte]) * 64).digest()[:8], "big")


GEAR = [gear(byte) for byte in range(256)]


def cuts_by_content(data, masks, size, average, least):
    """Return the lengths of the chunks of a stretch. ``masks`` are by their number of bits."""
    lengths = []
    while data:
        lengths.append(first_chunk(data, masks, size, average, least))
        data = data[lengths[-1] :]
    return lengths


def first_chunk(data, masks, size, average, least):
    bits = average.bit_length() - 1
    hard, easy = masks[bits + 1], masks[bits - 1]
    n = len(data)
    if n <= least:
        return n
    center = average
    if n > size:
        n = size
    elif n < center:
        center = n
    h = 0
    for i in range(least // 2, n // 2):
        m = hard if i < center // 2 else easy
        h = ((h << 2) + (GEAR[data[2 * i]] << 1)) & WORD
        if h & (m << 1) & WORD == 0:
            return 2 * i
        h = (h + GEAR[data[2 * i + 1]]) & WORD
        if h & m == 0:
            return 2 * i + 1
    return n


def cuts_by_tensor(tensors, size, file_bytes):
    """Return the lengths of a file's chunks. ``tensors`` are first bytes and ends, in order."""
    bounds = [0]
    for first, end in stretches(tensors):
        bounds += [first, end]
    bounds.append(file_bytes)
    lengths = []
    for first, end in itertools.pairwise(bounds):
        lengths += [min(size, end - at) for at in range(first, end, size)]
    return lengths


def stretches(tensors):
    found, run = [], None
    for first, end in tensors:
        if run and (end - first >= SMALL or first - run[1] >= SMALL):
            found.append(run)
            run = None
        run = (run[0], end) if run else (first, end)
        if run[1] - run[0] >= SMALL:
            found.append(run)
            run = None
    return [*found, run] if run else found
