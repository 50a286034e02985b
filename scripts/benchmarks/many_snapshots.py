"""Fills a store with snapshots of one small directory, in one process.

Runs with the interpreter that has ciuic. Arguments: the store, the directory, the number of
snapshots.
"""

import sys
from pathlib import Path

from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock


def main(store_path: str, directory: str, count: int) -> None:
    """Take `count` snapshots with one file rewritten before each."""
    request = TakeRequest(roots=(directory.encode(),))
    changing = Path(directory, "train.log")
    with open_store(store_path, write=True) as store:
        for number in range(count):
            changing.write_text(f"step {number}\n")
            take_snapshot(store, request, clock=SystemClock())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
