"""Finds the access key for S3: in the environment, or in a file as ``~/.aws/credentials``."""

import configparser
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ciuic.errors import UsageError
from ciuic.system import nofollow

__all__ = ["AccessKey", "find_access_key"]

_BYTES_MAX: Final = 64 * 1024
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An access key; its ``repr`` does not show the secret.

    Attributes:
        id: Names the key.
        secret: Proves its possession.
        token: Belongs to a temporary key; else empty.
        source: What has named it: a file, or a variable.
    """

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(repr=False)
    source: str


def find_access_key(path: str, environment: Mapping[str, str]) -> AccessKey | None:
    """Return the access key, from where AWS programs look for it.

    Args:
        path: A file; the section that ``AWS_PROFILE`` names is read, or ``default``. Empty: the key
            in the environment, else ``~/.aws/credentials`` or the file that the environment names.
        environment: The environment variables.

    Returns:
        None: There is none. The client may get one from the machine that it runs on.

    Raises:
        UsageError: The file cannot be used, or the environment has half of a key; the message has
            nothing of either.
    """
    if not path:
        key_id = environment.get("AWS_ACCESS_KEY_ID", "")
        secret = environment.get("AWS_SECRET_ACCESS_KEY", "")
        if key_id and secret:
            token = environment.get("AWS_SESSION_TOKEN", "")
            return AccessKey(key_id, secret, token, "AWS_ACCESS_KEY_ID")
        if key_id or secret:
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            there, missing = names if key_id else names[::-1]
            raise UsageError(
                f"{there} is set, and {missing} is not",
                hint="Set both; or neither, to use the file ~/.aws/credentials.",
            )
        home = environment.get("HOME", "")
        path = environment.get("AWS_SHARED_CREDENTIALS_FILE", "") or (
            os.path.join(home, ".aws", "credentials") if home else ""
        )
        if not path or not os.path.exists(path):
            return None
    profile = environment.get("AWS_PROFILE", "") or "default"
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(_read(path))
        section = dict(parser.items(profile)) if parser.has_section(profile) else {}
    except (configparser.Error, UnicodeDecodeError):
        # Not chained: the parser's message quotes the line.
        raise UsageError(
            f"the credentials file {path} is not in the format of ~/.aws/credentials",
            hint="It needs a section [default] with lines 'name = value'.",
        ) from None
    key_id = section.get("aws_access_key_id", "")
    secret = section.get("aws_secret_access_key", "")
    # Also if one of them is empty, as in a template: the server's answer would not say so.
    if not key_id or not secret:
        raise UsageError(
            f"the credentials file {path} has no access key in its section [{profile}]",
            hint="It needs the lines aws_access_key_id = ... and aws_secret_access_key = ...",
        )
    return AccessKey(key_id, secret, section.get("aws_session_token", ""), path)


def _read(path: str) -> str:
    try:
        fd = nofollow.open_file(nofollow.resolved(path), os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"the credentials file {path} is not a regular file")
            if status.st_mode & _OTHERS:
                raise UsageError(
                    f"other users can read the credentials file {path}",
                    hint=f"Run 'chmod 600 {path}'.",
                )
            return file.read(_BYTES_MAX).decode()
    except OSError as error:
        raise UsageError(
            f"the credentials file {path} cannot be read: {error.strerror}",
            hint="Name a file that this user can read.",
        ) from error
