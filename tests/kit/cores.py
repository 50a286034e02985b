"""The variants of the compiled core that this processor can run: each must do the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from ciuic.system import core as module
from ciuic.system.core import Core, State, load

__all__ = ["VARIANTS", "using"]


def _variants() -> list[Core]:
    """The core with each set of vector instructions of this processor; none without the core."""
    built = load("").core
    if built is None:
        return []
    masks = [mask for mask in range(built.targets + 1) if mask & built.targets == mask]
    return [Core(built.functions, mask) for mask in masks]


VARIANTS = _variants()


@contextmanager
def using(compiled: Core | None) -> Iterator[None]:
    """Run with this core, or with none, so that Python and numpy do the work."""
    with mock.patch.object(module, "state", lambda: State(compiled, "chosen by a test")):
        yield
