"""Parity files that a killed prune has left without their pack."""

import shutil
from pathlib import Path

from tests.kit.box import Box
from tests.kit.damage import packs
from tests.kit.pruning import forget, names_of, prune, wear


def test_parity_without_a_pack_goes_and_each_new_pack_has_its_own(box: Box, tmp_path: Path) -> None:
    worn = wear(box)
    forget(worn, *names_of(worn)[:2])
    before = tmp_path / "before"
    shutil.copytree(worn.store, before)
    prune(worn)
    parity = [path for path in (worn.store / "parity").iterdir() if not path.suffix]
    left = [path.name for path in parity if not (before / "parity" / path.name).exists()]
    assert left, "no pack was rewritten"
    (before / "parity").mkdir(exist_ok=True)
    for name in left:
        shutil.copy(worn.store / "parity" / name, before / "parity" / name)
    shutil.rmtree(worn.store)
    shutil.copytree(before, worn.store)
    old = {path.name for path in packs(worn.store)}

    prune(worn)

    new = {path.name for path in packs(worn.store)} - old
    assert new
    assert new.isdisjoint(left)
    names = {path.name for path in (worn.store / "parity").iterdir() if not path.suffix}
    assert new <= names
    assert names.isdisjoint(left)
