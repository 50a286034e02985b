"""Metrics of a real ciuicd: the file, the port, Prometheus itself, the rules and the dashboard."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.daemon import REPOSITORY, Daemon, Machine, wait_until
from tests.kit.program import ciuic

RULES = REPOSITORY / "etc" / "monitoring" / "alerts.yml"
DASHBOARD = REPOSITORY / "etc" / "monitoring" / "dashboard.json"

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="Prometheus is not installed",
)


@pytest.fixture
def figures(machine: Machine) -> Path:
    path = machine.directory / "figures" / "ciuic.prom"
    path.parent.mkdir()
    machine.configure(metrics_file=str(path))
    return path


def samples(path: Path) -> dict[tuple[str, ...], float]:
    """Return the value of each metric, by its name and the values of its labels."""
    if not path.exists():
        return {}
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(path.read_text())
        for one in family.samples
    }


def wait_for(path: Path, *key: str, at_least: float = 1.0) -> dict[tuple[str, ...], float]:
    wait_until(f"{key} in the metrics", lambda: samples(path).get(key, -1.0) >= at_least)
    return samples(path)


def test_the_file_has_the_first_snapshot_and_every_user_can_read_it(
    machine: Machine, figures: Path
) -> None:
    began_s = time.time()
    daemon = machine.start()
    found = wait_for(figures, "ciuic_snapshots_total", "ok")

    (taken,) = machine.snapshots()
    last_success = found["ciuic_last_success_timestamp_seconds",]
    assert last_success == pytest.approx(taken.taken_ns / 1e9, abs=1e-3)
    assert began_s - 1 <= last_success <= time.time() + 1
    assert found["ciuic_logical_bytes",] == taken.logical_bytes
    assert found["ciuic_new_bytes_total",] == found["ciuic_snapshot_new_bytes",] == taken.new_bytes
    assert found["ciuic_snapshot_stored_bytes",] == taken.stored_bytes
    assert found["ciuic_snapshots_total", "failed"] == 0
    assert (found["ciuic_taking",], found["ciuic_paused",]) == (0, 0)
    assert found["ciuic_verified_ratio",] == 0
    phases = {key[1]: value for key, value in found.items() if key[0].endswith("duration_seconds")}
    assert {"gather", "durable", "commit", "tidy", "total", "freeze", "waiting"} == phases.keys()
    parts = sum(phases[name] for name in ("gather", "durable", "commit", "tidy"))
    assert 0 < parts <= phases["total"]
    assert figures.stat().st_mode & 0o777 == 0o644
    assert daemon.stop() == 0
    # The test asks only now, because an idle daemon writes a new file and renames it over the old
    # one.
    assert [one.name for one in figures.parent.iterdir()] == [figures.name]


def test_a_snapshot_that_fails_is_counted_by_its_kind(machine: Machine, figures: Path) -> None:
    machine.configure(metrics_file=str(figures), snapshot_interval="1s")
    daemon = machine.start()
    wait_for(figures, "ciuic_snapshots_total", "ok")
    machine.store.rename(machine.directory / "elsewhere")
    # The first attempt may have begun before the change, and then it fails for another reason.
    wait_for(figures, "ciuic_errors_total", "store")
    assert samples(figures)["ciuic_snapshots_total", "failed"] >= 1
    daemon.stop()
    assert "Traceback" not in daemon.log()


def test_a_metrics_file_that_cannot_be_written_is_one_line_in_the_log(machine: Machine) -> None:
    machine.configure(metrics_file=str(machine.directory / "missing" / "x.prom"))
    daemon = machine.start()
    daemon.wait_for_log("snapshot cs-")
    daemon.wait_for_log("the metrics cannot be written to")
    assert ciuic("--config", machine.config, "snapshot").code == 0
    daemon.wait_for_log("snapshot cs-", count=2)
    assert daemon.stop() == 0
    assert daemon.log().count("the metrics cannot be written to") == 1
    assert "Traceback" not in daemon.log()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metrics_listen = 127.0.0.1:9741\n", "metrics_listen serves the metrics_file"),
        ("metrics_file = /m\nmetrics_listen = 0.0.0.0:9741\n", "is not a port of this machine"),
        ("metrics_file = /m\nmetrics_listen = 127.0.0.1\n", "is not a port of this machine"),
        ("metrics_file = metrics.prom\n", "is not an absolute path"),
    ],
)
def test_an_address_that_other_machines_can_reach_is_refused(
    machine: Machine, text: str, said: str
) -> None:
    machine.config.write_text(text)
    command = [sys.executable, "-m", "ciuicd", "--config", machine.config, "--serve-metrics"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr


class Serving:
    """``ciuicd --serve-metrics`` on a free port."""

    def __init__(self, machine: Machine, figures: Path) -> None:
        machine.configure(metrics_file=str(figures), metrics_listen="127.0.0.1:0")
        self.daemon: Daemon = machine.launch(arguments=("--serve-metrics",))
        self.daemon.wait_for_log("/metrics")
        found = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", self.daemon.log())
        assert found is not None
        self.address = found[1]

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@pytest.fixture
def serving(machine: Machine, figures: Path) -> Serving:
    return Serving(machine, figures)


def test_the_port_serves_the_file_and_nothing_else(serving: Serving, figures: Path) -> None:
    assert serving.get("/metrics")[0] == 503, "the daemon has not written it yet"
    figures.write_text("ciuic_info 1\n")
    assert serving.get("/metrics") == (200, b"ciuic_info 1\n")
    for path in ("/", "/metrics/..", "/../etc/passwd", "//etc/passwd"):
        assert serving.get(path)[0] == 404
    figures.unlink()
    figures.symlink_to("/etc/passwd")
    assert serving.get("/metrics")[0] == 503
    serving.daemon.signal(signal.SIGTERM)
    assert serving.daemon.exit_code() == 0


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metrics of a store with some snapshots, checks and a drill."""
    machine = Machine(tmp_path_factory.mktemp("complete"))
    path = machine.directory / "ciuic.prom"
    machine.configure(metrics_file=str(path))
    for number in range(2):
        (machine.source / f"{number}.bin").write_bytes(os.urandom(50_000))
        assert machine.once().returncode == 0
    for command in ("drill", "scrub"):
        assert ciuic("--config", machine.config, command).code == 0
    assert machine.once().returncode == 0
    return path


def expressions() -> Iterator[str]:
    yield from re.findall(r"expr: (.*)", RULES.read_text())
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def test_rules_and_dashboard_name_only_existing_metrics(complete: Path) -> None:
    there = {name for name, *_ in samples(complete)} | {"ciuic_errors_total"}
    used = {name for text in expressions() for name in re.findall(r"\bciuic_\w+", text)}
    assert len(used) > 15
    assert used <= there
    numbers = samples(complete)
    assert numbers["ciuic_verified_ratio",] > 0
    assert numbers["ciuic_drill_ok",] == 1
    assert numbers["ciuic_store_full_timestamp_seconds",] > time.time()


CASES = """\
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'ciuic_last_success_timestamp_seconds{{instance="a"}}', values: '0x300'}}
      - {{series: 'ciuic_last_success_timestamp_seconds{{instance="b"}}', values: '0+60x300'}}
      - {{series: 'ciuic_snapshot_interval_seconds{{instance="a"}}', values: '3600x300'}}
      - {{series: 'ciuic_snapshot_interval_seconds{{instance="b"}}', values: '3600x300'}}
      - {{series: 'ciuic_metrics_timestamp_seconds{{instance="a"}}', values: '0x300'}}
      - {{series: 'ciuic_metrics_timestamp_seconds{{instance="b"}}', values: '0x300'}}
      - {{series: 'ciuic_taking{{instance="a"}}', values: '0x300'}}
      - {{series: 'ciuic_taking{{instance="b"}}', values: '1x300'}}
{schedules}      - {{series: 'ciuic_damaged_packs{{instance="b"}}', values: '0x100 1x200'}}
    alert_rule_test:
      - eval_time: 2h
        alertname: CiuicNoSnapshot
        exp_alerts: []
    promql_expr_test:
      - expr: ALERTS{{alertstate="firing"}}
        eval_time: 3h
        exp_samples:
"""


def promtool(*arguments: object, text: str | None = None) -> str:
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_prometheus
def test_the_tools_of_prometheus_accept_the_metrics_and_the_rules(complete: Path) -> None:
    assert promtool("check", "metrics", text=complete.read_text()) == ""
    promtool("check", "rules", RULES)


@needs_prometheus
def test_the_rules_fire_only_for_the_machine_at_fault(tmp_path: Path) -> None:
    def alert(name: str, instance: str) -> str:
        labels = f'alertname="{name}",alertstate="firing",instance="{instance}",severity="critical"'
        return f"          - {{labels: 'ALERTS{{{labels}}}', value: 1}}\n"

    fired = [("CiuicNoSnapshot", "a"), ("CiuicNoMetrics", "a"), ("CiuicDamage", "b")]
    cases = tmp_path / "cases.yml"
    # Of machine b, the schedule s is late; machine a has one schedule, and one alert is enough.
    late, fine, every = "0x300", "0+60x300", "3600x300"
    schedules = ""
    for instance, schedule, success in (("a", "s", late), ("b", "s", late), ("b", "t", fine)):
        labels = f'{{instance="{instance}",schedule="{schedule}"}}'
        for name, values in (("last_success_timestamp", success), ("interval", every)):
            series = f"ciuic_schedule_{name}_seconds{labels}"
            schedules += f"      - {{series: '{series}', values: '{values}'}}\n"
    of_one = alert("CiuicNoSnapshotOfSchedule", "b").replace(",sever", ',schedule="s",sever')
    text = CASES.format(rules=RULES, schedules=schedules)
    cases.write_text(text + "".join(alert(*one) for one in fired) + of_one)
    promtool("test", "rules", cases)


@needs_prometheus
def test_prometheus_scrapes_the_port_and_loads_the_rules(
    complete: Path, serving: Serving, figures: Path, tmp_path: Path
) -> None:
    figures.write_bytes(complete.read_bytes())
    config = tmp_path / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 1s}}\nrule_files: ['{RULES}']\nscrape_configs:\n"
        f"  - {{job_name: ciuic, static_configs: [{{targets: ['{serving.address}']}}]}}\n"
    )
    command = ["prometheus", f"--config.file={config}", "--web.listen-address=127.0.0.1:0"]
    said = tmp_path / "log"
    with said.open("wb") as log:
        server = subprocess.Popen(
            [*command, f"--storage.tsdb.path={tmp_path / 'tsdb'}"], stdout=log, stderr=log
        )
    try:
        listening = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:\d+)')
        wait_until("Prometheus listens", lambda: bool(listening.search(said.read_text())))
        found = listening.search(said.read_text())
        assert found is not None
        address = found[1]

        def asked(path: str) -> Any:
            try:
                with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=60) as it:
                    return json.loads(it.read())["data"]
            except OSError:
                return None

        def is_scraped() -> bool:
            query = asked("query?query=ciuic_last_success_timestamp_seconds")
            return bool(query and query["result"])

        wait_until("Prometheus has the metrics", is_scraped)
        groups = asked("rules")["groups"]
        names = {rule["name"] for group in groups for rule in group["rules"]}
        assert names == set(re.findall(r"alert: (\w+)", RULES.read_text()))
        assert all(rule["health"] != "err" for group in groups for rule in group["rules"])
    finally:
        server.kill()
        server.wait()
