"""Damaged stores: named, repaired where possible, never made worse."""

import os
import re
import shutil
import stat
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.cli.test_bad_input import refused
from tests.kit.installed import BIN, Place, contents, environment, run, run_here


def header(place: Place) -> Path:
    return place.store / "ciuic-store.json"


def readers(place: Place) -> list[list[str]]:
    """A command of each kind that only reads."""
    reports = [["stats", "--detail"], ["show", "latest", "--chunks"]]
    reports += [["diff", "latest", "latest", "--tensors"]]
    return [["list"], ["verify"], ["stats"], ["find", "*"], ["show", "latest"], *reports]


def test_a_store_that_is_a_file_is_named(fresh):
    for command in (["list"], ["verify"], ["init"]):
        refused(run_here("--store", fresh.config, *command), 1, str(fresh.config), "is a file")


def test_a_store_that_is_not_there_is_answered_with_how_to_make_one(fresh):
    nothing = fresh.directory / "nothing" / "here"

    for command in (["list"], ["verify"], ["stats"], ["status"]):
        refused(run_here("--store", nothing, *command), 1, f"no store at {nothing}", "init")
    assert not nothing.parent.exists()


def test_a_snapshot_without_a_store_says_so_and_makes_none(tmp_path):
    place = Place(tmp_path)

    refused(place.run_here("snapshot"), 1, str(place.store), "init")
    assert not place.store.exists()


def test_a_directory_with_other_things_in_it_never_becomes_a_store(fresh):
    before = contents(fresh.source)

    listed = run_here("--store", fresh.source, "list")
    refused(listed, 1, "not a store")
    assert "init" not in listed.err, "that would be refused"
    refused(run_here("--store", fresh.source, "init"), 1, "is not empty")
    assert contents(fresh.source) == before


def test_a_store_of_a_newer_format_is_left_alone_by_every_command(taken):
    text = header(taken).read_text()
    newer = re.sub(r'"format": \d+', '"format": 99', text)
    assert newer != text
    header(taken).write_text(newer)
    before = contents(taken.store)

    for command in [*readers(taken), ["snapshot"], ["init"], ["ls", "latest"]]:
        refused(taken.run_here(*command), 1, "format 99", "newer version")
    assert contents(taken.store) == before


def test_a_required_feature_that_is_not_known_is_named(taken):
    text = header(taken).read_text()
    newer = text.replace('"required": []', '"required": ["time-travel"]')
    assert newer != text
    header(taken).write_text(newer)
    before = contents(taken.store)

    for command in [*readers(taken), ["snapshot"], ["init"]]:
        refused(taken.run_here(*command), 1, "time-travel", "newer version")
    assert contents(taken.store) == before


def test_a_store_that_was_half_created_is_finished_by_init(tmp_path):
    place = Place(tmp_path)
    (place.store / "packs").mkdir(parents=True)

    refused(place.run_here("list"), 1, "never completely created", "init")
    refused(place.run_here("snapshot"), 1, "never completely created", "init")
    made = place.run_here("init")

    assert made.code == 0, made.said()
    assert place.run_here("list", "--json").document == []
    place.snapshot()


def test_init_twice_changes_nothing(taken):
    before = contents(taken.store)

    again = taken.run_here("init")

    assert again.code == 0, again.said()
    assert "exists already" in again.out
    assert contents(taken.store) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--chunk-size", "64 KiB"], "--chunk-size 1.00 MiB"),
        (["--chunking", "fixed"], "--chunking content"),
        (["--chunk-average", "64KiB"], "--chunk-average 512 KiB"),
        (["--chunk-least", "4 KiB", "--chunk-size", "1 MiB"], "--chunk-least 128 KiB"),
    ],
)
def test_init_refuses_to_cut_a_store_that_is_there_in_another_way(taken, options, said):
    before = contents(taken.store)

    refused(taken.run_here("init", *options), 2, str(taken.store), "exists already", said)
    assert taken.run_here("init", *options, "--json").document["error"]["kind"] == "usage"
    same = taken.run_here("init", "--chunk-size", "1024 KiB", "--chunking", "content")

    assert same.code == 0, same.said()
    assert contents(taken.store) == before


def test_a_store_that_was_cut_in_another_way_is_there_for_a_plain_init(tmp_path):
    place = Place(tmp_path)
    for options in (["--chunk-size", "64 KiB"], [], ["--chunk-size", "64 KiB"], ["--json"]):
        done = place.run_here("init", *options)
        assert done.code == 0, done.said()
    refused(place.run_here("init", "--chunk-size", "1 MiB"), 2, "--chunk-size 64.0 KiB")


def test_no_store_is_made_on_the_disk_below_a_mount_that_is_missing(tmp_path, monkeypatch):
    place = Place(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    table = tmp_path / "fstab"
    table.write_text(f"UUID=1-2 {disk} ext4 defaults 0 2\n")
    store = disk / "deep" / "store"
    missing = {"LIBMOUNT_FSTAB": str(table)}

    for command in (["init"], ["list"], ["verify"]):
        done = run(BIN / "ciuic", "--store", store, *command, env=missing)
        refused(
            done, 1, f"no store at {store}", f"ount {disk} first" if command != ["init"] else ""
        )
        assert "create a store" not in done.err
        assert os.listdir(disk) == []
    table.write_text("")
    assert run(BIN / "ciuic", "--store", store, "init", env=missing).code == 0
    table.write_text(f"UUID=1-2 {disk} ext4 defaults 0 2\n")
    again = run(BIN / "ciuic", "--store", store, "init", env=missing)
    assert again.code == 0, "it is there, wherever that is"
    assert place.run_here("init").code == 0


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "garbage"])
def test_a_damaged_header_is_damage_and_nothing_is_made_over_it(taken, how):
    data = header(taken).read_bytes()
    where = data.index(b'"store_id"') + 20
    bad = {
        "flipped": data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :],
        "cut": data[: len(data) // 2],
        "empty": b"",
        "garbage": os.urandom(300),
    }[how]
    header(taken).write_bytes(bad)
    before = contents(taken.store)

    for command in (["list"], ["verify"], ["snapshot"], ["init"]):
        done = taken.run_here(*command)
        refused(done, 4, str(header(taken)))
        assert " verify" not in done.err, "that cannot be done with this store"
    assert contents(taken.store) == before


def test_a_store_with_snapshots_that_lost_its_header_is_damage_and_not_half_created(taken):
    header(taken).unlink()
    before = contents(taken.store)

    done = taken.run_here("list")

    refused(done, 4, str(taken.store))
    assert "never completely" not in done.err
    assert taken.run_here("init").code != 0
    assert contents(taken.store) == before


def test_a_header_without_a_copy_can_be_that_of_another_store(taken):
    header(taken).unlink()
    (taken.store / "parity" / header(taken).name).unlink()

    refused(taken.run_here("list"), 4, f"{taken.config} repair")
    for apply in ([], ["--apply"]):
        done = taken.run_here("repair", *apply)
        refused(done, 4, "no sound copy")
        assert "Run 'ciuic" not in done.err, "that is what was run"
    other = taken.directory / "other"
    assert run_here("--store", other, "init").code == 0
    shutil.copy(other / header(taken).name, header(taken))
    assert taken.run_here("verify", "--all", "--checksum").code == 0
    assert taken.run_here("snapshot").code == 0


CATALOG_DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, 1000),
    "cut at a page": lambda path: os.truncate(path, 4096),
    "garbage": lambda path: path.write_bytes(os.urandom(20_000)),
    "flipped": lambda path: path.write_bytes(
        path.read_bytes()[:5000] + b"\xff" * 3000 + path.read_bytes()[8000:]
    ),
    "another database": lambda path: path.write_bytes(_foreign_database(path)),
}


def _foreign_database(path: Path) -> bytes:
    path.unlink()
    script = f"import sqlite3; c = sqlite3.connect({str(path)!r}); "
    script += "c.execute('create table recipes (name)'); c.commit()"
    subprocess.run(["python3", "-c", script], check=True)
    return path.read_bytes()


@pytest.mark.parametrize("first", ["list", "verify", "snapshot"])
@pytest.mark.parametrize("how", CATALOG_DAMAGE)
def test_a_lost_or_damaged_chunk_index_is_rebuilt(taken, template, how, first):
    CATALOG_DAMAGE[how](taken.store / "catalog.sqlite")
    before = template.ids()

    done = taken.run_here(first, *(["--checksum"] if first == "verify" else []))

    assert done.code == 0, done.said()
    assert "Traceback" not in done.err
    assert taken.ids()[-3:] == before
    stats, good = (one.run_here("stats", "--json") for one in (taken, template))
    assert stats.code == 0, stats.said()
    assert stats.document["unique_bytes"] == good.document["unique_bytes"]
    path = taken.source / "checkpoints" / "step-2.pt"
    assert taken.run("cat", "latest", path).out == os.fsdecode(path.read_bytes())
    taken.snapshot()


def test_a_snapshot_whose_manifest_is_damaged_is_named_and_the_others_go_on(taken):
    newest, middle, oldest = taken.ids()
    shutil.rmtree(taken.store / "parity")  # has a copy
    manifest = taken.store / "snapshots" / f"{newest}.json"
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 1
    manifest.write_bytes(data)

    listed = taken.run_here("list", "--machine-readable")
    shown = taken.run_here("show", newest)
    verified = taken.run_here("verify", "--all")
    latest = taken.run_here("show", "latest")

    assert [line.split("|")[0] for line in listed.out.splitlines()] == [middle, oldest]
    assert newest in listed.err
    refused(shown, 4, newest)
    assert verified.code == 4
    assert f"{newest}: DAMAGED" in verified.out
    assert f"{middle}: ok" in verified.out
    assert latest.out.split()[1] == middle
    assert f"{newest} is newer and cannot be read" in latest.err
    refused(
        taken.run_here("restore", "-s", newest, "-p", taken.source, "-d", taken.directory / "x"),
        4,
        newest,
    )
    assert not (taken.directory / "x").exists()
    assert taken.run_here("snapshot").code == 0


def lose_manifest(place: Place, name: str, how: str) -> None:
    """Spoil a manifest and its copy; ``how`` says what happens to it and to the catalog."""
    manifest = place.store / "snapshots" / f"{name}.json"
    (place.store / "parity" / manifest.name).unlink()
    if how.startswith("gone"):
        manifest.unlink()
    else:
        with manifest.open("r+b") as file:
            file.truncate(100)
    if "set aside" in how:
        assert place.run_here("repair", "--apply").code == 4
    if how.endswith("catalog"):
        (place.store / "catalog.sqlite").unlink()


@pytest.mark.parametrize(
    "how",
    ["gone", "cut", "cut and without a catalog", "cut, set aside", "cut, set aside, no catalog"],
)
def test_latest_warns_if_a_newer_snapshot_is_damaged(taken, how):
    newest, middle, _ = taken.ids()
    lose_manifest(taken, newest, how)
    file = taken.source / "checkpoints" / "step-1.pt"

    verified = taken.run_here("verify", "--json")
    restored = taken.run_here("restore", "-s", "latest", "-p", file, "-d", taken.directory / "out")
    document = taken.run_here(
        *("restore", "-s", "latest", "-p", file, "-d", taken.directory / "out"),
        *("--overwrite", "--dry-run", "--json"),
    )

    assert verified.code == restored.code == document.code == 4
    assert {one["id"]: one["ok"] for one in verified.document["snapshots"]} == {
        middle: True,
        newest: False,
    }
    assert f"{newest}: is newer and cannot be read" in restored.err
    assert (taken.directory / "out" / file.name).read_bytes() == file.read_bytes()
    assert [one["path"] for one in document.document["notes"]] == [newest]
    # The user asked for it by name, or as the latest valid one.
    for name in (middle, "latest-valid"):
        arguments = ["-s", name, "-p", file, "-d", taken.directory / "out", "--overwrite"]
        assert taken.run_here("restore", *arguments).code == 0
    assert taken.run_here("verify", middle).code == 0


def test_an_older_one_that_is_damaged_is_nothing_to_the_latest(taken):
    newest, middle, _ = taken.ids()
    lose_manifest(taken, middle, "cut and without a catalog")
    file = taken.source / "checkpoints" / "step-1.pt"

    verified = taken.run_here("verify")
    restored = taken.run_here("restore", "-s", "latest", "-p", file, "-d", taken.directory / "out")

    assert verified.code == restored.code == 0
    assert verified.out == f"{newest}: ok\n"
    assert middle not in restored.out + restored.err


def test_a_store_none_of_whose_manifests_can_be_read_is_not_an_empty_one(taken):
    for name in taken.ids():
        lose_manifest(taken, name, "cut")

    for command in (["verify"], ["show", "latest"], ["show", "latest-valid"]):
        refused(taken.run_here(*command), 4, "no snapshot of the store can be read")
    listed = taken.run_here("list")
    assert listed.code == 4
    assert "no snapshot yet" not in listed.said()


def test_a_manifest_that_is_empty_or_enormous_garbage_is_damage(taken):
    newest, middle, oldest = taken.ids()
    (taken.store / "snapshots" / f"{newest}.json").write_bytes(b"")
    (taken.store / "snapshots" / f"{middle}.json").write_bytes(b"[" * 3_000_000)

    done = taken.run_here("verify", "--all", "--json")

    assert done.code == 4, done.said()
    assert {one["id"]: one["ok"] for one in done.document["snapshots"]} == {
        newest: False,
        middle: False,
        oldest: True,
    }


def test_strange_files_in_the_store_are_no_snapshots(taken):
    before = taken.ids()
    for name in ("cs-xyz.json", "README", "cs-abcdef.json.tmp", "cs-\x1b[2J.json"):
        (taken.store / "snapshots" / name).write_text("{}")
    (taken.store / "packs" / "not-a-pack").write_text("")

    listed = taken.run_here("list", "--machine-readable")

    assert [line.split("|")[0] for line in listed.out.splitlines()] == before
    assert listed.err == ""
    assert taken.run_here("verify", "--all", "--checksum").code == 0


def test_a_deleted_pack_is_exit_code_4_and_the_paths_are_named(taken):
    big = max((taken.store / "packs").iterdir(), key=lambda one: one.stat().st_size)
    lost = taken.source / "checkpoints" / "step-1.pt"
    kept = taken.source / "checkpoints" / "step-2.pt"
    big.unlink()

    quick = taken.run_here("verify", "--all")
    thorough = taken.run_here("verify", "--checksum", "--json")
    out = taken.directory / "out"
    restored = taken.run_here("restore", "-s", "latest", "-p", taken.source, "-d", out)
    printed = taken.run_here("cat", "latest", lost)

    assert quick.code == thorough.code == restored.code == 4, restored.said()
    assert str(lost) in quick.out
    named = [bad["path"] for bad in thorough.document["snapshots"][0]["damaged"]]
    assert len(named) == len(set(named)), "each path once"
    assert str(lost) in named
    assert str(lost) in restored.err
    assert not (out / "source" / "checkpoints" / "step-1.pt").exists()
    restored_kept = out / "source" / "checkpoints" / "step-2.pt"
    assert restored_kept.read_bytes() == kept.read_bytes(), "all that is intact is put back"
    assert printed.code == 4
    assert taken.run_here("list").code == 0


def test_latest_valid_knows_what_verify_found(taken):
    newest, *_ = taken.ids()
    shutil.rmtree(taken.store / "parity")
    (taken.store / "parity").mkdir(0o700)
    shown = taken.run_here("show", newest, "--chunks", "--json").document
    packs = {
        chunk["pack"]
        for file in shown["stored_files"]
        for chunk in file["chunks"]
        if file["path"].endswith("step-2.pt")
    }
    for pack in packs:
        with (taken.store / "packs" / pack).open("r+b") as file:
            file.seek(100)
            file.write(bytes(20))

    done = taken.run_here("verify", newest, "--checksum")
    assert done.code == 4
    valid = taken.run_here("show", "latest-valid", "--json").document["id"]
    assert valid != newest
    assert taken.run_here("verify", valid, "--checksum").code == 0


def test_the_next_snapshot_stores_again_what_a_deleted_pack_took_away(taken):
    for pack in (taken.store / "packs").iterdir():
        pack.unlink()

    done = taken.run_here("snapshot", "--json")

    assert done.code == 0, done.said()
    assert done.document["new_bytes"] >= 3_300_000
    assert taken.run_here("verify", "--checksum").code == 0
    out = taken.directory / "out"
    assert taken.run_here("restore", "-s", "latest", "-p", taken.source, "-d", out).code == 0
    assert contents(out / "source").keys() == {
        path.replace(str(taken.source), str(out / "source")) for path in contents(taken.source)
    }


def test_a_pack_that_is_cut_short_is_damage_without_reading_every_chunk(taken):
    big = max((taken.store / "packs").iterdir(), key=lambda one: one.stat().st_size)
    os.truncate(big, big.stat().st_size // 2)

    done = taken.run_here("verify")

    assert done.code == 4, done.said()
    assert str(taken.source / "checkpoints" / "step-1.pt") in done.out


@pytest.mark.root
def test_a_store_on_a_read_only_mount_can_be_read_and_restored_from(taken):
    taken.ids()
    line = (
        f"set -e; mount --bind {taken.store} {taken.store}; "
        f"mount -o remount,ro,bind {taken.store}; ciuic() {{ command ciuic --config "
        f'{taken.config} "$@"; }}; ciuic list --machine-readable; ciuic verify --all --checksum;'
        f"ciuic restore -s latest -p {taken.source} -d {taken.directory}/out;"
        "set +e; ciuic snapshot; exit $?"
    )

    done = run("unshare", "-m", "bash", "-c", line)

    assert done.code == 1, done.said()
    assert "Read-only file system" in done.err
    assert "Traceback" not in done.err
    assert (taken.directory / "out" / "source" / "train.log").exists()
    assert len(taken.ids()) == 3


@pytest.mark.root
def test_a_read_only_store_without_a_catalog_can_still_be_read(taken):
    (taken.store / "catalog.sqlite").unlink()
    line = (
        f"mount --bind {taken.store} {taken.store} && mount -o remount,ro,bind {taken.store} && "
        f"ciuic --config {taken.config} list --machine-readable && "
        f"ciuic --config {taken.config} verify --all --checksum"
    )

    done = run("unshare", "-m", "bash", "-c", line)

    assert done.code == 0, done.said()
    assert done.out.count("|") == 6


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
@pytest.mark.parametrize("what", ["header", "manifest", "pack"])
def test_something_else_in_the_place_of_a_file_is_damage_and_never_waited_for(taken, what, make):
    newest = taken.ids()[0]
    big = max((taken.store / "packs").iterdir(), key=lambda one: one.stat().st_size)
    manifest = taken.store / "snapshots" / f"{newest}.json"
    path = {"header": header(taken), "manifest": manifest, "pack": big}[what]
    path.unlink()
    make(path)
    (taken.store / "catalog.sqlite").unlink()

    # A process of its own: one that hangs can be ended.
    done = run("timeout", "10", "ciuic", "--config", taken.config, "verify", "--all")

    assert done.code != 124, "it waits for ever"
    assert done.code == 4, done.said()
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, partial(os.symlink, "/etc/passwd")], ids=["fifo", "dir", "link"]
)
@pytest.mark.parametrize("what", ["header", "manifest", "pack"])
def test_something_else_in_the_place_of_a_file_is_set_aside_by_a_repair(taken, what, make):
    ids = taken.ids()
    big = max((taken.store / "packs").iterdir(), key=lambda one: one.stat().st_size)
    manifest = taken.store / "snapshots" / f"{ids[0]}.json"
    path = {"header": header(taken), "manifest": manifest, "pack": big}[what]
    path.unlink()
    make(path)
    kind = stat.S_IFMT(path.lstat().st_mode)

    done = run("timeout", "20", "ciuic", "--config", taken.config, "repair", "--apply")

    assert done.code in {0, 4}, done.said()
    assert stat.S_IFMT((taken.store / "quarantine" / path.name).lstat().st_mode) == kind
    assert taken.ids() == ids
    verified = taken.run_here("verify", ids[0], "--checksum")
    assert verified.code == 0, verified.said()
    again = taken.run_here("repair", "--apply", "--json")
    assert again.document["packs"] == [], again.said()
    assert taken.run_here("snapshot").code == 0


def test_a_store_whose_packs_are_all_gone_is_damaged(taken):
    shutil.rmtree(taken.store / "packs")

    done = taken.run_here("verify", "--all")

    assert done.code == 4, done.said()
    assert len(taken.ids()) == 3


def test_a_store_that_lost_its_empty_directory_on_a_copy_can_be_written_again(taken):
    (taken.store / "tmp").rmdir()

    assert taken.run_here("verify").code == 0
    done = taken.run_here("snapshot")

    assert done.code == 0, done.said()


@pytest.mark.root
def test_a_store_on_a_full_disk_says_so_and_goes_on_when_there_is_room(fresh):
    (fresh.source / "checkpoints" / "large.pt").write_bytes(os.urandom(3_000_000))
    shutil.rmtree(fresh.store)
    fresh.store.mkdir()
    ciuic = f"ciuic --config {fresh.config}"
    line = (
        f"mount -t tmpfs -o size=2M none {fresh.store} && {ciuic} init >&2 || exit 99; "
        f"{ciuic} snapshot; [ $? = 1 ] || exit 98; "
        f"{ciuic} list --machine-readable || exit 97; mount -o remount,size=20M {fresh.store}; "
        f"{ciuic} snapshot && {ciuic} verify --checksum"
    )

    done = run("unshare", "-m", "bash", "-c", line)

    assert done.code == 0, done.said()
    assert "No space left on device" in done.err
    assert "Free space" in done.err
    assert "Traceback" not in done.err
    assert done.out.count("cs-") == 2, "one snapshot, and its verification"


@pytest.mark.root
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_target_that_fails_is_named_where_it_is(taken, how):
    out = taken.directory / "out"
    out.mkdir()
    ciuic = (
        f"ciuic --config {taken.config} restore -s latest -p {taken.source}/checkpoints -d {out}"
    )
    option = "size=1M" if how == "full" else "ro"
    line = (
        f"mount -t tmpfs -o {option} none {out}; {ciuic}; [ $? = 1 ] || exit 98; "
        f"mount -o remount,rw,size=20M {out}; {ciuic} --overwrite && "
        f"cmp {out}/checkpoints/step-1.pt {taken.source}/checkpoints/step-1.pt"
    )

    done = run("unshare", "-m", "bash", "-c", line)

    assert done.code == 0, done.said()
    assert {"full": "No space left", "read-only": "Read-only file system"}[how] in done.err
    assert {"full": "free space there", "read-only": "for writing"}[how] in done.err
    assert f"{out}/checkpoints" in done.err
    assert str(taken.source) not in done.err, "nothing was written there"
    assert "Traceback" not in done.err


def test_a_store_in_a_link_and_a_store_that_was_moved_are_the_same_store(taken):
    moved = taken.directory / "elsewhere"
    shutil.move(taken.store, moved)
    taken.store.symlink_to(moved)

    assert len(taken.ids()) == 3
    assert taken.run_here("verify", "--all").code == 0
    taken.snapshot()


def test_python_without_assertions_checks_just_as_much(taken):
    data = max((taken.store / "packs").iterdir(), key=lambda one: one.stat().st_size)
    spoiled = bytearray(data.read_bytes())
    spoiled[len(spoiled) // 2] ^= 1
    data.write_bytes(spoiled)

    done = subprocess.run(
        [BIN / "python", "-O", BIN / "ciuic", "--store", taken.store, "verify", "--checksum"],
        env=environment(),
        capture_output=True,
        check=False,
    )

    assert done.returncode == 4
