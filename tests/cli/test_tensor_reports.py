"""Reports about training state: tensors, chunks and their cost."""

import os

import numpy as np
import pytest

from ciuic.store.records.layout import pack_name
from ciuic.store.store import open_store
from tests.cli.test_output import CHANGE, Shape, check
from tests.kit.box import Box
from tests.kit.damage import flip_byte
from tests.kit.installed import Place
from tests.kit.tensors import saved, typed

NONE = type(None)
TENSOR: Shape = {
    "change": str,
    "name": str,
    "type_before": (str, NONE),
    "type_after": (str, NONE),
    "shape_before": (list, NONE),
    "shape_after": (list, NONE),
    "size_before_bytes": (int, NONE),
    "size_after_bytes": (int, NONE),
    "trouble": (str, NONE),
    "compared": (str, NONE),
    "equal_share": (float, NONE),
    "relative_distance": (float, NONE),
    "distance": (float, NONE),
    "not_finite": (int, NONE),
}
TENSORS: Shape = {
    "compared_with": str,
    "same": int,
    "trouble": (str, NONE),
    "changes": [TENSOR],
}


def weights(step: int) -> bytes:
    w = np.ones(100_000, "<f4")
    w[:step] = 2
    q = bytes([step // 100]) * 1000
    tensors = {"w\x1b[31m": ("F32", [1000, 100], w.tobytes()), "q": ("ODD4", [2000], q)}
    tensors |= {f"only{step}": ("U8", [1], b"x"), "same": ("U8", [3], b"abc")}
    return typed(tensors)


@pytest.fixture
def trained(fresh: Place) -> Place:
    """Two snapshots of a run: a file that is replaced, and one for each step."""
    (fresh.source / "state.pt").write_bytes(saved("state.pt"))
    (fresh.source / "step_500.safetensors").write_bytes(weights(500))
    fresh.snapshot()
    data = bytearray(saved("state.pt"))
    data[896 + 3] = 0x7F  # the first element of w becomes a NaN
    data[896 + 2] = 0xC0
    (fresh.source / "state.pt").write_bytes(data)
    os.unlink(fresh.source / "step_500.safetensors")
    (fresh.source / "step_600.safetensors").write_bytes(weights(600))
    fresh.snapshot()
    return fresh


def ids(place: Place) -> list[str]:
    return [one["id"] for one in place.run_here("list", "--json").document]


def test_the_document_of_a_diff_has_the_tensors_of_each_file_of_them(trained: Place) -> None:
    new, old = ids(trained)
    done = trained.run_here("diff", old, new, "--tensors", "--json")
    plain = trained.run_here("diff", old, new, "--json").document

    assert done.code == 0, done.said()
    check(done.document, [CHANGE])
    assert [{**one, "tensors": None} for one in done.document] == [
        {**one, "tensors": None} for one in plain
    ]
    found = {os.path.basename(one["path"]): one["tensors"] for one in done.document}
    assert found["step_500.safetensors"] is None
    for name in ("state.pt", "step_600.safetensors"):
        check(found[name], TENSORS)
    step = found["step_600.safetensors"]
    assert step["compared_with"] == str(trained.source / "step_500.safetensors")
    assert step["same"] == 1
    by_name = {one["name"]: one for one in step["changes"]}
    changed = by_name["w\x1b[31m"]
    assert changed["change"] == "changed"
    assert (changed["type_after"], changed["shape_after"]) == ("F32", [1000, 100])
    assert (changed["compared"], changed["equal_share"]) == ("elements", 0.999)
    assert changed["distance"] == 10.0
    assert changed["relative_distance"] == pytest.approx(10 / np.sqrt(100_000 + 3 * 500))
    quantized = by_name["q"]
    assert (quantized["compared"], quantized["relative_distance"]) == ("bytes", None)
    assert quantized["equal_share"] == 0.0
    assert by_name["only500"]["change"] == "removed"
    assert by_name["only600"]["change"] == "added"
    (state,) = found["state.pt"]["changes"]
    assert (state["name"], state["not_finite"]) == ("state.w", 1)


def test_people_get_a_table_that_is_safe_on_a_terminal(trained: Place) -> None:
    new, old = ids(trained)
    done = trained.run_here("diff", old, new, "--tensors")

    assert done.code == 0, done.said()
    assert "\x1b" not in done.out
    lines = done.out.splitlines()
    assert any(line.startswith(f"- {trained.source}/step_500.safetensors  ") for line in lines)
    (head,) = [line for line in lines if "step_600" in line]
    assert head.startswith(f"+ {trained.source}/step_600.safetensors  ")
    assert head.endswith(f"  against {trained.source}/step_500.safetensors")
    rows = [line.split() for line in lines]
    assert ["M", "w\\x1b[31m", "F32", "1000x100", "99.90%", "0.0314"] in rows
    assert ["M", "q", "ODD4", "2000", "0.00%"] in rows
    assert "  1 added, 1 removed, 2 changed, 1 the same" in lines
    assert any(line.endswith("1 not finite") for line in lines)


def test_without_tensors_a_diff_is_as_it_was(trained: Place) -> None:
    new, old = ids(trained)
    assert all(
        len(line) == len(line.rstrip()) and line[1] == " "
        for line in trained.run_here("diff", old, new).out.splitlines()
    )
    assert all(
        set(one) == set(CHANGE) for one in trained.run_here("diff", old, new, "--json").document
    )


CHUNK: Shape = {
    "offset": int,
    "length_bytes": int,
    "id": (str, NONE),
    "start": int,
    "codec": (str, NONE),
    "stored_bytes": int,
    "frame_bytes": int,
    "pack": (str, NONE),
    "references": [str],
    "chain_depth": int,
    "read_bytes": int,
    "trouble": (str, NONE),
}
WEIGHT: Shape = {
    "count": int,
    "logical_bytes": int,
    "stored_bytes": int,
    "ratio": (float, NONE),
}
DETAIL: Shape = {
    "snapshot": (str, NONE),
    "codecs": [WEIGHT | {"codec": str}],
    "kinds": [WEIGHT | {"kind": str}],
    "types": [WEIGHT | {"type": str}],
    "chains": {
        "chunks": int,
        "deltas": int,
        "depth_max": int,
        "depth_mean": float,
        "read_bytes": int,
        "own_bytes": int,
        "alone_bytes": int,
        "read_cost": (float, NONE),
    },
    "trouble_count": int,
}


def test_the_document_of_chunks_is_that_of_show_and_all_files(trained: Place) -> None:
    shown = trained.run_here("show", "latest", "--json").document
    done = trained.run_here("show", "latest", "--chunks", "--json")

    assert done.code == 0, done.said()
    files = done.document["stored_files"]
    assert {key: value for key, value in done.document.items() if key != "stored_files"} == shown
    check(files, [{"path": str, "size_bytes": int, "chunks": [CHUNK]}])
    assert [one["path"] for one in files] == [
        os.path.join(trained.source, name)
        for name in ("checkpoints/step-1.pt", "state.pt", "step_600.safetensors", "train.log")
    ]
    for one in files:
        assert sum(chunk["length_bytes"] for chunk in one["chunks"]) == one["size_bytes"]
        for chunk in one["chunks"]:
            assert chunk["chain_depth"] == len(chunk["references"])
            assert chunk["stored_bytes"] <= chunk["frame_bytes"] <= chunk["read_bytes"]
            assert chunk["frame_bytes"] > 0
            assert (trained.store / "packs" / chunk["pack"]).is_file()


def test_chunks_are_shown_of_a_file_or_of_what_is_below_a_directory(trained: Place) -> None:
    def paths(*arguments: str) -> list[str]:
        done = trained.run_here("show", "latest", "--chunks", "--json", *arguments)
        assert done.code == 0, done.said()
        return [
            os.path.relpath(one["path"], trained.source) for one in done.document["stored_files"]
        ]

    log, inner = str(trained.source / "train.log"), str(trained.source / "checkpoints")
    assert paths("-p", log) == ["train.log"]
    assert paths("-p", inner, "-p", log) == ["checkpoints/step-1.pt", "train.log"]
    table = trained.run_here("show", "latest", "--chunks", "-p", log)
    first, header, row = table.out.splitlines()
    assert first.startswith(log)
    assert header.split()[:4] == ["OFFSET", "LENGTH", "CHUNK", "CODEC"]
    assert row.split()[:2] == ["0", "7"]
    assert trained.run_here("show", "latest", "-p", log).code == 2
    assert trained.run_here("show", "latest", "--chunks", "-p", "/nowhere").code == 1


def test_no_chunks_are_an_empty_list_and_a_damaged_one_is_exit_code_4(trained: Place) -> None:
    empty = trained.source / "empty"
    empty.mkdir()
    trained.snapshot()
    done = trained.run_here("show", "latest", "--chunks", "--json", "-p", empty)
    assert (done.code, done.document["stored_files"]) == (0, [])
    for pack in (trained.store / "packs").iterdir():
        pack.unlink()
    assert trained.run_here("show", "latest", "--chunks").code == 4


def test_a_document_of_chunks_has_its_end_whatever_is_damaged(box: Box) -> None:
    for number in range(3):
        directory = box.source / f"d{number}"
        directory.mkdir()
        for name in range(100):
            (directory / f"file{name}").write_bytes(os.urandom(30))
        box.take()  # so that each directory's tree, except the roots, lies in a frame of its own
    tree = box.entries()[os.fsencode(box.source / "d1")].content
    with open_store(str(box.store)) as store:
        place = store.reader.places([tree])[tree]
    flip_byte(box.store / "packs" / pack_name(place.pack_id), place.offset_bytes + 400)
    done = box.ciuic("show", "latest", "--chunks", "--json")
    assert done.code == 4
    names = [os.path.relpath(one["path"], box.source) for one in done.document["stored_files"]]
    assert names == sorted([f"d0/file{number}" for number in range(100)])
    assert f"{box.source}: " in done.err


def test_the_stats_document_has_the_details_only_when_asked(trained: Place) -> None:
    plain = trained.run_here("stats", "--json").document
    done = trained.run_here("stats", "--detail", "--json")

    assert done.code == 0, done.said()
    check(done.document["detail"], DETAIL)
    assert {key: value for key, value in done.document.items() if key != "detail"} == plain
    kinds = {one["kind"]: one["count"] for one in done.document["detail"]["kinds"]}
    assert kinds == {"torch.save": 1, "safetensors": 1, "small": 2}
    told = trained.run_here("stats", "--detail").out
    assert "torch.save" in told
    assert "deltas: " in told


def test_a_store_without_a_snapshot_has_details_too(fresh: Place) -> None:
    assert fresh.run_here("stats", "--detail").code == 0
    document = fresh.run_here("stats", "--detail", "--json").document
    check(document["detail"], DETAIL)


def test_list_and_show_tell_how_long_the_chain_is(taken: Place) -> None:
    listed = taken.run_here("list", "--json").document
    assert [one["chain_length"] for one in listed] == [0, 1, 0]
    shown = taken.run_here("show", listed[1]["id"], "--json").document
    assert shown["chain_length"] == 1
    lines = dict(
        line.split(maxsplit=1) for line in taken.run_here("show", listed[1]["id"]).out.splitlines()
    )
    assert lines["chain"] == "1 after its full snapshot"
    assert "CHAIN" in taken.run_here("list").out.splitlines()[0]


def test_a_chain_whose_base_was_forgotten_is_not_called_a_base(taken: Place) -> None:
    newest, middle, oldest = taken.ids()
    assert taken.run_here("forget", oldest).code == 0

    listed = taken.run_here("list", "--json").document
    assert [(one["chain_length"], one["chain_complete"]) for one in listed] == [
        (0, True),
        (1, False),
    ]
    rows = taken.run_here("list").out.splitlines()[1:]
    assert [line.split()[4] for line in rows] == ["0", "1+"]
    assert "chain     1 or more after its full snapshot" in taken.run_here("show", middle).out
    assert "chain     none: this is a full snapshot" in taken.run_here("show", newest).out


def test_a_gap_in_a_chain_is_not_called_a_full_snapshot_that_is_gone(box: Box) -> None:
    _, middle, newest = (box.take().id for _ in range(3))
    assert box.ciuic("forget", middle).code == 0

    told = " ".join(box.ciuic("show", newest).out.split())
    said = "1 or more after its full snapshot: one between them, or the full one, is no longer"
    assert f"chain {said} listed" in told
