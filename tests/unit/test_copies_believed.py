"""Which records of copies a process believes: they name servers that it would ask."""

import os
from pathlib import Path

import pytest

from ciuic.copy.record import recorded_copies
from ciuic.store.directory.find import ALLOW_SHARED
from tests.kit.box import Box

OTHER = 12345


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
@pytest.mark.parametrize("which", ["store", "copies", "record"])
def test_a_record_that_another_user_wrote_is_not_believed(
    box: Box, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    (box.source / "a").write_text("a")
    box.take()
    copy = box.directory / "copy"
    assert box.ciuic("copy", "--to", copy, "--init").code == 0
    monkeypatch.setenv(ALLOW_SHARED, "1")
    assert [one.address for one in recorded_copies(str(box.store))] == [str(copy)]
    (record,) = (box.store / "copies").iterdir()
    given: dict[str, Path] = {"store": box.store, "copies": record.parent, "record": record}
    os.chown(given[which], OTHER, OTHER)
    assert recorded_copies(str(box.store)) == []
