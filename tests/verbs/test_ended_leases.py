"""Leases of sessions that failed while the bucket was closed to them.

The bucket is a directory here, behind the same interface.
"""

import os
import signal

import pytest

from ciuic.errors import AccessDeniedError, OfflineError, StoreError
from ciuic.report.doctor.findings import WARNING
from ciuic.report.doctor.store import examine_store
from ciuic.store.place.bucket import open_bucket
from ciuic.store.store import open_in_bucket
from tests.kit.buckets import FolderMachine, PlaceWithFaults, machine_with, write

pytestmark = pytest.mark.root


@pytest.fixture
def one(tmp_path):
    return machine_with(tmp_path, ["a"])


def fail(machine, source):
    """Take a snapshot with a key that is revoked when it has its lease."""

    def refuse(number, _kind, _keys):
        if number:
            raise StoreError("access denied")

    write(source, ["more"])
    with pytest.raises(StoreError, match="access denied"):
        machine.take_at(PlaceWithFaults(machine.place(), refuse), source)


def test_the_next_session_of_the_machine_deletes_the_lease_of_one_that_failed(one, tmp_path):
    fail(one, tmp_path / "source")
    (lease,) = one.names("leases")
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    other.clock.advance(3600)
    other.take_at(other.place(), tmp_path / "source")
    assert one.names("leases") == [lease], "only its own machine knows that it has ended"

    condemned = one.prune()  # a session like any other

    assert one.names("leases") == []
    assert condemned.waiting_for == ()
    one.check(listed=one.ids())


def test_what_cannot_be_deleted_for_long_is_deleted_at_last_and_asked_for_once(one, tmp_path):
    for _ in range(2):
        fail(one, tmp_path / "source")
    assert one.names("leases") != []
    place = PlaceWithFaults(one.place(), lambda *_: None)
    one.take_at(place, tmp_path / "source")
    assert one.names("leases") == []
    deletions = [keys for kind, keys in place.changes if kind == "delete"]
    assert len(deletions) == 2

    place = PlaceWithFaults(one.place(), lambda *_: None)
    one.take_at(place, tmp_path / "source")
    assert [kind for kind, _ in place.changes].count("delete") == 1


def test_the_lease_stays_if_the_manifest_was_refused_and_may_still_arrive(one, tmp_path):
    """An attempt that was not answered may have come before the refusal."""

    def refuse(_number, kind, key):
        if kind == "create" and key.startswith("snapshots/"):
            raise StoreError("access denied")

    write(tmp_path / "source", ["more"])
    with pytest.raises(StoreError, match="access denied"):
        one.take_at(PlaceWithFaults(one.place(), refuse), tmp_path / "source")
    (lease,) = one.names("leases")

    one.take_at(one.place(), tmp_path / "source")

    assert one.names("leases") == [lease]


def test_the_lease_of_a_killed_session_stays_until_it_is_revoked(one, tmp_path):
    """What it has sent may still arrive."""

    def kill(_number, kind, key):
        if kind == "create" and key.startswith("snapshots/"):
            os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()
    if not process:
        try:
            one.take_at(PlaceWithFaults(one.place(), kill), tmp_path / "source")
        finally:
            os._exit(1)
    os.waitpid(process, 0)
    (lease,) = one.names("leases")

    one.take_at(one.place(), tmp_path / "source")

    assert one.names("leases") == [lease]


@pytest.fixture
def warnings(one):
    """Return a function: what ``ciuic doctor`` warns of, if deletions raise an error."""

    def examine(error=None):
        def fault(_number, kind, _keys):
            if kind == "delete" and error is not None:
                raise error

        place = PlaceWithFaults(one.place(), fault)
        with open_in_bucket(open_bucket(place, one.environ)) as store:
            found = list(examine_store(store, (), (), one.clock.now_ns()))
        return [finding for finding in found if finding.level == WARNING], place.changes

    return examine


def test_doctor_warns_of_credentials_that_may_not_delete(one, warnings, tmp_path):
    refused = AccessDeniedError("no")
    assert warnings(refused) == ([], []), "nothing is left, and nothing is asked"

    def refuse(_number, kind, _keys):
        if kind == "delete":
            raise refused

    one.take_at(PlaceWithFaults(one.place(), refuse), tmp_path / "source")
    (lease,) = one.names("leases")
    [warning], changes = warnings(refused)

    assert "no right to delete: they take snapshots, but cannot prune, and 1 lease" in warning.what
    assert "s3:DeleteObject" in warning.advice
    assert changes == [("delete", [f"leases/{lease}"])]
    assert warnings(OfflineError("away"))[0] == [], "this says nothing about a right"
    assert warnings()[0] == []
    assert one.names("leases") == [], "the right is there now"
