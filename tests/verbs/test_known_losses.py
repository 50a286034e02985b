"""What a scrub finds gone or cut is known afterwards, as what it finds flipped is."""

import os
import shutil

import pytest

from ciuic.cli.daemon_lines import daemon_lines
from ciuic.maintain.prune.bucket.prune import finish_condemned
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.maintain.scrub.bucket import Bucket
from ciuic.maintain.scrub.pack_health import health
from ciuic.maintain.scrub.scrub import scrub
from ciuic.report.doctor.store import examine_checks
from tests.kit.box import Box
from tests.kit.buckets import machine_with
from tests.kit.damage import pack_of, packs

pytestmark = pytest.mark.root


@pytest.fixture
def older(box: Box) -> Box:
    """Two snapshots; only the older one needs the file ``old``. No file is live."""
    (box.source / "old").write_bytes(b"only the older one has this" * 1000)
    box.take()
    (box.source / "old").unlink()
    (box.source / "new").write_bytes(b"new" * 1000)
    box.take()
    assert box.ciuic("copy", "--to", box.directory / "copy", "--init").code == 0
    shutil.rmtree(box.source)
    return box


def assert_known(box: Box, *words: str) -> None:
    """Each command that shows the state of the store tells of the damage."""
    status = box.ciuic("status").out
    (line,) = [line for line in status.splitlines() if line.startswith("damaged:")]
    for word in words:
        assert word in line
    findings = box.ciuic("doctor", "--json").document["findings"]
    assert [one["level"] for one in findings if one["about"] == "checks"].count("problem") == 1
    assert not [one for one in findings if "found sound" in one["what"]]
    assert "damaged" in box.ciuic("list").out


def assert_forgotten(box: Box) -> None:
    assert "damaged:" not in box.ciuic("status").out
    assert box.ciuic("scrub").code == 0
    assert "found sound" in box.ciuic("doctor").out
    assert "damaged" not in box.ciuic("list").out


@pytest.mark.parametrize("first", ["scrub", "snapshot", "index"])
def test_a_pack_that_is_gone_is_known_until_a_repair(older: Box, first: str) -> None:
    pack_of(older.store, b"only the older one has this" * 1000).unlink()
    if first == "snapshot":  # it notices that the pack is gone, and not what that costs
        older.source.mkdir()
        (older.source / "more").write_bytes(b"more")
        older.take()
        assert "damaged:" not in older.ciuic("status").out
    elif first == "index":
        (older.store / "catalog.sqlite").unlink()

    assert older.ciuic("scrub").code == 4

    assert_known(older, "lost", *(["1 pack"] if first != "index" else []))
    assert older.ciuic("scrub", "--budget", "1KiB").code == 4
    assert_known(older, "lost")
    found = older.ciuic("repair", "--apply", "--from", older.directory / "copy")
    assert found.code == 0, found
    assert_forgotten(older)


def test_every_pack_is_gone(older: Box) -> None:
    for pack in packs(older.store):
        pack.unlink()
    assert older.ciuic("scrub").code == 4
    assert_known(older, "packs")


def test_what_was_lost_is_forgotten_with_the_last_snapshot_that_needs_it(older: Box) -> None:
    pack_of(older.store, b"only the older one has this" * 1000).unlink()
    assert older.ciuic("scrub").code == 4
    name = older.snapshots()[-1].id
    assert older.ciuic("forget", name, "--last-whole").code == 0
    assert older.ciuic("scrub").code == 4, "the snapshot in the trash can be brought back"
    assert older.ciuic("prune", "--trash", "0").code == 0
    assert older.ciuic("scrub").code == 0
    assert_forgotten(older)


def test_a_cut_manifest_is_known_until_a_repair(older: Box) -> None:
    path = older.store / "snapshots" / f"{older.snapshots()[-1].id}.json"
    times = path.stat()
    data = path.read_bytes()
    path.write_bytes(data[:-40] + b" " * 40)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if the disk had done it
    assert older.ciuic("scrub").code == 4

    assert_known(older, "1 manifest")

    repair = older.ciuic("repair", "--apply", "--from", older.directory / "copy")
    assert repair.code == 0, repair
    assert path.read_bytes() == data
    assert_forgotten(older)


def test_an_earlier_scrub_of_the_daemon_does_not_say_that_all_is_well() -> None:
    daemon = {"upkeep": {"scrub": {"ok": True, "time": "2026-06-15T14:30:00Z"}}}
    assert "no damage" in dict(daemon_lines(daemon))["scrub"]
    assert "there is damage" in dict(daemon_lines(daemon, is_damaged=True))["scrub"]


@pytest.fixture
def one(tmp_path):
    return machine_with(tmp_path, ["a"], 1_500_000)


def scrubbed(one):
    subject = Bucket(lambda **access: one.opened(write=access.get("write", False)))
    return scrub(subject, clock=one.clock)


def known(one):
    with one.opened() as store:
        found = health(store, is_asked=False)
    levels = [finding.level for finding in examine_checks(found, one.clock.now_ns())]
    assert ("problem" in levels) == found.is_damaged
    return len(found.damaged), len(found.documents), bool(found.lost_chunks)


def test_a_bucket_tells_of_a_pack_that_is_gone_and_of_a_cut_manifest(one, tmp_path):
    """This machine has a copy of the manifest, so nothing else would tell."""
    assert scrubbed(one).ok
    max((tmp_path / "bucket/packs").iterdir(), key=lambda path: path.stat().st_size).unlink()
    (manifest,) = (tmp_path / "bucket/snapshots").iterdir()
    os.truncate(manifest, 300)

    assert not scrubbed(one).ok

    assert known(one) == (1, 1, True)
    with one.opened_at(one.place(), removes=True) as store:
        plan = plan_in_bucket(store)
        apply_in_bucket(store, plan)
        finish_condemned(store, clock=one.clock)
    assert known(one)[0] == 0
