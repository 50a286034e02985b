"""Writers and pruners of one bucket on a real Ceph, killed at random: ``scripts/crash --bucket``.

Six writers are commands, on four machines with a cache each; two are trainings that save with the
library. A daemon on another machine takes snapshots, forgets and prunes, and one more machine
forgets what the commands took, prunes too, and revokes the sessions of processes that were killed.
One of the server's three disks is killed as well, and starts again.

A prune of the daemon takes longer than the time between two kills on a slow machine. So a fate is
drawn for each daemon: some are killed at any moment, some in the middle of a prune only, and some
after one of their prunes has ended.

At the end, every listed snapshot must verify. Some are restored and compared with what was taken,
byte by byte. Every listed state of a training is loaded and compared, and the newest is no older
than what the training reported as durable. No process may have ended with an error, unless a prune
revoked it.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ciuic.control.client import request_status
from ciuic.errors import CiuicError
from ciuic.store.records.layout import CONTROL_SOCKET
from tests.kit.ceph import SECRET_KEY, Server, ceph_server
from tests.kit.program import CIUIC, environment
from tests.kit.signed_requests import make_bucket

__all__ = ["stress_bucket"]

_COMMANDS = 6
_TRAININGS = range(_COMMANDS, 8)
_DAEMON = 8
_PRUNER = 9
_MACHINES = 4
"""Those of the commands; every other process has a machine of its own."""
_FILES = "abcdefgh"
_FILE_BYTES = 200_000
_KILLS = 0.15
"""The probability of a kill each turn."""
_TURN_S = 0.2
_DISKS = 3
_DISK_S = 15
_DISK_KILLS = 0.005
"""The probability that the disk is killed, each turn. Always the same one: the others must have
everything."""
_FATES = ("any moment", "in a prune", "after a prune", "after a prune")
"""When a daemon may be killed; each is as probable as the others."""
_PRUNE_KILLS = 0.05
"""The probability that a daemon with the second fate is killed, each turn of its prune."""
_REVOKE_AFTER = "90s"
"""A session that is alive changes its lease every minute."""
_OF_DAEMON = ("prunes of the daemon", "daemons killed in a prune")
_RESTORED_MAX = 40
_AS_MACHINE = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')
"""Before the name of a machine and a command."""

_TRAINING = """\
import sys, numpy as np
from ciuic import SnapshotManager
store, run, durable = sys.argv[1], sys.argv[2], int(sys.argv[3])
weights = np.zeros(200_000, np.float32)
with SnapshotManager(store, max_snapshots=3, run=run) as manager:
    found = manager.load_latest_snapshot()
    last = -1 if found is None else found["step"]
    assert last >= durable, f"step {durable} was durable, and {last} is the newest"
    for step in range(last + 1, last + 9):
        weights[:] = np.random.default_rng(step).normal(size=len(weights))
        manager.save_snapshot({"w": weights}, step=step, wait=True)
        print(step, flush=True)
"""

_LOADING = """\
import sys, numpy as np
from ciuic import SnapshotManager
store, run = sys.argv[1:]
with SnapshotManager(store, max_snapshots=3, run=run) as manager:
    found = [one for one in manager.list() if one.run == run and one.complete]
    for one in found:
        weights = np.random.default_rng(one.step).normal(size=200_000).astype(np.float32)
        assert np.array_equal(manager.load_snapshot(one.id)["model_state_dict"]["w"], weights), one
print(len(found))
"""

_CONFIG = """\
snapshot_dir = {address}
snapshot_paths = {top}/source-8
snapshot_interval = 3m
retention_policy = last:2
trash = 0
scrub_budget = 0
drill_interval = 0
io_priority = none
pressure_limit = 0
store_allow_http = yes
"""


class _Taken(NamedTuple):
    """A snapshot: its writer, and the hash of each file."""

    number: int
    hashes: dict[str, str]


@dataclass
class _Stress:
    """The processes, and how earlier ones ended.

    Attributes:
        taken: What each snapshot holds that a command has reported.
        durable: The last step that each training has reported.
        fate: When the daemon may be killed: one of ``_FATES``.
    """

    top: Path
    server: Server
    address: str
    chance: random.Random
    running: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    taken: dict[str, _Taken] = field(default_factory=dict)
    durable: dict[int, int] = field(default_factory=dict)
    fate: str = ""
    _prunes_before: int = 0
    _sources: dict[int, dict[str, str]] = field(default_factory=dict)
    _disk: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _disk_down_until_s: float = 0.0

    def process(self, machine: str, *words: str | Path) -> subprocess.Popen[str]:
        """Start a program on a machine."""
        more = {**self.server.environment, "AWS_ENDPOINT_URL": self.server.endpoint}
        own = {"XDG_CACHE_HOME": self.top / machine, "STATE_DIRECTORY": self.top / "state"}
        return subprocess.Popen(
            [*_AS_MACHINE, machine, *words],
            env=environment({**more, **{name: str(path) for name, path in own.items()}}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, machine: str, *words: str | Path) -> subprocess.Popen[str]:
        """Start ``ciuic`` on a machine."""
        return self.process(machine, *CIUIC, "--store", self.address, *words)

    def done(self, *words: str | Path) -> tuple[int, str, str]:
        """Run ``ciuic`` to its end, on a machine that has no other process."""
        process = self.command("machine-last", *words)
        out, err = process.communicate()
        return process.returncode, out, err

    def source(self, number: int) -> Path:
        """Return the directory that a writer takes snapshots of."""
        return self.top / f"source-{number}"

    def begin(self) -> None:
        """Make the sources and the daemon's configuration."""
        (self.top / "state").mkdir()
        (self.top / "ciuic.conf").write_text(_CONFIG.format(address=self.address, top=self.top))
        for number in (*range(_COMMANDS), _DAEMON):
            self.source(number).mkdir()
            for file in _FILES:
                (self.source(number) / file).write_bytes(self.chance.randbytes(_FILE_BYTES))

    def turn(self) -> None:
        """Restart the processes that have ended, and perhaps kill one."""
        for number in (*range(_COMMANDS), *_TRAININGS, _DAEMON, _PRUNER):
            process = self.running.get(number)
            if process is not None:
                if process.poll() is None:
                    continue
                self._note(number, process)
            self.running[number] = self._started(number)
        time.sleep(_TURN_S)
        self._disturb_the_disk()
        self._kill_some()

    def _kill_some(self) -> None:
        # On a slow machine, nothing would ever end by itself.
        ended = self.counts["snapshots"] + self.counts["prunes"]
        if ended > self.counts["killed"] and self.chance.random() < _KILLS:
            numbers = [one for one in self.running if one != _DAEMON or not self._spares_daemon()]
            self.counts["killed"] += 1
            self.running[self.chance.choice(numbers)].kill()
        is_drawn = self.fate == "in a prune" and self.chance.random() < _PRUNE_KILLS
        if is_drawn and self._daemon_prunes():
            self.counts["daemons killed in a prune"] += 1
            self.running[_DAEMON].kill()
            self.running[_DAEMON].wait()

    def _spares_daemon(self) -> bool:
        if self.fate == "after a prune":
            return self._prunes_of_daemon() == self._prunes_before
        return self.fate == "in a prune"

    def _prunes_of_daemon(self) -> int:
        """Return how many prunes of all daemons have ended."""
        return self._log.read_text().count(" pruned: ") if self._log.exists() else 0

    def _daemon_prunes(self) -> bool:
        """Ask the daemon whether it prunes now."""
        for path in (self.top / f"machine-{_DAEMON}").glob(f"*/*/{CONTROL_SOCKET}"):
            with contextlib.suppress(CiuicError, OSError):  # it starts, or has just ended
                status = request_status(str(path.parent))
                if status is not None and status["upkeep"]["doing"] == "prune":
                    return True
        return False

    def _disturb_the_disk(self) -> None:
        now_s = time.monotonic()
        if self._disk_down_until_s and now_s > self._disk_down_until_s:
            self._disk.close()
            self._disk_down_until_s = 0.0
        elif not self._disk_down_until_s and self.chance.random() < _DISK_KILLS:
            with contextlib.suppress(ProcessLookupError):  # it has not started again yet
                self._disk.enter_context(self.server.without_disks(_DISKS - 1))
                self._disk_down_until_s = now_s + _DISK_S
                self.counts["disks killed"] += 1

    def end(self) -> None:
        """Kill everything."""
        self._disk.close()
        for number, process in self.running.items():
            process.kill()
            self._note(number, process)
        log = self._log.read_text() if self._log.exists() else ""
        self.counts["prunes of the daemon"] = self._prunes_of_daemon()
        if "Traceback" in log or SECRET_KEY in log:
            self.failures.append(f"the daemon: {log[-2000:]}")

    @property
    def _log(self) -> Path:
        return self.top / "daemon.log"

    def _started(self, number: int) -> subprocess.Popen[str]:
        if number in _TRAININGS:
            last = str(self.durable.get(number, -1))
            training = (sys.executable, "-c", _TRAINING, self.address, f"run-{number}", last)
            return self.process(f"machine-{number}", *training)
        if number == _DAEMON:
            self._change(number)
            self.fate = self.chance.choice(_FATES)
            self._prunes_before = self._prunes_of_daemon()
            # A shell's redirection: with a pipe, unread output of a killed daemon would be lost.
            script = f'exec "$@" 2>>{self._log}'
            daemon = (sys.executable, "-m", "ciuicd", "--config", str(self.top / "ciuic.conf"))
            return self.process(f"machine-{number}", "sh", "-c", script, "sh", *daemon)
        if number == _PRUNER and self.chance.random() < 0.5:
            patience = ("--wait", "5s", "--revoke-after", _REVOKE_AFTER)
            return self.command(f"machine-{number}", "prune", "--trash", "0", *patience, "--json")
        if number == _PRUNER:
            host = f"machine-{self.chance.randrange(_MACHINES)}"
            policy = ("--policy", "last:2", "--host", host, "--prune", "--trash", "0")
            return self.command(f"machine-{number}", "forget", *policy, "--wait", "5s")
        self._change(number)
        self._sources[number] = _hashes(self.source(number))
        words = ("snapshot", str(self.source(number)), "--wait", "600s", "--json")
        return self.command(f"machine-{number % _MACHINES}", *words)

    def _change(self, number: int) -> None:
        """Change a file: to new content, or to content that another source has or once had."""
        content = self.chance.randbytes(_FILE_BYTES)
        if self.chance.random() < 0.5:
            other = self.source(self.chance.randrange(_COMMANDS))
            content = (other / self.chance.choice(_FILES)).read_bytes()
        (self.source(number) / self.chance.choice(_FILES)).write_bytes(content)

    def _note(self, number: int, process: subprocess.Popen[str]) -> None:
        """Count how a process ended, and remember what it said is durable."""
        out, err = process.communicate()
        code = process.returncode
        if number in _TRAININGS:
            kind = "saves"
            steps = [int(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]
            self.counts[kind] += len(steps)
            self.durable[number] = max([self.durable.get(number, -1), *steps])
        else:
            kind = {_DAEMON: "daemons", _PRUNER: "prunes"}.get(number, "snapshots")
            self.counts[kind] += code in {0, 3}
            if number == _PRUNER and code == 0 and out.startswith("{"):
                self.counts["packs removed"] += json.loads(out)["removed"]["packs"]
        if code in {0, 3} and number < _COMMANDS:
            self.taken[json.loads(out)["id"]] = _Taken(number, self._sources[number])
        if code in {0, 3, -signal.SIGKILL}:
            return
        if "revoked" in err:
            self.counts["revoked"] += 1
        else:
            self.failures.append(f"{kind}: exit {code}: {err[-500:]}")


def _hashes(directory: Path) -> dict[str, str]:
    """Return the hash of each file."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()
    }


def stress_bucket(duration_s: float, seed: int) -> bool:
    """Run the stress; returns whether all is well."""
    print(f"seed {seed}, {duration_s:.0f} s", flush=True)
    with (
        ceph_server(_DISKS) as server,
        # The process that stores a training's state survives the training, and uses its cache.
        tempfile.TemporaryDirectory(prefix="ciuic-bucket-", ignore_cleanup_errors=True) as name,
    ):
        stress = _Stress(Path(name), server, _new_address(server), random.Random(seed))
        stress.begin()
        code, _, err = stress.done("init")
        if code:
            print(err)
            return False
        until_s = time.monotonic() + duration_s
        try:
            while time.monotonic() < until_s:
                stress.turn()
        finally:
            stress.end()
        return _judge(stress)


def _judge(stress: _Stress) -> bool:
    code, out, err = stress.done("verify", "--all", "--checksum")
    print(f"{dict(stress.counts)}; verify before the last prune: exit {code}")
    _restore_some(stress)
    _load_all(stress)
    pruned = stress.done("prune", "--revoke-after", "0s", "--trash", "0", "--json")
    report = json.loads(pruned[1]) if pruned[0] == 0 else {}
    print({key: report.get(key) for key in ("removed", "kept", "waiting_for")})
    last = stress.done("verify", "--all", "--checksum")
    for text in (*stress.failures, *((out, err) if code else ()), *(last[1:] if last[0] else ())):
        print(text)
    print(pruned[2] if pruned[0] else last[1][-300:])
    needed = ("snapshots", "saves", "killed", "prunes", *_OF_DAEMON)
    if missing := [what for what in needed if not stress.counts[what]]:
        print(f"{', '.join(missing)}: none, so this proves little: run it for more --minutes")
        return False
    return code == pruned[0] == last[0] == 0 and not stress.failures


def _restore_some(stress: _Stress) -> None:
    """Compare files with what the commands have taken."""
    code, out, err = stress.done("list", "--json")
    listed = {one["id"] for one in json.loads(out)} if code == 0 else set()
    known = sorted(listed & stress.taken.keys())
    print(f"{len(listed)} listed, {len(known)} of them reported by a command {err}")
    for snapshot_id in stress.chance.sample(known, min(len(known), _RESTORED_MAX)):
        with tempfile.TemporaryDirectory(dir=stress.top) as target:
            number = stress.taken[snapshot_id].number
            words = ("-s", snapshot_id, "-p", stress.source(number), "-d", target)
            code, _, err = stress.done("restore", *words)
            restored = Path(target, stress.source(number).name)
            if code or _hashes(restored) != stress.taken[snapshot_id].hashes:
                stress.failures.append(f"{snapshot_id} is restored wrong: exit {code}: {err}")
            else:
                stress.counts["restored"] += 1


def _load_all(stress: _Stress) -> None:
    """Compare the states of the trainings; each continues from what it said is durable."""
    for number in _TRAININGS:
        run = f"run-{number}"
        last = str(stress.durable.get(number, -1))
        for program, *words in ((_TRAINING, run, last), (_LOADING, run)):
            command = [sys.executable, "-c", program, stress.address, *words]
            process = stress.process(f"machine-{number}", *command)
            out, err = process.communicate()
            if process.returncode:
                stress.failures.append(f"{run}: {err[-1000:]}")
        stress.counts["loaded"] += int(out or 0)
    print(f"{stress.counts['restored']} restored, {stress.counts['loaded']} loaded")


def _new_address(server: Server) -> str:
    bucket = f"stress-{os.getpid()}"
    make_bucket(server, bucket)
    return f"s3://{bucket}/store"
