"""Hard links whose other names are never seen: their memory is bounded, and counts are right."""

import errno
import os
from pathlib import Path

import pytest

from ciuic.model import Entry
from ciuic.restore.place import first_names
from ciuic.snapshot.walk import entry_tasks, hard_links
from ciuic.system.link_table import LinkTable
from tests.kit.box import Box
from tests.kit.trees import differences, photograph


def entry(number: int) -> Entry:
    return Entry(b"n%d" % number, 0o100644, 1, 2, 3, 4, number, content=bytes(number % 900))


def test_records_on_disk_are_found_and_the_later_record_counts(tmp_path: Path) -> None:
    table: LinkTable[Entry] = LinkTable(Entry, (str(tmp_path / "none"), str(tmp_path)))
    assert table.get((1, 2)) is None
    for start in range(0, 5000, 1000):
        assert table.put({(7, number): entry(number) for number in range(start, start + 1000)})
    assert table.put({(7, 42): entry(43), (-1, 2**64 - 1): entry(1)})
    assert [table.get((7, number)) for number in range(41, 44)] == [entry(41), entry(43), entry(43)]
    assert table.get((7, 4999)) == entry(4999)
    assert table.get((-1, 2**64 - 1)) == entry(1)
    assert table.get((8, 41)) is None
    assert os.listdir(tmp_path) == [], "the file has no name"
    table.close()


def test_a_link_table_needs_no_support_for_files_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems refuse O_TMPFILE."""
    really_open = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", path)
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    table: LinkTable[Entry] = LinkTable(Entry, (str(tmp_path),))
    assert table.put({(1, 2): entry(3)})
    assert table.get((1, 2)) == entry(3)
    assert os.listdir(tmp_path) == [], "the file has no name"
    table.close()


def test_a_link_table_without_a_place_for_its_file_takes_no_record(tmp_path: Path) -> None:
    table: LinkTable[Entry] = LinkTable(Entry, (str(tmp_path / "none"),))
    assert not table.put({(1, 2): entry(1)})
    assert table.get((1, 2)) is None


def link_farm(box: Box) -> None:
    """Each file has a name outside; every third one a second name inside, far behind the first."""
    outside = box.directory / "outside"
    outside.mkdir()
    for place in ("a", "z"):
        (box.source / place).mkdir()
    for number in range(90):
        first = box.source / "a" / f"{number}"
        first.write_bytes(os.urandom(300 + number))
        os.link(first, outside / f"{number}")
        if number % 3 == 0:
            os.link(first, box.source / "z" / f"{number}")


@pytest.mark.parametrize("has_room", [True, False])
def test_files_that_were_put_aside_are_read_once_and_linked_again(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    link_farm(box)
    monkeypatch.setattr(hard_links, "_LINKS_MAX", 7)
    monkeypatch.setattr(first_names, "_RECORDS_MAX", 7)
    monkeypatch.setattr(first_names, "_DIRECTORIES", ("/var/tmp",) if has_room else ("/none",))
    # Content is stored as soon as a batch is full.
    monkeypatch.setattr(entry_tasks, "BATCH_FILES", 5)
    before = photograph(box.source)
    bytes_once = sum(300 + number for number in range(90))
    for base in (True, False):
        report = box.take(base=base)
        assert report.trouble_count == 0, report.trouble
        assert (report.files, report.logical_bytes) == (120, bytes_once)
        assert report.read_bytes == (bytes_once if base else 0)
    out = tmp_path / "out"
    foreseen = box.restore(to=out, dry_run=True)
    assert (foreseen.written_files, foreseen.written_bytes) == (120, bytes_once)
    assert box.restore(to=out).failed == []
    assert differences(before, photograph(out / box.source.name)) == []
    for number in range(0, 90, 3):
        first, second = (out / box.source.name / place / f"{number}" for place in ("a", "z"))
        assert first.samefile(second)
    for place in ("a", "z"):
        (out / box.source.name / place / "0").unlink()
    again = box.restore(to=out, overwrite=True, dry_run=True)
    assert (again.written_files, again.written_bytes, again.kept_files) == (2, 300, 118)


def test_a_reused_inode_number_is_not_taken_for_the_first_name(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record on disk stays; a file with the same inode and another ctime must not use it."""
    box = live_box
    link_farm(box)
    monkeypatch.setattr(hard_links, "_LINKS_MAX", 1)
    monkeypatch.setattr(entry_tasks, "BATCH_FILES", 1)
    target = box.source / "z" / "0"
    seen: list[bytes] = []
    calls = iter(range(10_000))

    def rewrite() -> bool:
        if not seen and next(calls) > 70:
            target.write_bytes(b"rewritten")
            seen.append(b"")
        return False

    box.take(cancelled=rewrite)
    assert seen
    assert box.read(target) == b"rewritten"
