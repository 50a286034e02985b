"""Lists snapshots, and finds one by ID, prefix, ``latest``, ``latest-valid`` or time.

A snapshot exists if its manifest's file does, and is listed unless its newest mark says that it is
forgotten. The chunk index has a copy of what manifests say, so that a list need not read a thousand
small files.

whose     which machine's snapshots count; imported by itself, where several machines matter
find      the snapshot that a text means
lost      manifests that are damaged or gone, and chunks that are lost
listing   lists of snapshots, and the rows of the chunk index
removed   snapshots that were removed while they were read
"""

from ciuic.catalog.find import (
    HOW_TO_TAKE,
    LATEST,
    LATEST_VALID,
    ambiguous,
    check_tags,
    find_snapshot,
    holding_roots,
    means_otherwise,
    passed_over,
)
from ciuic.catalog.listing import (
    all_snapshots,
    labelled,
    latest_snapshot,
    list_snapshots,
    remember,
)
from ciuic.catalog.lost import (
    Unreadable,
    damaged_before,
    damaged_manifests,
    damaged_since,
    known_damaged,
    known_lost,
    lacks_manifests,
    list_and_check,
    lost_manifest,
    lost_snapshots,
    unreadable,
)

__all__ = [
    "HOW_TO_TAKE",
    "LATEST",
    "LATEST_VALID",
    "Unreadable",
    "all_snapshots",
    "ambiguous",
    "check_tags",
    "damaged_before",
    "damaged_manifests",
    "damaged_since",
    "find_snapshot",
    "holding_roots",
    "known_damaged",
    "known_lost",
    "labelled",
    "lacks_manifests",
    "latest_snapshot",
    "list_and_check",
    "list_snapshots",
    "lost_manifest",
    "lost_snapshots",
    "means_otherwise",
    "passed_over",
    "remember",
    "unreadable",
]
