"""ciuic reads extended attributes as the store keeps them: sorted, and each name once."""

import os

import pytest

from ciuic.source.directory import read_xattrs

SORTED = ((b"user.a", b"1"), (b"user.a.b", b"2"), (b"user.b", b"3"))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.touch()
    for name, value in reversed(SORTED):
        os.setxattr(path, name, value)
    return path


def user_xattrs(target):
    """Return the attributes without those that the machine adds, such as SELinux labels."""
    return tuple([pair for pair in read_xattrs(target) if pair[0].startswith(b"user.")])


def test_names_are_sorted(path):
    assert user_xattrs(os.fsencode(path)) == SORTED
    with path.open("rb") as file:
        assert user_xattrs(file.fileno()) == SORTED


def test_a_name_that_the_file_system_lists_twice_is_read_once(path, monkeypatch):
    listed = os.listxattr
    monkeypatch.setattr(os, "listxattr", lambda *args, **options: listed(*args, **options) * 2)

    assert user_xattrs(os.fsencode(path)) == SORTED
