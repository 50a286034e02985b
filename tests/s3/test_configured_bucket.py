"""A bucket that a configuration names: ``snapshot_dir = s3://...``, with the keys for it."""

import json
import re
import socket

import pytest

from tests.kit.ceph import ACCESS_KEY, SECRET_KEY
from tests.kit.place_contract import keys
from tests.s3.conftest import WITHOUT

pytestmark = [pytest.mark.slow, pytest.mark.root]


def test_every_command_uses_the_bucket_of_the_configuration(run, address, source, tmp_path):
    assert address in run("init")
    (source / "file").write_text("first")
    first = run("snapshot").splitlines()[0]
    (source / "file").write_text("second")
    run("snapshot")
    assert json.loads(run("status", "--json"))["store"] == address
    run("verify", "--all", "--checksum")
    run("restore", "-s", first, "-p", str(source / "file"), "-d", str(tmp_path / "out"))
    assert (tmp_path / "out" / "file").read_text() == "first"
    run("forget")
    assert first not in [one["id"] for one in json.loads(run("list", "--json"))]
    run("forget", "--undo", first)
    assert first in [one["id"] for one in json.loads(run("list", "--json"))]


def test_the_advice_for_a_bucket_without_a_store_works_as_it_is_printed(run, address):
    said = run("list", code=1)
    found = re.search(r"'ciuic (.*?)'", " ".join(said.split()))
    assert found is not None, said
    assert found[1] == f"--config {run.config} init"
    assert address in run("init")


def test_a_copy_without_a_store_is_created_as_the_advice_says(run, address):
    run("init")
    run("snapshot")
    said = run("copy", "--to", f"{address}-copy", code=1)
    assert "--init" in said
    assert "'ciuic --store" not in said
    assert "1 snapshot copied" in run("copy", "--to", f"{address}-copy", "--init")


def test_no_object_and_no_file_of_the_cache_holds_a_credential(run, server, address, tmp_path):
    from ciuic.store.place.address import open_place
    from ciuic.store.place.location import PlaceOptions

    run("init")
    run("snapshot")
    run("tag", "latest", "--add", "word")

    place = open_place(address, server.environment, PlaceOptions(endpoint=server.endpoint))
    contents = [place.get(key, 1 << 27) for key in keys(place)]
    contents += [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(contents) > 6
    for secret in (ACCESS_KEY.encode(), SECRET_KEY.encode(), str(tmp_path / "ciuic.key").encode()):
        assert not [content for content in contents if secret in content]


def test_a_mistake_in_how_to_reach_the_bucket_is_one_sentence(run, key_file):
    run("init")
    key_file.chmod(0o644)
    assert f"other users can read the credentials file {key_file}" in run("list", code=2)
    key_file.chmod(0o600)
    key_file.write_text(key_file.read_text().replace(SECRET_KEY, "wrong"))
    said = run("list", code=1)
    assert "SignatureDoesNotMatch" in said
    assert len(said.splitlines()) == 2
    key_file.unlink()
    assert f"the credentials file {key_file} cannot be read" in run("list", code=2)


def test_with_a_store_named_the_configuration_says_nothing_of_it(run, address, key_file):
    run("init")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
        environ = {**WITHOUT, "AWS_SHARED_CREDENTIALS_FILE": str(key_file)}
        other = {**environ, "AWS_ENDPOINT_URL": closed, "AWS_PROFILE": "absent"}
        said = run("--store", address, "list", code=2, more=other)

    assert "has no access key in its section [absent]" in said
