"""A disk that refuses any one call, and a process that ends at any one call: of every command.

A clean run is traced first; then each of its calls on the store and on the target of a restore
meets with EIO, ENOSPC or SIGKILL. Each run of the tests tries a few of them, by a seed that is
printed; CIUIC_LONG=1 tries all.
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ciuic.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_byte, packs
from tests.kit.filesystems import disk
from tests.kit.program import Outcome, ciuic
from tests.kit.trees import Photo, differences, photograph

LONG = bool(os.environ.get("CIUIC_LONG"))
POSITIONS = int(os.environ.get("CIUIC_FAULTS", "100000" if LONG else "2"))
MIB = 1024 * 1024
CALLS = (
    *("openat", "read", "pread64", "write", "pwrite64", "fsync", "fdatasync", "syncfs"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "ftruncate", "fallocate", "copy_file_range"),
)
READS = {"openat", "read", "pread64"}
_LINE = re.compile(r"^(\d+) +(\w+)\(")
_TOLD = re.compile(r" write\([12]<")
_REASON = re.compile(
    "Input/output error|No space left|disk I/O error|is full|unable to open|can't be read|damaged"
    "|can't be loaded|missing|is gone|no longer|disk image is malformed|not a store"
    "|readonly database",
    re.IGNORECASE,
)

pytestmark = pytest.mark.slow


class Call(NamedTuple):
    """A system call: its name, and the how manieth of its kind it is in its thread."""

    name: str
    number: int


class Prepared:
    """A store with something to do for every command, and what its snapshots must give back.

    Attributes:
        known: The snapshots that are listed.
        spare: One of them that may be forgotten.
        trashed: One that was forgotten.
    """

    def __init__(self, directory: Path) -> None:
        rng = random.Random(5)
        self.box = box = Box(directory, parity=0.04)
        self.known: dict[str, dict[bytes, Photo]] = {}
        for step in range(4):
            for number in range(12):
                path = box.source / f"d{number % 3}" / f"f{number}"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(rng.randbytes(3000) if number >= step else b"same")
            (box.source / "large").write_bytes(rng.randbytes(MIB + 300_000 + step))
            (box.source / "link").unlink(missing_ok=True)
            (box.source / "link").symlink_to(f"f{step}")
            self.known[box.take().id] = photograph(box.source)
        self.trashed, self.spare = list(self.known)[:2]
        with open_store(str(box.store), write=True) as store:
            store.forget([self.trashed], 1)
        self.trashed_photo = self.known.pop(self.trashed)
        (box.source / "large").write_bytes(rng.randbytes(MIB))
        (box.source / "new").mkdir()
        (box.source / "new" / "file").write_bytes(rng.randbytes(2000))


class Command(NamedTuple):
    """Something to do, and what is true of its outcome whatever the disk did.

    Attributes:
        arguments: Of ciuic, given the prepared store and the target.
        codes: Exit codes that it may end with; the first is that of a clean run.
        damages: Done to the store before.
    """

    arguments: Callable[[Prepared, Path], tuple[str | Path, ...]]
    codes: tuple[int, ...]
    damages: Callable[[Box], None] = lambda _box: None


def spoil(box: Box) -> None:
    """A sector that parity gives back, and a manifest whose copy is whole."""
    flip_byte(packs(box.store)[0], 5000)
    flip_byte(min((box.store / "snapshots").iterdir()), 30)


COMMANDS = {
    "snapshot": Command(lambda _made, _out: ("snapshot",), (0, 1, 3)),
    "forget": Command(lambda made, _out: ("forget", made.spare), (0, 1, 4)),
    "undo": Command(lambda made, _out: ("forget", "--undo", made.trashed), (0, 1, 4)),
    "prune": Command(lambda _made, _out: ("prune", "--trash", "0"), (0, 1, 4)),
    "forget and prune": Command(
        lambda made, _out: ("forget", made.spare, "--prune", "--trash", "0"), (0, 1, 4)
    ),
    "repair": Command(lambda _made, _out: ("repair", "--apply"), (0, 1, 4), spoil),
    "tag": Command(lambda made, _out: ("tag", made.spare, "--add", "t"), (0, 1, 4)),
    "verify": Command(lambda _made, _out: ("verify", "--all", "--checksum"), (0, 1, 4)),
    "restore": Command(
        lambda made, out: ("restore", "-s", made.spare, "-p", made.box.source, "-d", out),
        (0, 1, 3, 4),
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    need_strace()
    return Prepared(tmp_path_factory.mktemp("made"))


def need_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run(
        ["strace", "-f", "-o", os.devnull, "true"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("this machine does not let strace trace")


def copy_of(made: Prepared, directory: Path) -> Box:
    """The same store, in a place where it may be harmed."""
    directory.mkdir()
    other = Box.__new__(Box)
    other.__dict__.update(made.box.__dict__)
    other.directory, other.store = directory, directory / "store"
    other.config = directory / "ciuic.conf"
    shutil.copytree(made.box.store, other.store)
    other.configure()
    return other


def run(box: Box, command: tuple[str | Path, ...], trace: Path, *options: str) -> Outcome:
    wrapper = ("strace", "-f", "-qq", "-y", "--seccomp-bpf", "-o", str(trace), *options)
    return ciuic("--config", box.config, *command, "--json", wrapper=wrapper)


def calls_of(made: Prepared, command: Command, directory: Path) -> list[Call]:
    """All calls of a clean run that touch the store or the target.

    The calls are counted in each thread: one that in the first thread loads a library is left out.
    """
    box, out, trace = copy_of(made, directory / "clean"), directory / "clean-out", directory / "log"
    command.damages(box)
    outcome = run(box, command.arguments(made, out), trace, "-e", f"trace={','.join(CALLS)}")
    assert outcome.code == command.codes[0], outcome
    counts: dict[tuple[str, str], int] = {}
    found, elsewhere = set(), set()
    first = ""
    for line in trace.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        key = (match[1], match[2])
        first = first or match[1]
        counts[key] = counts.get(key, 0) + 1
        if str(box.store) in line or str(out) in line:
            found.add(Call(match[2], counts[key]))
        elif match[1] == first:
            elsewhere.add(Call(match[2], counts[key]))
    shutil.rmtree(box.directory)
    shutil.rmtree(out, ignore_errors=True)
    return sorted(found - elsewhere)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (name, fault)
        for name in COMMANDS
        for fault in ("error=EIO", "error=ENOSPC", "signal=SIGKILL")
        if (name, fault) != ("verify", "error=ENOSPC")  # it writes nothing
    ],
)
def test_any_one_call_may_fail_or_be_the_last_one(
    made: Prepared, tmp_path: Path, name: str, fault: str
) -> None:
    command = COMMANDS[name]
    calls = calls_of(made, command, tmp_path)
    if fault == "error=ENOSPC":
        calls = [one for one in calls if one.name not in READS]
    assert calls
    seed = int(os.environ.get("CIUIC_SEED", random.SystemRandom().randrange(2**32)))
    chosen = random.Random(seed).sample(calls, min(POSITIONS, len(calls)))
    print(f"seed {seed}: {len(chosen)} of {len(calls)} positions")
    for call in chosen:
        box, out, trace = copy_of(made, tmp_path / "run"), tmp_path / "out", tmp_path / "log"
        where = f"{name}: {fault} at {call.name} {call.number}"
        command.damages(box)
        arguments = command.arguments(made, out)
        inject = f"inject={call.name}:{fault}:when={call.number}"
        outcome = run(box, arguments, trace, "-e", f"trace={call.name}", "-e", inject)
        injected = [
            one for one in trace.read_text(errors="replace").splitlines() if "(INJECTED)" in one
        ]
        # The calls are counted in each thread: what tells of the error may meet with it as well.
        is_silenced = any(_TOLD.search(one) for one in injected)
        if outcome.code >= 0 and not (is_silenced and outcome.code):
            assert_told(outcome, command, is_hit=bool(injected), where=where)
        assert_whole(made, box, tmp_path, name, outcome, where)
        if name == "restore":
            assert_restored(made, box, out, outcome, where, is_silenced=is_silenced)
        shutil.rmtree(box.directory)
        shutil.rmtree(out, ignore_errors=True)


def assert_told(outcome: Outcome, command: Command, *, is_hit: bool, where: str) -> None:
    """A documented exit code, one sentence, and it is about what has happened."""
    assert outcome.code in command.codes, (where, outcome)
    assert "Exception ignored" not in outcome.err, (where, outcome)
    if outcome.code != 1:
        return
    assert is_hit, (where, outcome)
    assert outcome.out, (where, outcome)
    error = outcome.document["error"]
    assert "\n" not in error["message"], (where, outcome)
    assert error["hint"], (where, outcome)
    assert _REASON.search(error["message"]), (where, outcome)


def assert_whole(
    made: Prepared, box: Box, directory: Path, name: str, outcome: Outcome, where: str
) -> None:
    """Every snapshot that was reported is there and whole; the next commands do their work."""
    if name == "repair":
        again = box.ciuic("repair", "--apply", "--json")
        assert again.code == 0, (where, again)
    known = dict(made.known)
    listed = {one.id for one in box.snapshots()}
    with open_store(str(box.store)) as store:
        trashed = {one.id for one in store.trash()}
    if name.startswith("forget"):
        has_pruned = name == "forget and prune"
        assert has_pruned or made.spare in listed or made.spare in trashed, where
        if outcome.code == 0:
            assert made.spare not in listed, where
            del known[made.spare]
        elif made.spare not in listed:
            del known[made.spare]
    if name == "undo" and outcome.code == 0:
        assert made.trashed in listed, where
    if name in {"prune", "forget and prune"} and outcome.code == 0:
        assert trashed == set(), where
    elif name not in {"prune", "forget and prune"}:
        assert made.trashed in listed | trashed, where
    assert known.keys() <= listed, where
    assert len(listed) <= len(known) + 1, where
    if name == "snapshot" and outcome.code == 0:
        assert outcome.document["id"] in listed, where
    report = box.verify()
    assert report.ok, (where, report.as_json())
    last = box.take()
    assert os.listdir(box.store / "tmp") == [], where
    for one, photo in {max(known): known[max(known)], last.id: photograph(box.source)}.items():
        box.restore(snapshot=one, to=directory / "checked" / one)
        found = photograph(directory / "checked" / one / "source")
        assert differences(photo, found) == [], (where, one)
    shutil.rmtree(directory / "checked")
    pruned = box.ciuic("prune", "--trash", "0", "--json")
    assert pruned.code == 0, (where, pruned)
    assert box.verify(checksum=False).ok, where


def assert_restored(
    made: Prepared, box: Box, out: Path, outcome: Outcome, where: str, *, is_silenced: bool
) -> None:
    """Files are whole or not there, what is missing was named, and a second run finishes."""
    photo = made.known[made.spare]
    found = photograph(out / "source") if (out / "source").exists() else {}
    for path, one in found.items():
        if b".ciuic-restore-" not in path:
            assert one.content == photo[path].content, (where, path)
    leftovers = [path for path in found if b".ciuic-restore-" in path]
    # One whose own removal fails is left for the next restore.
    assert len(leftovers) <= 1 or outcome.code < 0, (where, leftovers)
    if outcome.code == 0:
        assert differences(photo, found) == [], where
    elif outcome.code > 1 and not is_silenced and "error" in outcome.document:
        assert found == {}, where
    elif outcome.code > 1 and not is_silenced:
        named = {os.fsencode(one["path"]) for one in outcome.document["failed"]}
        for path in photo.keys() - found.keys():
            whole = os.path.normpath(os.path.join(os.fsencode(made.box.source), path))
            assert any((whole + b"/").startswith(one + b"/") for one in named), (where, path)
    again = box.restore(snapshot=made.spare, to=out, overwrite=True)
    assert again.failed == [], (where, again.failed)
    assert differences(photo, photograph(out / "source")) == [], where


# A disk that really fills


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in ("ext4", "xfs", "btrfs")
        for name in ("snapshot", "forget", "prune", "repair")
        if LONG or kind == "ext4" or name == "prune"
    ],
)
def test_a_store_on_a_disk_that_is_full(
    made: Prepared, tmp_path: Path, kind: str, name: str
) -> None:
    """To the last byte: what is there stays, and with room again everything goes on."""
    command = COMMANDS[name]
    with disk(kind, tmp_path) as mounted:
        box = Box.__new__(Box)
        box.__dict__.update(made.box.__dict__)
        box.directory, box.store = tmp_path, mounted.path / "store"
        box.config = tmp_path / "ciuic.conf"
        shutil.copytree(made.box.store, box.store)
        box.configure()
        command.damages(box)
        for free_bytes in (0, 64 * 1024) if not LONG else (0, 4096, 64 * 1024, 512 * 1024, 2 * MIB):
            mounted.leave_free(free_bytes)
            where = f"{name} on {kind} with {free_bytes} bytes free"
            outcome = box.ciuic(*command.arguments(made, tmp_path / "out"), "--json")
            if outcome.code == 1:
                error = outcome.document["error"]
                assert error["kind"] in {"store_full", "store", "usage", "snapshot_not_found"}, (
                    where
                )
                assert "\n" not in error["message"], where
            else:
                assert outcome.code in {0, 2, 4}, (where, outcome)
            with open_store(str(box.store)) as store:
                trashed = {one.id for one in store.trash()}
            listed = {one.id for one in box.snapshots()}
            assert made.known.keys() <= listed | trashed, where
            report = box.verify()
            assert report.ok or name == "repair", (where, report.as_json())
            (mounted.path / "ballast").unlink()
        outcome = box.ciuic("repair", "--apply", "--json")
        assert outcome.code == 0, outcome
        last = box.take()
        assert os.listdir(box.store / "tmp") == []
        box.restore(snapshot=last.id, to=tmp_path / "last")
        assert differences(photograph(box.source), photograph(tmp_path / "last" / "source")) == []
        assert box.verify().ok


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"] if LONG else ["ext4", "btrfs"])
def test_a_restore_onto_a_disk_that_is_full(made: Prepared, tmp_path: Path, kind: str) -> None:
    """Each file is old or new, what is missing was named, and with room a second run finishes."""
    old, new = min(made.known), max(made.known)
    # Of holes the target's file system may tell what the source's keeps to itself.
    wanted = {path: one._replace(data=()) for path, one in made.known[new].items()}
    box = copy_of(made, tmp_path / "from")
    with disk(kind, tmp_path) as mounted:
        out = mounted.path / "out"
        arguments = ("-p", made.box.source, "-d", out, "--overwrite", "--json")
        for free_bytes in (0, 64 * 1024, 512 * 1024, MIB):
            assert box.ciuic("restore", "-s", old, *arguments).code == 0
            mounted.leave_free(free_bytes)
            where = f"{kind} with {free_bytes} bytes free"
            outcome = box.ciuic("restore", "-s", new, *arguments)
            found = photograph(out / "source", holes=False)
            for path, one in found.items():
                assert b".ciuic-restore-" not in path, where
                versions = [photo[path].content for photo in (made.known[old], made.known[new])]
                assert one.content in versions, (where, path)
            if outcome.code == 1:
                error = outcome.document["error"]
                assert "No space left" in error["message"], (where, outcome)
                assert "\n" not in error["message"], where
                assert error["hint"], where
            elif outcome.code:
                assert outcome.code in {3, 4}, (where, outcome)
                assert outcome.document["failed"], where
            else:
                assert differences(wanted, found) == [], where
            (mounted.path / "ballast").unlink()
            again = box.ciuic("restore", "-s", new, *arguments)
            assert again.code == 0, (where, again)
            assert differences(wanted, photograph(out / "source", holes=False)) == [], where
        assert os.listdir(mounted.path) in (["out"], ["lost+found", "out"], ["out", "lost+found"])
