"""The tools: how each makes a store, takes a snapshot, restores and verifies by default.

Guarantees: every store and its caches are new, in the work directory, so that no run profits from
an earlier one. All settings are the defaults of a first-time user, except these:

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
    """What the rows need from a tool."""

    name: str
    home: Path
    store: Path

    def fresh(self, sources: Sequence[Path]) -> None:
        """Delete the old store and caches; make an empty store for `sources`."""

    def snapshot(self) -> Command:
        """Return the command for one snapshot of all sources."""

    def snapshots(self) -> list[str]:
        """Return the names of the snapshots in the store, the oldest first."""

    def restore(self, paths: Sequence[Path], target: Path, snapshot: str = "latest") -> Command:
        """Return the command that restores `paths` of a snapshot into the empty `target`."""

    def restored(self, path: Path, target: Path) -> Path:
        """Return where `restore` puts `path`."""

    def roll_back(self, path: Path) -> Command:
        """Return the command that restores `path` from the newest snapshot in place."""

    def verify(self) -> Command:
        """Return the command that reads and checks the whole store."""

    def version(self) -> str:
        """Return name and version, for the report."""


class Ciuic:
    """ciuic with a configuration of two lines: the sources and the store.

    Args:
        work: The work directory.
        executable: The ciuic to measure.
        settings: Further lines of the configuration.
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
    """restic with its cache; with `compression`, a repository of version 2, which can compress."""

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
        ordered = sorted(found, key=lambda snapshot: str(snapshot["time"]))
        return [snapshot["id"] for snapshot in ordered]

    def restore(self, paths: Sequence[Path], target: Path, snapshot: str = "latest") -> Command:
        """`restic restore ID`, with `--include` for a part of it."""
        chosen = (
            [] if list(paths) == list(self._sources) else [f"--include={path}" for path in paths]
        )
        return self.command("restore", snapshot, "--target", str(target), *chosen)

    def restored(self, path: Path, target: Path) -> Path:
        """The whole path, below the target."""
        return target / path.relative_to("/")

    def roll_back(self, path: Path) -> Command:
        """`restic restore latest --target /`, which overwrites existing files."""
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
        self.home = work / f"{self.name}-{compression or 'default'}"
        self.store = self.home / "store"
        self.executable = executable
        self._sources: Sequence[Path] = ()
        self._count = 0
        self._compression = compression

    def fresh(self, sources: Sequence[Path]) -> None:
        """Make an empty store."""
        _empty(self.home)
        self._sources = sources
        self._count = 0
        run(self.created())

    def created(self) -> Command:
        """`borg init --encryption none`."""
        return self.command("init", "--encryption", "none", str(self.store))

    def snapshot(self) -> Command:
        """`borg create STORE::NAME SOURCE...`."""
        self._count += 1
        level = ["--compression", self._compression] if self._compression else []
        name = self.archive(str(self._count))
        return self.command("create", *level, *name, *map(str, self._sources))

    def snapshots(self) -> list[str]:
        """Their numbers."""
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
        return self.command("extract", *self.archive(name), *chosen, directory=target)

    def restored(self, path: Path, target: Path) -> Path:
        """The whole path, below the target."""
        return target / path.relative_to("/")

    def roll_back(self, path: Path) -> Command:
        """`borg extract`, run in `/`: it replaces existing files."""
        return self.restore([path], Path("/"))

    def verify(self) -> Command:
        """`borg check --verify-data`."""
        return self.command("check", "--verify-data", str(self.store))

    def listed(self) -> Command:
        """`borg list`."""
        return self.command("list", str(self.store))

    def deleted(self, names: Sequence[str]) -> list[Command]:
        """`borg delete NAME...` and `borg compact`."""
        store = str(self.store)
        return [self.command("delete", store, *names), self.command("compact", store)]

    def archive(self, name: str) -> list[str]:
        """The arguments that name a snapshot."""
        return [f"{self.store}::{name}"]

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


class Borg2(Borg):
    """borg 2, which is not released: `scripts/install-peers` installs the newest that builds.

    Its repository is an option instead of a part of an archive's name.
    """

    name = "borg2"

    def created(self) -> Command:
        """`borg repo-create --encryption none`."""
        return self.command("repo-create", "--encryption", "none")

    def verify(self) -> Command:
        """`borg check --verify-data`."""
        return self.command("check", "--verify-data")

    def listed(self) -> Command:
        """`borg repo-list`."""
        return self.command("repo-list")

    def deleted(self, names: Sequence[str]) -> list[Command]:
        """`borg delete NAME` for each, and `borg compact`."""
        return [*(self.command("delete", name) for name in names), self.command("compact")]

    def archive(self, name: str) -> list[str]:
        """Its name alone."""
        return [name]

    def command(self, *arguments: str, directory: Path | None = None) -> Command:
        """Any borg command on this repository."""
        return super().command("--repo", str(self.store), *arguments, directory=directory)


class Copy:
    """The limit: `cp -a` and a sync of the file system. It can only snapshot and restore."""

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
        """There is only the last one."""
        return ["latest"]

    def restore(self, paths: Sequence[Path], target: Path, snapshot: str = "latest") -> Command:  # noqa: ARG002
        """`cp -a` the other way, and `sync -f`."""
        target.mkdir(parents=True, exist_ok=True)
        return _copy([str(self._copied(path)) for path in paths], target)

    def restored(self, path: Path, target: Path) -> Path:
        """The last component of the path, in the target."""
        return target / path.name

    def roll_back(self, path: Path) -> Command:
        """`cp -a` over the existing files."""
        return self.restore([path], path.parent)

    def verify(self) -> Command:
        """Not possible: a copy has no checksums."""
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
    """Return the ciuic beside the running interpreter, or the first one on PATH."""
    beside = Path(sys.executable).with_name("ciuic")
    found = shutil.which("ciuic")
    return beside if beside.exists() else Path(found) if found else None


def compile_program(executable: Path) -> None:
    """Compile the program's bytecode, as pip does when it installs a package.

    A checkout may have no bytecode, or bytecode of older source. With PYTHONDONTWRITEBYTECODE in
    the environment, each run would then compile it again.
    """
    found = "import ciuic, compileall; compileall.compile_dir(ciuic.__path__[0], quiet=1)"
    run(Command((str(executable.with_name("python")), "-P", "-c", found)))


def _copy(sources: list[str], target: Path) -> Command:
    script = 'target=$1; shift; cp -a -- "$@" "$target" && sync -f "$target"'
    return Command(("sh", "-c", script, "sh", str(target), *sources))


def _empty(directory: Path) -> None:
    # The homes of the tools and the graveyard are in the work directory.
    put_away(directory, directory.parent / GRAVEYARD)
    directory.mkdir(parents=True)
