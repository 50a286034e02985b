"""The weight of the slice where systemd is old, fails or is cut off: with a small systemctl."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ciuicd import processor_share
from ciuicd.processor_share import ProcessorShare
from tests.kit.clock import ManualClock
from tests.kit.daemon import wait_until

SYSTEMCTL = """\
#!/bin/sh
cd "$(dirname "$0")"
case $1 in
--version) echo "systemd $(cat version) (of a test)" ;;
show) printf 'CPUWeight=%s\\nDropInPaths=/etc/x.conf %s/drop-in\\n' "$(cat weight)" "$PWD" ;;
set-property)
    echo "$4" >> asked
    if [ -e before-$4 ]; then . ./before-$4; fi
    echo "$4" > drop-in
    echo "${4#*=}" > weight ;;
esac
"""

Share = Callable[[], ProcessorShare]


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Share:
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    (tmp_path / "version").write_text("252")
    (tmp_path / "weight").write_text("10\n")
    (tmp_path / "asked").touch()
    cgroups = tmp_path / "cgroup"
    cgroups.write_text("0::/ciuic.slice/ciuicd.service\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("INVOCATION_ID", "1")
    monkeypatch.setattr(processor_share, "_RUNTIME", str(tmp_path))
    return lambda: ProcessorShare(ManualClock(), str(cgroups))


def weight(machine: Path) -> str:
    return (machine / "weight").read_text().strip()


def asked(machine: Path) -> list[str]:
    return (machine / "asked").read_text().split()


def lower(share: ProcessorShare, machine: Path) -> None:
    """Have the slice idle until it is, or until it will not be."""
    with share.lowered(600):
        helper = share._helper
        assert helper is not None
        wait_until("it is done", lambda: weight(machine) == "idle" or not helper.is_alive())
    share.end()


def test_work_that_somebody_waits_for_sets_the_weight_back_while_other_work_goes_on(
    tmp_path: Path, share: Share
) -> None:
    one = share()
    with one.lowered(600):
        wait_until("it is idle", lambda: weight(tmp_path) == "idle")
        with one.lowered(0):
            wait_until("it is as before", lambda: weight(tmp_path) == "10")
    one.end()
    assert weight(tmp_path) == "10"


def test_a_weight_that_cannot_be_set_back_at_once_is_set_back_later(
    tmp_path: Path, share: Share, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "before-CPUWeight=10").write_text("rm before-$4; kill -9 $$")
    lower(share(), tmp_path)
    assert asked(tmp_path) == ["CPUWeight=idle", "CPUWeight=10", "CPUWeight=10"]
    assert weight(tmp_path) == "10"
    assert not caplog.messages


def test_a_systemd_that_does_not_set_it_back_is_one_line_in_the_log(
    tmp_path: Path, share: Share, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "before-CPUWeight=10").write_text("echo it is busy >&2; exit 1")
    lower(share(), tmp_path)
    assert caplog.messages == ["ciuic.slice may still be idle: it is busy"]

    (tmp_path / "before-CPUWeight=10").unlink()
    later = share()
    later.repair()
    later.end()
    assert weight(tmp_path) == "10"


def test_a_slice_that_an_administrator_has_made_idle_for_good_stays_idle(
    tmp_path: Path, share: Share
) -> None:
    (tmp_path / "weight").write_text("idle\n")
    (tmp_path / "drop-in").write_text("CPUWeight=77\n")  # an earlier one, which no longer counts
    one = share()
    one.repair()
    one.end()
    assert asked(tmp_path) == []


def test_a_systemctl_that_is_cut_off_may_have_lowered_it_all_the_same(
    tmp_path: Path,
    share: Share,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(processor_share, "_TIMEOUT_S", 2.0)
    (tmp_path / "before-CPUWeight=idle").write_text(
        "echo $4 > drop-in; echo idle > weight; exec sleep 60"
    )
    one = share()
    with one.lowered(600):
        wait_until("it is set back", lambda: "CPUWeight=10" in asked(tmp_path))
    one.end()
    assert weight(tmp_path) == "10"
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("ciuic.slice does not become idle: ")


def test_a_systemd_that_does_not_know_the_word_is_told_of_once(
    tmp_path: Path, share: Share, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "version").write_text("251")
    one = share()
    lower(one, tmp_path)
    lower(one, tmp_path)
    assert asked(tmp_path) == []
    assert [
        (record.levelname, "needs systemd 252" in record.message) for record in caplog.records
    ] == [("INFO", True)]


def test_without_systemctl_a_snapshot_only_gets_a_line_in_the_log(
    tmp_path: Path, share: Share, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "systemctl").unlink()
    lower(share(), tmp_path)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("ciuic.slice does not become idle: ")


def test_outside_of_the_slice_systemd_is_not_asked(
    tmp_path: Path, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INVOCATION_ID")
    one = share()
    one.repair()
    with one.lowered(600):
        assert one._helper is None
    one.end()
