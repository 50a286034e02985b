"""Addresses, options and credentials of places: what ciuic understands, and what it refuses."""

import os

import pytest
from obstore.exceptions import GenericError
from obstore.store import S3Store

from ciuic.errors import AccessDeniedError, StoreError, UsageError
from ciuic.store.place.address import open_place
from ciuic.store.place.answers import sorted_error
from ciuic.store.place.credentials import AccessKey, find_access_key
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.place.location import PlaceOptions
from ciuic.store.place.objects import Clients, ObjectPlace
from ciuic.store.place.retries import TransientError

SECRET = "s3cr3t+/key"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": SECRET}
FILE = f"""\
[default]
aws_access_key_id = AKID
aws_secret_access_key = {SECRET}
[work]
aws_access_key_id = WORK
aws_secret_access_key = a%b
aws_session_token = token
[empty]
region = x
"""


@pytest.fixture
def credentials(tmp_path):
    path = tmp_path / "credentials"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("S3://bucket/", "s3://bucket"),
    ],
)
def test_an_address_names_a_place(address, name):
    assert open_place(address, ENVIRONMENT).name == name


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_path_is_a_directory(tmp_path, prefix):
    place = open_place(f"{prefix}{tmp_path}", {})

    assert isinstance(place, DirectoryPlace)
    assert place.name == str(tmp_path)


def test_google_and_azure_are_opened_without_a_request(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")

    assert open_place("gs://bucket/a", {}).name == "gs://bucket/a"
    assert open_place("az://container/a", {}).name == "az://container/a"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ftp://host/path", "'ftp:' is not a kind of store"),
        ("https://host/path", "'https:' is not a kind of store"),
        ("relative/path", "it is a relative path"),
        ("", "it is a relative path"),
        ("s3:///path", "no valid bucket name"),
        ("s3://b", "no valid bucket name"),
        ("s3://bucket:80/x", "no valid bucket name"),
        ("s3://bucket/a/../b", "a prefix with a forbidden character"),
        ("s3://bucket/a b", "a prefix with a forbidden character"),
        ("s3://bucket/a//b", "a prefix with a forbidden character"),
        ("s3://bucket/a?region=x", "is followed by"),
        ("s3://bucket/a#b", "is followed by"),
        ("file://host/path", "another machine"),
        ("file:path", "another machine"),
        ("s3://[bucket", "not a URL"),
    ],
)
def test_an_address_that_is_not_understood_is_refused_in_one_sentence(address, why):
    with pytest.raises(UsageError, match=why) as caught:
        open_place(address, ENVIRONMENT)

    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (f"s3://AKID:{SECRET}@bucket/x", "a user name or a password"),
        (f"s3://AKID:{SECRET}/bucket/x", "no valid bucket name"),
        (f"AKID:{SECRET}@bucket", "a user name or a password"),
    ],
)
def test_an_address_with_a_password_is_refused_without_showing_it(address, why):
    with pytest.raises(UsageError, match=why) as caught:
        open_place(address, {})

    assert SECRET not in caught.value.message + caught.value.hint


def test_a_path_that_loops_is_a_store_error(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    with pytest.raises(StoreError):
        open_place(str(loop), {}).get("a", 1)


def test_the_environment_wins_over_the_usual_file(credentials):
    usual = {"AWS_SHARED_CREDENTIALS_FILE": str(credentials)}

    assert find_access_key("", {}) is None
    assert find_access_key("", {"HOME": "/none"}) is None
    assert find_access_key("", usual) == AccessKey("AKID", SECRET, "", str(credentials))
    named = {**usual, "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B"}
    assert find_access_key("", named) == AccessKey("A", "B", "", "AWS_ACCESS_KEY_ID")
    assert find_access_key(str(credentials), named) == AccessKey(
        "AKID", SECRET, "", str(credentials)
    )
    assert find_access_key("", {**named, "AWS_SESSION_TOKEN": "C"}).token == "C"


def test_a_profile_is_a_section(credentials):
    key = find_access_key(str(credentials), {"AWS_PROFILE": "work"})

    assert key == AccessKey("WORK", "a%b", "token", str(credentials))


def test_the_usual_file_is_in_the_home_directory(tmp_path, credentials):
    (tmp_path / ".aws").mkdir()
    usual = credentials.rename(tmp_path / ".aws" / "credentials")

    assert find_access_key("", {"HOME": str(tmp_path)}) == AccessKey("AKID", SECRET, "", str(usual))


def test_a_credentials_file_that_others_can_read_is_refused(credentials):
    credentials.chmod(0o640)

    with pytest.raises(UsageError, match="other users can read") as caught:
        open_place("s3://bucket/x", {}, PlaceOptions(credentials_file=str(credentials)))
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "profile", "why"),
    [
        (FILE, "empty", r"no access key in its section \[empty\]"),
        (FILE, "none", r"no access key in its section \[none\]"),
        (f"aws_secret_access_key = {SECRET}\n", "", "not in the format"),
        (f"[default]\n{SECRET}\n", "", "not in the format"),
        ("[default\n", "", "not in the format"),
        ("", "", r"no access key in its section \[default\]"),
        (
            f"[default]\naws_access_key_id =\naws_secret_access_key = {SECRET}\n",
            "",
            "no access key",
        ),
        ("[default]\naws_access_key_id = a\naws_secret_access_key =\n", "", "no access key"),
    ],
)
def test_a_credentials_file_that_cannot_be_used_is_named_without_its_content(
    credentials, content, profile, why
):
    credentials.write_text(content)

    with pytest.raises(UsageError, match=why) as caught:
        find_access_key(str(credentials), {"AWS_PROFILE": profile})
    assert str(credentials) in caught.value.message
    assert SECRET not in repr(caught.value) + repr(caught.value.__cause__)


def test_a_credentials_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match="No such file or directory"):
        find_access_key(str(tmp_path / "none"), {})
    with pytest.raises(UsageError, match="Is a directory"):
        find_access_key(str(tmp_path), {})
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(UsageError, match="not a regular file"):
        find_access_key(str(tmp_path / "fifo"), {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe[default]")
    (tmp_path / "binary").chmod(0o600)
    with pytest.raises(UsageError, match="not in the format"):
        find_access_key(str(tmp_path / "binary"), {})


def test_texts_never_show_a_key(credentials):
    key = find_access_key(str(credentials), {})
    place = open_place("s3://bucket/x", ENVIRONMENT)

    assert SECRET not in repr(key) + str(key) + repr(place)
    assert "AKID" not in repr(key) + repr(place)
    assert repr(place) == "ObjectPlace('s3://bucket/x')"


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
@pytest.mark.parametrize(
    "value",
    [
        "127.0.0.1:9000",
        "garbage",
        "http://",
        "http://a b",
        "http://h:99999",
        "http://[::1",
        "ftp://x",
    ],
)
def test_a_server_of_the_environment_with_which_the_client_would_abort_is_refused(name, value):
    with pytest.raises(UsageError) as caught:
        open_place("s3://bucket/a", {**ENVIRONMENT, name: value})

    assert caught.value.message.startswith(f"{name} cannot be used: it is not the URL of a server")
    assert caught.value.hint == f"Correct or unset the environment variable {name}."
    options = PlaceOptions(endpoint="https://s3.example.org")
    assert open_place("s3://bucket/a", {**ENVIRONMENT, name: value}, options)


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_region_of_the_environment_with_which_the_client_would_abort_is_refused(name):
    with pytest.raises(UsageError, match=f"{name} is not the name of a region"):
        open_place("s3://bucket/a", {**ENVIRONMENT, name: "a b"})
    assert open_place("s3://bucket/a", {**ENVIRONMENT, name: "a b"}, PlaceOptions(region="eu"))


def test_a_client_that_aborts_is_an_error_of_the_store():
    config = {"endpoint": "127.0.0.1:9", "access_key_id": "a", "secret_access_key": SECRET}
    store = S3Store("bucket", config=config)
    place = ObjectPlace("s3://bucket", Clients(store, store, store), patience_s=0)

    with pytest.raises(StoreError, match="cannot read s3://bucket/a: the object store client"):
        place.get("a", 10)


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
def test_half_a_key_in_the_environment_is_one_sentence(name):
    (missing,) = ENVIRONMENT.keys() - {name}
    with pytest.raises(UsageError, match=f"^{name} is set, and {missing} is not"):
        open_place("s3://bucket/a", {name: SECRET})


@pytest.mark.parametrize("answer", ["status code: 403 Forbidden", "error sending request"])
def test_a_machine_that_gives_no_credentials_is_not_taken_for_the_server(answer):
    asked = "Error performing PUT http://169.254.169.254/latest/api/token"
    found = sorted_error(GenericError(f"{asked}: {answer}"), "read", "s3://bucket/a")
    assert isinstance(found, AccessDeniedError)
    assert found.message == "cannot read s3://bucket/a: there are no credentials"


@pytest.mark.parametrize("status", [429, 503])
def test_a_machine_that_gives_no_credentials_for_now_is_asked_again(status):
    asked = "Error performing PUT http://169.254.169.254/latest/api/token"
    error = GenericError(f"{asked}: status code: {status} for now")
    assert isinstance(sorted_error(error, "read", "s3://bucket/a"), TransientError)


def test_an_object_that_cannot_be_read_may_be_of_another_account():
    answer = GenericError("status code: 403: <Code>AccessDenied</Code>")
    assert "keys of one account" in sorted_error(answer, "read", "s3://bucket/a/key").hint
    assert "keys of one account" not in sorted_error(answer, "write", "s3://bucket/a/key").hint


def test_a_refusal_without_a_reason_names_what_else_may_be_wrong():
    """The answer to HEAD has no body."""
    answer = GenericError("status code: 403: ")
    assert "clock of this machine" in sorted_error(answer, "look at", "s3://bucket/a/key").hint
    assert "clock of this machine" not in sorted_error(answer, "read", "s3://bucket/a/key").hint
