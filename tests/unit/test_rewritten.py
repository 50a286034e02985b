"""Which files count as rewritten in place, with files of real programs where possible."""

import random
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from ciuic.chunking import is_rewritten

MIB = 1024 * 1024


def says(path: Path) -> bool:
    data = path.read_bytes()
    return is_rewritten(lambda at, length: data[at : at + length])


def test_databases_count_as_rewritten_in_place(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "runs.db") as database:
        database.execute("CREATE TABLE run (id)")
    database.close()
    assert says(tmp_path / "runs.db")


@pytest.mark.parametrize("program", ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"])
def test_images_of_file_systems_count_as_rewritten_in_place(tmp_path: Path, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(400 * MIB)
    assert not is_rewritten(lambda _, length: bytes(length))
    subprocess.run([program, str(image)], check=True, capture_output=True, timeout=60)

    def read(at: int, length: int) -> bytes:
        with image.open("rb") as file:
            file.seek(at)
            return file.read(length)

    assert is_rewritten(read)


@pytest.mark.parametrize(
    ("at", "magic"),
    [
        (16, "dec0efbe"),
        (1, "9a5713"),
        (12, "61150600"),
        (12, "62310500"),
        (0, "894844460d0a1a0a"),
        (0, "514649fb00000003"),
        (0, "4b444d56"),
        (0, "7668647866696c65"),
        (64, "7f10dabe"),
        (0, "4c554b53babe0002"),
        (510, "55aa"),
        (536, "4c564d3220303031"),
        (0, b"TDB file\n".hex()),
    ],
)
def test_only_files_that_begin_like_such_files_count(at: int, magic: str) -> None:
    data = bytearray(random.Random(1).randbytes(80_000))
    data[510:512] = data[1080:1082] = b"ab"
    assert not is_rewritten(lambda start, length: bytes(data[start : start + length]))
    found = bytes.fromhex(magic)
    data[at : at + len(found)] = found
    assert is_rewritten(lambda start, length: bytes(data[start : start + length]))
    data[at] ^= 1
    assert not is_rewritten(lambda start, length: bytes(data[start : start + length]))


def test_a_file_that_has_become_shorter_does_not_count() -> None:
    assert not is_rewritten(lambda _start, _length: b"")
