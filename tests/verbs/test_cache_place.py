"""If the cache directory of a bucket cannot be made, the error says that it is a cache."""

import pytest

from ciuic.errors import StoreError
from tests.kit.buckets import FolderMachine

pytestmark = pytest.mark.root


def test_a_file_in_the_place_of_the_cache_is_named_with_a_way_out(tmp_path):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(StoreError, match="Not a directory") as caught:
        machine.ids()
    assert "XDG_CACHE_HOME" in caught.value.hint
