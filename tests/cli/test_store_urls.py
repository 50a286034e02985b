"""The URL of a store: ciuic refuses a wrong one, and never quotes it or takes it for a path."""

import pytest

from tests.kit.installed import run_here

COMMANDS = [
    ("init",),
    ("list",),
    ("snapshot", "."),
    ("verify",),
    ("restore", "-s", "latest", "-p", "/x"),
    ("stats",),
    ("scrub",),
    ("repair",),
]


def refused(tmp_path, monkeypatch, address, *command):
    monkeypatch.chdir(tmp_path)
    done = run_here("--store", address, *command)
    assert done.out == ""
    assert "secret" not in done.err
    assert list(tmp_path.iterdir()) == []
    return done.code, done.err.splitlines()


@pytest.mark.parametrize("address", ["s3:/bucket/secret", "S3:/bucket/secret", "file:/secret"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_url_that_lacks_a_slash_is_not_taken_for_a_path(tmp_path, monkeypatch, address, command):
    code, said = refused(tmp_path, monkeypatch, address, *command)

    assert code == 2
    assert "neither a URL nor a clear path" in said[0]
    assert f"Write {address.partition(':')[0]}://" in said[1]


def test_a_directory_whose_name_begins_as_a_url_can_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_here("--store", "./s3:/x", "init").code == 0
    assert (tmp_path / "s3:" / "x").is_dir()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("scheme", ["s3", "GS", "az", "git+ssh"])
def test_a_password_in_a_url_is_refused_and_not_quoted(tmp_path, monkeypatch, command, scheme):
    address = f"{scheme}://user:secret@bucket/prefix"

    assert refused(tmp_path, monkeypatch, address, *command) == (
        2,
        [
            "ciuic: the store's address holds a user name or a password",
            "       Leave them out, and name a credentials file.",
        ],
    )


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://secret/x", "the store's address cannot be used: 'ftp:' is not a kind of store"),
        ("file://secret/x", "the store's address names another machine"),
        ("s3://", "the store's address has no valid bucket name after 's3://'"),
        ("s3://secret!/x", "the store's address has no valid bucket name after 's3://'"),
        (
            "s3://bucket/x?key=secret",
            "the store's address 's3://bucket/x' is followed by '?' or '#'",
        ),
    ],
)
def test_a_url_of_no_store_is_refused_in_one_sentence(tmp_path, monkeypatch, address, message):
    code, said = refused(tmp_path, monkeypatch, address, "list")

    assert (code, said[0], len(said)) == (2, f"ciuic: {message}", 2)


def test_the_url_of_a_directory_is_its_path(tmp_path):
    store = tmp_path / "store"

    assert run_here("--store", f"file://{store}", "init").code == 0

    assert (store / "ciuic-store.json").exists()
    assert run_here("--store", str(store), "list").code == 0


@pytest.mark.parametrize("name", ["s3:bucket", "1s3://bucket", "./s3://bucket"])
def test_a_path_with_a_colon_is_a_path(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)

    assert run_here("--store", name, "init").code == 0

    assert (tmp_path / name / "ciuic-store.json").exists()
