"""Following logs while programs write, rotate and truncate them."""

import gzip
import os
import random
import resource
import subprocess
import sys

import pytest

from ciuic.guard.logs.paths import log_files
from ciuic.guard.logs.tail import LINE_BYTES_MAX, Tail
from tests.kit.chance import drawn_seed


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.jsonl"


def added(tail: Tail) -> list[bytes]:
    return [line for lines in tail.read() for line in lines]


def append(path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_lines_count_when_they_are_complete(log) -> None:
    tail = Tail(os.fsencode(log), from_end=False)
    assert added(tail) == []
    log.write_bytes(b"one\ntw")
    assert added(tail) == [b"one"]
    assert added(tail) == []
    append(log, b"o\nthree\n")
    assert added(tail) == [b"two", b"three"]


def test_what_a_log_has_before_can_be_left_out(log) -> None:
    log.write_bytes(b"old\nolder\n")
    tail = Tail(os.fsencode(log), from_end=True)
    append(log, b"new\n")

    assert added(tail) == [b"new"]


@pytest.mark.parametrize("grown", [b"", b"x\n", b"other\nlines\nthan\nbefore\n" * 100])
def test_a_log_that_is_truncated_is_read_from_its_start(log, grown) -> None:
    log.write_bytes(b"one\ntwo\nthree\n")
    tail = Tail(os.fsencode(log), from_end=False)
    assert len(added(tail)) == 3
    os.truncate(log, 0)
    append(log, grown)

    assert added(tail) == grown.splitlines()
    assert tail.resets == 1


def test_a_rotated_log_is_read_to_its_end_and_then_the_new_one(log, tmp_path) -> None:
    log.write_bytes(b"one\n")
    tail = Tail(os.fsencode(log), from_end=False)
    assert added(tail) == [b"one"]
    append(log, b"two\n")
    with open(log, "ab") as writer:
        log.rename(tmp_path / "train.jsonl.1")
        log.write_bytes(b"four\n")
        assert added(tail) == [b"two", b"four"]
        writer.write(b"three, late\n")
    append(log, b"five\n")

    assert added(tail) == [b"three, late", b"five"]
    assert added(tail) == []


def test_a_log_that_is_gone_and_comes_back(log) -> None:
    log.write_bytes(b"one\n")
    tail = Tail(os.fsencode(log), from_end=False)
    added(tail)
    log.unlink()
    assert added(tail) == []
    log.write_bytes(b"two\n")
    assert added(tail) == [b"two"]


def test_a_named_pipe_or_a_directory_is_no_log(log) -> None:
    os.mkfifo(log)
    assert added(Tail(os.fsencode(log), from_end=False)) == []
    assert added(Tail(os.fsencode(log.parent), from_end=False)) == []


def test_any_pieces_in_any_blocks_give_the_same_lines(log) -> None:
    """Lines of any length up to the limit, cut at random places, including the ends of blocks."""
    chance = random.Random(drawn_seed())
    lengths = [chance.choice([0, 1, 50, 5000, 700_000, LINE_BYTES_MAX]) for _ in range(30)]
    lines = [bytes([65 + at]) * length for at, length in enumerate(lengths)]
    data = b"".join(line + b"\n" for line in lines)
    tail = Tail(os.fsencode(log), from_end=False)
    found: list[bytes] = []
    while data:
        size = chance.choice([1, 100, 64_000, 1_500_000])
        append(log, data[:size])
        data = data[size:]
        found += added(tail)

    assert found == lines
    assert tail.too_long == 0


def test_a_line_of_100_mb_is_left_out_without_being_held(log) -> None:
    """In a process of its own, whose memory must not grow by the line."""
    with open(log, "wb") as file:
        file.write(b"first\n")
        file.writelines(b"x" * 1_000_000 for _ in range(100))
        file.write(b"\nlast\n" + b"y" * (LINE_BYTES_MAX + 1) + b"\nvery last\n")
    program = f"""
import resource
from ciuic.guard.logs.tail import Tail
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tail = Tail({os.fsencode(log)!r}, from_end=False)
print([line for lines in tail.read() for line in lines], tail.too_long)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found, grown_kib = done.stdout.splitlines()

    assert found == "[b'first', b'last', b'very last'] 2"
    assert int(grown_kib) < 20_000


def test_descriptors_do_not_grow_with_rotations(log) -> None:
    tail = Tail(os.fsencode(log), from_end=False)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        log.unlink(missing_ok=True)
        log.write_bytes(b"%d\n" % number)
        assert added(tail) == [b"%d" % number]

    assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before
    tail.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pattern_names_the_logs_and_no_rotated_ones(tmp_path) -> None:
    for name in ("rank0.jsonl", "rank1.jsonl", "odd[1].jsonl"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "rank0.jsonl.1.gz").write_bytes(gzip.compress(b"{}"))
    (tmp_path / "rank9.jsonl").mkdir()
    top = os.fsencode(tmp_path)

    assert log_files([top + b"/rank*"]) == [top + b"/rank0.jsonl", top + b"/rank1.jsonl"]
    assert log_files([top + b"/odd[1].jsonl"]) == [top + b"/odd[1].jsonl"]
    assert log_files([top + b"/none.jsonl", top + b"/none*"]) == [top + b"/none.jsonl"]
