"""A disk of a real Ceph is killed in the middle of a snapshot. Only the long form has three."""

import os
import subprocess
import time

import pytest

from tests.kit.machine import MIB
from tests.kit.place_contract import keys
from tests.kit.program import CIUIC, environment

LONG = bool(os.environ.get("CIUIC_LONG"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    # With one disk, the tests that run beside these would be left without any.
    pytest.mark.skipif(not LONG, reason="needs three disks: CIUIC_LONG=1"),
]

LIMIT_S = 240 + 60
"""The documented time after which a command gives up, and a minute for a slow machine."""


@pytest.fixture
def large(tmp_path):
    top = tmp_path / "large"
    top.mkdir()
    for number in range(4):
        (top / str(number)).write_bytes(os.urandom(40 * MIB))
    return top


@pytest.fixture
def snapshot(machine, server, large):
    """Start a snapshot by the command."""
    environ = {**environment(machine.environ), "AWS_ENDPOINT_URL": server.endpoint}
    started = []

    def start():
        words = [*CIUIC, "--store", machine.address, "snapshot", str(large)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(words, env=environ, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def under_way(snapshot, other):
    """A snapshot that has written its first pack."""
    process = snapshot()
    deadline_s = time.monotonic() + 120
    while not keys(other.place(), "packs"):
        assert process.poll() is None
        assert time.monotonic() < deadline_s
    return process


def content(top):
    return {path.name: path.read_bytes() for path in top.iterdir()}


def ended(process):
    """Return the ID that a snapshot prints at its end."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out.strip()


def test_one_of_three_disks_that_is_killed_costs_a_snapshot_nothing(
    other, server, large, snapshot, under_way, tmp_path
):
    with server.without_disks(0):
        first = ended(under_way)
        other.restore(large, tmp_path / "out")
        assert content(tmp_path / "out" / "large") == content(large)
        (large / "0").write_bytes(os.urandom(MIB))
        second = ended(snapshot())
        assert other.ids() == {first, second}
    third = ended(snapshot())

    assert other.ids() == {first, second, third}
    assert other.verify().ok


def test_two_of_three_disks_that_are_killed_fail_a_snapshot_in_one_sentence(
    other, server, large, snapshot, under_way, tmp_path
):
    before = other.ids()
    with server.without_disks(0, 1):
        began_s = time.monotonic()
        out, err = under_way.communicate(timeout=3 * LIMIT_S)
        assert time.monotonic() - began_s < LIMIT_S
        assert under_way.returncode == 1
        assert out == ""
        errors = [line for line in err.splitlines() if line.startswith("ciuic: ")]
        assert len(errors) == 1, err
        assert "the server" in errors[0]
        assert "Traceback" not in err
        began_s = time.monotonic()
        _, err = snapshot().communicate(timeout=3 * LIMIT_S)
        assert time.monotonic() - began_s < LIMIT_S
        assert len([line for line in err.splitlines() if line.startswith("ciuic: ")]) == 1, err

    last = ended(snapshot())
    assert other.ids() == before | {last}
    other.restore(large, tmp_path / "out")
    assert content(tmp_path / "out" / "large") == content(large)
    assert other.verify().ok
