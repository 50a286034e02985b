"""Files of the source -> their bytes as of one moment: frozen where the file system can.

providers  how a root can be captured, found by trying
freezer    a snapshot's frozen side: begin, record, retain
early      clones made before the freeze begins
views      a root as the walk sees it: live, frozen, or cloned file by file
frozen     where frozen copies lie and what is recorded of them
extents    which ranges two frozen copies share
reading    the bytes of a file, with a look before and after where it is not frozen
cache      the page cache is left as it was found
holders    which program writes to a file
kernel     the system calls
"""

from ciuic.capture.early import LeftOut
from ciuic.capture.extents import Range, changed_ranges, data_ranges
from ciuic.capture.freezer import Freezer
from ciuic.capture.frozen import AREA_NAME, FrozenRoot
from ciuic.capture.providers import IN_PLACE, REFLINK, SUBVOLUME, Choice, choose
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
from ciuic.capture.views import FrozenFile, RootView, SubvolumeView

__all__ = [
    "AREA_NAME",
    "ATTEMPTS",
    "BLOCK_BYTES",
    "IN_PLACE",
    "REFLINK",
    "SUBVOLUME",
    "Choice",
    "Extent",
    "Freezer",
    "FrozenFile",
    "FrozenRoot",
    "LeftOut",
    "OpenFile",
    "Range",
    "RootView",
    "SubvolumeView",
    "changed_ranges",
    "choose",
    "data_ranges",
    "is_settled",
    "read_small",
    "same_content",
    "source_faults",
]
