"""A command in a forked process ends as one that was started: tests/kit/warm.py."""

import os
import subprocess

import pytest

from ciuic.store.store import open_store
from tests.kit import warm
from tests.kit.box import Box
from tests.kit.program import CIUIC, ciuic, environment


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--json"),
        ("show", "nothing"),
        ("--version",),
        ("verify", "--all", "--checksum"),
        ("no such command",),
    ],
)
def test_it_has_the_same_exit_code_and_output(box: Box, words: tuple[str, ...]) -> None:
    (box.source / "file").write_bytes(b"content")
    box.take()
    started = subprocess.run(
        [*CIUIC, "--config", box.config, *words],
        env=environment(),
        cwd="/",
        capture_output=True,
        check=False,
    )
    forked = warm.run(("--config", box.config, *words), environment(), "/", 60)
    assert forked.returncode == started.returncode
    if "verify" not in words:  # it prints how long it took
        assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)


def test_it_has_its_own_environment_and_directory(box: Box, tmp_path) -> None:
    (tmp_path / "config").symlink_to(box.config)
    named = {**environment(), "CIUIC_CONFIG": "config"}
    assert warm.run(("list",), named, tmp_path, 60).returncode == 0
    assert warm.run(("list",), named, "/", 60).returncode == 2
    assert ciuic("list", cwd=tmp_path, more={"CIUIC_CONFIG": "config"}).code == 0


def test_it_is_killed_at_its_time_limit(box: Box) -> None:
    with (
        open_store(str(box.store), write=True),
        pytest.raises(subprocess.TimeoutExpired),
    ):
        warm.run(("--config", box.config, "prune", "--wait", "10m"), environment(), "/", 0.5)
    assert ciuic("--config", box.config, "prune", "--wait", "0").code == 0


def test_variables_that_take_effect_at_the_start_need_a_start() -> None:
    environ = environment()
    assert warm.suits(environ)
    assert warm.suits({**environ, "HOME": "/nowhere"})
    assert not warm.suits({**environ, "PYTHONUTF8": "1"})
    assert not warm.suits({**environ, "CIUIC_CORE": "off"})
    assert os.getpid() in warm._servers
