"""Records of the log as entries of systemd's journal, each with fields that programs can select by.

``journalctl SNAPSHOT_ID=cs-...`` finds the lines of a snapshot, ``journalctl MESSAGE_ID=...`` all
snapshots that failed. The protocol is systemd's "Native Journal Protocol": a datagram with a line
``NAME=VALUE`` for each field, or the length of a value that has line breaks.
"""

import logging
import socket
import struct
from collections.abc import Mapping
from typing import Final

__all__ = ["MESSAGE_IDS", "JournalHandler"]

_SOCKET: Final = "/run/systemd/journal/socket"
_LENGTH: Final = struct.Struct("<Q")
MESSAGE_IDS: Final = {
    "snapshot": "5f0c1e7a9b3d4c6e8a52d1f04b7739c1",
    "failure": "b81d2a6603f84f5d9c0e7a35e6241fd8",
}
"""The MESSAGE_ID of each event; never change one."""
_OTHER_NAMES: Final = {"id": "SNAPSHOT_ID"}


class JournalHandler(logging.Handler):
    """Sends each record to the journal.

    Args:
        otherwise: Receives a record that the journal does not take: it is too long, or there is no
            socket.
    """

    def __init__(self, otherwise: logging.Handler) -> None:
        super().__init__()
        self._otherwise = otherwise

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        level, _, message = self.format(record).partition("\n")
        fields = {
            "MESSAGE": message,
            "PRIORITY": level,
            "SYSLOG_IDENTIFIER": "ciuicd",
            **_named(getattr(record, "fields", {})),
        }
        try:
            # A socket for each record: a child process of the daemon has none of its descriptors.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as journal:
                journal.sendto(b"".join(map(_encoded, fields, fields.values())), _SOCKET)
        except OSError:
            self._otherwise.emit(record)


def _named(fields: Mapping[str, object]) -> dict[str, str]:
    """Return the fields of a record under names that the journal takes."""
    found = {_OTHER_NAMES.get(name, name.upper()): str(value) for name, value in fields.items()}
    message_id = MESSAGE_IDS.get(str(fields.get("event")))
    return found if message_id is None else {"MESSAGE_ID": message_id, **found}


def _encoded(name: str, text: str) -> bytes:
    value = text.encode("utf-8", "backslashreplace")
    if b"\n" not in value:
        return b"%s=%s\n" % (name.encode(), value)
    return b"%s\n%s%s\n" % (name.encode(), _LENGTH.pack(len(value)), value)
