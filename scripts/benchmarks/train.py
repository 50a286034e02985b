"""Trains a small transformer on real text and saves its checkpoints; needs PyTorch.

Guarantees: the files are real training states, with AdamW steps on the given text between any two
of them. File sizes are always the same; the numbers are as repeatable as PyTorch is.

The model is a byte-level decoder, so that no tokenizer is needed. It is not a good model: only the
bytes of its checkpoints matter, and those depend on the optimizer and the number formats.
"""

import argparse
import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

# Type checkers run without PyTorch.
torch: Any = importlib.import_module("torch")
nn: Any = torch.nn

CONTEXT = 256
VOCABULARY = 256
PEAK_LEARNING_RATE = 6e-4
WARM_UP_STEPS = 20


def build_model(width: int, layers: int) -> Any:
    """Return a pre-norm decoder with learned positions and a separate output head."""
    block = nn.TransformerEncoderLayer(
        width,
        width // 64,
        4 * width,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    return nn.ModuleDict(
        {
            "bytes": nn.Embedding(VOCABULARY, width),
            "positions": nn.Embedding(CONTEXT, width),
            "blocks": nn.TransformerEncoder(block, layers, enable_nested_tensor=False),
            "norm": nn.LayerNorm(width),
            "head": nn.Linear(width, VOCABULARY, bias=False),
        }
    )


def loss_of(model: Any, text: Any, batch: int) -> Any:
    """Return the cross-entropy of the next byte over `batch` random windows."""
    starts = torch.randint(len(text) - CONTEXT - 1, (batch,))
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long()
    hidden = model["bytes"](windows[:, :-1]) + model["positions"](torch.arange(CONTEXT))
    mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
    hidden = model["norm"](model["blocks"](hidden, mask=mask, is_causal=True))
    return nn.functional.cross_entropy(
        model["head"](hidden).flatten(0, 1), windows[:, 1:].flatten()
    )


def learning_rate(step: int) -> float:
    """Return the rate: linear warm-up, then a slow cosine, as in most recipes."""
    if step < WARM_UP_STEPS:
        return PEAK_LEARNING_RATE * (step + 1) / WARM_UP_STEPS
    return PEAK_LEARNING_RATE * (0.55 + 0.45 * math.cos(math.pi * min(step, 2000) / 2000))


def write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    """Write the weights in the safetensors layout: a length, a JSON header, the raw data."""
    header: dict[str, Any] = {}
    offset_bytes = 0
    for name, tensor in tensors.items():
        size_bytes = tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [offset_bytes, offset_bytes + size_bytes],
        }
        offset_bytes += size_bytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            out.write(tensor.contiguous().numpy().tobytes())


def save(target: Path, model: Any, optimizer: Any, step: int, *, full: bool) -> None:
    """Save the full state with torch.save, or only the weights."""
    if full:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, target / f"step_{step:06d}.pt")
    else:
        write_safetensors(target / f"weights_{step:06d}.safetensors", model.state_dict())


def parse_arguments() -> argparse.Namespace:
    """Parse what to train, for how long, and where to save."""
    parser = argparse.ArgumentParser(description="train a small model and save checkpoints")
    parser.add_argument("text", type=Path, help="real text to learn from")
    parser.add_argument("target", type=Path, help="directory that gets the checkpoints")
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--saves", type=int, required=True, help="full checkpoints to write")
    parser.add_argument(
        "--weights", type=int, default=0, help="weights-only files, halfway between full ones"
    )
    parser.add_argument("--first", type=int, default=60, help="steps before the first save")
    parser.add_argument(
        "--every", type=int, required=True, help="steps from one full checkpoint to the next"
    )
    parser.add_argument("--resume", type=Path, help="continue from this checkpoint")
    return parser.parse_args()


def main() -> int:
    """Train and save until all requested files exist."""
    options = parse_arguments()
    torch.manual_seed(1234)
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8)
    model = build_model(options.width, options.layers)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1
    )
    step = 0
    if options.resume:
        state = torch.load(options.resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    full_at = {step + options.first + options.every * index for index in range(options.saves)}
    weights_at = {at + options.every // 2 for at in sorted(full_at)[: options.weights]}
    last = max(full_at | weights_at)
    with (options.target / "train.jsonl").open("w") as log:
        while step < last:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            loss = loss_of(model, text, options.batch)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            log.write(
                json.dumps({"step": step, "loss": loss.item(), "grad_norm": norm.item()}) + "\n"
            )
            if step in full_at or step in weights_at:
                save(options.target, model, optimizer, step, full=step in full_at)
    return 0


if __name__ == "__main__":
    sys.exit(main())
