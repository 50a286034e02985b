"""``ciuic ls ID PATH`` on a machine that has nothing of a bucket: about a dozen requests.

The bucket is a directory behind the interface of a place, as in test_index_segments.
"""

import os

import pytest

from ciuic.catalog import find_snapshot, list_snapshots
from ciuic.maintain.label import change_tags, set_pinned
from ciuic.store.place.bucket import open_bucket
from ciuic.store.store import open_in_bucket
from ciuic.view.listing import children
from ciuic.view.locator import locate
from tests.kit.buckets import FolderMachine, write
from tests.verbs.test_index_segments import CountingPlace

pytestmark = pytest.mark.root

DOZEN = 12


@pytest.fixture(scope="module", params=[24, 72])
def prepared(request, tmp_path_factory):
    """A store of many snapshots, each with a pack and a mark; returns the IDs, oldest first."""
    top = tmp_path_factory.mktemp("prepared")
    machine = FolderMachine(top / "bucket", top / "cache")
    machine.init()
    taken = []
    for number in range(request.param):
        write(top / "source" / "run", [f"{number}"], 2000)
        taken.append(machine.take_at(machine.place(), top / "source").id)
    machine.forget(*taken[1:4])
    return top, machine, taken


def shown(machine, place, top, text):
    """Return the names that ``ciuic ls`` shows for a directory."""
    bucket = open_bucket(place, machine.environ, only=text)
    with open_in_bucket(bucket) as store:
        found = locate(
            store,
            store.manifest(find_snapshot(store, text, tagged=True).id),
            os.fsencode(top / "source" / "run"),
        )
        return [os.path.basename(one.path) for one in children(store, found)]


@pytest.mark.parametrize("which", [0, 10, -1], ids=["oldest", "middle", "newest"])
def test_a_named_snapshot_is_listed_with_a_dozen_requests(prepared, tmp_path, which):
    top, one, taken = prepared
    place = CountingPlace(one.place())
    machine = FolderMachine(top / "bucket", tmp_path / "cold")

    found = shown(machine, place, top, taken[which])

    assert len(found) == taken.index(taken[which]) + 1
    assert len(place.requests) <= DOZEN, place.requests
    assert len([key for key in place.of("snapshots/") if key.endswith(".json")]) == 1


def test_nodes_that_one_command_did_not_need_are_fetched_for_the_next(prepared, tmp_path):
    top, one, taken = prepared
    machine = FolderMachine(top / "bucket", tmp_path / "cold")
    shown(machine, machine.place(), top, taken[-1])

    with machine.opened() as store:
        assert {summary.id for summary in list_snapshots(store)} == one.ids()
        assert set(store.trash.ids()) == set(taken[1:4])
    assert machine.verify().ok


def test_a_forgotten_snapshot_and_one_that_is_not_there_are_refused_as_before(prepared, tmp_path):
    top, _, taken = prepared
    machine = FolderMachine(top / "bucket", tmp_path / "cold")
    with pytest.raises(Exception, match=f"{taken[1]} was forgotten"):
        shown(machine, machine.place(), top, taken[1])
    with pytest.raises(Exception, match="there is no snapshot cs-ffffffffffffffff"):
        shown(machine, machine.place(), top, "cs-ffffffffffffffff")
    # There are more snapshots than digits.
    firsts = [one[: len("cs-") + 1] for one in (taken[0], *taken[4:])]
    shared = next(one for one in firsts if firsts.count(one) > 1)
    with pytest.raises(Exception, match="is ambiguous"):
        shown(machine, machine.place(), top, shared)


def test_an_older_mark_stays_until_the_newer_one_is_fetched(tmp_path):
    one = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    one.init()
    write(tmp_path / "source" / "run", ["a"])
    pinned, named = (one.take_at(one.place(), tmp_path / "source").id for _ in range(2))
    with one.opened(write=True) as store:
        set_pinned(store, pinned, pinned=True)
    (kept,) = one.cache.glob(f"**/marks/{pinned}*")
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    with other.opened(write=True) as store:
        change_tags(store, pinned, add=["golden"])

    shown(one, one.place(), tmp_path, named)

    assert list(one.cache.glob(f"**/marks/{pinned}*")) == [kept]
    one.ids()
    (newer,) = one.cache.glob(f"**/marks/{pinned}*")
    assert newer != kept
