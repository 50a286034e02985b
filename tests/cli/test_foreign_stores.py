"""Root and a store of another user: root reads it, does not write, and follows no link in it."""

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.cli import main
from ciuic.config.load import load_settings
from ciuic.control import request_status
from ciuic.errors import StoreError
from ciuic.maintain.scrub.scrub import scrub
from ciuic.maintain.scrub.subject import Directory
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuicd.upkeep.damage_log import subject_of
from tests.kit.box import Box
from tests.kit.daemon import wait_until
from tests.kit.damage import flip_content
from tests.kit.program import NOBODY, REPOSITORY, Outcome, ciuic, environment

pytestmark = pytest.mark.root

DIRECTORIES = ["packs", "snapshots", "tmp", "parity", "quarantine", "marks", "retired"]
FILES = [
    *("ciuic-store.json", "lock.write", "lock.read", "daemon.lock", "catalog.sqlite"),
    *("catalog.sqlite-journal", "catalog.sqlite-wal", "control.sock"),
    "prune.unfinished",
]
READS = [("list",), ("verify", "--all", "--checksum"), ("stats",)]


def forked(*arguments: str | Path) -> Outcome:
    """Run the command in a process that has loaded everything: these tests run hundreds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
                sys.argv = ["ciuic", *map(str, arguments)]
                signal.alarm(60)  # no command here may wait for another process
                main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        texts = [os.pread(one.fileno(), 1 << 24, 0).decode() for one in (out, err)]
    assert "Traceback" not in texts[1], texts[1]
    return Outcome(os.waitstatus_to_exitcode(status), *texts)


class Foreign:
    """A store of ``nobody``, two snapshots and a forgotten one; and files of root's."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.victims = box.directory / "victims"
        self.victims.mkdir()
        for name in ("one", "two"):
            (self.victims / name).write_bytes(b"precious " + name.encode())
        (box.source / "file").write_bytes(os.urandom(10_000))
        self.forgotten = box.take().id
        (box.source / "file").write_bytes(os.urandom(10_000))
        self.id = box.take().id
        (box.source / "file").write_bytes(os.urandom(10_000))
        self.newest = box.take().id
        assert box.ciuic("forget", self.forgotten).code == 0
        self.given_away()

    def given_away(self) -> None:
        for path in [self.box.store, *self.box.store.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def allow(self) -> None:
        with self.box.config.open("a") as file:
            file.write("store_owner = nobody\n")

    def assert_safe(self) -> None:
        found = {path.name: path.read_bytes() for path in self.victims.iterdir()}
        assert found == {"one": b"precious one", "two": b"precious two"}

    def seen(self) -> dict[str, tuple[int, int, int]]:
        return {
            str(path): (one.st_ino, one.st_size, one.st_mtime_ns)
            for path in [self.box.store, *self.box.store.rglob("*")]
            for one in [path.lstat()]
        }

    def writes(self) -> list[Outcome]:
        commands: list[tuple[str, ...]] = [
            ("snapshot",),
            ("tag", self.id, "--add", "x"),
            ("prune", "--trash", "1h"),
            ("forget", "--undo", self.forgotten),
            ("forget", self.id),
            ("repair", "--apply"),
        ]
        return [self.run(*one) for one in commands]

    def some(self) -> list[Outcome]:
        """Commands that together open every file of a store."""
        commands: list[tuple[str, ...]] = [
            ("snapshot",),
            ("prune", "--trash", "0"),
            ("repair", "--apply"),
            ("list",),
        ]
        return [self.run(*one) for one in commands]

    def run(self, *arguments: str | Path) -> Outcome:
        return forked("--config", self.box.config, *arguments)


@pytest.fixture
def foreign(public_box: Box) -> Foreign:
    return Foreign(public_box)


def test_root_does_not_write_to_it_and_says_what_to_do(foreign: Foreign) -> None:
    before = foreign.seen()
    for done in foreign.writes():
        assert done.code == 1, done
        assert f"the store {foreign.box.store} belongs to user nobody (uid {NOBODY})" in done.err
        assert "store_owner = nobody" in done.err
        assert len(done.err.splitlines()) == 2
    done = ciuic("--store", foreign.box.store, "prune")
    assert done.code == 1
    assert "belongs to user nobody" in done.err
    assert foreign.seen() == before


def test_the_daemon_does_not_serve_it(foreign: Foreign) -> None:
    before = foreign.seen()
    done = subprocess.run(
        [sys.executable, "-m", "ciuicd", "--config", foreign.box.config],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=REPOSITORY,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "belongs to user nobody" in done.stderr
    assert foreign.seen() == before


def test_no_store_is_made_in_a_directory_of_another_user(public_box: Box) -> None:
    shutil.rmtree(public_box.store)
    public_box.store.mkdir()
    os.chown(public_box.store, NOBODY, NOBODY)
    done = public_box.ciuic("init")
    assert done.code == 1
    assert "belongs to user nobody" in done.err
    assert os.listdir(public_box.store) == []


def test_root_reads_it_and_leaves_it_as_it_is(foreign: Foreign, tmp_path: Path) -> None:
    box = foreign.box
    for has_catalog in (True, False):
        if not has_catalog:
            (box.store / "catalog.sqlite").unlink()
        before = foreign.seen()
        for command in READS:
            done = foreign.run(*command)
            assert done.code == 0, (command, done)
        assert foreign.run("scrub").code == 0
        copy = tmp_path / f"copy-{has_catalog}"
        assert forked("--store", box.store, "copy", "--to", copy, "--init").code == 0
        out = tmp_path / str(has_catalog)
        done = foreign.run("restore", "-s", foreign.id, "-p", box.source, "-d", out)
        assert done.code == 0, done
        assert len((out / "source" / "file").read_bytes()) == 10_000
        assert foreign.seen() == before


def test_root_writes_to_it_if_the_configuration_names_its_owner(foreign: Foreign) -> None:
    foreign.allow()
    box = foreign.box
    for done in foreign.writes():
        assert done.code in {0, 1}, done
        assert "belongs to user" not in done.err
    taken = foreign.run("snapshot").out.strip()
    assert taken in [one["id"] for one in foreign.run("list", "--json").document]
    assert foreign.run("verify", "--all", "--checksum").code == 0
    # The key is about the store that the configuration names, and no other.
    assert ciuic("--config", box.config, "--store", box.store, "prune").code == 1


@pytest.mark.parametrize("finder", ["scrub", "verify", "restore", "daemon"])
def test_root_records_damage_in_it_if_the_configuration_names_its_owner(
    foreign: Foreign, tmp_path: Path, finder: str
) -> None:
    box = foreign.box
    data = (box.source / "file").read_bytes()
    flip_content(box.store, data)
    commands: dict[str, tuple[str | Path, ...]] = {
        "scrub": ("scrub",),
        "verify": ("verify", "--all", "--checksum"),
        "restore": ("restore", "-s", foreign.newest, "-p", box.source, "-d"),
    }

    def find() -> None:
        if finder == "daemon":
            # What the daemon scrubs; its budget and its turn have their own tests.
            assert scrub(subject_of(load_settings(str(box.config))), clock=SystemClock()).damaged
        else:
            places = [tempfile.mkdtemp(dir=tmp_path)] if finder == "restore" else []
            assert foreign.run(*commands[finder], *places).code in {3, 4}

    find()
    assert not (box.store / "damaged").exists()
    foreign.allow()
    find()
    (record,) = (box.store / "damaged").iterdir()
    for path, mode in ((box.store / "damaged", 0o40700), (record, 0o100600)):
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode) == (NOBODY, NOBODY, mode)
    # The snapshot is of the same file, and relies on nothing that is damaged.
    assert foreign.run("snapshot").code == 0
    assert foreign.run("verify", "--checksum").code == 0


@pytest.mark.parametrize("held", [[], ["precious"]])
def test_root_gives_the_owner_its_folder_for_records_and_no_other_directory(
    foreign: Foreign, held: list[str]
) -> None:
    """A killed process may have left an empty one; the owner may have renamed another one."""
    box = foreign.box
    foreign.allow()
    flip_content(box.store, (box.source / "file").read_bytes())
    damaged = box.store / "damaged"
    damaged.mkdir(0o700)
    for name in held:
        (damaged / name).touch()

    assert foreign.run("scrub").code == 4

    assert damaged.stat().st_uid == (0 if held else NOBODY)
    assert len(os.listdir(damaged)) == len(held) + 1


def test_root_gives_the_owner_no_file_that_he_has_linked_in_place_of_a_record(
    foreign: Foreign,
) -> None:
    folder = Folder(str(foreign.box.store), layout.DAMAGED, is_owners=True)
    folder.make()
    os.link(foreign.victims / "one", folder.path_of("record"))
    with pytest.raises(StoreError, match="File exists"):
        folder.mark("record")
    assert (foreign.victims / "one").stat().st_uid == 0


def test_a_folder_for_records_that_cannot_be_given_to_the_owner_is_not_left(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hide the records of the owner's own scrubs."""
    box = foreign.box
    flip_content(box.store, (box.source / "file").read_bytes())

    def refused(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refused)
    assert scrub(Directory(str(box.store), owner=NOBODY), clock=SystemClock()).damaged
    assert not (box.store / "damaged").exists()


def test_an_owner_who_is_not_the_one_is_refused_and_an_unknown_one_is_a_mistake(
    foreign: Foreign,
) -> None:
    config = foreign.box.config
    text = config.read_text()
    config.write_text(f"{text}store_owner = 12345\n")
    done = foreign.run("prune")
    assert (done.code, "belongs to user nobody" in done.err) == (1, True)
    config.write_text(f"{text}store_owner = no-such-user\n")
    done = foreign.run("list")
    assert done.code == 2
    assert "store_owner: there is no user 'no-such-user' on this machine" in done.err


@pytest.mark.parametrize("name", DIRECTORIES)
@pytest.mark.parametrize("allowed", [True, False])
def test_a_symlink_in_place_of_a_directory_leads_nowhere(
    foreign: Foreign, name: str, allowed: bool
) -> None:
    if allowed:
        foreign.allow()
    place = foreign.box.store / name
    with contextlib.suppress(FileNotFoundError):
        place.rename(place.with_name("old"))
    place.symlink_to(foreign.victims)
    for done in foreign.writes():
        assert done.code == 1, done
        assert len(done.err.splitlines()) == 2
    for command in READS:
        done = foreign.run(*command)
        assert done.code in {0, 1, 4}, done
    foreign.assert_safe()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["symlink", "second name", "FIFO"])
def test_a_file_of_another_kind_in_the_store_harms_no_other_file_and_blocks_no_command(
    foreign: Foreign, name: str, kind: str
) -> None:
    foreign.allow()
    place = foreign.box.store / name
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    if kind == "symlink":
        place.symlink_to(foreign.victims / "one")
    elif kind == "second name":
        os.link(foreign.victims / "one", place)
    else:
        os.mkfifo(place)
        os.chown(place, NOBODY, NOBODY)
    for done in foreign.some():
        assert done.code in {0, 1, 4}, done
    foreign.assert_safe()


@pytest.mark.parametrize("name", FILES)
def test_a_symlink_that_was_planted_in_a_store_of_ones_own_is_not_followed(
    foreign: Foreign, name: str
) -> None:
    for path in [foreign.box.store, *foreign.box.store.rglob("*")]:
        os.chown(path, 0, 0)
    place = foreign.box.store / name
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    place.symlink_to(foreign.victims / "one")
    for done in foreign.some():
        assert done.code in {0, 1, 4}, done
    foreign.assert_safe()


def test_the_daemon_follows_no_symlink_of_the_owner(foreign: Foreign) -> None:
    foreign.allow()
    for name in ("daemon.lock", "control.sock"):
        place = foreign.box.store / name
        place.symlink_to(foreign.victims / "one")
        (foreign.victims / "one").chmod(0o600)
        daemon = subprocess.Popen(
            [sys.executable, "-m", "ciuicd", "--config", foreign.box.config],
            env=environment(),
            cwd=REPOSITORY,
        )
        with daemon:
            try:
                wait_until(
                    "the daemon answers or refuses",
                    lambda: bool(daemon.poll() or request_status(str(foreign.box.store))),  # noqa: B023
                )
            finally:
                daemon.terminate()
        foreign.assert_safe()
        assert (foreign.victims / "one").stat().st_mode & 0o777 == 0o600
        with contextlib.suppress(FileNotFoundError):
            place.unlink()


def hot_journal(catalog: Path, named: Path) -> bytes:
    """A journal that SQLite plays back, and that names another file as its super-journal."""
    with contextlib.closing(sqlite3.connect(catalog)) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
        (count,) = db.execute("PRAGMA page_count").fetchone()
    magic = bytes.fromhex("d9d505f920a163d7")
    head = (magic + struct.pack(">IIIII", 0, 0, count, 512, size)).ljust(512, b"\0")
    name = os.fsencode(named)
    total = sum(byte - 256 if byte > 127 else byte for byte in name) & 0xFFFFFFFF
    lock_page = 0x40000000 // size + 1
    return head + struct.pack(">I", lock_page) + name + struct.pack(">II", len(name), total) + magic


def test_a_journal_beside_the_catalog_removes_no_file(foreign: Foreign) -> None:
    """SQLite removes the file that a journal names as its super-journal, wherever it is."""
    catalog, victim = foreign.box.store / "catalog.sqlite", foreign.victims / "one"
    planted = hot_journal(catalog, victim)
    # The attack is real: SQLite by itself falls for it.
    bait = foreign.box.directory / "bait.sqlite"
    shutil.copy(catalog, bait)
    decoy = foreign.box.directory / "decoy"
    decoy.write_bytes(b"precious")
    (bait.parent / "bait.sqlite-journal").write_bytes(hot_journal(bait, decoy))
    with contextlib.closing(sqlite3.connect(bait)) as db:
        db.execute("SELECT * FROM pack").fetchall()
    assert not decoy.exists(), "the journal is not one that SQLite plays back"

    journal = foreign.box.store / "catalog.sqlite-journal"
    for is_own in (False, True):
        if is_own:  # a store that was given to root, and not all of it
            for path in [foreign.box.store, *foreign.box.store.rglob("*")]:
                os.chown(path, 0, 0)
        journal.write_bytes(planted)
        os.chown(journal, NOBODY, NOBODY)
        for command in [*READS, ("snapshot",)]:
            assert foreign.run(*command).code in {0, 1}
            foreign.assert_safe()
    assert foreign.run("verify", "--all", "--checksum").code == 0


SWAPPING = """
import ctypes, os, sys
os.setgid(65534)
os.setuid(65534)
libc = ctypes.CDLL(None)
one, other = (os.fsencode(path) for path in sys.argv[1:])
print("ready", flush=True)
while os.getppid() == int({parent}):
    libc.renameat2(-100, one, -100, other, 2)
"""


@contextlib.contextmanager
def swapped(one: Path, other: Path) -> Iterator[None]:
    """The owner swaps the two names, again and again, as fast as possible."""
    program = SWAPPING.replace("{parent}", str(os.getpid()))
    process = subprocess.Popen(
        [sys.executable, "-c", program, one, other], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["tmp", "packs", "parity", "snapshots"])
def test_an_owner_who_swaps_a_directory_for_a_symlink_meanwhile_gets_nothing(
    foreign: Foreign, name: str
) -> None:
    box = foreign.box
    place, link = box.store / name, box.store / "link"
    place.mkdir(exist_ok=True)
    os.chown(place, NOBODY, NOBODY)
    link.symlink_to(foreign.victims)
    opened = refused = 0
    with swapped(place, link):
        for number in range(200):
            if min(opened, refused) >= 10:
                break
            with contextlib.suppress(FileNotFoundError):
                (box.store / "tmp" / f"pack-{number:016x}").write_bytes(b"left over")
            try:
                with open_store(str(box.store), write=True, owner=NOBODY) as store:
                    opened += 1
                    store.manifests.copies.put("x", b"y")
            except (StoreError, OSError):
                refused += 1
    foreign.victims.joinpath("pack").unlink(missing_ok=True)
    for path in foreign.victims.glob("pack-*"):  # those belong to the test
        path.unlink()
    assert refused, "the swapping was not seen"
    foreign.assert_safe()
