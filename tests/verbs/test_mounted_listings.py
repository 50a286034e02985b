"""A mounted directory that is listed in parts: none of its names is lost, and none comes twice."""

import ctypes
import itertools
import os
import stat

import pytest

from tests.kit.box import Box
from tests.kit.mounted import mounted

NAMES = 20_000


@pytest.fixture
def crowded(box: Box) -> Box:
    (box.source / "names").mkdir()
    for number in range(NAMES):
        os.mknod(box.source / "names" / f"{number:05d}", stat.S_IFREG | 0o644)
    box.take()
    return box


def test_a_directory_with_many_names_is_listed_whole_and_in_order(crowded: Box) -> None:
    wanted = [f"{number:05d}" for number in range(NAMES)]
    with mounted(crowded) as shown:
        place = shown.at(crowded.source) / "names"
        assert os.listdir(place) == wanted
        with os.scandir(place) as first, os.scandir(place) as second:
            pairs = list(zip(first, second, strict=True))
        assert [(one.name, other.name) for one, other in pairs] == [(one, one) for one in wanted]
        # A program that uses attributes makes the kernel ask for those of later names too.
        sizes = {entry.name: entry.stat().st_mode for entry in os.scandir(place)}
        assert sizes == dict.fromkeys(wanted, stat.S_IFREG | 0o644)


def test_a_program_can_go_back_in_a_directory(crowded: Box) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.opendir.restype = library.readdir.restype = ctypes.c_void_p
    library.telldir.restype = ctypes.c_long
    name_at = 19  # d_name in struct dirent of a 64-bit Linux

    def read(directory: ctypes.c_void_p) -> bytes:
        found = library.readdir(directory)
        return b"" if found is None else ctypes.string_at(found + name_at)

    with mounted(crowded) as shown:
        path = os.fsencode(shown.at(crowded.source) / "names")
        directory = ctypes.c_void_p(library.opendir(path))
        head = [read(directory) for _ in range(5000)]
        place = library.telldir(directory)
        tail = list(itertools.takewhile(bool, iter(lambda: read(directory), None)))
        library.seekdir(directory, ctypes.c_long(place))
        again = list(itertools.takewhile(bool, iter(lambda: read(directory), None)))
        library.rewinddir(directory)
        from_start = [read(directory) for _ in range(5000)]
        library.closedir(directory)

    assert head[:3] == [b".", b"..", b"00000"]
    assert len(head + tail) == NAMES + 2
    assert again == tail
    assert from_start == head


def test_nothing_follows_the_end_of_a_directory(crowded: Box) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.opendir.restype = library.readdir.restype = ctypes.c_void_p
    library.telldir.restype = ctypes.c_long
    with mounted(crowded) as shown:
        path = os.fsencode(shown.at(crowded.source) / "names")
        directory = ctypes.c_void_p(library.opendir(path))
        count = len(list(itertools.takewhile(bool, iter(lambda: library.readdir(directory), None))))
        end = library.telldir(directory)
        library.rewinddir(directory)
        library.readdir(directory)
        library.seekdir(directory, ctypes.c_long(end))
        after_end = library.readdir(directory)
        library.closedir(directory)

    assert count == NAMES + 2
    assert after_end is None
