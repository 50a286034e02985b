"""A typical training program: numpy, Adam, a log, and one checkpoint file written in place.

It trains a character model on real English, the Python language reference, which is part of Python.
It needs only numpy, and has no knowledge of ciuic. Its checkpoint holds the whole state (weights,
both Adam moments, the random generator, the step). So a resumed run computes the same bits as the
first run would have, and the log shows that.

It deliberately does not write checkpoints safely: it overwrites ``last.npz`` in place, so a run
that is killed during the write leaves half a file in place of its only good one.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import zipfile
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CheckpointError", "Training", "main"]

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

CONTEXT = 24  # characters that the model sees before the predicted one
EMBEDDING = 24
HIDDEN = 768
BATCH = 96
RATE = 1e-3
DECAY_MEAN, DECAY_SQUARE, TINY = 0.9, 0.999, 1e-8


class CheckpointError(Exception):
    """The file is not a complete checkpoint."""


def corpus() -> tuple[Integers, str]:
    """Return the text as numbers, and the character of each number."""
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    number = {character: place for place, character in enumerate(alphabet)}
    return np.array([number[character] for character in text], dtype=np.int64), alphabet


@dataclass
class Training:
    """The state of a run, which is the content of a checkpoint.

    Attributes:
        weights: The model: an embedding, one hidden layer, one linear layer over the characters.
        mean: Adam's first moment of each weight.
        square: Adam's second moment of each weight.
        random: The generator that draws the batches.
        step: The number of steps done.
    """

    weights: dict[str, Floats]
    mean: dict[str, Floats]
    square: dict[str, Floats]
    random: np.random.Generator
    step: int = 0

    @classmethod
    def start(cls, characters: int, seed: int) -> "Training":
        """Return an untrained model."""
        random = np.random.Generator(np.random.PCG64(seed))

        def matrix(rows: int, columns: int) -> Floats:
            scale = np.float32(rows**-0.5)
            return random.standard_normal((rows, columns), dtype=np.float32) * scale

        weights = {
            "embedding": matrix(characters, EMBEDDING),
            "hidden": matrix(CONTEXT * EMBEDDING, HIDDEN),
            "hidden_bias": np.zeros(HIDDEN, dtype=np.float32),
            "output": matrix(HIDDEN, characters),
            "output_bias": np.zeros(characters, dtype=np.float32),
        }
        mean = {name: np.zeros_like(value) for name, value in weights.items()}
        square = {name: np.zeros_like(value) for name, value in weights.items()}
        return cls(weights, mean, square, random)

    def advance(self, data: Integers) -> float:
        """Do one step on a random batch; return its loss in nats per character."""
        starts = self.random.integers(0, len(data) - CONTEXT, size=BATCH)
        windows = data[starts[:, None] + np.arange(CONTEXT + 1)]
        loss, gradients = _loss(self.weights, windows[:, :-1], windows[:, -1])
        self.step += 1
        # Both moments start at zero; these two factors correct that bias.
        whole_mean = np.float32(1 - DECAY_MEAN**self.step)
        whole_square = np.float32(1 - DECAY_SQUARE**self.step)
        for name, gradient in gradients.items():
            mean, square = self.mean[name], self.square[name]
            mean += np.float32(1 - DECAY_MEAN) * (gradient - mean)
            square += np.float32(1 - DECAY_SQUARE) * (gradient * gradient - square)
            change = (mean / whole_mean) / (np.sqrt(square / whole_square) + np.float32(TINY))
            self.weights[name] -= np.float32(RATE) * change
        return loss

    def save(self, path: str) -> None:
        """Overwrite the checkpoint in place, not atomically (see the module)."""
        arrays: dict[str, Any] = {"step": np.int64(self.step), "random": _random_state(self.random)}
        for group in ("weights", "mean", "square"):
            for name, value in getattr(self, group).items():
                arrays[f"{group}.{name}"] = value
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str) -> "Training":
        """Return the state in a checkpoint; every array is read and its checksum tested.

        Raises:
            CheckpointError: The file is missing or not a complete checkpoint.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error
        step = int(arrays.pop("step"))
        random = _random_from(arrays.pop("random"))
        groups: dict[str, dict[str, Floats]] = {"weights": {}, "mean": {}, "square": {}}
        for name, value in arrays.items():
            group, _, weight = name.partition(".")
            groups[group][weight] = value
        return cls(**groups, random=random, step=step)


def _loss(
    weights: dict[str, Floats], context: Integers, target: Integers
) -> tuple[float, dict[str, Floats]]:
    """Return the mean loss of a batch, and its gradient for each weight.

    Args:
        weights: The model.
        context: ``(BATCH, CONTEXT)`` characters.
        target: ``(BATCH,)``: the character that follows each context.
    """
    rows = np.arange(len(target))
    embedded = weights["embedding"][context].reshape(len(target), -1)
    hidden = np.tanh(embedded @ weights["hidden"] + weights["hidden_bias"])
    scores = hidden @ weights["output"] + weights["output_bias"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    total = chances.sum(axis=1, keepdims=True)
    loss = float(np.mean(np.log(total[:, 0]) - scores[rows, target]))

    chances /= total
    chances[rows, target] -= 1
    from_scores = chances / np.float32(len(target))
    from_hidden = (from_scores @ weights["output"].T) * (1 - hidden * hidden)
    from_embedded = from_hidden @ weights["hidden"].T
    embedding = np.zeros_like(weights["embedding"])
    np.add.at(embedding, context, from_embedded.reshape(*context.shape, EMBEDDING))
    return loss, {
        "embedding": embedding,
        "hidden": embedded.T @ from_hidden,
        "hidden_bias": from_hidden.sum(axis=0),
        "output": hidden.T @ from_scores,
        "output_bias": from_scores.sum(axis=0),
    }


def _random_state(random: np.random.Generator) -> NDArray[np.uint64]:
    """Return the generator as six numbers of 64 bits: an array always has the same size."""
    state: dict[str, Any] = dict(random.bit_generator.state)
    low = (1 << 64) - 1
    place, increment = state["state"]["state"], state["state"]["inc"]
    numbers = [place >> 64, place & low, increment >> 64, increment & low]
    return np.array([*numbers, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def _random_from(numbers: NDArray[np.uint64]) -> np.random.Generator:
    """Return the generator from its six numbers; the inverse of ``_random_state``."""
    high, low, increment_high, increment_low, has_uint32, uinteger = (
        int(number) for number in numbers
    )
    generator = np.random.PCG64()
    generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(generator)


def _train(arguments: argparse.Namespace) -> None:
    """Train up to a step; log each step and each checkpoint."""
    checkpoint = os.path.join(arguments.run, "checkpoints", "last.npz")
    os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
    data, alphabet = corpus()
    if arguments.resume:
        training = Training.load(checkpoint)
        print(f"resumed from {checkpoint} at step {training.step}")
    else:
        training = Training.start(len(alphabet), arguments.seed)

    with open(os.path.join(arguments.run, "log.jsonl"), "a", buffering=1, encoding="utf-8") as log:
        log.write(json.dumps({"event": "start", "step": training.step}) + "\n")
        loss = math.nan
        while training.step < arguments.steps:
            loss = training.advance(data)
            log.write(json.dumps({"step": training.step, "loss": loss}) + "\n")
            if training.step % arguments.every == 0:
                training.save(checkpoint)
                log.write(json.dumps(_described(checkpoint, training.step)) + "\n")
    print(f"trained up to step {training.step}: loss {loss:.4f}")


def _described(checkpoint: str, step: int) -> dict[str, object]:
    """Return the log entry of a written checkpoint, with the digest of its bytes."""
    with open(checkpoint, "rb") as file:
        content = file.read()
    digest = hashlib.sha256(content).hexdigest()
    return {"event": "checkpoint", "step": step, "bytes": len(content), "sha256": digest}


def _check(path: str) -> None:
    """Print the step, length and digest of a checkpoint as one JSON document."""
    training = Training.load(path)
    print(json.dumps(_described(path, training.step)))


def main() -> int:
    """Train, or check a checkpoint; return 1 if the checkpoint cannot be loaded."""
    parser = argparse.ArgumentParser(description="train a character model")
    parser.add_argument("--run", default=os.path.dirname(os.path.abspath(__file__)), metavar="DIR")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after this step")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="resume from checkpoints/last.npz")
    parser.add_argument("--check", metavar="FILE", help="only load and describe this checkpoint")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            _check(arguments.check)
        else:
            _train(arguments)
    except CheckpointError as error:
        print(f"train.py: this checkpoint does not load: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
