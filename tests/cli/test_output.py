"""The output of commands is a contract: exact for programs, safe for people.

The tables below are the public interface, field by field. A field may be added to a document; a
field that goes, or changes its type, breaks users' scripts.
"""

import json
import os
import re
import shutil
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from ciuic.store.records.kinds import TREE
from tests.cli.conftest import ODD_NAMES
from tests.kit.hostile import HOSTILE, commit, directory, file, node
from tests.kit.installed import Place, run, run_here

Shape = dict[str, Any]


def time_text(value: object) -> bool:
    """RFC 3339 with an offset."""
    assert isinstance(value, str)
    return datetime.fromisoformat(value).tzinfo is not None


def snapshot_id(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"cs-[0-9a-f]{6,}", value) is not None


def optional_id(value: object) -> bool:
    return value is None or snapshot_id(value)


def kind(value: object) -> bool:
    return value in ("base", "delta")


NUMBER = (int, float)
TROUBLE: Shape = {"path": str, "what": str}
SNAPSHOT: Shape = {
    "id": snapshot_id,
    "kind": kind,
    "parent": optional_id,
    "taken": time_text,
    "files": int,
    "logical_bytes": int,
    "read_bytes": int,
    "new_bytes": int,
    "stored_bytes": int,
    "freeze_s": NUMBER,
    "total_s": NUMBER,
    "trouble": [TROUBLE],
}
LISTED: Shape = {
    "id": snapshot_id,
    "kind": kind,
    "parent": optional_id,
    "taken": time_text,
    "logical_bytes": int,
    "new_bytes": int,
    "stored_bytes": int,
    "tags": [str],
    "trouble_count": int,
    "flux_count": int,
}
VERIFIED: Shape = {
    "ok": bool,
    "read_bytes": int,
    "snapshots": [{"id": snapshot_id, "ok": bool, "damaged": [TROUBLE]}],
}
RESTORED: Shape = {
    "written_files": int,
    "kept_files": int,
    "deleted_files": int,
    "corrected": int,
    "written_bytes": int,
    "cloned_bytes": int,
    "failed": [TROUBLE],
}
STATS: Shape = {"snapshots": int, "logical_bytes": int, "unique_bytes": int, "stored_bytes": int}
ENTRY: Shape = {
    "path": str,
    "type": str,
    "mode": str,
    "uid": int,
    "gid": int,
    "size_bytes": int,
    "mtime": time_text,
    "state": str,
    "target": (str, NoneType),
}
SHOWN: Shape = LISTED | {
    "host": str,
    "roots": [{"path": str, "missing": str, "capture": str}],
    "exclude": [str],
    "trouble": [TROUBLE],
}
CHANGE: Shape = {
    "change": str,
    "path": str,
    "size_before_bytes": (int, NoneType),
    "size_after_bytes": (int, NoneType),
    "difference_bytes": (int, NoneType),
    "new_bytes": (int, NoneType),
}
STATUS: Shape = {
    "store": str,
    "daemon": (dict, NoneType),
    "newest": LISTED,
    "newest_here": LISTED,
    "absent_paths": [str],
}
DOCTOR: Shape = {
    "ok": bool,
    "counts": {"ok": int, "note": int, "warning": int, "problem": int},
    "findings": [{"level": str, "about": str, "what": str, "advice": str}],
}
ERROR: Shape = {"error": {"kind": str, "message": str, "hint": str}}


def check(document: Any, shape: Any, at: str = "$") -> None:
    """The document has every field of the shape, each of its type."""
    if isinstance(shape, dict):
        assert isinstance(document, dict), f"{at} is no object"
        for key, inner in shape.items():
            assert key in document, f"{at} has no {key}"
            check(document[key], inner, f"{at}.{key}")
    elif isinstance(shape, list):
        assert isinstance(document, list), f"{at} is no array"
        for number, one in enumerate(document):
            check(one, shape[0], f"{at}[{number}]")
    elif isinstance(shape, (type, tuple)):
        assert isinstance(document, shape), f"{at} is {document!r}"
        assert shape is bool or not isinstance(document, bool), f"{at} is a truth value"
    else:
        assert shape(document), f"{at} is {document!r}"


def odd_paths(place: Place) -> list[str]:
    return [os.path.join(str(place.source), "odd", os.fsdecode(name)) for name in ODD_NAMES]


def spoil(place: Place, content: bytes) -> None:
    """Flip one bit where a pack holds this content as it is."""
    for pack in (place.store / "packs").iterdir():
        data = bytearray(pack.read_bytes())
        position = data.find(content)
        if position >= 0:
            data[position] ^= 0x40
            pack.write_bytes(data)
            return
    raise AssertionError("no pack holds this content")


def unsafe(text: str) -> list[str]:
    """Characters that a terminal would obey, or that are not text."""
    return [one for one in text if one != "\n" and not one.isprintable()]


def test_machine_readable_lines_are_exact_and_alone_on_stdout(taken):
    done = taken.run("list", "--machine-readable")

    assert done.code == 0
    assert done.err == ""
    lines = done.out.splitlines()
    assert len(lines) == 3
    assert done.out == "".join(f"{line}\n" for line in lines)
    for line in lines:
        assert re.fullmatch(r"cs-[0-9a-f]{6,}\|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\|\d+", line)
    times = [line.split("|")[1] for line in lines]
    assert times == sorted(times, reverse=True), "newest first"


def test_machine_readable_times_are_local_and_json_times_are_exact(taken):
    here = taken.run("list", "--machine-readable", env={"TZ": "UTC"}).out.splitlines()
    there = taken.run("list", "--machine-readable", env={"TZ": "XXX-5:30"}).out.splitlines()
    listed = taken.run("list", "--json", env={"TZ": "XXX-5:30"}).document

    form = "%Y-%m-%d %H:%M:%S"
    for one, other, document in zip(here, there, listed, strict=True):
        utc = datetime.strptime(one.split("|")[1], form)
        local = datetime.strptime(other.split("|")[1], form)
        assert (local - utc).total_seconds() == 5.5 * 3600
        exact = datetime.fromisoformat(document["taken"])
        assert int(exact.timestamp()) == int(datetime.fromisoformat(f"{utc}+00:00").timestamp())


def test_an_empty_store_has_an_empty_list_and_an_empty_array(fresh):
    lines = fresh.run("list", "--machine-readable")
    document = fresh.run("list", "--json")

    assert (lines.code, lines.out, lines.err) == (0, "", "")
    assert (document.code, document.document) == (0, [])


def test_list_filters_by_tag_and_by_path(taken):
    gone = taken.source / "gone.txt"

    tagged = taken.run_here("list", "--json", "--tag", "kept").document
    holding = taken.run_here("list", "--machine-readable", "--path", gone).out.splitlines()
    everything = taken.run_here("list", "--machine-readable").out.splitlines()

    assert [one["tags"] for one in tagged] == [["third", "kept"]]
    assert [one.split("|")[:3] for one in holding] == [one.split("|") for one in everything[1:]]
    assert [one.split("|")[3] for one in holding] == ["whole"] * len(holding)


def test_the_snapshot_document_has_every_field(fresh):
    (fresh.source / "socket").mkdir()

    done = fresh.run("snapshot", "--json", "--tag", "x")
    again = fresh.run("snapshot", "--json")

    assert done.code == again.code == 0, done.said()
    check(done.document, SNAPSHOT)
    assert done.document["kind"] == "base"
    assert done.document["parent"] is None
    assert done.document["logical_bytes"] == 50_007
    assert done.document["read_bytes"] == done.document["new_bytes"] == 50_007
    assert again.document["parent"] == done.document["id"]
    assert again.document["read_bytes"] == again.document["new_bytes"] == 0


def test_a_root_that_is_not_there_is_trouble_by_name_and_exit_code_3(fresh):
    missing = fresh.directory / "not there"
    fresh.configure(
        f"snapshot_paths = {fresh.source}, {missing}\nsnapshot_dir = {fresh.store}\n"
        "io_priority = none\n"
    )

    done = fresh.run_here("snapshot", "--json")
    said = fresh.run_here("snapshot")
    shown = fresh.run_here("show", "latest")

    assert done.code == said.code == 3, done.said()
    check(done.document, SNAPSHOT)
    assert [one["path"] for one in done.document["trouble"]] == [str(missing)]
    assert re.fullmatch(r"cs-[0-9a-f]{6,}\n", said.out)
    assert str(missing) in said.err
    assert str(missing) in shown.out


def test_the_list_document_has_every_field(taken):
    check(taken.run_here("list", "--json").document, [LISTED])


def test_the_doctor_document_has_every_field(taken):
    check(taken.run_here("doctor", "--json").document, DOCTOR)


def test_the_show_document_has_every_field(taken):
    document = taken.run_here("show", "latest", "--json").document

    check(document, SHOWN)
    assert [one["path"] for one in document["roots"]] == [str(taken.source)]


def test_the_verify_document_has_every_field_with_and_without_damage(taken):
    sound = taken.run("verify", "--all", "--checksum", "--json")
    spoil(taken, (taken.source / "checkpoints" / "step-1.pt").read_bytes()[:64])
    damaged = taken.run("verify", "--all", "--checksum", "--json")

    check(sound.document, VERIFIED)
    assert sound.code == 0
    assert sound.document["ok"] is True
    assert sound.document["read_bytes"] > 3_300_000
    check(damaged.document, VERIFIED)
    assert damaged.code == 4
    assert damaged.document["ok"] is False
    named = {bad["path"] for one in damaged.document["snapshots"] for bad in one["damaged"]}
    assert str(taken.source / "checkpoints" / "step-1.pt") in named


def test_the_restore_document_has_every_field(taken):
    out = taken.directory / "out"

    planned = taken.run_here(
        "restore", "-s", "latest", "-p", taken.source, "-d", out, "--dry-run", "--json"
    )
    assert not out.exists()
    done = taken.run_here("restore", "-s", "latest", "-p", taken.source, "-d", out, "--json")

    for one in (planned, done):
        assert one.code == 0, one.said()
        check(one.document, RESTORED)
        assert one.document["written_files"] == 7
        assert one.document["written_bytes"] >= 3_300_000


def test_the_stats_and_status_documents_have_every_field(taken):
    stats = taken.run_here("stats", "--json").document
    status = taken.run_here("status", "--json").document

    check(stats, STATS)
    assert stats["snapshots"] == 3
    assert stats["logical_bytes"] > stats["unique_bytes"] > 3_000_000
    check(status, STATUS)
    assert status["daemon"] is None
    assert status["absent_paths"] == []


def test_status_names_a_configured_directory_that_does_not_exist(fresh):
    missing = fresh.source.with_name("misspelled")
    fresh.configure(f"snapshot_paths = {fresh.source}, {missing}\nsnapshot_dir = {fresh.store}\n")

    shown = fresh.run_here("status")

    assert f"absent:  there is no directory {missing}, which is configured" in shown.out
    assert shown.code == 0
    assert fresh.run_here("status", "--json").document["absent_paths"] == [str(missing)]


def test_the_newest_in_status_is_one_of_the_configured_directories(fresh):
    other = fresh.directory / "other"
    other.mkdir()
    fresh.snapshot(str(other))
    shown = fresh.run_here("status")
    assert "newest:  no snapshot of the configured directories yet\n" in shown.out
    assert fresh.run_here("status", "--json").document["newest"] is None
    wanted = fresh.snapshot()
    newest = fresh.snapshot(str(other))

    document = fresh.run_here("status", "--json").document
    assert document["newest"]["id"] == document["newest_here"]["id"] == wanted
    assert f"newest:  {wanted} of " in fresh.run_here("status").out
    assert f"newest:  {newest} of " in run_here("--store", fresh.store, "status").out


def test_ls_and_find_documents_have_every_field(taken):
    listed = taken.run_here("ls", "-R", "--json", "latest").document
    found = taken.run_here("find", "--json", "*.pt").document

    check(listed, [ENTRY])
    check(found, [ENTRY | {"snapshot": snapshot_id}])
    types = {one["path"]: one["type"] for one in listed}
    assert types[str(taken.source)] == "directory"
    assert types[str(taken.source / "checkpoints" / "step-2.pt")] == "file"
    links = [one for one in found if one["path"].endswith("last.pt") and one["type"] == "symlink"]
    assert [one["target"] for one in links] == ["checkpoints/step-1.pt"]


def test_a_diff_of_snapshots_of_different_directories_says_so(fresh, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("elsewhere")
    first = fresh.snapshot()
    second = fresh.snapshot(other)
    both = fresh.snapshot(other, fresh.source)

    shown = fresh.run_here("diff", first, second)
    assert f"ciuic: B is not a snapshot of {fresh.source}: what is there counts as removed\n" in (
        shown.err
    )
    assert f"ciuic: A is not a snapshot of {other}: what is there counts as added\n" in shown.err
    assert fresh.run_here("diff", first, both).err.count("is not a snapshot of") == 1
    assert "is not a snapshot of" not in fresh.run_here("diff", both, both).err


def test_the_diff_document_names_each_change_once(taken):
    ids = [one["id"] for one in taken.run_here("list", "--json").document]

    first = taken.run_here("diff", "--json", ids[2], ids[1]).document
    second = taken.run_here("diff", "--json", ids[1], ids[0]).document
    nothing = taken.run_here("diff", "--json", "latest", "latest")

    check(first, [CHANGE])
    check(second, [CHANGE])
    source = str(taken.source)
    assert {(one["change"], one["path"]) for one in first} == {
        ("added", f"{source}/checkpoints/step-2.pt"),
        ("changed", f"{source}/train.log"),
    }
    assert {(one["change"], one["path"]) for one in second} == {
        ("removed", f"{source}/gone.txt"),
        ("type", f"{source}/last.pt"),
        ("metadata", f"{source}/train.log"),
    }
    assert (nothing.code, nothing.document) == (0, [])


@pytest.mark.parametrize(
    ("code", "name", "arguments"),
    [
        (1, "snapshot_not_found", ["show", "cs-ffffffff"]),
        (1, "path_not_found", ["ls", "latest", "/no/such/path"]),
        (1, "target", ["restore", "-s", "latest", "-p", "{source}"]),
        (1, "store", ["--store", "{directory}/nothing", "list"]),
        (2, "usage", ["show", "what?"]),
        (2, "usage", ["list", "--machine-readable"]),
        (2, "usage", ["verify", "--no-such-option"]),
        (2, "usage", ["restore", "-s", "latest"]),
        (2, "usage", ["snapshot", "--wait", "soon"]),
        (2, "config", ["--config", "{directory}/no.conf", "list"]),
    ],
)
def test_an_error_is_one_json_document_with_the_exit_code(taken, code, name, arguments):
    filled = [one.format(source=taken.source, directory=taken.directory) for one in arguments]

    done = taken.run_here(*filled, "--json")

    assert done.code == code, done.said()
    check(done.document, ERROR)
    assert done.document["error"]["kind"] == name
    assert done.document["error"]["message"]
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("kind", "arguments", "before"),
    [
        # These two go on, and their error counts all damage.
        ("corruption", ["ls", "-R", HOSTILE], ["", "/a", "/broken"]),
        ("corruption", ["find", "*", "-s", HOSTILE], ["", "/a", "/broken"]),
        ("chunk_missing", ["diff", "{older}", HOSTILE, "--quick"], ["", "/a", "/broken"]),
        ("corruption", ["ls", HOSTILE, "{source}/broken"], None),
    ],
)
def test_damage_in_the_middle_ends_the_one_json_document(taken, kind, arguments, before):
    (older, *_) = taken.ids()
    commit(
        taken.store,
        Path("/other"),
        lambda writer: node(writer, TREE, 0, [file(b"a"), directory(b"broken", b"\1" * 32)]),
    )
    filled = [text.format(older=older, source="/other") for text in arguments]

    done = taken.run_here(*filled, "--json")

    assert done.code == 4, done.said()
    assert "Traceback" not in done.err
    *elements, last = [done.document] if before is None else done.document
    check(last, ERROR)
    assert last["error"]["kind"] == kind
    if before is None:
        return
    assert last["error"]["message"] in " ".join(done.err.split())
    paths = [element["path"] for element in elements if element["path"].startswith("/other")]
    assert paths == [f"/other{end}" for end in before]


def test_an_array_that_an_interrupt_ended_does_not_change_the_next_document(taken, monkeypatch):
    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    (older, newer) = taken.ids()[1], taken.ids()[0]
    with monkeypatch.context() as patch:
        patch.setattr("ciuic.cli.cmd_ls.entry_json", interrupted)
        stopped = taken.run_here("ls", "-R", "latest", "--json")
    assert stopped.code == 130
    check(stopped.document, ERROR)
    check(taken.run_here("diff", older, newer, "--json").document, [CHANGE])
    check(taken.run_here("show", "cs-ffffffff", "--json").document, ERROR)


def test_json_is_ascii_so_that_no_terminal_and_no_locale_can_spoil_it(taken):
    for arguments in (["ls", "-R", "latest"], ["find", "*"], ["diff", "latest", "latest"]):
        done = taken.run(*arguments, "--json", env={"LC_ALL": "C"})
        assert done.code == 0, done.said()
        assert done.out.isascii()
        assert not unsafe(done.out)


def test_names_of_any_bytes_come_as_surrogates_and_can_be_passed_back_exactly(taken):
    listed = taken.run_here("ls", "--json", "latest", taken.source / "odd").document
    paths = sorted(one["path"] for one in listed)

    assert paths == sorted(odd_paths(taken))
    assert any("\udce9" in path for path in paths)
    for path in paths:
        printed = taken.run_here("cat", "latest", path)
        assert printed.code == 0, printed.said()
        assert printed.out == os.path.basename(path)
    out = taken.directory / "out"
    options = [part for path in paths for part in ("-p", path)]
    restored = taken.run_here("restore", "-s", "latest", *options, "-d", out)
    assert restored.code == 0, restored.said()
    assert sorted(os.listdir(os.fsencode(out))) == sorted(ODD_NAMES)


def test_hostile_names_never_reach_a_stream_as_they_are(taken):
    out = taken.directory / "out"
    bad = odd_paths(taken)[2]
    commands: list[list[str | Path]] = [
        ["ls", "-R", "latest"],
        ["ls", "latest", taken.source / "odd"],
        ["find", "*"],
        ["diff", "latest", "latest"],
        ["show", "latest"],
        ["show", "latest", "--chunks"],
        ["show", "latest", "--chunks", "-p", bad + "x"],
        ["diff", "latest", "latest", "--tensors"],
        ["stats", "--detail"],
        ["ls", "latest", bad + "x"],
        ["cat", "latest", bad + "x"],
        ["cat", "latest", os.path.dirname(bad) + "\x1b[2J"],
        ["show", "\x1b[2J"],
        ["restore", "-s", "latest", "-p", taken.source, "-d", out],
        ["restore", "-s", "latest", "-p", bad, "-d", out / "source" / "odd"],
        ["find", "-s", "\x1b[2J", "*"],
        ["\x1b[2J"],
        ["list", "--\x1b[2J"],
        ["completion", "\x1b[2J"],
        ["--store", "/\x1b[2J\n/x", "list"],
        ["--config", "/\x1b[2J\n/x", "list"],
        ["snapshot", "--tag", "\x1b[2J"],
        ["snapshot", "--wait", "\x1b[2J"],
    ]
    for command in commands:
        done = taken.run_here(*command)
        assert not unsafe(done.out + done.err), f"{command}: {done.said()}"
        assert "Traceback" not in done.err


def test_damage_below_a_hostile_name_is_named_safely_and_exactly(fresh):
    odd = fresh.source / "esc\x1b[2J\nname"
    odd.write_bytes(os.urandom(100_000))
    (fresh.source / "checkpoints" / "step-1.pt").write_bytes(os.urandom(3_000_000))
    fresh.snapshot()
    spoil(fresh, odd.read_bytes()[:64])
    shutil.rmtree(fresh.store / "parity")  # would restore it
    out = fresh.directory / "out"

    said = fresh.run_here("verify", "--checksum")
    document = fresh.run_here("verify", "--checksum", "--json").document
    restored = fresh.run_here("restore", "-s", "latest", "-p", fresh.source, "-d", out, "--no-hot")

    assert said.code == restored.code == 4, said.said() + restored.said()
    assert not unsafe(said.out + said.err + restored.out + restored.err)
    assert "esc\\x1b[2J\\nname" in said.out
    assert "esc\\x1b[2J\\nname" in restored.err
    assert str(odd) in [one["path"] for one in document["snapshots"][0]["damaged"]]
    whole = out / "source" / "checkpoints" / "step-1.pt"
    assert whole.read_bytes() == (fresh.source / "checkpoints" / "step-1.pt").read_bytes()
    assert not (out / "source" / odd.name).exists()


def test_a_warning_with_a_hostile_name_is_printed_safely(fresh):
    missing = f"{fresh.directory}/a\udcff|b"
    fresh.configure(
        f"snapshot_paths = {fresh.source}, {missing}\nsnapshot_dir = {fresh.store}\n"
        "io_priority = none\n"
    )

    said = fresh.run_here("snapshot")
    document = fresh.run_here("snapshot", "--json").document

    assert said.code == 3
    assert "a\\xff|b" in said.err
    assert [one["path"] for one in document["trouble"]] == [missing]


def test_cat_writes_the_bytes_of_a_file_and_nothing_else(taken):
    path = taken.source / "checkpoints" / "step-1.pt"

    done = taken.run("cat", "latest", path)

    assert done.code == 0
    assert done.err == ""
    assert os.fsencode(done.out) == path.read_bytes()


@pytest.mark.parametrize(
    ("command", "first"),
    [
        ("{ciuic} ls -R latest | head -n 1", "d"),
        ("{ciuic} cat latest {source}/checkpoints/step-1.pt | head -c 1", ""),
        ("{ciuic} find '*' | head -n 1", "cs-"),
        ("{ciuic} ls -R --json latest | head -n 1", "["),
        ("{ciuic} ls -R --json latest | true", ""),
        ("{ciuic} find --json '*' | true", ""),
        ("{ciuic} list | true", ""),
    ],
)
def test_a_reader_that_has_had_enough_ends_the_command_quietly(taken, command, first):
    ciuic = f"ciuic --config {taken.config}"
    line = command.format(ciuic=ciuic, source=taken.source)

    done = run("bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}")

    assert done.err == ""
    assert done.out.startswith(first)
    assert done.code in (0, 141), done.said()


def test_a_full_stdout_is_a_reported_error(taken):
    ciuic = f"ciuic --config {taken.config}"

    listed = run("bash", "-c", f"{ciuic} list --machine-readable > /dev/full")
    printed = run(
        "bash", "-c", f"{ciuic} cat latest {taken.source}/checkpoints/step-1.pt >/dev/full"
    )

    for done in (listed, printed):
        assert done.code == 1, done.said()
        assert "the output cannot be written: No space left" in done.err
        assert "Traceback" not in done.err


def test_an_error_that_cannot_be_written_keeps_its_exit_code(taken):
    """A log on a full disk must not turn one failure into another."""
    ciuic = f"ciuic --config {taken.config}"

    for words in ("show nosuch", "show nosuch --json", "nosuch"):
        told = run("bash", "-c", f"{ciuic} {words}")
        untold = run("bash", "-c", f"{ciuic} {words} > /dev/full 2> /dev/full")
        assert untold.code == told.code != 0, told.said()


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_change_nothing_but_what_is_heard(taken, closed):
    """No file of the store may get the descriptor of a closed stream: output would go into it."""
    ciuic = f"ciuic --config {taken.config}"
    (taken.source / "new.bin").write_bytes(os.urandom(300_000))
    commands = ("list", "nosuch", "show cs-zz", "show nosuch --json", "snapshot --base", "verify")

    for words in commands:
        told = run("bash", "-c", f"{ciuic} {words}")
        done = run("bash", "-c", f"{ciuic} {words} {closed}")
        assert "Traceback" not in done.err
        assert done.code == told.code, (words, done.said())
    assert taken.run_here("verify", "--all", "--checksum").code == 0
    assert taken.run_here("repair").out == "nothing is damaged\n"


def test_json_documents_parse_strictly(taken):
    reports = [["show", "latest", "--chunks"], ["stats", "--detail"]]
    reports += [["diff", "latest", "latest", "--tensors"]]
    for arguments in (["list"], ["show", "latest"], ["stats"], ["ls", "-R", "latest"], *reports):
        text = taken.run_here(*arguments, "--json").out
        assert text.endswith("\n")
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_stream_that_cannot_show_a_name_gets_an_escape_and_no_traceback(fresh):
    (fresh.source / "mod\u00e8le.pt").write_text("x")
    fresh.snapshot("--tag", "\u00e9poque")
    poor = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    poor |= {"PYTHONCOERCECLOCALE": "0"}

    commands = [["ls", "latest", fresh.source], ["list"], ["cat", "latest", "/mod\u00e8le"]]
    commands += [["show", "latest", "--chunks"]]
    for command in commands:
        done = fresh.run(*command, env=poor)
        assert "Traceback" not in done.err, done.said()
        assert done.code == (1 if command[0] == "cat" else 0), done.said()
