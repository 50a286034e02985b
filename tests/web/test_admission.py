"""Who may use ``ciuic web``: tokens, cookies, host names, origins."""

import contextlib
import http.client
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.web.openapi import ENDPOINTS
from ciuic.web.server import _listening, parse_address
from tests.kit.box import Box
from tests.kit.served import Served, served


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    box = Box(tmp_path_factory.mktemp("site"))
    (box.source / "notes.txt").write_text("step 1\n")
    box.take()
    with served(box) as running:
        yield running


def cookie_of(site: Served) -> str:
    return site.ask(f"/?token={site.token}", headers={}).headers["set-cookie"].partition(";")[0]


def test_nothing_is_answered_without_the_token(site: Served):
    places = ["/", "/snapshots", "/static/page.js", "/nowhere", *[e.path for e in ENDPOINTS]]
    wrong = [
        {},
        {"Authorization": f"Bearer {site.token}x"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {site.token}"},
        {"Cookie": f"ciuic-session={site.token}"},
        {"Cookie": "ciuic-session="},
        {"Cookie": "\x01=;;="},
    ]

    for place in places:
        assert site.ask(place.replace("{id}", "latest"), headers={}).status == 401
    for headers in wrong:
        assert site.ask("/v1/jobs", headers=headers).status == 401
    assert site.ask("/v1/jobs?token=wrong", headers={}).status == 401
    assert site.ask(f"/v1/jobs?token={site.token}", method="POST", headers={}).status == 401


def test_the_first_request_trades_the_token_for_a_cookie(site: Served):
    answer = site.ask(f"/snapshots?text=a%20b&token={site.token}", headers={})

    assert answer.status == 303
    assert answer.headers["location"] == "/snapshots?text=a+b"
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(attributes)
    assert site.token not in cookie
    assert site.ask("/snapshots", headers={"Cookie": f"other=1; {cookie}"}).status == 200


def test_the_trade_leads_to_no_other_site(site: Served):
    answer = site.ask(f"//evil.example/x?token={site.token}", headers={})

    assert answer.headers["location"] == "/evil.example/x"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:x"])
def test_another_host_name_is_refused(site: Served, host: str):
    headers = {"Authorization": f"Bearer {site.token}", "Host": host}

    assert site.ask("/v1/jobs", headers=headers).status in {400, 421}
    assert site.ask("/v1/jobs", headers={**headers, "Host": "LOCALHOST:9"}).status == 200


def test_a_cookie_alone_changes_nothing(site: Served):
    cookie, host = cookie_of(site), site.base.removeprefix("http://")
    own = {"Cookie": cookie, "X-Ciuic": "1", "Origin": f"http://{host}"}
    work = {"do": "verify", "snapshot": "latest"}

    for wrong in (
        {"Cookie": cookie},
        {**own, "Origin": "http://evil.example"},
        {**own, "Origin": "null"},
        {**own, "Sec-Fetch-Site": "cross-site"},
        {"Cookie": cookie, "Origin": f"http://{host}"},
    ):
        assert site.ask("/v1/jobs", method="POST", headers=wrong, body=work).status == 403, wrong
    assert site.ask("/v1/jobs", method="POST", headers=own, body=work).status == 202


@pytest.mark.parametrize("place", ["/", "/v1/jobs", "/static/page.js", "/nowhere", "/v1/nowhere"])
def test_every_answer_forbids_what_the_page_does_not_need(site: Served, place: str):
    for headers in ({}, {"Authorization": f"Bearer {site.token}"}):
        found = site.ask(place, headers=headers).headers

        assert "script-src 'self';" in found["content-security-policy"]
        assert "unsafe" not in found["content-security-policy"]
        assert found["x-content-type-options"] == "nosniff"
        assert found["referrer-policy"] == "no-referrer"
        assert found["cache-control"] == "no-store"
        assert "server" not in found


def test_a_browser_asks_for_a_file_of_the_page_once(site: Served):
    shown = site.ask("/timeline").body.decode()
    addresses = re.findall(r'(?:href|src)="(/static/[^"]+)"', shown)
    assert len(addresses) == 4
    for address in addresses:
        found = site.ask(address)
        assert found.status == 200
        assert found.headers["cache-control"] == "private, max-age=31536000, immutable"
        place, _, version = address.partition("?v=")
        for other in (place, f"{place}?v={version[:-1]}", f"{place}?v={version}0"):
            assert site.ask(other).headers["cache-control"] == "no-store", other
        assert site.ask(address, headers={}).headers["cache-control"] == "no-store"


def test_a_short_answer_does_not_wait_for_the_browser_to_acknowledge_its_header():
    with (
        _listening(parse_address("127.0.0.1:0")) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_path_outside_the_static_files_is_not_found(site: Served):
    for path in ("../models.py", "..%2fmodels.py", "%2e%2e/models.py", "/etc/passwd", ""):
        assert site.ask(f"/static/{path}").status in {404, 405}


def test_a_socket_is_for_its_user_alone(box: Box, tmp_path: Path):
    (box.source / "notes.txt").write_text("step 1\n")
    box.take()
    path = tmp_path / "web.sock"

    with served(box, path=path) as site:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert len(site.ask("/v1/snapshots").document["snapshots"]) == 1
        assert site.stop() == 0
        assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(box: Box, number: signal.Signals):
    with served(box) as site:
        assert site.stop(number) == 0


@pytest.mark.parametrize(
    ("address", "code"),
    [("0.0.0.0:80", 2), ("example.org:80", 2), ("80", 2), ("127.0.0.1:99999", 2), ("/" * 200, 2)],
)
def test_only_this_machine_is_listened_to(box: Box, address: str, code: int):
    outcome = box.ciuic("web", "--listen", address)

    assert outcome.code == code
    assert outcome.out == ""


def test_a_file_in_the_place_of_the_socket_stays(box: Box, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("keep")

    outcome = box.ciuic("web", "--listen", file)

    assert (outcome.code, outcome.out) == (1, "")
    assert "this one is not a socket" in outcome.err
    assert file.read_text() == "keep"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for ``page.example``, and its key."""
    files = tmp_path / "page.pem", tmp_path / "page.key"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        f" -subj /CN=page.example -addext subjectAltName=DNS:page.example"
        f" -keyout {files[1]} -out {files[0]}".split(),
        check=True,
        capture_output=True,
    )
    return files


def test_with_a_certificate_other_machines_may_reach_it(
    box: Box, certificate: tuple[Path, Path]
) -> None:
    (box.source / "notes.txt").write_text("step 1\n")
    box.take()
    pem, key = certificate
    trust = ssl.create_default_context(cafile=str(pem))
    options = ["--certificate", pem, "--key", key, "--name", "page.example"]

    with served(box, "--listen", "0.0.0.0:0", *options) as site:
        assert site.url.startswith("https://page.example:")
        port = int(site.base.rpartition(":")[2])

        def ask(host: str, secure: bool = True) -> http.client.HTTPResponse:
            plain = socket.create_connection(("127.0.0.1", port), 120)
            with contextlib.closing(http.client.HTTPConnection(host, port)) as connection:
                connection.sock = plain
                if secure:
                    connection.sock = trust.wrap_socket(plain, server_hostname="page.example")
                connection.request("GET", site.url.partition(f":{port}")[2])
                answer = connection.getresponse()
                answer.read()
                return answer

        assert ask("other.example").status == 421
        answer = ask("PAGE.example")
        assert answer.status == 303
        assert "secure" in answer.headers["set-cookie"].lower()
        with pytest.raises((http.client.HTTPException, OSError)):
            ask("page.example", secure=False)


def test_a_certificate_that_cannot_be_used_is_one_sentence(
    box: Box, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    pem, key = certificate
    (tmp_path / "junk").write_text("junk")
    for first, second in ((pem, tmp_path / "junk"), (tmp_path / "none", key), (key, pem)):
        outcome = box.ciuic("web", "--certificate", first, "--key", second, "--name", "a")
        assert (outcome.code, outcome.out) == (1, "")
        assert "cannot be used" in outcome.err
    key.chmod(0o644)
    outcome = box.ciuic("web", "--certificate", pem, "--key", key, "--name", "a")
    assert (outcome.code, outcome.out) == (1, "")
    assert f"every user can read the private key {key}" in outcome.err
    key.chmod(0o640)
    for name in ("bad/name", "a b", "", "a:80", "https://a"):
        outcome = box.ciuic("web", "--certificate", pem, "--key", key, "--name", name)
        assert (outcome.code, outcome.out) == (2, ""), name
    alone = box.ciuic("web", "--listen", "0.0.0.0:0", "--certificate", pem)
    assert (alone.code, alone.out) == (2, "")


def test_a_place_that_is_taken(box: Box, tmp_path: Path):
    path = tmp_path / "taken"
    path.write_text("mine")
    with served(box) as site:
        port = site.base.rpartition(":")[2]
        outcome = box.ciuic("web", "--listen", f"127.0.0.1:{port}")

    assert outcome.code == 1
    assert "cannot be listened on: Address already in use" in outcome.err
    assert box.ciuic("web", "--listen", str(path)).code == 1
    assert path.read_text() == "mine"
