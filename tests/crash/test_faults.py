"""Every command with a disk that fails at any single call, and with a process killed at any call.

A clean run is traced first. Then each of its calls on the store and on the target of a restore gets
EIO, ENOSPC or SIGKILL. Each run of the tests tries a few calls, by a printed seed; CIUIC_LONG=1
tries all.
"""

import copy
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.damage import flip_byte, packs
from tests.kit.filesystems import disk
from tests.kit.program import Outcome, ciuic
from tests.kit.strace import Call, calls_in, need_strace, strace
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
_TOLD = re.compile(r" write\([12]<")
_REASON = re.compile(
    "Input/output error|No space left|disk I/O error|is full|unable to open|cannot be read|damaged"
    "|cannot be loaded|missing|is gone|no longer|disk image is malformed|not a store"
    "|readonly database",
    re.IGNORECASE,
)

pytestmark = pytest.mark.slow


class Prepared:
    """A store with work for every command, and the content of its snapshots.

    Attributes:
        known: The listed snapshots.
        spare: A listed snapshot that may be forgotten.
        trashed: A forgotten snapshot.
        calls: The calls of a clean run of each command that has run: see ``calls_of``.
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
            store.trash.forget([self.trashed], 1)
        self.trashed_photo = self.known.pop(self.trashed)
        (box.source / "large").write_bytes(rng.randbytes(MIB))
        (box.source / "new").mkdir()
        (box.source / "new" / "file").write_bytes(rng.randbytes(2000))
        self.calls: dict[str, list[Call]] = {}


class Command(NamedTuple):
    """A command, and its possible outcomes with any failure of the disk.

    Attributes:
        arguments: The arguments of ciuic, for the prepared store and the target.
        codes: The possible exit codes; the first is that of a clean run.
        damages: Damage to the store before the command.
    """

    arguments: Callable[[Prepared, Path], tuple[str | Path, ...]]
    codes: tuple[int, ...]
    damages: Callable[[Box], None] = lambda _box: None


def spoil(box: Box) -> None:
    """Damage a sector that parity can rebuild, and a manifest with a sound copy."""
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


def run(box: Box, command: tuple[str | Path, ...], wrapper: tuple[str, ...]) -> Outcome:
    return ciuic("--config", box.config, *command, "--json", wrapper=wrapper)


def calls_of(made: Prepared, name: str, directory: Path) -> list[Call]:
    """Return all calls of a clean run that touch the store or the target.

    Calls are counted for each thread. Calls of the first thread that load a library are left out.
    """
    if name not in made.calls:
        made.calls[name] = traced_calls(made, COMMANDS[name], directory)
    return made.calls[name]


def traced_calls(made: Prepared, command: Command, directory: Path) -> list[Call]:
    box, out = made.box.copied(directory / "clean"), directory / "clean-out"
    trace = directory / "log"
    command.damages(box)
    outcome = run(box, command.arguments(made, out), strace(",".join(CALLS), "-y", to=trace))
    assert outcome.code == command.codes[0], outcome
    found, elsewhere = set(), set()
    first = ""
    for thread, call, line in calls_in(trace):
        first = first or thread
        if str(box.store) in line or str(out) in line:
            found.add(call)
        elif thread == first:
            elsewhere.add(call)
    shutil.rmtree(box.directory)
    shutil.rmtree(out, ignore_errors=True)
    return sorted(found - elsewhere)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (name, fault)
        for name in COMMANDS
        for fault in ("error=EIO", "error=ENOSPC", "signal=SIGKILL")
        if (name, fault) != ("verify", "error=ENOSPC")  # verify writes nothing
    ],
)
def test_any_single_call_may_fail_or_be_the_last(
    made: Prepared, tmp_path: Path, name: str, fault: str
) -> None:
    command = COMMANDS[name]
    calls = calls_of(made, name, tmp_path)
    if fault == "error=ENOSPC":
        calls = [one for one in calls if one.name not in READS]
    assert calls
    seed = drawn_seed()
    hits = 0
    for tried, call in enumerate(random.Random(seed).sample(calls, len(calls))):
        # Threads share work in another way each time, so a call of a clean run may not occur.
        if hits == POSITIONS or tried == 4 * POSITIONS:
            break
        box, out, trace = made.box.copied(tmp_path / "run"), tmp_path / "out", tmp_path / "log"
        where = f"{name}: {fault} at {call.name} {call.number}"
        command.damages(box)
        arguments = command.arguments(made, out)
        inject = f"{fault}:when={call.number}"
        outcome = run(box, arguments, strace(call.name, "-y", inject=inject, to=trace))
        injected = [
            one for one in trace.read_text(errors="replace").splitlines() if "(INJECTED)" in one
        ]
        hits += outcome.code < 0 if "signal" in fault else bool(injected)
        # Calls are counted for each thread: printing the error may fail in the same way.
        is_silenced = any(_TOLD.search(one) for one in injected)
        if outcome.code >= 0 and not (is_silenced and outcome.code):
            assert_told(outcome, command, is_hit=bool(injected), where=where)
        assert_whole(made, box, tmp_path, name, outcome, where)
        if name == "restore":
            assert_restored(made, box, out, outcome, where, is_silenced=is_silenced)
        shutil.rmtree(box.directory)
        shutil.rmtree(out, ignore_errors=True)
    print(f"{hits} of {len(calls)} positions")
    assert hits, "no call was hit"


def assert_told(outcome: Outcome, command: Command, *, is_hit: bool, where: str) -> None:
    """Check for a documented exit code, and one sentence about what happened."""
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


def error_of(outcome: Outcome) -> str:
    """Return the kind of the reported error; empty without an error, or after a kill."""
    if outcome.code < 0 or not outcome.out:
        return ""
    return str(outcome.document.get("error", {}).get("kind", ""))


def assert_done_or_not(
    made: Prepared, listed: set[str], name: str, outcome: Outcome, where: str
) -> None:
    """A failed command has committed nothing; an uncertain commit is an error of its own."""
    kind = error_of(outcome)
    if not kind:
        return
    is_uncertain = kind == "commit_uncertain"
    error = outcome.document["error"]["message"]
    if name == "snapshot":
        new = listed - made.known.keys() - {made.trashed}
        assert len(new) == is_uncertain, (where, outcome)
        assert all(one in error and outcome.document["id"] == one for one in new), (where, outcome)
    elif name == "forget":
        assert (made.spare not in listed) == is_uncertain, (where, outcome)
        assert not is_uncertain or made.spare in error, (where, outcome)
    elif name == "forget and prune" and made.spare not in listed:
        is_told = any(one["id"] == made.spare for one in outcome.document.get("forgotten", ()))
        assert is_told or made.spare in error, (where, outcome)
    elif name == "undo":
        assert (made.trashed in listed) == is_uncertain, (where, outcome)


def assert_whole(
    made: Prepared, box: Box, directory: Path, name: str, outcome: Outcome, where: str
) -> None:
    """Check that every reported snapshot is complete, and that the next commands work."""
    if name == "repair":
        again = box.ciuic("repair", "--apply", "--json")
        assert again.code == 0, (where, again)
    known = dict(made.known)
    listed = {one.id for one in box.snapshots()}
    assert_done_or_not(made, listed, name, outcome, where)
    with open_store(str(box.store)) as store:
        trashed = {one.id for one in store.trash.read()}
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
    """Check that files are complete or absent, absent ones are named, and a second run finishes."""
    photo = made.known[made.spare]
    found = photograph(out / "source") if (out / "source").exists() else {}
    for path, one in found.items():
        if b".ciuic-restore-" not in path:
            assert one.content == photo[path].content, (where, path)
    leftovers = [path for path in found if b".ciuic-restore-" in path]
    # A file whose removal fails is left for the next restore.
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


@pytest.mark.parametrize("name", ["snapshot", "forget", "undo", "tag"])
def test_a_commit_that_the_disk_does_not_confirm_is_named_as_such(
    made: Prepared, tmp_path: Path, name: str
) -> None:
    command, box = COMMANDS[name], made.box.copied(tmp_path / "run")
    directory = box.store / ("snapshots" if name == "snapshot" else "marks")
    arguments = command.arguments(made, tmp_path / "out")
    # The descriptor's path identifies the fsync, so no call number is needed.
    at_directory = ("-P", str(directory))
    wrapper = strace("fsync", *at_directory, inject="error=EIO", to=tmp_path / "log")
    outcome = run(box, arguments, wrapper)
    assert "(INJECTED)" in (tmp_path / "log").read_text(), outcome
    assert outcome.code == 1, outcome
    error = outcome.document["error"]
    assert error["kind"] == "commit_uncertain", outcome
    assert "Input/output error" in error["message"]
    assert "ciuic" in error["hint"]
    listed = {one.id: one for one in box.snapshots()}
    assert_done_or_not(made, set(listed), name, outcome, name)
    if name == "tag":
        assert listed[made.spare].tags == ("t",)
        assert made.spare in error["message"]
    assert box.verify().ok
    assert box.ciuic("snapshot").code == 0


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
def test_a_store_on_a_full_disk(made: Prepared, tmp_path: Path, kind: str, name: str) -> None:
    """Fill the disk completely: existing data stays, and with free space everything works again."""
    command = COMMANDS[name]
    with disk(kind, tmp_path) as mounted:
        box = copy.copy(made.box)
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
                trashed = {one.id for one in store.trash.read()}
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
def test_a_restore_onto_a_full_disk(made: Prepared, tmp_path: Path, kind: str) -> None:
    """Files are old or new, absent ones are named, and with free space a second run finishes."""
    old, new = min(made.known), max(made.known)
    # The target's file system may report holes that the source's file system does not.
    wanted = {path: one._replace(data=()) for path, one in made.known[new].items()}
    box = made.box.copied(tmp_path / "from")
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
