"""Requests and bytes of a store in a bucket: counted in a small store, then extrapolated to a year.

    PYTHONPATH=.:scripts python -m benchmarks.bucket_costs [--nodes N]... [--kept N]

The bucket is a directory, behind the interface of an object store. The program counts the requests
of one snapshot and of one prune there, and the sizes of the objects that each leaves. The year
repeats them hour by hour, and listings grow by a page for each 1,000 objects.
"""

import argparse
import importlib
import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

_KIT: Any = importlib.import_module("tests.kit.buckets")
"""The kit of the tests has no types."""

PAGE = 1000
HOURS = 365 * 24
PUTS = ("put", "put_file", "stage", "create", "replace")
GETS = ("get", "get_versioned", "get_ranges", "size_bytes")
LISTED = ("marks", "snapshots", "condemned", "verdicts", "packs")
"""What each session lists at its beginning."""
US_DOLLARS = {"put": 0.005 / 1000, "list": 0.005 / 1000, "get": 0.0004 / 1000, "delete": 0.0}
"""The prices of S3 in its first region."""


class Counting:
    """A place in front of another one, which counts requests and the bytes that they carry."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self.requests: Counter[str] = Counter()
        self.carried: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._place, name)
        if name in PUTS:
            kind = "put"
        elif name in GETS:
            kind = "get"
        elif name in {"list", "keys", "delete"}:
            kind = "delete" if name == "delete" else "list"
        else:
            return method

        def counted(*arguments: Any, **more: Any) -> Any:
            self.requests[kind] += 1
            found = method(*arguments, **more)
            if kind == "put":
                body = arguments[1]
                self.carried["up"] += body.size_bytes if name == "put_file" else len(body)
            elif isinstance(found, bytes):
                self.carried["down"] += len(found)
            elif isinstance(found, list):
                self.carried["down"] += sum(map(len, found))
            return found

        return counted


class Measured(NamedTuple):
    """The counts.

    Attributes:
        unchanged: Requests of a snapshot with nothing new.
        changed: Requests of a snapshot with one new pack or two.
        prune: Requests of a prune that removes packs, with one listing of each folder.
        manifest_bytes: Size of a manifest.
        segment_bytes: Size of the segment of a session.
        verdict_bytes: What a verdict takes for each pack.
    """

    unchanged: Counter[str]
    changed: Counter[str]
    prune: Counter[str]
    manifest_bytes: int
    segment_bytes: int
    verdict_bytes: int


def measure(top: Path) -> Measured:
    """Take snapshots in a small store, and prune it."""
    machine = _KIT.FolderMachine(top / "bucket", top / "cache")
    machine.init()
    source = top / "source"
    _KIT.write(source, [f"{number}" for number in range(20)], 200_000)
    machine.take_at(machine.place(), source)
    _KIT.write(source, ["0"], 1_500_000)
    changed = Counting(machine.place())
    machine.take_at(changed, source)
    unchanged = Counting(machine.place())
    last = machine.take_at(unchanged, source).id
    for number in range(1, 15):
        _KIT.write(source, [f"{number}"], 1_500_000)
        last = machine.take_at(machine.place(), source).id
    place = machine.place()
    segments = [one.size_bytes for one in place.list("segments")]
    machine.forget(*(machine.ids() - {last}))
    prune = Counting(machine.place())
    report = machine.prune(place=prune)
    removed = report.removed.packs + report.rewritten.packs
    verdicts = sum(one.size_bytes for one in place.list("verdicts"))
    return Measured(
        unchanged.requests,
        changed.requests,
        prune.requests,
        place.size_bytes(f"snapshots/{last}.json"),
        round(sum(segments) / len(segments)),
        round(verdicts / max(1, removed)),
    )


class Year(NamedTuple):
    """One year of a store.

    Attributes:
        requests: By kind.
        rate: Requests a second in its last hour.
        fetched_bytes: What each machine reads in the last hour of what others wrote.
        index_bytes: Segments at the end.
        pages: Pages of the listings of one session in the last hour.
    """

    requests: Counter[str]
    rate: float
    fetched_bytes: float
    index_bytes: int
    pages: int

    @property
    def dollars(self) -> float:
        """The price of the requests."""
        return sum(US_DOLLARS[kind] * count for kind, count in self.requests.items())


def simulate(measured: Measured, nodes: int, kept: int) -> Year:
    """Repeat what was counted: each node takes a snapshot an hour, and one prune runs a day.

    Args:
        measured: The counts.
        nodes: Machines that share the store.
        kept: Snapshots of each node that its retention policy keeps.
    """
    total: Counter[str] = Counter()
    hour: Counter[str] = Counter()
    pages = verdicts = 0
    for number in range(HOURS):
        listed = nodes * min(kept, number + 1)
        objects = {"marks": 0, "snapshots": listed, "condemned": 0, "packs": 2 * listed}
        objects["verdicts"] = verdicts
        pages = sum([max(1, math.ceil(objects[folder] / PAGE)) for folder in LISTED])
        hour = Counter({kind: nodes * count for kind, count in measured.changed.items()})
        hour["list"] += nodes * (pages - len(LISTED))
        # Each machine reads each manifest and each segment of the others, once.
        hour["get"] += nodes * (nodes - 1) * 2
        if number % 24 == 23 and number >= kept:
            hour.update(measured.prune)
            hour["list"] += pages - len(LISTED)
            hour["delete"] += math.ceil(nodes * 24 / PAGE)
            verdicts += 1
        total += hour
    others = (nodes - 1) * (measured.manifest_bytes + measured.segment_bytes)
    rate = sum(hour.values()) / 3600
    return Year(total, rate, others, nodes * kept * measured.segment_bytes, pages)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--kept", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        measured = measure(Path(top))
    print(measured)
    print("| nodes | requests a year, by kind | US$ | a second | pages | index | read an hour |")
    for nodes in options.nodes or (1, 10, 100, 1000, 10_000):
        year = simulate(measured, nodes, options.kept)
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(year.requests.items()))
        print(
            f"| {nodes:,} | {kinds} | {year.dollars:,.2f} | {year.rate:,.2f} | {year.pages:,}"
            f" | {year.index_bytes:,} | {year.fetched_bytes:,.0f} |"
        )


if __name__ == "__main__":
    main()
