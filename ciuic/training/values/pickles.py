"""Values that only pickle can store. A load returns their bytes, and never opens them."""

import pickle
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ciuic.training.values.arguments import checked_items

__all__ = ["PICKLE", "PickledLeaf", "Pickles", "check_pickle_leaves", "refuse_pickles"]

PICKLE: Final = "pickle"
"""The kind of ``state.json`` for these values."""
_DIRECTORY: Final = "pickles/"
_NAME_MAX: Final = 100
_UNPICKLABLE: Final = (
    pickle.PicklingError,
    TypeError,
    AttributeError,
    ValueError,
    RecursionError,
    NotImplementedError,
)
"""The exceptions with which pickle refuses a value."""
_INTO_OBJECT: Final = (
    "load the snapshot without this object, replace the pickle by the result of its load() if you"
    " trust the store, and call load_state_dict"
)


@dataclass(frozen=True, slots=True, repr=False)
class PickledLeaf:
    """A value that a snapshot holds as a pickle. ciuic never opens it.

    Attributes:
        kind: Module and name of the value's class, as the save has written them.
        data: The pickle.
    """

    kind: str
    data: bytes

    def load(self) -> Any:
        """Return the value. This runs code that the pickle names.

        Call it only if you trust everyone who can write to the store.
        """
        return pickle.loads(self.data)  # noqa: S301 - the user asks for it, and no load does

    def __repr__(self) -> str:
        return f"<pickle of a {self.kind!r}, {len(self.data):,} bytes, not loaded>"


class Pickles:
    """Pickles the values of one state that its program has allowed.

    Args:
        allowed: Their names as the error message writes them, such as ``extra['env']``; ``*``
            stands for any text.

    Attributes:
        files: The pickles by the names of their files.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self.files: dict[str, bytes] = {}
        self._allowed = allowed

    def add(self, value: object, name: str) -> dict[str, str] | None:
        """Pickle a value that is allowed, and return its JSON; None: it is not allowed.

        Raises:
            TypeError: pickle cannot store it either; the message names it.
        """
        if not any(_matches(pattern, name) for pattern in self._allowed):
            return None
        if isinstance(value, PickledLeaf):
            leaf = value
        else:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            try:
                leaf = PickledLeaf(kind, pickle.dumps(value))
            except _UNPICKLABLE as error:
                raise TypeError(
                    f"{name} cannot be stored, not even as a pickle: {error}"
                ) from error
        file = self._new_file(name)
        self.files[file] = leaf.data
        return {"$": PICKLE, "file": file, "class": leaf.kind}

    def _new_file(self, name: str) -> str:
        plain = re.sub(r"\W+", ".", name, flags=re.ASCII).strip(".")[:_NAME_MAX]
        file, number = f"{_DIRECTORY}{plain}.pickle", 1
        while file in self.files:
            number += 1
            file = f"{_DIRECTORY}{plain}-{number}.pickle"
        return file


def check_pickle_leaves(allowed: Iterable[str]) -> tuple[str, ...]:
    """Check the argument ``pickle_leaves`` of a manager; returns its names.

    Raises:
        UsageError: It is a single text, which is a sequence too, or an item is not a name.
    """
    hint = """Give names as the error message writes them: pickle_leaves=["extra['env']"]."""
    found: tuple[str, ...] = checked_items("pickle_leaves", allowed, str, what="names", hint=hint)
    return found


def refuse_pickles(state: Any, name: str, what_to_do: str = _INTO_OBJECT) -> None:
    """Refuse to load a state that has pickles: what it is for could not use them.

    Args:
        state: The state.
        name: Its name, for the message.
        what_to_do: The end of the message.

    Raises:
        TypeError: It has one; the message names it.
    """
    if isinstance(state, PickledLeaf):
        raise TypeError(
            f"{name} is a pickle of a {state.kind!r}, which no load opens: {what_to_do}"
        )
    items: Any = ()
    if isinstance(state, dict):
        items = state.items()
        for key in state:
            refuse_pickles(key, f"{name}[{key!r}]", what_to_do)
    elif isinstance(state, (list, tuple, set, frozenset)):
        items = enumerate(state)
    for key, inner in items:
        refuse_pickles(inner, f"{name}[{key!r}]", what_to_do)


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
