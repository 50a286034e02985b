"""``[alert NAME]`` sections: where messages go.

A secret (the address of a webhook, a routing key, a password) is in a file that only its owner can
read, and is read when a message is sent. It is in no message and no log.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

__all__ = ["TYPES", "Channel", "SecretError", "check_url", "parse_alert", "read_secret"]

TYPES: Final = ("webhook", "slack", "pagerduty", "command", "email")
_PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"
_SECRET_BYTES_MAX: Final = 4096
_PORT: Final = re.compile(r"[0-9]{1,5}")
_ADDRESS: Final = re.compile(r"[^@\s<>,\"]+@[^@\s<>,\"]+")

_FOR_TYPE: Final = {
    "webhook": {"url", "url_file"},
    "slack": {"url", "url_file"},
    "pagerduty": {"url", "url_file", "key_file"},
    "command": {"command"},
    "email": {"server", "from", "to", "user", "password_file", "security"},
}


class SecretError(Exception):
    """A file with a secret cannot be used; the message is a clause without the secret."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Where messages go.

    Attributes:
        name: Its name in the configuration.
        type: How they are sent.
        least: ``warning``: every message; ``critical``: only critical ones, and their ends.
        values: Key -> text, as far as the type needs them.
    """

    name: str
    type: str
    least: Literal["warning", "critical"]
    values: Mapping[str, str]

    def wants(self, severity: str) -> bool:
        """Return whether messages of a severity go here."""
        return self.least == "warning" or severity == "critical"


def parse_alert(name: str, values: Mapping[str, str]) -> Channel:
    """Return the channel of a section.

    Raises:
        ValueError: A text is not valid. The second argument of the exception is its key.
    """
    kind = values["type"]
    if kind not in TYPES:
        raise ValueError(f"'{kind[:60]}' is not one of {', '.join(TYPES)}", "type")
    for key in values.keys() - {"type", "severity"}:
        if key not in _FOR_TYPE[kind]:
            raise ValueError(f"an alert of the type {kind} has no such key", key)
    least = values.get("severity", "warning")
    if least not in {"warning", "critical"}:
        raise ValueError(f"'{least[:60]}' is not one of warning, critical", "severity")
    found = {key: text for key, text in values.items() if key not in {"type", "severity"}}
    for key, text in found.items():
        if key.endswith("_file") and not text.startswith("/"):
            raise ValueError(f"'{text[:60]}' is not an absolute path", key)
    if kind in {"webhook", "slack", "pagerduty"}:
        _check_http(kind, found)
    elif kind == "command":
        _needs(found, "command")
    else:
        _check_email(found)
    return Channel(name, kind, "critical" if least == "critical" else "warning", found)


def _check_http(kind: str, found: dict[str, str]) -> None:
    if kind == "pagerduty":
        _needs(found, "key_file")
        if "url_file" not in found:
            found.setdefault("url", _PAGERDUTY)
    if ("url" in found) == ("url_file" in found):
        raise ValueError("it needs either url or url_file", "type")
    if "url" in found:
        check_url(found["url"], "url")


def check_url(url: str, key: str) -> None:
    """Refuse text that is not the address of a webhook.

    Raises:
        ValueError: It is not one. The message does not quote it, because it may hold a secret.
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_good = False
    if not is_good or any(char <= " " or char == "\x7f" for char in url):
        raise ValueError("it is not the address of a web server; it begins with https://", key)
    if parts.username is not None or parts.password is not None:
        raise ValueError("it has a user or a password in it; leave them out", key)


def _check_email(found: dict[str, str]) -> None:
    for key in ("server", "from", "to"):
        _needs(found, key)
    host, _, port = found["server"].partition(":")
    if not host or (port and not (_PORT.fullmatch(port) and 0 < int(port) < 65536)):
        raise ValueError(f"'{found['server'][:60]}' is not HOST or HOST:PORT", "server")
    for key in ("from", "to"):
        for address in found[key].split(","):
            if not _ADDRESS.fullmatch(address.strip()):
                raise ValueError(f"'{address.strip()[:60]}' is not an address", key)
    if "," in found["from"]:
        raise ValueError("it has more than one address", "from")
    if found.setdefault("security", "starttls") not in {"starttls", "tls", "none"}:
        raise ValueError(
            f"'{found['security'][:60]}' is not one of starttls, tls, none", "security"
        )
    if ("user" in found) != ("password_file" in found):
        raise ValueError("user and password_file belong together", "type")
    if "user" in found and found["security"] == "none":
        raise ValueError("it would send the password unencrypted; use starttls or tls", "security")


def _needs(found: Mapping[str, str], key: str) -> None:
    if not found.get(key):
        raise ValueError(f"it lacks the key '{key}'", "type")


def read_secret(path: str) -> str:
    """Return the secret in a file, without spaces around it.

    Raises:
        SecretError: The file cannot be read, other users can read it, or it holds no line of text.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise SecretError(f"{path} is not a regular file")
            if status.st_mode & 0o077:
                raise SecretError(f"other users can read {path}; run 'chmod 600 {path}'")
            data = os.read(fd, _SECRET_BYTES_MAX + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise SecretError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > _SECRET_BYTES_MAX or not text.isprintable():
        raise SecretError(f"{path} does not hold one line of text")
    return text
