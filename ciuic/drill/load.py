"""The process that loads one checkpoint: ``python -m ciuic.drill.load KIND PATH``.

The packages belong to the user's training, not to ciuic: each is imported by name, if it is there.
Prints one JSON object: ``by`` and ``tensors``, or ``missing`` (the package), or ``error``. Nothing
in the file is executed: torch loads with ``weights_only``, numpy without pickles.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

__all__ = ["main"]

_DEPTH_MAX: Final = 64


def main() -> None:
    """Load the file that the arguments name."""
    kind, path = sys.argv[1:3]
    loader = _LOADERS.get(kind)
    if loader is None:
        answer: dict[str, object] = {"missing": f"a reader of {kind} files"}
    else:
        try:
            by, tensors = loader(path)
            answer = {"by": by, "tensors": tensors}
        except ModuleNotFoundError as error:
            answer = {"missing": f"the package {error.name}"}
        except Exception as error:  # noqa: BLE001 - a package may raise anything at a bad file
            lines = str(error).splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {lines[0]}"}
    sys.stdout.write(json.dumps(answer) + "\n")


def _safetensors(path: str) -> tuple[str, int]:
    safetensors = importlib.import_module("safetensors")
    # numpy has no bfloat16 and no 8-bit floats.
    framework = "pt" if importlib.util.find_spec("torch") else "numpy"
    with safetensors.safe_open(path, framework=framework) as opened:
        names = list(opened.keys())
        for name in names:
            opened.get_tensor(name)
    return "safetensors", len(names)


def _torch(path: str) -> tuple[str, int]:
    torch = importlib.import_module("torch")
    state = torch.load(path, map_location="cpu", weights_only=True)
    return "torch", _tensors(state, torch.Tensor)


def _npy(path: str) -> tuple[str, int]:
    np = importlib.import_module("numpy")
    array = np.load(path, allow_pickle=False)
    array.sum(dtype=None) if array.dtype.kind in "fiub" else array.tobytes()
    return "numpy", 1


def _npz(path: str) -> tuple[str, int]:
    np = importlib.import_module("numpy")
    with np.load(path, allow_pickle=False) as arrays:
        return "numpy", sum(arrays[name] is not None for name in arrays.files)


def _hdf5(path: str) -> tuple[str, int]:
    h5py = importlib.import_module("h5py")
    count = 0

    def read(_: str, found: object) -> None:
        nonlocal count
        if isinstance(found, h5py.Dataset):
            found[()]
            count += 1

    with h5py.File(path, "r") as file:
        file.visititems(read)
    return "h5py", count


def _tensors(value: Any, tensor: type, depth: int = 0) -> int:  # Any: what a checkpoint holds
    """Count the tensors of a nested state."""
    if isinstance(value, tensor):
        return 1
    if depth == _DEPTH_MAX:
        return 0
    if isinstance(value, Mapping):
        return sum(_tensors(inner, tensor, depth + 1) for inner in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return sum(_tensors(inner, tensor, depth + 1) for inner in value)
    return 0


_LOADERS: Final[dict[str, Callable[[str], tuple[str, int]]]] = {
    "safetensors": _safetensors,
    "torch.save": _torch,
    "npy": _npy,
    "npz": _npz,
    "hdf5": _hdf5,
}

if __name__ == "__main__":
    main()
