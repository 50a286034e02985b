"""``ciuic checkout``: verify, take a snapshot of the present state, restore."""

import re

from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.trees import photograph


def two_versions(box: Box) -> tuple[str, dict, dict]:
    """Take a snapshot of one version and leave another; return the ID, and both versions."""
    (box.source / "model.pt").write_bytes(b"good" * 5000)
    (box.source / "notes.txt").write_text("step 1")
    first = box.take().id
    good = photograph(box.source)
    (box.source / "model.pt").write_bytes(b"evil" * 5000)
    (box.source / "new").mkdir()
    (box.source / "new" / "log").write_text("only here")
    return first, good, photograph(box.source)


def test_a_checkout_can_be_checked_out_again(box: Box):
    first, good, evil = two_versions(box)

    outcome = box.ciuic("checkout", first, box.source, "--delete", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.document
    assert photograph(box.source) == good
    assert (found["id"], found["verified_files"]) == (first, 2)
    assert found["restore"]["written_files"] == 1
    assert found["restore"]["deleted_files"] == 1
    before = found["before"]["id"]
    assert {one.id: one.tags for one in box.snapshots()}[before] == ("before-checkout",)

    again = box.ciuic("checkout", before, box.source)
    assert again.code == 0, again.err
    assert photograph(box.source) == evil
    assert f"{before}: verified 3 files" in again.out
    (third,) = {one.id for one in box.snapshots()} - {first, before}
    assert f"{third}: what was there before" in again.out


def test_latest_is_the_same_snapshot_when_a_checkout_is_run_again(box: Box):
    first, good, _ = two_versions(box)

    for _ in range(2):
        assert box.ciuic("checkout", "latest", box.source, "--delete").code == 0
        assert photograph(box.source) == good
    (box.source / "model.pt").write_bytes(b"evil")  # as if the first had been killed
    outcome = box.ciuic("checkout", "latest-valid", box.source)

    assert f"{first}: verified" in outcome.out
    assert photograph(box.source) == good
    assert box.ciuic("checkout", "before-checkout", box.source, "--dry-run").code == 0


def test_a_dry_run_shows_both_and_changes_nothing(box: Box):
    first, _, evil = two_versions(box)
    store = photograph(box.store / "snapshots")

    outcome = box.ciuic("checkout", first, box.source / "model.pt", "--dry-run")
    document = box.ciuic("checkout", first, box.source, "--dry-run", "--delete", "--json").document

    assert outcome.code == 0
    assert "verified 1 file (" in outcome.out
    assert "would take a snapshot of what is there" in outcome.out
    assert "would write 1 file" in outcome.out
    assert document["before"] is None
    assert document["restore"]["would_delete"] == [str(box.source / "new" / "log")]
    assert photograph(box.source) == evil
    assert photograph(box.store / "snapshots") == store


def test_damage_is_found_before_anything_is_changed(box: Box):
    first, _, evil = two_versions(box)
    flip_content(box.store, b"good" * 5000)

    outcome = box.ciuic("checkout", first, box.source)

    assert outcome.code == 4
    # Whether another small file is in the same frame depends on the order in which they were read.
    assert re.search(r" has [12] damaged paths?, so nothing was changed", outcome.err)
    assert str(box.source / "model.pt") in outcome.err
    assert photograph(box.source) == evil
    assert len(box.snapshots()) == 1


def test_a_file_that_is_being_written_is_not_replaced(live_box: Box):
    first, _, evil = two_versions(live_box)

    with (live_box.source / "model.pt").open("ab"):
        outcome = live_box.ciuic("checkout", first, live_box.source)
        dry_run = live_box.ciuic("checkout", first, live_box.source, "--dry-run")
    assert outcome.code == dry_run.code == 1
    assert "model.pt open for writing" in outcome.err
    assert dry_run.err == outcome.err
    assert photograph(live_box.source) == evil
    assert len(live_box.snapshots()) == 1

    # A file that the snapshot does not have stays, and must be saved as well.
    with (live_box.source / "new" / "log").open("ab"):
        outcome = live_box.ciuic("checkout", first, live_box.source)
    assert outcome.code == 1
    assert "could not save everything that is there now" in outcome.err
    assert "nothing was restored" in outcome.err
    assert photograph(live_box.source) == evil
    assert [one.tags for one in live_box.snapshots()] == [(), ()]

    with (live_box.source / "new" / "log").open("ab"):
        outcome = live_box.ciuic("checkout", first, live_box.source / "model.pt")
    assert outcome.code == 0, outcome.err
    assert (live_box.source / "model.pt").read_bytes() == b"good" * 5000


def test_no_snapshot_is_taken_if_nothing_changes_or_the_target_is_missing(box: Box):
    first, good, _ = two_versions(box)
    assert box.ciuic("checkout", first, box.source, "--delete").code == 0
    count = len(box.snapshots())

    assert box.ciuic("checkout", first, box.source, "--delete").code == 0
    assert len(box.snapshots()) == count
    for path in (box.source / "model.pt", box.source / "notes.txt"):
        path.unlink()
    box.source.rmdir()
    outcome = box.ciuic("checkout", first, box.source)
    assert outcome.code == 0, outcome.err
    assert photograph(box.source) == good
    assert len(box.snapshots()) == count


def test_the_refusals_of_a_restore_come_first(box: Box):
    first, _, evil = two_versions(box)

    assert box.ciuic("checkout", first, "/nowhere").code == 1
    assert box.ciuic("checkout", "cs-000000", box.source).code == 1
    assert box.ciuic("checkout", first).code == 2
    assert photograph(box.source) == evil
    assert len(box.snapshots()) == 1
