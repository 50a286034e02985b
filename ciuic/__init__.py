"""ciuic: snapshots that bring training runs back.

Importing this package loads nothing but the version, so that a training process pays nothing
for having it at hand.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
