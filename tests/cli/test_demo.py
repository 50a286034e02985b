"""``scripts/demo`` is the first thing that a newcomer runs: it works, and it cannot be fooled.

Every test runs the script itself, with real processes and real files. The tests check its claims
against the files that it leaves with ``--keep``, not against its output. A demonstration that
always ends well proves nothing. So in each of some tests, ciuic fails in one way: a program in
front of the real one spoils the result of the real one.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "demo"
BIN = Path(sys.executable).parent

RESTORE = 'restore*"/my-run --overwrite"'
SPOILED = {
    "a restore that leaves the last byte out": (
        "ciuic",
        RESTORE,
        'truncate -s -1 "$run/checkpoints/last.npz"',
        "'python my-run/train.py --check",
    ),
    "a restore that does nothing": (
        "ciuic",
        RESTORE,
        'cp broken.npz "$run/checkpoints/last.npz"',
        "'python my-run/train.py --check",
    ),
    "a restore that brings another step's checkpoint, one that loads": (
        "ciuic",
        RESTORE,
        "python -c \"import numpy; path = '$run/checkpoints/last.npz'; "
        "old = dict(numpy.load(path)); old['step'] += 1; numpy.savez(path, **old)\"",
        "the restored checkpoint has SHA-256",
    ),
    "a restore that writes beside its path": (
        "ciuic",
        RESTORE,
        'echo >> "$run/train.py"',
        "restoring checkpoints/ has changed train.py too",
    ),
    "a restore that ends otherwise than the one before, aside": (
        "ciuic",
        RESTORE,
        "code=$((3 - code))",
        "ended with exit code",
    ),
    "a verify that finds damage": (
        "ciuic",
        "verify*",
        "code=4",
        "ended with exit code 4, not 0",
    ),
    "a resumed training that takes another course": (
        "python",
        '*"--resume --steps"*',
        """sed -i '/"event": "start", "step": [1-9]/{n;s/"loss": /&1/}' "$run/log.jsonl\"""",
        "the losses differ at",
    ),
    "a verify that finds damage in the second act": (
        "ciuic",
        '*"verify --all --checksum"',
        "code=4",
        "ended with exit code 4, not 0",
    ),
    "a program that goes on from another state": (
        "python",
        'in-loop/*"--steps"*',
        """sed -i 's/"start", "step": \\([1-9]\\)/"start", "step": 9\\1/' in-loop/log.jsonl""",
        "the training went on from step 9",
    ),
    "a program that takes another course from its own state": (
        "python",
        'in-loop/*"--steps"*',
        """sed -i '/"event": "start", "step": [1-9]/{n;s/"loss": /&1/}' in-loop/log.jsonl""",
        "the losses differ at",
    ),
}
"""What goes wrong -> the program, its arguments then, what it does in addition, what is said."""


def environment(tmp_path: Path, *front: Path) -> dict[str, str]:
    """The environment of a user whose temporary files go to ``tmp_path``."""
    path = os.pathsep.join([*map(str, front), str(BIN), os.environ["PATH"]])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return {**os.environ, "PATH": path, "TMPDIR": str(scratch), "PYTHON": sys.executable}


def demo(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # Longer than the demonstration waits for pip: the script must report what took too long.
    return subprocess.run(
        [DEMO, *arguments], env=env, capture_output=True, text=True, timeout=840, check=False
    )


def left_behind(env: dict[str, str]) -> list[str]:
    """Files in the temporary directory, and processes that work in it."""
    scratch = Path(env["TMPDIR"])
    found = [str(path) for path in scratch.iterdir()]
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(scratch)):
                found.append(str(process))
        except psutil.Error:
            continue  # it has ended, or belongs to another user
    return found


def runs_in(log: Path) -> list[dict[str, dict]]:
    """Each run's losses by step and checkpoint digests by step, read independently of the demo."""
    runs: list[dict[str, dict]] = []
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("event") == "start":
            runs.append({"losses": {}, "digests": {}})
        elif entry.get("event") == "checkpoint":
            runs[-1]["digests"][entry["sha256"]] = entry["step"]
        else:
            runs[-1]["losses"][entry["step"]] = entry["loss"]
    return runs


@pytest.mark.slow
def test_the_demo_installs_ciuic_and_brings_a_killed_training_back(tmp_path):
    env = environment(tmp_path)

    done = demo(env, "--quick", "--keep")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every claim came true" in done.stdout
    assert "\033" not in done.stdout, "colours in a pipe"
    (kept,) = Path(env["TMPDIR"]).glob("ciuic-demo-*")
    assert not zipfile.is_zipfile(kept / "broken.npz"), "an npz is a zip file, if it is whole"
    killed, resumed = runs_in(kept / "my-run" / "log.jsonl")
    digest = hashlib.sha256((kept / "aside" / "last.npz").read_bytes()).hexdigest()
    restored_step = killed["digests"][digest]
    again = sorted(killed["losses"].keys() & resumed["losses"].keys())
    assert again[0] == restored_step + 1
    assert again[-1] == max(killed["losses"]) < max(resumed["losses"])
    assert [killed["losses"][step] for step in again] == [resumed["losses"][step] for step in again]
    checked = subprocess.run(
        [kept / "venv/bin/ciuic", "--config", kept / "ciuic.conf", "verify", "--all", "--checksum"],
        check=False,
    )
    assert checked.returncode == 0
    assert left_behind(env) == [str(kept)], "a process is still there"


@pytest.mark.slow
@pytest.mark.parametrize("how", SPOILED)
def test_the_demo_notices(tmp_path, how):
    program, when, spoil, sentence = SPOILED[how]
    front = tmp_path / "bin"
    front.mkdir()
    spoiled = front / program
    spoiled.write_text(
        f'#!/bin/sh\ncase "$*" in {when}) ;; *) exec "{BIN}/{program}" "$@";; esac\n'
        f'"{BIN}/{program}" "$@"; code=$?; run=$PWD/my-run\n{spoil}\nexit $code\n'
    )
    spoiled.chmod(0o755)
    env = environment(tmp_path, front)

    done = demo(env, "--quick", "--no-install")

    assert done.returncode == 1, done.stdout + done.stderr
    assert sentence in done.stderr
    assert "Every claim came true" not in done.stdout
    assert left_behind(env) == []


@pytest.mark.slow
def test_the_demo_takes_a_checkpoint_that_is_marked_if_it_is_one_that_the_training_logged(tmp_path):
    # As on btrfs, where the whole file is frozen while its writer still has it open.
    front = tmp_path / "bin"
    front.mkdir()
    marking = front / "ciuic"
    marking.write_text(
        f'#!/bin/sh\n"{BIN}/ciuic" "$@"; code=$?\n'
        'case "$code $*" in "0 restore "*) exit 3;; esac; exit $code\n'
    )
    marking.chmod(0o755)
    env = environment(tmp_path, front)

    done = demo(env, "--quick", "--no-install")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "It is marked" in done.stdout
    assert "Every claim came true" in done.stdout
    assert left_behind(env) == []


@pytest.mark.slow
def test_without_a_package_index_the_demo_says_what_to_do(tmp_path):
    env = environment(tmp_path) | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}

    done = demo(env)

    assert done.returncode == 1
    assert "cannot reach a package index" in done.stderr
    assert "--no-install" in done.stderr
    assert left_behind(env) == []


@pytest.mark.slow
def test_a_terminated_demo_leaves_no_daemon_and_no_files(tmp_path):
    env = environment(tmp_path)
    process = subprocess.Popen(
        [DEMO, "--no-install"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        # The first snapshot that it reports: daemon and training are both at work.
        seen = any(" taken, " in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()

    assert seen, rest
    assert process.returncode == 128 + signal.SIGTERM
    assert left_behind(env) == []


def test_without_ciuic_on_path_no_install_fails_with_a_sentence(tmp_path):
    only = tmp_path / "bin"
    only.mkdir()
    for name in ("sh", "dirname"):
        (only / name).symlink_to(shutil.which(name))
    env = environment(tmp_path) | {"PATH": str(only)}

    done = demo(env, "--no-install")

    assert done.returncode == 1
    assert "there is no ciuicd" in done.stderr
    assert "Traceback" not in done.stderr
    assert left_behind(env) == []


def test_a_python_that_is_too_old_is_refused_by_name(tmp_path):
    old = tmp_path / "python2.7"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)

    done = demo(environment(tmp_path) | {"PYTHON": str(old)})

    assert done.returncode == 2
    assert f"'{old}' is not Python 3.11 or newer" in done.stderr


def test_the_training_in_the_loop_that_has_no_step_to_do_ends_well(tmp_path):
    for name in ("train.py", "train_in_loop.py"):
        shutil.copy(DEMO.parent / "demonstration" / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "train_in_loop.py", "store", "--steps", "0"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained up to step 0\n"
