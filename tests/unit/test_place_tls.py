"""A server of object storage that has no TLS, or a certificate that nothing here trusts."""

import contextlib
import http.server
import ssl
import subprocess
import threading

import pytest

from ciuic.errors import StoreError
from ciuic.store.place.address import open_place
from ciuic.store.place.location import PlaceOptions

KEY = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cr3t"}


@contextlib.contextmanager
def serving(context=None):
    """Serve HTTP on a port of this machine, with TLS if there is a context; yield the port."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler
    ) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def answer(port):
    """Return the error of a first request to an https:// server on this port."""
    place = open_place("s3://bucket/a", KEY, PlaceOptions(endpoint=f"https://127.0.0.1:{port}"))
    with pytest.raises(StoreError) as caught:
        place.get("x", 10)
    return caught.value


def test_a_server_without_tls_is_named_at_once():
    with serving() as port:
        error = answer(port)

    assert "the server does not answer with TLS" in error.message
    assert "http://" in error.hint


def test_a_certificate_that_is_not_trusted_is_named_at_once(tmp_path):
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        " -keyout key -out certificate -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")

    with serving(context) as port:
        error = answer(port)

    assert "this machine does not trust the server's certificate" in error.message
