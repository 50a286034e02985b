"""The owner of the target works against a restore by root.

While root restores, a racer swaps directories for symlinks that lead out, and unfinished files for
links, as fast as it can. Nothing outside of the target may be written, made or removed.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import ciuic
from tests.kit.trees import status_tree

SECONDS = float(os.environ.get("CIUIC_RACE_S", "120" if os.environ.get("CIUIC_LONG") else "4"))
MIB = 1024 * 1024
_RACER = """
import os, sys
top, victim, how = sys.argv[1:]
print("ready", flush=True)
number = 0
while True:
    number += 1
    for name in ("a", "b", "a/deep", "b/deep", "a/deep/deeper"):
        path = os.path.join(top, name)
        try:
            if how == "directories":
                os.rename(path, f"{path}-{number}")
                os.symlink(victim, path)
                for _ in range(number % 7 * 40):
                    os.lstat(path)
                os.unlink(path)
                os.rename(f"{path}-{number}", path)
                for _ in range(number % 5 * 40):
                    os.lstat(path)
            else:
                for entry in os.listdir(path):
                    if entry.startswith(".ciuic-restore-"):
                        os.unlink(os.path.join(path, entry))
                        target = os.path.join(victim, "precious")
                        put = (os.symlink, os.link)[number % 2]
                        put(target, os.path.join(path, entry))
        except OSError:
            pass
"""

pytestmark = [pytest.mark.slow, pytest.mark.root]


@pytest.fixture
def prepared(box: Box, tmp_path: Path) -> Iterator[Box]:
    for top in ("a", "b"):
        below = box.source / top / "deep" / "deeper"
        below.mkdir(parents=True)
        for place in (below, *list(below.parents)[:2]):
            for number in range(25):
                (place / f"f{number}").write_bytes(os.urandom(3000))
            (place / "large").write_bytes(os.urandom(9 * MIB) if top == "a" else b"large")
            (place / "link").symlink_to("f1")
            os.mkfifo(place / "pipe")
            os.link(place / "f2", place / "second name")
    box.take()
    victim = tmp_path / "victim"
    (victim / "deep" / "deeper").mkdir(parents=True)
    (victim / "precious").write_bytes(b"precious" * 2 * MIB)
    (victim / "f1").write_bytes(b"not yours")
    (victim / "deep" / "keep").write_bytes(b"not yours")
    yield box


@pytest.mark.parametrize("how", ["directories", "unfinished files"])
@pytest.mark.parametrize("delete", [True, False])
def test_nothing_outside_of_the_target_is_written_while_another_user_swaps_its_content(
    prepared: Box, tmp_path: Path, how: str, delete: bool
) -> None:
    box, victim, out = prepared, tmp_path / "victim", tmp_path / "out"
    box.restore(to=out)
    contents = bytes_of(victim)
    before = marks(victim)
    racer = subprocess.Popen(
        [sys.executable, "-c", _RACER, out / "source", victim, how], stdout=subprocess.PIPE
    )
    assert racer.stdout is not None
    try:
        assert racer.stdout.readline() == b"ready\n"
        end_s, rounds = time.monotonic() + SECONDS / 2, 0
        while time.monotonic() < end_s or not rounds:
            for name in ("a", "b"):
                for inside in (*[f"f{number}" for number in range(25)], "large"):
                    spoil(out / "source" / name / "deep" / inside)
            # Whatever the restore finds there, it prints one sentence and no traceback.
            more = ("--delete",) if delete else ()
            place = ("-d", out, "--overwrite", *more)
            options = ("--config", box.config, "restore", "-s", "latest", "-p", box.source)
            outcome = ciuic(*options, *place, wrapper=slowed())
            assert outcome.code in {0, 1, 3}, outcome
            rounds += 1
            if how == "directories":
                # An ordinary user cannot make a hard link to another user's file; root's racer can,
                # and then a name in the target shares the file's times.
                assert marks(victim) == before, "something outside of the target was touched"
            assert contents == bytes_of(victim), "something outside of the target was written"
    finally:
        racer.kill()
        racer.communicate()
    print(f"{rounds} restores")


def bytes_of(top: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in top.rglob("*") if path.is_file()}


def slowed() -> tuple[str, ...]:
    """Stretch the moment between the check of a name and its opening, so that the racer can act."""
    if shutil.which("strace") is None:
        return ()
    inject = ("-e", "trace=openat", "-e", "inject=openat:delay_enter=1000:when=300+")
    return ("strace", "-f", "-qq", "-o", os.devnull, *inject)


def marks(victim: Path) -> dict[bytes, tuple[int, ...]]:
    """Return everything of the victim that a write changes, except its link count."""
    found = status_tree(victim)
    return {path: (*one[:2], *one[3:7]) for path, one in found.items()}


def spoil(path: Path) -> None:
    """Make work for the restore; the racer may have put a link to the victim in the way."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        return
    if "/victim" not in os.readlink(f"/proc/self/fd/{fd}") and os.fstat(fd).st_nlink == 1:
        os.ftruncate(fd, 7)
    os.close(fd)
