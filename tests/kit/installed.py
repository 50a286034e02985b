"""The installed entry points, found on PATH and run as a user's shell or script runs them.

``run`` starts a process. ``run_here`` calls the entry point's function in this process, with
streams as strict as those of a process: for tables of cases where only the output matters.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from ciuic.cli import main, taking
from tests.kit import program

BIN = Path(sys.executable).parent
TIMEOUT_S = 60


@dataclass(frozen=True)
class Outcome:
    """The exit code and the two streams of a command, undecodable bytes as surrogates."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)

    def said(self) -> str:
        """All fields, for the message of an assertion."""
        return f"exit code {self.code}\nstdout: {self.out}\nstderr: {self.err}"


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment with ciuic on PATH, and without the caller's configuration."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    path = os.pathsep.join((str(BIN), os.environ.get("PATH", os.defpath)))
    return {**kept, "PATH": path, "TERM": "xterm-256color", **(more or {})}


def run(
    *command: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command to its end."""
    done = subprocess.run(
        [os.fsencode(part) for part in command],
        cwd=cwd,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Outcome(done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr))


def run_here(*arguments: str | Path) -> Outcome:
    """Run ``ciuic ARGUMENTS`` in this process, which keeps its priority for the next tests."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    with (
        mock.patch.object(sys, "argv", ["ciuic", *map(os.fspath, arguments)]),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        mock.patch.dict(os.environ, environment(), clear=True),
        mock.patch.object(taking, "lower_priority", lambda _: None),
    ):
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(os.fsdecode(stream.buffer.getvalue()))  # type: ignore[attr-defined]
    assert isinstance(code, int)
    return Outcome(code, texts[0], texts[1])


class Place:
    """A source tree, a store and a configuration that names both."""

    def __init__(self, directory: Path, *, source: Path | None = None) -> None:
        self.directory = directory
        self.source = source or directory / "source"
        self.store = directory / "store"
        self.config = directory / "ciuic.conf"
        self.source.mkdir(exist_ok=True)
        self.configure()

    def configure(self, text: str | None = None) -> None:
        """Write the configuration: ``text``, or the keys that every test needs.

        It sets io_priority: a snapshot in this process would otherwise lower the priority of all
        later tests.
        """
        default = f"snapshot_paths = {self.source}\nsnapshot_dir = {self.store}\n"
        default += "io_priority = none\n"
        self.config.write_bytes(os.fsencode(default if text is None else text))

    def run(self, *arguments: str | Path, user: int | None = None, **how: Any) -> Outcome:
        """Run ``ciuic --config ... ARGUMENTS``; with the rights of ``user`` if that is given."""
        if user is not None:
            return Outcome(*program.ciuic("--config", self.config, *arguments, user=user))
        return run("ciuic", "--config", self.config, *arguments, **how)

    def run_here(self, *arguments: str | Path) -> Outcome:
        """Run it in this process."""
        return run_here("--config", self.config, *arguments)

    def snapshot(self, *arguments: str) -> str:
        """Take a snapshot that must succeed; return its ID."""
        done = self.run_here("snapshot", *arguments)
        assert done.code == 0, done.said()
        return done.out.strip()

    def ids(self) -> list[str]:
        """Return the listed snapshots, newest first."""
        lines = self.run_here("list", "--machine-readable").out.splitlines()
        return [line.split("|")[0] for line in lines]


def contents(top: Path) -> dict[str, tuple[object, ...]]:
    """Return all that a restore must restore of a tree, by path, with the times of directories."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [top, *sorted(top.rglob("*"))]:
        status = path.lstat()
        what = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
        if path.is_symlink():
            found[str(path)] = (*what, os.readlink(path))
        elif path.is_dir():
            found[str(path)] = what
        else:
            found[str(path)] = (*what, path.read_bytes())
    return found
