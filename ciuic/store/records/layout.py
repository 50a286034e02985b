"""Names of files in a store, built and parsed only here. docs/format.md, "Layout"."""

import re
from typing import Final

from ciuic.ids import PackId, SessionId, SnapshotId
from ciuic.system.hashing import data_id

__all__ = [
    "ADD_LOCK",
    "CACHE",
    "CATALOG",
    "CATALOG_SUFFIXES",
    "CONDEMNED",
    "CONTROL_SOCKET",
    "COPIES",
    "DAEMON_LOCK",
    "DAMAGED",
    "HEADER",
    "HEADER_COPY",
    "LEASES",
    "MARKS",
    "MARK_NUMBER_MAX",
    "PACKS",
    "PARITY",
    "PRUNING",
    "QUARANTINE",
    "READ_LOCK",
    "RESERVE",
    "RESTORED",
    "RETIRED",
    "RUN_LOCK",
    "SEGMENTS",
    "SNAPSHOTS",
    "TEMPORARY",
    "VERDICTS",
    "WRITE_LOCK",
    "damage_name",
    "is_snapshot_id",
    "manifest_key",
    "manifest_name",
    "mark_key",
    "mark_name",
    "pack_name",
    "parse_damage_name",
    "parse_manifest_name",
    "parse_mark_name",
    "parse_pack_name",
    "parse_retired_name",
    "parse_segment_name",
    "parse_session_name",
    "parse_set_aside_name",
    "retired_name",
    "segment_name",
    "session_name",
]

HEADER: Final = "ciuic-store.json"
CACHE: Final = "CACHE"
HEADER_COPY: Final = "header-of-the-bucket.json"
"""In a cache directory: the store's ID and address."""
CATALOG: Final = "catalog.sqlite"
CATALOG_SUFFIXES: Final = ("-journal", "-wal", "-shm")
"""Files that SQLite may use beside a database. ciuic's chunk index has at most the first."""
WRITE_LOCK: Final = "lock.write"
ADD_LOCK: Final = "lock.add"
READ_LOCK: Final = "lock.read"
COPIES: Final = "copies"
DAEMON_LOCK: Final = "daemon.lock"
CONDEMNED: Final = "condemned"
CONTROL_SOCKET: Final = "control.sock"
DAMAGED: Final = "damaged"
LEASES: Final = "leases"
MARKS: Final = "marks"
PACKS: Final = "packs"
PARITY: Final = "parity"
PRUNING: Final = "prune.unfinished"
QUARANTINE: Final = "quarantine"
RESERVE: Final = "reserve"
RESTORED: Final = "restored"
RETIRED: Final = "retired"
RUN_LOCK: Final = "lock.runs"
SEGMENTS: Final = "segments"
SNAPSHOTS: Final = "snapshots"
TEMPORARY: Final = "tmp"
VERDICTS: Final = "verdicts"

_PREFIX: Final = "cs-"
_JSON: Final = ".json"
_DIGITS: Final = "0123456789abcdef"
_HASH_DIGITS: Final = 64
_RETIRED: Final = r"[0-9a-f]{16}-[1-9][0-9]{0,17}\.json"
_SESSION: Final = r"([0-9a-f]{16})\.json"
_MARK: Final = r"(cs-[0-9a-f]{6,64})-([1-9][0-9]{0,17})\.json"
_DAMAGE: Final = r"([0-9a-f]{64})-damaged-(0|[1-9][0-9]{0,14})-([1-9][0-9]{0,14})-[0-9a-f]{16}"

MARK_NUMBER_MAX: Final = 10**18 - 1


def is_snapshot_id(text: str) -> bool:
    """Return whether ``text`` has the form of a full snapshot ID."""
    return text.startswith(_PREFIX) and _is_hexadecimal(text[len(_PREFIX) :], 6, 64)


def _is_hexadecimal(text: str, least: int, most: int) -> bool:
    """Return whether a text is a number of digits. Unlike a pattern, it need not be compiled."""
    return least <= len(text) <= most and not text.strip(_DIGITS)


def manifest_name(snapshot_id: SnapshotId) -> str:
    """Return the file name of a snapshot's manifest in ``snapshots/``."""
    return f"{snapshot_id}.json"


def parse_manifest_name(name: str) -> SnapshotId | None:
    """Return the snapshot of a file in ``snapshots/``; None if it is not a manifest's name."""
    stem = name.removesuffix(_JSON)
    return SnapshotId(stem) if stem != name and is_snapshot_id(stem) else None


def manifest_key(snapshot_id: SnapshotId) -> str:
    """Return where a snapshot's manifest is in the store."""
    return f"{SNAPSHOTS}/{manifest_name(snapshot_id)}"


def mark_name(snapshot_id: SnapshotId, number: int) -> str:
    """Return the file name of a snapshot's mark in ``marks/``, and of its copy."""
    return f"{snapshot_id}-{number}.json"


def mark_key(snapshot_id: SnapshotId, number: int) -> str:
    """Return where a snapshot's mark is in the store."""
    return f"{MARKS}/{mark_name(snapshot_id, number)}"


def parse_mark_name(name: str) -> tuple[SnapshotId, int] | None:
    """Return the snapshot and the number of a mark; None if it is not a mark's name."""
    match = re.fullmatch(_MARK, name)
    return (SnapshotId(match[1]), int(match[2])) if match else None


def parse_set_aside_name(name: str) -> SnapshotId | None:
    """Return the snapshot whose manifest is a file in ``quarantine/``; None for another file."""
    stem, extension, number = name.partition(".json")
    is_numbered = not number or number[1:].isdecimal()
    return parse_manifest_name(stem + extension) if is_numbered else None


def retired_name(session_id: SessionId, number: int) -> str:
    """Return the file name of a session's record in ``retired/``."""
    return f"{session_id.hex()}-{number}.json"


def parse_retired_name(name: str) -> str | None:
    """Return the name of a record in ``retired/``; None if it is not one's name."""
    return name if re.fullmatch(_RETIRED, name) else None


def segment_name(data: bytes) -> str:
    """Return the name of an index segment in ``segments/``: the hash of its bytes."""
    return data_id(data).hex()


def parse_segment_name(name: str) -> str | None:
    """Return the name of an index segment; None if it is not one's name."""
    return name if _is_hexadecimal(name, _HASH_DIGITS, _HASH_DIGITS) else None


def session_name(session_id: SessionId) -> str:
    """Return the name of a session's object in ``condemned/`` or ``verdicts/``."""
    return f"{session_id.hex()}.json"


def parse_session_name(name: str) -> SessionId | None:
    """Return the session of such an object; None if it is not one's name."""
    match = re.fullmatch(_SESSION, name)
    return SessionId(bytes.fromhex(match[1])) if match else None


def pack_name(pack_id: PackId) -> str:
    """Return the file name of a pack in ``packs/``."""
    return pack_id.hex()


def parse_pack_name(name: str) -> PackId | None:
    """Return the ID of the pack of this file name; None if it is not a pack's name."""
    return (
        PackId(bytes.fromhex(name)) if _is_hexadecimal(name, _HASH_DIGITS, _HASH_DIGITS) else None
    )


def damage_name(pack_id: PackId, begin_bytes: int, end_bytes: int, once: bytes) -> str:
    """Return the name of a record of damage: see ``KnownDamage``.

    Args:
        pack_id: The pack.
        begin_bytes: The first damaged byte.
        end_bytes: The byte behind the last one.
        once: 8 random bytes.
    """
    return f"{pack_id.hex()}-damaged-{begin_bytes}-{end_bytes}-{once.hex()}"


def parse_damage_name(name: str) -> tuple[PackId, int, int] | None:
    """Return pack, begin and end of such a record; None if it is not one's name."""
    match = re.fullmatch(_DAMAGE, name)
    if match is None or int(match[2]) >= int(match[3]):
        return None
    return PackId(bytes.fromhex(match[1])), int(match[2]), int(match[3])
