"""Jobs of ``ciuic web``: plans, restores, refusals, and how jobs end."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.mounted import wait_for
from tests.kit.program import environment
from tests.kit.served import Gate, Served, served
from tests.kit.trees import photograph

NEVER_ANSWERS = """
import sys, threading
from ciuic.cli.entry import program
from ciuic.web.history.timelines import Timelines
Timelines.compare = lambda *_: [print("asked", flush=True), threading.Event().wait()]
sys.argv[0] = "ciuic"
program()
"""


@pytest.fixture
def full(box: Box) -> Box:
    """A box with a snapshot of a few files, one with a name that is not UTF-8."""
    (box.source / "model.pt").write_bytes(os.urandom(200_000))
    (box.source / os.fsdecode(b"odd \xff\n")).write_text("odd")
    box.take()
    return box


def news(site: Served, job_id: str) -> list[tuple[str, dict]]:
    """Return the events about a job until it has ended."""
    text = site.ask(f"/v1/jobs/{job_id}/events").body.decode()
    found = []
    for event in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line)
        if "data" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def test_a_plan_changes_nothing_and_the_restore_does_what_it_says(full: Box, tmp_path: Path):
    out = tmp_path / "out"
    work = {
        "do": "restore",
        "snapshot": "latest",
        "paths": [str(full.source)],
        "destination": str(out),
    }
    with served(full) as site:
        plan = news(site, site.start(**work).document["id"])[-1]
        assert plan[0] == "done"
        assert not out.exists()
        done = news(site, site.start(**work, dry_run=False).document["id"])[-1]

    assert done[0] == "done"
    said, did = plan[1]["report"], done[1]["report"]
    assert said["dry_run"]
    assert not did["dry_run"]
    for field in ("written_files", "written_bytes", "kept_files", "deleted_files"):
        assert said[field] == did[field]
    assert photograph(out / "source") == photograph(full.source)


def test_the_command_line_of_a_job_does_the_same(full: Box, tmp_path: Path):
    odd = str(full.source / os.fsdecode(b"odd \xff\n"))
    with served(full) as site:
        job = site.start(
            do="restore",
            snapshot="latest",
            paths=[odd],
            destination=str(tmp_path / "it's here"),
            dry_run=False,
        ).document
        assert job["work"]["paths"] == [odd]
        assert site.ended(job["id"])["report"]["written_files"] == 1
    restored = tmp_path / "it's here" / os.path.basename(odd)
    assert restored.read_text() == "odd"
    restored.unlink()
    script = tmp_path / "script"
    words = b"ciuic() { printf '%s\\0' \"$@\"; }\n"
    script.write_bytes(words + os.fsencode(job["command"]) + b"\n")
    shell = subprocess.run(["bash", script], stdout=subprocess.PIPE, check=True, timeout=60)
    arguments = shell.stdout.split(b"\0")[:-1]

    assert full.ciuic(*arguments).code == 0
    assert restored.read_text() == "odd"


def test_what_the_command_refuses_a_job_refuses(full: Box):
    with served(full) as site:
        work = {"do": "restore", "snapshot": "latest", "paths": [str(full.source)]}
        found = [
            site.ended(site.start(**work, dry_run=dry).document["id"]) for dry in (True, False)
        ]
        missing = site.ended(site.start(**{**work, "paths": ["/nowhere"]}).document["id"])

    assert [(one["state"], one["error"]["kind"]) for one in found] == [("failed", "target")] * 2
    assert "--overwrite" in found[0]["error"]["hint"]
    assert missing["error"]["kind"] == "path_not_found"


def test_a_restore_goes_on_when_its_listener_leaves(full: Box, tmp_path: Path):
    gate = Gate(tmp_path, "os.mkdir")
    out = tmp_path / "out"
    with served(full, gate=gate) as site:
        job = site.start(
            do="restore",
            snapshot="latest",
            paths=[str(full.source)],
            destination=str(out),
            dry_run=False,
        ).document
        listener = site.connection()
        key = {"Authorization": f"Bearer {site.token}"}
        listener.request("GET", f"/v1/jobs/{job['id']}/events", headers=key)
        assert listener.getresponse().readline() == b"event: running\n"
        gate.wait()
        listener.close()
        assert site.ask("/v1/jobs").document["jobs"][0]["state"] == "running"
        another = site.start(
            do="restore", snapshot="latest", paths=["/a"], destination="/b", dry_run=False
        )
        assert (another.status, another.document["error"]["kind"]) == (409, "busy")
        gate.open()
        assert site.ended(job["id"])["state"] == "done"

    assert photograph(out / "source") == photograph(full.source)


@pytest.mark.parametrize("by", ["request", "end"])
def test_a_job_that_is_stopped_leaves_no_torn_file(full: Box, tmp_path: Path, by: str):
    gate = Gate(tmp_path, "os.mkdir")
    out = tmp_path / "out"
    with served(full, gate=gate) as site:
        job = site.start(
            do="restore",
            snapshot="latest",
            paths=[str(full.source)],
            destination=str(out),
            dry_run=False,
        ).document
        gate.wait()
        if by == "request":
            assert site.ask(f"/v1/jobs/{job['id']}", method="DELETE").status == 200
            gate.open()
            found = site.ended(job["id"])
            assert (found["state"], found["error"]["kind"]) == ("cancelled", "cancelled")
        else:
            site.process.terminate()
            wait_for(lambda: "stopping 1 job" in site.errors.read_text(), "it stops its job")
            gate.open()
            assert site.process.wait(120) == 0

    assert not [path for path in out.rglob("*") if path.is_file()]


def test_a_process_that_dies_is_a_job_that_failed(full: Box, tmp_path: Path):
    gate = Gate(tmp_path, "os.mkdir")
    with served(full, gate=gate) as site:
        job = site.start(
            do="restore",
            snapshot="latest",
            paths=[str(full.source)],
            destination=str(tmp_path / "out"),
            dry_run=False,
        ).document
        gate.wait()
        for child in Path(f"/proc/{site.process.pid}/task").glob("*/children"):
            for pid in child.read_text().split():
                os.kill(int(pid), 9)
        found = site.ended(job["id"])

    assert found["state"] == "failed"
    assert "status -9" in found["error"]["message"]


def test_a_verification_names_the_damage(full: Box):
    content = (full.source / "model.pt").read_bytes()
    with served(full) as site:
        good = site.start(do="verify", snapshot="latest", checksum=True).document
        assert site.ended(good["id"])["report"]["ok"]
        flip_content(full.store, content)
        bad = site.start(do="verify", snapshot="latest", checksum=True).document
        report = site.ended(bad["id"])["report"]

    assert not report["ok"]
    assert report["snapshots"][0]["damaged"][0]["path"] == str(full.source / "model.pt")


def test_the_end_of_the_server_says_nothing_of_a_request_that_it_cuts_off(full: Box) -> None:
    command = [sys.executable, "-c", NEVER_ANSWERS, "--config", str(full.config), "web"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **pipes) as process:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().strip())
        token = {"Authorization": f"Bearer {url.query.partition('=')[2]}"}
        with contextlib.closing(http.client.HTTPConnection(url.netloc, timeout=60)) as client:
            client.request("GET", "/v1/compare?id=latest", headers=token)
            assert process.stdout.readline() == "asked\n"
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)

    assert (process.returncode, said) == (0, "ciuic: press Ctrl-C to end\n")
