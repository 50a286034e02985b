"""Completion by TAB, in a real bash on a real terminal."""

import os
import pty
import re
import select
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import CIUIC, environment

_LIMIT_S = 120
_DUMP = "\x18"  # bound to what prints the line
_ALL = "\x1b*"  # readline's insert-completions: every candidate, quoted as one would be


class Bash:
    """A bash that completes, on a terminal of its own."""

    def __init__(self, box: Box, directory: Path) -> None:
        program = directory / "bin" / "ciuic"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(CIUIC)} "$@"\n')
        program.chmod(0o755)
        leader, follower = pty.openpty()
        environ = environment({"CIUIC_CONFIG": str(box.config), "TERM": "dumb", "PS1": "$ "})
        environ["PATH"] = f"{program.parent}:{environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=directory,
            env=environ,
            start_new_session=True,
        )
        os.close(follower)
        self._leader = leader
        self._send("bind 'set bell-style none'; bind 'set enable-bracketed-paste off'\n")
        self._send("bind 'set horizontal-scroll-mode on'; stty columns 4000\n")
        self._send("""bind -x '"\\C-x": printf "<%s" "<$READLINE_LINE>>"'\n""")
        self._send('eval "$(ciuic completion bash)"\n')

    def line(self, typed: str) -> str:
        """The text of the line after these keys."""
        self._send(typed + _DUMP)
        found = self._until(rb"<<(.*?)>>")
        self._send("\x15")  # clear the line
        return found.decode("utf-8", "surrogateescape")

    def close(self) -> None:
        os.close(self._leader)
        self._process.kill()
        self._process.wait()

    def _send(self, keys: str) -> None:
        os.write(self._leader, keys.encode("utf-8", "surrogateescape"))

    def _until(self, pattern: bytes) -> bytes:
        seen = b""
        end_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < end_s:
            if select.select([self._leader], [], [], 1)[0]:
                seen += os.read(self._leader, 65536)
            found = re.search(pattern, seen, re.DOTALL)
            if found:
                return found[1].replace(b"\r\n", b"\n")
        raise AssertionError(f"bash printed {seen!r}")


@pytest.fixture
def bash(box: Box, tmp_path: Path) -> Iterator[Bash]:
    for name in ("run one/step.pt", "run=2/a:b", "run=2/it's", 'run=2/q"$x', "solo/only/file"):
        path = box.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    with open(os.fsencode(box.source) + b"/odd\xff", "wb"):
        pass
    (box.source / "new\nline").write_bytes(b"")
    box.take(tags=("paper", "two words"))
    (box.source / "later").write_bytes(b"")
    box.take()
    shell = Bash(box, tmp_path)
    yield shell
    shell.close()


def test_a_path_grows_by_one_directory_at_a_time(bash: Bash, box: Box) -> None:
    source = str(box.source)
    head = source[: source.rindex("/") + 4]
    assert bash.line(f"ciuic ls latest {head}\t") == f"ciuic ls latest {source}/"
    assert bash.line(f"ciuic ls latest {source}/so\t") == f"ciuic ls latest {source}/solo/"
    assert bash.line(f"ciuic ls latest {source}/solo/\t\t") == (
        f"ciuic ls latest {source}/solo/only/file "
    )


def test_special_characters_are_quoted_as_the_shell_wants_it(bash: Bash, box: Box) -> None:
    source = str(box.source)
    assert bash.line(f"ciuic cat latest {source}/run\\ \t\t") == (
        f"ciuic cat latest {source}/run\\ one/step.pt "
    )
    for quote in "\"'":
        for begun in ("run o", "run one/"):
            line = bash.line(f"ciuic cat latest {quote}{source}/{begun}\t\t")
            assert shlex.split(line)[3:] == [f"{source}/run one/step.pt"]
            assert line.endswith(" ")
    for begun, name in (("a", "a:b"), ("i", "it's"), ("q", 'q"$x')):
        for run in ("run\\=2", "run=2"):
            line = bash.line(f"ciuic cat latest {source}/{run}/{begun}\t")
            assert shlex.split(line) == ["ciuic", "cat", "latest", f"{source}/run=2/{name}"]
    line = bash.line(f"ciuic cat latest {source}/o\t")
    assert line.rstrip() == f"ciuic cat latest {source}/odd\udcff"


def test_every_option_that_takes_a_stored_path_completes_it(bash: Bash, box: Box) -> None:
    source = str(box.source)
    for line in (
        "ciuic restore -s latest -p ",
        "ciuic restore --path ",
        "ciuic restore -p /x --path=",
        "ciuic show latest --chunks -p ",
        "ciuic list --path ",
        "ciuic ls latest ",
        "ciuic cat latest --tar ",
        f"ciuic ls --store {box.store} latest ",
        f"ciuic --store {box.store} ls latest ",
    ):
        assert bash.line(f"{line}{source}/sol\t") == f"{line}{source}/solo/"


def test_the_snapshot_that_is_named_says_what_there_is(bash: Bash, box: Box) -> None:
    source = str(box.source)
    first = box.snapshots()[-1].id
    there = f"ciuic restore -s latest -p {source}/lat"
    assert bash.line(f"{there}\t") == f"{there}er "
    gone = f"ciuic restore -s {first} -p {source}/lat"
    assert bash.line(f"{gone}\t") == gone


def test_bash_offers_every_name_except_those_with_control_characters(bash: Bash, box: Box) -> None:
    source = str(box.source)
    line = bash.line(f"ciuic ls latest {source}/{_ALL}")
    assert shlex.split(line)[3:] == [
        f"{source}/{name}" for name in ("later", "odd\udcff", "run one/", "run=2/", "solo/")
    ]


def test_tags_and_ids_and_commands_complete(bash: Bash, box: Box) -> None:
    newest, oldest = (one.id for one in box.snapshots())
    assert bash.line("ciuic list --tag pa\t") == "ciuic list --tag paper "
    assert bash.line("ciuic list --tag tw\t") == "ciuic list --tag two\\ words "
    assert bash.line("ciuic tag latest --remove pa\t") == "ciuic tag latest --remove paper "
    assert bash.line(f"ciuic show {newest[:-1]}\t") == f"ciuic show {newest} "
    assert bash.line(f"ciuic show {newest[3:7]}\t") == f"ciuic show {newest[3:9]} "
    assert bash.line(f"ciuic diff {oldest} latest-\t") == f"ciuic diff {oldest} latest-valid "
    assert bash.line("ciuic resto\t") == "ciuic restore "
    assert bash.line("ciuic restore --inc\t") == "ciuic restore --include "
    assert box.ciuic("forget", oldest).code == 0
    assert bash.line("ciuic forget --undo c\t") == f"ciuic forget --undo {oldest[:9]} "


def test_places_of_this_machine_are_the_shells_own(bash: Bash, box: Box, tmp_path: Path) -> None:
    (tmp_path / "a place").mkdir()
    (tmp_path / "a file").write_bytes(b"")
    line = f"ciuic restore -p /x -d {tmp_path}/a\\ "
    assert bash.line(f"{line}\t") == f"{line}place/"
    line = f"ciuic --config {tmp_path}/a\\ f"
    assert bash.line(f"{line}\t") == f"{line}ile "
    line = f"ciuic --store {tmp_path}/sto"
    assert bash.line(f"{line}\t") == f"{line}re/"


def test_a_relative_path_counts_from_the_current_directory(bash: Bash) -> None:
    assert bash.line("ciuic ls latest source/sol\t") == "ciuic ls latest source/solo/"
    assert bash.line("ciuic ls latest sou\t") == "ciuic ls latest source/"
    assert bash.line("ciuic ls latest ./sou\t") == "ciuic ls latest ./source/"


def test_where_there_is_nothing_to_complete_nothing_is_printed(
    bash: Bash, box: Box, tmp_path: Path
) -> None:
    for line in (
        "ciuic ls latest /nothing/he",
        f"ciuic --store {tmp_path}/none ls latest {box.source}/so",
        "ciuic ls cs-000000 /",
        "ciuic nonsense /",
    ):
        assert bash.line(f"{line}\t") == line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_without_a_store(tmp_path: Path, shell: str) -> None:
    done = subprocess.run(
        [*CIUIC, "completion", shell], capture_output=True, env=environment(), check=True
    )
    assert b"_CIUIC_COMPLETE" in done.stdout
    assert done.stderr == b""


def test_only_names_that_continue_the_word_are_passed_to_the_shell(box: Box) -> None:
    for number in range(20_000):
        (box.source / f"step_{number}").touch()
    box.take()
    done = subprocess.run(
        CIUIC,
        capture_output=True,
        check=True,
        env=environment(
            {
                "CIUIC_CONFIG": str(box.config),
                "_CIUIC_COMPLETE": "bash_complete",
                "CIUIC_LINE": f"ciuic ls latest {box.source}/step_1999",
            }
        ),
    )
    assert done.stdout.split(b"\0")[0] == b"path"
    assert len(done.stdout.split(b"\0")) == 1 + 11 + 1
