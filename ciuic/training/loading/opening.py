"""Opens a store for a load: what is damaged or lost in it is read from its copies."""

import contextlib
import os
import shlex
from collections.abc import Iterator

from ciuic.copy.read_through import CopySource, reading_through, source_of
from ciuic.copy.record import recorded_copies
from ciuic.store.addressed import open_at_address
from ciuic.store.store import Store
from ciuic.training.completeness import warn_program
from ciuic.units import counted

__all__ = ["opened_with_copies"]


@contextlib.contextmanager
def opened_with_copies(address: str) -> Iterator[Store]:
    """Open a store for reading, and the copies of it that this machine has made when needed.

    Args:
        address: The store's directory, or the URL of its bucket.
    """
    with open_at_address(address, os.environ) as store:

        def sources() -> list[CopySource]:
            return [source_of(record) for record in recorded_copies(store.path)]

        with reading_through(store, sources) as through:
            try:
                yield store
            finally:
                asked = through.taken()
        for one in asked:
            if one.problem:
                warn_program(
                    f"the store {store.name} is damaged, and its copy {one.address} did not give"
                    f" all that is lost: {one.problem}"
                )
            if not one.chunks:
                continue
            warn_program(
                f"the store {store.name} is damaged: {counted(one.chunks, 'chunk')} came from the"
                f" copy {one.address}; 'ciuic --store {shlex.quote(store.name)} repair --from"
                f" {shlex.quote(one.address)} --apply' repairs it"
            )
