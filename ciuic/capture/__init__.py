"""Files of the source -> their bytes as of one moment: frozen where the file system can."""

from ciuic.capture.reading import (
    ATTEMPTS,
    BLOCK_BYTES,
    Extent,
    OpenFile,
    is_settled,
    read_small,
    same_content,
    source_faults,
)

__all__ = [
    "ATTEMPTS",
    "BLOCK_BYTES",
    "Extent",
    "OpenFile",
    "is_settled",
    "read_small",
    "same_content",
    "source_faults",
]
