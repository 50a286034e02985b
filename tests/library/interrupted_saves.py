"""Saves that an exception ends at one place after the other, as Ctrl-C does, in one program.

Argument: the store. Prints the number of places.
"""

import os
import sys
from types import FrameType
from typing import Any

import numpy as np

import ciuic
from ciuic import SnapshotManager

TRAINING = os.path.join(os.path.dirname(ciuic.__file__), "training")
TRACED = frozenset(
    os.path.join(TRAINING, name)
    for name in ("client.py", "handle.py", "manager.py", "saves.py", "ranks/client.py")
)
"""The files in which a save has a state that an exception could leave half changed."""


def state(step: int) -> dict[str, np.ndarray]:
    return {f"layer.{number}": np.full(400, step) for number in range(100)}


class Interruption:
    """Raises an exception at one line of the library, if the save comes to it."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.left, self.error = at, error

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                raise self.error("at this line")
        return self


def interrupted(
    manager: SnapshotManager, step: int, at: int, error: type[BaseException], **more: object
) -> bool:
    """Save, and end the save at a line; returns whether it came to this line."""
    sys.settrace(Interruption(at, error))
    try:
        manager.save_snapshot(state(step), {}, 0, step=step, **more)
    except error:
        return True
    finally:
        sys.settrace(None)
    return False


def checked(manager: SnapshotManager, step: int) -> None:
    """Save without an exception, and find this state and every other one whole."""
    manager.save_snapshot(state(step), {}, 0, step=step).wait(60)
    for found in manager.list()[:3]:
        assert found.step is not None
        loaded = manager.load_snapshot(found.id)["model_state_dict"]
        for value in loaded.values():
            assert (value == found.step).all(), found


def main(store: str) -> None:
    step = at = 0
    with SnapshotManager(store, max_snapshots=3) as manager:
        checked(manager, step)
        while interrupted(manager, step + 1, at, KeyboardInterrupt):
            # The call that mends what the first one has left may be interrupted too.
            interrupted(manager, step + 2, at // 2, MemoryError)
            checked(manager, step + 3)
            step, at = step + 3, at + 1
    print(at)


if __name__ == "__main__":
    main(*sys.argv[1:])
