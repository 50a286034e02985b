"""How much parity can repair."""

from ciuic.store.parity.shape import Shape


def reach_bytes(shape: Shape) -> int:
    """The longest range that can be repaired at any offset, if nothing else is damaged."""
    return shape.rows * shape.segment_bytes - shape.sector_bytes + 1
