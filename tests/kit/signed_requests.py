"""Signed URLs for the real S3 server of the tests, and buckets in it."""

import urllib.request
from datetime import timedelta
from typing import Literal

import obstore
from obstore.store import S3Store

from tests.kit.ceph import ACCESS_KEY, SECRET_KEY, Server

__all__ = ["make_bucket", "signed_url"]


def signed_url(server: Server, method: Literal["GET", "PUT"], path: str) -> str:
    """Return a URL with which a program without credentials may send a request for five minutes.

    Args:
        server: The server.
        method: The method of the request.
        path: "/BUCKET/KEY"; without a key, the bucket itself.
    """
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


def make_bucket(server: Server, name: str) -> None:
    """Make a bucket: obstore has no call for it, but signs the request that makes one."""
    request = urllib.request.Request(signed_url(server, "PUT", f"/{name}/"), method="PUT")
    with urllib.request.urlopen(request, timeout=60):
        pass
