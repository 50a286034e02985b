"""The real daemon, with its store in a bucket of a real S3 server."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest

from tests.kit.ceph import ACCESS_KEY, SECRET_KEY
from tests.kit.daemon import DEADLINE_S, wait_until
from tests.kit.machine import MIB
from tests.kit.place_contract import keys

pytestmark = [pytest.mark.slow, pytest.mark.root]


def test_a_daemon_serves_a_bucket(run, daemon, elsewhere, source):
    process = daemon.start()

    daemon.wait_for("snapshot ")
    assert len(elsewhere.ids()) == 1
    (source / "small" / "1").write_text("second")
    second = run("snapshot").splitlines()[0]
    (source / "small" / "1").write_text("third")
    third = run("snapshot").splitlines()[0]
    # The daemon took them, so it forgets the oldest, and this process does not.
    daemon.wait_for(f"snapshot {third}")
    wait_until("the policy applies", lambda: elsewhere.ids() == {third, second})
    assert f"runs as process {process.pid}" in run("doctor")
    # The daemon holds its lock: another daemon ends.
    second = daemon.do(code=5)
    assert "another ciuicd serves it" in second
    assert f"the store {elsewhere.address} is in use" in second
    secrets = (SECRET_KEY.encode(), ACCESS_KEY.encode())
    with open(f"/proc/{process.pid}/cmdline", "rb") as file:
        assert not [secret for secret in secrets if secret in file.read()]

    link = run.directory / "link"
    daemon.do("--link-store", str(link))
    daemon.configure(interval="30d")
    daemon.do("--reload", str(link))
    assert daemon.status()["snapshot_interval_s"] == 30 * 86_400
    daemon.configure(interval="40d")
    daemon.do("--reload", elsewhere.address)
    assert daemon.status()["snapshot_interval_s"] == 40 * 86_400
    assert elsewhere.verify().ok
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    assert daemon.status() is None
    assert keys(elsewhere.place(), "leases") == []
    assert "no daemon of this user serves" in daemon.do("--reload", elsewhere.address, code=1)


def test_a_daemon_writes_nothing_to_another_store_that_was_made_at_its_url(
    run, daemon, elsewhere, source
):
    daemon.start()
    daemon.wait_for("snapshot ")
    place = elsewhere.place()
    place.delete(everything(place))
    assert elsewhere.init()[0]
    name = elsewhere.take(source).id
    before = everything(place)
    (source / "small" / "1").write_text("second")

    said = run("snapshot", code=1)

    assert f"a different store is now at {elsewhere.address}" in said
    daemon.wait_for(f"snapshot failed: a different store is now at {elsewhere.address}")
    assert elsewhere.ids() == {name}
    assert everything(place) == before


def everything(place):
    folders = ("snapshots", "packs", "marks", "segments", "retired", "condemned", "verdicts")
    found = [key for folder in (*folders, "leases") for key in keys(place, folder)]
    return sorted([*found, "ciuic-store.json"])


def test_a_check_refuses_the_credentials_that_the_daemon_would_refuse(daemon, key_file):
    assert daemon.do("--check") == ""
    key_file.chmod(0o644)
    assert f"other users can read the credentials file {key_file}" in daemon.do("--check", code=2)
    key_file.unlink()
    assert f"the credentials file {key_file} cannot be read" in daemon.do("--check", code=2)


def test_a_check_warns_of_a_copy_whose_credentials_cannot_be_used(daemon, key_file):
    gone = key_file.with_name("gone")
    daemon.configure("[copy far]", "to = s3://far/away", f"store_credentials = {gone}")

    said = daemon.do("--check")

    assert f"the copy far: the credentials file {gone} cannot be read" in said


def test_a_daemon_prunes_a_bucket_and_waits_for_a_session_of_another_machine(
    run, daemon, elsewhere, source
):
    """Here, forgotten snapshots spend no time in the trash."""
    run("init")
    (source / "noise").write_bytes(os.urandom(20 * MIB))
    first = run("snapshot").splitlines()[0]
    (source / "noise").unlink()
    run("snapshot")
    before = len(keys(elsewhere.place(), "packs"))
    with elsewhere.opened(write=True):
        process = daemon.start()
        run("snapshot")  # the third: the daemon takes it, and its policy forgets the first
        daemon.wait_for("can be removed when these sessions have ended")
        assert first not in elsewhere.ids()
        assert keys(elsewhere.place(), "condemned")
        packs = len(keys(elsewhere.place(), "packs"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0

    # A new daemon looks at once, and finds the packs that the other has condemned.
    process = daemon.start()
    wait_until("it is finished", lambda: not keys(elsewhere.place(), "condemned"))
    assert len(keys(elsewhere.place(), "packs")) < packs
    assert packs >= before
    assert elsewhere.verify().ok
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    assert "removed for good" in daemon.said()


def test_a_daemon_scrubs_a_bucket_and_tells_of_damage(run, daemon, elsewhere, source):
    told = run.directory / "told"
    metrics = run.directory / "ciuic.prom"
    daemon.configure(
        f"metrics_file = {metrics}",
        "[alert file]",
        "type = command",
        f"command = cat >> {told}",
    )
    run("init")
    (source / "noise").write_bytes(os.urandom(5 * MIB))
    run("snapshot")
    place = elsewhere.place()
    pack = max(place.list("packs"), key=lambda listed: listed.size_bytes)
    data = bytearray(place.get(pack.key, pack.size_bytes))
    data[200_000] ^= 1
    place.put(pack.key, bytes(data))

    process = daemon.start()

    daemon.wait_for(f"damage: pack {pack.key[6:18]}")
    daemon.wait_for("scrub: ")
    wait_until("a file is named", lambda: "1 file affected, first" in daemon.said())
    found = daemon.status()["upkeep"]
    assert found["scrub"]["ok"] is False
    assert found["scrubbed_today_s"] > 0
    checks = json.loads(run("status", "--json"))["checks"]
    assert checks["unchecked"] == 0
    assert [one["pack"] for one in checks["damaged"]] == [pack.key[6:]]
    wait_until(
        "metrics know",
        lambda: metrics.exists() and "ciuic_damaged_packs 1.0" in metrics.read_text(),
    )
    daemon.do("--alert")
    assert "has damage: 1 pack" in told.read_text()
    assert place.keys("leases") == set()
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_a_list_says_what_is_known_of_damage_in_a_bucket(run, elsewhere, source):
    run("init")
    run("snapshot")
    place = elsewhere.place()
    sizes = {listed.key: listed.size_bytes for listed in place.list("packs")}

    def listed_after_damage_to(keys):
        for key in keys:
            data = bytearray(place.get(key, sizes[key]))
            for at in range(100, len(data) - 200, 100):
                data[at] ^= 1
            place.put(key, bytes(data))
        run("scrub", code=4)
        [snapshot] = json.loads(run("list", "--json").partition("\nciuic: ")[0])
        return snapshot["damaged"], run("list")

    whole, files, trees = run("list"), max(sizes, key=sizes.get), min(sizes, key=sizes.get)
    known, shown = listed_after_damage_to([files])
    assert known is None
    assert "1 snapshot not checked for lost content" in shown
    assert "not checked" not in whole
    known, shown = listed_after_damage_to([trees])
    assert known is True
    assert "damaged" in shown
    assert "not checked" not in shown


def test_without_a_budget_a_daemon_reads_no_pack_of_a_bucket(run, daemon):
    run("init")
    run("snapshot")
    run.config.write_text(run.config.read_text().replace("scrub_budget = 1h", "scrub_budget = 0"))
    process = daemon.start()
    run("snapshot")
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    assert "scrub: " not in daemon.said()


def test_once_takes_a_snapshot_and_metrics_and_alerts_know_it(run, daemon, elsewhere):
    told = run.directory / "told"
    metrics = run.directory / "ciuic.prom"
    daemon.configure(
        f"metrics_file = {metrics}",
        "[alert file]",
        "type = command",
        f"command = cat >> {told}",
    )
    daemon.do("--alert")
    assert "there is no store at" in told.read_text()

    daemon.do("--once")

    assert len(elsewhere.ids()) == 1
    assert "ciuic_listed_snapshots 1.0" in metrics.read_text()
    assert "ciuic_store_free_bytes" not in metrics.read_text()
    told.unlink()
    daemon.do("--alert")
    assert "no longer: there is no store at" in told.read_text()


def test_a_bucket_that_was_emptied_gets_no_new_store(run, daemon, elsewhere):
    """Also by its cache directory alone: a daemon that a user starts has no STATE_DIRECTORY."""
    assert f"created the store {elsewhere.address}" in daemon.do("--once")
    store_id = elsewhere.store_id()
    place = elsewhere.place()
    place.delete(keys(place))

    said = daemon.do("--once", code=1)
    assert f"no longer holds a store; it used to hold store {store_id[:8]}" in said
    [record] = run.directory.glob("**/stores.json")
    record.unlink()  # as if it had none
    assert f"it used to hold store {store_id[:8]}" in daemon.do("--once", code=1)
    assert keys(place) == []
    told = run("list", code=1)
    assert f"there is no store at {elsewhere.address} any more" in told
    assert f"this machine has used store {store_id[:8]} there" in told
    assert "creates a new, empty store" in told


@pytest.fixture
def keys_of_server(server):
    """Return a function that creates or removes an access key; those that are left are removed."""
    made = set()

    def admin(action, *more):
        config = ("-c", server.top / "ceph.conf")
        key = ("--uid=ciuic", "--key-type=s3", *more)
        command = ("radosgw-admin", *config, "key", action, *key)
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)

    class Keys:
        @staticmethod
        def create(key_id, secret):
            admin("create", f"--access-key={key_id}", f"--secret-key={secret}")
            made.add(key_id)

        @staticmethod
        def revoke(key_id):
            admin("rm", f"--access-key={key_id}")
            made.remove(key_id)

    yield Keys
    for key_id in tuple(made):
        Keys.revoke(key_id)


def written_key(path, key_id, secret):
    path.write_text(f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n")


def test_keys_that_are_replaced_while_a_snapshot_is_stored_do_not_fail_it(
    run, daemon, proxy, server, elsewhere, source, key_file, keys_of_server
):
    keys_of_server.create("first", "first-secret")
    keys_of_server.create("second", "second-secret")
    written_key(key_file, "first", "first-secret")
    daemon.configure()
    run.config.write_text(run.config.read_text().replace(server.endpoint, proxy.endpoint))
    done = threading.Event()

    def revoke_at_first_pack(request, forward):
        if request.method == "PUT" and "/packs/" in request.path and not done.is_set():
            done.set()
            written_key(key_file, "second", "second-secret")
            keys_of_server.revoke("first")
        return forward(request)

    proxy.always(revoke_at_first_pack)
    process = daemon.start()

    daemon.wait_for("snapshot ")
    assert done.is_set()
    assert "failed" not in daemon.said()
    assert len(elsewhere.ids()) == 1
    assert elsewhere.verify().ok
    assert keys(elsewhere.place(), "leases") == []
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_a_credentials_file_that_cannot_be_used_fails_snapshots_until_it_can(
    run, daemon, elsewhere, key_file
):
    process = daemon.start()
    daemon.wait_for("snapshot ")
    good = key_file.read_bytes()
    key_file.write_bytes(b"")
    assert "has no access key" in run("snapshot", code=2)
    written_key(key_file, "unknown", "secret")
    assert "403 InvalidAccessKeyId" in run("snapshot", code=1)
    shown = run("status", code=1)
    assert f"daemon:  idle, process {process.pid}" in shown
    assert "403 InvalidAccessKeyId" in shown.splitlines()[-2]
    document = json.loads(run("status", "--json", code=1).partition("\n}\n")[0] + "}")
    assert document["daemon"]["pid"] == process.pid
    assert "InvalidAccessKeyId" in document["error"]["message"]
    run("pause")  # asks the bucket nothing
    assert daemon.status()["paused"]
    run("resume")
    key_file.write_bytes(good)
    key_file.chmod(0o644)
    assert f"chmod 600 {key_file}" in run("snapshot", code=2)
    assert len(elsewhere.ids()) == 1

    key_file.chmod(0o600)

    taken = run("snapshot").splitlines()[0]
    daemon.wait_for(f"snapshot {taken}")
    assert len(elsewhere.ids()) == 2
    assert elsewhere.verify().ok
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_a_drill_of_the_daemon_is_on_record(run, daemon):
    daemon.do("--once")
    committed_s = time.time()
    wait_until("the snapshot is older than the interval", lambda: time.time() > committed_s + 1)
    daemon.configure("drill_interval = 1s")
    process = daemon.start()

    daemon.wait_for("restored in")
    daemon.wait_for("and compared")

    assert "not on record" not in daemon.said()
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
