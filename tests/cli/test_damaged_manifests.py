"""No command leaves out a snapshot silently because its manifest is damaged."""

import pytest

from ciuic.store.store import open_store
from ciuic.system.clock import rfc3339
from tests.cli.test_broken_stores import lose_manifest
from tests.kit.installed import Place

HOWS = ["gone", "cut", "cut and without a catalog"]


def taken_text(place: Place, name: str) -> str:
    """The time of a snapshot, to the microsecond."""
    with open_store(str(place.store)) as store:
        return rfc3339(store.manifest(name).summary.taken_ns)


@pytest.mark.parametrize("how", HOWS)
def test_commands_over_all_snapshots_name_an_unreadable_one(taken, how):
    newest, middle, oldest = taken.ids()
    lose_manifest(taken, middle, how)

    for command in (
        ["list"],
        ["list", "--tag", "first"],
        ["find", "train.log"],
        ["find", "no such name"],
        ["stats"],
        ["stats", "--detail"],
        ["status"],
        ["forget", "--dry-run", "--policy", "last:1"],
        ["forget", "--dry-run", oldest],
        ["verify", "--hot", "--all"],
        ["doctor"],
    ):
        said = taken.run_here(*command)
        assert middle in said.err + (said.out if command == ["doctor"] else ""), said.said()
        assert said.code == (1 if command == ["doctor"] else 4), (command, said.said())
        assert newest not in said.err, said.said()


def test_documents_have_what_was_left_out(taken):
    middle = taken.ids()[1]

    for command in (
        ["stats"],
        ["status"],
        ["forget", "--dry-run", "--policy", "last:1"],
        ["verify", "--hot", "--all"],
    ):
        assert taken.run_here(*command, "--json").document["damaged_snapshots"] == []
    lose_manifest(taken, middle, "cut")
    for command in (
        ["stats"],
        ["status"],
        ["forget", "--dry-run", "--policy", "last:1"],
        ["verify", "--hot", "--all"],
    ):
        done = taken.run_here(*command, "--json")
        [one] = done.document["damaged_snapshots"]
        assert one["id"] == middle
        assert one["what"]
        assert done.code == 4
    found = taken.run_here("find", "train.log", "--json")
    assert {one["snapshot"] for one in found.document} == {taken.ids()[0], taken.ids()[-1]}
    assert found.code == 4


def test_a_forget_that_is_done_says_what_it_could_not_weigh(taken):
    newest, middle, oldest = taken.ids()
    lose_manifest(taken, middle, "cut")

    done = taken.run_here("forget", "--policy", "last:1")

    assert done.code == 4, done.said()
    assert middle in done.err
    assert [one.split("|")[0] for one in listed(taken)] == [newest]
    assert oldest in taken.run_here("list", "--trash").out


def listed(place: Place) -> list[str]:
    """The lines of ``list --machine-readable``."""
    return place.run_here("list", "--machine-readable").out.splitlines()


def test_giving_up_the_only_damaged_one_is_a_success(taken):
    middle = taken.ids()[1]
    lose_manifest(taken, middle, "gone")

    assert taken.run_here("forget", middle).code == 0
    assert taken.run_here("stats").code == 0


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("which", ["latest", "time"])
def test_using_another_snapshot_for_a_damaged_one_changes_the_exit_code(taken, how, which):
    newest, middle, oldest = taken.ids()
    text = which if which == "latest" else taken_text(taken, newest)
    path = taken.source / "train.log"
    lose_manifest(taken, newest, how)

    for command in (
        ["show", text],
        ["ls", text],
        ["cat", text, path],
        ["diff", oldest, text],
        ["diff", oldest, text, "--json"],
        ["find", "train.log", "-s", text],
        ["tag", text],
        ["tag", text, "--add", "mine"],
        ["pin", text],
        ["verify", text],
        ["restore", "-s", text, "-p", path, "-d", taken.directory / "out", "--overwrite"],
    ):
        done = taken.run_here(*command)
        assert done.code == 4, (command, done.said())
        assert newest in done.err + done.out, (command, done.said())
    shown = taken.run_here("show", text, "--json").document
    assert (shown["id"], shown["tags"], shown["pinned"]) == (middle, ["mine"], True)
    assert [one["id"] for one in shown["damaged_snapshots"]] == [newest]


def test_a_damaged_snapshot_does_not_affect_commands_about_others(taken):
    newest, middle, oldest = taken.ids()
    before = taken_text(taken, oldest)
    lose_manifest(taken, middle, "cut")

    for text in (newest, "latest", "latest-valid", oldest, before, "2999-01-01"):
        done = taken.run_here("show", text)
        assert done.code == 0, (text, done.said())
        assert middle not in done.err


def test_a_find_that_finds_nothing_says_so_and_is_no_failure(taken):
    for more, where in (([], "3 snapshots"), (["-s", "latest"], taken.ids()[0])):
        done = taken.run_here("find", "no such name", *more)
        assert (done.code, done.out) == (0, "")
        assert done.err == f"no path in {where} matches 'no such name'\n"
        assert taken.run_here("find", "no such name", *more, "--json").document == []
    assert taken.run_here("find", "train.log").err == ""
