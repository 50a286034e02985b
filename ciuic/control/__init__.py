"""The control socket of the daemon: its messages, its address, and its client.

The daemon listens on ``control.sock`` in its store, or in what this machine keeps of a bucket. A
client connects, sends one request, and gets replies. Each message is a JSON document on a line of
its own; a request has at most 64 KiB.

    {"do": "snapshot", "base": false, "tags": ["x"],
     "roots": ["/a"], "exclude": ["*.pyc"]}             {"progress": {}} some times, {"report": {}}
    {"do": "status"}                                    {"status": {}}
    {"do": "pause"}, "resume", "reload"                 {"done": {}}
    anything that fails                                 {"error": {"kind", "message", "hint",
                                                                   "done"}}

messages   requests and replies <-> lines
address    where the socket of a store is
client     sending a request and waiting for the reply
"""

from ciuic.control.address import socket_address
from ciuic.control.client import request_done, request_snapshot, request_status
from ciuic.control.messages import (
    LINE_BYTES_MAX,
    Request,
    SimpleRequest,
    SnapshotRequest,
    encode_line,
    error_document,
    error_from_document,
    parse_request,
)
from ciuic.documents import Document

__all__ = [
    "LINE_BYTES_MAX",
    "Document",
    "Request",
    "SimpleRequest",
    "SnapshotRequest",
    "encode_line",
    "error_document",
    "error_from_document",
    "parse_request",
    "request_done",
    "request_snapshot",
    "request_status",
    "socket_address",
]
