"""Stores with features that this ciuic does not know, one of each class: every command obeys."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ciuic.cli.group import COMMANDS
from ciuic.store.records import layout
from ciuic.store.records.sealed import seal
from tests.kit.box import Box
from tests.kit.program import REPOSITORY, Outcome
from tests.kit.trees import photograph

FEATURE = "time-travel"


def add_feature(box: Box, field: str) -> None:
    """Name a feature in the header, as a later version would."""
    path = box.store / layout.HEADER
    document = json.loads(path.read_text())
    document.pop("checksum")
    path.write_bytes(seal({**document, field: [FEATURE], "checksum": ""}))


def said(outcome: Outcome) -> str:
    """Return the whole output of a command."""
    return outcome.out + outcome.err


def readers(box: Box, snapshot: str, out: Path) -> dict[str, list[str]]:
    """Return a call of each command, and of each way to call it that changes nothing."""
    file = str(box.source / "a")
    return {
        "cat": ["cat", snapshot, file],
        "checkout": ["checkout", snapshot, file, "--dry-run"],
        "compare": ["compare", snapshot, "latest"],
        "completion": ["completion", "bash"],
        "copy": ["copy", "--to", f"{out}.copy", "--init"],
        "diff": ["diff", snapshot, "latest"],
        "doctor": ["doctor"],
        "drill": ["drill", "--scratch", os.path.dirname(out)],
        "find": ["find", "a*"],
        "forget": ["forget", "--dry-run", "--policy", "last:1"],
        "init": ["init"],
        "list": ["list"],
        "log": ["log", file],
        "ls": ["ls", snapshot, file],
        "mount": ["mount", f"{out}.nowhere"],
        "note": ["note", snapshot],
        "pause": ["pause"],
        "recover": ["recover", "--dry-run"],
        "repair": ["repair"],
        "restore": ["restore", "-s", snapshot, "-p", file, "-d", str(out)],
        "resume": ["resume"],
        "rules": ["rules", "test", "--log", file],
        "run": ["run", "--", "true"],
        "runbook": ["runbook"],
        "scrub": ["scrub"],
        "show": ["show", snapshot, "--chunks"],
        "snapshot": ["snapshot", "--dry-run"],
        "stats": ["stats", "--detail"],
        "status": ["status"],
        "tag": ["tag", snapshot],
        "timeline": ["timeline"],
        "verify": ["verify", "--all", "--checksum"],
        "watch": ["watch", "--pid", "1"],
        "web": ["web", "--listen", "nowhere"],
    }


def writers(snapshot: str) -> list[list[str]]:
    """Return the calls that change a store."""
    return [
        ["forget", snapshot],
        ["forget", "--undo", snapshot],
        ["pin", snapshot],
        ["tag", snapshot, "--add", "word"],
        ["note", snapshot, "words"],
        ["snapshot"],
        ["repair", "--apply"],
        ["prune", "--dry-run"],
        ["prune"],
        ["forget", "--policy", "last:1", "--prune"],
    ]


def take_two(box: Box) -> str:
    """Take two snapshots; returns the ID of the first one."""
    (box.source / "a").write_bytes(b"a" * 5000)
    first = box.take()
    (box.source / "b").write_bytes(b"b" * 5000)
    box.take()
    return first.id


@pytest.fixture
def taken(box: Box) -> str:
    """The first of two snapshots."""
    return take_two(box)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The exit code of each call of ``readers``, except a restore, for a store without features."""
    box = Box(tmp_path_factory.mktemp("usual"))
    calls = readers(box, take_two(box), box.directory / "out")
    return {name: box.ciuic(*call).code for name, call in calls.items() if name != "restore"}


def test_every_command_is_here(box: Box, tmp_path: Path) -> None:
    named = {*readers(box, "", tmp_path), *[command[0] for command in writers("")]}

    assert named == set(COMMANDS)


def test_an_optional_feature_changes_nothing(
    box: Box, tmp_path: Path, taken: str, usual: dict[str, int]
) -> None:
    calls = readers(box, taken, tmp_path / "out")
    add_feature(box, "optional")

    assert {name: box.ciuic(*call).code for name, call in calls.items() if name in usual} == usual
    assert box.ciuic(*calls["restore"]).code == 0
    for call in writers(taken):
        outcome = box.ciuic(*call)
        assert FEATURE not in said(outcome)
        assert outcome.code == 0, (call, said(outcome))


@pytest.mark.parametrize("has_index", [True, False])
def test_a_feature_that_writers_must_know_leaves_a_store_that_can_be_read(
    box: Box, tmp_path: Path, taken: str, usual: dict[str, int], has_index: bool
) -> None:
    calls = readers(box, taken, tmp_path / "out")
    add_feature(box, "required_to_write")
    if not has_index:
        (box.store / layout.CATALOG).unlink()
    whole = photograph(box.store)

    found = {name: box.ciuic(*call).code for name, call in calls.items() if name in usual}

    # 'doctor' names the feature as a problem, and 'repair' misses the chunk index.
    named = {"doctor"} if has_index else {"doctor", "repair"}
    assert {name: code for name, code in found.items() if name not in named} == {
        name: code for name, code in usual.items() if name not in named
    }
    assert FEATURE in said(box.ciuic("doctor"))
    assert box.ciuic(*calls["restore"]).code == 0
    assert (tmp_path / "out" / "a").read_bytes() == b"a" * 5000
    for call in writers(taken):
        outcome = box.ciuic(*call)
        assert outcome.code == 1, (call, said(outcome))
        assert f"can only read the store: it has the feature '{FEATURE}'" in outcome.err
        assert "newer version" in outcome.err
        assert "Traceback" not in outcome.err
    assert photograph(box.store) == whole


def test_a_feature_that_is_required_stops_every_command(
    box: Box, tmp_path: Path, taken: str
) -> None:
    calls = readers(box, taken, tmp_path / "out")
    add_feature(box, "required")
    whole = photograph(box.store)

    for call in [*calls.values(), *writers(taken)]:
        outcome = box.ciuic(*call)
        # These do not open the store.
        if call[0] in {"completion", "pause", "resume", "rules", "watch"}:
            continue
        assert FEATURE in said(outcome), call
        assert "Traceback" not in outcome.err
        # 'doctor' has named a problem, 'status' reports the daemon first, and 'run' runs.
        assert outcome.code == (call[0] != "run"), (call, said(outcome))
    assert photograph(box.store) == whole


def test_a_header_of_a_newer_ciuic_is_not_put_back_by_a_repair(box: Box, taken: str) -> None:
    add_feature(box, "required_to_write")
    copy = box.store / layout.PARITY / layout.HEADER
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes((box.store / layout.HEADER).read_bytes())
    os.truncate(box.store / layout.HEADER, 100)

    outcome = box.ciuic("repair", "--apply")

    assert outcome.code == 1
    assert FEATURE in outcome.err
    assert (box.store / layout.HEADER).stat().st_size == 100


def test_the_daemon_writes_nothing_into_a_store_that_it_can_only_read(box: Box, taken: str) -> None:
    add_feature(box, "required_to_write")
    whole = photograph(box.store / layout.PACKS), photograph(box.store / layout.SNAPSHOTS)

    command = [sys.executable, "-m", "ciuicd", "--config", str(box.config), "--once"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 1
    assert FEATURE in done.stderr
    assert "Traceback" not in done.stderr
    assert (photograph(box.store / layout.PACKS), photograph(box.store / layout.SNAPSHOTS)) == whole


def test_a_manifest_that_needs_a_feature_which_the_header_lacks_is_refused_by_name(
    box: Box, taken: str
) -> None:
    path = box.store / layout.SNAPSHOTS / f"{taken}.json"
    document = json.loads(path.read_text())
    document.pop("checksum")
    path.write_bytes(seal({**document, "required": [FEATURE], "checksum": ""}))

    shown = box.ciuic("show", taken)
    pruned = box.ciuic("prune")
    repaired = box.ciuic("repair", "--apply", "--json")

    named = f"needs the feature '{FEATURE}', which the store's header does not name"
    assert shown.code == 1
    assert named in shown.err
    assert pruned.code == 1
    assert named in pruned.err
    assert [one["path"] for one in repaired.document["unread"]] == [f"snapshots/{taken}.json"]
    assert path.exists()


def test_names_reserved_for_encryption_disturb_no_command(
    box: Box, tmp_path: Path, taken: str
) -> None:
    """A file in ``keys/`` and a field ``sealed`` mean nothing to this version."""
    keys = box.store / "keys"
    keys.mkdir(mode=0o700)
    (keys / f"{'ab' * 16}.json").write_text("of a later version")
    path = box.store / layout.SNAPSHOTS / f"{taken}.json"
    document = json.loads(path.read_text())
    document.pop("checksum")
    path.write_bytes(seal({**document, "sealed": "AAAA", "checksum": ""}))

    for call in [*readers(box, taken, tmp_path / "out").values(), ["snapshot"], ["prune"]]:
        outcome = box.ciuic(*call)
        # "mount" and "web" are called with a place that does not exist, and no daemon runs.
        named = {"doctor", "mount", "pause", "repair", "resume", "status", "watch", "web"}
        assert outcome.code == 0 or call[0] in named, said(outcome)
    assert box.ciuic("repair", "--apply").code == 0
    assert [one.name for one in keys.iterdir()] == [f"{'ab' * 16}.json"]


def test_an_encrypted_store_is_refused_by_name(box: Box, taken: str) -> None:
    path = box.store / layout.HEADER
    document = json.loads(path.read_text())
    document.pop("checksum")
    document["chunking"]["keyed"] = True
    path.write_bytes(seal({**document, "required": ["encrypted"], "checksum": ""}))

    for command in (["list"], ["show", taken], ["snapshot"]):
        outcome = box.ciuic(*command)
        assert outcome.code == 1
        assert "the feature 'encrypted'" in outcome.err
