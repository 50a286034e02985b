"""What the API answers about snapshots, read from the store for each request.

Each request opens the store again: it may have been pruned, moved or mounted again meanwhile.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Final, Literal

from ciuic.catalog import find_snapshot
from ciuic.copy.read_through import CopySource, reading_through
from ciuic.copy.record import Standing, standings
from ciuic.documents import Document
from ciuic.drill.drill import last_drill
from ciuic.errors import CiuicError, SnapshotNotFoundError
from ciuic.ids import SnapshotId
from ciuic.maintain.scrub.pack_health import Health, health
from ciuic.model import Entry, SnapshotSummary
from ciuic.report.change_documents import change_json
from ciuic.report.doctor.findings import PROBLEM, WARNING, Finding, Subject
from ciuic.report.entries import entry_json
from ciuic.report.growth import full_in_s
from ciuic.store.addressed import open_at_address, refuse_unreachable, short_limits
from ciuic.store.index.places import DrillRecord
from ciuic.store.index.records import GONE
from ciuic.store.place.location import PlaceOptions
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.system.clock import Clock, local_time_text, rfc3339
from ciuic.units import counted, format_duration
from ciuic.view.diff import diff
from ciuic.view.located import Located, inner_path, root_entry
from ciuic.view.locator import locate
from ciuic.view.paging import entries_after
from ciuic.web.examinations import FRESH_S, Examination, Examinations
from ciuic.web.models import (
    Change,
    ChangePage,
    Copy,
    Drill,
    Overview,
    RootState,
    Snapshot,
    SnapshotDetail,
    SnapshotPage,
    StoreSpace,
    TreeEntry,
    TreePage,
    Trouble,
)
from ciuic.web.models import Finding as FindingAnswer
from ciuic.web.shown import shown
from ciuic.web.snapshots import Listed, SnapshotList

__all__ = ["Reading", "snapshot_answer"]

_NS: Final = 1_000_000_000
_AWAY_S: Final = 300.0
"""How long a copy that could not be read is left alone: each attempt may take minutes."""


class Reading:
    """Answers questions about one store. Any thread may call it.

    Args:
        store_path: The store's directory, or the URL of its bucket.
        subject: Returns what ``doctor`` examines.
        clock: Tells the time.
        options: How to reach the bucket.
        copies: Returns the copies, which have what is lost here.
    """

    def __init__(
        self,
        store_path: str,
        subject: Callable[[], Subject],
        clock: Clock,
        options: PlaceOptions | None = None,
        copies: Callable[[], Sequence[CopySource]] = tuple,
    ) -> None:
        self.store_path = store_path
        self._options = options
        self._clock = clock
        self._copies = copies
        self._away: dict[str, float] = {}
        self._copies_read: ContextVar[set[str] | None] = ContextVar("copies_read", default=None)
        self._list = SnapshotList(clock, lambda: [(one.name, one.address) for one in copies()])
        short = short_limits(options)
        self._examinations = Examinations(lambda: replace(subject(), options=short), clock)
        self._was_open = True

    @contextlib.contextmanager
    def opened(self, *, is_long: bool = False) -> Iterator[Store]:
        """Open the store for a request; what cannot be read in it is read from the copies.

        A person waits for the answer: a server that is away is noticed within seconds.

        Args:
            is_long: The answer may take long. If the server is away later, ciuic waits for it.
        """
        options = short_limits(self._options)
        if is_long:
            refuse_unreachable(self.store_path, os.environ, self._options)
            options = self._options or PlaceOptions()
        with (
            open_at_address(self.store_path, os.environ, options) as store,
            reading_through(store, self._readable_copies) as through,
        ):
            try:
                yield store
            finally:
                noted = self._copies_read.get()
                for one in through.taken():
                    if one.is_away:
                        self._away[one.address] = self._clock.monotonic_s()
                    if one.chunks and noted is not None:
                        noted.add(one.address)

    @contextlib.contextmanager
    def noting_copies(self) -> Iterator[None]:
        """Have ``copies_read`` tell which copies this thread reads during a ``with`` block."""
        token = self._copies_read.set(set())
        try:
            yield
        finally:
            self._copies_read.reset(token)

    def copies_read(self) -> list[str]:
        """Return the addresses of the copies that gave something: see ``noting_copies``."""
        return sorted(self._copies_read.get() or ())

    def _readable_copies(self) -> list[CopySource]:
        """Return the copies that could be read when they were last tried, or are due again."""
        now_s = self._clock.monotonic_s()
        return [
            one
            for one in self._copies()
            if one.address not in self._away or now_s - self._away[one.address] > _AWAY_S
        ]

    def prepare(self) -> None:
        """Begin the work that takes long at the first request."""
        self._examinations.begin()

    def settle(self) -> None:
        """Return when the work that ``prepare`` has begun is done."""
        self._examinations.settle()

    def changed(self) -> None:
        """Note that the store has changed: what was found about it is found again."""
        self._examinations.changed()

    def overview(self) -> Overview:
        """Return whether all is well, even if the store cannot be opened."""
        listed: Listed | None = None
        checks: Health | None = None
        drill: DrillRecord | None = None
        copies: tuple[Standing, ...] = ()
        examined: tuple[Examination, float] | None = None
        now_ns = self._clock.now_ns()
        with contextlib.suppress(CiuicError, OSError), self.opened() as store:
            listed = self._list.get(store)
            checks = health(store, is_asked=False)
            drill = last_drill(store)
            self._note(is_open=True)
            examined = self._examinations.get()
            plan = examined[0].subject.plan
            if plan is not None:
                copies = standings(store, plan.copies, now_ns, listed.snapshots)
        if examined is None:
            self._note(is_open=False)
            examined = self._examinations.get()
        found, examined_s = examined
        subject, findings = found.subject, found.findings
        snapshots = [] if listed is None else listed.snapshots
        newest = snapshots[0] if snapshots else None
        age_s = None if newest is None else max(0.0, (now_ns - newest.taken_ns) / _NS)
        free, total = _space(self.store_path)
        daemon = subject.daemon if isinstance(subject.daemon, dict) else {}
        level = _level(findings)
        return Overview(
            level=level,
            headline=_headline(findings, age_s, examined_s),
            store=os.fsencode(self.store_path),
            snapshots=len(snapshots),
            newest=None if newest is None or listed is None else snapshot_answer(listed, newest),
            newest_age_s=age_s,
            next=daemon["next"] if isinstance(daemon.get("next"), str) else None,
            doing=_doing(daemon),
            free_bytes=free,
            total_bytes=total,
            full_in_s=None if free is None else full_in_s(snapshots, free, now_ns),
            packs=None if checks is None else checks.packs,
            checked_packs=None if checks is None else _sound(checks),
            copies=[Copy.model_validate(one.as_json()) for one in copies],
            last_drill=None if drill is None else _drill(drill),
            examined_s=examined_s,
            findings=[_finding(one) for one in findings],
        )

    def _note(self, *, is_open: bool) -> None:
        """Note whether the store can be opened: an examination before does not know that."""
        if is_open != self._was_open:
            self._was_open = is_open
            self._examinations.changed()

    def listed(self, store: Store) -> Listed:
        """Return the list of snapshots; the same object while it does not change."""
        return self._list.get(store)

    def find(self, store: Store, name: str) -> SnapshotSummary:
        """Return the snapshot that a name means. A full ID needs no list of all snapshots."""
        listed = self._list.get(store)
        place = listed.places.get(SnapshotId(name))
        if place is None:
            return find_snapshot(store, name, tagged=True, listed=listed.snapshots)
        return listed.snapshots[place]

    def snapshots(self, *, after: str = "", text: str = "", count: int = 100) -> SnapshotPage:
        """Return a part of the list.

        Args:
            after: The last snapshot of the part before; empty: begin with the newest.
            text: Only snapshots with this in their ID, time, tags, roots, host or schedule.
            count: The most snapshots of the part.
        """
        with self.opened() as store:
            listed = self._list.get(store)
        if after and after not in listed.places:
            raise SnapshotNotFoundError(
                f"the list has no snapshot {after} any more", hint="Begin with the newest again."
            )
        begin = listed.places[SnapshotId(after)] + 1 if after else 0
        later = itertools.islice(listed.snapshots, begin, None)
        matching = (one for one in later if not text or _has_words(one, text.lower()))
        found = list(itertools.islice(matching, count + 1))
        return SnapshotPage(
            snapshots=[snapshot_answer(listed, one) for one in found[:count]],
            total=len(listed.snapshots),
            next=found[count - 1].id if len(found) > count else None,
        )

    def space(self) -> StoreSpace:
        """Return the space that the snapshots take, as their manifests say."""
        with self.opened() as store:
            listed = self._list.get(store)
        newest = listed.snapshots[0] if listed.snapshots else None
        return StoreSpace(
            store=os.fsencode(self.store_path),
            snapshots=len(listed.snapshots),
            logical_bytes=sum(one.logical_bytes for one in listed.snapshots),
            stored_bytes=sum(one.stored_bytes for one in listed.snapshots),
            newest=None if newest is None else snapshot_answer(listed, newest),
        )

    def snapshot(self, name: str) -> SnapshotDetail:
        """Return what a manifest says. ``name`` is an ID, a prefix of one, ``latest``, a time."""
        with self.opened() as store:
            listed = self._list.get(store)
            summary = self.find(store, name)
            manifest = store.manifest(summary.id)
        return SnapshotDetail(
            snapshot=snapshot_answer(listed, summary),
            writer=os.fsencode(manifest.writer),
            read_bytes=manifest.read_bytes,
            freeze_s=manifest.capture_s,
            **manifest.exclude.as_json(),
            roots=[
                RootState(
                    path=root.path,
                    tree=root.tree.hex(),
                    missing=os.fsencode(root.missing),
                    capture=root.capture,
                )
                for root in manifest.roots
            ],
            trouble=[
                Trouble(path=one.path, what=os.fsencode(one.what)) for one in manifest.trouble
            ],
            before=_before(listed, summary),
        )

    def tree(
        self, name: str, path: bytes = b"/", *, after: bytes = b"", count: int = 500
    ) -> TreePage:
        """Return a part of a directory; above the roots, the directories that lead to them."""
        with self.opened() as store:
            summary = self.find(store, name)
            manifest = store.manifest(summary.id)
            above = _above(store, manifest, path)
            if above is not None:
                shown = [_entry(one.path, one.entry) for one in above]
                return TreePage(snapshot=summary.id, entry=None, entries=shown, next=None)
            located = locate(store, manifest, path)
            found = entries_after(store, located.entry, after, count + 1)
        return TreePage(
            snapshot=summary.id,
            entry=_entry(located.path, located.entry),
            entries=[_entry(inner_path(located.path, one.name), one) for one in found[:count]],
            next=found[count - 1].name if len(found) > count else None,
        )

    def changes(self, before: str, after: str, *, skip: int = 0, count: int = 500) -> ChangePage:
        """Return a part of the changes from one snapshot to another."""
        with self.opened() as store:
            old, new = self.find(store, before), self.find(store, after)
            found = diff(store, store.manifest(old.id), store.manifest(new.id))
            part = list(itertools.islice(found, skip, skip + count + 1))
        return ChangePage(
            before=old.id,
            after=new.id,
            skip=skip,
            changes=[Change.model_validate(change_json(one)) for one in part[:count]],
            more=len(part) > count,
        )


def _level(findings: list[Finding]) -> Literal["ok", "warning", "problem"]:
    found = {finding.level for finding in findings}
    return "problem" if PROBLEM in found else "warning" if WARNING in found else "ok"


def _headline(findings: list[Finding], age_s: float | None, examined_s: float) -> str:
    """Return the state in one line, with the age of the findings if they are not new."""
    newest = "there is no snapshot"
    if age_s is not None:
        newest = f"the newest snapshot is {format_duration(age_s)} old"
    if examined_s > FRESH_S:
        newest += f"; checked {format_duration(examined_s)} ago"
    problems = sum(finding.level == PROBLEM for finding in findings)
    if problems:
        return f"{counted(problems, 'problem')}; {newest}"
    warnings = sum(finding.level == WARNING for finding in findings)
    if warnings:
        return f"{counted(warnings, 'warning')}; {newest}"
    return f"All is well; {newest}"


def _finding(finding: Finding) -> FindingAnswer:
    return FindingAnswer.model_validate(finding.as_json())


def _sound(checks: Health) -> int:
    there = [known for known in checks.damaged if known.what != GONE]
    return max(0, checks.packs - checks.unchecked - len(there))


def _drill(record: DrillRecord) -> Drill:
    return Drill(
        ended=rfc3339(record.done_ns),
        files=record.files,
        restored_bytes=record.restored_bytes,
        outcome=os.fsencode(record.outcome),
    )


def _space(path: str) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _doing(daemon: Document) -> bytes | None:
    """Return what the daemon does now."""
    progress, upkeep = daemon.get("progress"), daemon.get("upkeep")
    if isinstance(progress, dict):
        return os.fsencode(f"snapshot: {progress.get('state')}")
    if isinstance(upkeep, dict) and upkeep.get("doing"):
        return os.fsencode(str(upkeep["doing"]))
    return None


def snapshot_answer(listed: Listed, summary: SnapshotSummary) -> Snapshot:
    """Return the document of a snapshot."""
    chain = listed.chains.get(summary.id)
    length = {"chain_length": 0, "chain_complete": False} if chain is None else chain.as_json()
    copies = listed.copies.get(summary.id, [])
    return Snapshot.model_validate({**summary.as_json(), **length, "copies": copies})


def _has_words(summary: SnapshotSummary, text: str) -> bool:
    """Return whether a search for a text finds a snapshot: as it is, or as the page shows it."""
    words = _words(summary)
    return text in words or ("\\" in text and text in shown(words))


def _words(summary: SnapshotSummary) -> str:
    """Return all that a search looks through."""
    roots = [os.fsdecode(root) for root in summary.roots]
    words = [summary.id, local_time_text(summary.taken_ns), summary.host, summary.schedule]
    return "\n".join(
        [*words, *summary.tags, summary.note, *roots, "pinned" if summary.pinned else ""]
    ).lower()


def _before(listed: Listed, summary: SnapshotSummary) -> SnapshotId | None:
    """Return the newest older snapshot of the same roots."""
    place = listed.places.get(summary.id)
    if place is None:
        return None
    older = itertools.islice(listed.snapshots, place + 1, None)
    return next((one.id for one in older if set(one.roots) == set(summary.roots)), None)


def _above(store: Store, manifest: Manifest, path: bytes) -> list[Located] | None:
    """Return the roots below a path that is above them; None if it is in a root."""
    inside = [root for root in manifest.roots if _is_in(root.path, path)]
    if not inside or any(_is_in(path, root.path) for root in manifest.roots):
        return None
    return [Located(root.path, root_entry(store, root)) for root in inside if root.tree]


def _is_in(path: bytes, above: bytes) -> bool:
    return path == above or path.startswith(above.rstrip(b"/") + b"/")


def _entry(path: bytes, entry: Entry) -> TreeEntry:
    return TreeEntry.model_validate(entry_json(path, entry))
