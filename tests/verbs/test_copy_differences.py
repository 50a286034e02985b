"""A copy that is ahead of its store, or has diverged from it: one sentence each, nothing lost."""

import shutil

from tests.kit.box import Box
from tests.kit.program import ciuic


def test_a_copy_that_is_ahead_or_has_more_of_the_store_is_named_and_stays(box: Box) -> None:
    copy, older = box.directory / "copy", box.directory / "older"
    (box.source / "a").write_text("a")
    box.take()
    assert "the copy" not in box.ciuic("copy", "--to", copy, "--init").err
    ahead = ciuic("--store", copy, "snapshot", box.source).out.strip()
    shutil.copytree(box.store, older)
    (box.source / "a").write_text("b")
    lost = box.take().id
    assert box.ciuic("copy", "--to", copy).code == 0
    shutil.rmtree(box.store)
    older.rename(box.store)

    said = box.ciuic("copy", "--to", copy)

    assert said.code == 0
    assert f"the copy is ahead: 1 snapshot, such as {ahead}, was taken there" in said.err
    assert f"1 snapshot, such as {lost}, was taken here" in said.err
    assert ciuic("--store", copy, "copy", "--to", box.store).code == 0
    assert {ahead, lost} < {one.id for one in box.snapshots()}
    assert "such as" not in box.ciuic("copy", "--to", copy).err
    assert box.verify().ok


def test_what_was_forgotten_here_and_kept_there_is_no_difference(box: Box) -> None:
    copy = box.directory / "copy"
    (box.source / "a").write_text("a")
    old = box.take().id
    (box.source / "a").write_text("b")
    box.take()
    assert box.ciuic("copy", "--to", copy, "--init").code == 0
    assert box.ciuic("forget", old).code == 0
    assert "such as" not in box.ciuic("copy", "--to", copy).err
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert "such as" not in box.ciuic("copy", "--to", copy).err
