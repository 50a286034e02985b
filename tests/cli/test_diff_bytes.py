"""``ciuic diff`` in bytes: of each file, in total, and what the change added to the store."""

import os
import re

import numpy as np

from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.installed import Place

FILE_BYTES = 3_000_000


def change(place: Place) -> dict[str, int]:
    """Change one file, add one, copy one and remove one; return what the store says of it."""
    source = place.source
    grown = (source / "grown.bin").read_bytes() + os.urandom(200_000)
    (source / "grown.bin").write_bytes(grown)
    (source / "new.bin").write_bytes(os.urandom(50_000))
    (source / "copy.bin").write_bytes((source / "still.bin").read_bytes())
    (source / "renamed.bin").write_bytes((source / "gone.bin").read_bytes())
    (source / "gone.bin").unlink()
    (source / "mode.bin").chmod(0o600)
    return place.run("snapshot", "--json").document


def prepare(place: Place) -> str:
    for name in ("grown.bin", "still.bin", "gone.bin"):
        (place.source / name).write_bytes(os.urandom(FILE_BYTES))
    (place.source / "mode.bin").write_bytes(b"m")
    assert place.run_here("init").code == 0
    return place.snapshot()


def test_each_line_has_the_bytes_of_its_file_and_the_last_the_new_content(tmp_path):
    place = Place(tmp_path)
    before = prepare(place)
    taken = change(place)

    done = place.run("diff", before, "latest")

    lines = {re.split("  ", line, maxsplit=1)[0]: line for line in done.out.splitlines()}
    source = place.source
    assert lines.keys() == {
        f"+ {source}/copy.bin",
        f"- {source}/gone.bin",
        f"M {source}/grown.bin",
        f"m {source}/mode.bin",
        f"+ {source}/new.bin",
        f"+ {source}/renamed.bin",
    }
    assert lines[f"+ {source}/copy.bin"].endswith("  2.86 MiB, 0 B new")
    assert lines[f"+ {source}/renamed.bin"].endswith("  2.86 MiB, 0 B new")
    assert lines[f"+ {source}/new.bin"].endswith("  48.8 KiB")
    assert lines[f"- {source}/gone.bin"].endswith("  2.86 MiB")
    assert "  2.86 MiB -> 3.05 MiB, " in lines[f"M {source}/grown.bin"]
    assert done.err.startswith(
        "3 files added (+5.77 MiB), 1 file removed (-2.86 MiB), 1 file changed (+195 KiB),"
        " 1 other change; new content: "
    )
    assert done.err.endswith(", before compression\n")
    listed = place.run("diff", before, "latest", "--json").document
    assert sum(one["new_bytes"] for one in listed) == taken["new_bytes"]
    assert 250_000 <= taken["new_bytes"] < FILE_BYTES


def test_the_document_has_the_difference_and_the_new_bytes_of_each_change(tmp_path):
    place = Place(tmp_path)
    before = prepare(place)
    change(place)

    found = {
        os.path.basename(one["path"]): (one["difference_bytes"], one["new_bytes"])
        for one in place.run("diff", before, "latest", "--json").document
    }
    quick = place.run("diff", before, "latest", "--json", "--quick").document

    assert found["copy.bin"] == (FILE_BYTES, 0)
    assert found["gone.bin"] == (-FILE_BYTES, 0)
    assert found["new.bin"] == (50_000, 50_000)
    assert found["mode.bin"] == (0, 0)
    assert found["grown.bin"][0] == 200_000
    assert 200_000 <= found["grown.bin"][1] < FILE_BYTES
    assert {one["new_bytes"] for one in quick} == {None}
    assert len(quick) == len(found)


def test_with_tensors_the_sizes_new_content_and_the_summary_stay(tmp_path):
    place = Place(tmp_path)
    weights = np.ones(100_000, "<f4")
    np.save(place.source / "step_100.npy", weights)
    assert place.run_here("init").code == 0
    before = prepare(place)
    weights[0] = 2
    np.save(place.source / "step_200.npy", weights)
    change(place)

    plain = place.run("diff", before, "latest")
    tensors = place.run("diff", before, "latest", "--tensors")
    quick = place.run("diff", before, "latest", "--tensors", "--quick")

    kept = [line for line in tensors.out.splitlines() if not line.startswith(" ")]
    assert [line.partition("  against ")[0] for line in kept] == plain.out.splitlines()
    assert f"  against {place.source}/step_100.npy" in tensors.out
    assert tensors.err == plain.err
    assert quick.err == plain.err.partition("; new content")[0] + "\n"
    documents = place.run("diff", before, "latest", "--tensors", "--json").document
    assert [{**one, "tensors": None} for one in documents] == [
        {**one, "tensors": None} for one in place.run("diff", before, "latest", "--json").document
    ]


def test_bytes_that_two_new_files_share_are_counted_once(tmp_path):
    place = Place(tmp_path)
    before = prepare(place)
    data = os.urandom(2_000_000)
    for name in ("one.bin", "two.bin"):
        (place.source / name).write_bytes(data)
    place.snapshot()

    found = place.run("diff", before, "latest", "--json").document

    assert [one["new_bytes"] for one in found] == [2_000_000, 0]


def test_nothing_is_said_to_have_changed_between_a_snapshot_and_itself(tmp_path):
    place = Place(tmp_path)
    prepare(place)

    done = place.run("diff", "latest", "latest")

    assert (done.code, done.out, done.err) == (0, "", "nothing changed\n")


def test_damage_in_what_did_not_change_hides_the_cost_and_nothing_else(tmp_path):
    box = Box(tmp_path)
    (box.source / "kept").mkdir()
    (box.source / "kept" / "still").write_bytes(b"still")
    box.take()
    (box.source / "later").write_bytes(b"later")
    first = box.take().id  # its root's tree lies in a pack apart from the unchanged chunks
    (box.source / "new").write_bytes(b"new")
    box.take()
    kept = box.entries()[os.fsencode(box.source / "kept")]
    with open_store(str(box.store)) as store:
        place = store.reader.places([kept.content])[kept.content]
    pack = box.store / "packs" / place.pack_id.hex()
    broken = bytearray(pack.read_bytes())
    for at in range(place.offset_bytes, place.offset_bytes + place.frame_bytes):
        broken[at] ^= 0xFF
    pack.chmod(0o600)
    pack.write_bytes(broken)

    done = box.ciuic("diff", first, "latest")
    quick = box.ciuic("diff", first, "latest", "--quick")

    assert quick.code == 0
    assert done.code == 4
    assert done.out.replace("  3 B", "") == f"+ {box.source}/new\n"
    assert "the amount of new content is not known" in done.err
