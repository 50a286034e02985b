"""Commands that look, mount, practice and recover, with a store in a bucket of a real S3 server."""

import json
import os
import re
import shlex
import shutil
from types import SimpleNamespace

import pytest

from tests.kit.ceph import ACCESS_KEY, SECRET_KEY
from tests.kit.machine import Machine
from tests.kit.mounted import mounted, wait_for
from tests.kit.program import ciuic
from tests.kit.served import served

pytestmark = [pytest.mark.slow, pytest.mark.root]


@pytest.fixture
def source(tmp_path):
    top = tmp_path / "source"
    top.mkdir()
    (top / "file").write_text("first")
    (top / "large").write_bytes(os.urandom(300_000))
    return top


@pytest.fixture
def box(run, tmp_path, monkeypatch):
    """The box that the kit needs to run a command that serves."""
    for name, value in run.environ.items():
        monkeypatch.setenv(name, value)
    return SimpleNamespace(directory=tmp_path, config=run.config)


@pytest.fixture
def taken(server, address, tmp_path, source):
    """Two snapshots; the source has changed since."""
    machine = Machine(address, server, server.endpoint, tmp_path / "cache")
    machine.init()
    found = []
    for text in ("first", "second"):
        (source / "file").write_text(text)
        found.append(machine.take(source).id)
    (source / "file").write_text("third")
    return found


def test_a_mount_shows_the_bucket_and_what_comes_later(box, taken, source, server, address):
    old, _ = taken
    with mounted(box) as shown:
        assert shown.at(source / "file", old).read_text() == "first"
        assert shown.at(source / "large").read_bytes() == (source / "large").read_bytes()
        elsewhere = Machine(address, server, server.endpoint, box.directory / "elsewhere")
        new = elsewhere.take(source).id
        wait_for((shown.point / "by-id" / new).exists, "the new snapshot never appeared")
        assert shown.at(source / "file", new).read_text() == "third"


def test_a_drill_is_done_and_recorded(run, taken, tmp_path):
    said = json.loads(run("drill", "--scratch", str(tmp_path), "--json"))

    assert said["ok"]
    assert said["recorded"]
    findings = json.loads(run("doctor", "--json", code=0))["findings"]
    about = {finding["about"]: finding for finding in findings}
    assert [one for one in findings if "drill" in one["what"] and one["level"] == "ok"]
    assert "no daemon of this user serves this store" in about["daemon"]["what"]
    assert "with sudo" in about["daemon"]["advice"]
    assert "those of others are not seen" in run("status")
    assert "as the daemon's user" in run("pause", code=1)
    assert [one for one in findings if "is its cache directory" in one["what"]]
    assert "not read since" in about["checks"]["what"]


def test_checkout_takes_the_files_back(run, taken, source):
    run("checkout", taken[0], str(source))

    assert (source / "file").read_text() == "first"
    assert (source / "large").stat().st_size == 300_000


def test_recover_puts_a_broken_file_back(run, taken, source, tmp_path):
    import numpy as np

    np.savez(source / "state.npz", a=np.arange(50_000))
    whole = (source / "state.npz").read_bytes()
    run("snapshot")
    os.truncate(source / "state.npz", 1000)

    assert "state.npz" in run("recover", "--since", "2020-01-01 00:00:00")

    assert (source / "state.npz").read_bytes() == whole


def test_damage_is_named_and_repaired(run, taken, server, address, source, tmp_path):
    assert "no damage" in run("scrub")
    place = Machine(address, server, server.endpoint, tmp_path / "cache").place()
    pack = max(place.list("packs"), key=lambda listed: listed.size_bytes)
    data = bytearray(place.get(pack.key, pack.size_bytes))
    data[200_000] ^= 1
    place.put(pack.key, bytes(data))

    assert "every pack was read within" in run("stats")
    said = run("scrub", code=4)

    assert f"pack {pack.key[6:18]}: DAMAGED" in said
    assert "source/large" in said
    restore = ("restore", "-s", "latest", "-p", source, "-d", tmp_path / "out", "--no-hot")
    for told in (said, run("verify", "--checksum", code=4), run(*restore, code=4)):
        assert "check the bucket: its lifecycle rules" in told
        assert "copy" in told
        assert "disk" not in told
    assert f"pack {pack.key[6:18]}: DAMAGED" in run("scrub", "--budget", "1KiB", code=4)
    assert "1 chunk would be stored again" in run("repair", code=4)
    assert f"quarantine/{pack.key[6:]}" in run("repair", "--apply")
    assert "no damage" in run("scrub")
    assert not {pack.key} & place.keys("packs")


def test_a_manifest_that_the_bucket_has_lost_is_put_back(run, taken, server, address, tmp_path):
    place = Machine(address, server, server.endpoint, tmp_path / "cache").place()
    manifests = place.keys("snapshots")
    place.delete([f"snapshots/{taken[0]}.json"])

    assert "is gone, so nothing was removed" in run("prune", code=4)
    assert "would be put back from its copy" in run("repair", code=4)
    assert "put back from its copy" in run("repair", "--apply")

    assert place.keys("snapshots") == manifests
    run("prune")
    run("verify", "--all", "--checksum")


def test_the_commands_of_the_runbook_reach_the_bucket_here_and_elsewhere(
    run, taken, address, source, tmp_path
):
    page = run("runbook")  # checks that it contains no secret
    known = {"ID": taken[-1], "PATH": str(source), "TIME": "2026-01-01"}
    known[f"{source}/FILE"] = f"{source}/file"
    here, gone = page.split("## The machine is gone")
    exports = re.findall(r"export (\w+)=(\S+)", gone)
    elsewhere = {**run.environ, "XDG_CACHE_HOME": str(tmp_path / "elsewhere"), **dict(exports)}

    assert {name for name, _ in exports} == {"AWS_ENDPOINT_URL", "AWS_SHARED_CREDENTIALS_FILE"}
    for text, environ in ((here, run.environ), (gone.split("## Afterwards")[0], elsewhere)):
        found = re.findall(r"^ +ciuic (.*)", text, re.MULTILINE)
        assert len(found) >= 3
        for number, line in enumerate(found):
            into = {"DIR": str(tmp_path / f"{len(text)}-{number}")}
            words = (into.get(word, known.get(word, word)) for word in shlex.split(line))
            done = ciuic(*words, more=environ)
            assert done.code == 0, (line, done.err)


def test_the_page_shows_and_restores_from_the_bucket(box, taken, source, tmp_path):
    with served(box) as site:
        listed = site.ask("/v1/snapshots").document["snapshots"]
        assert [one["id"] for one in listed] == taken[::-1]
        overview = site.ask("/v1/overview").document
        assert overview["free_bytes"] is None
        job = site.start(
            do="restore",
            snapshot=taken[0],
            paths=[str(source)],
            destination=str(tmp_path / "out"),
            dry_run=False,
        ).document
        ended = site.ended(job["id"])
        assert ended["state"] == "done", ended
        text = json.dumps(ended) + json.dumps(overview)
    (file,) = (tmp_path / "out").rglob("file")
    assert file.read_text() == "first"
    assert SECRET_KEY not in text
    assert ACCESS_KEY not in text


def test_a_clone_at_another_address_has_a_directory_of_its_own(machine, server, source, tmp_path):
    machine.take(source)
    clone = Machine(machine.address + "-clone", server, server.endpoint, machine.cache)
    place, copy = machine.place(), clone.place()
    for found in place.list():
        copy.put(found.key, place.get(found.key, 1 << 27))
    machine.take(source)

    assert len(clone.ids()) == 1
    assert len(machine.ids()) == 2
    (source / "file").write_text("only in the clone")
    clone.take(source)

    shutil.rmtree(machine.cache)
    assert clone.verify().ok
    assert machine.verify().ok
    assert len(list((machine.cache / "ciuic").iterdir())) == 2


def test_ls_of_an_id_fetches_that_snapshot_alone_and_a_tag_is_still_found(run, taken, source):
    manifests = run.directory / "cold" / "ciuic"
    cold = {"XDG_CACHE_HOME": str(manifests.parent)}
    old, new = taken
    # A tag may begin as an ID does.
    run("tag", old, "--add", "cs-best")

    assert "large" in run("ls", new, source, more=cold)
    assert [path.stem for path in manifests.rglob("cs-*.json")] == [new]

    assert "large" in run("ls", "cs-best", source, more=cold)
    assert run("cat", old, source / "file", more=cold) == "first"
    (copies,) = manifests.glob("*/snapshots")
    assert {path.stem for path in copies.iterdir()} == {old, new}
