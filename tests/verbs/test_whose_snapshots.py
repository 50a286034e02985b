"""Which machine's snapshots count: a path has the same name on each, and other content."""

import os
import shlex
from pathlib import Path

import pytest

from ciuic.config.load import load_settings
from ciuic.drill.drill import last_drill
from ciuic.maintain.label import change_tags
from ciuic.store.index.places import DrillRecord
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock, local_time_text
from ciuic.system.machine import Machine
from ciuicd.upkeep.practice import is_drill_due, practice
from tests.kit.box import Box
from tests.kit.daemon import wait_until
from tests.kit.damage import flip_content
from tests.kit.jobs import Run
from tests.kit.machines import HERE, OTHER, THIRD, TWIN, Shared
from tests.kit.program import Outcome, ciuic
from tests.kit.tensors import safetensors

OURS, THEIRS, OTHERS = (safetensors({"w": letter * 100_000}) for letter in (b"o", b"t", b"x"))


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    return Shared(Box(tmp_path), monkeypatch)


def weights(shared: Shared) -> Path:
    return shared.box.source / "m.safetensors"


def take(shared: Shared, content: bytes, *roots: Path, **more: object) -> str:
    """Take a snapshot with this content, and leave ours on the disk."""
    weights(shared).write_bytes(content)
    taken = shared.take(*roots, **more).id
    weights(shared).write_bytes(OURS)
    return taken


def cut(path: Path) -> None:
    os.truncate(path, 5_000)


def tag(shared: Shared, snapshot_id: str, name: str) -> None:
    with open_store(str(shared.box.store), write=True) as store:
        change_tags(store, snapshot_id, add=(name,))


# What acts by itself


def test_a_recovery_takes_the_versions_of_this_machine_and_names_a_newer_one(
    shared: Shared,
) -> None:
    ours, theirs = take(shared, OURS), take(shared, THEIRS, on=OTHER)
    cut(weights(shared))

    done = shared.box.ciuic("recover", weights(shared), "--json")

    assert done.code == 0, done.err
    (found,) = done.document["broken"]
    assert (found["from"], found["host"]) == (ours, HERE.name)
    assert weights(shared).read_bytes() == OURS
    assert f"{theirs}, of " in done.err
    assert "was taken on gpu2 and is newer than those of this machine, which are used" in done.err


def test_a_file_that_broke_before_another_machine_took_a_snapshot_is_found(shared: Shared) -> None:
    """Without PATHs, only files that changed since the newest snapshot are looked at."""
    ours = take(shared, OURS)
    theirs = take(shared, THEIRS, on=OTHER)
    cut(weights(shared))
    shared.pass_hours(200)  # to a time after the change of the file
    newer = shared.take(on=OTHER).id
    assert shared.listed()[newer].taken_ns > weights(shared).stat().st_ctime_ns
    assert theirs != newer

    done = shared.box.ciuic("recover", "--dry-run", "--json")

    assert [found["from"] for found in done.document["broken"]] == [ours], done.err


def test_each_directory_is_looked_at_since_its_own_newest_snapshot(shared: Shared) -> None:
    other = shared.box.directory / "other"
    other.mkdir()
    shared.box.configure(shared.box.source, other)
    ours = take(shared, OURS)
    cut(weights(shared))
    shared.pass_hours(200)
    shared.take(other)

    done = shared.box.ciuic("recover", "--dry-run", "--json")

    assert [found["from"] for found in done.document["broken"]] == [ours], done.err
    assert "since the newest snapshot of their directory" in done.err


def test_an_emergency_snapshot_counts_by_its_time_like_any_other(shared: Shared) -> None:
    """The one of a job that failed here is old when the job comes back from another machine."""
    take(shared, OURS, tags=("emergency",))
    theirs = take(shared, THEIRS, on=OTHER)
    cut(weights(shared))

    done = shared.box.ciuic("recover", weights(shared), "--json")

    assert [found["from"] for found in done.document["broken"]] == [theirs], done.err
    assert weights(shared).read_bytes() == THEIRS
    newer = take(shared, OTHERS, tags=("emergency",))
    cut(weights(shared))
    done = shared.box.ciuic("recover", weights(shared), "--json")
    assert [found["from"] for found in done.document["broken"]] == [newer], done.err


def test_a_machine_whose_snapshots_are_all_suspect_gets_no_version_of_another(
    shared: Shared,
) -> None:
    take(shared, OURS, tags=("suspect",))
    theirs = take(shared, THEIRS, on=OTHER)
    cut(weights(shared))

    refused = shared.box.ciuic("recover")

    assert refused.code == 1
    said = " ".join(refused.err.split())
    which = f"all snapshots of {shared.box.source} that were taken on this machine have the tag"
    assert which in said
    assert "has no snapshot" not in said
    assert weights(shared).stat().st_size == 5_000
    done = shared.box.ciuic("recover", weights(shared), "--dry-run", "--since", "@0", "--json")
    assert done.code == 3
    done = shared.box.ciuic("recover", weights(shared), "--host", "gpu2", "--json")
    assert [found["from"] for found in done.document["broken"]] == [theirs], done.err


def test_a_later_snapshot_of_a_part_does_not_hide_a_broken_file_in_the_rest(
    shared: Shared,
) -> None:
    part = shared.box.source / "sub"
    part.mkdir()
    ours = take(shared, OURS)
    cut(weights(shared))
    shared.pass_hours(200)
    shared.take(part)

    done = shared.box.ciuic("recover", "--dry-run", "--json")

    assert [found["from"] for found in done.document["broken"]] == [ours], done.err


def test_a_snapshot_of_a_part_adds_versions_and_rules_out_no_machine_that_has_all(
    shared: Shared,
) -> None:
    inside = shared.box.source / "sub" / "m.safetensors"
    inside.parent.mkdir()
    inside.write_bytes(OURS)
    theirs = take(shared, THEIRS, on=OTHER)
    ours = shared.take(inside.parent).id
    cut(weights(shared))
    cut(inside)

    done = shared.box.ciuic("recover", "--since", "@0", "--json")

    assert done.code == 0, done.err
    found = {broken["path"]: broken["from"] for broken in done.document["broken"]}
    assert found == {str(weights(shared)): theirs, str(inside): ours}
    assert f"this machine has no snapshot of {shared.box.source}: " in " ".join(done.err.split())


def test_a_directory_with_snapshots_of_a_part_alone_is_looked_at_from_the_beginning(
    shared: Shared,
) -> None:
    whole, other = shared.box.directory / "whole", shared.box.directory / "other"
    inside = whole / "sub" / "m.safetensors"
    inside.parent.mkdir(parents=True)
    other.mkdir()
    shared.box.configure(other, whole)
    inside.write_bytes(OURS)
    ours = shared.take(inside.parent).id
    cut(inside)
    shared.pass_hours(200)
    shared.take(other)

    done = shared.box.ciuic("recover", "--dry-run", "--json")

    assert [found["from"] for found in done.document["broken"]] == [ours], done.err


def test_a_directory_that_needs_a_choice_does_not_hold_up_the_others(shared: Shared) -> None:
    other = shared.box.directory / "other"
    other.mkdir()
    lost = other / "m.safetensors"
    lost.write_bytes(OURS)
    shared.box.configure(other, shared.box.source)
    ours = take(shared, OURS)
    shared.take(other, on=OTHER)
    shared.take(other, on=THIRD)
    cut(weights(shared))
    cut(lost)

    done = shared.box.ciuic("recover", "--since", "@0", "--json")

    assert done.code == 2
    assert [found["from"] for found in done.document["broken"]] == [ours], done.err
    (skipped,) = done.document["left_alone"]
    assert skipped["path"] == str(other)
    assert "2 other machines have some: choose gpu2, gpu3 with --host" in skipped["what"]
    assert f"{other} is left alone: this machine has no snapshot of" in " ".join(done.err.split())
    assert weights(shared).read_bytes() == OURS
    assert lost.stat().st_size == 5_000
    assert restarted(shared, OURS).code == 0


def test_a_directory_that_needs_a_choice_is_left_alone_inside_another_one(shared: Shared) -> None:
    inside = shared.box.source / "sub" / "m.safetensors"
    inside.parent.mkdir()
    inside.write_bytes(THEIRS)
    shared.box.configure(inside.parent, shared.box.source)
    take(shared, THEIRS, on=OTHER)
    shared.take(inside.parent, on=THIRD)
    cut(weights(shared))
    cut(inside)

    done = shared.box.ciuic("recover", "--since", "@0", "--json")

    assert done.code == 2
    assert [one["path"] for one in done.document["broken"]] == [str(weights(shared))], done.err
    assert inside.stat().st_size == 5_000


def test_a_machine_of_two_records_is_one_machine(shared: Shared) -> None:
    """Its first snapshots are from before it had a machine ID."""
    take(shared, OURS, on=Machine(OTHER.name, ""))
    theirs = take(shared, THEIRS, on=OTHER)
    cut(weights(shared))

    done = shared.box.ciuic("recover", weights(shared), "--host", "gpu2", "--json")

    assert done.code == 0, done.err
    assert [found["from"] for found in done.document["broken"]] == [theirs]
    take(shared, OTHERS, on=TWIN)
    refused = shared.box.ciuic("recover", weights(shared), "--host", "gpu2")
    assert "2 machines are called gpu2: gpu2:0123, gpu2:ffff" in refused.err
    refused = shared.box.ciuic("recover", weights(shared))
    assert "2 other machines have some" in refused.err


def test_a_broken_file_inside_two_directories_is_put_back_once(shared: Shared) -> None:
    shared.box.configure(shared.box.directory, shared.box.source)
    ours = take(shared, OURS)
    cut(weights(shared))

    done = shared.box.ciuic("recover", "--since", "@0", "--json")

    assert done.code == 0, done.err
    assert [found["from"] for found in done.document["broken"]] == [ours]
    assert weights(shared).read_bytes() == OURS


def test_what_an_inner_directory_passes_over_gets_no_version_of_another_machine(
    shared: Shared,
) -> None:
    """Only another machine has snapshots of the outer directory, from before the failure."""
    outer = shared.box.directory
    shared.box.configure(outer, shared.box.source)
    ours = take(shared, OURS)
    take(shared, THEIRS, outer, on=OTHER)
    cut(weights(shared))
    beside = outer / "m.safetensors"
    beside.write_bytes(OURS)
    cut(beside)
    shared.pass_hours(200)  # to a time after the change of the file
    shared.take()

    done = shared.box.ciuic("recover", "--json")

    assert done.code == 3, done.err
    assert [one["path"] for one in done.document["broken"]] == [str(beside)], done.err
    assert weights(shared).stat().st_size == 5_000
    done = shared.box.ciuic("recover", weights(shared), "--json")
    assert [found["from"] for found in done.document["broken"]] == [ours], done.err


def test_a_file_inside_two_directories_is_counted_once(shared: Shared) -> None:
    take(shared, OURS)
    cut(weights(shared))
    with weights(shared).open("r+b"):
        done = shared.box.ciuic("recover", "--json", shared.box.source, weights(shared))
    assert done.document["checked"] == 1
    assert [one["path"] for one in done.document["left_alone"]] == [str(weights(shared))]


def restarted(shared: Shared, whole: bytes, *options: str) -> Outcome:
    """Run a job that breaks its checkpoint, and then fails unless it is whole again."""
    (shared.box.directory / "whole").write_bytes(whole)
    starts = shared.box.directory / "starts"
    script = f"""
echo >> {starts}
[ $(wc -l < {starts}) = 1 ] && truncate -s 5000 {weights(shared)} && exit 9
cmp {weights(shared)} {shared.box.directory}/whole"""
    return shared.box.ciuic("run", "--restart", "1", *options, "--", "sh", "-c", script)


def test_a_restart_puts_the_version_of_this_machine_in_place(shared: Shared) -> None:
    take(shared, OURS)
    take(shared, THEIRS, on=OTHER)

    done = restarted(shared, OURS)

    assert done.code == 0, done.err
    assert "restart 1 of 1" in done.err


def test_a_job_that_has_moved_here_gets_the_version_of_the_machine_before(shared: Shared) -> None:
    """The emergency snapshot of the failure is already of this machine."""
    theirs = take(shared, THEIRS, on=OTHER)

    done = restarted(shared, THEIRS)

    assert done.code == 0, done.err
    said = " ".join(done.err.split())
    assert f"this machine has no snapshot of {shared.box.source}: {theirs}, of" in said
    assert ", was taken on gpu2" in said
    assert any("emergency" in one.tags for one in shared.listed().values())


def test_a_user_chooses_the_machine_for_a_restart(shared: Shared) -> None:
    take(shared, THEIRS, on=OTHER)
    take(shared, OTHERS, on=THIRD)
    assert shared.box.ciuic("run", "--host", "gpu3", "--", "true").code == 2
    chosen = restarted(shared, OTHERS, "--host", "gpu3")
    assert chosen.code == 0
    assert "no broken file can be put back" not in chosen.err


def test_a_host_without_snapshots_is_named_before_the_job_starts(shared: Shared) -> None:
    take(shared, THEIRS, on=OTHER)

    done = shared.box.ciuic("run", "--restart", "1", "--host", "gpu9", "--", "echo", "started")

    assert (done.code, done.out) == (0, "started\n")
    said = " ".join(done.err.split())
    assert "no broken file can be put back if the job fails: no snapshot was taken on" in said
    assert "the host 'gpu9'; the hosts are gpu2" in said


def test_with_several_other_machines_a_recovery_changes_nothing_until_one_is_chosen(
    shared: Shared,
) -> None:
    take(shared, THEIRS, on=OTHER)
    chosen = take(shared, OTHERS, on=THIRD)
    cut(weights(shared))

    refused = shared.box.ciuic("recover", weights(shared))

    assert refused.code == 2
    assert "and 2 other machines have some: choose gpu2, gpu3 with --host" in refused.err
    assert len(weights(shared).read_bytes()) == 5_000
    done = shared.box.ciuic("recover", weights(shared), "--host", "gpu3", "--json")
    assert [found["from"] for found in done.document["broken"]] == [chosen], done.err
    assert weights(shared).read_bytes() == OTHERS
    cut(weights(shared))
    unknown = shared.box.ciuic("recover", weights(shared), "--host", "gpu9")
    assert unknown.code == 1
    assert "no snapshot was taken on the host 'gpu9'; the hosts are gpu2, gpu3" in unknown.err


def test_a_name_of_two_machines_is_refused_where_data_is_replaced(shared: Shared) -> None:
    take(shared, THEIRS, on=OTHER)
    wanted = take(shared, OTHERS, on=TWIN)
    for command in (
        ("recover", weights(shared)),
        ("restore", "-s", "latest", "-p", weights(shared), "--overwrite"),
        ("checkout", "latest", weights(shared)),
    ):
        cut(weights(shared))
        refused = shared.box.ciuic(*command, "--host", "gpu2")
        assert refused.code == 2
        assert "2 machines are called gpu2: gpu2:0123, gpu2:ffff" in refused.err
        assert weights(shared).stat().st_size == 5_000
        done = shared.box.ciuic(*command, "--host", "gpu2:ffff")
        assert done.code == 0, done.err
        assert weights(shared).read_bytes() == OTHERS
    assert wanted in shared.box.ciuic("verify", "--host", "gpu2:ffff").out


def test_a_policy_for_a_name_of_two_machines_says_so(shared: Shared) -> None:
    take(shared, THEIRS, on=OTHER)
    named = ("forget", "--policy", "last:1", "--host", "gpu2")
    assert "2 machines" not in shared.box.ciuic(*named).err
    take(shared, THEIRS, on=TWIN)
    done = shared.box.ciuic(*named)
    assert done.code == 0
    assert "'gpu2' is the name of 2 machines: gpu2:0123, gpu2:ffff" in done.err
    assert "2 machines" not in shared.box.ciuic(*named[:-1], "gpu2:ffff").err


def test_a_drill_practices_on_a_snapshot_of_this_machine(shared: Shared, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    drill = ("drill", "--scratch", scratch, "--json")
    theirs = take(shared, THEIRS, on=OTHER)
    done = shared.box.ciuic(*drill)
    assert done.document["snapshot"] == theirs
    assert "this machine has no snapshot: " in done.err
    ours, newer = take(shared, OURS), take(shared, THEIRS, on=OTHER)
    practice_said = [one for one in checks(shared) if "restored" in one]
    assert "a snapshot of gpu2, so nothing shows that a restore" in practice_said[0]

    done = shared.box.ciuic(*drill)

    assert done.document["snapshot"] == ours
    assert f"{newer}, of" in done.err
    assert "a snapshot of gpu2" not in " ".join(checks(shared))
    assert shared.box.ciuic(*drill, "-s", "latest").document["snapshot"] == newer
    assert shared.box.ciuic(*drill, "--host", "gpu2").document["snapshot"] == newer


def test_a_drill_practices_on_another_directory_rather_than_on_another_machine(
    shared: Shared, tmp_path: Path
) -> None:
    other = shared.box.directory / "other"
    other.mkdir()
    ours = shared.take(other).id
    take(shared, THEIRS, on=OTHER)

    done = shared.box.ciuic("drill", "--scratch", tmp_path, "--json")

    assert done.document["snapshot"] == ours, done.err
    report = practice(
        load_settings(str(shared.box.config)),
        clock=SystemClock(),
        environ={"CACHE_DIRECTORY": str(tmp_path)},
        cancelled=lambda: False,
    )
    assert report is not None
    assert report.snapshot_id == ours


def checks(shared: Shared) -> list[str]:
    found = shared.box.ciuic("doctor", "--json").document["findings"]
    return [one["what"] for one in found if one["about"] == "practice"]


def test_the_daemon_practices_on_a_snapshot_of_this_machine(shared: Shared, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    settings = load_settings(str(shared.box.config))

    def done() -> str:
        environ = {"CACHE_DIRECTORY": str(scratch)}
        report = practice(settings, clock=SystemClock(), environ=environ, cancelled=lambda: False)
        assert report is not None
        return report.snapshot_id

    take(shared, THEIRS, on=OTHER)
    shared.pass_hours(50)
    ours = take(shared, OURS)
    take(shared, THEIRS, on=OTHER)
    now_ns = shared.listed()[ours].taken_ns + 3_600 * 10**9
    with open_store(str(shared.box.store)) as store:
        assert not is_drill_due(store, 86_400, now_ns), "the other machine's is older"
        assert is_drill_due(store, 1_800, now_ns)
    assert done() == ours


def test_a_drill_of_another_machine_does_not_count_for_this_one(shared: Shared) -> None:
    week_s, day_ns = 7 * 86_400, 86_400 * 10**9
    theirs = take(shared, THEIRS, on=OTHER)
    now_ns = shared.listed()[theirs].taken_ns + 14 * day_ns

    def note(snapshot_id: str, *, days_ago: int, outcome: str = "") -> None:
        record = DrillRecord(now_ns - days_ago * day_ns, snapshot_id, 1, 1, 1.0, False, outcome)
        with open_store(str(shared.box.store), write=True) as store:
            store.index.put_drill(record)
            store.index.commit()

    def seen() -> tuple[bool, str]:
        with open_store(str(shared.box.store)) as store:
            last = last_drill(store)
            assert last is not None
            return is_drill_due(store, week_s, now_ns), last.snapshot

    note(theirs, days_ago=1)
    assert seen() == (False, theirs), "this machine has no snapshot, so it uses theirs"

    ours = take(shared, OURS)
    assert seen() == (True, theirs)
    assert "a snapshot of gpu2" in checks(shared)[0]
    note(ours, days_ago=8)
    assert seen() == (True, ours)
    note(ours, days_ago=6)
    assert seen() == (False, ours)
    assert "a snapshot of gpu2" not in checks(shared)[0]
    note(theirs, days_ago=0, outcome="1 damaged")
    assert seen() == (False, theirs), "the damage is in the store of both"


def test_several_other_machines_and_none_here_leave_nothing_to_practice_on(
    shared: Shared,
) -> None:
    take(shared, THEIRS, on=OTHER)
    take(shared, THEIRS, on=THIRD)
    refused = shared.box.ciuic("drill")
    assert refused.code == 2
    assert "choose gpu2, gpu3 with --host" in refused.err


# What a person asks for with ``latest``


COMMANDS = [
    ("cat", "latest", "PATH"),
    ("ls", "latest", "PATH"),
    ("show", "latest"),
    ("pin", "latest"),
    ("pin", "latest", "--remove"),
    ("tag", "latest", "--add", "t"),
    ("note", "latest", "text"),
    ("verify",),
    ("verify", "latest"),
    ("verify", "--hot"),
    ("diff", "latest", "latest"),
    ("restore", "-s", "latest", "-p", "PATH", "--overwrite"),
    ("restore", "-s", "latest-valid", "-p", "PATH", "--overwrite"),
    ("stats", "--by", "kind", "-s", "latest"),
    ("find", "-s", "latest", "*"),
    ("compare", "latest", "latest"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2]))
def test_a_command_says_that_latest_is_of_another_machine(
    shared: Shared, command: tuple[str, ...]
) -> None:
    def said() -> str:
        words = [weights(shared) if word == "PATH" else word for word in command]
        done = shared.box.ciuic(*words)
        assert done.code == 0, done.err
        return " ".join(done.err.split())

    first = take(shared, OURS, on=OTHER)
    assert "gpu2" not in said(), "this machine replaces the only other one"
    theirs = take(shared, THEIRS, on=THIRD)
    none = f"{theirs} was taken on gpu3, because this machine has none; those of gpu2 are older"
    assert none in said()
    ours, newer = take(shared, OURS), take(shared, OURS, on=OTHER)
    assert f"{newer} was taken on gpu2; the newest snapshot of this machine is {ours}" in said()
    take(shared, OURS)
    assert "gpu2" not in said()
    assert first != newer


def test_a_time_that_forgets_a_snapshot_of_another_machine_says_so(shared: Shared) -> None:
    take(shared, OURS)
    theirs, _ = (take(shared, THEIRS, on=OTHER) for _ in range(2))
    ours = take(shared, OURS)
    moment = local_time_text(shared.listed()[theirs].taken_ns + 10**9)
    done = shared.box.ciuic("forget", moment)
    assert done.code == 0, done.err
    assert f"{theirs} was taken on gpu2; the newest snapshot of this machine until then" in done.err
    assert set(shared.listed()) >= {ours}
    assert theirs not in shared.listed()


def test_a_tag_means_another_machine_and_a_newest_snapshot_without_it_is_not_named(
    shared: Shared, tmp_path: Path
) -> None:
    ours, theirs = take(shared, OURS), take(shared, THEIRS, on=OTHER)
    restore = ("restore", "-s", "good", "-p", weights(shared), "-d", tmp_path / "o", "--overwrite")
    tag(shared, theirs, "good")
    said = shared.box.ciuic(*restore).err
    assert f"{theirs} was taken on gpu2, because this machine has none with the tag 'good'" in said
    assert ours not in said
    tag(shared, ours, "good")
    said = shared.box.ciuic(*restore).err
    assert f"the newest snapshot of this machine with the tag 'good' is {ours}" in said


def test_a_checkout_does_not_replace_what_is_here_by_the_newest_of_another_machine(
    shared: Shared,
) -> None:
    ours, theirs = take(shared, OURS), take(shared, THEIRS, on=OTHER)
    weights(shared).write_bytes(OTHERS)
    moment = local_time_text(shared.listed()[theirs].taken_ns + 10**9)
    for text in ("latest", "latest-valid", moment):
        refused = shared.box.ciuic("checkout", text, weights(shared))
        assert refused.code == 2
        assert f"Name a snapshot by its ID, as {ours}, or a machine with --host" in refused.err
        assert weights(shared).read_bytes() == OTHERS
    here = shared.box.ciuic("checkout", "latest", weights(shared), "--host", HERE.name)
    assert (here.code, weights(shared).read_bytes()) == (0, OURS), here.err
    named = shared.box.ciuic("checkout", theirs, weights(shared))
    assert (named.code, weights(shared).read_bytes()) == (0, THEIRS), named.err


def test_a_checkout_refuses_a_tag_or_a_time_that_only_another_machine_has(shared: Shared) -> None:
    theirs = take(shared, THEIRS, on=OTHER)
    tag(shared, theirs, "best")
    moment = local_time_text(shared.listed()[theirs].taken_ns + 10**9)
    assert shared.box.ciuic("checkout", "best", weights(shared), "--dry-run").code == 0
    take(shared, OURS)
    newest = take(shared, OURS)
    for text in ("best", moment):
        refused = shared.box.ciuic("checkout", text, weights(shared))
        assert refused.code == 2, refused.err
        assert f"Name a snapshot by its ID, as {newest}, or a machine" in refused.err
        assert weights(shared).read_bytes() == OURS


def test_a_machine_without_snapshots_checks_out_the_newest_and_says_whose_it_is(
    shared: Shared,
) -> None:
    take(shared, OTHERS, on=OTHER)
    theirs = take(shared, THEIRS, on=THIRD)
    done = shared.box.ciuic("checkout", "latest", weights(shared))
    assert (done.code, weights(shared).read_bytes()) == (0, THEIRS), done.err
    assert f"{theirs} was taken on gpu3, because this machine has none" in done.err


def test_a_host_narrows_a_restore(shared: Shared, tmp_path: Path) -> None:
    theirs = take(shared, THEIRS, on=OTHER)
    newer = take(shared, OTHERS, on=THIRD)
    target = ("-p", weights(shared), "-d", tmp_path / "out", "--overwrite")
    done = shared.box.ciuic("restore", "-s", "latest", "--host", "gpu2", *target)
    assert done.code == 0, done.err
    assert theirs in done.out
    assert "taken on" not in done.err
    assert (tmp_path / "out" / weights(shared).name).read_bytes() == THEIRS
    wrong = shared.box.ciuic("restore", "-s", newer, "--host", "gpu2", *target)
    assert wrong.code == 1
    assert f"{newer} was taken on gpu3, not on gpu2" in wrong.err


# What is said about damage


def test_the_damage_of_another_machines_snapshot_is_told_from_that_of_this_one(
    shared: Shared,
) -> None:
    theirs, ours = take(shared, THEIRS, on=OTHER), take(shared, OURS)
    flip_content(shared.box.store, THEIRS)
    done = shared.box.ciuic("verify", "--all", "--checksum")
    assert f"{theirs}: DAMAGED; no snapshot of gpu2 is valid" in done.out
    assert f"{ours}: ok" in done.out


# The page for the worst day


def test_the_runbook_brings_this_machine_back_on_a_new_one(shared: Shared, tmp_path: Path) -> None:
    ours, theirs = take(shared, OURS), take(shared, THEIRS, on=OTHER)
    page = shared.box.ciuic("runbook").out
    assert "STORE" not in page
    assert f"Newest snapshot: {ours}" in page
    gone = page[page.index("## The machine is gone") : page.index("## Afterwards")]
    (line,) = [one for one in gone.splitlines() if " restore " in one]
    words = shlex.split(line)[1:]
    assert words[:2] == ["--store", str(shared.box.store)]
    done = ciuic(*words[:-1], tmp_path / "new")
    assert done.code == 0, done.err
    place = tmp_path / "new" / shared.box.source.name / weights(shared).name
    assert place.read_bytes() == OURS
    (line,) = [one for one in gone.splitlines() if " verify " in one]
    assert ours in ciuic(*shlex.split(line)[1:]).out
    assert theirs not in gone


# The guard of a job


def test_a_rule_that_fires_marks_no_snapshot_of_another_machine(shared: Shared) -> None:
    ours, theirs = take(shared, OURS), take(shared, THEIRS, on=OTHER)
    log, go = shared.box.directory / "log", shared.box.directory / "go"
    script = f"""echo '{{"step": 1, "loss": NaN}}' >> {log}
while [ ! -e {go} ]; do sleep 0.05; done; exit 9"""
    words = ("--config", shared.box.config, "run", "--log", log, "--", "sh", "-c", script)
    with Run(*words) as run:
        wait_until("a snapshot is pinned", lambda: "is now pinned" in run.err)
        shared.pass_hours(200)
        later = take(shared, THEIRS, on=OTHER)
        go.touch()
        assert run.end() == 9
    listed = shared.listed()
    assert [one.id for one in listed.values() if one.pinned] == [ours]
    assert f"snapshot {ours} was taken before the fault, and is now pinned" in run.err
    suspect = {one.id for one in listed.values() if "suspect" in one.tags}
    assert suspect
    assert not suspect & {ours, theirs, later}
