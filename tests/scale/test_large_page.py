"""Processor time that ``ciuic web`` takes for many snapshots of a directory with many names.

Processor time depends little on the load of the machine.
"""

import os
import re
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.crowded import multiply
from tests.kit.served import Served, served

SNAPSHOTS = 10_000
NAMES = 100_000
CLICK_S = 0.15
FIRST_S = 2.0
"""The first request also lists 10,000 snapshots and examines the store and the machine."""
MOST_MIB = 150

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A store that has one snapshot under 10,000 IDs, because taking 10,000 takes half an hour."""
    box = Box(tmp_path_factory.mktemp("crowded"))
    (box.source / "names").mkdir()
    for number in range(NAMES):
        os.mknod(box.source / "names" / f"{number:06d}.txt")
    box.take()
    multiply(box, SNAPSHOTS, lambda number: {"tags": (f"number-{number}",)})
    return box


def used_s(process: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def clicks(site: Served, box: Box) -> dict[str, str]:
    """Return the address of each page that shows many snapshots or many names."""
    listed = site.ask("/v1/snapshots?limit=1000").document["snapshots"]
    middle = listed[500]["id"]
    names = f"path={box.source}/names"
    return {
        "list": "/snapshots",
        "later part": f"/snapshots?after={middle}",
        "search": "/snapshots?text=number-77",
        "snapshot": f"/snapshots/{middle}",
        "newest": "/snapshots/latest",
        "directory": f"/snapshots/{middle}?{names}",
        "its later part": f"/snapshots/{middle}?{names}&after=050000.txt",
        "1,000 names": f"/v1/snapshots/{middle}/tree?limit=1000&{names}",
        "compare": f"/compare?id={middle}&id=latest",
        "changes": f"/diff?before={middle}&after=latest",
        "timeline": "/timeline",
        "its data": "/v1/timeline",
        "runs": f"/runs?run={box.source}&run=number-77",
        "store": "/store",
    }


def test_no_page_takes_long_with_10000_snapshots_of_100000_names(crowded: Box) -> None:
    with served(crowded) as site:
        before = used_s(site.process.pid)
        assert site.ask("/").status == 200
        first_s = used_s(site.process.pid) - before
        took_s = {}
        for name, place in clicks(site, crowded).items():
            site.ask(place)  # this request computes what the server keeps for later ones
            before = used_s(site.process.pid)
            assert site.ask(place).status == 200
            took_s[name] = used_s(site.process.pid) - before
        status = Path(f"/proc/{site.process.pid}/status").read_text()

    assert first_s < FIRST_S
    assert {name: value for name, value in took_s.items() if value > CLICK_S} == {}
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    assert int(found[1]) / 1024 < MOST_MIB
