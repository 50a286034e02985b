"""Copy a state into shared memory."""

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import ciuic
from ciuic.training.files import STATE_NAME, state_document
from ciuic.training.layers.groups import Layer, groups_of
from ciuic.training.staging.buffer import StagingBuffer
from ciuic.training.staging.gpu import GpuCopies
from ciuic.training.staging.plan import Part, StagePlan, make_plan
from ciuic.training.values.pickles import Pickles

__all__ = ["StagedFile", "Stager"]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file whose bytes are in the shared memory.

    Attributes:
        name: Its path below the root of the snapshot.
        parts: Its bytes, in order.
    """

    name: str
    parts: tuple[Part, ...]


class Stager:
    """Copies one state after another into the shared memory.

    Args:
        buffer: The shared memory.
        layers: The groups of the model's parameters.
        pickle_leaves: See ``Pickles``.

    Attributes:
        has_copied_frozen: The last state was copied with its frozen layers.
    """

    def __init__(
        self,
        buffer: StagingBuffer,
        layers: Sequence[Layer] = (),
        pickle_leaves: Sequence[str] = (),
    ) -> None:
        self.has_copied_frozen = True
        self._pickle_leaves = pickle_leaves
        self._gpu = GpuCopies()
        self._in_memory: tuple[object, ...] | None = None
        self._buffer = buffer
        self._layers = layers
        self._plans: dict[tuple[str, ...], StagePlan] = {}

    def stage(
        self, sections: Mapping[str, object], *, copies_frozen: bool = True
    ) -> list[StagedFile]:
        """Copy a state; returns the files that it makes.

        No other process may be reading the shared memory. When this returns, the state may change.

        Args:
            sections: The values of the state, by the names of their sections.
            copies_frozen: False: the shared memory keeps the frozen layers of the state before, if
                it has them at their places.

        Raises:
            TypeError: A value cannot be stored; the message names it.
            ResourceError: There is not enough memory.
        """
        names = tuple(sections)
        plan = self._plans.get(names)
        pickles = Pickles(self._pickle_leaves)
        fitting = plan.match(sections, pickles) if plan is not None else None
        if plan is not None and fitting is not None:
            written, values = fitting
        else:
            pickles = Pickles(self._pickle_leaves)
            plan, written, values = make_plan(sections, pickles, self._layers)
            # One for each set of sections: a full state and the weights alone take turns.
            if plan.fits_again:
                self._plans[names] = plan
        fields: dict[str, object] = {"versions": _versions(), "state": written}
        groups = groups_of(self._layers, [name for name, _ in plan.files], sections.get("step"))
        if groups:
            fields["layers"] = groups
        # Their lengths change from state to state, so they have no place in the plan.
        others = {STATE_NAME: state_document(fields), **pickles.files}
        size_bytes = plan.size_bytes + sum(map(len, others.values()))
        memory = self._buffer.reserve(size_bytes)
        self.has_copied_frozen = copies_frozen or plan.frozen != self._in_memory
        self._in_memory = None  # unless the copy succeeds
        plan.copy(values, memory, self._gpu, copies_frozen=self.has_copied_frozen)
        self._in_memory = plan.frozen
        files, begin = [], plan.size_bytes
        for name, data in others.items():
            memory[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
            files.append(StagedFile(name, ((begin, len(data)),)))
            begin += len(data)
        return files + [StagedFile(name, parts) for name, parts in plan.files]

    def close(self) -> None:
        """Let go of the shared memory; harmless twice."""
        self._plans.clear()
        self._gpu.close()


def _versions() -> dict[str, str]:
    """Return the versions of the programs that made the state, for people who debug a load."""
    found = {
        "ciuic": ciuic.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found
