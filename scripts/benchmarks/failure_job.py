"""A training that dies in the middle of a save, for ``scripts/bench failure``.

    failure_job.py CHECKPOINT TIMES BYTES

Its first start writes a new checkpoint over the old one, notes the time and kills itself when BYTES
of it are written. Its second start notes the time and the hash of the checkpoint that it finds.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

BLOCK_BYTES = 1 << 20


def main() -> None:
    """Die, or look at what there is."""
    checkpoint, times, size_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    began_ns = time.time_ns()
    if times.exists():
        with checkpoint.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        document = json.loads(times.read_text()) | {"began_ns": began_ns, "sha256": found}
        times.write_text(json.dumps(document))
        return
    with checkpoint.open("r+b") as file:
        head = file.read(BLOCK_BYTES)  # of the format, which says how long the file should be
        file.seek(0)
        file.write(head)
        for _ in range(size_bytes // BLOCK_BYTES - 1):
            file.write(os.urandom(BLOCK_BYTES))
        file.truncate()
    times.write_text(json.dumps({"died_ns": time.time_ns()}))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
