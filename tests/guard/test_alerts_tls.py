"""Alerts over TLS, against real servers with certificates from the test's own authority."""

import base64
import json
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ciuic.guard.alerts.channels import Channel, parse_alert
from ciuic.guard.alerts.deliver import deliver
from ciuic.guard.alerts.message import Message
from ciuic.guard.alerts.send import NotSent, send
from tests.kit.clock import ManualClock

MESSAGE = Message("began", "critical", "k", "job j failed", "h", "2026-01-01T00:00:00Z", {})
USER, PASSWORD = "ciuic", "s3cr3t-w0rd"


class Authority:
    """A certificate authority, and the certificates that it made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.pem"
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority"),
        )

    def server(self, name: str, *, days: int = 2, host: str = "IP:127.0.0.1") -> ssl.SSLContext:
        """Return the context of a server with a certificate for a host."""
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
        )
        (self.directory / f"{name}.ext").write_text(f"subjectAltName={host}\n")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", f"{name}.pem", "-days", str(days)),
            *("-extfile", f"{name}.ext"),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / f"{name}.pem", self.directory / f"{name}.key")
        return context

    def _openssl(self, *arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=self.directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The contexts of servers, and the certificate of the authority that is trusted."""
    trusted = Authority(tmp_path_factory.mktemp("trusted"))
    other = Authority(tmp_path_factory.mktemp("other"))
    return {
        "authority": trusted.certificate,
        "good": trusted.server("good"),
        "another host": trusted.server("host", host="DNS:mail.example.org"),
        "expired": trusted.server("expired", days=-1),
        "another authority": other.server("good"),
    }


@pytest.fixture
def trusted(contexts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same, while ciuic trusts the authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(contexts["authority"]))
    return contexts


class Hook(ThreadingHTTPServer):
    """A web server with a certificate."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.context = context
        self.got: list[Any] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}/"

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self.context.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, *_: object) -> None:
        pass


class _Post(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Mail(socketserver.ThreadingTCPServer):
    """A mail server with a certificate and a user.

    Args:
        context: Its certificate.
        how: ``starttls``, ``tls``, ``plain`` (it offers no encryption), or ``hangs`` (it takes
            STARTTLS, and is silent).
    """

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext, how: str) -> None:
        super().__init__(("127.0.0.1", 0), _Dialogue)
        self.context = context
        self.how = how
        self.farewell = "221 bye"
        self.passwords: list[tuple[bool, str]] = []
        self.mails: list[str] = []
        self.released = threading.Event()

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.how != "tls":
            super().finish_request(request, client_address)
            return
        with self.context.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, *_: object) -> None:
        pass

    def channel(self, password_file: Path) -> Channel:
        values = {
            "type": "email",
            "server": f"127.0.0.1:{self.server_address[1]}",
            "from": "a@example.org",
            "to": "b@example.org",
            "security": "tls" if self.how == "tls" else "starttls",
            "user": USER,
            "password_file": str(password_file),
        }
        return parse_alert("mail", values)


class _Dialogue(socketserver.StreamRequestHandler):
    server: Mail

    def handle(self) -> None:
        self.wfile.write(b"220 hello\r\n")
        self.converse(is_encrypted=self.server.how == "tls")

    def converse(self, *, is_encrypted: bool) -> None:
        is_in = False
        while line := self.rfile.readline().decode().strip():
            word, _, rest = line.partition(" ")
            word = word.lower()
            answer = "250 ok"
            if word == "ehlo":
                offers = ["hello"]
                if self.server.how in {"starttls", "hangs"} and not is_encrypted:
                    offers.append("STARTTLS")
                offers.append("AUTH PLAIN")
                answer = "\r\n".join([*[f"250-{one}" for one in offers], "250 8BITMIME"])
            elif word == "starttls":
                self.wfile.write(b"220 go on\r\n")
                if self.server.how == "hangs":
                    self.server.released.wait(120)
                    return
                with self.server.context.wrap_socket(self.request, server_side=True) as wrapped:
                    self.rfile, self.wfile = wrapped.makefile("rb"), wrapped.makefile("wb", 0)
                    self.converse(is_encrypted=True)
                return
            elif word == "auth":
                _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
                self.server.passwords.append((is_encrypted, password))
                is_in = (user, password) == (USER, PASSWORD)
                answer = "235 welcome" if is_in else "535 no"
            elif word == "data":
                self.wfile.write(b"354 go on\r\n")
                mail = b"".join(iter(self.rfile.readline, b".\r\n")).decode()
                if is_in:
                    self.server.mails.append(mail)
            elif word == "quit":
                answer = self.server.farewell
            self.wfile.write(f"{answer}\r\n".encode())


@contextmanager
def serving(server: Any) -> Iterator[Any]:
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        if isinstance(server, Mail):
            server.released.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    file.chmod(0o600)
    return file


def webhook(url: str) -> Channel:
    return parse_alert("hook", {"type": "webhook", "url": url})


def test_a_webhook_over_tls_gets_the_message(trusted: dict[str, Any]) -> None:
    with serving(Hook(trusted["good"])) as hook:
        send(webhook(hook.url), MESSAGE)

    assert [one["text"] for one in hook.got] == [MESSAGE.text]


@pytest.mark.parametrize("how", ["starttls", "tls"])
def test_mail_goes_out_after_a_login_over_tls(
    trusted: dict[str, Any], password: Path, how: str
) -> None:
    with serving(Mail(trusted["good"], how)) as server:
        send(server.channel(password), MESSAGE)

    assert server.passwords == [(True, PASSWORD)]
    (mail,) = server.mails
    assert "Subject: [critical] job j failed (h)\r\n" in mail


def test_a_mail_that_was_taken_is_not_sent_again_if_the_farewell_fails(
    trusted: dict[str, Any], password: Path
) -> None:
    with serving(Mail(trusted["good"], "starttls")) as server:
        server.farewell = "421 too busy"
        why = deliver(server.channel(password), MESSAGE, ManualClock())

    assert why is None
    assert len(server.mails) == 1


@pytest.mark.parametrize("kind", ["webhook", "starttls", "tls"])
@pytest.mark.parametrize("which", ["another host", "expired", "another authority"])
def test_a_certificate_that_is_not_valid_gets_no_password_and_no_message(
    trusted: dict[str, Any], password: Path, kind: str, which: str
) -> None:
    context = trusted[which]
    server = Hook(context) if kind == "webhook" else Mail(context, kind)
    with serving(server):
        channel = server.channel(password) if isinstance(server, Mail) else webhook(server.url)
        why = deliver(channel, MESSAGE, ManualClock())

    assert why == "its certificate is not valid"
    if isinstance(server, Mail):
        assert (server.passwords, server.mails) == ([], [])
    else:
        assert server.got == []


def test_an_authority_that_the_system_does_not_trust_is_refused(
    contexts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with serving(Hook(contexts["good"])) as hook:
        with pytest.raises(NotSent, match="its certificate is not valid") as caught:
            send(webhook(hook.url), MESSAGE)
        assert caught.value.is_final
        assert hook.got == []


def test_a_wrong_password_is_said_once_and_not_shown(
    trusted: dict[str, Any], password: Path
) -> None:
    password.write_text("wr0ng\n")
    with serving(Mail(trusted["good"], "starttls")) as server:
        why = deliver(server.channel(password), MESSAGE, ManualClock())

    assert why == "the mail server refused the user or the password (535)"
    assert set(server.passwords) == {(True, "wr0ng")}
    assert server.mails == []


def test_a_mail_server_without_starttls_gets_no_password_and_no_message(
    trusted: dict[str, Any], password: Path
) -> None:
    with serving(Mail(trusted["good"], "plain")) as server:
        why = deliver(server.channel(password), MESSAGE, ManualClock())

    assert why is not None
    assert "lacks the encryption or login" in why
    assert (server.passwords, server.mails) == ([], [])


def test_a_mail_server_that_hangs_before_its_certificate_is_tried_again(
    trusted: dict[str, Any], password: Path
) -> None:
    with serving(Mail(trusted["good"], "hangs")) as server:
        with pytest.raises(NotSent, match="no answer in time") as caught:
            send(server.channel(password), MESSAGE, limit_s=0.5)
        assert not caught.value.is_final
    assert server.passwords == []


def test_a_web_server_that_hangs_before_its_certificate_is_tried_again() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as silent:
        url = f"https://127.0.0.1:{silent.server_address[1]}/"
        with pytest.raises(NotSent, match="no answer in time") as caught:
            send(webhook(url), MESSAGE, limit_s=0.5)
    assert not caught.value.is_final
