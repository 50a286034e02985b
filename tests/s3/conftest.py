"""A place in a bucket of a real S3 server."""

import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciuic.control import request_status
from tests.kit import faulty_proxy as faults
from tests.kit.ceph import ACCESS_KEY, SECRET_KEY, Server, ceph_server
from tests.kit.daemon import DEADLINE_S, wait_until
from tests.kit.machine import MIB, Machine
from tests.kit.program import ciuic, environment
from tests.kit.signed_requests import make_bucket, signed_url

_BUCKETS = itertools.count(1)

WITHOUT = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "", "HOME": "/nowhere"}
"""The environment says nothing of use, so that only the configuration can."""

MORE = (
    "snapshot_interval = 365d\nretention_policy = last:2\ntrash = 0s\nscrub_budget = 1h\n"
    "io_priority = none\n"
)


@pytest.fixture
def sign(server: Server) -> Callable[[str, str], str]:
    """See ``signed_url``."""
    return functools.partial(signed_url, server)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests of the session."""
    with ceph_server() as running:
        yield running


@pytest.fixture(scope="session")
def bucket(server: Server, worker_id: str) -> str:
    """A bucket of this worker."""
    name = f"tests-{worker_id}"
    make_bucket(server, name)
    return name


@pytest.fixture
def address(bucket: str) -> str:
    """The address of a new place."""
    return f"s3://{bucket}/stores/{os.getpid()}-{next(_BUCKETS)}"


@pytest.fixture
def proxy(server):
    with faults.faulty_proxy(server.endpoint) as running:
        yield running


@pytest.fixture
def machine(server, proxy, address, tmp_path):
    made = Machine(address, server, proxy.endpoint, tmp_path / "cache")
    assert made.init()[0]
    return made


@pytest.fixture
def other(server, machine, tmp_path):
    """Another machine, which reaches the server without faults."""
    return Machine(machine.address, server, server.endpoint, tmp_path / "other")


@pytest.fixture
def source(tmp_path):
    top = tmp_path / "source"
    (top / "small").mkdir(parents=True)
    (top / "large").write_bytes(os.urandom(9 * MIB))
    for number in range(200):
        (top / "small" / str(number)).write_bytes(b"%d" % number * number)
    return top


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "ciuic.key"
    path.write_text(
        f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    path.chmod(0o600)
    return path


@pytest.fixture
def run(tmp_path, server, address, key_file, source):
    """Run a command with the configuration; returns its output."""
    config = tmp_path / "ciuic.conf"
    text = (
        f"snapshot_dir = {address}\nsnapshot_paths = {source}\nretention_policy = last:1\n"
        f"store_endpoint = {server.endpoint}\nstore_allow_http = yes\n"
        f"store_credentials = {key_file}\n"
    )
    config.write_text(text)

    def run(*command, code=0, more=None):
        done = ciuic("--config", config, *command, more={**run.environ, **(more or {})})
        said = done.out + done.err
        assert done.code == code, said
        assert SECRET_KEY not in said
        assert ACCESS_KEY not in said
        return said

    run.config = config
    run.text = text
    run.directory = tmp_path
    run.environ = {**WITHOUT, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return run


@pytest.fixture
def daemon(run, address):
    """Return functions that start a daemon and run its other commands; all daemons are ended."""
    started = []
    state = run.directory / "state"
    state.mkdir()
    environ = {**run.environ, "STATE_DIRECTORY": str(state), "TMPDIR": str(run.directory)}
    text = run.text.replace("retention_policy = last:1\n", "")
    run.config.write_text(text + MORE)

    class Daemons:
        log = run.directory / "daemon.log"

        @staticmethod
        def configure(*lines, interval="365d"):
            more = "".join(f"{line}\n" for line in lines)
            run.config.write_text(text + MORE.replace("365d", interval) + more)

        @staticmethod
        def command(*arguments):
            return [sys.executable, "-m", "ciuicd", "--config", str(run.config), *arguments]

        def start(self, python=sys.executable):
            command = [python, *self.command()[1:]]
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=environment(environ)
                )
            started.append(process)
            wait_until("a daemon answers or ends", lambda: self.status() or process.poll())
            return process

        def status(self):
            found = list((run.directory / "cache").rglob("control.sock"))
            return request_status(str(found[0].parent)) if found else None

        def said(self):
            return self.log.read_text()

        def directory(self):
            """Return where a daemon has its socket."""
            (found,) = (run.directory / "cache").rglob("control.sock")
            return found.parent

        def wait_for(self, text, count=1):
            wait_until(f"{text!r} in the log", lambda: self.said().count(text) >= count)

        def do(self, *arguments, code=0):
            done = subprocess.run(
                self.command(*arguments),
                env=environment(environ),
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert done.returncode == code, done.stderr
            assert SECRET_KEY not in done.stderr
            return done.stderr

    yield Daemons()
    for process in started:
        process.kill()
        process.wait(DEADLINE_S)
    if Daemons.log.exists():
        said = Daemons.log.read_text()
        print(said)
        assert SECRET_KEY not in said
        assert ACCESS_KEY not in said
        assert "Traceback" not in said


@pytest.fixture
def elsewhere(server, address, tmp_path):
    """Another machine."""
    return Machine(address, server, server.endpoint, tmp_path / "elsewhere")
