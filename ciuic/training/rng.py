"""The random number generators of Python, numpy and torch: their states, and putting them back."""

import random
import sys
from typing import Any

import numpy as np

__all__ = ["capture", "fingerprints", "restore"]

States = dict[str, Any]
"""The state of each generator: values that a snapshot can hold."""


def capture() -> States:
    """Return the states of the global generators; those of CUDA if the program uses it."""
    version, keys, gauss = random.getstate()
    states: States = {
        "python": {"version": version, "keys": np.array(keys, np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def fingerprints() -> dict[str, bytes]:
    """Return, for each global generator, bytes that change when a number is drawn from it."""
    drawn = np.random.get_state(legacy=False)
    found = {"python": repr(random.getstate()).encode(), "numpy": repr(drawn).encode()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state().numpy().tobytes()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states = torch.cuda.get_rng_state_all()
            found["cuda"] = b"".join([state.numpy().tobytes() for state in states])
    return found


def restore(states: States) -> None:
    """Put the states of ``capture`` back.

    Raises:
        ValueError, RuntimeError, TypeError: A generator refuses its state.
    """
    python = states["python"]
    keys = tuple([int(key) for key in python["keys"]])
    random.setstate((python["version"], keys, python["gauss"]))
    np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])
