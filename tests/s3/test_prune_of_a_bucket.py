"""Prune of a bucket on a real S3 server, by the commands; tests/verbs/test_prune_in_bucket.py has
its rules.
"""

import json

import pytest

from tests.kit.buckets import write
from tests.kit.place_contract import keys
from tests.kit.program import ciuic

pytestmark = [pytest.mark.slow, pytest.mark.root]


class Runner:
    """Runs commands of one machine."""

    def __init__(self, machine, server):
        self.machine = machine
        self.environ = {**machine.environ, "AWS_ENDPOINT_URL": server.endpoint}

    def run(self, *command, code=0):
        done = ciuic("--store", self.machine.address, *command, more=self.environ)
        assert done.code == code, done
        return done

    def json(self, *command):
        return json.loads(self.run(*command, "--json").out)


@pytest.fixture
def one(machine, server):
    return Runner(machine, server)


@pytest.fixture
def two(other, server):
    return Runner(other, server)


def test_the_commands_prune(one, two, tmp_path):
    source = tmp_path / "source"
    write(source, "abc")
    old = one.run("snapshot", source).out.split()[0]
    for name in "bc":
        (source / name).unlink()
    write(source, "d")
    new = two.run("snapshot", source).out.split()[0]

    with one.machine.opened(write=True):
        report = two.json("forget", old, "--last-whole", "--prune", "--trash", "0", "--wait", "0")
        waited = two.run("prune", "--wait", "0")
    assert report["prune"]["expired"] == [old]
    assert report["prune"]["condemned"]["packs"] == 1
    assert len(report["prune"]["waiting_for"]) == 1
    assert "--revoke-after" in waited.err
    foreseen = one.json("prune", "--dry-run")
    pruned = one.json("prune")

    assert foreseen["dry_run"]
    assert pruned["removed"]["packs"] == 1
    assert pruned["waiting_for"] == []
    for runner in (one, two):
        assert [found["id"] for found in runner.json("list")] == [new]
        runner.run("verify", "--all", "--checksum")
    place = one.machine.place()
    assert keys(place, "leases") == keys(place, "condemned") == []
    refused = ciuic("--store", tmp_path / "dir", "prune", "--revoke-after", "1h")
    assert refused.code == 2
    assert "bucket" in refused.err
