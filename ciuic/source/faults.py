"""Turn the errors of system calls on the source into SourceError."""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from ciuic.errors import ResourceError, SourceError, VanishedError

__all__ = ["CHANGED_TYPE", "source_error", "source_faults"]

CHANGED_TYPE: Final = "changed its type while the snapshot was taken"
"""The message for a path that was a regular file or a directory, and no longer is."""


@contextlib.contextmanager
def source_faults() -> Iterator[None]:
    """Turn any OSError of the block into a SourceError; the block must only touch the source."""
    try:
        yield
    except OSError as error:
        raise source_error(error) from error


def source_error(error: OSError) -> SourceError | ResourceError:
    """Return the error to raise for an OSError from the source."""
    if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
        return ResourceError(f"the snapshot cannot continue: {os.strerror(error.errno)}")
    if error.errno == errno.ENOENT:
        return VanishedError("vanished while the snapshot was taken")
    if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
        return SourceError(CHANGED_TYPE)
    return SourceError(f"could not be read: {os.strerror(error.errno or 0)}")
