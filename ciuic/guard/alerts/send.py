"""One attempt to hand a message over.

No answer of a server is trusted. Redirects are refused, because they could send a message to an
address that is not configured. Only the status of an answer is used. A server that hangs, or sends
byte by byte, costs a limited time.
"""

import contextlib
import http.client
import json
import os
import signal
import smtplib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from email.message import EmailMessage
from types import FrameType
from typing import Final
from urllib.parse import urlsplit

from ciuic.guard.alerts.channels import Channel, SecretError, check_url, read_secret
from ciuic.guard.alerts.message import Message

__all__ = ["NotSent", "send"]

_ATTEMPT_S: Final = 20.0
_AGAIN: Final = frozenset({408, 425, 429})


class NotSent(Exception):  # noqa: N818 - the caller tries again, or reports it
    """The message was not handed over; the text is a clause without any secret.

    Attributes:
        is_final: Another attempt would fail in the same way.
    """

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


def send(channel: Channel, message: Message, *, limit_s: float = _ATTEMPT_S) -> None:
    """Hand a message over, once, within a time limit; only the main thread may call it.

    Raises:
        NotSent: That failed.
    """
    message = message.printable()
    try:
        with _limited(limit_s):
            if channel.type == "command":
                _run(channel, message)
            elif channel.type == "email":
                _mail(channel, message)
            else:
                _post(channel, message)
    except SecretError as error:
        raise NotSent(str(error), is_final=True) from error
    except ssl.SSLCertVerificationError as error:
        raise NotSent("its certificate is not valid", is_final=True) from error
    except TimeoutError as error:
        raise NotSent("it gave no answer in time") from error
    except (http.client.HTTPException, UnicodeError) as error:
        raise NotSent("its answer is not that of a web server") from error
    except smtplib.SMTPException as error:
        raise _refusal(error) from error
    except OSError as error:
        raise NotSent(_reason(error)) from error


def _refusal(error: smtplib.SMTPException) -> NotSent:
    """Return what a mail server did; answers from 400 to 499 are temporary, as with greylisting."""
    if isinstance(error, smtplib.SMTPNotSupportedError):
        # The same for a server behind a gateway that removes STARTTLS: nothing is sent unencrypted.
        what = "the mail server lacks the encryption or login that the configuration asks for"
        return NotSent(what, is_final=True)
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return NotSent("the mail server closed the connection")
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        is_final = all(500 <= code < 600 for code, _ in error.recipients.values())
        return NotSent("the mail server refused the message", is_final=is_final)
    if not isinstance(error, smtplib.SMTPResponseException):
        return NotSent("the mail server refused the message", is_final=True)
    is_final = 500 <= error.smtp_code < 600
    what = f"the mail server answered {error.smtp_code}"
    if isinstance(error, smtplib.SMTPAuthenticationError):
        what = f"the mail server refused the user or the password ({error.smtp_code})"
    return NotSent(what, is_final=is_final)


def _post(channel: Channel, message: Message) -> None:
    values = channel.values
    url = values.get("url") or read_secret(values["url_file"])
    try:
        check_url(url, "url")
    except ValueError as error:
        raise NotSent(f"the address of the webhook: {error.args[0]}", is_final=True) from error
    if channel.type == "slack":
        document = message.for_slack()
    elif channel.type == "pagerduty":
        document = message.for_pagerduty(read_secret(values["key_file"]))
    else:
        document = message.as_json()
    parts = urlsplit(url)
    made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = made(parts.hostname or "", parts.port, timeout=_ATTEMPT_S / 2)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json", "User-Agent": "ciuic"}
        connection.request("POST", target, json.dumps(document), headers)
        status = connection.getresponse().status
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        what = f"it answered with a redirect ({status}), which is not followed"
        raise NotSent(what, is_final=True)
    is_final = status < 500 and status not in _AGAIN
    raise NotSent(f"it answered with status {status}", is_final=is_final)


def _mail(channel: Channel, message: Message) -> None:
    values = channel.values
    mail = EmailMessage()
    mail["Subject"] = message.title[:200].replace("\n", " ").replace("\r", " ")
    mail["From"] = values["from"]
    mail["To"] = values["to"]
    lines = [message.text, "", f"host: {message.host}", f"time: {message.time}"]
    mail.set_content("\n".join([*lines, *[f"{key}: {one}" for key, one in message.facts.items()]]))
    host, _, port = values["server"].partition(":")
    security = values["security"]
    server = _mail_server(host, int(port or 0), security)
    try:
        if "user" in values:
            server.login(values["user"], read_secret(values["password_file"]))
        server.send_message(mail)
        # The server has taken the message: what follows must not send it again.
        with contextlib.suppress(smtplib.SMTPException, OSError):
            server.quit()
    finally:
        server.close()


def _mail_server(host: str, port: int, security: str) -> smtplib.SMTP:
    """Connect; smtplib checks a certificate only if it gets a context that does."""
    timeout_s = _ATTEMPT_S / 2
    if security == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(host, port, timeout=timeout_s, context=context)
    server = smtplib.SMTP(host, port, timeout=timeout_s)
    if security == "starttls":
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def _run(channel: Channel, message: Message) -> None:
    document = message.as_json()
    environ = {
        f"CIUIC_ALERT_{key.upper()}": "" if value is None else str(value)
        for key, value in document.items()
    }
    process = subprocess.Popen(
        ["/bin/sh", "-c", channel.values["command"]],
        stdin=subprocess.PIPE,
        env={**os.environ, **environ},
        process_group=0,
    )
    try:
        with contextlib.suppress(BrokenPipeError):
            process.communicate(json.dumps(document).encode())
        code = process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise NotSent("the command took too long and was killed") from None
    if code:
        raise NotSent(f"the command failed with exit status {code}")


@contextlib.contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise TimeoutError when the time of the attempt is up, whatever the server does."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the name of its server is not known"
    return os.strerror(error.errno) if error.errno else "the connection failed"
