"""Small stores that cost a naive reader unbounded time or memory.

Every command ends on each of them in bounded time and memory, names what is damaged, and stops soon
when asked to.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.kit.box import Box
from tests.kit.hostile import HOSTILE, commit_chain, commit_deep_tree, commit_graph, commit_recipe
from tests.kit.program import environment

GIB: Final = 1 << 30
PEAK_MIB: Final = 250
LIMIT_S: Final = 300
"""Seconds on an idle machine; a naive reader takes hours, or never ends."""
SLOW: Final = (
    "ls -R",
    "find",
    "diff",
    "cat --tar",
    "restore --dry-run",
    "stats --detail",
    "show --chunks",
)
"""Commands that walk a graph of directories for so long that a signal arrives in time."""
END_S: Final = 60
"""One second on an idle machine. A command that ignores the signal ends with another code."""
DAMAGE: Final = 4

pytestmark = pytest.mark.timeout(900)

# Limits the address space to a GiB, and prints the peak memory of the process at its end.
LIMITED: Final = f"""
import re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({GIB}, {GIB}))
from ciuic.cli import main
sys.argv[:2], report = ["ciuic"], sys.argv[1]
try:
    main()
finally:
    with open("/proc/self/status") as status, open(report, "w") as file:
        file.write(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1])
"""

STORES: Final[dict[str, Callable[[Box], object]]] = {
    "a file of 72 PB": lambda box: commit_recipe(box.store, box.source, 72 * 10**15),
    "100,000 directories deep": lambda box: commit_deep_tree(box.store, box.source, 100_000),
    "directories in each other": lambda box: commit_graph(
        box.store, box.source, depth=20, width=200
    ),
    "a chain of 20,000 deltas": lambda box: commit_chain(box.store, box.source, 20_000),
}
RECIPE, DEEP, GRAPH, CHAIN = STORES

DAMAGED: Final = frozenset(STORES)
SHAPES: Final = frozenset([DEEP, GRAPH])
CONTENT: Final = frozenset([RECIPE, CHAIN])
VERBS: Final[dict[str, tuple[list[str], frozenset[str]]]] = {
    "verify": (["verify", HOSTILE], DAMAGED),
    "verify --checksum": (["verify", "--all", "--checksum", "--json"], DAMAGED),
    "ls": (["ls", HOSTILE], frozenset()),
    "ls -R": (["ls", "-R", HOSTILE], SHAPES),
    "find": (["find", "*"], SHAPES),
    "show": (["show", HOSTILE], frozenset()),
    "show --chunks": (["show", HOSTILE, "--chunks"], DAMAGED),
    "stats": (["stats"], frozenset()),
    "stats --detail": (["stats", "--detail"], DAMAGED),
    "diff": (["diff", "FIRST", HOSTILE], SHAPES | {RECIPE}),
    "restore --dry-run": (
        ["restore", "-s", HOSTILE, "-p", "SOURCE", "-d", "OUT", "--dry-run"], SHAPES
    ),
    "restore --fallback": (
        ["restore", "-s", HOSTILE, "-p", "SOURCE", "-d", "OUT", "--dry-run", "--fallback"], SHAPES
    ),
    "cat --tar": (["cat", "--tar", HOSTILE, "SOURCE"], DAMAGED),
    "prune --dry-run": (["prune", "--dry-run"], frozenset()),
    "forget --dry-run": (["forget", "--dry-run", "--policy", "last:1"], frozenset()),
    "scrub": (["scrub"], DAMAGED),
    "repair": (["repair"], DAMAGED),
}  # fmt: skip


class Hostile(NamedTuple):
    """A store, and its kind."""

    name: str
    box: Box
    first: str


@pytest.fixture(scope="module", params=STORES)
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    box = Box(tmp_path_factory.mktemp("hostile"))
    (box.source / "a").write_bytes(b"hello")
    first = box.take().id
    STORES[request.param](box)
    return Hostile(request.param, box, first)


def begun(hostile: Hostile, words: list[str], out: Path) -> "subprocess.Popen[bytes]":
    box = hostile.box
    given = {"FIRST": hostile.first, "SOURCE": str(box.source), "OUT": str(out / "restored")}
    command = [given.get(word, word) for word in words]
    with (out / "stdout").open("wb") as stdout, (out / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-c", LIMITED, out / "peak", "--config", box.config, *command],
            env=environment(),
            stdout=stdout,
            stderr=stderr,
        )


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_ends_in_bounded_time_and_memory_and_names_the_damage(
    hostile: Hostile, verb: str, tmp_path: Path
) -> None:
    words, damaged = VERBS[verb]
    process = begun(hostile, words, tmp_path)
    try:
        code = process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()

    told = (tmp_path / "stderr").read_text()
    assert "Traceback" not in told
    assert code == (DAMAGE if hostile.name in damaged else 0), told[-1500:]
    assert int((tmp_path / "peak").read_text()) / 1024 < PEAK_MIB


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_a_command_that_is_asked_to_end_does_so_soon(tmp_path: Path, how: signal.Signals) -> None:
    box = Box(tmp_path)
    (box.source / "a").write_bytes(b"hello")
    first = box.take().id
    # Large enough that no command finishes before the signal arrives.
    commit_graph(box.store, box.source, depth=20, width=400)
    hostile = Hostile(GRAPH, box, first)
    for verb in SLOW:
        out = tmp_path / verb.replace(" ", "")
        out.mkdir()
        process = begun(hostile, VERBS[verb][0], out)
        while process.poll() is None and not is_walking(process.pid):
            os.sched_yield()
        process.send_signal(how)
        try:
            code = process.wait(END_S)
        finally:
            process.kill()
            told = (out / "stderr").read_text()
            print(verb, told)
        assert code == 128 + how
        if "ResourceWarning: unclosed file" in told:  # by Python, of an import that was interrupted
            told = told.splitlines(keepends=True)[-1]
        assert "Traceback" not in told
        # A command that writes reports at once that it is stopping, and then what it did.
        assert told == "ciuic: interrupted\n" or verb.startswith("restore")


def is_walking(pid: int) -> bool:
    """The process has opened a pack of the store."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
        return any("/packs/" in os.readlink(f"/proc/{pid}/fd/{name}") for name in names)
    except OSError:
        return False
