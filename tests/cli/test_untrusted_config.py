"""A configuration that another user can change is refused: by every command, and by the daemon."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import NOBODY, REPOSITORY, ciuic, environment

OTHER = 12345

pytestmark = pytest.mark.root


def as_daemon(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ciuicd", "--config", config, "--once"],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=REPOSITORY,
        timeout=120,
        check=False,
    )


@pytest.fixture
def config(public_box: Box) -> Iterator[Path]:
    yield public_box.config
    for path in (public_box.directory, public_box.config):
        os.chown(path, 0, 0)


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o622])
def test_root_refuses_a_configuration_that_others_can_write_to(config: Path, mode: int) -> None:
    os.chown(config, 0, 4)  # adm
    config.chmod(mode)
    for command in ("list", "snapshot", "init"):
        done = ciuic("--config", config, command)
        assert done.code == 2
        assert f"{config}: other users can write to it: mode {mode:04o}" in done.err
        assert f"chmod go-w {config}" in done.err
        assert len(done.err.splitlines()) == 2
    done = as_daemon(config)
    assert done.returncode == 2
    assert f"{config}: other users can write to it: mode {mode:04o}" in done.stderr
    config.chmod(0o644)
    assert ciuic("--config", config, "list").code == 0


def test_root_refuses_a_configuration_of_another_user(config: Path) -> None:
    os.chown(config, NOBODY, NOBODY)
    done = ciuic("--config", config, "snapshot")
    assert done.code == 2
    assert f"{config}: it belongs to user nobody (uid {NOBODY}), and ciuic runs as root" in done.err
    assert f"chown 0 {config}" in done.err
    assert as_daemon(config).returncode == 2


def test_root_refuses_a_configuration_that_another_user_can_replace(config: Path) -> None:
    os.chown(config.parent, NOBODY, NOBODY)
    done = ciuic("--config", config, "list")
    assert done.code == 2
    assert f"its directory {config.parent} belongs to user nobody" in done.err
    os.chown(config.parent, 0, 0)
    config.parent.chmod(0o777)
    done = ciuic("--config", config, "list")
    assert done.code == 2
    assert f"other users can write to its directory {config.parent}: mode 0777" in done.err
    config.parent.chmod(0o1777)  # as /tmp: there only the file's owner can move it
    assert ciuic("--config", config, "list").code == 0


def test_a_symlink_of_another_user_is_no_way_to_a_configuration(
    config: Path, tmp_path: Path
) -> None:
    theirs = config.parent / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    (theirs / "link").symlink_to(config)
    done = ciuic("--config", theirs / "link", "list")
    assert done.code == 2
    assert f"its directory {theirs} belongs to user nobody" in done.err


def test_doctor_calls_it_a_problem(config: Path) -> None:
    config.chmod(0o666)
    done = ciuic("--config", config, "doctor", "--json")
    assert done.code == 1
    [one] = [one for one in done.document["findings"] if one["about"] == "configuration"]
    assert one["level"] == "problem"
    assert "other users can write to it" in one["what"]
    assert "chmod go-w" in one["advice"]


def test_a_user_trusts_only_root_and_himself(config: Path) -> None:
    config.chmod(0o644)
    done = ciuic("--config", config, "list", user=NOBODY)
    assert done.code == 1, "the store is root's, and private"
    assert "Permission denied" in done.err
    os.chown(config, OTHER, OTHER)
    done = ciuic("--config", config, "list", user=NOBODY)
    assert done.code == 2
    assert f"it belongs to user {OTHER}, and ciuic runs as nobody" in done.err
    os.chown(config, NOBODY, NOBODY)
    done = ciuic("--config", config, "list", user=NOBODY)
    assert "Permission denied" in done.err
    config.chmod(0o666)
    assert ciuic("--config", config, "list", user=NOBODY).code == 2


def test_a_running_daemon_keeps_its_configuration_rather_than_reload_an_untrusted_one(
    config: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "ciuicd", "--config", config],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=REPOSITORY,
    ) as daemon:
        assert daemon.stderr is not None
        lines = iter(daemon.stderr.readline, "")
        try:
            next(line for line in lines if "serves" in line)
            config.chmod(0o666)
            daemon.send_signal(signal.SIGHUP)
            said = next(line for line in lines if "other users can write to it" in line)
            assert str(config) in said
        finally:
            daemon.terminate()
        assert daemon.wait(60) == 0
