"""A store in a bucket of a real S3 server: every machine sees the snapshots that any one takes."""

import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import subprocess
import time

import pytest

from ciuic.errors import CommitUncertainError, OfflineError, StoreError, UnsupportedError
from ciuic.maintain.prune.bucket.prune import prune_bucket
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.maintain.scrub.bucket import Bucket
from ciuic.maintain.scrub.scrub import scrub
from ciuic.store.addressed import open_at_address
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit import faulty_proxy as faults
from tests.kit.ceph import SECRET_KEY
from tests.kit.machine import Machine
from tests.kit.place_contract import keys
from tests.kit.program import CIUIC, environment

pytestmark = [pytest.mark.slow, pytest.mark.root]

MIB = 1024 * 1024


def content(top):
    return {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_another_machine_restores_what_was_taken(machine, other, source, tmp_path):
    machine.take(source)
    (source / "small/7").write_text("new")
    machine.take(source)

    other.restore(source, tmp_path / "out")

    (restored,) = [path for path in (tmp_path / "out").rglob("source") if path.is_dir()] or [
        tmp_path / "out"
    ]
    assert content(restored) == content(source)
    assert other.verify().ok


@pytest.mark.parametrize("loss", ["deleted", "truncated", "foreign"])
def test_a_lost_cache_costs_only_time(machine, source, loss):
    machine.take(source)
    ids = machine.ids()
    (own,) = (machine.cache / "ciuic").iterdir()
    if loss == "deleted":
        shutil.rmtree(machine.cache)
    elif loss == "truncated":
        os.truncate(own / "catalog.sqlite", 5000)
        for manifest in (own / "snapshots").iterdir():
            os.truncate(manifest, 10)
    else:
        (own / "CACHE").write_text("0" * 32 + " s3://another/store\n")

    assert machine.ids() == ids
    assert machine.verify().ok
    assert machine.take(source).new_bytes == 0


def test_two_machines_add_at_once(machine, other, source, tmp_path):
    second = tmp_path / "second"
    second.mkdir()
    (second / "file").write_bytes(os.urandom(3 * MIB))

    with machine.opened(write=True) as held:
        taken = other.take(second)
        assert held.writable
    mine = machine.take(source)

    assert machine.ids() == other.ids() == {taken.id, mine.id}
    assert machine.verify().ok


def test_a_snapshot_of_nothing_new_takes_few_requests(machine, proxy, source):
    machine.take(source)
    machine.take(source)
    asked = []
    for _ in range(3):
        before = len(proxy.requests)
        machine.take(source)
        asked.append(proxy.requests[before:])

    # Nine, and one for the parent's directory. A slow server may cause one request to be repeated.
    fewest = min(asked, key=len)
    assert len(fewest) <= 10, "\n".join(fewest)


def test_a_machine_without_an_index_asks_for_no_pack(machine, server, proxy, source, tmp_path):
    for number in range(18):
        (source / "small/1").write_text(str(number))
        machine.take(source)
    new = Machine(machine.address, server, proxy.endpoint, tmp_path / "new")
    before = len(proxy.requests)

    with new.opened() as store:
        packs = store.index.packs()

    asked = proxy.requests[before:]
    assert len(packs) >= 18
    assert not [one for one in asked if "/packs/" in one], asked
    assert len({one for one in asked if "/segments/" in one}) == 3  # sixteen of the 18 are merged
    assert new.verify().ok


@pytest.mark.parametrize(
    "fault", [faults.lose_answer, faults.fail_after(500), faults.repeat, faults.drop, faults.cut]
)
def test_each_fault_at_any_request_loses_nothing(machine, other, proxy, source, fault):
    for at in range(8):
        (source / "small/1").write_text(str(at))
        before = machine.ids()
        proxy.inject(*([machine_forward] * at), fault)
        with contextlib.suppress(StoreError):
            machine.take(source)
        proxy.heal()
        assert len(other.ids() - before) <= 1
    assert other.verify().ok
    assert keys(other.place(), "leases") == []


def machine_forward(request, forward):
    return forward(request)


@pytest.fixture
def impatient(machine):
    """The machine, which gives up soon; with its usual patience, it retries for 20 s."""
    machine.options = dataclasses.replace(machine.options, patience_s=2)
    return machine


def test_an_answer_that_never_comes_at_the_commit_is_uncertain(impatient, other, proxy, source):
    def silent(request, forward):
        is_commit = request.method == "PUT" and "/snapshots/" in request.path
        return faults.drop(request, forward) if is_commit else forward(request)

    proxy.always(silent)
    with pytest.raises(CommitUncertainError) as caught:
        impatient.take(source)
    proxy.always(None)

    assert SECRET_KEY not in str(caught.value)
    assert len(other.ids()) == 0
    assert len(keys(other.place(), "leases")) == 1  # the request could still arrive
    impatient.take(source)
    assert other.verify().ok


def test_a_failed_upload_of_a_pack_commits_nothing(impatient, other, proxy, source):
    def refused(request, forward):
        is_pack = request.method == "PUT" and "/packs/" in request.path
        return faults.status(503, "SlowDown")(request, forward) if is_pack else forward(request)

    proxy.always(refused)
    with pytest.raises(OfflineError):
        impatient.take(source)
    proxy.always(None)

    assert other.ids() == set()
    impatient.take(source)
    assert other.verify().ok


def test_a_killed_writer_leaves_a_store_that_others_use(machine, other, server, source, tmp_path):
    (source / "large").write_bytes(os.urandom(160 * MIB))
    environ = {
        **environment(machine.environ),
        "AWS_ENDPOINT_URL": server.endpoint,
    }
    command = [*CIUIC, "--store", machine.address, "snapshot", str(source)]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
    deadline_s = time.monotonic() + 60
    while not keys(other.place(), "packs"):
        assert time.monotonic() < deadline_s
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate()

    assert len(other.ids()) == bool(out.strip())
    other.take(source)
    machine.take(source)
    assert other.verify().ok


@pytest.mark.parametrize("damage", ["changed", "truncated", "deleted"])
def test_damage_in_a_bucket_is_found_and_named(machine, other, source, tmp_path, damage):
    machine.take(source)
    place = other.place()
    largest = max(place.list("packs"), key=lambda listed: listed.size_bytes)
    data = bytearray(place.get(largest.key, largest.size_bytes))
    if damage == "changed":
        data[4 * MIB : 6 * MIB] = bytes(2 * MIB)  # the small files together are shorter
        place.put(largest.key, bytes(data))
    elif damage == "truncated":
        place.put(largest.key, bytes(data[: 5 * MIB]))
    else:
        place.delete([largest.key])

    found = other.verify()
    report = other.restore(source, tmp_path / "out")

    large = os.fsencode(source / "large")
    assert large in {bad.path for snapshot in found.snapshots for bad in snapshot.damaged}
    assert large in {bad.path for bad in report.failed}
    (restored,) = (tmp_path / "out").rglob("source")
    assert content(restored).items() <= content(source).items()
    machine.take(source)
    assert other.verify().snapshots[0].ok  # the next snapshot stores the missing chunks again


def test_what_one_machine_finds_damaged_another_one_stores_again(
    machine, other, proxy, source, tmp_path
):
    machine.take(source)
    other.take(source)
    place = other.place()
    largest = max(place.list("packs"), key=lambda listed: listed.size_bytes)
    data = bytearray(place.get(largest.key, largest.size_bytes))
    data[4 * MIB : 4 * MIB + 5] = b"wrong"
    place.put(largest.key, bytes(data))
    opened = functools.partial(open_at_address, other.address, other.environ, other.options)

    assert len(scrub(Bucket(opened), clock=SystemClock()).damaged) == 1
    assert machine.take(source).new_bytes > 0
    asked = []
    for _ in range(3):
        before = len(proxy.requests)
        assert machine.take(source).new_bytes == 0
        asked.append(proxy.requests[before:])
    fewest = min(asked, key=len)
    assert len(fewest) <= 10, "\n".join(fewest)

    with opened(write=True, removes=True) as store:
        apply_in_bucket(store, plan_in_bucket(store))
    with opened(write=True, removes=True) as store:
        prune_bucket(store, trash_s=0, now_ns=time.time_ns(), clock=SystemClock())
    assert largest.key not in place.keys("packs")
    assert not [key for key in place.keys("packs") if "damaged" in key]
    assert machine.verify().ok
    assert other.verify().ok
    other.restore(source, tmp_path / "out")
    (restored,) = (tmp_path / "out").rglob("source")
    assert content(restored) == content(source)


def test_what_removes_is_refused(machine):
    with pytest.raises(UnsupportedError), open_store(machine.address, write=True):
        pass
