"""The output of commands for a first-time user and for a monitoring job."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from ciuic.cli import lists
from ciuic.ids import SnapshotId
from ciuic.store.records.manifest import encode_manifest
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.installed import Outcome, Place, run, run_here
from tests.kit.terminal import on_terminal


def shown(place: Place, columns: int, *arguments: str | Path) -> list[str]:
    return on_terminal(columns, "ciuic", "--config", place.config, *arguments).text.splitlines()


@pytest.mark.parametrize("pattern", ["", "[", "a[", "[]", "[!]", "[abc", "x[]y", "[a]["])
def test_a_pattern_that_can_match_nothing_is_wrong_usage(taken: Place, pattern: str) -> None:
    done = taken.run_here("find", pattern)

    assert (done.code, done.out) == (2, "")


@pytest.mark.parametrize("pattern", ["[[]", "[]]", "[!]]*", "[abc]*", "]"])
def test_a_pattern_with_closed_sets_is_searched_for(taken: Place, pattern: str) -> None:
    assert taken.run_here("find", pattern).code == 0


def test_ls_says_which_columns_a_narrow_terminal_leaves_out(taken: Place) -> None:
    (taken.source / "checkpoints").is_dir()
    broad = shown(taken, 200, "ls", "latest", "-R")
    narrow = shown(taken, 60, "ls", "latest", "-R")

    assert "too narrow" not in " ".join(broad)
    assert " ".join(narrow[-2:]).endswith("too narrow for MODE, OWNER; --json has all")
    assert any(" 3,000,000 " in line for line in broad)
    assert any(line.lstrip().startswith("3,000,000 ") for line in narrow), "the same number"


def test_a_long_target_of_a_symlink_costs_no_column(fresh: Place) -> None:
    (fresh.source / "link").symlink_to("far/" + "x" * 300)
    fresh.snapshot()

    lines = shown(fresh, 100, "ls", "latest", fresh.source)

    (link,) = [line for line in lines if line.startswith("l")]
    assert " link -> far/" in link
    assert link.count("…") == 1
    assert all(line[:10].count("-") or line[0] in "dl" for line in lines), "each has its mode"
    assert "too narrow" not in " ".join(lines)


def test_the_reason_of_a_policy_is_never_cut(taken: Place) -> None:
    words = taken.run_here("forget", "--dry-run", "--policy", "last:1").out.split()
    narrow = shown(taken, 60, "forget", "--dry-run", "--policy", "last:1")

    assert not [line for line in narrow if "…" in line]
    for word in ("newest", "damage", "keeps"):
        assert " ".join(narrow).count(word) >= words.count(word) > 0
    assert max(map(len, narrow)) <= 60


def test_verify_of_a_store_without_snapshots_says_so_and_fails_without_all(fresh: Place) -> None:
    done = fresh.run_here("verify")
    assert (done.code, done.out) == (1, "")
    assert "the store has no snapshot yet" in done.err
    for arguments in (["verify", "--all"], ["verify", "--all", "--checksum"]):
        done = fresh.run_here(*arguments)
        assert (done.code, done.out) == (0, "")
        assert "nothing was verified: the store has no snapshot. " in done.err
        assert "--store DIR snapshot PATH" in done.err


def test_removing_a_tag_that_is_not_there_is_said(taken: Place) -> None:
    done = taken.run_here("tag", "latest", "--remove", "nosuch", "--remove", "third")

    assert (done.code, done.out) == (0, "kept\n")
    assert "had no tag 'nosuch'" in done.err
    assert "third" not in done.err


def test_without_a_configuration_the_hints_work_without_one(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run_here("--store", store, "init").code == 0

    for arguments in (["list"], ["restore", "-s", "latest", "-p", "/x"], ["doctor"]):
        done = run_here("--store", store, *arguments)
        assert "ciuic --store DIR snapshot PATH" in done.out + done.err, arguments
    assert "snapshot'" not in done.out, "without a configuration, it needs a PATH"
    done = run("ciuic", "snapshot")
    if not Path("/etc/ciuic.conf").exists():
        assert done.code == 2
        assert "/etc/ciuric.conf" in done.err
        assert "ciuic --store DIR snapshot PATH" in done.err


def test_a_directory_inside_another_one_is_said_to_be_part_of_it(fresh: Place) -> None:
    inner = fresh.source / "checkpoints"
    done = fresh.run_here("snapshot", fresh.source, inner)

    assert done.code == 0
    assert f"{inner} is part of {fresh.source}" in done.err


def test_damage_that_parity_covers_is_no_reason_to_fall_back(tmp_path: Path) -> None:
    box = Box(tmp_path, parity=0.04)
    data = os.urandom(300_000)
    (box.source / "file").write_bytes(data)
    box.take()
    flip_content(box.store, data)

    done = box.ciuic("verify", "--checksum")

    assert done.code == 4
    assert "cannot be read" not in done.out, "it can"
    assert "nothing is lost" in done.err
    assert "--fallback" not in done.err
    assert f"ciuic --config {box.config} repair --apply" in done.err


def test_doctor_names_the_size_of_what_repairs_set_aside(tmp_path: Path) -> None:
    box = Box(tmp_path, parity=0.04)
    data = os.urandom(300_000)
    (box.source / "file").write_bytes(data)
    box.take()
    assert "quarantine" not in box.ciuic("doctor").out
    flip_content(box.store, data)
    assert box.ciuic("repair", "--apply").code == 0

    assert "quarantine/ holds 1 file that repairs replaced, " in box.ciuic("doctor").out


def test_a_failed_after_hook_is_not_blamed_on_a_path(fresh: Place) -> None:
    fresh.config.write_text(f"{fresh.config.read_text()}after = exit 9\n")
    done = fresh.run_here("snapshot")

    assert done.code == 3
    assert "\nciuic: the hook 'after' failed with exit status 9\n" in done.err


def hostile(box: Box) -> Outcome:
    """Give the newest snapshot tags, a host and a kind that ciuic would not write."""
    name = SnapshotId(box.snapshots()[0].id)
    with open_store(str(box.store)) as store:
        manifest = store.manifest(name)
    tags = ("a|b,c", "t" * 1_000_000, *[str(number) for number in range(5000)])
    changes = {"tags": tags, "kind": "k" * 1_000_000}
    summary = msgspec.structs.replace(manifest.summary, **changes)
    wrong = msgspec.structs.replace(
        manifest, summary=summary, host="h" * 1_000_000, writer="w" * 1_000_000
    )
    path = box.store / "snapshots" / f"{name}.json"
    path.chmod(0o600)
    path.write_bytes(encode_manifest(wrong))
    return Outcome(*box.ciuic("list", "--machine-readable"))


def test_a_hostile_manifest_floods_no_terminal_and_breaks_no_line(box: Box) -> None:
    (box.source / "file").write_bytes(b"x")
    box.take()
    box.take()
    lines = hostile(box).out.splitlines()

    assert [line.count("|") for line in lines] == [2, 2]
    for arguments in (["list"], ["show", "latest"], ["forget", "--dry-run", "--policy", "last:1"]):
        said = box.ciuic(*arguments)
        assert said.code == 0
        assert len(said.out + said.err) < 10_000, arguments


@pytest.mark.parametrize(
    ("columns", "total", "named", "shown", "said"),
    [
        (None, 50, 50, 50, ""),
        (None, 2000, 1000, 1000, "... and 1,000 more packs, which the report does not name\n"),
        (80, 20, 20, 20, ""),
        (80, 50, 50, 20, "... and 30 more packs; --json names them\n"),
        (80, 2000, 1000, 20, "... and 1,980 more packs; --json names the first 1,000\n"),
    ],
)
def test_a_list_that_is_cut_says_how_many_are_missing_and_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: int | None,
    total: int,
    named: int,
    shown: int,
    said: str,
) -> None:
    monkeypatch.setattr(lists, "terminal_columns", lambda *, err: columns)

    assert len(lists.shown_part(range(named))) == shown
    lists.print_rest(total, named, "pack")

    assert capsys.readouterr().out == said


def test_a_missing_package_is_installed_for_the_python_that_runs_ciuic(
    taken: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "ciuic.web.server", raising=False)

    done = taken.run_here("web")

    assert done.code == 1
    assert f"Install it: {sys.executable} -m pip install 'ciuic[web]'" in done.err


def test_every_command_in_a_message_can_be_pasted(taken: Place) -> None:
    newest = taken.ids()[0]
    for name in ("packs", "parity"):
        for path in (taken.store / name).iterdir():
            if not path.name.startswith("cs-"):
                path.write_bytes(os.urandom(path.stat().st_size))
    ways = {
        "--config": taken.config,
        "--store": taken.store,
    }
    for option, place in ways.items():
        asked = ["list", "status", "stats", "scrub", "doctor", "verify", "verify --checksum"]
        asked += ["repair", "prune", "forget nothing", f"ls {newest}", "drill", "diff latest x"]
        said = []
        for line in asked:
            done = run_here(option, place, *line.split())
            said.append(done.out + done.err)
        named = [part for text in said for part in text.split("'ciuic ")[1:]]
        assert len(named) > 20
        assert [part for part in named if not part.startswith(f"{option} {place} ")] == []
