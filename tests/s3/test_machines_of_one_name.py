"""Two machines with one name and one machine ID: a virtual machine and its copy.

Each has a cache and a state directory of its own, and its own files at the same path.
"""

import re
import signal
import subprocess
import sys

import pytest

from tests.kit.daemon import DEADLINE_S, wait_until
from tests.kit.machine import Machine
from tests.kit.program import environment

pytestmark = [pytest.mark.slow, pytest.mark.root]

SAID = "another machine has the name"
MOUNTED = 'mount --bind "$0" "$1" && shift && exec "$@"'
"""For ``sh -c``. What follows: the machine's own files, where it sees them, and a command."""


@pytest.fixture
def started(run, source):
    """Start the daemon of one of the two machines; all daemons are ended."""
    processes = []

    def start(twin):
        top = run.directory / twin
        (top / "files").mkdir(parents=True)
        (top / "files" / "weights.bin").write_text(f"those of {twin}")
        own = {"XDG_CACHE_HOME": top / "cache", "STATE_DIRECTORY": top, "TMPDIR": top}
        environ = environment({**run.environ, **{name: str(path) for name, path in own.items()}})
        mount = ("unshare", "--mount", "sh", "-c", MOUNTED, top / "files", source)
        daemon = (sys.executable, "-m", "ciuicd", "--config", run.config)
        with (top / "log").open("wb") as log:
            process = subprocess.Popen([*mount, *daemon], env=environ, stdout=log, stderr=log)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait(DEADLINE_S)


def test_both_machines_take_their_snapshots_and_say_so(run, started, server, address, tmp_path):
    more = "snapshot_interval = 5s\nscrub_budget = 0\ndrill_interval = 0\nio_priority = none\n"
    run.config.write_text(run.text.replace("last:1", "3650d") + more)
    twins = ("one", "two")
    logs = {twin: run.directory / twin / "log" for twin in twins}

    def taken(twin):
        said = logs[twin].read_text() if logs[twin].exists() else ""
        return re.findall(r"snapshot (cs-[0-9a-f]+) \(", said)

    processes = [started("one")]
    wait_until("the store is made", lambda: taken("one"), deadline_s=2 * DEADLINE_S)
    processes.append(started("two"))
    wait_until(
        "each has taken snapshots, and seen one of the other",
        lambda: all(len(taken(twin)) >= 3 and SAID in logs[twin].read_text() for twin in twins),
        deadline_s=4 * DEADLINE_S,
    )
    for process in processes:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0

    third = Machine(address, server, server.endpoint, tmp_path / "third")
    assert set(taken("one")) | set(taken("two")) <= third.ids()
    assert third.verify().ok
    for twin in twins:
        said = logs[twin].read_text()
        assert said.count(SAID) == 1, said
        assert "Traceback" not in said
        out = tmp_path / f"out-{twin}"
        words = ("-s", taken(twin)[-1], "-p", tmp_path / "source", "-d", out)
        run("restore", *words)
        assert (out / "source" / "weights.bin").read_text() == f"those of {twin}"
