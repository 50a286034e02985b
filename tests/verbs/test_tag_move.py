"""``ciuic tag --move``: a tag that only one snapshot has."""

from tests.kit.box import Box


def tags(box: Box) -> dict[str, tuple[str, ...]]:
    return {summary.id: summary.tags for summary in box.snapshots()}


def test_a_moved_tag_is_on_one_snapshot_and_the_others_keep_theirs(box: Box) -> None:
    (box.source / "a").write_text("x")
    first = box.take(tags=("best", "kept")).id
    second = box.take(tags=("best",)).id
    third = box.take().id

    outcome = box.ciuic("tag", third, "--move", "best", "--add", "new", "--json")

    assert outcome.code == 0
    assert sorted(outcome.document["tags"]) == ["best", "new"]
    assert outcome.document["moved_from"] == [second, first]
    assert tags(box) == {third: ("new", "best"), second: (), first: ("kept",)}
    again = box.ciuic("tag", third, "--move", "best", "--json")
    assert (again.code, again.document["moved_from"]) == (0, [])
    assert tags(box) == {third: ("new", "best"), second: (), first: ("kept",)}


def test_a_wrong_tag_moves_nothing(box: Box) -> None:
    (box.source / "a").write_text("x")
    first = box.take(tags=("best",)).id
    second = box.take().id

    assert box.ciuic("tag", second, "--move", "a|b", "--move", "best").code == 2
    assert tags(box) == {second: (), first: ("best",)}
