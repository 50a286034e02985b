"""A real S3 server for the tests: one Ceph cluster, shared by all workers.

It has one disk or, with ``CIUIC_LONG=1``, three: each object is on all of them, and two are enough
to write.

``ceph_server`` starts this module as a program, in a process of its own. The processes that use the
cluster hold a lock on a file; the program stops the cluster when none of them holds it, even if the
tests were killed.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

__all__ = ["ACCESS_KEY", "SECRET_KEY", "Server", "ceph_server"]

ACCESS_KEY = "ciuic-tests"
SECRET_KEY = "a-secret-that-no-message-shows"
_PROGRAMS = ("ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool")
_START_S = 120
_DISKS_LONG = 3
_DISK_BYTES = 4 << 30
_REPOSITORY = Path(__file__).parents[2]

_STARTED: list["subprocess.Popen[bytes]"] = []
"""Programs that outlive the test that started them, as the cluster has other users."""

_CONFIG = """\
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon},v1:127.0.0.1:{mon_old}]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
run_dir = {top}/run
admin_socket = {top}/run/$name.asok
pid_file =
log_file = {top}/log/$name.log
crash_dir = {top}/run
mon_data = {top}/mon
mgr_data = {top}/mgr
osd_data = {top}/osd$id
rgw_data = {top}/rgw
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_warn_on_insecure_global_id_reclaim_allowed = false
mon_max_pg_per_osd = 1000
osd_pool_default_size = {disks}
osd_pool_default_min_size = {disks_min}
osd_pool_default_pg_num = {disks}
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = bluestore
bluestore_block_create = true
bluestore_block_size = {disk_bytes}
osd_memory_target = 939524096
osd_class_update_on_start = false
rgw_frontends = beast endpoint=127.0.0.1:{s3} tcp_nodelay=1
mon_data_avail_warn = 5
mon_data_avail_crit = 1
[client]
keyring = {top}/keyring
[mon]
keyring = {top}/keyring
[mgr]
keyring = {top}/keyring
[osd]
keyring = {top}/osd$id/keyring
"""

_RIGHTS = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *", "mgr": "allow *"},
    "client.rgw.a": {"mon": "allow rw", "osd": "allow rwx"},
    "mgr.x": {"mon": "allow profile mgr", "osd": "allow *", "mds": "allow *"},
}
"""The rights of each program that is not a disk."""


@dataclass(frozen=True)
class Server:
    """A running S3 server.

    Attributes:
        endpoint: Its URL.
        top: Its directory.
        disks: How many it has.
    """

    endpoint: str
    top: Path
    disks: int

    @property
    def environment(self) -> dict[str, str]:
        """Credentials, in the variables that AWS programs read."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    @contextlib.contextmanager
    def without_disks(self, *numbers: int) -> Iterator[None]:
        """Kill the servers of these disks; they start again when the block ends."""
        down = [self.top / f"osd{number}" / "down" for number in numbers]
        try:
            for path in down:
                path.touch()
                os.kill(int(path.with_name("pid").read_text()), signal.SIGKILL)
            yield
        finally:
            for path in down:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def ceph_server(disks: int = 0, disk_bytes: int = _DISK_BYTES) -> Iterator[Server]:
    """Use the cluster of this test session for the duration of the block; start it if needed.

    Args:
        disks: How many it has, if it is started; 0: see the module.
        disk_bytes: The size of each, if it is started; they are sparse files.
    """
    disks = disks or (_DISKS_LONG if os.environ.get("CIUIC_LONG") else 1)
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} of Ceph is not installed")
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    top = Path(tempfile.gettempdir()) / f"ciuic-ceph-{session[:12]}"
    with contextlib.ExitStack() as stack:
        turn = _take_turn(top, stack)
        users = stack.enter_context((top / "users").open("w"))
        fcntl.flock(users, fcntl.LOCK_SH)
        if not (top / "endpoint").exists():
            _start(top, disks, disk_bytes)
        endpoint = (top / "endpoint").read_text()
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield Server(endpoint, top, len(list(top.glob("osd[0-9]"))))


def _take_turn(top: Path, stack: contextlib.ExitStack) -> IO[str]:
    """Lock the cluster, so that no other worker starts one and the running one is not stopped."""
    while True:
        top.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            turn = stack.enter_context((top / "turn").open("w"))
            fcntl.flock(turn, fcntl.LOCK_EX)
            # The last cluster may have been removed while this process waited.
            if os.path.samestat(os.fstat(turn.fileno()), (top / "turn").stat()):
                return turn


def _start(top: Path, disks: int, disk_bytes: int) -> None:
    with (top / "output").open("w") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.ceph", top, str(disks), str(disk_bytes)],
            cwd=_REPOSITORY,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    _STARTED.append(program)
    deadline_s = time.monotonic() + _START_S
    while not (top / "endpoint").exists():
        if program.poll() is not None or time.monotonic() > deadline_s:
            program.kill()
            raise RuntimeError(f"Ceph did not start: {(top / 'output').read_text()[-2000:]}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _die_with_parent() -> None:
    # PR_SET_PDEATHSIG: if this program is killed, its servers end too.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class _Cluster:
    """The processes of one cluster."""

    def __init__(self, top: Path, disks: int, disk_bytes: int) -> None:
        self._top = top
        self._config = top / "ceph.conf"
        self._servers: list[subprocess.Popen[bytes]] = []
        self._disks: dict[int, subprocess.Popen[bytes]] = {}
        self._disk_count = disks
        self._disk_bytes = disk_bytes

    def start(self) -> str:
        """Start it; returns its URL."""
        top = self._top
        for name in ("run", "log", "mon", "mgr", "rgw"):
            (top / name).mkdir()
        fsid = str(uuid.uuid4())
        mon, mon_old, s3 = _free_ports(3)
        text = _CONFIG.format(
            fsid=fsid,
            mon=mon,
            mon_old=mon_old,
            s3=s3,
            top=top,
            disks=self._disk_count,
            disks_min=self._disk_count // 2 + 1,
            disk_bytes=self._disk_bytes,
        )
        self._config.write_text(text)
        self._start_mon(fsid, f"[v2:127.0.0.1:{mon},v1:127.0.0.1:{mon_old}]")
        self._serve("ceph-mgr", "-i", "x")
        for number in range(self._disk_count):
            self._make_disk(number)
            self._serve_disk(number)
        self._serve("radosgw", "-n", "client.rgw.a")
        user = ("--uid=ciuic", "--display-name=ciuic")
        keys = (f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}")
        self._run("radosgw-admin", "user", "create", *user, *keys)
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", s3)):
                return f"http://127.0.0.1:{s3}"
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill it: its data is not needed."""
        for server in (*reversed(self._servers), *self._disks.values()):
            server.kill()
            server.wait()

    def _start_mon(self, fsid: str, address: str) -> None:
        keyring, monmap = self._top / "keyring", self._top / "monmap"
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, monmap)
        self._run("ceph-authtool", "--create-keyring", keyring)
        # The monitor takes them over: asking it for each takes a second.
        for name, rights in _RIGHTS.items():
            caps = [part for what, right in rights.items() for part in ("--cap", what, right)]
            self._run("ceph-authtool", keyring, "--gen-key", "-n", name, *caps)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self._serve("ceph-mon", "-i", "a")

    def restart_disks(self) -> None:
        """Start the servers that were killed: see ``Server.without_disks``."""
        for number, server in list(self._disks.items()):
            is_down = (self._top / f"osd{number}" / "down").exists()
            if server.poll() is not None and not is_down:
                self._serve_disk(number)

    def _make_disk(self, number: int) -> None:
        directory = self._top / f"osd{number}"
        directory.mkdir()
        key = self._run("ceph-authtool", "--gen-print-key").strip()
        secrets = self._top / "secrets"
        secrets.write_text(f'{{"cephx_secret":"{key}"}}')
        disk = str(uuid.uuid4())
        self._run("ceph", "osd", "new", disk, str(number), "-i", str(secrets))
        name = ("-n", f"osd.{number}", "--add-key", key)
        self._run("ceph-authtool", "--create-keyring", directory / "keyring", *name)
        self._run("ceph-osd", "-i", str(number), "--mkfs", "--osd-uuid", disk)

    def _serve_disk(self, number: int) -> None:
        server = self._start_server("ceph-osd", "-i", str(number))
        self._disks[number] = server
        (self._top / f"osd{number}" / "pid").write_text(str(server.pid))

    def _run(self, program: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [program, "-c", self._config, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} {arguments}: {done.stderr[-1000:]}")
        return done.stdout

    def _serve(self, program: str, *arguments: str) -> None:
        self._servers.append(self._start_server(program, *arguments))

    def _start_server(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [program, "-c", self._config, "-f", *arguments],
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this program has one thread
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _main(top: Path, disks: int, disk_bytes: int) -> None:
    cluster = _Cluster(top, disks, disk_bytes)
    try:
        waiting = top / "endpoint.new"
        waiting.write_text(cluster.start())
        waiting.rename(top / "endpoint")
    except BaseException:
        cluster.stop()
        raise
    with (top / "turn").open("w") as turn, (top / "users").open("w") as users:
        while not _is_unused(turn, users):
            time.sleep(0.5)
            cluster.restart_disks()
        cluster.stop()
        shutil.rmtree(top)


def _is_unused(turn: IO[str], users: IO[str]) -> bool:
    """Return whether no process uses the cluster; if so, this process holds its lock."""
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(turn, fcntl.LOCK_UN)
        return False
    return True


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
