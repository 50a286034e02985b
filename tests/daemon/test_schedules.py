"""Several schedules in one configuration, on a real daemon."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ciuic.control import request_status
from tests.kit.daemon import Machine, wait_until
from tests.kit.program import Outcome, ciuic


class Layers:
    """A machine with two directories, and a schedule for each."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.logs = machine.directory / "logs"
        self.logs.mkdir()
        (self.logs / "log.jsonl").write_text("{}\n")
        self.figures = machine.directory / "ciuic.prom"
        self.configure(checkpoints="", logs="")

    def configure(self, *, checkpoints: str, logs: str) -> None:
        """Write the configuration: the directories, and further lines for each section."""
        machine = self.machine
        machine.config.write_text(
            f"snapshot_dir = {machine.store}\nscrub_budget = 0\ndrill_interval = 0\n"
            f"snapshot_interval = 365d\nretention_policy = 3650d\nmetrics_file = {self.figures}\n"
            f"[schedule checkpoints]\nsnapshot_paths = {machine.source}\n{checkpoints}\n"
            f"[schedule logs]\nsnapshot_paths = {self.logs}\n{logs}\n"
        )

    def run(self, *arguments: str) -> Outcome:
        return ciuic("--config", self.machine.config, *arguments)

    def taken(self, schedule: str) -> list[str]:
        """Return the kinds of the snapshots of a schedule, oldest first."""
        found = [one for one in self.machine.snapshots() if one.schedule == schedule]
        return [one.kind for one in reversed(found)]

    def kinds(self) -> tuple[list[str], ...]:
        """Return ``taken`` for the schedules checkpoints, logs and twin."""
        return self.taken("checkpoints"), self.taken("logs"), self.taken("twin")

    def status(self) -> dict[str, dict[str, object]]:
        """Return the daemon's schedules by name."""
        status = request_status(str(self.machine.store))
        assert status is not None
        return {one["name"]: one for one in status["schedules"]}


@pytest.fixture
def layers(machine: Machine) -> Layers:
    return Layers(machine)


def test_each_schedule_forgets_by_its_own_policy_and_compares_within_itself(
    layers: Layers,
) -> None:
    layers.configure(checkpoints="retention_policy = last:1", logs="base_interval = 0")
    daemon = layers.machine.start()
    daemon.wait_for_log("checkpoints: snapshot cs-")
    daemon.wait_for_log("logs: snapshot cs-")
    # Each schedule begins with a full snapshot of its own.
    assert (layers.taken("checkpoints"), layers.taken("logs")) == (["base"], ["base"])
    for _ in range(2):
        for name in ("checkpoints", "logs"):
            newest = next(one.id for one in layers.machine.snapshots() if one.schedule == name)
            done = layers.run("snapshot", "--schedule", name, "--json")
            assert (done.code, done.document["parent"]) == (0, newest), done.err
    # A snapshot without a schedule's name belongs to the first schedule.
    assert layers.run("snapshot").code == 0
    wait_until("the older ones are forgotten", lambda: len(layers.taken("checkpoints")) == 1)
    assert layers.taken("logs") == ["base", "delta", "delta"]

    said = layers.run("status").out
    assert f"checkpoints: {layers.machine.source} every 365 d" in said
    assert f"logs: {layers.logs} every 365 d" in said
    listed = json.loads(layers.run("list", "--schedule", "logs", "--json").out)
    assert len(listed) == 3
    names = {
        (family.name, *one.labels.values())
        for family in text_string_to_metric_families(layers.figures.read_text())
        for one in family.samples
    }
    for name in ("checkpoints", "logs"):
        assert ("ciuic_schedule_last_success_timestamp_seconds", name) in names

    wrong = layers.run("snapshot", "--schedule", "nothing")
    assert wrong.code == 2
    assert "there is no schedule 'nothing'" in wrong.err
    assert "has: checkpoints, logs" in wrong.err
    mixed = layers.run("snapshot", "--schedule", "logs", str(layers.logs))
    assert (mixed.code, mixed.out) == (2, "")
    page = layers.run("runbook").out
    assert f"- Schedule logs: {layers.logs}, every 365 d 00 h, retention policy 3650d." in page
    findings = json.loads(layers.run("doctor", "--json").out)["findings"]
    ages = [one["what"] for one in findings if "the newest is" in one["what"]]
    assert [one.partition(":")[0] for one in ages] == ["checkpoints", "logs"]


def test_a_schedule_that_is_always_due_blocks_no_other_and_a_failed_reload_changes_nothing(
    layers: Layers,
) -> None:
    layers.configure(checkpoints="snapshot_interval = 1s", logs="")
    daemon = layers.machine.start()
    wait_until("both had a turn", lambda: layers.taken("logs") and layers.taken("checkpoints"))

    layers.configure(checkpoints="", logs="snapshot_interval = often")
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("the old configuration stays in effect")
    assert "snapshot_interval: 'often'" in daemon.log()
    assert layers.status()["checkpoints"]["snapshot_interval_s"] == 1

    more = layers.machine.directory / "more"
    more.mkdir()
    layers.configure(checkpoints="", logs=f"[schedule more]\nsnapshot_paths = {more}")
    daemon.signal(signal.SIGHUP)
    wait_until("the third had its turn", lambda: layers.taken("more") == ["base"])
    assert [*layers.status()] == ["checkpoints", "logs", "more"]
    # The daemon has a newer configuration than the client, and it goes by its own.
    unknown = request_status(str(layers.machine.store))
    assert unknown is not None
    assert unknown["snapshot_paths"] == [
        str(path) for path in (layers.machine.source, layers.logs, more)
    ]


def test_once_serves_each_schedule_that_is_due_or_else_the_first(layers: Layers) -> None:
    layers.configure(
        checkpoints="", logs=f"[schedule twin]\nsnapshot_paths = {layers.machine.source}"
    )
    assert layers.run("init").code == 0
    assert layers.run("snapshot").code == 0
    assert layers.kinds() == (["base"], [], [])
    # A snapshot of the same directories for another schedule does not serve the twin.
    done = layers.machine.once()
    assert done.returncode == 0, done.stderr
    assert layers.kinds() == (["base"], ["base"], ["base"])
    assert layers.machine.once().returncode == 0
    assert layers.kinds() == (["base", "delta"], ["base"], ["base"])


def test_once_serves_the_other_schedules_if_one_fails_and_says_so(layers: Layers) -> None:
    assert layers.run("init").code == 0
    shutil.rmtree(layers.machine.source)
    layers.machine.source.symlink_to(layers.machine.store)
    done = layers.machine.once()
    assert done.returncode == 2, done.stderr
    assert "is in the store" in done.stderr
    assert layers.kinds() == ([], ["base"], [])


def test_a_request_is_served_even_if_schedules_are_always_due(layers: Layers) -> None:
    text = layers.machine.config.read_text().replace("365d", "1s", 1)
    layers.machine.config.write_text("before = sleep 1.1\n" + text)
    daemon = layers.machine.start()
    daemon.wait_for_log("logs: snapshot cs-")
    done = layers.run("snapshot", "--tag", "mine", "--json")
    assert done.code == 0, done.err
    origins = {one.origin for one in layers.machine.snapshots() if "mine" in one.tags}
    assert origins == {"command"}


def test_metrics_forget_a_schedule_that_a_reload_removes(layers: Layers) -> None:
    daemon = layers.machine.start()
    daemon.wait_for_log("logs: snapshot cs-")

    def names() -> str:
        return layers.figures.read_text() if layers.figures.exists() else ""

    wait_until("both are there", lambda: names().count('schedule="logs"') == 2)
    machine = layers.machine
    text = machine.config.read_text().partition("[schedule logs]")[0]
    machine.config.write_text(text)
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("reloaded")
    assert layers.run("snapshot").code == 0
    wait_until("one is gone", lambda: 'schedule="logs"' not in names())
    assert names().count('schedule="checkpoints"') == 2


def test_a_schedule_without_success_is_a_fault_of_its_own(layers: Layers, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    with layers.machine.config.open("a") as file:
        file.write(f"[alert all]\ntype = command\ncommand = cat >> {heard}\n")
    assert layers.run("init").code == 0
    assert layers.run("snapshot", "--schedule", "checkpoints").code == 0
    state = tmp_path / "state"
    state.mkdir()
    daemon = layers.machine.launch({"STATE_DIRECTORY": str(state)}, ("--alert",))
    assert daemon.exit_code() == 0, daemon.log()
    (message,) = [json.loads(line) for line in heard.read_text().split("\n") if line]
    assert message["key"].endswith("/snapshot logs")
    assert f"there is no snapshot of {layers.logs} by the schedule logs" in message["text"]
    assert os.listdir(state) == ["alerts.json"]


def test_auto_chooses_by_the_cost_of_snapshots_and_failures_and_says_why(machine: Machine) -> None:
    machine.configure(snapshot_interval="auto from 1m to 20d")
    daemon = machine.start()
    daemon.wait_for_log("snapshot cs-")
    status = request_status(str(machine.store))
    assert status is not None
    assert status["schedules"][0]["interval_why"] == "no incremental snapshot was measured yet"
    assert status["snapshot_interval_s"] == 3600
    for _ in range(2):
        done = ciuic("--config", machine.config, "snapshot", "--tag", "emergency")
        assert done.code == 0
    # A snapshot of so little takes less than a minute, and every schedule has just had one.
    daemon.wait_for_log("default: now every ")

    def counts_both() -> bool:
        said = ciuic("--config", machine.config, "status").out
        return "and there were 2 failures in" in " ".join(said.split())

    wait_until("status counts both failures", counts_both)
    chosen = request_status(str(machine.store))
    assert chosen is not None
    assert 60 <= chosen["snapshot_interval_s"] < 3600
