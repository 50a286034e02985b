"""Valid inputs for each parser, from which the fuzzer begins."""

import json
import re
import struct
from collections.abc import Callable

import msgspec
import zstandard

from ciuic import codec
from ciuic.codec import dense_delta, planes, sparse_delta
from ciuic.codec.plan import PAIRS, RAW, WIDTHS, ZSTD, Column, Plan
from ciuic.formats import zip_archive
from ciuic.formats.headers import Headers
from ciuic.model import Entry, ExcludeRules, PathWarning, Root, SnapshotSummary
from ciuic.source.freeze import records
from ciuic.source.freeze.copies import Copies, Copy
from ciuic.source.freeze.records import RootRecord
from ciuic.store.format import frame
from ciuic.store.records import header, kinds, manifest, mark
from ciuic.system.hashing import checksum
from tests.fuzz.targets import SNAPSHOT, ZEROS
from tests.kit.tensors import npy, saved

__all__ = ["SEEDS"]


def part(data: bytes) -> bytes:
    """Return the bytes from which ``Bytes.part`` takes ``data``."""
    return len(data).to_bytes(2, "little") + data


def _frames() -> list[bytes]:
    found = []
    for kind, parts in ((kinds.DATA, [b"one", b"two" * 50]), (kinds.TREE, [b"\x92\x00\x90"])):
        one, payload = frame.encode_frame(
            kind, [(kinds.chunk_id_of(kind, one), one) for one in parts]
        )
        found.append(one.encode_header() + bytes(payload))
    return found


def _footers() -> list[bytes]:
    """Return packs whose footers list each frame at its place, or elsewhere."""
    packs = []
    for what in (3, 1, 0, 7):
        body = b"".join([bytes([what, 0, 0]) + part(one) for one in _frames()])
        packs.append(bytes([2]) + body + bytes([2]))
    return packs


def _entry(name: bytes, **more: object) -> Entry:
    return Entry(name, 0o100644, 1, 2, 3, 4, 5, **more)  # type: ignore[arg-type]


def _web(level: int, size: int, *some: object) -> bytes:
    head = bytes([level + 2]) + size.to_bytes(2, "little")
    return head + b"".join([part(msgspec.msgpack.encode(one)) for one in some])


def _trees() -> list[bytes]:
    xattrs = ((b"user.a", b"1"),)
    leaf = [_entry(b"a", xattrs=xattrs), _entry(b"b", content=bytes(32), size_bytes=5)]
    link = Entry(b"c", 0o120777, 0, 0, 0, 0, 0, content=b"to")
    inner = Entry(b"d", 0o040755, 0, 0, 0, 0, 0, content=bytes(32), level=1)
    lower, upper = [[2, b"a", b"\1"], [2, b"c", b"\2"]], [0, [link, inner]]
    return [
        _web(0, 0, [0, leaf]),
        _web(1, 0, [1, lower], [0, leaf], upper),
        _web(8, 0, *[[level, [[1, b"", bytes([9 - level])]] * 2] for level in range(8, 0, -1)]),
        _web(0, 0, [0, []]),
        # Each level names the next one again and again: 20 to the power of 8 leaves without
        # entries.
        _web(8, 0, *[[8 - at, [[1, b"", bytes([at + 1])]] * 20] for at in range(8)], [0, []]),
    ]


def _recipes() -> list[bytes]:
    leaf = [[5, bytes(32)], [7, b""], [3, bytes(32), 9]]
    return [
        _web(1, 15, [0, leaf]),
        _web(2, 30, [1, [[15, b"", b"\1"], [15, b"", b"\1"]]], [0, leaf]),
        _web(0, 9, [0, leaf]),
        _web(9, 9, *[[8 - at, [[1, b"", bytes([at + 1])]] * 20] for at in range(8)], [0, []]),
    ]


def _document(data: bytes) -> bytes:
    """Return a sealed document without its seal."""
    return data[: data.rindex(b'"checksum"')]


def _manifest(path: bytes = b"/root\xff") -> bytes:
    roots = (Root(path, bytes(32)), Root(b"/gone", b"", "No such file or directory"))
    summary = SnapshotSummary(
        SNAPSHOT, "base", None, 1, 2, 3, 4, 5, ("tag",), 1, tuple([one.path for one in roots])
    )
    trouble = (
        PathWarning(b"/root\xff/a\\x", "in flux"),
        PathWarning(b"/s", "socket", harmless=True),
    )
    made = manifest.Manifest(
        summary, roots, "host", "writer", 6, 0.5, ExcludeRules(("*.tmp",)), trouble
    )
    return _document(manifest.encode_manifest(made))


def _header(chunking: header.Chunking) -> bytes:
    return _document(header.Header(1, [], "0" * 32, "", chunking).encode())


def _marks() -> list[bytes]:
    moment = (5).to_bytes(9, "little")
    retired = json.dumps({"format": 1, "ids": [SNAPSHOT, "cs-abcdef01"]}).encode()[:-1] + b", "
    tags = json.dumps(["a", "b"]).encode()
    marked = mark.encode_mark(mark.Mark(("a",), pinned=True, forgotten_ns=5), SNAPSHOT, 1)
    return [moment + part(tags) + retired, moment + part(b"[]") + _document(marked)]


def _parities() -> list[bytes]:
    """Return parity of two segments and one row of 512 bytes, with a pack that lacks some bytes."""
    plain = bytes(range(256)) * 4
    found = []
    for there in (plain, plain[:900], plain[:512] + bytes(512)):
        head = (1024).to_bytes(3, "little") + bytes([2, 1]) + (9).to_bytes(3, "little") + b"\1"
        sums = struct.pack(
            "<3Q", *[checksum(one) for one in (plain[:512], plain[512:], bytes(512))]
        )
        found.append(head + (512).to_bytes(4, "little") + part(there) + part(sums) + bytes(512))
    return found


def _deltas() -> list[bytes]:
    """Return the bytes from which ``fuzz_delta`` takes a length, a delta base and a delta."""
    made = []
    for width in WIDTHS:
        old = struct.pack("<16d", *range(16))
        new = struct.pack("<16d", *[one * 1.001 for one in range(16)])
        stored = bytes(dense_delta.encode(new, old, dense_delta.probe(new, old, width, 0)))
        head = struct.pack("<HB", len(old), WIDTHS.index(width))
        made.append(head + part(old) + stored)
        few = new[:8] + old[8:]
        made.append(head + part(old) + bytes(sparse_delta.encode(few, old, width, 0) or b""))
    made.append(head + part(old) + bytes(sparse_delta.encode(few, old, 1, 0) or b""))
    return made


def _planes() -> list[bytes]:
    found = []
    for width, columns in {
        2: [(1, ZSTD), (1, PAIRS)],
        4: [(2, RAW), (1, PAIRS), (1, PAIRS)],
        8: [(1, PAIRS), (1, RAW), (4, ZSTD), (1, RAW), (1, 1)],
    }.items():
        made = [Column(size, coding, lowest=3) for size, coding in columns]
        plain = bytes(range(40)) * 8
        stored = bytes(planes.encode(plain, Plan(width, 1, tuple(made), 1.0)))
        found.append(len(plain).to_bytes(2, "little") + stored)
    body = b"".join([bytes([1]) + part(b"a" * 16) + bytes([1, 1]) for _ in range(2)])
    found.append((32).to_bytes(2, "little") + bytes([2, 0, 2]) + body)
    return found


def _zstds() -> list[bytes]:
    plain = b"some text and " * 20
    bomb = zstandard.compress(bytes(100 * 1024 * 1024))
    return [
        len(plain).to_bytes(3, "little") + bytes(codec.encode(plain)[1]),
        (5000).to_bytes(3, "little") + bomb,
    ]


def _records() -> list[bytes]:
    copies = Copies.of(
        [Copy((number, 5, 10), number, 8, 9, bytes(16)).packed() for number in (1, 2)]
    )
    roots = [
        RootRecord(b"/a", "reflink", copies=copies),
        RootRecord(b"/b", "subvolume", b"x.0", b"in/side", bytes(16), 5, doubtful=frozenset({7})),
    ]
    data = records.encode_record(5, roots)
    start = len(records._MAGIC) + 4
    (length,) = records._HEAD.unpack_from(data, start - 4)
    return [bytes(3) + part(data[start : start + length]) + data[start + length : -32]]


def _rows() -> list[bytes]:
    number, name, text = b"\1\5\0", b"\0" + bytes(32), b"\4" + part(b"what")
    chunk = b"\0" + name + number * 6
    packs = b"\2" + number + name + number
    checks = b"\3" + name + number * 2 + text
    summary = msgspec.msgpack.encode(
        SnapshotSummary(SNAPSHOT, "base", None, 1, 2, 3, 4, 5, (), 0, ())
    )
    snapshots = b"\4" + text + number * 3 + b"\3" + part(summary)
    return [b"\5" + chunk + packs + checks + snapshots + b"\1" + name + chunk]


def _pickles() -> list[bytes]:
    found = []
    for name in ("state.pt", "part.distcp"):
        data = saved(name)
        headers = Headers(lambda at, length, data=data: data[at : at + length], len(data))
        found += [pickle for _, pickle in zip_archive.pickles(headers)]
    return [*found, saved("named.metadata"), saved("state.legacy.pt")[:1024]]


def _tensors() -> list[bytes]:
    """Return files of real libraries. The target takes runs of zeros as lengths, not bytes."""

    def shorter(zeros: re.Match[bytes]) -> bytes:
        return ZEROS + len(zeros[0]).to_bytes(3, "little")

    names = ("state.pt", "part.distcp", "state.npz", "state.safetensors", "state.gguf")
    names += ("state.h5", "state.latest.h5")
    found = [re.sub(rb"\0{500,}", shorter, saved(name)) for name in names]
    return [*found, npy(bytes(200))]


def _messages(*some: object) -> list[bytes]:
    return [json.dumps(one).encode() + b"\n" for one in some]


_SNAPSHOT_REQUEST = {
    "do": "snapshot",
    "base": True,
    "tags": ["x"],
    "roots": ["/a", "/\xff"],
    "exclude": ["*.pyc"],
}
_REQUESTS = _messages(_SNAPSHOT_REQUEST, {"do": "status"}, {"do": "reload"}, {"do": 5}, [])
_REPLIES = _messages(
    {"error": {"kind": "CorruptionError", "message": "broken", "hint": "mend it"}},
    {"error": {"kind": "StoreError", "message": 5, "hint": []}},
    {"report": {}},
)
_CONFIG = b"""# a comment
snapshot_paths = /a, /b\\,c   # another
snapshot_interval = 30m
base_interval = 0
retention_policy = last:3, hourly:24, daily:7
exclude_patterns = *.tmp, *.pyc
snapshot_dir = /store
io_priority = best-effort
hot_snapshots = 2
chain_cost = 1.5
parity = 4%
trash = 1d
scrub_budget = 10m
"""
_WORDS = [
    "7d", "last:3, hourly:24, daily:7, weekly:4, monthly:1", "1.5 GiB", "2026-06-15 14:30",
    "2026-06-15T14:30:00.5+02:00", "9" * 400, "0" * 64, "cs-123456", "a\\xffb\\x5c", "0",
]  # fmt: skip

SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "config": lambda: [_CONFIG, b"snapshot_dir = relative\n", b"retention_policy = dayly:7\n"],
    "daemon": lambda: _REQUESTS,
    "footer": _footers,
    "frame": _frames,
    "frozen": _records,
    "header": lambda: [
        _header(header.Chunking("fixed", 4096)),
        _header(header.Chunking.of("content", 4096)),
    ],
    "manifest": lambda: [_manifest(), _manifest(b"/a/b")],
    "mark": _marks,
    "parity": _parities,
    "delta": _deltas,
    "pickle": _pickles,
    "planes": _planes,
    "recipe": _recipes,
    "reply": lambda: _REPLIES,
    "request": lambda: _REQUESTS,
    "rows": _rows,
    "tensors": _tensors,
    "tree": _trees,
    "words": lambda: [one.encode() for one in _WORDS],
    "zstd": _zstds,
}
