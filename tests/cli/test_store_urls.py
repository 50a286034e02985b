"""A store is in a directory: the URL of an object store is refused, and not taken for a path."""

import pytest

from tests.kit.installed import run_here

COMMANDS = [
    ("init",),
    ("list",),
    ("snapshot", "."),
    ("verify",),
    ("restore", "-s", "latest", "-p", "/x"),
    ("prune", "--dry-run"),
    ("stats",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("scheme", ["s3", "GS", "az", "file", "git+ssh"])
def test_a_store_by_url_is_refused_in_one_sentence(tmp_path, monkeypatch, command, scheme):
    monkeypatch.chdir(tmp_path)

    done = run_here("--store", f"{scheme}://user:secret@bucket/prefix", *command)

    assert done.code == 2, done.said()
    assert done.out == ""
    assert done.err.splitlines() == [
        "ciuic: --store is a URL, and a store has to be in a directory of this machine",
        "       Give --store the path of a directory.",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["s3:bucket", "1s3://bucket", "./s3://bucket"])
def test_a_path_with_a_colon_is_a_path(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)

    assert run_here("--store", name, "init").code == 0

    assert (tmp_path / name / "ciuic-store.json").exists()
