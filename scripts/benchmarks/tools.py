"""The contestants: how each makes a store, takes a snapshot, restores and verifies by default.

Guarantees: every store is made anew in the work directory, caches included, so that nothing an
earlier run learnt helps a later one; and no setting is used that a first-time user would not have,
but for the ones named here.

restic always encrypts; its password comes from the environment and its cache is on. borg gets
`--encryption none`, its fastest setting. ciuic runs without its daemon.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.measure import GRAVEYARD, Command, put_away, run


class Tool(Protocol):
    """What the rows ask of a contestant."""

    name: str
    home: Path
    store: Path

    def fresh(self, sources: Sequence[Path]) -> None:
        """Throws the old store and caches away, makes an empty store that will hold `sources`."""

    def snapshot(self) -> Command:
        """Takes one snapshot of all sources."""

    def snapshots(self) -> list[str]:
        """What the snapshots in the store are called, the oldest first."""

    def restore(self, paths: Sequence[Path], target: Path, snapshot: str = "latest") -> Command:
        """Puts `paths` of a snapshot below the empty directory `target`."""

    def restored(self, path: Path, target: Path) -> Path:
        """Where `restore` has put `path`."""

    def roll_back(self, path: Path) -> Command:
        """Makes `path` what it was in the newest snapshot, in its place, whatever is there now."""

    def verify(self) -> Command:
        """Reads and checks everything in the store."""

    def version(self) -> str:
        """Name and version, for the report."""


class Ciuic:
    """ciuic with a configuration file of two lines: what to snapshot and where the store is.

    `settings` are further lines, for rows about a key.
    """

    name = "ciuic"

    def __init__(self, work: Path, executable: Path, *settings: str) -> None:
        self.home = work / "-".join(["ciuic", *settings]).replace(" ", "")
        self.store = self.home / "store"
        self.executable = executable
        self.configuration = self.home / "ciuic.conf"
        self._settings = settings

    def fresh(self, sources: Sequence[Path]) -> None:
        """Writes the configuration and runs `ciuic init`."""
        _empty(self.home)
        paths = ", ".join(map(str, sources))
        lines = [f"snapshot_paths = {paths}", f"snapshot_dir = {self.store}", *self._settings]
        self.configuration.write_text("".join(f"{line}\n" for line in lines))
        run(self.command("init"))

    def command(self, *arguments: str) -> Command:
        """Any ciuic command on this store."""
        return Command((str(self.executable), "--config", str(self.configuration), *arguments))

    def snapshot(self) -> Command:
        """`ciuic snapshot`."""
        return self.command("snapshot")

    def snapshots(self) -> list[str]:
        """The IDs that `ciuic list` names."""
        listed = run(self.command("list", "--machine-readable")).output.splitlines()
        return [line.split("|")[0] for line in listed][::-1]

    def restore(self, paths: Sequence[Path], target: Path, snapshot: str = "latest") -> Command:
        """`ciuic restore -s ID -p PATH... -d TARGET`."""
        chosen = [part for path in paths for part in ("-p", str(path))]
        return self.command("restore", "-s", snapshot, *chosen, "-d", str(target))

    def restored(self, path: Path, target: Path) -> Path:
        """The last component of the path, in the target."""
        return target / path.name

    def roll_back(self, path: Path) -> Command:
        """`ciuic restore -s latest -p PATH --overwrite`."""
        return self.command("restore", "-s", "latest", "-p", str(path), "--overwrite")

    def verify(self) -> Command:
        """`ciuic verify --all --checksum`."""
        return self.command("verify", "--all", "--checksum")

    def version(self) -> str:
        """As `ciuic --version` says it."""
        return run(Command((str(self.executable), "--version"))).output.strip()


class Restic:
    """restic with its cache on.

    With `compression`, the repository is of version 2, the first that can compress.
    """

    name = "restic"

    def __init__(self, work: Path, compression: str | None = None) -> None:
        self.home = work / f"restic-{compression or 'default'}"
        self.store = self.home / "store"
        self._sources: Sequence[Path] = ()
        self._compression = compression

    def fresh(self, sources: Sequence[Path]) -> None:
        """Runs `restic init`."""
        _empty(self.home)
        self._sources = sources
        version = ["--repository-version", "2"] if self._compression else []
        run(self.command("init", *version))

    def snapshot(self) -> Command:
        """`restic backup SOURCE...`."""
        level = ["--compression", self._compression] if self._compression else []
        return self.command("backup", "--quiet", *level, *map(str, self._sources))

    def snapshots(self) -> list[str]:
        """The IDs that `restic snapshots` names, by time."""
        found = json.loads(run(self.command("snapshots", "--json")).output)
        return [one["id"] for one in sorted(found, key=lambda one: str(one["time"]))]

    def restore(self, paths: Sequence[Path], target: Path, snapshot: str = "latest") -> Command:
        """`restic restore ID`, with `--include` when it is not everything."""
        chosen = (
            [] if list(paths) == list(self._sources) else [f"--include={path}" for path in paths]
        )
        return self.command("restore", snapshot, "--target", str(target), *chosen)

    def restored(self, path: Path, target: Path) -> Path:
        """The whole path, below the target."""
        return target / path.relative_to("/")

    def roll_back(self, path: Path) -> Command:
        """`restic restore latest --target /`, which writes over what is there."""
        return self.restore([path], Path("/"))

    def verify(self) -> Command:
        """`restic check --read-data`."""
        return self.command("check", "--read-data")

    def version(self) -> str:
        """As `restic version` says it."""
        return run(Command(("restic", "version"))).output.split(" compiled")[0]

    def command(self, *arguments: str) -> Command:
        """Any restic command on this repository."""
        environment = {"RESTIC_PASSWORD": "benchmark", "RESTIC_CACHE_DIR": str(self.home / "cache")}
        return Command(("restic", "--repo", str(self.store), *arguments), environment)


class Borg:
    """borg 1.4 without encryption; lz4 is its default compression."""

    name = "borg"

    def __init__(self, work: Path, executable: Path, compression: str | None = None) -> None:
        self.home = work / f"borg-{compression or 'default'}"
        self.store = self.home / "store"
        self.executable = executable
        self._sources: Sequence[Path] = ()
        self._count = 0
        self._compression = compression

    def fresh(self, sources: Sequence[Path]) -> None:
        """Runs `borg init --encryption none`."""
        _empty(self.home)
        self._sources = sources
        self._count = 0
        run(self.command("init", "--encryption", "none", str(self.store)))

    def snapshot(self) -> Command:
        """`borg create STORE::NAME SOURCE...`."""
        self._count += 1
        level = ["--compression", self._compression] if self._compression else []
        name = f"{self.store}::{self._count}"
        return self.command("create", *level, name, *map(str, self._sources))

    def snapshots(self) -> list[str]:
        """They are called by their number."""
        return [str(number) for number in range(1, self._count + 1)]

    def restore(self, paths: Sequence[Path], target: Path, snapshot: str = "latest") -> Command:
        """`borg extract STORE::NAME [PATH...]`, run inside the target."""
        chosen = (
            []
            if list(paths) == list(self._sources)
            else [str(path.relative_to("/")) for path in paths]
        )
        target.mkdir(parents=True, exist_ok=True)
        name = str(self._count) if snapshot == "latest" else snapshot
        return self.command("extract", f"{self.store}::{name}", *chosen, directory=target)

    def restored(self, path: Path, target: Path) -> Path:
        """The whole path, below the target."""
        return target / path.relative_to("/")

    def roll_back(self, path: Path) -> Command:
        """`borg extract`, run in `/`: it replaces what is there."""
        return self.restore([path], Path("/"))

    def verify(self) -> Command:
        """`borg check --verify-data`."""
        return self.command("check", "--verify-data", str(self.store))

    def version(self) -> str:
        """As `borg --version` says it."""
        return run(Command((str(self.executable), "--version"))).output.strip()

    def command(self, *arguments: str, directory: Path | None = None) -> Command:
        """Any borg command."""
        environment = {
            "BORG_BASE_DIR": str(self.home / "base"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        return Command((str(self.executable), *arguments), environment, directory)


class Copy:
    """The limit: `cp -a` and a sync of the file system. It can snapshot and restore, no more."""

    name = "cp"

    def __init__(self, work: Path) -> None:
        self.home = work / "cp"
        self.store = self.home / "store"
        self._sources: Sequence[Path] = ()

    def fresh(self, sources: Sequence[Path]) -> None:
        """Makes an empty directory."""
        _empty(self.home)
        self.store.mkdir()
        self._sources = sources

    def snapshot(self) -> Command:
        """`cp -a SOURCE... STORE` and `sync -f`."""
        return _copy([*map(str, self._sources)], self.store)

    def snapshots(self) -> list[str]:
        """There is one, the last."""
        return ["latest"]

    def restore(self, paths: Sequence[Path], target: Path, snapshot: str = "latest") -> Command:  # noqa: ARG002
        """`cp -a` the other way, and `sync -f`."""
        target.mkdir(parents=True, exist_ok=True)
        return _copy([str(self._copied(path)) for path in paths], target)

    def restored(self, path: Path, target: Path) -> Path:
        """The last component of the path, in the target."""
        return target / path.name

    def roll_back(self, path: Path) -> Command:
        """`cp -a` onto what is there."""
        return self.restore([path], path.parent)

    def verify(self) -> Command:
        """There is nothing to check a copy against."""
        raise NotImplementedError

    def version(self) -> str:
        """As `cp --version` says it."""
        return run(Command(("cp", "--version"))).output.splitlines()[0]

    def _copied(self, path: Path) -> Path:
        for source in self._sources:
            if path.is_relative_to(source):
                return self.store / source.name / path.relative_to(source)
        return self.store / path.name


def find_ciuic() -> Path | None:
    """The ciuic beside the running interpreter, else the one on the search path."""
    beside = Path(sys.executable).with_name("ciuic")
    found = shutil.which("ciuic")
    return beside if beside.exists() else Path(found) if found else None


def compile_program(executable: Path) -> None:
    """Leave the program's bytecode beside its source, as pip does when it installs it.

    A checkout may have none, or that of older source, and with PYTHONDONTWRITEBYTECODE in the
    environment that stays so: then each of its runs would begin with compiling it. The peers are
    installed.
    """
    found = "import ciuic, compileall; compileall.compile_dir(ciuic.__path__[0], quiet=1)"
    run(Command((str(executable.with_name("python")), "-P", "-c", found)))


def _copy(sources: list[str], target: Path) -> Command:
    script = 'target=$1; shift; cp -a -- "$@" "$target" && sync -f "$target"'
    return Command(("sh", "-c", script, "sh", str(target), *sources))


def _empty(directory: Path) -> None:
    # The home of a tool lies in the work directory, and so does the graveyard.
    put_away(directory, directory.parent / GRAVEYARD)
    directory.mkdir(parents=True)
