"""``ciuic copy`` to and from a store in a bucket of a real S3 server."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest

from tests.kit import faulty_proxy as faults
from tests.kit.daemon import wait_until
from tests.kit.machine import MIB, Machine
from tests.kit.place_contract import keys
from tests.kit.program import CIUIC, ciuic, environment

pytestmark = [pytest.mark.slow, pytest.mark.root]


class Copying:
    """A store in a directory, and the bucket to copy to; no store is there yet."""

    def __init__(self, server, proxy, address, source, directory):
        self.bucket = Machine(address, server, server.endpoint, directory / "cache")
        self.address = address
        self.source = source
        self.store = directory / "store"
        self.directory = directory
        self.environ = {**self.bucket.environ, "AWS_ENDPOINT_URL": proxy.endpoint}

    def run(self, store, *command, code=0):
        done = ciuic("--store", store, *command, more=self.environ)
        assert done.code == code, done
        return done

    def take(self, store=None):
        return self.run(store or self.store, "snapshot", self.source).out.split()[0]

    def copy(self, *options, code=0):
        """Copy from the directory to the bucket; returns the report."""
        done = self.run(self.store, "copy", "--to", self.address, "--json", *options, code=code)
        return json.loads(done.out)

    def restored(self, store, snapshot_id, name):
        out = self.directory / name
        self.run(store, "restore", "-s", snapshot_id, "-p", self.source, "-d", out)
        return content(out / "source")


def content(top):
    return {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.fixture
def copying(server, proxy, address, source, tmp_path):
    made = Copying(server, proxy, address, source, tmp_path)
    made.run(made.store, "init")
    return made


def test_a_copy_in_a_bucket_restores_alone(copying, source):
    first = copying.take()
    before = content(source)
    (source / "small/7").write_text("new")
    second = copying.take()
    copying.run(copying.store, "tag", first, "--add", "best")

    report = copying.copy("--init", "--verify")
    again = copying.copy()

    assert "best" in copying.run(copying.address, "tag", first).out
    assert {one["id"] for one in report["copied"]} == {first, second} == copying.bucket.ids()
    assert report["verify"]["ok"]
    assert (again["copied"], again["sent_bytes"], len(again["present"])) == ([], 0, 2)
    assert copying.restored(copying.address, first, "a") == before
    assert copying.restored(copying.address, second, "b") == content(source)
    assert keys(copying.bucket.place(), "leases") == []


def test_a_copy_from_a_bucket_restores_alone(copying, source, tmp_path):
    copying.run(copying.address, "init")
    first = copying.take(copying.address)
    (source / "large").write_bytes((source / "large").read_bytes()[: 5 * MIB] + b"end")
    second = copying.take(copying.address)
    copying.run(copying.address, "pin", first)

    copying.run(copying.address, "copy", "--to", tmp_path / "here", "--init", "--verify")

    listed = json.loads(copying.run(tmp_path / "here", "list", "--json").out)
    assert {one["id"] for one in listed} == {first, second}
    assert copying.restored(tmp_path / "here", second, "out") == content(source)
    copying.run(tmp_path / "here", "verify", "--all", "--checksum")


def test_one_bucket_is_copied_to_another(copying, source):
    copying.run(copying.address, "init")
    taken = copying.take(copying.address)
    other = f"{copying.address}-other"

    copying.run(copying.address, "copy", "--to", f"{other}/", "--init", "--verify")

    assert copying.restored(other, taken, "out") == content(source)


def test_a_dry_run_creates_and_sends_nothing(copying):
    taken = copying.take()

    report = copying.copy("--init", "--dry-run")

    assert [one["id"] for one in report["copied"]] == [taken]
    assert report["sent_bytes"] > 9 * MIB
    assert keys(copying.bucket.place()) == []
    for options in (["--dry-run"], []):
        done = copying.run(copying.store, "copy", "--to", copying.address, *options, code=1)
        assert f"there is no store at {copying.address}" in done.err
    assert keys(copying.bucket.place()) == []


def test_a_store_is_not_copied_to_itself(copying):
    copying.run(copying.address, "init")

    done = copying.run(copying.address, "copy", "--to", f"{copying.address}/", code=2)

    assert f"{copying.address} is the store itself" in done.err


def test_a_killed_copy_is_run_again_and_continues(copying, source):
    (source / "large").write_bytes(os.urandom(200 * MIB))
    taken = copying.take()
    copying.run(copying.address, "init")
    command = [*CIUIC, "--store", copying.store, "copy", "--to", copying.address]
    process = subprocess.Popen(command, env=environment(copying.environ), stdout=subprocess.PIPE)
    place = copying.bucket.place()
    deadline_s = time.monotonic() + 120
    while not keys(place, "packs"):
        assert time.monotonic() < deadline_s
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate()
    sent = sum(listed.size_bytes for listed in place.list("packs"))
    assert (copying.bucket.ids() == {taken}) == bool(out.strip())

    report = copying.copy()

    assert report["sent_bytes"] <= 202 * MIB - sent
    assert copying.bucket.ids() == {taken}
    assert copying.bucket.verify().ok


def test_what_the_copy_has_lost_is_sent_again(copying, source):
    taken = copying.take()
    copying.copy("--init")
    place = copying.bucket.place()
    place.delete(keys(place, "packs"))
    assert not copying.bucket.verify().ok

    copying.copy(taken)

    assert copying.bucket.verify().ok
    assert copying.restored(copying.address, taken, "out") == content(source)


@pytest.mark.parametrize("scrubs", [True, False], ids=["scrubbed", "not scrubbed"])
def test_objects_that_are_gone_are_sent_again_without_naming_a_snapshot(copying, source, scrubs):
    taken = copying.take()
    copying.copy("--init")
    place = copying.bucket.place()
    place.delete(keys(place, "packs"))
    if scrubs:
        found = copying.run(copying.address, "scrub", "--json", code=4).document
        assert found["checks"]["lost_chunks"] > 1

    done = copying.copy()

    assert (done["present"], done["damaged_there"]) == ([taken], [])
    assert done["mended_chunks"] > 1
    assert copying.bucket.verify().ok
    assert copying.restored(copying.address, taken, "out") == content(source)
    assert copying.copy()["sent_bytes"] == 0


def test_a_bit_that_a_scrub_of_the_bucket_found_flipped_is_mended_by_the_next_copy(copying, source):
    taken = copying.take()
    copying.copy("--init")
    place = copying.bucket.place()
    largest = max(keys(place, "packs"), key=lambda key: len(place.get(key, 1 << 27)))
    data = bytearray(place.get(largest, 1 << 27))
    data[len(data) // 2] ^= 1
    place.delete([largest])
    place.put(largest, bytes(data))
    found = copying.run(copying.address, "scrub", "--json", code=4).document
    assert found["checks"]["lost_chunks"] >= 1

    done = copying.copy()

    assert done["mended_chunks"] >= 1
    assert copying.restored(copying.address, taken, "out") == content(source)
    verified = copying.run(copying.address, "verify", "--all", "--checksum")
    assert "ok" in verified.out
    assert copying.copy()["sent_bytes"] == 0


def test_a_repair_of_the_bucket_takes_what_is_lost_from_the_other_store(copying, source):
    taken = copying.take()
    copying.copy("--init")
    place = copying.bucket.place()
    whole, *others = sorted(keys(place, "packs"))
    place.delete(others)
    data = bytearray(place.get(whole, 1 << 27))
    data[len(data) // 2] ^= 1
    place.delete([whole])
    place.put(whole, bytes(data))
    wrong = copying.run(copying.address, "repair", "--from", copying.directory / "no", code=1)
    assert "there is no store at" in wrong.err
    assert place.get(whole, 1 << 27) == data, "nothing was changed"

    foreseen = copying.run(copying.address, "repair", "--from", copying.store, code=4)
    assert f"{copying.store} has {taken}" in foreseen.out
    done = copying.run(copying.address, "repair", "--from", copying.store, "--apply", "--json")
    (given,) = json.loads(done.out)["copies"]
    assert given["healed"] == [taken]
    assert copying.bucket.verify().ok
    assert copying.restored(copying.address, taken, "out") == content(source)


def test_a_bucket_that_was_emptied_comes_back_from_a_copy_as_the_message_says(copying, source):
    copying.run(copying.address, "init")
    taken = copying.take(copying.address)
    copying.run(copying.address, "copy", "--to", copying.store)
    place = copying.bucket.place()
    place.delete(keys(place))

    from_copy = ("--from", copying.store)
    commands = [("list",), ("snapshot", source), ("prune",), ("repair", *from_copy)]
    said = {
        copying.run(copying.address, *command, code=1).err
        for command in (*commands, ("repair", "--apply", *from_copy))
    }
    assert keys(place) == []

    (message,) = said
    assert f"there is no store at {copying.address} any more" in message
    [command] = re.findall(r"'ciuic (--store COPY .*?)'", message)
    done = ciuic(*shlex.split(command.replace("COPY", str(copying.store))), more=copying.environ)
    assert done.code == 0, done
    assert copying.bucket.ids() == {taken}
    assert copying.restored(copying.address, taken, "out") == content(source)
    copying.take(copying.address)
    copying.run(copying.address, "verify", "--all", "--checksum")


def test_the_leases_come_before_the_packs_are_listed(copying, proxy):
    ids = {copying.take(), copying.take()}
    copying.run(copying.address, "init")
    proxy.requests.clear()

    copying.copy()

    of = {
        what: [at for at, one in enumerate(proxy.requests) if what in one and method in one]
        for what, method in (("leases/copy-", "PUT"), ("packs", "GET"), ("/packs/", "PUT"))
    }
    leased = {proxy.requests[at].partition("copy-")[2][:19] for at in of["leases/copy-"]}
    assert leased == ids
    assert max(of["leases/copy-"]) < max(of["packs"]) < min(of["/packs/"])


def test_two_machines_copy_a_snapshot_at_once(copying, proxy, tmp_path):
    taken = copying.take()
    copying.run(copying.address, "init")
    other = {**copying.environ, "XDG_CACHE_HOME": str(tmp_path / "other")}
    left = [1]

    def first(request, forward):
        if request.method == "PUT" and "/snapshots/" in request.path and left:
            left.clear()
            command = ("--store", copying.store, "copy", "--to", copying.address)
            assert ciuic(*command, more=other).code == 0
        return forward(request)

    proxy.always(first)
    report = copying.copy()

    assert [one["id"] for one in report["copied"]] == [taken]
    assert not left
    assert copying.bucket.ids() == {taken}
    assert copying.bucket.verify().ok
    assert keys(copying.bucket.place(), "leases") == []


@pytest.mark.parametrize("fault", [faults.lose_answer, faults.fail_after(503), faults.drop])
def test_a_fault_at_each_write_copies_everything_once(copying, proxy, fault):
    ids = {copying.take(), copying.take()}
    seen = set()

    def once(request, forward):
        if request.method == "PUT" and request.path not in seen:
            seen.add(request.path)
            return fault(request, forward)
        return forward(request)

    copying.run(copying.address, "init")
    proxy.always(once)
    report = copying.copy("--verify")

    assert {one["id"] for one in report["copied"]} == ids == copying.bucket.ids()
    assert report["verify"]["ok"]
    assert len(seen) >= 6


HEADER = "ciuic-store.json"


def test_a_header_that_is_gone_is_written_again_from_the_cache_of_the_machine(copying, source):
    taken = copying.take()
    copying.copy("--init")
    place = copying.bucket.place()
    was = place.get(HEADER, 1 << 20)
    place.delete([HEADER])
    for command in (["list"], ["init"], ["snapshot", source]):
        said = copying.run(copying.address, *command, code=1).err
        assert "has lost its header" in said
        assert f"'ciuic --store {copying.address} repair'" in said
    assert "is gone" in copying.run(copying.address, "repair", code=4).out
    assert HEADER not in {found.key for found in place.list()}, "nothing was changed"

    done = copying.run(copying.address, "repair", "--apply", "--json").document

    assert done["ok"]
    assert len(done["entrance"]) == 1
    assert place.get(HEADER, 1 << 20) == was
    assert copying.bucket.verify().ok
    assert copying.restored(copying.address, taken, "out") == content(source)


def test_a_header_that_is_damaged_is_set_aside_and_written_again(copying):
    copying.take()
    copying.copy("--init")
    place = copying.bucket.place()
    was = place.get(HEADER, 1 << 20)
    place.put(HEADER, was[:-20])
    assert "repair'" in copying.run(copying.address, "list", code=4).err
    copying.run(copying.address, "repair", "--apply")
    assert place.get(HEADER, 1 << 20) == was
    assert place.get(f"quarantine/{HEADER}", 1 << 20) == was[:-20]


def test_without_a_cache_a_header_like_that_of_a_named_store_is_written(copying, source, tmp_path):
    taken = copying.take()
    copying.copy("--init")
    place = copying.bucket.place()
    place.delete([HEADER])
    copying.environ["XDG_CACHE_HOME"] = str(tmp_path / "new")
    said = copying.run(copying.address, "repair", "--apply", code=1).err
    assert "name a copy of the store with --from" in said

    copying.run(copying.address, "repair", "--from", copying.store, "--apply")

    assert copying.restored(copying.address, taken, "out") == content(source)
    assert copying.copy()["present"] == [taken]


def test_repairs_as_a_user_pastes_them_beside_the_lease_of_a_killed_snapshot(copying, source):
    taken = copying.take()
    copying.copy("--init")
    before = content(source)
    (source / "more").write_bytes(os.urandom(60 * MIB))
    command = [*CIUIC, "--store", copying.address, "snapshot", source]
    process = subprocess.Popen(command, env=environment(copying.environ), stdout=subprocess.PIPE)
    place = copying.bucket.place()
    wait_until("the snapshot has its lease", lambda: keys(place, "leases"))
    process.send_signal(signal.SIGKILL)
    assert not process.communicate()[0]
    with copying.bucket.opened() as store:
        every = [one for batch in store.index.chunk_ids() for one, _ in batch]
        # Of the large file: a lost frame of small files is fetched again for each of them.
        found = max(store.reader.places(every).values(), key=lambda one: one.length_bytes)
    key = f"packs/{found.pack_id.hex()}"
    data = bytearray(place.get(key, 1 << 27))
    at = found.offset_bytes + found.frame_bytes - 4
    data[at : at + 4] = bytes([byte ^ 0xFF for byte in data[at : at + 4]])
    place.delete([key])
    place.put(key, bytes(data))
    shutil.rmtree(source)

    def repair(*options, code=4):
        said = copying.run(copying.address, "repair", *options, code=code)
        assert "nothing is damaged" not in said.out
        copying.run(copying.address, "verify", "--all", "--checksum", code=code)
        return said

    assert pasted(repair().err) == ["--store", copying.address, "repair", "--apply"]
    assert "snapshot-cs-" in repair("--apply").err
    assert "it is condemned already" in repair("--apply", "--wait", "1s").out
    assert copying.run(copying.address, "list", "--json").document[0]["id"] == taken
    words = pasted(repair("--from", copying.store, "--wait", "3s").err)
    more = ["--apply", "--from", str(copying.store), "--wait", "3s"]
    assert words == ["--store", copying.address, "repair", *more]
    repair(*words[3:], code=0)
    assert copying.restored(copying.address, taken, "out") == before


def pasted(text):
    """Return the words of the last command that a message quotes, after ``ciuic``."""
    return shlex.split(re.findall(r"run 'ciuic ([^']*)'", text)[-1])
