"""Distributed checkpoints: archives of one tensor each, and what these are called."""

import pickle
from collections.abc import Mapping

from tests.kit.tensors import torch_zip

__all__ = ["Index", "Info", "Metadata", "Size", "distributed"]


class Size(tuple[int, ...]):
    """What pickles like a ``torch.Size``."""

    def __reduce__(self):
        return Size, (tuple(self),)


class Index:
    """What a distributed checkpoint calls a part of a tensor."""

    def __init__(self, fqn: object, offset: object) -> None:
        self.fqn, self.offset, self.index = fqn, offset, 0


class Info:
    """Where it says that a part lies."""

    def __init__(self, relative_path: object, offset: object, length: object) -> None:
        self.relative_path, self.offset, self.length = relative_path, offset, length


class Metadata:
    """All that it says."""

    def __init__(self, *stored: tuple[Index, Info]) -> None:
        self.state_dict_metadata: dict[str, str] = {}
        self.storage_data = dict(stored)


def distributed(files: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
    """The files of a checkpoint, by their names, for the tensors in each; ``.metadata`` is one."""
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
