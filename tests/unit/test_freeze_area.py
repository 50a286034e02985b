"""The area of reflink copies: no other user can redirect what root changes there."""

from pathlib import Path

import pytest

from ciuic.source.freeze.area import Area
from ciuic.source.freeze.interface import AREA_NAME

STORE_ID = "0123456789abcdef0123456789abcdef"


def test_the_owner_of_the_parent_directory_cannot_redirect_it(tmp_path: Path) -> None:
    header = tmp_path / "ciuic-store.json"
    header.write_text(STORE_ID)
    place = tmp_path / "data"
    place.mkdir()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "0000000000000001").write_text("kept")
    (victim / "letter").write_text("kept")
    area = Area.make(bytes(place), str(header), STORE_ID)
    top = place / AREA_NAME.decode()
    top.rename(place / "away")
    inner = top / STORE_ID
    inner.mkdir(parents=True)
    for name in ("copies", "records", "trees"):
        (inner / name).symlink_to(victim)

    area.begin("cs-0a1b2c")
    area.write_record(1, [])
    area.end()
    assert area.clean(["cs-0a1b2c"]) == ["cs-0a1b2c"]
    area.close()

    assert sorted(path.name for path in victim.iterdir()) == ["0000000000000001", "letter"]


def test_an_area_that_now_belongs_to_another_user_is_not_locked(tmp_path: Path) -> None:
    inner = tmp_path / "area"
    inner.mkdir(mode=0o777)
    inner.chmod(0o777)
    with pytest.raises(PermissionError):
        Area(bytes(inner)).lock()
