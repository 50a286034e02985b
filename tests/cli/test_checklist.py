"""The checklist of ``ciuic doctor``, and the checkpoints that no snapshot has."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ciuic.report.doctor.checklist import NOT_KNOWN
from tests.kit.daemon import Machine, wait_until
from tests.kit.program import ciuic

QUESTIONS = [
    "the snapshot system runs",
    "the key paths are covered",
    "the stored state is checked",
    "alerting works",
    "recovery is practiced",
    "steps and contacts are written down",
]

HOLD = """
import mmap, os, sys
opened = [open(path, mode) for mode, path in zip(sys.argv[2::2], sys.argv[3::2])]
mapped = [mmap.mmap(one.fileno(), 0, prot=mmap.PROT_READ) for one in opened if ".so" in one.name]
open(sys.argv[1], "w").close()
sys.stdin.read()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.close()


def answers(machine: Machine) -> dict[str, dict[str, str]]:
    document = ciuic("--config", machine.config, "doctor", "--json").document
    return {one["about"]: one for one in document["checklist"]}


@contextmanager
def holding(gate: Path, *opened: tuple[str, Path], wrapper: tuple[str, ...] = ()) -> Iterator[int]:
    """Run a program that has files open, each with a mode; yield its process."""
    words = [str(word) for pair in opened for word in pair]
    command = [sys.executable, "-c", HOLD, str(gate), *words]
    with subprocess.Popen([*wrapper, *command], stdin=subprocess.PIPE) as program:
        wait_until("the files are open", gate.exists)
        try:
            yield program.pid
        finally:
            assert program.stdin is not None
            program.stdin.close()
            program.wait(60)


def test_six_lines_say_what_to_do_and_become_ok_when_it_is_done(machine: Machine) -> None:
    assert ciuic("--config", machine.config, "init").code == 0
    first: dict[str, dict[str, str]] = {}
    # Programs of other tests have checkpoints open now and then, which is a warning.
    while first != (first := answers(machine)):
        people = ciuic("--config", machine.config, "doctor")
    assert list(first) == QUESTIONS
    shown = sum(line.startswith("warning ") for line in people.out.splitlines())
    repeated = sum(one["level"] == "warning" for one in first.values() if one["what"] != NOT_KNOWN)
    assert f"{shown - repeated} warnings, " in people.err
    for one in first.values():
        assert bool(one["advice"]) == (one["level"] != "ok"), one
    assert first["the snapshot system runs"]["level"] == "warning"
    assert first["the stored state is checked"]["what"].startswith("not known")
    assert first["recovery is practiced"]["level"] == "note"
    assert "'contacts'" in first["steps and contacts are written down"]["advice"]

    machine.configure(contacts="Ada <ada@example.org>")
    daemon = machine.start()
    daemon.wait_for_log("snapshot cs-")
    assert ciuic("--config", machine.config, "scrub").code == 0
    assert ciuic("--config", machine.config, "drill").code == 0
    then = answers(machine)
    for question in (QUESTIONS[0], QUESTIONS[2], QUESTIONS[4], QUESTIONS[5]):
        assert then[question]["level"] == "ok", then[question]
    assert "restored 1 file" in then["recovery is practiced"]["what"]
    shown = ciuic("--config", machine.config, "doctor").out
    for number, question in enumerate(QUESTIONS, start=1):
        assert f" {number}. {question}: " in shown
    machine.source.rename(machine.directory / "gone")
    assert answers(machine)["the key paths are covered"]["level"] == "problem"


def test_who_has_an_alert_section_is_not_told_to_add_one(machine: Machine) -> None:
    without = answers(machine)["alerting works"]
    assert without["advice"].startswith("Add an [alert NAME] section, and run 'systemctl")
    with machine.config.open("a") as file:
        file.write("[alert log]\ntype = command\ncommand = cat\n")
    assert answers(machine)["alerting works"]["advice"].startswith("Run 'systemctl")


@pytest.mark.root
def test_a_checkpoint_that_is_open_outside_every_root_is_named(
    machine: Machine, tmp_path: Path
) -> None:
    assert ciuic("--config", machine.config, "init").code == 0
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = machine.source / "epoch.pt"
    written, read, notes = (outside / name for name in ("new.PT", "old.safetensors", "notes.txt"))
    for path in (inside, written, read, notes):
        path.write_bytes(b"x" * 100)

    def said() -> str:
        return answers(machine)["the key paths are covered"]["what"]

    opened = [("ab", inside), ("ab", written), ("rb", read), ("ab", notes)]
    with holding(tmp_path / "gate", *opened) as pid:
        what = said()
        assert f"{written} of python" in what
        assert f"(pid {pid})" in what
        # Nor is a file that a program only reads: it may be any file.
        for path in (inside, read, notes):
            assert str(path) not in what
    assert str(written) not in said()

    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(os.urandom(mmap.PAGESIZE))
    with holding(tmp_path / "gate-2", ("rb", library), ("rb", read)):
        assert f"{read} of python" in said()


@pytest.mark.root
def test_a_service_with_mounts_of_its_own_is_seen_and_a_hidden_file_is_not(
    machine: Machine, tmp_path: Path
) -> None:
    assert ciuic("--config", machine.config, "init").code == 0
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    same, other = tmp_path / "same.pt", hidden / "other.pt"
    for path in (same, other):
        path.write_bytes(b"x")
    cover = f'mount -t tmpfs tmpfs {hidden} && : > {other} && exec "$@"'
    wrapper = ("unshare", "--mount", "sh", "-c", cover, "sh")
    with holding(tmp_path / "gate", ("ab", same), ("ab", other), wrapper=wrapper):
        what = answers(machine)["the key paths are covered"]["what"]
    assert str(same) in what
    assert str(other) not in what
