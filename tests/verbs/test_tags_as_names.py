"""A tag in place of an ID means the newest snapshot that has it."""

from pathlib import Path

import pytest

from tests.kit.box import Box


def test_a_tag_names_the_newest_snapshot_that_has_it_and_moves(box: Box, tmp_path: Path) -> None:
    ids = []
    for number in range(3):
        (box.source / "model").write_text(str(number))
        ids.append(box.take(tags=("all", "best") if number == 0 else ("all",)).id)

    def restored(name: str) -> str:
        out = tmp_path / f"out-{name}"
        outcome = box.ciuic(
            "restore", "-s", name, "-p", box.source / "model", "-d", out, "--overwrite"
        )
        assert outcome.code == 0, outcome.err
        return (out / "model").read_text()

    assert (restored("best"), restored("all")) == ("0", "2")
    assert box.ciuic("tag", ids[1], "--move", "best").code == 0
    assert restored("best") == "1"
    assert box.ciuic("cat", "best", str(box.source / "model")).out == "1"
    assert box.ciuic("verify", "best", "--json").document["snapshots"][0]["id"] == ids[1]
    compared = box.ciuic("compare", "best", "all", "--json").document["snapshots"]
    assert [one["id"] for one in compared] == [ids[1], ids[2]]


def test_reserved_words_are_no_tags_and_forget_accepts_no_tag(box: Box) -> None:
    (box.source / "model").write_text("1")
    first = box.take(tags=("latest", "keep")).id
    (box.source / "model").write_text("2")
    box.take()

    assert box.ciuic("cat", "latest", str(box.source / "model")).out == "2"
    assert box.ciuic("show", "keep").out.split()[1] == first
    refused = box.ciuic("forget", "keep")
    assert (refused.code, "'keep' is not a snapshot's ID" in refused.err) == (2, True)
    assert len(box.snapshots()) == 2


@pytest.mark.parametrize("tag", ["500", "3fabc39", "abc"])
def test_a_tag_of_hexadecimal_digits_is_a_name_as_well(box: Box, tag: str) -> None:
    first = box.take().id
    assert box.ciuic("show", tag).code == 1
    box.ciuic("tag", first, "--add", tag)
    if not first.startswith(f"cs-{tag}"):
        assert box.ciuic("show", f"cs-{tag}").code == 1

    assert box.ciuic("show", tag).out.split()[1] == first


def test_a_word_that_is_a_tag_and_begins_the_id_of_another_snapshot_is_refused(box: Box) -> None:
    first, second = box.take().id, box.take().id
    tag = second.removeprefix("cs-")[:10]
    assert box.ciuic("tag", first, "--add", tag).code == 0
    assert box.ciuic("show", f"cs-{tag}").out.split()[1] == second

    refused = box.ciuic("show", tag)

    assert refused.code == 1
    assert f"'{tag}' is ambiguous: it is a tag of {first}, and the ID {second}" in refused.err
    assert box.ciuic("tag", first, "--remove", tag).code == 0
    assert box.ciuic("show", tag).out.split()[1] == second


@pytest.mark.parametrize("tag", ["latest", "latest-valid", "2026-11-26", "cs-38a2b1"])
def test_a_tag_that_means_something_else_is_pointed_out(box: Box, tag: str) -> None:
    first = box.take().id

    done = box.ciuic("tag", first, "--add", tag)

    assert done.code == 0
    assert f"'{tag}' in place of an ID means something else" in done.err
    assert "means something else" not in box.ciuic("tag", first, "--add", "step-500").err
