"""``forget``, ``tag``, ``pin`` and ``list --trash`` for users and for scripts."""

import fcntl
import json
import time
from pathlib import Path

import pytest

from ciuic.errors import StoreFullError
from ciuic.store.records.sealed import seal
from tests.cli.test_terminal import ESCAPE, on_terminal, plain, with_short_ids
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.damage import flip_byte
from tests.kit.installed import Outcome, Place, contents, run, run_here

HOSTILE_TAG = "\x1b[31mred\x1b]0;title\x07"


def refused(done: Outcome, code: int, *words: str) -> None:
    """One sentence and perhaps a hint, no result, and no snapshot is gone."""
    assert done.code == code, done.said()
    assert done.out == "", done.said()
    assert 1 <= len(done.err.splitlines()) <= 5, done.said()
    for word in words:
        assert word in done.err, done.said()


def table(text: str) -> list[list[str]]:
    """The rows of a table without its header, cut at each stretch of two blanks."""
    return [[cell for cell in line.split("  ") if cell] for line in text.splitlines()[1:]]


def keep(place: Place, policy: str, **more: str) -> None:
    """Write a policy, and perhaps more keys, into the configuration."""
    place.configure()
    lines = "".join(f"{key} = {value}\n" for key, value in more.items())
    with place.config.open("a") as file:
        file.write(f"retention_policy = {policy}\n{lines}")


# forget


def test_forget_by_the_policy_of_the_configuration(taken: Place) -> None:
    known = taken.ids()
    keep(taken, "last:2", trash="3h")
    before = contents(taken.store)
    foreseen = taken.run_here("forget", "--dry-run", "--json")
    assert contents(taken.store / "snapshots") == {
        name: what for name, what in before.items() if "/snapshots" in name
    }
    assert foreseen.code == 0
    done = taken.run_here("forget")
    assert done.code == 0, done.said()
    assert done.err == (
        f"forgot 1 snapshot, kept 2; 'ciuic --config {taken.config} forget --undo ID' brings one"
        " back for 3 h 00 m\n"
    )
    assert taken.ids() == known[:2]
    document = foreseen.document
    assert document["dry_run"] is True
    assert [one["id"] for one in document["forgotten"]] == [known[2]]
    assert [one["id"] for one in document["kept"]] == known[:2]
    assert document["forgotten"][0].keys() == {"id", "taken", "logical_bytes", "tags", "why"}
    assert document["forgotten"][0]["tags"] == ["first"]
    again = taken.run_here("forget")
    assert (again.code, again.err) == (0, "nothing to forget; kept 2\n")


def test_a_dry_run_shows_each_snapshot_and_why(taken: Place) -> None:
    known = taken.ids()
    assert taken.run_here("pin", known[2]).code == 0
    done = taken.run_here("forget", "--dry-run", "--policy", "last:1")
    assert done.code == 0
    assert done.err == "would forget 1 snapshot and keep 2\n"
    shown = table(done.out)
    assert [row[0] for row in shown] == known
    assert [row[2] for row in shown] == ["keep", "forget", "keep"]
    assert [row[-1].strip() for row in shown] == [
        "last 1 of 1; the newest; the newest without damage",
        "no rule of last:1 keeps it",
        "pinned",
    ]
    assert taken.ids() == known


def test_snapshots_from_the_future_and_the_last_ones_of_their_directories(tmp_path: Path) -> None:
    """The table says why they stay, ``latest`` is neither, and a user can forget both by name."""
    box = Box(tmp_path)
    other = tmp_path / HOSTILE_TAG
    other.mkdir()
    now_ns, days_ns = time.time_ns(), 2 * 86_400 * 10**9
    alone = box.take(other, clock=ManualClock(now_ns - days_ns)).id
    ahead = box.take(clock=ManualClock(now_ns + days_ns)).id
    newest = box.take().id
    done = box.ciuic("forget", "--dry-run", "--policy", "1d")
    assert [(row[0], row[-1].strip()) for row in table(done.out)] == [
        (ahead, "dated in the future"),
        (newest, "younger than 1d; the newest; the newest without damage"),
        (alone, f"the only snapshot of {tmp_path}/\\x1b[31mred\\x1b]0;title\\x07"),
    ]
    assert done.err == (
        f"looked at 1 snapshot of {tmp_path}/\\x1b[31mred\\x1b]0;title\\x07 (schedule default)\n"
        f"looked at 2 snapshots of {box.source} (schedule default)\n"
        "would forget 0 snapshots and keep 3\n"
    )
    assert box.ciuic("show", "latest", "--json").document["id"] == newest
    done = box.ciuic("forget", alone)
    assert (done.code, "\x1b" in done.err) == (2, False)
    assert f"{alone} is the only snapshot of {tmp_path}" in done.err
    assert f"ciuic --config {box.config} forget --last-whole" in done.err
    assert box.ciuic("forget", "--last-whole", alone, ahead).code == 0
    assert [one.id for one in box.snapshots()] == [newest]


def test_forget_and_prune_at_once_is_the_one_and_then_the_other(taken: Place) -> None:
    known = taken.ids()
    arguments = ("forget", known[2], "--prune", "--trash", "0")
    before = contents(taken.store)
    shown = taken.run_here(*arguments, "--dry-run")
    assert "would forget 1 snapshot" in shown.err
    assert "1 forgotten snapshot would be removed for good" in shown.out
    foreseen = taken.run_here(*arguments, "--dry-run", "--json").document
    for name in ("snapshots", "packs", "parity", "marks", "retired"):
        part = f"/{name}"
        assert {key: one for key, one in contents(taken.store).items() if part in key} == {
            key: one for key, one in before.items() if part in key
        }, "a dry run changes nothing"
    done = taken.run_here(*arguments, "--json")
    assert done.code == 0, done.said()
    assert taken.ids() == known[:2]
    assert taken.run_here("list", "--trash", "--json").document == []
    assert done.document["prune"]["expired"] == [known[2]]
    assert done.document["prune"]["dead_chunks"] > 0
    same = {"dry_run": True, "total_s": 0}
    assert {**foreseen, "prune": {**foreseen["prune"], **same}} == {
        **done.document,
        "dry_run": True,
        "prune": {**done.document["prune"], **same},
    }
    assert taken.run_here("verify", "--all", "--checksum").code == 0
    again = taken.run_here("prune", "--trash", "0", "--json").document
    assert again["freed_bytes"] == 0
    assert again["expired"] == []
    refused(taken.run_here("forget", "--undo", known[2]), 1, f"{known[2]} is gone for good")


def test_a_prune_after_a_forget_names_what_was_in_the_trash_before(taken: Place) -> None:
    known = taken.ids()
    taken.run_here("forget", known[2])
    arguments = ("forget", known[1], "--prune", "--trash", "0")
    shown = taken.run_here(*arguments, "--dry-run")
    what = "1 snapshot in the trash before"
    assert f"{what} would be removed for good: {known[2]}\n" in shown.err, shown.said()
    done = taken.run_here(*arguments)
    assert f"{what} is removed for good: {known[2]}\n" in done.err, done.said()


def test_a_wrong_configuration_is_reported_before_anything_is_forgotten(taken: Place) -> None:
    known = taken.ids()
    for key in ("trash", "parity"):
        keep(taken, "last:1", **{key: "some"})
        refused(taken.run_here("forget", known[2], "--prune"), 2, key, "'some'")
        taken.configure()
        assert taken.ids() == known


def test_a_prune_leaves_snapshots_in_the_trash_that_the_same_command_forgot(taken: Place) -> None:
    known = taken.ids()
    foreseen = taken.run_here("forget", known[2], "--prune", "--dry-run", "--json").document
    assert foreseen["prune"]["in_trash"] == 1
    done = taken.run_here("forget", known[2], "--prune")
    assert (done.code, taken.ids()) == (0, known[:2]), done.said()
    assert (
        f"'ciuic --config {taken.config} forget --undo ID' brings one back for 1 d 00 h" in done.err
    )
    assert "1 forgotten snapshot in the trash" in done.err
    assert taken.run_here("forget", "--undo", known[2]).code == 0
    assert taken.run_here("verify", "--all", "--checksum").code == 0


@pytest.mark.parametrize("how", ["unreadable", "full"])
def test_forgotten_snapshots_are_reported_even_if_the_prune_after_it_fails(
    taken: Place, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    known = taken.ids()
    if how == "unreadable":
        for directory in ("snapshots", "parity"):
            (taken.store / directory / f"{known[1]}.json").write_bytes(b"{}")
    else:

        def refused(*_: object, **__: object) -> None:
            raise StoreFullError("no room")

        monkeypatch.setattr("ciuic.cli.pruning.apply_prune", refused)
    code = 4 if how == "unreadable" else 1
    done = taken.run_here("forget", known[2], "--prune", "--json")
    assert done.code == code, done.said()
    assert [one["id"] for one in done.document["forgotten"]] == [known[2]]
    assert done.document["dry_run"] is False
    assert done.document["error"]["message"].startswith("forgot 1 snapshot, but the prune failed: ")
    assert taken.run_here("forget", "--undo", known[2]).code == 0
    done = taken.run_here("forget", known[2], "--prune")
    assert done.code == code, done.said()
    said = done.err.splitlines()
    if how == "unreadable":
        assert said.pop(0).startswith(f"ciuic: {known[1]} cannot be read: ")
    first, second, *_ = said
    assert first.startswith("forgot 1 snapshot, kept ")
    assert second.startswith("ciuic: forgot 1 snapshot, but the prune failed: ")
    assert f"'ciuic --config {taken.config} prune'" in done.err
    assert taken.ids() == [known[0], known[1]][: 1 if how == "unreadable" else 2]


def test_forget_by_name_bring_back_and_the_trash_between(taken: Place) -> None:
    known = taken.ids()
    assert taken.run_here("list", "--trash").err == "the trash is empty\n"
    done = taken.run("forget", known[2], known[1][:-1])
    assert (done.code, done.out) == (0, ""), done.said()
    assert "forgot 2 snapshots, kept 1" in done.err
    assert taken.ids() == known[:1]
    listed = taken.run("list", "--trash")
    assert [row[0] for row in table(listed.out)] == known[1:]
    document = taken.run("list", "--trash", "--json").document
    assert [one["id"] for one in document] == known[1:]
    assert document[0]["forgotten"] > document[0]["taken"]
    done = taken.run("forget", "--undo", known[2])
    assert done.code == 0
    assert done.out.startswith(f"{known[2]}, taken 20")
    done = taken.run("forget", "--undo", known[1], "--json")
    assert done.document["id"] == known[1]
    assert taken.ids() == known
    assert taken.run("restore", "-s", known[2], "-d", taken.directory / "out", "-p", taken.source)
    assert taken.run("verify", "--all").code == 0


def test_several_forgotten_snapshots_are_brought_back_by_one_command(taken: Place) -> None:
    known = taken.ids()
    for more in ((), ("--json",)):
        assert taken.run("forget", *known[1:]).code == 0
        done = taken.run("forget", "--undo", *known[1:], *more)
        assert done.code == 0, done.said()
        assert taken.ids() == known
    assert [one["id"] for one in done.document] == known[1:]


def test_a_forgotten_snapshot_is_distinguished_from_an_unknown_one(taken: Place) -> None:
    name = taken.ids()[2]
    assert taken.run_here("forget", name).code == 0
    for arguments in (["show", name], ["ls", name], ["restore", "-s", name, "-p", "/x"]):
        done = taken.run_here(*arguments)
        refused(done, 1, f"{name} was forgotten", f"{taken.config} forget --undo {name}'")
    refused(taken.run_here("show", "cs-ffffffffff"), 1, "there is no snapshot cs-ffffffffff")


CASES = {
    "the newest": (["{0}"], 2, "is the newest snapshot"),
    "latest": (["latest"], 2, "is the newest snapshot"),
    "all": (["{0}", "{1}", "{2}"], 2, "would forget every snapshot"),
    "a pinned one": (["{1}"], 2, "is pinned", "pin --remove"),
    "no such": (["cs-ffffffffff"], 1, "there is no snapshot cs-ffffffffff"),
    "one of two is none": (["{2}", "cs-ffffffffff"], 1, "there is no snapshot cs-ffffffffff"),
    "no id": (["first"], 2, "'first' is not a snapshot's ID"),
    "an odd id": (["\x1b[31m"], 2, "\\x1b[31m"),
    "empty": ([""], 2, "is empty"),
    "a typo": (
        ["--policy", "last:2, hourli:24"],
        2,
        "'hourli' is not one of",
        "Nothing was forgot",
    ),
    "a policy of nothing": (["--policy", "0"], 2, "would keep nothing"),
    "an empty policy": (["--policy", ""], 2, "is empty"),
    "a last one without a name": (["--last-whole"], 2, "--last-whole requires the IDs"),
    "both": (["{2}", "--policy", "last:2"], 2, "cannot be combined"),
    "an undo and a policy": (["--undo", "{2}", "--policy", "last:2"], 2, "cannot be combined"),
    "an undo and a last one": (["{2}", "--undo", "{2}", "--last-whole"], 2, "requires the IDs"),
    "an undo that is dry": (["--undo", "{2}", "--dry-run"], 2, "--undo cannot be combined"),
    "an undo and a prune": (["--undo", "{2}", "--prune"], 2, "or --prune"),
    "a trash without a prune": (["{2}", "--trash", "0"], 2, "--trash requires --prune"),
    "a trash of no time": (["{2}", "--prune", "--trash", "soon"], 2, "soon"),
    "an undo of what is listed": (["--undo", "{2}"], 1, "is not in the trash"),
    "an undo of nothing": (["--undo", "cs-ffffffffff"], 1, "not in the trash", "list --trash"),
    "an unknown option": (["--force"], 2, "No such option"),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_to_forget(taken: Place, case: str) -> None:
    known = taken.ids()
    assert taken.run_here("pin", known[1]).code == 0
    arguments, code, *words = CASES[case]
    refused(taken.run_here("forget", *[one.format(*known) for one in arguments]), code, *words)
    assert taken.ids() == known
    assert taken.run_here("list", "--trash", "--json").document == []


def test_errors_are_documents_for_programs(taken: Place) -> None:
    done = taken.run_here("forget", "--json", taken.ids()[0])
    assert done.code == 2
    assert done.document["error"]["kind"] == "usage"
    done = taken.run_here("forget", "--json", "--undo", "cs-ffffffffff")
    assert done.code == 1
    assert done.document["error"]["kind"] == "snapshot_not_found"


def test_a_slip_in_the_configured_policy_forgets_nothing(taken: Place) -> None:
    known = taken.ids()
    keep(taken, "last:1, dayly:3")
    refused(taken.run_here("forget"), 2, "retention_policy", "'dayly' is not one of")
    taken.configure()
    assert taken.ids() == known


def test_the_policy_of_a_configuration_is_for_its_own_store_only(taken: Place) -> None:
    """The policy of this store must not thin out another store that the user names."""
    known = taken.ids()
    keep(taken, "last:1")
    done = taken.run_here("--store", str(taken.store), "forget")
    refused(done, 2, "no retention policy is configured for this store", "--policy")
    refused(run_here("--store", str(taken.store), "forget"), 2, "--policy")
    assert taken.ids() == known
    done = run_here("--store", str(taken.store), "forget", "--policy", "last:2", "--json")
    assert [one["id"] for one in done.document["forgotten"]] == known[2:]


def test_a_store_with_a_writer_is_busy(taken: Place) -> None:
    known = taken.ids()
    with (taken.store / "lock.write").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # A dry run takes no lock.
        assert taken.run_here("forget", "--dry-run", "--policy", "last:1").code == 0
        assert taken.run_here("tag", known[2]).out == "first\n"
        for arguments in (
            ["forget", "--policy", "last:1"],
            ["forget", "--policy", "last:1", "--prune", "--dry-run"],
            ["forget", "--undo", known[2]],
            ["prune"],
            ["tag", known[2], "--add", "x"],
            ["pin", known[2]],
            ["repair", "--apply"],
        ):
            refused(taken.run_here(*arguments, "--wait", "0"), 5, "is in use by process")
    assert taken.ids() == known


@pytest.mark.parametrize("command", ["snapshot", "forget", "prune", "repair", "tag", "pin"])
def test_every_command_that_writes_waits_for_the_given_time(taken: Place, command: str) -> None:
    shown = taken.run_here(command, "--help").out
    assert "--wait TIME" in shown
    assert "[default: 10s]" in shown
    more = [] if command in {"snapshot", "forget", "prune", "repair"} else [taken.ids()[2]]
    refused(taken.run_here(command, *more, "--wait", "soon"), 2, "--wait", "soon")


def test_a_damaged_entry_is_named_and_the_rest_is_shown(taken: Place) -> None:
    known = taken.ids()
    assert taken.run_here("forget", known[1], known[2]).code == 0
    flip_byte(taken.store / "snapshots" / f"{known[1]}.json", 200)
    copy = taken.store / "parity" / f"{known[1]}.json"
    copy.rename(taken.directory / "aside")
    done = taken.run_here("list", "--trash")
    assert done.code == 4
    assert [row[0] for row in table(done.out)] == [known[2]]
    assert f"{known[1]} cannot be read" in done.err
    assert f"ciuic --config {taken.config} repair" in done.err
    assert taken.run_here("list", "--trash", "--json").code == 4
    refused(taken.run_here("forget", "--undo", known[1]), 4, known[1], f"{taken.config} forget")
    assert taken.run_here("forget", "--undo", known[2]).code == 0
    (taken.directory / "aside").rename(copy)
    assert [row[0] for row in table(taken.run_here("list", "--trash").out)] == [known[1]]
    assert taken.run_here("forget", "--undo", known[1]).code == 0
    assert taken.ids() == known


def test_on_a_terminal_and_in_a_pipe_the_same_is_said(taken: Place) -> None:
    arguments = ["forget", "--dry-run", "--policy", "last:1"]
    piped = taken.run(*arguments)
    assert ESCAPE not in piped.out + piped.err
    code, shown = on_terminal("ciuic", "--config", taken.config, *arguments, COLUMNS="200")
    assert code == 0
    assert plain(shown).replace("\r", "") == with_short_ids(piped.out) + piped.err


# tag and pin


def test_a_tag_that_is_given_twice_is_there_once(taken: Place) -> None:
    named = ["--tag", "best", "--tag", "b", "--tag", "best"]
    assert taken.run_here("snapshot", *named).code == 0
    assert taken.run_here("tag", "latest").out == "best\nb\n"


def test_tags_are_shown_one_a_line_after_the_change(taken: Place) -> None:
    name = taken.ids()[2]
    assert taken.run_here("tag", name).out == "first\n"
    done = taken.run_here("tag", name, "--add", "best run", "--add", "b", "--remove", "first")
    assert (done.code, done.out, done.err) == (0, "best run\nb\n", "")
    assert taken.run_here("tag", name, "--json").document == {
        "id": name,
        "tags": ["best run", "b"],
    }
    assert taken.run_here("tag", name, "--remove", "b", "--remove", "best run").out == ""
    assert taken.run_here("list", "--tag", "b", "--machine-readable").out == ""


def test_a_tag_that_moves_here_and_is_removed_was_there(taken: Place) -> None:
    done = taken.run_here("tag", "latest", "--move", "best", "--remove", "best")
    assert "had no tag" not in done.err


def test_a_note_is_removed_without_a_text(taken: Place) -> None:
    refused(taken.run_here("note", "latest", "x", "--remove"), 2, "--remove takes no text")
    refused(taken.run_here("note", "latest", ""), 2, "a note needs a text")


def test_a_history_without_snapshots_says_so(taken: Place) -> None:
    for named in ("--tag 'unknown'", "--root '/unknown'", "--tag 'unknown' and --root '/unknown'"):
        options = named.replace("'", "").replace("and ", "").split()
        for command in ("log", "timeline"):
            done = taken.run_here(command, *options)
            assert done.code == 0
            assert f"no snapshot matches {named}\n" in done.err
    assert taken.run_here("log").err == ""


def test_a_pin_is_shown_and_keeps_a_snapshot(taken: Place) -> None:
    name = taken.ids()[2]
    assert taken.run_here("pin", name).out == f"{name} is pinned\n"
    assert taken.run_here("pin", name, "--json").document == {"id": name, "pinned": True}
    assert "first,(pinned)" in taken.run_here("list").out
    (shown,) = [one for one in taken.run_here("list", "--json").document if one["id"] == name]
    assert shown["pinned"] is True
    assert taken.run_here("forget", "--policy", "1s").code == 0
    assert name in taken.ids()
    assert taken.run_here("pin", "--remove", name).out == f"{name} is not pinned\n"
    assert taken.run_here("forget", "--policy", "1s").code == 0
    assert name not in taken.ids()


@pytest.mark.parametrize("tag", ["a|b", "a,b", "x" * 65, HOSTILE_TAG, "a\nb", "\udcff"])
def test_a_tag_that_would_break_a_list_is_refused(taken: Place, tag: str) -> None:
    name = taken.ids()[2]
    refused(taken.run_here("tag", name, "--add", tag), 2, "A tag has 1 to 64 printable characters")
    refused(taken.run_here("tag", name, "--add", ""), 2, "is empty")
    assert taken.run_here("tag", name).out == "first\n"


def test_a_hostile_tag_of_the_store_moves_no_cursor(taken: Place) -> None:
    """Another program may have written it."""
    name = taken.ids()[2]
    path = taken.store / "snapshots" / f"{name}.json"
    document = json.loads(path.read_bytes())
    del document["checksum"]
    path.write_bytes(seal({**document, "tags": [HOSTILE_TAG], "checksum": ""}))
    for arguments in (
        ["tag", name],
        ["list"],
        ["show", name],
        ["forget", "--dry-run", "--policy", "last:1"],
        ["forget", name],
        ["list", "--trash"],
        ["forget", "--undo", name],
        ["tag", name, "--add", "fine"],
    ):
        done = taken.run_here(*arguments)
        assert done.code == 0, done.said()
        assert ESCAPE not in done.out + done.err, arguments
        assert "\x07" not in done.out + done.err, arguments
    assert "\\x1b[31mred" in taken.run_here("tag", name).out
    assert taken.run_here("tag", name, "--remove", HOSTILE_TAG).out == "fine\n"


def test_a_tag_that_is_kept_outlives_the_policy(taken: Place) -> None:
    known = taken.ids()
    keep(taken, "last:1")
    assert taken.run_here("tag", known[-1], "--add", "best").code == 0

    plan = taken.run_here("forget", "--keep-tag", "best", "--dry-run", "--json")
    listed = taken.ids()
    done = taken.run_here("forget", "--keep-tag", "best", "--keep-tag", "bset", "--json")

    assert listed == known
    assert plan.document["kept"] == done.document["kept"]
    assert done.err == "ciuic: no snapshot has the tag 'bset'\n"
    assert {one["id"]: one["why"] for one in done.document["kept"]}[known[-1]] == "tag best"
    assert taken.ids() == [known[0], known[-1]]
    refused(
        taken.run_here("forget", known[-1], "--keep-tag", "x"), 2, "cannot be combined with IDs"
    )
    refused(taken.run_here("forget", "--undo", known[1], "--keep-tag", "x"), 2, "or --undo")


@pytest.mark.parametrize("command", ["tag", "pin"])
def test_labels_of_no_snapshot(taken: Place, command: str) -> None:
    more = ["--add", "x"] if command == "tag" else []
    refused(taken.run_here(command, "cs-ffffffffff", *more), 1, "there is no snapshot")
    refused(taken.run_here(command, "tomorrow", *more), 2, "is not a snapshot's ID")
    refused(taken.run_here(command, "", *more), 2, "is empty")
    refused(taken.run_here(command), 2, "Missing argument")


def test_list_trash_can_be_combined_only_with_json(taken: Place) -> None:
    for more in (["--machine-readable"], ["--tag", "first"], ["--path", "/x"]):
        refused(taken.run_here("list", "--trash", *more), 2, "can be combined only with --json")


def test_help_has_an_example_of_each_form(tmp_path: Path) -> None:
    shown = run("ciuic", "forget", "--help", cwd=tmp_path).out
    for word in ("[ID]...", "--dry-run", "--policy", "last:3, hourly:24", "--undo", "--prune"):
        assert word in shown
