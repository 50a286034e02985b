"""Trains a small transformer and saves its state with one tool; needs PyTorch and ciuic.

    library_run.py TOOL TEXT TARGET --width N --layers N --saves N --every N --batch N --loads N

Runs in a process of its own, so that the peak of its memory is that of one tool. Prints one JSON
object. Every load is compared with the state that was saved, bit for bit.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import evict
from benchmarks.train import build_model, loss_of

# Type checkers run without PyTorch.
torch: Any = importlib.import_module("torch")

WARM_UP_STEPS = 3
COPIES = 7
DURABLE_SAVES = 3
State = dict[str, Any]


class Saver(ABC):
    """A way to save the state of a model and its optimizer.

    Args:
        target: A new directory.
    """

    def __init__(self, target: Path) -> None:
        self.target = target

    @abstractmethod
    def save(self, model: Any, optimizer: Any, step: int) -> None:
        """Save; when this returns, the state may change."""

    def wait(self) -> None:
        """Return when the last save is on the disk."""
        return

    @abstractmethod
    def load(self, model: Any, optimizer: Any) -> None:
        """Load the last save into these objects."""

    def close(self) -> None:
        """End."""
        return


class Nothing(Saver):
    """No save: what an iteration takes without one."""

    def save(self, model: Any, optimizer: Any, step: int) -> None:
        """Do nothing."""

    def load(self, model: Any, optimizer: Any) -> None:
        """Do nothing."""


class TorchSave(Saver):
    """``torch.save`` of both states into one file, as in tutorials."""

    def save(self, model: Any, optimizer: Any, step: int) -> None:
        """Write a file, and a new name for it."""
        self.last = self.target / f"step_{step}.pt"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, self.last)

    def wait(self) -> None:
        """Sync the last file."""
        sync(self.last)

    def load(self, model: Any, optimizer: Any) -> None:
        """Load without any check, as ``torch.load`` does."""
        state = torch.load(self.last, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


class Safetensors(Saver):
    """The tensors of both states in a safetensors file; the rest is left out."""

    def save(self, model: Any, optimizer: Any, step: int) -> None:
        """Write a file."""
        self.last = self.target / f"step_{step}.safetensors"
        importlib.import_module("safetensors.torch").save_file(
            tensors_of(model, optimizer), self.last
        )

    def wait(self) -> None:
        """Sync the last file."""
        sync(self.last)

    def load(self, model: Any, optimizer: Any) -> None:
        """Copy the tensors into their places."""
        found = importlib.import_module("safetensors.torch").load_file(self.last)
        for name, tensor in tensors_of(model, optimizer).items():
            tensor.copy_(found[name])


class AsyncSave(Saver):
    """``torch.distributed.checkpoint.async_save`` from one process, with its defaults."""

    future: Any = None

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self.dcp: Any = importlib.import_module("torch.distributed.checkpoint")
        self.states: Any = importlib.import_module("torch.distributed.checkpoint.state_dict")
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )

    def save(self, model: Any, optimizer: Any, step: int) -> None:
        """Wait for the save before, as its documentation asks, and begin another one."""
        if self.future is not None:
            self.future.result()
        self.last = self.target / f"step_{step}"
        of_model, of_optimizer = self.states.get_state_dict(model, optimizer)
        state = {"model": of_model, "optimizer": of_optimizer}
        self.future = self.dcp.async_save(state, checkpoint_id=self.last)

    def wait(self) -> None:
        """Return when the files are written; it syncs them."""
        self.future.result()

    def load(self, model: Any, optimizer: Any) -> None:
        """Load into the tensors of the present state."""
        of_model, of_optimizer = self.states.get_state_dict(model, optimizer)
        state = {"model": of_model, "optimizer": of_optimizer}
        self.dcp.load(state, checkpoint_id=self.last)
        self.states.set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

    def close(self) -> None:
        """End the process group."""
        torch.distributed.destroy_process_group()


class Orbax(Saver):
    """``AsyncCheckpointer`` of Orbax with its defaults, for the tensors as arrays of numpy."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        self.orbax: Any = importlib.import_module("orbax.checkpoint")
        handler = self.orbax.PyTreeCheckpointHandler()
        self.checkpointer: Any = self.orbax.AsyncCheckpointer(handler)

    def save(self, model: Any, optimizer: Any, step: int) -> None:
        """Begin a save; it waits for the one before."""
        self.last = self.target.absolute() / f"step_{step}"
        arrays = {name: one.numpy() for name, one in tensors_of(model, optimizer).items()}
        self.checkpointer.save(self.last, args=self.orbax.args.PyTreeSave(arrays))

    def wait(self) -> None:
        """Return when the directory has its name."""
        self.checkpointer.wait_until_finished()

    def load(self, model: Any, optimizer: Any) -> None:
        """Copy the arrays into the tensors of the present state."""
        tensors = tensors_of(model, optimizer)
        as_array = self.orbax.RestoreArgs(restore_type=importlib.import_module("numpy").ndarray)
        wanted = self.orbax.args.PyTreeRestore(restore_args=dict.fromkeys(tensors, as_array))
        found = self.checkpointer.restore(self.last, args=wanted)
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(found[name]))

    def close(self) -> None:
        """End its threads."""
        self.checkpointer.close()


class Ciuic(Saver):
    """``SnapshotManager`` with its defaults; every byte is checked by a load."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self.manager: Any = self.open()

    def open(self) -> Any:
        """Return a manager that keeps every snapshot."""
        manager: Any = importlib.import_module("ciuic").SnapshotManager
        return manager(self.target / "store", max_snapshots=10_000)

    def save(self, model: Any, optimizer: Any, step: int) -> None:
        """Copy the state; the other process stores it."""
        self.manager.save_snapshot(model, optimizer, 0, step=step)

    def wait(self) -> None:
        """Return when the snapshot is committed."""
        self.manager.wait()

    def load(self, model: Any, optimizer: Any) -> None:
        """Load the latest with a new manager, as a restarted program does."""
        with self.open() as manager:
            manager.load_latest_snapshot(model=model, optimizer=optimizer)

    def close(self) -> None:
        """End the other process."""
        self.manager.close()


SAVERS: dict[str, type[Saver]] = {
    "none": Nothing,
    "ciuic": Ciuic,
    "torch.save": TorchSave,
    "safetensors": Safetensors,
    "async_save": AsyncSave,
    "orbax": Orbax,
}


def sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def tensors_of(model: Any, optimizer: Any) -> State:
    """Return the tensors of both states by name; they are the state's own memory."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for number, of_parameter in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": value for name, value in of_parameter.items()}
    return found


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that this takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


class Training:
    """A model, its optimizer and its text."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(1234)
        self.text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8)
        self.batch = options.batch
        self.model = build_model(options.width, options.layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, weight_decay=0.1)

    def step(self) -> None:
        """Take one step."""
        loss = loss_of(self.model, self.text, self.batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def copy_seconds(training: Training) -> list[float]:
    """Return the seconds of copies of all tensors into memory that is there already.

    Each is after a step, as a save is: the step has evicted the state from the processor's caches.
    """
    tensors = list(tensors_of(training.model, training.optimizer).values())
    copies = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]

    def copy() -> None:
        for target, tensor in zip(copies, tensors, strict=True):
            target.copy_(tensor)

    found = []
    for _ in range(COPIES):
        training.step()
        found.append(timed(copy))
    return found


def train(training: Training, saver: Saver, options: argparse.Namespace) -> dict[str, Any]:
    """Train after each save; returns the seconds of stalls and iterations.

    What a save does in the background is in the iterations after it. The first save is not counted:
    it also gets its memory.
    """
    stalls, iterations = [], []
    for number in range(options.saves + 1):
        stall_s = timed(partial(saver.save, training.model, training.optimizer, number))
        steps_s = [timed(training.step) for _ in range(options.every)]
        steps_s[0] += stall_s
        if number:
            stalls.append(stall_s)
            iterations += steps_s
    saver.wait()
    return {"stalls_s": stalls, "iterations_s": iterations}


def durable_seconds(training: Training, saver: Saver, options: argparse.Namespace) -> list[float]:
    """Return the seconds until a save is durable while nothing trains."""

    def save(number: int) -> None:
        saver.save(training.model, training.optimizer, number)
        saver.wait()

    found = []
    for number in range(DURABLE_SAVES):
        training.step()
        found.append(timed(partial(save, options.saves + 1 + number)))
    return found


def load(training: Training, saver: Saver, *, cold: bool) -> float:
    """Load into other objects; returns the seconds, after comparing every tensor."""
    wanted = {
        name: tensor.clone()
        for name, tensor in tensors_of(training.model, training.optimizer).items()
    }
    with torch.no_grad():
        for tensor in tensors_of(training.model, training.optimizer).values():
            tensor.fill_(0)
        if cold:
            evict(saver.target)
        took_s = timed(lambda: saver.load(training.model, training.optimizer))
    found = tensors_of(training.model, training.optimizer)
    if any(not torch.equal(found[name], tensor) for name, tensor in wanted.items()):
        raise SystemExit(f"{type(saver).__name__} loaded another state than it saved")
    return took_s


def size_bytes(target: Path) -> int:
    """Return the lengths of all files below a directory."""
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def parse_arguments() -> argparse.Namespace:
    """Parse what to train, and the tool."""
    parser = argparse.ArgumentParser(description="train a small model and save it with one tool")
    parser.add_argument("tool", choices=SAVERS)
    parser.add_argument("text", type=Path)
    parser.add_argument("target", type=Path)
    for name in ("width", "layers", "batch", "saves", "every", "loads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def main() -> int:
    """Measure, and print."""
    options = parse_arguments()
    training = Training(options)
    for _ in range(WARM_UP_STEPS):
        training.step()
    found: dict[str, Any] = {"copies_s": copy_seconds(training)}
    tensors = tensors_of(training.model, training.optimizer).values()
    found["state_bytes"] = sum(tensor.nbytes for tensor in tensors)
    saver = SAVERS[options.tool](options.target)
    print("begins", flush=True)
    found |= train(training, saver, options)
    print("ends", flush=True)
    found["disk_bytes"] = size_bytes(options.target)
    if options.tool != "none":
        found["durable_s"] = durable_seconds(training, saver, options)
        found["warm_s"] = [load(training, saver, cold=False) for _ in range(options.loads)]
        found["cold_s"] = [load(training, saver, cold=True) for _ in range(options.loads)]
    saver.close()
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
