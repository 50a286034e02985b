"""ciuic: snapshots that bring training runs back.

    from ciuic import SnapshotManager

Importing this package loads nothing but the version, so that a training process pays nothing
for having it at hand. ``SnapshotManager`` is loaded when it is first used.
"""

import importlib

__all__ = ["__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "SnapshotManager":
        # By name: the lower layers import this package for its version.
        return importlib.import_module("ciuic.training.manager").SnapshotManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
