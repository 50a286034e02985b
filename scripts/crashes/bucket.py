"""Writers and a pruner of one bucket on a real Ceph, killed at random: ``scripts/crash --bucket``.

Eight writers share four caches, as four machines would be; one more machine forgets and prunes. At
the end every listed snapshot must verify, byte by byte, and no command may have failed but those
that were killed or revoked.
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import obstore
from obstore.store import S3Store

from tests.kit.ceph import ACCESS_KEY, SECRET_KEY, Server, ceph_server
from tests.kit.program import CIUIC, environment

__all__ = ["stress_bucket"]

_WRITERS = 8
_MACHINES = 4
_FILES = "abcdefgh"
_FILE_BYTES = 200_000
_KILLS = 0.15
"""The probability of a kill each turn."""
_TURN_S = 0.2


@dataclass
class _Stress:
    """The processes, and what became of earlier ones."""

    top: Path
    server: Server
    address: str
    chance: random.Random
    running: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def command(self, cache: str, *words: str) -> subprocess.Popen[str]:
        """Start a command of the machine with this cache."""
        more = {**self.server.environment, "AWS_ENDPOINT_URL": self.server.endpoint}
        return subprocess.Popen(
            [*CIUIC, "--store", self.address, *words],
            env=environment({**more, "XDG_CACHE_HOME": str(self.top / cache)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def done(self, *words: str) -> tuple[int, str, str]:
        """Run a command to its end."""
        process = self.command("cache-last", *words)
        out, err = process.communicate()
        return process.returncode, out, err

    def start(self, number: int) -> None:
        """Start the next command of a writer, or of the pruner."""
        if number == _WRITERS:
            policy = ("--policy", "last:2", "--prune", "--trash", "0", "--wait", "5s")
            self.running[number] = self.command("cache-prune", "forget", *policy)
            return
        source = self.top / f"source-{number}"
        content = self.chance.randbytes(_FILE_BYTES)
        if self.chance.random() < 0.5:  # what another source has, or had and was forgotten
            other = self.top / f"source-{self.chance.randrange(_WRITERS)}"
            content = (other / self.chance.choice(_FILES)).read_bytes()
        (source / self.chance.choice(_FILES)).write_bytes(content)
        cache = f"cache-{number % _MACHINES}"
        self.running[number] = self.command(cache, "snapshot", str(source), "--wait", "60s")

    def note(self, number: int, process: subprocess.Popen[str]) -> None:
        """Count how a command ended."""
        _, err = process.communicate()
        kind = "prunes" if number == _WRITERS else "snapshots"
        if process.returncode in {0, 3}:
            self.counts[kind] += 1
        elif process.returncode == -signal.SIGKILL:
            pass  # counted when it was killed
        elif "revoked" in err:
            self.counts["revoked"] += 1
        else:
            self.failures.append(f"{kind}: exit {process.returncode}: {err[-500:]}")

    def turn(self) -> None:
        """Start what has ended again, and perhaps kill something."""
        for number in range(_WRITERS + 1):
            process = self.running.get(number)
            if process is None:
                self.start(number)
            elif process.poll() is not None:
                self.note(number, process)
                self.start(number)
        time.sleep(_TURN_S)
        # On a slow machine, nothing would ever end by itself.
        has_ended = self.counts["snapshots"] + self.counts["prunes"] > self.counts["killed"]
        if has_ended and self.chance.random() < _KILLS:
            self.counts["killed"] += 1
            self.running[self.chance.randrange(_WRITERS + 1)].kill()


def stress_bucket(duration_s: float, seed: int) -> bool:
    """Run the stress; returns whether all is well."""
    print(f"seed {seed}, {duration_s:.0f} s", flush=True)
    with ceph_server() as server, tempfile.TemporaryDirectory(prefix="ciuic-bucket-") as name:
        stress = _Stress(Path(name), server, _new_address(server), random.Random(seed))
        for number in range(_WRITERS):
            source = stress.top / f"source-{number}"
            source.mkdir()
            for file in _FILES:
                (source / file).write_bytes(stress.chance.randbytes(_FILE_BYTES))
        code, _, err = stress.done("init")
        if code:
            print(err)
            return False
        until_s = time.monotonic() + duration_s
        try:
            while time.monotonic() < until_s:
                stress.turn()
        finally:
            for process in stress.running.values():
                process.kill()
                process.communicate()
        return _judge(stress)


def _judge(stress: _Stress) -> bool:
    code, out, err = stress.done("verify", "--all", "--checksum")
    print(f"{dict(stress.counts)}; verify before the last prune: exit {code}")
    pruned = stress.done("prune", "--revoke-after", "0s", "--trash", "0", "--json")
    report = json.loads(pruned[1]) if pruned[0] == 0 else {}
    print({key: report.get(key) for key in ("removed", "kept", "revoked", "waiting_for")})
    last = stress.done("verify", "--all", "--checksum")
    for text in (*stress.failures, *((out, err) if code else ()), *(last[1:] if last[0] else ())):
        print(text)
    print(pruned[2] if pruned[0] else last[1][-300:])
    if not (stress.counts["snapshots"] and stress.counts["killed"] and stress.counts["prunes"]):
        print("too few commands have ended to prove anything: run it for more --minutes")
        return False
    return code == pruned[0] == last[0] == 0 and not stress.failures


def _new_address(server: Server) -> str:
    bucket = f"stress-{os.getpid()}"
    client = S3Store(
        bucket,
        config={
            "endpoint": server.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        },
        client_options={"allow_http": True},
    )
    url = obstore.sign(client, "PUT", "", timedelta(minutes=5))
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60):
        pass
    return f"s3://{bucket}/store"
