"""What the header of a bucket requires is what the bucket says now, not what this machine kept."""

import msgspec
import pytest

from ciuic.errors import UnknownFormatError
from ciuic.store.records.header import decode_header
from ciuic.store.records.layout import HEADER
from tests.kit.buckets import FolderMachine, write

pytestmark = pytest.mark.root


def test_a_feature_that_writers_no_longer_need_stops_no_writer(tmp_path):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    write(tmp_path / "source", "a")
    path = tmp_path / "bucket" / HEADER
    before = path.read_bytes()
    later = msgspec.structs.replace(decode_header(before), required_to_write=["sealing"])
    path.write_bytes(later.encode())
    with machine.opened():
        pass  # a reader keeps it
    with pytest.raises(UnknownFormatError, match="can only read the store"):
        machine.take(tmp_path / "source")
    path.write_bytes(before)
    assert machine.take(tmp_path / "source").id in machine.ids()
