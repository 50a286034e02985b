"""``ciuic note``, and lists by day and shares as bars."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ciuic.store.records.mark import Mark, decode_mark, encode_mark
from tests.kit.box import Box
from tests.kit.clock import ManualClock

ID = "cs-abcdef"
NOON_NS = 1_781_524_800_000_000_000
DAY_NS = 86_400_000_000_000


@given(st.text(st.characters(codec="utf-8"), max_size=20), st.booleans())
def test_a_mark_holds_its_note_and_one_without_is_as_before(note: str, pinned: bool) -> None:
    mark = Mark(("a",), pinned, note=note)
    data = encode_mark(mark, ID, 3)

    assert decode_mark(data, ID, 3) == mark
    assert (b'"note"' in data) == bool(note)


def test_a_note_outlives_tags_pins_forgetting_and_the_chunk_index(box: Box) -> None:
    (box.source / "a").write_text("x")
    first, second = box.take().id, box.take().id
    text = "bést \u5b57 run; -- 'quoted' <b>"
    assert box.ciuic("note", first, text).out == f"{text}\n"

    for command in (
        ["tag", first, "--add", "t"],
        ["tag", first, "--move", "m"],
        ["pin", first],
        ["pin", first, "--remove"],
        ["forget", first],
        ["forget", "--undo", first],
    ):
        assert box.ciuic(*command).code == 0
        if command != ["forget", first]:
            assert box.ciuic("note", first, "--json").document == {"id": first, "note": text}
    (box.store / "catalog.sqlite").unlink()
    listed = {one["id"]: one["note"] for one in box.ciuic("list", "--json").document}
    assert listed == {first: text, second: ""}
    assert text in box.ciuic("list").out
    assert text in box.ciuic("show", first).out
    assert "NOTE" in box.ciuic("list").out

    assert box.ciuic("note", first, "--remove").code == 0
    found = box.ciuic("note", first)
    assert (found.out, found.err) == ("", f"{first} has no note\n")
    assert "NOTE" not in box.ciuic("list").out


def test_a_text_that_is_no_note_changes_nothing(box: Box) -> None:
    (box.source / "a").write_text("x")
    name = box.take().id

    for text in ("", "two\nlines", "\x1b[31m", "x" * 4097, "\u202e"):
        found = box.ciuic("note", name, text)
        assert (found.code, len(found.err.splitlines())) == (2, 2), found.err
    assert box.ciuic("note", name, "text", "--remove").code == 2
    assert box.ciuic("note", "cs-ffffffffff", "text").code == 1
    assert not (box.store / "marks").exists()
    assert box.ciuic("note", name, "x" * 4096).code == 0


def test_a_list_by_day_has_every_snapshot_under_its_day(box: Box) -> None:
    (box.source / "a").write_text("x")
    clocks = [ManualClock(NOON_NS + day * DAY_NS) for day in (0, 1, 1, 3)]
    ids = [box.take(clock=clock).id for clock in clocks]

    found = box.ciuic("list", "--by-day")
    plain = box.ciuic("list")

    parts = found.out.split("\n\n")
    assert [part.splitlines()[0].split(",")[0] for part in parts] == [
        "2026-06-18: 1 snapshot",
        "2026-06-16: 2 snapshots",
        "2026-06-15: 1 snapshot",
    ]
    shown = [line.split()[0] for line in found.out.splitlines() if line.startswith("cs-")]
    assert shown == [line.split()[0] for line in plain.out.splitlines() if line.startswith("cs-")]
    assert sorted(shown) == sorted(ids)
    for option in ("--json", "--machine-readable", "--trash"):
        assert box.ciuic("list", "--by-day", option).code == 2


def test_shares_are_bars_that_add_up(box: Box, tmp_path: Path) -> None:
    for name, size in (("a.bin", 300_000), ("b.txt", 100_000), ("c.log", 1)):
        (box.source / name).write_bytes(bytes(at * 31 % 251 for at in range(size)))
    box.take()

    found = box.ciuic("stats", "--by", "kind")
    document = box.ciuic("stats", "--by", "kind", "--json").document

    stored = sum(group["stored_bytes"] for group in document["groups"])
    rows = {line.split()[0]: line for line in found.out.splitlines()[1:]}
    for group in document["groups"]:
        line = rows[group["kind"]]
        share = 100 * group["stored_bytes"] / stored
        assert line.endswith(f"{share:.0f}%")
        length = line.count("█") + line.count("#")
        assert length == max(1, round(share / 5))
