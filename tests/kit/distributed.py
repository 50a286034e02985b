"""Distributed checkpoints: archives of one tensor each, and the names of the tensors."""

import pickle
from collections.abc import Mapping

from tests.kit.tensors import torch_zip

__all__ = ["Index", "Info", "Metadata", "Size", "distributed"]


class Size(tuple[int, ...]):
    """A class that pickles like ``torch.Size``."""

    def __reduce__(self):
        return Size, (tuple(self),)


class Index:
    """The key of a part of a tensor in ``.metadata``."""

    def __init__(self, fqn: object, offset: object) -> None:
        self.fqn, self.offset, self.index = fqn, offset, 0


class Info:
    """The place of a part in ``.metadata``."""

    def __init__(self, relative_path: object, offset: object, length: object) -> None:
        self.relative_path, self.offset, self.length = relative_path, offset, length


class Metadata:
    """The content of ``.metadata``."""

    def __init__(self, *stored: tuple[Index, Info]) -> None:
        self.state_dict_metadata: dict[str, str] = {}
        self.storage_data = dict(stored)


def distributed(files: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
    """Return the files of a checkpoint by name, for the tensors in each, and ``.metadata``."""
    found = {}
    stored = []
    for file, tensors in files.items():
        data = b""
        for name, tensor in tensors.items():
            archive = torch_zip([tensor])
            stored.append((Index(name, Size((0,))), Info(file, len(data), len(archive))))
            data += archive
        found[file] = data
    return found | {".metadata": pickle.dumps(Metadata(*stored))}
