"""Large files that are written side by side: a batch that fails leaves nothing, and takes no space.

The bucket is a directory behind the interface of a place.
"""

import errno
import os

import pytest

from ciuic.restore.place.far.side_by_side import SideBySide
from ciuic.restore.place.large_files import LargeFiles
from ciuic.store.place.packs import footer_of
from tests.kit.buckets import FolderMachine, write

MIB = 1024 * 1024
NAMES = ["a", "b", "c"]


@pytest.fixture
def machine(tmp_path):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    write(tmp_path / "source", NAMES, 2 * MIB)
    machine.take(tmp_path / "source")
    return machine


def open_files(below):
    """Return the files below a directory that this process has open, also removed ones."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # that of the list itself
            continue
    return [path for path in found if path.startswith(str(below))]


def damage(machine, tmp_path):
    """Damage the last chunk of the largest pack."""
    with machine.opened() as store:
        packs = store.packs.sizes()
        pack_id = max(packs, key=packs.__getitem__)
        *_, place = footer_of(store.packs.open(pack_id), pack_id)
    (path,) = (tmp_path / "bucket" / "packs").glob(f"{pack_id.hex()}*")
    with path.open("r+b") as file:
        file.seek(place.offset_bytes + place.frame.total_bytes - 100)
        file.write(bytes(50))


def test_files_that_were_given_up_are_not_kept_open(tmp_path, machine, monkeypatch):
    damage(machine, tmp_path)
    place, seen = LargeFiles.place, []

    def noted(files, job):
        seen.append(open_files(tmp_path / "out"))
        place(files, job)

    monkeypatch.setattr(LargeFiles, "place", noted)

    report = machine.restore(tmp_path / "source", tmp_path / "out")

    assert len(report.failed) == 1
    # Directories are open as well.
    assert [[path for path in paths if "-restore-" in path] for paths in seen] == [[], [], []]


def test_a_close_that_fails_has_each_file_written_alone(tmp_path, machine, monkeypatch):
    """NFS, for one, says only then that a write has failed."""
    fill, close, given = SideBySide._fill, os.close, []

    def filled(files, jobs, fds, following):
        fill(files, jobs, fds, following)
        given.append(fds[1])

    def failing(fd):
        close(fd)
        if [fd] == given:
            given.append(-1)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(SideBySide, "_fill", filled)
    monkeypatch.setattr(os, "close", failing)

    report = machine.restore(tmp_path / "source", tmp_path / "out")

    assert given[-1] == -1, "no close has failed"
    assert not report.failed
    out = tmp_path / "out" / "source"
    assert sorted(os.listdir(out)) == NAMES
    assert all(
        (out / name).read_bytes() == (tmp_path / "source" / name).read_bytes() for name in NAMES
    )
    assert not open_files(out)
