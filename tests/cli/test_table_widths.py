"""Tables fit the terminal, and are complete in a pipe."""

import os
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from ciuic.cli.table import cut_end, cut_middle, display_width
from ciuic.store.records.manifest import decode_manifest, encode_manifest
from tests.kit.installed import Place
from tests.kit.tensors import safetensors
from tests.kit.terminal import Shown, on_terminal

WIDTHS = [40, 60, 80, 200]
CJK = "検証用の重みと最適化の状態を保存したとても長い名前のファイル.pt"
TENSOR = "model.layers.0.self_attention.query_projection.weight"
DEEP = "/".join(["experiments", "language-model", "run-0007-of-a-long-sweep", "checkpoints"])


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Place:
    """Long paths, wide characters, tags, tensors, two sets of roots, a snapshot of another host."""
    place = Place(tmp_path_factory.mktemp("wide"))
    deep = place.source / DEEP
    deep.mkdir(parents=True)
    (deep / CJK).write_bytes(b"x" * 5000)
    (place.source / "link").symlink_to(f"{DEEP}/{CJK}")
    weights = bytearray(os.urandom(280_000))
    (deep / "step_000100.safetensors").write_bytes(safetensors({TENSOR: bytes(weights)}))
    assert place.run_here("init").code == 0
    place.snapshot("--tag", "before-the-learning-rate-was-changed", "--tag", "first")
    weights[7] ^= 1
    (deep / "step_000200.safetensors").write_bytes(safetensors({TENSOR: bytes(weights)}))
    place.snapshot()
    second = place.directory / "second-place-with-a-rather-long-name"
    second.mkdir()
    (second / "log").write_text("step 1\n")
    text = place.config.read_text()
    place.config.write_text(text.replace(f"= {place.source}\n", f"= {place.source}, {second}\n"))
    newest = place.snapshot()
    manifest = place.store / "snapshots" / f"{newest}.json"
    there = decode_manifest(manifest.read_bytes(), newest)
    elsewhere = msgspec.structs.replace(there, host="node-17.example.org")
    manifest.write_bytes(encode_manifest(elsewhere))
    shutil.copy(manifest, place.store / "parity" / manifest.name)
    for catalog in place.store.glob("catalog*"):
        catalog.unlink()
    return place


def shown(place: Place, columns: int, *arguments: str) -> Shown:
    """The output of a command about this store on a terminal."""
    return on_terminal(columns, "ciuic", "--config", place.config, *arguments)


def ids(place: Place) -> list[str]:
    return [one["id"] for one in place.run("list", "--json").document]


COMMANDS = [
    ["list"],
    ["ls", "latest"],
    ["ls", "latest", "-R"],
    ["show", "{0}"],
    ["show", "{0}", "--chunks"],
    ["find", "step*"],
    ["diff", "{2}", "{0}"],
    ["diff", "{2}", "{1}", "--tensors"],
    ["stats", "--detail"],
    ["stats", "--by", "path"],
    ["status"],
    ["forget", "--dry-run", "--policy", "last:2"],
    ["compare", "{2}", "{1}", "{0}"],
    ["doctor"],
]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal(wide, columns, arguments):
    filled = [one.format(*ids(wide)) for one in arguments]

    done = shown(wide, columns, *filled)

    assert done.code in {0, 1}, done.text
    too_wide = [line for line in done.lines if display_width(line) > columns]
    # The name of a file with its size stands above its chunks, and is not cut.
    if "--chunks" in arguments:
        too_wide = [line for line in too_wide if not line.startswith("/")]
    assert not too_wide


@pytest.mark.parametrize("arguments", COMMANDS[:-1], ids=" ".join)
def test_a_pipe_gets_everything_in_full_whatever_the_terminal_is(wide, arguments):
    filled = [one.format(*ids(wide)) for one in arguments]
    line = f"ciuic --config {wide.config} {' '.join(filled)} 2>&1 | cat"

    done = on_terminal(40, "bash", "-c", line.replace("*", "'*'"))

    assert "…" not in done.text
    piped = wide.run(*filled)
    stable = re.compile(r"\d+(\.\d\d)? s|\d+ m \d\d s")
    told = stable.sub("", done.text.replace("\r", "")).splitlines()
    assert sorted(told) == sorted(stable.sub("", piped.out + piped.err).splitlines())


def test_a_wide_terminal_shows_every_column_and_a_narrow_one_says_which_it_leaves_out(wide):
    broad, narrow = shown(wide, 400, "list"), shown(wide, 60, "list")

    header = broad.lines[0].split()
    assert header == [
        "ID", "TAKEN", "KIND", "CHAIN", "FILES", "SIZE", "NEW", "STORED", "TROUBLE", "FLUX",
        "HOST", "ROOTS", "TAGS",
    ]  # fmt: skip
    assert "no room" not in broad.text
    assert "HOST" in narrow.lines[0].split(), "it says more than cut directories"
    missing = [one for one in header if one not in narrow.lines[0].split()]
    told = " ".join(narrow.lines).partition("too narrow for ")[2].partition(";")[0].split(", ")
    assert set(told) == set(missing) - {"TROUBLE", "FLUX"}, "empty columns need no word"
    assert {"ID", "TAKEN", "SIZE"} <= set(narrow.lines[0].split())


@pytest.mark.parametrize("columns", [40, 60])
def test_a_long_tag_leaves_the_values_of_the_other_snapshot_in_sight(wide, columns):
    newest, middle, first = ids(wide)
    asked = ["compare", "--quick", first, middle, newest]

    done, whole = shown(wide, columns, *asked), wide.run(*asked)

    for row in ("files", "changed files"):
        (values,) = [line for line in whole.out.splitlines() if line.startswith(row)]
        (narrow,) = [line for line in done.lines if line.startswith(row[:11])]
        assert narrow.split()[-1] == values.split()[-2], narrow
    assert f"too narrow for {newest[:9]}" in " ".join(done.lines)


def test_trouble_is_shown_on_the_narrowest_terminal_that_has_room_for_it(tmp_path):
    place = Place(tmp_path)
    (place.source / "a").write_text("a")
    assert place.run_here("init").code == 0
    place.config.write_text(
        place.config.read_text().replace(
            f"= {place.source}\n", f"= {place.source}, {tmp_path}/missing\n"
        )
    )
    assert place.run("snapshot").code == 3

    done = shown(place, 60, "list")

    assert "TROUBLE" in done.lines[0].split()


def test_roots_and_host_are_listed_only_if_they_differ(wide, taken):
    assert "ROOTS" in wide.run("list").out
    assert "HOST" in wide.run("list").out
    assert "ROOTS" not in taken.run("list").out
    assert "HOST" not in taken.run("list").out


def test_json_has_roots_and_host_of_every_snapshot(wide, taken):
    here = os.uname().nodename

    found = wide.run("list", "--json").document
    assert [one["host"] for one in found] == ["node-17.example.org", here, here]
    assert [len(one["roots"]) for one in found] == [2, 1, 1]
    assert {one["host"] for one in taken.run("list", "--json").document} == {here}


def test_a_list_can_be_narrowed_to_a_host_or_a_root(wide):
    newest, middle, oldest = ids(wide)
    here = os.uname().nodename

    def listed(*arguments: str | Path) -> list[str]:
        return [one["id"] for one in wide.run("list", "--json", *arguments).document]

    assert listed("--host", "node-17.example.org") == [newest]
    assert listed("--host", here) == [middle, oldest]
    assert listed("--root", wide.directory / "second-place-with-a-rather-long-name") == [newest]
    assert listed("--root", wide.source) == [newest, middle, oldest]
    assert listed("--root", wide.source / "experiments") == []
    nothing = wide.run("list", "--host", "nowhere", "--tag", "first")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no snapshot" in nothing.err
    assert "nowhere" in nothing.err


@pytest.mark.parametrize(
    ("command", "ids_in"),
    [
        (["log"], lambda found: [one["id"] for one in found]),
        (["find", "log"], lambda found: [one["snapshot"] for one in found]),
        (["timeline"], lambda found: [one["id"] for one in found["snapshots"]]),
        (["stats", "--by", "path"], lambda found: found["snapshots"]),
    ],
    ids=["log", "find", "timeline", "stats"],
)
def test_other_commands_can_be_narrowed_to_a_host(wide, command, ids_in):
    newest, *_ = ids(wide)

    def found(host: str) -> list[str] | int:
        return ids_in(wide.run_here(*command, "--json", "--host", host).document)

    there, here = found("node-17.example.org"), found(os.uname().nodename)
    nothing = wide.run_here(*command, "--host", "nowhere")
    assert there in (1, [newest])
    assert here == 2 or (newest not in here and (here or command == ["find", "log"]))
    assert nothing.code == 0
    hosts = ", ".join(sorted([os.uname().nodename, "node-17.example.org"]))
    told = f"--host 'nowhere'; the hosts are {hosts}"
    assert told in nothing.err


def test_a_shortened_path_keeps_its_beginning_and_its_end(wide):
    done = shown(wide, 60, "find", "step_000200.safetensors")

    _heading, line, *_ = done.lines
    assert "…" in line
    assert line.endswith("step_000200.safetensors")
    assert "/" in line.partition("…")[0]


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("a", 1), ("検証", 4), ("e\u0301a", 2), ("", 0)]
)
def test_cells_that_fit_are_not_cut(text, width):
    assert display_width(text) == width
    assert cut_end(text, width) == cut_middle(text, width) == text


@pytest.mark.parametrize("text", ["abcdefghij", CJK, "a" + CJK, "é" * 20, "e\u0301" * 20])
def test_a_cut_text_is_never_wider_than_its_room(text):
    for width in range(display_width(text)):
        for one in (cut_end(text, width), cut_middle(text, width)):
            assert width - 2 <= display_width(one) <= width
