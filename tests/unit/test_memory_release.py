"""Which memory the process keeps, and which it returns to the system."""

import ctypes
import subprocess
import sys

import pytest

BLOCKS = """
import resource
from ciuic.system.buffers import give_back_holes, prepare_for_bulk

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

prepare_for_bulk()
blocks = [bytes([number]) * (1 << 20) for number in range(100)]
blocks[:-1] = [None] * 99
before = resident_bytes()
give_back_holes()
print(before, resident_bytes(), blocks[-1][0])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not the GNU C library")
def test_free_memory_between_blocks_is_returned_to_the_system():
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS], check=True, capture_output=True, text=True, timeout=60
    )

    before, after, last = map(int, done.stdout.split())

    assert before - after > 90 << 20
    assert last == 99


WAITING = """
import resource, sys
from ciuic.system.buffers import keep_little

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

if sys.argv[1] == "little":
    keep_little()
bytes(20 << 20)
before = resident_bytes()
blocks = [b"x" * 60_000 for _ in range(200)]
del blocks
print(resident_bytes() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not the GNU C library")
def test_a_process_that_waits_keeps_less_freed_memory_than_malloc_would():
    def kept_bytes(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", WAITING, how],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return int(done.stdout)

    assert kept_bytes("little") < 2 << 20
    assert kept_bytes("as it is") > 8 << 20
