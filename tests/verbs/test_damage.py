"""Flipped bits, anywhere in a store: every path is restored right, or it is named."""

import contextlib
import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.errors import BusyError, CorruptionError, UnknownFormatError
from ciuic.store.directory.locks import Lock
from ciuic.store.store import Store
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.trees import Photo, photograph


class Kept:
    """A store and what its two snapshots must give back."""

    def __init__(self, directory: Path) -> None:
        box = Box(directory, chunk_bytes=4096)
        (box.source / "sub" / "deep").mkdir(parents=True)
        (box.source / "text").write_bytes(b"text that can be compressed " * 400)
        (box.source / "noise").write_bytes(os.urandom(20_000))
        (box.source / "sub" / "small").write_bytes(b"small")
        os.link(box.source / "sub" / "small", box.source / "second name")
        (box.source / "sub" / "deep" / "model").write_bytes(os.urandom(9000))
        (box.source / "link").symlink_to("text")
        with (box.source / "holes").open("wb") as file:
            file.truncate(200_000)
            file.seek(100_000)
            file.write(b"x" * 5000)
        self.photos = {box.take().id: photograph(box.source)}
        (box.source / "text").write_bytes(b"another text " * 500)
        self.photos[box.take().id] = photograph(box.source)
        self.store = box.store
        self.source = box.source
        self.files = sorted(
            str(path.relative_to(box.store))
            for path in box.store.rglob("*")
            if path.is_file() and path.stat().st_size and not path.name.startswith("lock")
        )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))


@contextlib.contextmanager
def copied(kept: Kept) -> Iterator[Box]:
    """A copy of the store that can be damaged."""
    with tempfile.TemporaryDirectory(prefix="ciuic-test-") as directory:
        box = Box.__new__(Box)
        box.directory = Path(directory)
        box.store, box.source = box.directory / "store", kept.source
        box.config, box.clock = box.directory / "ciuic.conf", ManualClock()
        shutil.copytree(kept.store, box.store)
        box.configure()
        yield box


def wrong(expected: dict[bytes, Photo], out: Path) -> set[bytes]:
    """Restored files that differ from the original."""
    actual = photograph(out) if out.exists() else {}
    return {
        path
        for path, photo in actual.items()
        if path not in expected
        or (photo.content, photo.size_bytes) != (expected[path].content, expected[path].size_bytes)
    }


def check(kept: Kept, box: Box) -> None:
    """No wrong byte is restored, and restore and verify name what is missing."""
    for name, photo in kept.photos.items():
        out = box.directory / f"out-{name}"
        try:
            report = box.restore(snapshot=name, to=out)
        except (CorruptionError, UnknownFormatError) as error:  # no other refusal is acceptable
            assert error.message
            assert not out.exists() or wrong(photo, out / "source") == set()
            assert_named(box, name)
            continue
        assert wrong(photo, out / "source") == set()
        missing = photo.keys() - photograph(out / "source").keys()
        if missing:
            assert report.failed, (name, missing)
            assert_named(box, name)
        else:
            assert report.failed == []


def assert_named(box: Box, name: str) -> None:
    """Whether verify reports this snapshot as damaged; without a header it cannot run."""
    with contextlib.suppress(CorruptionError, UnknownFormatError):
        report = box.verify()
        verdicts = {one.id: one.ok for one in report.snapshots}
        assert verdicts[name] is False


def assert_named_or_refused(box: Box) -> None:
    """If no snapshot can be taken, verify must report the damage as well."""
    with contextlib.suppress(CorruptionError, UnknownFormatError):
        assert not box.verify().ok


@given(st.data())
def test_a_changed_byte_anywhere_in_the_store_is_noticed_or_does_not_matter(
    kept: Kept, data: st.DataObject
) -> None:
    with copied(kept) as box:
        name = data.draw(st.sampled_from(kept.files))
        content = bytearray((box.store / name).read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.sampled_from([1, 0x80, 0xFF]))
        (box.store / name).write_bytes(content)
        check(kept, box)


@given(st.data())
def test_a_file_that_is_cut_or_zeroed_anywhere_is_noticed_or_does_not_matter(
    kept: Kept, data: st.DataObject
) -> None:
    with copied(kept) as box:
        name = data.draw(st.sampled_from(kept.files))
        content = bytearray((box.store / name).read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            del content[at:]
        else:
            content[at : at + 512] = bytes(len(content[at : at + 512]))
        (box.store / name).write_bytes(content)
        check(kept, box)


def test_a_flipped_bit_in_the_schema_of_the_chunk_index_costs_nothing(
    kept: Kept,
) -> None:
    """Some errors of SQLite about its file are not of SQLite's own error class."""
    content = (kept.store / "catalog.sqlite").read_bytes()
    start = content.index(b"CREATE TABLE")
    for at in range(start, start + 300, 23):
        with copied(kept) as box:
            changed = bytearray(content)
            changed[at] ^= 0x80
            (box.store / "catalog.sqlite").write_bytes(changed)
            check(kept, box)
            assert len(box.snapshots()) == 2
            assert box.verify().ok


COLUMNS = {
    "pack": ("name", "size_bytes"),
    "chunk": ("pack", "offset_bytes", "frame_bytes", "start_bytes", "length_bytes", "kind"),
    "snapshot": ("file_bytes", "file_mtime_ns", "taken_ns", "summary"),
}


@pytest.mark.slow
@pytest.mark.parametrize("value", ["'text'", "x'ff00ff'", "-1", "1.5", "9223372036854775807", "0"])
def test_a_wrong_value_in_any_column_of_the_chunk_index_does_no_harm(
    kept: Kept, value: str
) -> None:
    for table, columns in COLUMNS.items():
        for column in columns:
            with copied(kept) as box:
                with contextlib.closing(sqlite3.connect(box.store / "catalog.sqlite")) as db:
                    # A unique name can be wrong in one row only.
                    only = " WHERE rowid = 1" if column == "name" else ""
                    db.execute(f"UPDATE {table} SET {column} = {value}{only}")
                    db.commit()
                for name, photo in kept.photos.items():
                    out = box.directory / f"out-{name}"
                    report = box.restore(snapshot=name, to=out)
                    assert report.failed == [], (table, column)
                    assert wrong(photo, out / "source") == set(), (table, column)
                assert box.verify().ok, (table, column)
                assert {one.id for one in box.snapshots()} == set(kept.photos), (table, column)
                assert box.take().trouble_count == 0, (table, column)
                assert box.verify().ok, (table, column)


def test_any_file_of_the_store_may_be_gone(kept: Kept) -> None:
    for name in kept.files:
        with copied(kept) as box:
            (box.store / name).unlink()
            if name.startswith("snapshots"):
                assert len(box.snapshots()) == 1
                continue
            check(kept, box)


def test_two_packs_that_have_changed_places_are_noticed(kept: Kept) -> None:
    names = [name for name in kept.files if name.startswith("packs")]
    for one, other in itertools.pairwise(names):
        with copied(kept) as box:
            (box.store / one).rename(box.store / "packs" / "spare")
            (box.store / other).rename(box.store / one)
            (box.store / "packs" / "spare").rename(box.store / other)
            check(kept, box)


def test_after_any_damage_the_next_snapshot_is_whole_or_says_why_not(kept: Kept) -> None:
    for name in kept.files:
        with copied(kept) as box:
            path = box.store / name
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
            try:
                taken = box.take(base=True)
            except (CorruptionError, UnknownFormatError) as error:
                assert error.message
                assert_named_or_refused(box)
                continue
            report = box.verify()
            verdicts = {one.id: one.ok for one in report.snapshots}
            if verdicts[taken.id]:
                out = box.directory / "out"
                assert box.restore(snapshot=taken.id, to=out).failed == []
                assert wrong(photograph(box.source), out / "source") == set()


def test_a_pack_that_a_prune_takes_while_a_reader_lists_them_costs_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a chunk index, the reader lists all packs before it opens them."""
    listed = Store.pack_files
    monkeypatch.setattr(Store, "pack_files", lambda store: {bytes(32): 5000, **listed(store)})
    monkeypatch.setattr(Lock, "take_alone", _taken)
    with copied(kept) as box:
        (box.store / "catalog.sqlite").unlink()
        for name, photo in kept.photos.items():
            box.restore(kept.source, snapshot=name, to=box.directory / name)
            assert photograph(box.directory / name / kept.source.name) == photo


def _taken(_: Lock) -> None:
    raise BusyError("another process writes")
