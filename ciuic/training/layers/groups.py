"""Which parameter belongs to which group."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ciuic.errors import UsageError
from ciuic.training.values.arguments import checked_items, shown

__all__ = ["Layer", "as_json", "as_layers", "checked_layers", "group_file", "group_of", "groups_of"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REST: Final = "rest"
"""The group of the parameters that match no pattern."""
_DIRECTORY: Final = "weights/"
_SUFFIX: Final = ".safetensors"


@dataclass(frozen=True, slots=True)
class Layer:
    """A group of parameters. The groups become durable in the order in which the user gives them.

    Attributes:
        name: The name of its file, ``weights/NAME.safetensors``.
        pattern: A regular expression. A parameter belongs to the first group whose pattern is found
            anywhere in its name, such as ``h.0.attn.weight``.
        every: A save stores the group only if this number of steps has passed since it was stored.
            The snapshots in between refer to the stored one. None: each save stores it.
        frozen: The parameters do not change. After the first save of a program, none copies,
            hashes or stores the group until the next full snapshot, which also notices a change.
    """

    name: str
    pattern: str
    every: int | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        is_text = isinstance(self.name, str)
        if not is_text or not _NAME.fullmatch(self.name) or self.name == _REST:
            raise UsageError(
                f"{shown(self.name)} cannot be the name of a layer",
                hint="Use up to 64 letters, digits, '-' and '_'; the name 'rest' is taken.",
            )
        if not isinstance(self.pattern, str):
            raise UsageError(
                f"the pattern {shown(self.pattern)} of the layer {self.name} is not text",
                hint="Give a regular expression, such as Layer('attention', 'attn').",
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UsageError(
                f"the pattern {self.pattern!r} of the layer {self.name} is not a regular"
                f" expression: {error}",
                hint="Write a backslash before a bracket that stands for itself.",
            ) from error
        if self.every is not None and (type(self.every) is not int or self.every < 1):
            raise UsageError(
                f"every={shown(self.every)} of the layer {self.name} is not a number of 1 or more",
                hint="Give a whole number of steps, such as every=1000.",
            )
        if self.frozen and self.every is not None:
            raise UsageError(
                f"the layer {self.name} cannot be frozen and have every", hint="Leave one out."
            )


def checked_layers(layers: object) -> tuple[Layer, ...]:
    """Check the layers that a constructor was given, and return them; None: there are none.

    Raises:
        UsageError: It is not a list of layers, or two layers have one name.
    """
    hint = "Give a list of Layer, such as layers=[Layer('attention', 'attn')]."
    given = () if layers is None else layers
    found: tuple[Layer, ...] = checked_items("layers", given, Layer, what="layers", hint=hint)
    names = [layer.name for layer in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two layers have the name {name!r}", hint="Give each its own name.")
    return found


def group_of(layers: Iterable[Layer], parameter: str) -> str:
    """Return the name of the group that a parameter belongs to."""
    found = (layer.name for layer in layers if re.search(layer.pattern, parameter))
    return next(found, _REST)


def group_file(group: str) -> str:
    """Return the name of a group's file."""
    return f"{_DIRECTORY}{group}{_SUFFIX}"


def groups_of(
    layers: Sequence[Layer], files: Iterable[str], step: object
) -> list[dict[str, object]]:
    """Return the part of ``state.json`` that names the groups, in the order of their commits.

    Args:
        layers: The layers.
        files: The files of a state; a group without parameters has none.
        step: The step of the state.
    """
    names = set(files)
    groups = [*[layer.name for layer in layers], _REST]
    return [
        {"name": name, "file": group_file(name), "step": step}
        for name in groups
        if group_file(name) in names
    ]


def as_json(layers: Iterable[Layer]) -> list[dict[str, Any]]:
    """Return layers as JSON, for the writer's process."""
    return [asdict(layer) for layer in layers]


def as_layers(written: Iterable[Mapping[str, Any]]) -> tuple[Layer, ...]:
    """Return the layers of ``as_json``."""
    return tuple([Layer(**one) for one in written])
