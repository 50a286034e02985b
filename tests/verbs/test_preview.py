"""``snapshot --dry-run``: what would be captured; nothing is changed."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from ciuic.model import ExcludeRules
from ciuic.snapshot.plan import SnapshotPlan
from ciuic.snapshot.preview import NEW, Preview
from ciuic.store.store import open_store
from tests.kit.box import Box, settle
from tests.kit.filesystems import tmpfs
from tests.kit.terminal import on_terminal
from tests.kit.trees import differences, photograph

MIB = 1024 * 1024


def write(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def preview(box: Box, *options: str | Path, code: int = 0, user: int | None = None) -> Any:
    outcome = box.ciuic("snapshot", "--dry-run", "--json", *options, user=user)
    assert outcome.code == code, outcome.err
    return outcome.document


def contents(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file of a store, its bytes and its times."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (data, status.st_mtime_ns, status.st_ino)
    return found


def changes(document: Any, box: Box) -> dict[str, str]:
    top = f"{box.source}/"
    return {one["path"].removeprefix(top): one["change"] for one in document["changes"]}


def test_a_preview_names_new_changed_unchanged_and_removed_files(box: Box) -> None:
    write(box.source / "same", bytes(3 * MIB))
    write(box.source / "changes", b"1")
    write(box.source / "goes")
    write(box.source / "d" / "goes too", b"12345")
    write(box.source / "d" / "e" / "and this")
    settle()
    assert box.ciuic("snapshot").code == 0
    newest = box.snapshots()[0]
    write(box.source / "changes", b"22")
    write(box.source / "fresh", b"333")
    (box.source / "goes").unlink()
    shutil.rmtree(box.source / "d")
    found = preview(box)
    assert changes(found, box) == {
        "changes": "changed",
        "fresh": "new",
        "goes": "gone",
        "d/goes too": "gone",
        "d/e/and this": "gone",
    }
    counted = {what: found[f"{what}_files"] for what in ("new", "changed", "unchanged", "gone")}
    assert counted == {"new": 1, "changed": 1, "unchanged": 1, "gone": 3}
    assert (found["new_file_bytes"], found["changed_file_bytes"]) == (3, 2)
    assert (found["unchanged_file_bytes"], found["gone_file_bytes"]) == (3 * MIB, 7)
    assert (found["id"], found["kind"], found["parent"]) == (None, "delta", newest.id)
    assert (found["files"], found["logical_bytes"]) == (3, 3 * MIB + 5)
    assert found["read_bytes"] == 5


def test_the_snapshot_then_does_what_the_preview_says(box: Box) -> None:
    for number in range(40):
        write(box.source / f"d{number % 7}" / f"f{number}", os.urandom(number * 1000))
    os.link(box.source / "d0" / "f0", box.source / "again")
    os.link(box.source / "d1" / "f1", box.source / "and again")
    os.link(box.source / "d1" / "f1", box.source / "thrice")
    (box.source / "link").symlink_to("again")
    rules = ["--exclude", "f3*", "--exclude-larger-than", "20KB"]
    for _ in range(2):
        foretold = preview(box, *rules)
        taken = box.ciuic("snapshot", "--json", *rules).document
        for key in ("kind", "parent", "files", "logical_bytes", "excluded_count", "trouble"):
            assert foretold[key] == taken[key], key
        assert foretold["read_bytes"] >= taken["read_bytes"]
        write(box.source / "d2" / "f2", b"changed")


def test_a_base_snapshot_would_read_everything(box: Box) -> None:
    write(box.source / "file", bytes(1000))
    settle()
    assert preview(box)["kind"] == "base", "it would be the first"
    assert box.ciuic("snapshot").code == 0
    found = preview(box, "--base")
    assert (found["kind"], found["read_bytes"], found["unchanged_files"]) == ("base", 1000, 1)


def test_an_excluded_path_is_named_with_its_rule(box: Box) -> None:
    write(box.source / "a.tmp")
    write(box.source / "huge", bytes(5000))
    write(box.source / "pip" / "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55")
    write(box.source / "pip" / "wheel")
    write(box.source / "run" / ".nobackup")
    write(box.source / "run" / "scratch")
    options = ["--exclude", "*.pyc", "--exclude", "*.tmp", "--exclude-larger-than", "4096"]
    found = preview(box, *options, "--exclude-caches", "--exclude-if-present", ".nobackup")
    top = f"{box.source}/"
    assert {one["path"].removeprefix(top): one["why"] for one in found["excluded"]} == {
        "a.tmp": "matches *.tmp",
        "huge": "larger than the limit",
        "pip/wheel": "the directory is marked by CACHEDIR.TAG",
        "run/scratch": "the directory is marked by .nobackup",
    }
    assert (found["excluded_count"], found["files"]) == (4, 2)
    shown = box.ciuic("snapshot", "--dry-run", *options)
    assert f"left out: {box.source}/a.tmp: matches *.tmp" in shown.out
    assert "left out: 2" in shown.out


def test_neither_the_store_nor_the_source_is_touched(box: Box, tmp_path: Path) -> None:
    write(box.source / "file", os.urandom(2 * MIB))
    write(box.source / "small")
    box.take()
    write(box.source / "small", b"changed")
    before, sources = contents(box.store), photograph(box.source)
    status = (box.source / "small").stat()
    os.utime(box.source / "small", ns=(10**9, status.st_mtime_ns))
    flag = tmp_path / "ran"
    with box.config.open("a") as file:
        file.write(f"before = touch {flag}\nafter = touch {flag}\n")
    preview(box)
    assert box.ciuic("snapshot", "--dry-run").code == 0
    assert (box.source / "small").stat().st_atime == 1
    assert contents(box.store) == before
    assert differences(sources, photograph(box.source)) == []
    assert not flag.exists(), "a hook is no part of it"
    assert len(box.snapshots()) == 1


def test_a_preview_holds_no_lock_and_waits_for_none(box: Box) -> None:
    write(box.source / "file")
    box.take()
    with open_store(str(box.store), write=True):
        assert preview(box)["files"] == 1


@pytest.mark.root
def test_a_store_that_can_only_be_read_is_enough(tmp_path: Path) -> None:
    with tmpfs(tmp_path, size_mib=64) as place:
        box = Box(place)
        write(box.source / "file")
        box.take()
        write(box.source / "new")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        found = preview(box)
        assert (found["files"], found["new_files"]) == (2, 1)


@pytest.mark.root
def test_a_preview_names_unreadable_files(public_box: Box) -> None:
    box = public_box
    for path in (box.source, box.store):
        os.chown(path, 65534, 65534)
    for path in box.store.rglob("*"):
        os.chown(path, 65534, 65534)
    write(box.source / "secret").chmod(0)
    os.link(box.source / "secret", box.source / "zzz other name")
    write(box.source / "closed" / "file")
    (box.source / "closed").chmod(0)
    found = preview(box, code=3, user=65534)
    assert {os.path.basename(one["path"]) for one in found["trouble"]} == {"secret", "closed"}
    assert {one["what"] for one in found["trouble"]} == {"could not be read: Permission denied"}


def test_a_path_that_is_missing_or_wrong_is_refused_as_without_it(box: Box) -> None:
    for options in ([box.source / "none"], ["--exclude", "[5-1]"], [box.store]):
        assert box.ciuic("snapshot", "--dry-run", *options).code == 2


def test_a_pipe_and_json_name_every_path_and_a_terminal_the_first_ones(box: Box) -> None:
    for number in range(1100):
        write(box.source / f"{number}")
        write(box.source / f"{number}.tmp")
    box.configure(exclude="*.tmp")
    found = preview(box)
    assert (len(found["changes"]), found["new_files"]) == (1100, 1100)
    assert (len(found["excluded"]), found["excluded_count"]) == (1100, 1100)
    piped = box.ciuic("snapshot", "--dry-run").out.splitlines()
    assert len([line for line in piped if line.startswith("+ ")]) == 1100
    assert len([line for line in piped if line.startswith("left out: /")]) == 1100
    assert not [line for line in piped if " more " in line]
    shown = on_terminal(80, "ciuic", "--config", box.config, "snapshot", "--dry-run").text
    assert "... and 1,080 more changes; --json names them" in shown
    assert "... and 1,080 more excluded paths; --json names them" in shown
    assert len(shown.splitlines()) < 60


def test_a_preview_keeps_a_limited_number_of_names() -> None:
    found = Preview(cast("SnapshotPlan", None))
    for number in range(100_001):
        found.note(b"/%d" % number, NEW, 1)
        found.add_warning(b"/%d" % number, "unreadable")
    assert (len(found.changes), found.counts[NEW]) == (100_000, 100_001)
    assert (len(found.warnings), found.warning_count) == (100_000, 100_001)


def test_a_damaged_store_costs_only_the_comparison(box: Box) -> None:
    write(box.source / "file")
    box.take(exclude=ExcludeRules())
    for pack in (box.store / "packs").rglob("*"):
        if pack.is_file():
            pack.write_bytes(bytes(pack.stat().st_size))
    found = preview(box)
    assert found["files"] == 1
