"""ciuic: snapshots that bring training runs back.

    from ciuic import SnapshotManager

Importing this package loads nothing but the version, so that a training process pays nothing
for having it at hand. ``SnapshotManager``, the policies for its argument ``keep`` (``Best``,
``EverySteps``, ``Younger``), ``Layer`` and ``PickledLeaf`` are loaded when they are first used.
"""

import importlib

__all__ = ["__version__"]

__version__ = "0.1.0"

_POLICIES = "ciuic.training.retention.policies"
_MODULES = {
    "SnapshotManager": "ciuic.training.manager",
    "Best": _POLICIES,
    "EverySteps": _POLICIES,
    "Younger": _POLICIES,
    "Layer": "ciuic.training.layers.groups",
    "PickledLeaf": "ciuic.training.values.pickles",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is not None:
        # By name: the lower layers import this package for its version.
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
