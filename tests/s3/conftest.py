"""A place in a bucket of a real S3 server."""

import functools
import itertools
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta

import obstore
import pytest
from obstore.store import S3Store

from tests.kit.ceph import ACCESS_KEY, SECRET_KEY, Server, ceph_server

_BUCKETS = itertools.count(1)


def signed(server: Server, method: str, path: str) -> str:
    """Return a URL with which a program without credentials may send a request."""
    _, bucket, key = path.split("/", 2)
    client = S3Store(
        bucket,
        config={
            "endpoint": server.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        },
        client_options={"allow_http": True},
    )
    return obstore.sign(client, method, key, timedelta(minutes=5))


@pytest.fixture
def sign(server: Server) -> Callable[[str, str], str]:
    """See ``signed``."""
    return functools.partial(signed, server)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests of the session."""
    with ceph_server() as running:
        yield running


@pytest.fixture(scope="session")
def bucket(server: Server, worker_id: str) -> str:
    """A bucket of this worker."""
    name = f"tests-{worker_id}"
    # The client can't make a bucket, but it can sign the request that does.
    url = signed(server, "PUT", f"/{name}/")
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60):
        pass
    return name


@pytest.fixture
def address(bucket: str) -> str:
    """The address of a new place."""
    return f"s3://{bucket}/stores/{next(_BUCKETS)}"
