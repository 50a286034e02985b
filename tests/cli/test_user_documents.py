"""The commands, the configuration and the script of the users' own documents run as written.

Only the paths are the test's. The documents spell the tool ``ciuic`` and ``ciuric``: both work.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.kit.installed import Place, contents, run

NAMES = ("ciuic", "ciuric")

CONFIGURATION = """\
snapshot_interval = 1h
retention_policy = 7d
exclude_patterns = /tmp/*, /dev/*
snapshot_dir = {store}
io_priority = idle
"""

ROLLBACK = """\
import subprocess
import sys
from datetime import datetime, timedelta

NAME = sys.argv[1]
TARGET_TIME = datetime.strptime(sys.argv[2], "%Y-%m-%d %H:%M:%S")
PATHS = sys.argv[3:]


def list_snapshots():
    result = subprocess.run(
        [NAME, "list", "--machine-readable"], capture_output=True, text=True, check=True
    )
    snapshots = []
    for line in result.stdout.splitlines():
        snap_id, timestamp, size = line.split("|")
        snapshots.append(
            {
                "id": snap_id,
                "time": datetime.strptime(timestamp, "%Y-%m-%d %H:%M:%S"),
                "size": int(size),
            }
        )
    return snapshots


def choose(snapshots):
    before = [one for one in snapshots if one["time"] <= TARGET_TIME]
    return max(before, key=lambda one: one["time"])


def parent(path):
    return path.rsplit("/", 1)[0]


snapshot = choose(list_snapshots())
subprocess.run([NAME, "verify", snapshot["id"], "--checksum"], check=True)
for path in PATHS:
    subprocess.run(
        [NAME, "restore", "-s", snapshot["id"], "-p", path, "-d", parent(path), "--overwrite"],
        check=True,
    )
print(snapshot["id"])
"""


@pytest.fixture
def server() -> Iterator[Place]:
    """A training server's directories; not below /tmp, which the users' configuration excludes."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="ciuic-test-"))
    place = Place(directory, source=directory / "opt")
    training = place.source / "deepseek" / "training"
    for name in ("checkpoints/step-100", "logs", "data/shards"):
        (training / name).mkdir(parents=True)
    (training / "checkpoints" / "step-100" / "model.pt").write_bytes(os.urandom(2_500_000))
    (training / "checkpoints" / "step-100" / "optimizer.pt").write_bytes(os.urandom(1_200_000))
    (training / "checkpoints" / "latest").symlink_to("step-100")
    (training / "logs" / "train.jsonl").write_text('{"step": 100, "loss": 2.5}\n')
    (training / "config.json").write_text('{"lr": 0.001}\n')
    (training / "data" / "shards" / "0.bin").write_bytes(os.urandom(100_000))
    (place.source / "deepseek" / "notes.txt").write_text("not part of any rollback\n")
    place.configure(
        CONFIGURATION.format(store=directory / ".ciuric_snapshots")
        + f"snapshot_paths = {place.source}\n"
    )
    try:
        yield place
    finally:
        shutil.rmtree(directory)


def ruin(training: Path) -> None:
    """Damage a training run, as a bad night does."""
    model = training / "checkpoints" / "step-100" / "model.pt"
    with model.open("r+b") as file:
        file.write(b"NaN" * 1000)
        file.truncate(2_000_000)
    (training / "checkpoints" / "step-100" / "optimizer.pt").unlink()
    (training / "checkpoints" / "latest").unlink()
    shutil.rmtree(training / "logs")
    (training / "config.json").write_text('{"lr": 1000}\n')
    (training / "data" / "shards" / "0.bin").unlink()


@pytest.mark.parametrize("name", NAMES)
def test_their_three_commands_run_as_written(server, name):
    env = {"CIUIC_CONFIG": str(server.config)}
    training = server.source / "deepseek" / "training"
    before = contents(training / "checkpoints")
    files = [one for one in server.source.rglob("*") if one.is_file() and not one.is_symlink()]
    size_bytes = sum(one.stat().st_size for one in files)
    assert run(name, "init", env=env).code == 0
    assert (server.directory / ".ciuric_snapshots" / "ciuic-store.json").exists()
    taken = run(name, "snapshot", env=env)
    assert taken.code == 0, taken.said()
    assert re.fullmatch(r"cs-[0-9a-f]{6,}\n", taken.out)
    snapshot_id = taken.out.strip()

    listed = run(name, "list", "--machine-readable", env=env)
    verified = run(name, "verify", snapshot_id, "--checksum", env=env)
    ruin(training)
    others = contents(training / "data") | contents(server.source / "deepseek" / "notes.txt")
    restored = run(
        name,
        "restore",
        "-s",
        snapshot_id,
        "-p",
        training / "checkpoints",
        "-d",
        training,
        "--overwrite",
        env=env,
    )

    assert listed.code == 0, listed.said()
    assert listed.err == ""
    (line,) = listed.out.splitlines()
    listed_id, when, size = line.split("|")
    assert listed_id == snapshot_id
    taken_at = datetime.strptime(when, "%Y-%m-%d %H:%M:%S")
    assert abs(datetime.now() - taken_at) < timedelta(minutes=2)
    assert int(size) == size_bytes
    assert verified.code == 0, verified.said()
    assert restored.code == 0, restored.said()
    assert contents(training / "checkpoints") == before
    assert not (training / "logs").exists(), "what was not asked for was touched"
    assert (training / "config.json").read_text() == '{"lr": 1000}\n'
    assert contents(training / "data") | contents(server.source / "deepseek" / "notes.txt") == (
        others
    )


@pytest.mark.parametrize("name", NAMES)
def test_their_script_brings_four_paths_back_and_touches_nothing_else(server, name, tmp_path):
    env = {"CIUIC_CONFIG": str(server.config)}
    training = server.source / "deepseek" / "training"
    paths = [training / "checkpoints", training / "logs", training / "config.json"]
    paths.append(training / "data")
    script = tmp_path / "rollback.py"
    script.write_text(ROLLBACK)
    before = {path: contents(path) for path in paths}
    assert run(name, "init", env=env).code == 0
    snapshot_id = run(name, "snapshot", env=env).out.strip()
    ruin(training)
    (training / "new-run").mkdir()
    (training / "new-run" / "keep.me").write_text("later work\n")
    beside = contents(training / "new-run") | contents(server.source / "deepseek" / "notes.txt")
    now = datetime.now().strftime("%Y-%m-%d %H:%M:%S")

    done = run(sys.executable, script, name, now, *paths, env=env)

    assert done.code == 0, done.said()
    assert done.out.splitlines()[-1] == snapshot_id
    for path in paths:
        assert contents(path) == before[path]
    assert contents(training / "new-run") | contents(server.source / "deepseek" / "notes.txt") == (
        beside
    )
    assert sorted(one.name for one in training.iterdir()) == sorted(
        [*(path.name for path in paths), "new-run"]
    )


def test_their_script_stops_with_an_exit_code_when_there_is_no_store(server, tmp_path):
    script = tmp_path / "rollback.py"
    script.write_text(ROLLBACK)
    env = {"CIUIC_CONFIG": str(server.config)}
    config = server.source / "deepseek" / "training" / "config.json"

    done = run(sys.executable, script, "ciuic", "2026-01-01 00:00:00", config, env=env)

    assert done.code != 0
    assert "CalledProcessError" in done.err
    assert config.read_text() == '{"lr": 0.001}\n'


def test_the_program_calls_itself_by_the_name_it_was_called_by():
    for name in NAMES:
        done = run(name, "--help")
        assert done.code == 0
        assert done.out.startswith(f"Usage: {name} [OPTIONS] COMMAND")
