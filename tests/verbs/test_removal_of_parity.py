"""Parity that a killed prune has left, and the pack that comes again under its name."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ciuic.store import Store
from tests.kit.box import Box
from tests.kit.damage import packs
from tests.verbs.test_prune import forget, names_of, prune, worn

__all__ = ["worn"]


def test_a_pack_that_comes_again_keeps_the_parity_that_was_left_of_it(
    worn: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(worn, *names_of(worn)[:2])
    before = tmp_path / "before"
    shutil.copytree(worn.store, before)
    prune(worn)
    parity = [path for path in (worn.store / "parity").iterdir() if not path.suffix]
    left = [path.name for path in parity if not (before / "parity" / path.name).exists()]
    assert left, "no pack was written anew"
    (before / "parity").mkdir(exist_ok=True)
    for name in left:
        shutil.copy(worn.store / "parity" / name, before / "parity" / name)
    shutil.rmtree(worn.store)
    shutil.copytree(before, worn.store)

    def slowly(store: Store, names: Any) -> None:
        time.sleep(1)  # what goes beside the writing of new packs comes after it
        empty_trash(store, names)

    empty_trash = Store.empty_trash
    monkeypatch.setattr(Store, "empty_trash", slowly)
    prune(worn)
    assert {path.name for path in packs(worn.store)} >= set(left)
    for path in [worn.store / "packs" / name for name in left]:
        assert (worn.store / "parity" / path.name).exists()
