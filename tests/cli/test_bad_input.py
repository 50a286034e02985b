"""Wrong input of every kind: one clear sentence on stderr, the right exit code, nothing lost."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import ODD_NAMES
from tests.kit.installed import Outcome, Place, contents, run, run_here
from tests.kit.program import as_nobody


def refused(done: Outcome, code: int, *words: str) -> None:
    """The command said why in one sentence and perhaps a hint, and printed no result."""
    assert done.code == code, done.said()
    assert "Traceback" not in done.err
    assert done.out == "", done.said()
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert 1 <= len(lines) <= 5, done.said()
    for word in words:
        assert word in done.err, done.said()


@pytest.fixture
def public() -> Iterator[Place]:
    """A place that other users can reach, with one snapshot."""
    directory = Path(tempfile.mkdtemp(prefix="ciuic-test-"))
    directory.chmod(0o755)
    place = Place(directory)
    (place.source / "train.log").write_text("step 1\n")
    assert place.run_here("init").code == 0
    place.snapshot()
    try:
        yield place
    finally:
        shutil.rmtree(directory)


def as_stranger(place: Place, *arguments: str | Path) -> Outcome:
    """Run as a user with no rights: ``nobody`` if this is root, otherwise the user of the test."""
    return place.run(*arguments, user=as_nobody())


BAD_LINES = {
    "unknown key": ("snapshot_intervall = 1h", 3, "unknown key 'snapshot_intervall'"),
    "doubled key": ("snapshot_dir = /elsewhere", 3, "a second time"),
    "no pair": ("just words", 3, "is not of the form 'key = value'"),
    "a section": ("[store]", 3, "is not of the form 'key = value'"),
    "no value": ("retention_policy =", 3, "no value"),
    "relative root": ("", 1, "relative/dir"),
    "relative store": ("", 2, "snapshot_dir"),
    "no unit": ("snapshot_interval = 30", 3, "'30' is not a duration"),
    "bad unit": ("snapshot_interval = 3 fortnights", 3, "is not a duration"),
    "negative": ("trash = -1d", 3, "trash"),
    "bad policy": ("retention_policy = hourly:0", 3, "retention_policy"),
    "bad word": ("io_priority = realtime", 3, "io_priority"),
    "bad count": ("hot_snapshots = many", 3, "hot_snapshots"),
    "bad fraction": ("parity = 4", 3, "parity"),
    "control": ("io_priority = idle\x00", 3, "control character"),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_bad_line_of_the_configuration_is_named_with_file_and_number(fresh, what):
    line, number, words = BAD_LINES[what]
    roots = "relative/dir" if what == "relative root" else str(fresh.source)
    store = "store" if what == "relative store" else str(fresh.store)
    fresh.configure(f"snapshot_paths = {roots}\nsnapshot_dir = {store}\n{line}\n")
    before = contents(fresh.store)

    done = fresh.run_here("snapshot")

    refused(done, 2, f"{fresh.config}:{number}: ", words)
    assert len(done.err.splitlines()) <= 2
    assert contents(fresh.store) == before


@pytest.mark.parametrize("what", BAD_LINES)
def test_commands_that_need_only_the_store_refuse_a_bad_configuration_too(fresh, what):
    line, number, words = BAD_LINES[what]
    roots = "relative/dir" if what == "relative root" else str(fresh.source)
    store = "store" if what == "relative store" else str(fresh.store)
    fresh.configure(f"snapshot_paths = {roots}\nsnapshot_dir = {store}\n{line}\n")

    for command in ("list", "init", "prune"):
        done = fresh.run_here(command)
        refused(done, 2, f"{fresh.config}:{number}: ", words, "--store DIR")


def test_the_doctor_looks_at_the_store_whatever_else_the_configuration_has_wrong(taken):
    taken.configure(f"snapshot_dir = {taken.store}\nsnapshot_interval = often\n")

    said = [one["what"] for one in taken.run_here("doctor", "--json").document["findings"]]

    assert any(":2: snapshot_interval: 'often' is not a duration" in one for one in said)
    assert any("opens, format 1" in one for one in said)


def test_a_mistyped_key_is_answered_with_the_right_one(fresh):
    fresh.configure("snapshot_path = /srv\n")

    refused(fresh.run_here("list"), 2, "snapshot_path", "Did you mean snapshot_paths?")


def test_with_store_given_a_bad_configuration_does_not_matter(taken):
    taken.configure("this is not a configuration\n")

    done = taken.run_here("--store", taken.store, "list", "--machine-readable")

    assert done.code == 0, done.said()
    assert len(done.out.splitlines()) == 3


def test_a_configuration_that_is_missing_or_no_file_is_named(tmp_path):
    missing = tmp_path / "none.conf"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    refused(run_here("--config", missing, "snapshot"), 2, str(missing), "no such file")
    refused(run_here("--config", missing, "list"), 2, str(missing), "no such file")
    both = run(
        "ciuic", "--store", tmp_path, "snapshot", tmp_path, env={"CIUIC_CONFIG": str(missing)}
    )
    refused(both, 2, str(missing), "no such file")
    assert "--store" not in both.err, "it was given"
    with_store = ("--config", missing, "--store", tmp_path / "store")
    refused(run_here(*with_store, "list"), 2, str(missing), "no such file")
    refused(run_here("--config", tmp_path, "list"), 2, str(tmp_path), "is a directory")
    refused(run_here("--config", fifo, "list"), 2, str(fifo), "not a regular file")
    refused(run("ciuic", "list", env={"CIUIC_CONFIG": str(missing)}), 2, str(missing))


@pytest.fixture
def system_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The last place where ciuic looks for a configuration; a machine may have its own in /etc."""
    paths = (tmp_path / "etc-ciuic.conf", tmp_path / "etc-ciuric.conf")
    monkeypatch.setattr("ciuic.config.load.SYSTEM_PATHS", tuple(map(str, paths)))
    return paths


@pytest.mark.parametrize("command", ["list", "init", "snapshot", "verify", "status"])
def test_no_configuration_at_all_says_what_to_do(system_paths, command):
    done = run_here(command)

    refused(done, 2, "configuration")
    assert "--config" in done.err or "/etc/ciuic.conf" in done.err


def test_the_configuration_is_looked_for_under_both_names_and_the_first_one_holds(
    fresh, system_paths
):
    ciuic, ciuric = system_paths

    ciuric.write_bytes(fresh.config.read_bytes())
    assert run_here("list").code == 0
    ciuic.write_text("nonsense\n")
    refused(run_here("list"), 2, f"{ciuic}:1: ")


def test_a_configuration_that_may_not_be_read_is_named(public):
    public.config.chmod(0)

    refused(as_stranger(public, "snapshot"), 2, str(public.config), "Permission denied")


def test_a_store_without_permission_is_named_and_left_alone(public):
    public.store.chmod(0)
    try:
        listed = as_stranger(public, "list")
        taken = as_stranger(public, "snapshot")
    finally:
        public.store.chmod(0o700)

    for done in (listed, taken):
        refused(done, 1, str(public.store), "ermission denied")
        assert "Run ciuic as" in done.err
        assert "daemon of" not in done.err, "there is no daemon"
    assert len(public.ids()) == 1


def test_a_store_that_may_be_read_but_not_written_can_be_verified_and_restored(public):
    for path in [public.store, *public.store.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    out = Path(tempfile.mkdtemp(dir=public.directory))
    out.chmod(0o777)

    verified = public.run("verify", "--checksum", user=as_nobody())
    restored = public.run(
        "restore", "-s", "latest", "-p", public.source, "-d", out, user=as_nobody()
    )
    refusal = public.run("snapshot", user=as_nobody())

    assert verified.code == 0, verified.said()
    assert (out / "source" / "train.log").read_text() == "step 1\n"
    # Another user cannot give files back to root: as with tar, that user owns them then.
    assert restored.code == 0, restored.said()
    assert "belong to you" in restored.err
    refused(refusal, 1, "ermission denied", "Run ciuic as")
    assert len(public.ids()) == 1


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("cs-ffffffff", 1, "there is no snapshot cs-ffffffff"),
        ("cs-", 2, "'cs-' is not a snapshot's ID"),
        ("cs-xyz", 2, "is not a snapshot's ID"),
        ("", 2, "'' is not a snapshot's ID"),
        (" ", 2, "is not a snapshot's ID"),
        ("latest~1", 2, "is not a snapshot's ID"),
        ("../../etc/passwd", 2, "is not a snapshot's ID"),
        ("cs-abc\ndef", 2, "cs-abc\\ndef"),
        ("\udcff", 2, "\\xff"),
        ("2001-01-01 00:00", 1, "2001-01-01 00:00"),
        ("2001-01-01", 1, "the oldest is from 20"),
        ("0001-01-01", 1, "0001-01-01"),
        ("0001-01-01 00:00", 1, "0001-01-01"),
        ("0001-01-01T00:00:00+14:00", 1, "0001-01-01"),
        ("2026-13-45 99:99", 2, "is not a snapshot's ID"),
    ],
)
def test_an_id_that_means_no_snapshot_is_refused(taken, text, code, words):
    refused(taken.run_here("show", text), code, words)
    refused(taken.run_here("restore", "-s", text, "-p", "/x"), code, words)


@pytest.mark.parametrize("text", ["9999-12-31", "9999-12-31 23:59", "9999-12-31T23:59:59-14:00"])
def test_a_time_after_every_snapshot_means_the_newest(taken, text):
    assert taken.run_here("show", text).out.split()[1] == taken.ids()[0]


def test_a_time_means_the_newest_snapshot_that_is_not_after_it(taken):
    lines = taken.run_here("list", "--machine-readable").out.splitlines()
    by_time = {line.split("|")[1]: line.split("|")[0] for line in reversed(lines)}

    for when, name in by_time.items():
        assert taken.run_here("show", when).out.split()[1] == name


def test_a_prefix_of_an_id_is_enough_and_an_ambiguous_one_is_not(taken):
    name = taken.ids()[0]
    other = taken.store / "snapshots" / f"{name[:-1]}{'0' if name[-1] != '0' else '1'}.json"
    assert taken.run_here("show", name[:8]).code == 0
    assert taken.run_here("show", name[3:8]).code == 0
    shutil.copy(taken.store / "snapshots" / f"{name}.json", other)

    done = taken.run_here("show", name[:8])

    refused(done, 1, "ambiguous", name, other.stem)
    assert taken.run_here("show", name).code == 0, "the whole ID is not ambiguous"


@pytest.mark.parametrize(
    "command",
    [["show", "latest"], ["verify"], ["ls", "latest"], ["restore", "-s", "latest", "-p", "/"]],
    ids=lambda command: command[0],
)
def test_latest_in_an_empty_store_says_that_there_is_none(fresh, command):
    refused(fresh.run_here(*command), 1, "no snapshot yet", f"{fresh.config} snapshot")


def test_a_path_that_is_not_in_the_snapshot_is_answered_with_near_ones(taken):
    near = taken.source / "chekpoints"

    for command in (["ls", "latest"], ["cat", "latest"], ["restore", "-s", "latest", "-p"]):
        done = taken.run_here(*command, near)
        refused(done, 1, str(near), str(taken.source / "checkpoints"))


def test_a_path_outside_every_root_is_answered_with_the_roots(taken):
    refused(taken.run_here("ls", "latest", "/usr/bin"), 1, "/usr/bin", str(taken.source))


def test_a_path_below_a_file_is_answered_with_the_file(taken):
    file = taken.source / "train.log"

    refused(taken.run_here("ls", "latest", file / "x"), 1, f"{file} is not a directory")


def test_one_path_of_several_that_is_missing_stops_the_restore_before_it_begins(taken):
    out = taken.directory / "out"

    done = taken.run_here(
        "restore", "-s", "latest", "-p", taken.source / "odd", "-p", taken.source / "nope",
        "-d", out,
    )  # fmt: skip

    refused(done, 1, "nope")
    assert not out.exists()


def test_cat_of_a_directory_is_refused(taken):
    refused(taken.run_here("cat", "latest", taken.source), 2, "is a directory, not a file")


def test_a_target_that_exists_is_refused_and_untouched_without_overwrite(fresh):
    fresh.snapshot()
    (fresh.source / "train.log").write_text("later\n")
    (fresh.source / "checkpoints" / "step-1.pt").unlink()
    before = contents(fresh.source)
    log = fresh.source / "train.log"

    whole = fresh.run_here("restore", "-s", "latest", "-p", fresh.source)
    several = fresh.run_here(
        "restore", "-s", "latest", "-p", fresh.source / "checkpoints" / "step-1.pt", "-p", log
    )
    deleting = fresh.run_here("restore", "-s", "latest", "-p", fresh.source, "--delete")

    refused(whole, 1, str(fresh.source), "exists already", "--overwrite")
    refused(several, 1, str(log), "exists already")
    refused(deleting, 1, "exists already")
    assert contents(fresh.source) == before


def test_a_destination_that_is_a_file_is_refused(taken):
    file = taken.directory / "file"
    file.write_text("mine\n")

    for more in ([], ["--overwrite"], ["--dry-run"]):
        for place in (file, file / "below"):
            done = taken.run_here("restore", "-s", "latest", "-p", taken.source, "-d", place, *more)
            refused(done, 1, str(file), "ot a directory")
    assert file.read_text() == "mine\n"


def test_two_paths_that_would_become_one_are_refused(taken):
    done = taken.run_here(
        "restore", "-s", "latest", "-p", taken.source / "odd", "-p",
        taken.source / "checkpoints" / ".." / "odd", "-d", taken.directory / "out",
    )  # fmt: skip
    assert done.code == 0, "twice the same is once"

    clash = Place(taken.directory)
    (taken.directory / "a" / "same").mkdir(parents=True)
    (taken.directory / "b" / "same").mkdir(parents=True)
    roots = f"{taken.directory}/a, {taken.directory}/b"
    clash.configure(f"snapshot_paths = {roots}\nsnapshot_dir = {taken.store}\nio_priority = none\n")
    clash.snapshot()

    done = clash.run_here(
        "restore", "-s", "latest", "-p", taken.directory / "a" / "same", "-p",
        taken.directory / "b" / "same", "-d", taken.directory / "new",
    )  # fmt: skip

    refused(done, 2, "would both become")
    assert not (taken.directory / "new").exists()


def test_a_restore_into_the_store_is_refused(taken):
    done = taken.run_here("restore", "-s", "latest", "-p", taken.source, "-d", taken.store)

    refused(done, 1, str(taken.store), "inside the store")
    assert taken.run_here("verify", "--all").code == 0


def test_a_relative_path_is_taken_from_the_current_directory(taken):
    good = taken.run(
        "restore", "-s", "latest", "-p", "odd", "-d", taken.directory / "out", cwd=taken.source
    )
    bad = taken.run("restore", "-s", "latest", "-p", "odd", cwd=taken.directory)

    assert good.code == 0, good.said()
    assert sorted(os.listdir(os.fsencode(taken.directory / "out" / "odd"))) == sorted(ODD_NAMES)
    refused(bad, 1, str(taken.directory / "odd"), "is not in snapshot")


def test_store_and_config_are_understood_after_the_command_too(taken):
    before = taken.run_here("list", "--machine-readable")

    assert before.code == 0
    assert run_here("list", "--machine-readable", "--store", taken.store) == before
    assert run_here("list", "--config", taken.config, "--machine-readable") == before
    refused(run_here("list", "--store", ""), 2)
    refused(run_here("list", "--config", ""), 2)
    refused(run_here("list", "--store"), 2, "--store")


EMPTY = {
    "--store": ["--store", "", "list"],
    "init --store": ["--store", "", "init"],
    "--config": ["--config", "", "list"],
    "-p": ["restore", "-s", "latest", "-p", "", "--overwrite"],
    "-d": ["restore", "-s", "latest", "-p", "{source}", "-d", "", "--overwrite"],
    "ls": ["ls", "latest", ""],
    "cat": ["cat", "latest", ""],
    "--path": ["list", "--path", ""],
    "--tag": ["snapshot", "--tag", ""],
}


@pytest.mark.parametrize("what", EMPTY)
def test_an_empty_argument_is_an_unset_variable_and_never_a_default(fresh, what):
    fresh.snapshot()
    (fresh.source / "train.log").write_text("later\n")
    before = contents(fresh.source)
    work = fresh.directory / "work"
    work.mkdir()
    arguments = [one.format(source=fresh.source) for one in EMPTY[what]]

    done = run("ciuic", *arguments, cwd=work, env={"CIUIC_CONFIG": str(fresh.config)})

    refused(done, 2)
    assert contents(fresh.source) == before
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["restore", "-s", "latest"], "--path"),
        (["restore", "-p", "/x"], "--snapshot"),
        (["restore", "-s", "latest", "-p"], "-p"),
        (["lits"], "lits"),
        (["list", "--machine-readble"], "--machine-readable"),
        (["list", "extra"], "extra"),
        (["show"], "ID"),
        (["diff", "latest"], "B"),
        (["list", "--json", "--machine-readable"], "cannot be combined"),
        (["verify", "--all", "latest"], "--all"),
        (["snapshot", "--wait", "3"], "'3' is not a duration"),
        (["snapshot", "--tag", "a|b"], "a|b"),
        (["init", "--chunk-size", "1"], "4 KiB"),
        (["init", "--chunk-size", "big"], "'big' is not a size"),
        (["init", "--chunking", "random"], "'random'"),
        (["init", "--chunk-average", "600 KiB"], "power of two"),
        (["init", "--chunk-least", "2 MiB"], "power of two"),
        (["init", "--chunk-average", "64K", "--chunk-least", "128K"], "not in ascending order"),
        (["init", "--chunking", "fixed", "--chunk-average", "512K"], "--chunking content"),
        (["completion", "tcsh"], "tcsh"),
        (["--no-such", "list"], "--no-such"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_code_2_and_names_what_is_wrong(taken, arguments, words):
    before = contents(taken.store / "snapshots"), contents(taken.store / "packs")

    done = taken.run_here(*arguments)

    assert done.code == 2, done.said()
    assert words in done.err
    assert "Traceback" not in done.err
    assert (contents(taken.store / "snapshots"), contents(taken.store / "packs")) == before
    if "--json" not in arguments:
        assert done.out == ""


def test_a_working_directory_that_is_gone_hinders_nothing_that_does_not_need_it(taken):
    line = (
        f"mkdir {taken.directory}/gone && cd {taken.directory}/gone && rmdir ../gone && "
        f"ciuic --config {taken.config} "
    )

    listed = run("bash", "-c", line + "list --machine-readable")
    restored = run(
        "bash", "-c", line + f"restore -s latest -p {taken.source}/odd -d {taken.directory}/out"
    )
    relative = run("bash", "-c", line + "ls latest odd")
    store = run("bash", "-c", line + "--store st list")

    assert listed.code == restored.code == 0, listed.said() + restored.said()
    refused(relative, 2, "directory")
    refused(store, 2, "the current directory no longer exists")


def test_a_named_pipe_and_a_terminal_device_are_never_waited_for(fresh):
    os.mkfifo(fresh.source / "pipe")
    done: list[Outcome] = []
    thread = threading.Thread(target=lambda: done.append(fresh.run("snapshot")))
    thread.start()
    thread.join(30)

    assert done, "the snapshot hangs at the pipe"
    assert done[0].code == 0, done[0].said()
    assert "prw" in fresh.run_here("ls", "latest", fresh.source).out
