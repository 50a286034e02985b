"""Trains one kind of model, and saves it as checkpoints and as a chain; needs PyTorch and ciuic.

    library_scale_run.py KIND TEXT TARGET --width N --layers N --batch N --every N

Prints one JSON object: for each channel the bytes of the checkpoints and of the store, and the
seconds of a load from each. Every load is compared with the state that was saved, bit for bit.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import evict

__all__ = ["CHANNELS", "KINDS", "SAVES", "SAVES_PER_CHECKPOINT"]

KINDS: Final = {
    "all": "all parameters train (AdamW, fp32)",
    "few": "the head and the norms train, the rest is frozen",
}
CHANNELS: Final = ("full", "weights")
SAVES: Final = 32
SAVES_PER_CHECKPOINT: Final = 8
LOADS: Final = 3
TRAINED: Final = ("head", "norm")
"""What the names of the parameters have that train in the second kind."""


class Channel:
    """One part of the state, saved in both ways.

    Args:
        name: ``full`` or ``weights``.
        target: A directory.
        layers: The layers of the manager.
    """

    def __init__(self, name: str, target: Path, layers: list[Any]) -> None:
        self.name = name
        self.checkpoints = target / name
        self.checkpoints.mkdir()
        self.store = target / f"{name}-store"
        self.layers = layers
        self.manager = self.open()
        self.torch: Any = importlib.import_module("torch")

    def open(self) -> Any:
        """Return a manager that keeps every snapshot."""
        manager: Any = importlib.import_module("ciuic").SnapshotManager
        return manager(self.store, max_snapshots=10_000, layers=self.layers)

    def save(self, model: Any, optimizer: Any, number: int) -> None:
        """Save a snapshot, and a checkpoint if one is due."""
        self.manager.save_snapshot(model, optimizer, 0, step=number, channel=self.name).wait()
        if number % SAVES_PER_CHECKPOINT == 0:
            state = {"model": model.state_dict()}
            if self.name == "full":
                state["optimizer"] = optimizer.state_dict()
            self.last = self.checkpoints / f"{number}.pt"
            self.torch.save(state, self.last)

    def load_checkpoint(self, model: Any, optimizer: Any) -> None:
        """Load the last checkpoint."""
        state = self.torch.load(self.last, weights_only=True)
        model.load_state_dict(state["model"])
        if self.name == "full":
            optimizer.load_state_dict(state["optimizer"])

    def load_snapshot(self, model: Any, optimizer: Any) -> None:
        """Load the latest snapshot with a new manager, as a restarted program does."""
        into = {"model": model, "optimizer": optimizer if self.name == "full" else None}
        with self.open() as manager:
            manager.load_latest_snapshot(channel=self.name, **into)

    def figures(self, model: Any, optimizer: Any) -> dict[str, list[float]]:
        """Return bytes and seconds, each of the checkpoints first."""
        loads = [self.load_checkpoint, self.load_snapshot]
        return {
            "bytes": [size_bytes(place) for place in (self.checkpoints, self.store)],
            "load_s": [self.seconds(load, model, optimizer) for load in loads],
        }

    def seconds(self, load: Callable[[Any, Any], None], model: Any, optimizer: Any) -> float:
        """Return the median of loads from the disk, each compared with the state."""
        tensors = tensors_of(model, optimizer if self.name == "full" else None)
        wanted = {name: tensor.clone() for name, tensor in tensors.items()}
        took_s = []
        for _ in range(LOADS):
            with self.torch.no_grad():
                for tensor in tensors.values():
                    tensor.fill_(0)
            evict(self.checkpoints)
            evict(self.store)
            began_s = time.perf_counter()
            load(model, optimizer)
            took_s.append(time.perf_counter() - began_s)
            # The loads may have replaced the tensors of the optimizer.
            tensors = tensors_of(model, optimizer if self.name == "full" else None)
            if any(not self.torch.equal(tensors[name], found) for name, found in wanted.items()):
                raise SystemExit(f"{load.__name__} loaded another state than was saved")
        return statistics.median(took_s)


def tensors_of(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return the tensors of both states by name; they are the state's own memory."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    of_optimizer = {} if optimizer is None else optimizer.state_dict()["state"]
    for number, of_parameter in of_optimizer.items():
        found |= {f"optimizer.{number}.{name}": value for name, value in of_parameter.items()}
    return found


def size_bytes(target: Path) -> int:
    """Return the lengths of all files below a directory."""
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def parse_arguments() -> argparse.Namespace:
    """Parse what to train."""
    parser = argparse.ArgumentParser(description="save a small model as checkpoints and as a chain")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("text", type=Path)
    parser.add_argument("target", type=Path)
    for name in ("width", "layers", "batch", "every"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def main() -> int:
    """Train, save, load, and print."""
    options = parse_arguments()
    torch: Any = importlib.import_module("torch")
    train: Any = importlib.import_module("benchmarks.train")
    layer: Any = importlib.import_module("ciuic").Layer
    torch.manual_seed(1234)
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8)
    model = train.build_model(options.width, options.layers)
    layers = []
    if options.kind == "few":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(any(word in name for word in TRAINED))
        layers = [layer("trained", "|".join(TRAINED)), layer("frozen", "", frozen=True)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=6e-4, weight_decay=0.1)
    channels = [Channel(name, options.target, layers) for name in CHANNELS]
    for number in range(1, SAVES + 1):
        for _ in range(options.every):
            optimizer.zero_grad()
            train.loss_of(model, text, options.batch).backward()
            optimizer.step()
        for channel in channels:
            channel.save(model, optimizer, number)
    for channel in channels:
        channel.manager.close()
    found = {channel.name: channel.figures(model, optimizer) for channel in channels}
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
