"""Trains small models on real text and saves series of their checkpoints; needs PyTorch.

Guarantees: those of train.py. The optimizer really takes the steps that the series' name says
between two files. All series of fp32 Adam state are from one run, so only the distance differs.

Each series is a directory: step_900.pt, step_1000.pt, ... As in real training, one name is longer
than the one before, and so are the record headers of that torch.save file.
"""

import argparse
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

torch: Any = importlib.import_module("torch")
nn: Any = torch.nn

CONTEXT = 128
VOCABULARY = 256
HEAD_WIDTH = 64
PEAK_LEARNING_RATE = 6e-4
TUNING_RATE = 1e-5
ADAPTER_RATE = 1e-3
ADAPTER_RANK = 4
SPARSE_RATE = 3e-3
SPARSE_FIRST_SAVE = 4000
WARM_UP_STEPS = 200
HORIZON_STEPS = 8000
FIRST_SAVE = 900
TUNING_GAP = 100
ADAPTER_GAP = 50
TABLE_WIDTH = 64
WINDOWS = 4
WRONG_WORDS = 5
SEED = 2026
WORD = re.compile(rb"[A-Za-z_]{3,24}")
NAMES = {"torch.float32": "F32", "torch.bfloat16": "BF16"}


class Decoder(nn.Module):  # type: ignore[misc]  # types are checked without PyTorch
    """A byte-level decoder, pre-norm, with learned positions."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(
            width,
            max(1, width // HEAD_WIDTH),
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, windows: Any) -> Any:
        """Return the cross-entropy of each next byte."""
        hidden = self.bytes(windows[:, :-1]) + self.positions(torch.arange(CONTEXT))
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        hidden = self.norm(self.blocks(hidden, mask=mask, is_causal=True))
        found = self.head(hidden).flatten(0, 1)
        return nn.functional.cross_entropy(found, windows[:, 1:].flatten())


class Table(nn.Module):  # type: ignore[misc]
    """Word vectors, a row for each hashed word: neighboring words get similar vectors."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, TABLE_WIDTH, sparse=True)
        nn.init.normal_(self.words.weight, std=TABLE_WIDTH**-0.5)

    def forward(self, pairs: Any) -> Any:
        """Return the skip-gram loss; in each row, the first two words are neighbors in the text."""
        first, others = self.words(pairs[:, :1]), self.words(pairs[:, 1:])
        # One of six pairs is true; the vectors need not learn this rate.
        scores = (first * others).sum(-1) * 4 - math.log(WRONG_WORDS)
        wanted = torch.zeros_like(scores)
        wanted[:, 0] = 1
        return nn.functional.binary_cross_entropy_with_logits(scores, wanted)


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen linear layer plus the product of two thin matrices."""

    def __init__(self, base: Any, rank: int) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, given: Any) -> Any:
        """Return the sum of the layer and the adapter."""
        return self.base(given) + given @ self.lora_a.T @ self.lora_b.T


def learning_rate(step: int) -> float:
    """Return the rate: linear warm-up, then a cosine down to a tenth at the horizon."""
    if step < WARM_UP_STEPS:
        return PEAK_LEARNING_RATE * (step + 1) / WARM_UP_STEPS
    return PEAK_LEARNING_RATE * (0.55 + 0.45 * math.cos(math.pi * min(1, step / HORIZON_STEPS)))


def windows(text: Any, batch: int) -> Iterator[Any]:
    """Yield batches of random windows."""
    while True:
        starts = torch.randint(len(text) - CONTEXT - 1, (batch,)).tolist()
        yield torch.stack([text[start : start + CONTEXT + 1] for start in starts]).long()


def word_pairs(text: bytes, rows: int, batch: int) -> Iterator[Any]:
    """Yield batches of a word, a word within four words of it, and five random words.

    The text is read in order, like the events of a recommender; words are numbered by hash.
    """
    numbers = torch.tensor([hash_of(word) % rows for word in WORD.findall(text)])
    place = 0
    while True:
        place = (place + batch) % (len(numbers) - batch - WINDOWS)
        at = torch.arange(place, place + batch)
        near = numbers[at + torch.randint(1, WINDOWS + 1, (batch,))]
        wrong = numbers[torch.randint(len(numbers), (batch, WRONG_WORDS))]
        yield torch.cat([numbers[at, None], near[:, None], wrong], dim=1)


def hash_of(word: bytes) -> int:
    """Return a hash that is the same in every run, unlike Python's own."""
    return int.from_bytes(word[:16].ljust(16, b"\0"), "little") * 0x9E3779B97F4A7C15 >> 24


def train(
    model: Any,
    optimizer: Any,
    batches: Iterator[Any],
    steps: range,
    *,
    rate: Callable[[int], float],
    after: Callable[[int, float], None],
) -> None:
    """Take the steps, and call `after` with the number and the loss of each."""
    trained = [weight for group in optimizer.param_groups for weight in group["params"]]
    clip = not isinstance(optimizer, torch.optim.SparseAdam)
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        loss = model(next(batches))
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        after(step + 1, loss.item())


def write_safetensors(path: Path, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    """Write in the layout and order of the safetensors library: wide types first, then by name."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": metadata}
    offset_bytes = 0
    for name, tensor in ordered:
        end_bytes = offset_bytes + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [offset_bytes, end_bytes],
        }
        offset_bytes = end_bytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, tensor in ordered:
            out.write(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())


def save_state(path: Path, model: Any, optimizer: Any, step: int) -> None:
    """Save the full state with torch.save."""
    path.parent.mkdir(exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path)


def save_bf16(path: Path, model: Any) -> None:
    """Save only the weights, rounded to bf16."""
    path.parent.mkdir(exist_ok=True)
    rounded = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    write_safetensors(path, rounded, {"format": "pt"})


def save_distributed(path: Path, model: Any, optimizer: Any) -> None:
    """Save the full state with torch.distributed.checkpoint, from one process."""
    dcp = importlib.import_module("torch.distributed.checkpoint")
    states = importlib.import_module("torch.distributed.checkpoint.state_dict")
    of_model, of_optimizer = states.get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    dcp.save(state, checkpoint_id=path, no_dist=True)


class Run:
    """The parts that all kinds of training share: text, target, log, and the state to resume."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.target: Path = options.target
        self.bytes = options.text.read_bytes()
        self.text = torch.frombuffer(bytearray(self.bytes), dtype=torch.uint8)
        self.history: list[float] = []
        self._log = (self.target / f"{options.kind}.jsonl").open("w")
        # With one thread, sums do not depend on the number of cores.
        torch.set_num_threads(1)
        torch.manual_seed(SEED)

    def model(self) -> Any:
        """Return the model; with --resume, in its saved state."""
        model = Decoder(self.options.width, self.options.layers)
        if self.options.resume:
            model.load_state_dict(torch.load(self.options.resume)["model"])
        return model

    def adam(self, parameters: Any) -> Any:
        """Return AdamW with PyTorch's default betas."""
        return torch.optim.AdamW(parameters, lr=PEAK_LEARNING_RATE, weight_decay=0.1, fused=True)

    def note(self, step: int, loss: float) -> None:
        """Write a line of the log, as training scripts do."""
        self.history.append(loss)
        self._log.write(json.dumps({"step": step, "loss": loss}) + "\n")
        self._log.flush()

    def saves(self, gap: int, first: int = FIRST_SAVE) -> list[int]:
        """Return the steps after which a series with this distance is saved."""
        return [first + gap * number for number in range(self.options.saves)]

    def pretrain(self) -> None:
        """Train from scratch: adam10, adam100, bf16-100, dcp100, adam500 and adam100-later."""
        model = self.model()
        optimizer = self.adam(model.parameters())
        near, far = self.saves(10), self.saves(100)
        wide = self.saves(500)
        later = [step + 100 * len(far) for step in far]

        def after(step: int, loss: float) -> None:
            self.note(step, loss)
            name = f"step_{step}.pt"
            if step in near:
                save_state(self.target / "adam10" / name, model, optimizer, step)
            if step in far:
                save_state(self.target / "adam100" / name, model, optimizer, step)
                save_bf16(self.target / "bf16-100" / f"step_{step}.safetensors", model)
                save_distributed(self.target / "dcp100" / f"step_{step}", model, optimizer)
            if step in later:
                save_state(self.target / "adam100-later" / name, model, optimizer, step)
            if step in wide:
                save_state(self.target / "adam500" / name, model, optimizer, step)

        batches = windows(self.text, self.options.batch)
        steps = range(max(far + later + wide[: self.options.wide]))
        train(model, optimizer, batches, steps, rate=learning_rate, after=after)

    def tune(self) -> None:
        """Fine-tune all weights on the last part of the text: fp32 in memory, bf16 in the file."""
        model = self.model()
        optimizer = self.adam(model.parameters())

        def after(step: int, loss: float) -> None:
            self.note(step, loss)
            if step % TUNING_GAP == 0:
                save_bf16(self.target / "tune" / f"step_{step}.safetensors", model)

        batches = windows(self.text[-len(self.text) // 8 :], self.options.batch)
        steps = range(TUNING_GAP * self.options.saves)
        train(model, optimizer, batches, steps, rate=lambda _: TUNING_RATE, after=after)

    def frozen(self) -> None:
        """Train adapters; the file has base, adapters, and a growing history in its header."""
        model = self.model().requires_grad_(False)
        for block in model.blocks.layers:
            block.linear1 = Adapted(block.linear1, ADAPTER_RANK)
            block.linear2 = Adapted(block.linear2, ADAPTER_RANK)
        optimizer = self.adam([weight for weight in model.parameters() if weight.requires_grad])
        (self.target / "frozen").mkdir()

        def after(step: int, loss: float) -> None:
            self.note(step, loss)
            if step % ADAPTER_GAP == 0:
                history = json.dumps([round(loss, 4) for loss in self.history[9::10]])
                about = {"format": "pt", "step": str(step), "log_history": history}
                path = self.target / "frozen" / f"step_{step}.safetensors"
                write_safetensors(path, model.state_dict(), about)

        batches = windows(self.text[-len(self.text) // 8 :], self.options.batch)
        steps = range(ADAPTER_GAP * self.options.saves)
        train(model, optimizer, batches, steps, rate=lambda _: ADAPTER_RATE, after=after)

    def sparse(self) -> None:
        """Train a large table with SparseAdam; each step changes a few rows."""
        model = Table(self.options.rows)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=SPARSE_RATE)
        before = model.words.weight.detach().clone()

        def after(step: int, loss: float) -> None:
            self.note(step, loss)
            if step in far:
                save_state(self.target / "sparse" / f"step_{step}.pt", model, optimizer, step)
                now = model.words.weight.detach()
                share = (now != before).any(1).float().mean().item()
                before.copy_(now)
                print(f"sparse: {share:.1%} of the rows changed", file=sys.stderr, flush=True)

        far = self.saves(self.options.sparse_gap, SPARSE_FIRST_SAVE)
        batches = word_pairs(self.bytes, self.options.rows, self.options.sparse_batch)
        steps = range(max(far))
        train(model, optimizer, batches, steps, rate=lambda _: SPARSE_RATE, after=after)


def parse_arguments() -> argparse.Namespace:
    """Parse what to train, and the sizes."""
    parser = argparse.ArgumentParser(description="train small models and keep their checkpoints")
    parser.add_argument("kind", choices=("pretrain", "tune", "frozen", "sparse"))
    parser.add_argument("text", type=Path, help="real text to learn from")
    parser.add_argument("target", type=Path, help="directory for the series, one directory each")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--saves", type=int, default=12, help="checkpoints of each series")
    parser.add_argument("--wide", type=int, default=6, help="checkpoints 500 steps apart")
    parser.add_argument("--rows", type=int, default=40_000, help="rows of the sparse table")
    parser.add_argument("--sparse-batch", type=int, default=64)
    parser.add_argument("--sparse-gap", type=int, default=30)
    parser.add_argument("--resume", type=Path, help="for tune and frozen: the model to start from")
    return parser.parse_args()


def main() -> int:
    """Train until all files of this kind exist."""
    options = parse_arguments()
    {"pretrain": Run.pretrain, "tune": Run.tune, "frozen": Run.frozen, "sparse": Run.sparse}[
        options.kind
    ](Run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
