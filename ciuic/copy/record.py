"""What this machine knows of a copy, so that ``status`` need not ask a server: ``copies/*.json``.

The files are beside the chunk index, in the store's directory or in the cache directory. One that
is missing or damaged costs a walk through the copy, and no snapshot.
"""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ciuic.catalog import list_snapshots
from ciuic.documents import Document
from ciuic.errors import CorruptionError, StoreError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.directory.folder import Folder
from ciuic.store.place.keys import is_url
from ciuic.store.records import layout
from ciuic.store.records.copy_record import CopyRecord, decode_copy_record, encode_copy_record
from ciuic.store.store import Store
from ciuic.system import durable, nofollow
from ciuic.system.clock import rfc3339
from ciuic.system.hashing import data_id
from ciuic.system.trust import is_trusted_owner
from ciuic.units import counted, format_duration

__all__ = [
    "UNSENT",
    "Standing",
    "holders",
    "read_record",
    "recorded_copies",
    "standings",
    "write_record",
]

UNSENT: Final = -1
"""Instead of the number of a mark: the copy has the snapshot, and its state was not sent."""
_BYTES_MAX: Final = 64 * 1024 * 1024
_NAME_DIGITS: Final = 32
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Standing:
    """How far behind a copy is.

    Attributes:
        name: Its name in the configuration, or its address.
        address: The copy's directory or URL.
        missing: How many listed snapshots the copy has never had.
        behind_s: How long ago the oldest of them was taken; 0: none is missing.
        late_s: The same, but at most the time since the first try.
        tried_ns: When a copy was tried last; None: never.
        done_ns: When the last one that copied everything ended; None: none has.
        problem: Why the last one did not copy everything; empty: it did.
        damaged: How many snapshots of the copy stay damaged, as far as is known.
        differences: How the copy is ahead of the store, or has diverged from it, in sentences.
    """

    name: str
    address: str
    missing: int
    behind_s: float
    late_s: float
    tried_ns: int | None
    done_ns: int | None
    problem: str
    damaged: int = 0
    differences: tuple[str, ...] = ()

    @property
    def is_behind(self) -> bool:
        """Whether snapshots are missing, or the last try did not do everything."""
        return bool(self.missing or self.problem)

    def sentence(self) -> str:
        """Return what to tell a person, without a period."""
        if self.tried_ns is None:
            return "has nothing from this machine yet"
        if not self.missing:
            text = "may lack something" if self.problem else "has every snapshot"
        else:
            age = format_duration(self.behind_s)
            text = f"lacks {counted(self.missing, 'snapshot')}, the oldest taken {age} ago"
        failed = [f"the last try failed: {self.problem}"] if self.problem else []
        return "; ".join([text, *self.differences, *failed])

    @property
    def advice(self) -> str:
        """How to bring it up to date."""
        init = " --init" if self.tried_ns is None else ""
        return (
            f"Run 'ciuic copy --to {shlex.quote(self.name)}{init}', and 'systemctl enable --now"
            " ciuic-copy.path ciuic-copy.timer' to copy after each snapshot."
        )

    def as_json(self) -> Document:
        """Return its fields in JSON documents."""
        return {
            "name": self.name,
            "address": self.address,
            "missing": self.missing,
            "behind_s": round(self.behind_s, 3),
            "tried": None if self.tried_ns is None else rfc3339(self.tried_ns),
            "done": None if self.done_ns is None else rfc3339(self.done_ns),
            "problem": self.problem or None,
            "damaged": self.damaged,
            "differences": list(self.differences),
        }


def read_record(store_path: str, address: str) -> CopyRecord | None:
    """Return the record of a copy; None if there is none that can be used."""
    record = _decoded(store_path, _file_name(address))
    return record if record is not None and record.address == address else None


def recorded_copies(store_path: str) -> list[CopyRecord]:
    """Return the records of the copies that have snapshots, directories first.

    Nothing that another user owns is believed, in a shared store neither: that user could name any
    server.
    """
    folder = Folder(store_path, layout.COPIES)
    if not (_is_own(store_path) and _is_own(folder.path)):
        return []
    names = [name for name in folder.names(lambda name: name) if _is_own(folder.path_of(name))]
    records = [record for name in names if (record := _decoded(store_path, name)) is not None]
    with_snapshots = [record for record in records if record.marks]
    return sorted(with_snapshots, key=lambda record: (is_url(record.address), record.address))


def write_record(store_path: str, record: CopyRecord) -> StoreError | None:
    """Replace the record of a copy.

    Returns:
        The error, if it failed. It is not raised, because the copy is good without the record.
    """
    directory = os.path.join(store_path, layout.COPIES)
    path = os.path.join(directory, _file_name(record.address))
    try:
        durable.make_directory(directory, 0o700)
        # Not in tmp/, which the next writer of the store empties.
        durable.write_whole(
            path, encode_copy_record(record), temporary_directory=directory, mode=0o600
        )
    except OSError as error:
        return StoreError(f"{path} cannot be written: {os.strerror(error.errno or 0)}")
    return None


def standings(
    store: Store,
    copies: Sequence[tuple[str, str]],
    now_ns: int,
    snapshots: Iterable[SnapshotSummary] | None = None,
) -> tuple[Standing, ...]:
    """Return how far behind each copy is, from the records alone.

    Args:
        store: The store that is copied.
        copies: The name and the address of each.
        now_ns: The time.
        snapshots: The listed snapshots, if the caller has them.
    """
    if not copies:
        return ()
    known = list_snapshots(store) if snapshots is None else snapshots
    taken = {snapshot.id: snapshot.taken_ns for snapshot in known}
    return tuple(_standing(store.path, copy, taken.items(), now_ns) for copy in copies)


def holders(store_path: str, copies: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Map each snapshot that copies have or had to the names of these copies."""
    found: dict[str, list[str]] = {}
    for name, address in copies:
        record = read_record(store_path, address)
        for snapshot_id in () if record is None else record.marks:
            found.setdefault(snapshot_id, []).append(name)
    return found


def _standing(
    store_path: str,
    copy: tuple[str, str],
    taken: Iterable[tuple[SnapshotId, int]],
    now_ns: int,
) -> Standing:
    name, address = copy
    record = read_record(store_path, address)
    there = {} if record is None else record.marks
    missing = [taken_ns for snapshot_id, taken_ns in taken if snapshot_id not in there]
    oldest_ns = min(missing, default=now_ns)
    since_ns = oldest_ns if record is None else max(oldest_ns, record.since_ns)
    return Standing(
        name=name,
        address=address,
        missing=len(missing),
        behind_s=max(0.0, (now_ns - oldest_ns) / _NS),
        late_s=max(0.0, (now_ns - since_ns) / _NS) if missing else 0.0,
        tried_ns=None if record is None else record.tried_ns,
        done_ns=None if record is None else record.done_ns,
        problem="" if record is None else record.problem,
        damaged=0 if record is None else record.damaged,
        differences=() if record is None else tuple(record.differences),
    )


def _is_own(path: str) -> bool:
    try:
        return is_trusted_owner(nofollow.status(path).st_uid)
    except OSError:
        return False


def _decoded(store_path: str, name: str) -> CopyRecord | None:
    try:
        return decode_copy_record(Folder(store_path, layout.COPIES).read(name, _BYTES_MAX))
    except (FileNotFoundError, StoreError, CorruptionError, UnknownFormatError):
        return None


def _file_name(address: str) -> str:
    return f"{data_id(os.fsencode(address)).hex()[:_NAME_DIGITS]}.json"
