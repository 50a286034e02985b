"""``ciuicd --alert``: a real process with real channels reports missing successes."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.index.places import DrillRecord
from ciuic.store.store import open_store
from tests.kit.clock import ManualClock
from tests.kit.daemon import REPOSITORY, Machine
from tests.kit.damage import flip_content
from tests.kit.hooks import Hook
from tests.kit.program import ciuic

DAY_NS = 86_400 * 10**9


class Watched:
    """A machine whose alerts are written to files.

    Attributes:
        said: What the last run said on stderr.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.state = machine.directory / "state"
        self.state.mkdir()
        self.heard = machine.directory / "heard"
        self.refuse = machine.directory / "refuse"
        self.said = ""
        self.configure()

    def configure(self, **values: str) -> None:
        """Write the configuration. Its one channel fails if the test asks for it."""
        machine = self.machine
        machine.configure(**{"snapshot_interval": "1h"} | values)
        command = f"test ! -e {self.refuse} && cat >> {self.heard} && echo >> {self.heard}"
        with machine.config.open("a") as file:
            file.write(f"[alert all]\ntype = command\ncommand = {command}\n")

    def take(self, *, hours_ago: float) -> None:
        clock = ManualClock(time.time_ns() - round(hours_ago * 3600e9))
        create_store(str(self.machine.store), clock)
        with open_store(str(self.machine.store), write=True) as store:
            request = TakeRequest(roots=(os.fsencode(self.machine.source),), base=True, parity=0)
            take_snapshot(store, request, clock=clock)

    def look(self, code: int = 0) -> list[tuple[str, str, str]]:
        """Run once; return the event, severity and end of the key of every message so far."""
        command = [sys.executable, "-m", "ciuicd", "--config", self.machine.config, "--alert"]
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "STATE_DIRECTORY": str(self.state)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        self.said = done.stderr
        return [
            (one["event"], one["severity"], one["key"].rpartition("/")[2]) for one in self.messages
        ]

    @property
    def messages(self) -> list[dict[str, Any]]:
        if not self.heard.exists():
            return []
        return [json.loads(line) for line in self.heard.read_text().splitlines() if line]


@pytest.fixture
def watched(machine: Machine) -> Watched:
    return Watched(machine)


def test_a_snapshot_that_is_too_old_causes_one_message_and_the_next_snapshot_ends_it(
    watched: Watched,
) -> None:
    watched.take(hours_ago=2.1)
    assert watched.look() == [], "a quarter of an hour of grace"

    watched.configure(snapshot_interval="30m")
    began = [("began", "critical", "snapshot")]
    assert watched.look() == began
    assert watched.look() == began, "it is said once"
    (message,) = watched.messages
    assert f"the newest snapshot of {watched.machine.source} is 2 h" in message["text"]

    assert ciuic("--config", watched.machine.config, "snapshot").code == 0
    ended = [*began, ("ended", "critical", "snapshot")]
    assert watched.look() == ended
    assert watched.look() == ended
    assert watched.messages[0]["key"] == watched.messages[1]["key"]


def test_many_faults_at_once_share_one_message_and_so_do_their_ends(watched: Watched) -> None:
    watched.take(hours_ago=24)
    config = watched.machine.config
    names = ["b", "c", "d"]
    with config.open("a") as file:
        for name in names:
            path = watched.machine.directory / name
            path.mkdir()
            file.write(f"[schedule {name}]\nsnapshot_paths = {path}\nsnapshot_interval = 1h\n")

    assert watched.look() == [("began", "critical", "several")]
    assert watched.look() == [("began", "critical", "several")], "it is said once"
    text = watched.messages[0]["text"]
    assert text.startswith("4 faults: ")
    assert all(f"by the schedule {name}" in text for name in names)

    for name in names:
        assert ciuic("--config", config, "snapshot", "--schedule", name).code == 0
    assert len(watched.look()) == 2
    text = watched.messages[1]["text"]
    assert text.startswith("1 fault: ")
    assert text.index("no longer: ") < text.index("by the schedule b")

    assert ciuic("--config", config, "snapshot").code == 0
    assert watched.look()[2:] == [("ended", "critical", "several")]
    assert len(watched.look()) == 3
    assert len({message["key"] for message in watched.messages}) == 1


def test_a_message_that_the_channel_did_not_take_is_sent_at_the_next_run(watched: Watched) -> None:
    watched.take(hours_ago=24)
    watched.refuse.touch()
    assert watched.look(code=1) == []
    watched.refuse.unlink()
    assert watched.look() == [("began", "critical", "snapshot")]


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ([500], ["it answered with status 500"] * 2),
        ([307], ["it answered with a redirect (307), which is not followed"] * 2),
        (["hangs", 500], ["it gave no answer in time", "it answered with status 500"]),
    ],
    ids=["fails", "redirects", "hangs"],
)
def test_a_web_server_that_fails_is_named_at_each_run_and_gets_the_message_once_it_works(
    watched: Watched, statuses: list[int | str], said: list[str]
) -> None:
    watched.take(hours_ago=24)
    hook = Hook(*statuses)
    with contextlib.closing(hook):
        watched.machine.configure(snapshot_interval="1h")
        with watched.machine.config.open("a") as file:
            file.write(f"[alert hook]\ntype = webhook\nurl = {hook.url}\n")
        for count, reason in enumerate(said, 1):
            watched.look(code=1)
            assert reason in watched.said
            assert len(hook.got) == count
        hook.statuses = [200]
        watched.look()
        watched.look()
        assert len(hook.got) == 3, "what was taken is not sent again"
        assert [one["event"] for _, one in hook.got] == ["began"] * 3


def test_a_missing_snapshot_a_missing_store_and_damage_are_critical(watched: Watched) -> None:
    machine = watched.machine
    assert watched.look() == [("began", "critical", "store")]
    create_store(str(machine.store), ManualClock())
    assert set(watched.look()[1:]) == {
        ("ended", "critical", "store"),
        ("began", "critical", "snapshot"),
    }
    watched.take(hours_ago=0)
    assert watched.look()[3:] == [("ended", "critical", "snapshot")]

    flip_content(machine.store, (machine.source / "weights.bin").read_bytes())
    assert ciuic("--config", machine.config, "scrub").code == 4
    assert watched.look()[4:] == [("began", "critical", "damage")]


def test_a_failed_drill_and_a_drill_too_long_ago_are_faults(watched: Watched) -> None:
    watched.take(hours_ago=15 * 24)
    watched.take(hours_ago=0)
    assert watched.look() == [], "with drill_interval = 0 none is expected"
    watched.configure(drill_interval="7d")
    assert watched.look() == [("began", "warning", "drill")]

    newest = watched.machine.snapshots()[0].id
    for days_ago, outcome in ((3, ""), (2, "1 damaged"), (1, "")):
        done_ns = time.time_ns() - days_ago * DAY_NS
        with open_store(str(watched.machine.store), write=True) as store:
            store.index.put_drill(DrillRecord(done_ns, newest, 1, 1, 1.0, False, outcome))
            store.index.commit()
        watched.look()
    assert watched.look()[1:] == [
        ("ended", "warning", "drill"),
        ("began", "critical", "drill"),
        ("ended", "critical", "drill"),
    ]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_disk_that_will_be_full_within_a_week_is_reported(watched: Watched) -> None:
    machine = watched.machine
    machine.store.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "ciuic-test", machine.store]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted: {mounted.stderr.strip()}")
    try:
        for days_ago in (2, 1, 0):
            (machine.source / "new.bin").write_bytes(os.urandom(6 << 20))
            watched.take(hours_ago=24 * days_ago)
        watched.configure(snapshot_interval="1h")
        assert watched.look() == [("began", "warning", "space")]
        assert "if the store grows as in the last week" in watched.messages[0]["text"]
        document = ciuic("--config", machine.config, "doctor", "--json").document
        (found,) = [one for one in document["findings"] if ", full in " in one["what"]]
        assert found["level"] == "warning"
    finally:
        machine.close()
        subprocess.run(["umount", machine.store], check=False)


def test_a_fault_that_becomes_critical_causes_another_message(watched: Watched) -> None:
    watched.take(hours_ago=15 * 24)
    watched.take(hours_ago=0)
    watched.configure(drill_interval="7d")
    assert watched.look() == [("began", "warning", "drill")]
    with open_store(str(watched.machine.store), write=True) as store:
        newest = watched.machine.snapshots()[0].id
        store.index.put_drill(DrillRecord(time.time_ns(), newest, 1, 1, 1.0, False, "1 damaged"))
        store.index.commit()
    assert watched.look()[1:] == [("began", "critical", "drill")]


def test_an_invalid_state_file_is_replaced(watched: Watched) -> None:
    watched.take(hours_ago=24)
    for number, text in enumerate(("{", "[]", '{"all": 7}', '{"all": {"snapshot": null}}')):
        (watched.state / "alerts.json").write_text(text)
        heard = len(watched.look())
        assert heard == min(number + 1, 3)
    assert oct((watched.state / "alerts.json").stat().st_mode)[-3:] == "600"


def test_without_a_channel_or_a_state_directory_it_says_what_to_do(machine: Machine) -> None:
    command = [sys.executable, "-m", "ciuicd", "--config", str(machine.config), "--alert"]
    environ = {key: value for key, value in os.environ.items() if key != "STATE_DIRECTORY"}

    def refused() -> str:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 2
        return done.stderr

    assert "has no [alert NAME] section. Add one" in refused()
    Watched(machine)
    assert "$STATE_DIRECTORY is not set" in refused()
    assert not Path("alerts.json").exists()


def test_a_copy_that_falls_behind_causes_one_message(watched: Watched) -> None:
    machine = watched.machine
    copy = machine.directory / "nas"
    watched.configure(copies=str(copy))
    watched.take(hours_ago=0)
    assert watched.look() == [], "the first copy has two intervals"
    watched.take(hours_ago=3)
    began = [("began", "warning", f"copy {copy}".rpartition("/")[2])]
    assert watched.look() == began
    assert watched.look() == began, "it is said once"
    assert watched.messages[0]["text"].startswith(f"the copy {copy} has nothing from")
    assert ciuic("--config", machine.config, "copy", "--to", copy, "--init").code == 0
    assert watched.look() == [*began, ("ended", "warning", began[0][2])]
