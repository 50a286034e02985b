"""Making and changing the files for the rows about copy-on-write.

Guarantees: the bytes have no pattern that a tool could use, except where a function says so, and
never repeat earlier bytes. Sizes and offsets are the same on every machine.
"""

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
BLOCK_BYTES = 4096
STOCK_BYTES = 64 * MIB
PIECE_BYTES = 4 * MIB
SHARE = 0.01
APPENDED_BYTES = 10_000_000
GARBAGE_FILES = 2

Change = Callable[[Path, random.Random], None]


def noise(size_bytes: int, chance: random.Random) -> bytes:
    """Return incompressible bytes, the same for the same seed; faster than randbytes."""
    return hashlib.shake_128(chance.randbytes(16)).digest(size_bytes)


def write_files(directory: Path, count: int, size_bytes: int, chance: random.Random) -> None:
    """Write files of random bytes, all different."""
    directory.mkdir(exist_ok=True)
    for number in range(count):
        _write(directory / f"shard_{number:04d}.bin", size_bytes, chance)


def write_many(directory: Path, count: int, size_bytes: int, chance: random.Random) -> None:
    """Write files quickly, each from another offset of the same 64 MiB.

    A store may deduplicate nearly all of it; so these files are only for a freeze, which does not
    read them.
    """
    directory.mkdir(exist_ok=True)
    stock = noise(STOCK_BYTES, chance)
    for number in range(count):
        start = chance.randrange(STOCK_BYTES // MIB) * MIB
        with (directory / f"shard_{number:04d}.bin").open("wb") as out:
            while out.tell() < size_bytes:
                piece = stock[start : start + size_bytes - out.tell()]
                out.write(piece)
                start = 0


def change_stretch(path: Path, chance: random.Random) -> None:
    """Change one percent of the file in place, in one piece."""
    size_bytes = path.stat().st_size
    length = int(size_bytes * SHARE) // BLOCK_BYTES * BLOCK_BYTES
    with path.open("r+b", buffering=0) as file:
        file.seek(chance.randrange((size_bytes - length) // BLOCK_BYTES) * BLOCK_BYTES)
        file.write(noise(length, chance))


def change_scattered(path: Path, chance: random.Random) -> None:
    """Change one percent of the file's blocks of 4 KiB in place, anywhere."""
    blocks = path.stat().st_size // BLOCK_BYTES
    with path.open("r+b", buffering=0) as file:
        for number in sorted(chance.sample(range(blocks), int(blocks * SHARE))):
            os.pwrite(file.fileno(), noise(BLOCK_BYTES, chance), number * BLOCK_BYTES)


def append(path: Path, chance: random.Random) -> None:
    """Append ten megabytes, as to a log or a growing data set."""
    with path.open("ab", buffering=0) as file:
        file.write(noise(APPENDED_BYTES, chance))


def change_each(directory: Path, chance: random.Random) -> None:
    """Change one block of every file in place."""
    for path in sorted(directory.iterdir()):
        with path.open("r+b", buffering=0) as file:
            place = chance.randrange(path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES
            os.pwrite(file.fileno(), noise(BLOCK_BYTES, chance), place)


def change_one(directory: Path, chance: random.Random) -> None:
    """Change one percent of one of the files in place, in one piece."""
    change_stretch(chance.choice(sorted(directory.iterdir())), chance)


def ruin(directory: Path, chance: random.Random) -> None:
    """Delete every other file; overwrite the rest in place, from start to end."""
    for number, path in enumerate(sorted(directory.iterdir())):
        if number % GARBAGE_FILES:
            path.unlink()
        else:
            _overwrite(path, chance)


def _overwrite(path: Path, chance: random.Random) -> None:
    left = path.stat().st_size
    with path.open("r+b", buffering=0) as file:
        while left:
            left -= file.write(noise(min(left, PIECE_BYTES), chance))


def _write(path: Path, size_bytes: int, chance: random.Random) -> None:
    with path.open("wb", buffering=0) as file:
        while size_bytes:
            size_bytes -= file.write(noise(min(size_bytes, PIECE_BYTES), chance))
