"""Whole commands behind a proxy that causes faults, and buckets that cannot be used."""

import itertools
import json
import os
import threading

import pytest

from tests.kit import faulty_proxy as faults
from tests.kit.ceph import ACCESS_KEY, SECRET_KEY
from tests.kit.machine import Machine
from tests.kit.place_contract import keys
from tests.kit.program import ciuic

pytestmark = [pytest.mark.slow, pytest.mark.root]

TRANSIENT = {
    "500": faults.status(500, "InternalError"),
    "503": faults.status(503, "SlowDown"),
    "429": faults.status(429, "TooManyRequests"),
    "dropped": faults.drop,
    "answer lost": faults.lose_answer,
    "answer cut": faults.cut,
    "error after it was done": faults.fail_after(500),
    "arrives twice": faults.repeat,
}


class EveryRequestOnce:
    """Each kind of fault in turn meets the first attempt of a request; the next attempts pass."""

    def __init__(self):
        self._kinds = itertools.cycle(TRANSIENT.values())
        self._met = set()
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, request, forward):
        what = (request.method, request.path, request.headers.get("Range", ""))
        with self._lock:
            is_first = what not in self._met
            self._met.add(what)
            fault = next(self._kinds) if is_first else None
            self.count += is_first
        return forward(request) if fault is None else fault(request, forward)


@pytest.fixture
def source(tmp_path):
    top = tmp_path / "source"
    top.mkdir()
    (top / "large").write_bytes(os.urandom(300_000))
    (top / "small").write_text("small")
    return top


@pytest.fixture
def command(server, proxy, address, tmp_path):
    """Run a command with the bucket behind the proxy."""

    def run(*arguments, store=address, code=0, **more):
        environ = {
            **server.environment,
            "AWS_ENDPOINT_URL": proxy.endpoint,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            **more,
        }
        done = ciuic("--store", store, *arguments, more=environ)
        said = done.out + done.err
        assert done.code == code, said
        assert SECRET_KEY not in said
        assert ACCESS_KEY not in said
        return done

    return run


@pytest.fixture
def elsewhere(server, address, tmp_path):
    return Machine(address, server, server.endpoint, tmp_path / "elsewhere")


def test_every_request_of_each_command_meets_a_fault_once(
    command, proxy, elsewhere, source, tmp_path
):
    faulty = EveryRequestOnce()
    elsewhere.init()
    proxy.always(faulty)

    taken = command("snapshot", str(source)).out.strip()
    assert [one["id"] for one in json.loads(command("list", "--json").out)] == [taken]
    copied = tmp_path / "copy"
    command("copy", "--to", str(copied), "--init")
    command("restore", "-s", "latest", "-p", str(source / "large"), "-d", str(tmp_path / "out"))
    proxy.always(None)

    assert faulty.count > 10
    assert (tmp_path / "out" / "large").read_bytes() == (source / "large").read_bytes()
    assert elsewhere.ids() == {taken}
    assert elsewhere.verify().ok
    assert keys(elsewhere.place(), "leases") == []
    assert ciuic("--store", str(copied), "verify", "--all", "--checksum").code == 0


def test_a_bucket_that_is_full_fails_the_snapshot_in_one_sentence(
    command, proxy, elsewhere, source
):
    def full(request, forward):
        is_pack = request.method == "PUT" and "/packs/" in request.path
        refused = faults.status(403, "QuotaExceeded")
        return refused(request, forward) if is_pack else forward(request)

    elsewhere.init()
    proxy.always(full)
    said = command("snapshot", str(source), code=1).err.splitlines()
    proxy.always(None)

    assert "QuotaExceeded" in said[0]
    assert len(said) <= 2
    assert elsewhere.ids() == set()
    command("snapshot", str(source))
    assert elsewhere.verify().ok


def test_a_key_that_may_not_delete_takes_snapshots_without_waiting(
    command, proxy, elsewhere, source
):
    def deletions():
        return [one for one in proxy.requests if one.startswith("POST")]

    elsewhere.init()
    older = command("snapshot", str(source)).out.strip()
    (source / "large").write_bytes(os.urandom(300_000))
    proxy.requests.clear()
    proxy.always(faults.refuse_each_key("AccessDenied"))
    assert "no right to delete" in command("init", store=f"{elsewhere.address}-new").err
    assert len(deletions()) == 1
    proxy.requests.clear()
    newer = command("snapshot", str(source)).out.strip()
    assert len(deletions()) == 1, "the lease: another attempt cannot succeed"
    command("forget", older)
    assert "s3:DeleteObject" in command("doctor").out
    proxy.requests.clear()
    refused = command("prune", "--trash", "0", code=1)
    assert len(deletions()) <= 3, "leases of earlier sessions, the manifest, its own lease"
    proxy.always(None)

    assert "AccessDenied" in refused.err
    assert "give them the right to read, write, list and delete" in refused.err
    command("prune", "--trash", "0")
    assert elsewhere.ids() == {newer}
    assert keys(elsewhere.place(), "leases") == []


def test_a_bucket_that_may_only_be_read_serves_readers_and_refuses_writers(
    command, proxy, elsewhere, source
):
    def read_only(request, forward):
        refused = faults.status(403, "AccessDenied")
        is_writing = request.method in {"PUT", "POST", "DELETE"}
        return refused(request, forward) if is_writing else forward(request)

    elsewhere.init()
    taken = elsewhere.take(source).id
    proxy.always(read_only)
    assert taken in command("list").out
    command("verify", "--all")
    for arguments in (("snapshot", str(source)), ("pin", "latest")):
        said = command(*arguments, code=1).err.splitlines()
        assert "AccessDenied" in said[0]
        assert len(said) <= 2
    proxy.always(None)
    assert elsewhere.ids() == {taken}


def test_a_bucket_without_the_right_to_list_or_to_delete_is_named_and_loses_nothing(
    command, proxy, elsewhere, source
):
    refused = faults.status(403, "AccessDenied")

    def no_listing(request, forward):
        return (refused if request.is_listing else pass_on)(request, forward)

    def no_deletion(request, forward):
        is_deletion = request.method == "DELETE" or "delete" in request.path.partition("?")[2]
        return (refused if is_deletion else pass_on)(request, forward)

    def pass_on(request, forward):
        return forward(request)

    elsewhere.init()
    # Use the machine's clock, as the second one does: forget keeps the newest.
    taken = command("snapshot", str(source)).out.split()[0]
    proxy.always(no_listing)
    for arguments in (("list",), ("snapshot", str(source)), ("forget", taken)):
        said = command(*arguments, code=1).err.splitlines()
        assert "AccessDenied" in said[0], arguments
        assert len(said) <= 2

    proxy.always(no_deletion)
    (source / "new").write_bytes(b"new")
    second = command("snapshot", str(source)).out.split()[0]
    assert elsewhere.ids() == {taken, second}
    command("forget", taken)
    proxy.always(None)
    assert elsewhere.ids() == {second}
    command("verify", "--all", "--checksum")


def test_credentials_that_expire_are_one_sentence(command, proxy, elsewhere, source):
    elsewhere.init()
    proxy.always(faults.status(403, "ExpiredToken"))
    said = command("snapshot", str(source), code=1).err.splitlines()
    proxy.always(None)

    assert "ExpiredToken" in said[0]
    assert len(said) <= 2
    assert elsewhere.ids() == set()


def test_a_bucket_that_is_not_there_is_named(command, source):
    missing = "s3://no-such-bucket-of-anybody/prefix"
    for arguments in (("list",), ("snapshot", str(source)), ("init",)):
        said = command(*arguments, store=missing, code=1).err.splitlines()
        assert missing in said[0]
        assert len(said) <= 2


def test_a_prefix_that_holds_something_else_is_left_alone(command, elsewhere):
    elsewhere.place().put("thesis.tex", b"years of work")

    assert "is not empty: it holds 'thesis.tex'" in command("init", code=1).err

    assert keys(elsewhere.place()) == ["thesis.tex"]


def test_a_prefix_with_folders_like_those_of_a_store_is_no_store(command, elsewhere):
    names = ["packs/readme", "snapshots/2026/photo.jpg"]
    for name in names:
        elsewhere.place().put(name, b"years of work")

    assert "there is no store at" in command("list", code=1).err
    assert "is not empty" in command("init", code=1).err
    assert keys(elsewhere.place()) == names


def test_a_store_of_a_newer_format_is_refused_in_one_sentence(command, elsewhere, source):
    from ciuic.store.records import layout

    elsewhere.init()
    place = elsewhere.place()
    header = json.loads(place.get(layout.HEADER, 1 << 20))
    place.delete([layout.HEADER])
    place.put(layout.HEADER, json.dumps({**header, "format": 99}).encode())
    for arguments in (("list",), ("snapshot", str(source)), ("doctor",)):
        done = command(*arguments, code=1)
        assert "Traceback" not in done.err
        assert elsewhere.address in done.out + done.err
    assert keys(place, "leases") == []
