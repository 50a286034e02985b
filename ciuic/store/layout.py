"""Every name in a store, built and parsed here and nowhere else. docs/format.md, "Layout"."""

import os
import re
from typing import Final

__all__ = [
    "CATALOG",
    "CONTROL_SOCKET",
    "DAEMON_LOCK",
    "HEADER",
    "PACKS",
    "PARITY",
    "PRUNING",
    "QUARANTINE",
    "READ_LOCK",
    "RETIRED",
    "SNAPSHOTS",
    "TEMPORARY",
    "TRASH",
    "WRITE_LOCK",
    "is_snapshot_id",
    "manifest_name",
    "pack_name",
    "parse_manifest_name",
    "parse_pack_name",
    "parse_set_aside_name",
]

HEADER: Final = "ciuic-store.json"
CATALOG: Final = "catalog.sqlite"
WRITE_LOCK: Final = "lock.write"
READ_LOCK: Final = "lock.read"
DAEMON_LOCK: Final = "daemon.lock"
CONTROL_SOCKET: Final = "control.sock"
PACKS: Final = "packs"
PARITY: Final = "parity"
PRUNING: Final = "prune.unfinished"
QUARANTINE: Final = "quarantine"
RETIRED: Final = "retired.json"
SNAPSHOTS: Final = "snapshots"
TEMPORARY: Final = "tmp"
TRASH: Final = "trash"

_SNAPSHOT_ID = re.compile(r"cs-[0-9a-f]{6,64}")
_PACK = re.compile(r"[0-9a-f]{64}")


def is_snapshot_id(text: str) -> bool:
    """``text`` has the form of a whole snapshot ID."""
    return _SNAPSHOT_ID.fullmatch(text) is not None


def manifest_name(snapshot_id: str) -> str:
    """File name of a snapshot's manifest in ``snapshots/``."""
    return f"{snapshot_id}.json"


def parse_manifest_name(name: str) -> str | None:
    """The snapshot ID that a file in ``snapshots/`` is for; None for a stranger."""
    stem, extension = os.path.splitext(name)
    return stem if extension == ".json" and is_snapshot_id(stem) else None


def parse_set_aside_name(name: str) -> str | None:
    """The snapshot whose manifest a file in ``quarantine/`` was; None for anything else."""
    stem, extension, number = name.partition(".json")
    is_numbered = not number or number[1:].isdecimal()
    return parse_manifest_name(stem + extension) if is_numbered else None


def pack_name(pack_id: bytes) -> str:
    """File name of a pack in ``packs/``."""
    return pack_id.hex()


def parse_pack_name(name: str) -> bytes | None:
    """The pack that a file in ``packs/`` is; None for a stranger."""
    return bytes.fromhex(name) if _PACK.fullmatch(name) else None
