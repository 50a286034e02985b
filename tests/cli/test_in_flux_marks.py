"""Files that were being written are marked in every view of a snapshot; fallback to older ones."""

import os
import re
import subprocess
import sys

import psutil
import pytest

from tests.cli.test_output import unsafe
from tests.cli.test_terminal import on_terminal
from tests.kit.daemon import REPOSITORY
from tests.kit.installed import Place, environment


@pytest.fixture
def torn(fresh: Place) -> Place:
    """A snapshot that was taken while this process had two files open for writing."""
    odd = fresh.source / "\x1b[31mred\n"
    with (fresh.source / "checkpoints" / "step-1.pt").open("ab"), odd.open("wb"):
        done = fresh.run("snapshot")
    assert done.code == 3, done.said()
    assert "step-1.pt: in flux: open for writing by " in done.err
    return fresh


def test_ls_and_find_mark_what_was_in_flux_and_say_what_that_means(torn):
    done = torn.run("ls", "latest", "-R")
    marked = [line for line in done.out.splitlines() if line.endswith("  [in flux]")]

    assert done.code == 0
    assert [line.split("/")[-1].split(" ")[0] for line in marked] == [
        "\\x1b[31mred\\n",
        "step-1.pt",
    ]
    assert done.err == (
        "[in flux]: a program was writing it: it may hold a mixture of old and new\n"
    )
    assert unsafe(done.out) == []
    states = {
        one["path"]: one["state"] for one in torn.run("ls", "latest", "-R", "--json").document
    }
    assert states[f"{torn.source}/checkpoints/step-1.pt"] == "in flux"
    assert states[f"{torn.source}/train.log"] == "whole"
    assert torn.run("find", "step-*").out.endswith("step-1.pt  [in flux]\n")
    assert "[" not in torn.run("find", "train.log").out


def test_a_snapshot_without_marks_has_no_legend(fresh):
    fresh.snapshot()
    done = fresh.run("ls", "latest", "-R")
    assert done.err == ""
    assert "[" not in done.out


def test_show_names_who_was_writing_and_how_each_root_was_captured(torn):
    done = torn.run("show", "latest")
    document = torn.run("show", "latest", "--json").document

    name = psutil.Process().name()
    path = f"{torn.source}/checkpoints/step-1.pt"
    assert f"in flux   {path}: open for writing by {name} (pid {os.getpid()})\n" in done.out
    (how,) = (one["capture"] for one in document["roots"])
    assert how in {"in place", "reflink", "subvolume"}  # as the file system of the tests allows
    assert re.search(
        rf"root      {re.escape(str(torn.source))}, captured (by |as a )?{how}\n", done.out
    )
    assert {"path": path, "what": f"in flux: open for writing by {name} (pid {os.getpid()})"} in (
        document["trouble"]
    )
    assert unsafe(done.out) == []
    _, shown = on_terminal("ciuic", "--config", torn.config, "show", "latest")
    assert "\x1b[31mred" not in shown


def test_list_counts_what_was_in_flux(torn):
    header, newest = torn.run("list").out.splitlines()
    assert header.split()[-3:] == ["TROUBLE", "FLUX", "TAGS"]
    assert newest.split()[-2:] == ["2", "2"]
    assert torn.run("list", "--json").document[0]["flux_count"] == 2


def test_doctor_makes_a_note_of_it_and_no_warning(torn):
    found = torn.run("doctor", "--json").document["findings"]
    (one,) = [one for one in found if "in flux" in one["what"]]
    assert one["level"] == "note"
    assert " has 2 paths in flux, first " in one["what"]
    assert ": open for writing by " in one["what"]


PROGRAM = """
import atexit, os, psutil, sys
def tell():
    print("priority", int(psutil.Process().ionice().ioclass), os.nice(0), file=sys.stderr)
atexit.register(tell)
sys.argv[0] = "ciuic"
from ciuic.cli import main
main()
"""


@pytest.mark.parametrize(
    ("priority", "io_class", "nice"), [("idle", 3, 19), ("best-effort", 2, 10), ("none", None, 0)]
)
def test_a_snapshot_without_a_daemon_steps_back_as_far_as_the_configuration_says(
    fresh, priority, io_class, nice
):
    fresh.configure(
        f"snapshot_paths = {fresh.source}\nsnapshot_dir = {fresh.store}\nio_priority = {priority}\n"
    )
    if io_class is None:
        io_class = int(psutil.Process().ionice().ioclass)
    nice = max(nice, os.nice(0))  # never raises the priority
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--config", str(fresh.config), "snapshot"],
        capture_output=True,
        text=True,
        check=False,
        env=environment({"PYTHONPATH": str(REPOSITORY)}),
    )
    assert done.returncode == 0, done.stderr
    assert f"priority {io_class} {nice}\n" in done.stderr
    assert done.stderr.count("\n") == 2, "not a word about it"
