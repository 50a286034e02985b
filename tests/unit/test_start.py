"""The modules that a short command imports. Each takes 0.1 ms or more."""

import ast
import random
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from ciuic.system.core import VARIABLE

BIN = Path(sys.executable).parent
LIST_MODULES_MAX = 95
"""Each module takes 0.1 to 0.5 ms of every ``ciuic list``."""
SNAPSHOT_MODULES_MAX = 169
"""The same for every ``ciuic snapshot`` that finds nothing new."""


def loaded_after(program: str) -> set[str]:
    """Return all modules that a new Python has loaded after a program."""
    shown = "import sys; print(ascii(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{shown}"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    return set(ast.literal_eval(done.stdout.splitlines()[-1]))


def ran(config, *arguments):
    """Run ``ciuic`` and return the modules that it has loaded."""
    return loaded_by_program(["ciuic", "--config", str(config), *map(str, arguments)])


def loaded_by_program(command):
    """Run a command line that succeeds and return the modules that it has loaded."""
    program = (
        "import sys, contextlib, io\n"
        f"sys.argv = {command!r}\n"
        "from ciuic.cli import main\n"
        "try:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code\n"
    )
    return loaded_after(program)


def loaded_by(arguments, tmp_path):
    """Return the modules that ``ciuic`` has loaded after a command in an empty store."""
    config = tmp_path / "ciuic.conf"
    config.write_text(
        f"snapshot_dir = {tmp_path / 'store'}\nsnapshot_paths = /etc\nretention_policy = 7d\n"
    )
    made = subprocess.run(
        [BIN / "ciuic", "--config", config, "init"], capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return ran(config, *arguments)


def test_importing_ciuic_is_light():
    heavy = {"torch", "click", "pydantic", "numpy", "msgspec", "blake3", "rich", "sqlite3"}

    assert heavy & loaded_after("import ciuic") == set()


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["list"], ["--version"]])
def test_commands_that_must_feel_instant_import_nothing_heavy(arguments, tmp_path):
    heavy = {"pydantic", "pydantic_core", "rich", "numpy", "torch", "psutil", "watchdog"}
    heavy |= {"zstandard", "concurrent", "logging", "subprocess", "tempfile"}
    heavy |= {"ctypes", "difflib", "typing_extensions"}

    assert heavy & {name.split(".")[0] for name in loaded_by(arguments, tmp_path)} == set()


def test_the_server_of_the_page_loads_no_numpy():
    """It takes 13 MB. Tensors are compared by the processes of jobs."""
    assert "numpy" not in loaded_after("import ciuic.web.server")


def test_list_imports_nothing_that_takes_writes_or_restores(tmp_path):
    folders = ("snapshot", "restore", "verify", "maintain", "chunking", "formats", "view")
    others = tuple(f"ciuic.{folder}" for folder in folders)
    loaded = loaded_by(["list"], tmp_path)

    assert "ciuic.store.store" in loaded
    assert [name for name in loaded if name.startswith(others)] == []
    assert not {"ciuic.store.adding", "ciuic.store.packs.writer", "ciuic.store.gc"} & loaded
    assert "ciuic.cli.complete" not in loaded
    assert sum(name.startswith("ciuic.") for name in loaded) <= LIST_MODULES_MAX


def test_a_short_command_imports_only_the_packages_that_it_needs(tmp_path):
    """Each package takes 3 to 80 ms of every ``ciuic snapshot`` that finds nothing new."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "notes.txt").write_text("step 1\n")
    config = tmp_path / "ciuic.conf"
    config.write_text(
        f"snapshot_dir = {tmp_path / 'store'}\nsnapshot_paths = {source}\nio_priority = idle\n"
    )
    ran(config, "init")
    ran(config, "snapshot")
    restore = ("restore", "-s", "latest", "-p", source / "notes.txt", "-d", tmp_path)
    heavy = {"numpy", "obstore", "psutil", "pydantic", "pyfastcdc", "rich", "torch", "watchdog"}
    heavy |= {"difflib", "pickletools", "typing_extensions"}
    heavy |= {"unicodedata"}

    for command in (
        ("snapshot",),
        ("list",),
        ("show", "latest"),
        ("ls", "latest"),
        ("verify", "--all"),
        ("verify", "--all", "--checksum"),
        restore,
        ("forget", "--dry-run", "--policy", "7d"),
    ):
        assert heavy & ran(config, *command) == set(), command
    assert (tmp_path / "notes.txt").read_text() == "step 1\n"
    assert not {"json", "ciuic.codec.zstd", "ciuic.store.health"} & ran(config, "list")
    # Only a snapshot with much to read needs threads, processes, and the code for large files.
    unneeded = {"concurrent.futures", "ctypes", "ciuic.verify.frame_checks"}
    assert not unneeded & ran(config, "verify")
    checked = ran(config, "verify", "--checksum")
    assert "ciuic.verify.frame_checks" in checked
    threads = {"concurrent.futures", "logging"}
    assert not {"ctypes", "ciuic.system.workers.processes", *threads} & checked
    (tmp_path / "notes.txt").unlink()
    restored = ran(config, *restore)
    assert not {"ciuic.restore.place.large_files", "dataclasses"} & restored
    assert not {"ciuic.restore.older_snapshots", "ciuic.view.reflinks", *threads} & restored


def test_a_process_that_verifies_frames_loads_only_what_reads_them():
    loaded = loaded_after(
        "from ciuic.system.lean_imports import load_msgspec; load_msgspec();"
        " import ciuic.verify.frame_worker"
    )

    assert "ciuic.store.packs.reader" in loaded
    assert not {"ciuic.catalog", "ciuic.store.store", "ciuic.view", "typing_extensions"} & loaded


def test_a_snapshot_without_changes_loads_nothing_that_reads_encodes_or_writes_files(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights.bin").write_bytes(bytes(range(256)) * 2000)
    config = tmp_path / "ciuic.conf"
    config.write_text(f"snapshot_dir = {tmp_path / 'store'}\nsnapshot_paths = {source}\n")
    ran(config, "init")
    writes = {"ciuic.snapshot.read.content_reader", "ciuic.store.packs.pack_filler"}
    assert writes <= ran(config, "snapshot")

    loaded = ran(config, "snapshot")

    # These modules read and cut files or formats, or are for parity, the daemon or hooks.
    unused = {"ciuic.chunking", "ciuic.control", "ciuic.formats.zip_archive", "ciuic.source.file"}
    unused |= {"ciuic.formats.torch_pickle", "ciuic.store.parity.parity_writer", "ciuic.view"}
    unused |= {"ciuic.snapshot.bases.delta_base", "ciuic.snapshot.hook_process"}
    unused |= {"ciuic.snapshot.preview", "concurrent.futures", "dataclasses", "json", "logging"}
    unused |= {"difflib", "socket", "subprocess"}
    unused |= {"typing_extensions"}
    assert (writes | unused) & loaded == set()
    assert sum(name.startswith("ciuic.") for name in loaded) <= SNAPSHOT_MODULES_MAX


def test_a_command_with_an_explicit_store_loads_nothing_that_reads_configurations(tmp_path):
    store = str(tmp_path / "store")
    with_store = ["ciuic", "--store", store]
    subprocess.run([BIN / with_store[0], *with_store[1:], "init"], check=True, capture_output=True)

    loaded = loaded_by_program([*with_store, "list"])

    assert "ciuic.store.store" in loaded
    assert not {"ciuic.config.load", "ciuic.config.lines", "ciuic.config.values"} & loaded


def test_numbers_that_the_compiled_core_splits_and_joins_need_no_numpy(tmp_path, monkeypatch):
    """Importing numpy takes 80 ms of processor time."""
    monkeypatch.delenv(VARIABLE, raising=False)
    chance = random.Random(1)
    source = tmp_path / "source"
    source.mkdir()
    numbers = array("f", [chance.gauss(0, 0.02) for _ in range(200_000)])
    (source / "weights.bin").write_bytes(numbers.tobytes())
    config = tmp_path / "ciuic.conf"
    config.write_text(f"snapshot_dir = {tmp_path / 'store'}\nsnapshot_paths = {source}\n")
    ran(config, "init")

    taken = ran(config, "snapshot")
    restored = ran(config, "restore", "-s", "latest", "-p", source / "weights.bin", "-d", tmp_path)
    assert (tmp_path / "weights.bin").read_bytes() == numbers.tobytes()
    for loaded in (taken, restored):
        assert "ciuic.codec.planes" in loaded
        assert not {"numpy", "ciuic.codec.columns", "ciuic.codec.differences"} & loaded
