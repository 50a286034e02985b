"""Trains a small transformer endlessly; needs PyTorch. ``scripts/bench training`` reads its output.

    training_loop.py TEXT TARGET --width N --layers N --batch N --seed N

Guarantees: each iteration reads its text from the disk, past the page cache. All cores compute, or
the GPU if there is one. On SIGUSR1, it ends its iteration, saves model and optimizer with
``torch.save`` into TARGET, by a rename, and keeps the last three. It prints a JSON object per
iteration: when it ended (monotonic, seconds), how long it took, and whether it saved.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.train import CONTEXT, build_model, loss_of

# Type checkers run without PyTorch.
torch: Any = importlib.import_module("torch")

KEPT = 3
BLOCK_BYTES = 256 * 1024


class Blocks(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Random blocks of a file, read from the disk each time."""

    def __init__(self, text: Path) -> None:
        self.text = text

    def __iter__(self) -> Iterator[Any]:
        fd = os.open(self.text, os.O_RDONLY)
        blocks = os.fstat(fd).st_size // BLOCK_BYTES - 1
        while True:
            offset = int(torch.randint(blocks, ())) * BLOCK_BYTES
            data = os.pread(fd, BLOCK_BYTES, offset)
            os.posix_fadvise(fd, offset, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
            yield torch.frombuffer(bytearray(data), dtype=torch.uint8)


def save(target: Path, number: int, state: dict[str, Any]) -> None:
    """Save a state under its number, and remove the one that is no longer kept."""
    torch.save(state, target / "saving")
    (target / "saving").rename(target / f"step-{number}.pt")
    (target / f"step-{number - KEPT}.pt").unlink(missing_ok=True)


def main() -> None:
    """Train until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("target", type=Path)
    for name in ("width", "layers", "batch", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    # Between two steps, so that the loader's process ends without errors.
    ends, asked = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    signal.signal(signal.SIGUSR1, lambda *_: asked.set())
    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = build_model(options.width, options.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = iter(torch.utils.data.DataLoader(Blocks(options.text), batch_size=None, num_workers=1))
    log = (options.target / "log.jsonl").open("a", buffering=1)
    step = saves = 0
    while not ends.is_set():
        began_s = time.monotonic()
        block = next(loader)
        optimizer.zero_grad()
        loss = loss_of(model, block[: 64 * CONTEXT].to(device), options.batch)
        loss.backward()
        optimizer.step()
        value = float(loss.detach())  # waits for the GPU
        step += 1
        log.write(json.dumps({"step": step, "loss": value}) + "\n")
        ended_s = time.monotonic()
        is_asked = asked.is_set()
        if is_asked:
            asked.clear()
            saves += 1
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(options.target, saves, state)
        line = {"at": ended_s, "took_s": ended_s - began_s, "saved": is_asked}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
