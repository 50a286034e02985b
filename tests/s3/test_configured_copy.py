"""``ciuicd --copy`` to a bucket of a real S3 server, by a section of the configuration alone."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.kit import faulty_proxy as faults
from tests.kit.ceph import ACCESS_KEY, SECRET_KEY
from tests.kit.damage import packs
from tests.kit.program import REPOSITORY, ciuic, environment
from tests.kit.trees import differences, photograph
from tests.s3.conftest import WITHOUT

pytestmark = [pytest.mark.slow, pytest.mark.root]

_TRAINING = """\
import sys, numpy as np
from ciuic import SnapshotManager
with SnapshotManager(sys.argv[1]) as manager:
    found = manager.load_latest_snapshot()
    if found is None:
        manager.save_snapshot({"w": np.arange(300_000)}, {}, 1, wait=True)
    else:
        assert (found["model_state_dict"]["w"] == np.arange(300_000)).all()
"""


class Configured:
    """A store in a directory whose copy is in a bucket."""

    def __init__(self, server, proxy, address, key_file, source, directory):
        self.store, self.source, self.address = directory / "store", source, address
        self.config = directory / "ciuic.conf"
        self.config.write_text(
            f"snapshot_paths = {source}\nsnapshot_dir = {self.store}\n"
            f"[copy far]\nto = {address}\nstore_endpoint = {proxy.endpoint}\n"
            f"store_allow_http = yes\nstore_credentials = {key_file}\n"
        )
        self.environ = {**WITHOUT, "XDG_CACHE_HOME": str(directory / "cache")}

    def run(self, *command, code=0):
        done = ciuic("--config", self.config, *command, more=self.environ)
        assert done.code == code, done
        return done

    def copy(self, code=0):
        """Run the process that copies; returns what it logged."""
        done = subprocess.run(
            [sys.executable, "-m", "ciuicd", "--config", self.config, "--copy"],
            cwd=REPOSITORY,
            env=environment(self.environ),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert SECRET_KEY not in done.stderr
        assert ACCESS_KEY not in done.stderr
        return done.stderr


@pytest.fixture
def configured(server, proxy, address, key_file, source, tmp_path):
    made = Configured(server, proxy, address, key_file, source, tmp_path)
    made.run("init")
    return made


def test_a_training_reads_what_is_lost_from_a_copy_that_the_configuration_reaches(configured):
    def train():
        return subprocess.run(
            [sys.executable, "-c", _TRAINING, configured.store],
            env=environment({**configured.environ, "PYTHONWARNINGS": "default"}),
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stderr

    train()
    configured.run("copy", "--to", "far", "--init")
    for pack in packs(configured.store):
        pack.unlink()
    said = train()
    assert f"came from the copy {configured.address}" in said
    (record,) = (configured.store / "copies").iterdir()
    for text in (said, record.read_text()):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text
    (command,) = re.findall(r"'ciuic (--store .* --apply)'", said)
    done = ciuic(*command.split(), more=configured.environ)
    assert done.code == 0, done
    assert "came from the copy" not in train()


def test_a_bucket_gets_each_snapshot_and_gives_back_what_is_lost_here(configured, proxy, sign):
    configured.run("snapshot")
    said = configured.copy(code=1)
    assert f"'ciuic --config {configured.config} copy --to far --init' makes the first copy" in said

    proxy.always(faults.ignore_conditions(sign))
    refused = configured.run("copy", "--to", "far", "--init", code=1).err
    assert "ignores the conditions of writes" in refused.splitlines()[0]
    proxy.always(None)
    configured.run("copy", "--to", "far", "--init")

    (configured.source / "new").write_bytes(os.urandom(50_000))
    configured.run("snapshot")
    configured.run("tag", "latest", "--add", "good")
    assert "far: 1 snapshot copied" in configured.copy()
    before = len(proxy.requests)
    assert not configured.copy()
    assert len(proxy.requests) == before, "with nothing new, the server is not asked"
    configured.run("note", "latest", "the best one")
    configured.copy()
    assert 0 < len(proxy.requests) - before <= 30, "with nothing but a note, few requests"

    proxy.always(faults.status(403, "AccessDenied"))
    (configured.source / "newer").write_bytes(b"newer")
    configured.run("snapshot")
    before = len(proxy.requests)
    assert "far lacks 1 snapshot" in configured.run("status").out
    assert len(proxy.requests) == before, "what is known is on record"
    assert "far: the copy failed: " in configured.copy(code=1)
    assert "the last try failed: " in configured.run("status").out
    proxy.always(None)
    configured.copy()

    for pack in packs(configured.store):
        pack.unlink()
    assert "can be restored in full again" in configured.run("repair", "--apply").out
    configured.run("verify", "--all", "--checksum")


def test_a_restore_reads_what_is_lost_from_the_bucket_and_a_server_that_refuses_is_one_sentence(
    configured, proxy, tmp_path
):
    configured.run("snapshot")
    configured.run("copy", "--to", "far", "--init")
    before = len(proxy.requests)
    restore = ("restore", "-s", "latest", "-p", configured.source, "-d")
    configured.run(*restore, tmp_path / "undamaged")
    assert len(proxy.requests) == before, "a copy costs nothing until it is needed"

    for pack in packs(configured.store):
        pack.unlink()
    said = configured.run(*restore, tmp_path / "lost").err
    remedy = f"'ciuic --config {configured.config} repair --apply'"
    assert f"came from the copy {configured.address}; {remedy}" in said
    undamaged, lost = (tmp_path / name / configured.source.name for name in ("undamaged", "lost"))
    assert not differences(photograph(undamaged), photograph(lost))

    proxy.always(faults.status(403, "AccessDenied"))
    shutil.rmtree(tmp_path / "cache")
    refused = configured.run(*restore, tmp_path / "refused", code=4).err
    (line,) = [line for line in refused.splitlines() if "ciuic: the copy" in line]
    assert configured.address in line
    assert SECRET_KEY not in refused
