"""The log of a real ciuicd as JSON: every line parses, whatever characters paths have."""

import json
from typing import Any

from tests.kit.daemon import Daemon, Machine


def lines(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in daemon.log().splitlines()]


def test_each_line_is_an_object_and_a_snapshot_has_its_figures(machine: Machine) -> None:
    (machine.source / "a\nb\x1b\udcff").write_bytes(b"odd")
    held = (machine.source / "a\nb\x1b\udcff").open("ab")  # it is named in a warning
    daemon = machine.launch(arguments=("--log", "json"))
    daemon.wait_for_log('"event": "snapshot"')
    held.close()
    assert daemon.stop() == 0

    found = lines(daemon)
    assert all({"time", "level", "message"} <= line.keys() for line in found)
    (taken,) = [line for line in found if line.get("event") == "snapshot"]
    (snapshot,) = [one for one in machine.snapshots() if one.id == taken["id"]]
    assert taken["stored_bytes"] == snapshot.stored_bytes
    assert (taken["level"], taken["schedule"]) == ("warning", "default")
    assert taken["trouble_count"] == snapshot.trouble_count == 1
    assert taken["message"].startswith(f"snapshot {snapshot.id} (base): ")


def test_a_snapshot_that_fails_has_its_kind(machine: Machine) -> None:
    machine.configure(snapshot_interval="1s")
    daemon = machine.launch(arguments=("--log", "json"))
    daemon.wait_for_log('"event": "snapshot"')
    machine.store.rename(machine.directory / "elsewhere")
    daemon.wait_for_log('"event": "failure"')
    daemon.stop()
    failed = [line for line in lines(daemon) if line.get("event") == "failure"]
    assert {line["level"] for line in failed} == {"error"}
    assert "store" in {line["kind"] for line in failed}
    assert {line["schedule"] for line in failed} == {"default"}


def test_a_mistake_in_the_configuration_is_an_object_too(machine: Machine) -> None:
    machine.config.write_text("nonsense\n")
    daemon = machine.launch(arguments=("--log", "json"))
    assert daemon.exit_code() == 2
    (line,) = lines(daemon)
    assert line["level"] == "error"
    assert "nonsense" in line["message"]
