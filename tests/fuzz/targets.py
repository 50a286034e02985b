"""The fuzzing targets: for each parser, a function that takes any bytes and fails if it fails.

A parser may return, or raise one of ciuic's own errors. Any other exception is a defect, and so is
work or memory out of proportion to the input. Random bytes would end at the first checksum, so the
functions add correct checksums to their input, to fuzz the code behind the checks. Where work could
run away, they count it (nodes read, pieces and entries returned) and never time it.
``MEMORY_BYTES_MAX`` bounds memory; the caller has to set that limit.
"""

import contextlib
import functools
import json
import math
import os
import socket
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ciuic import codec, control
from ciuic.catalog import listing
from ciuic.chunking.content import ContentChunker
from ciuic.codec import planes, probing
from ciuic.codec.plan import Plan
from ciuic.config.load import load_settings, read_store_path
from ciuic.control import client as control_client
from ciuic.errors import CiuicError, ConfigError, CorruptionError, UnknownFormatError, UsageError
from ciuic.formats import headers, spans, torch_legacy, torch_pickle, zip_archive
from ciuic.formats.headers import WIDTHS
from ciuic.formats.names import described
from ciuic.maintain.scrub.budget import parse_budget
from ciuic.model import Entry
from ciuic.retention import parse_policy
from ciuic.source.freeze import copies, records
from ciuic.store.directory import find, pack_file
from ciuic.store.format import frame, pack
from ciuic.store.health import salvage
from ciuic.store.index import chunk_index
from ciuic.store.parity import encoding, parity_file, rebuild
from ciuic.store.records import (
    header,
    kinds,
    layout,
    manifest,
    mark,
    nodes,
    recipe_nodes,
    retired,
    tree_nodes,
)
from ciuic.store.records.references import references
from ciuic.system.clock import from_local_text
from ciuic.system.hashing import checksum, data_id, pack_id_of
from ciuic.units import parse_duration_s, parse_size_bytes
from ciuicd.control import Server
from tests.kit.clock import ManualClock

__all__ = ["MEMORY_BYTES_MAX", "TARGETS", "Target"]

Target = Callable[[bytes], None]
MEMORY_BYTES_MAX = 48 * 1024 * 1024
"""More than any input here may take: parity works on up to 16 MiB, and on copies of it."""
ZEROS = b"\xee\xdd"
"""In files of tensors, this stands before the length of a run of zeros."""
REFUSED = (CorruptionError, UnknownFormatError)
SNAPSHOT = "cs-123456"


def call(parse, *arguments):
    """Return the result, or None after an error that a parser of stored bytes may raise."""
    try:
        return parse(*arguments)
    except REFUSED:
        return None


class Bytes:
    """Takes an input apart from its front. Beyond its end, it reads zeros."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def number(self, length: int) -> int:
        """Return an integer of this number of bytes."""
        return int.from_bytes(self.take(length), "little")

    def take(self, length: int) -> bytes:
        """Return this number of bytes."""
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken.ljust(length, b"\0")

    def part(self) -> bytes:
        """Return bytes whose length is in the two bytes before them."""
        length = self.number(2)
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def text(self) -> str:
        """Return a part, as text."""
        return self.part().decode("utf-8", "surrogateescape")


@contextlib.contextmanager
def opened(data: bytes) -> Iterator[int]:
    """Open a file with this content."""
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


@functools.cache
def scratch_directory(name: str) -> tempfile.TemporaryDirectory[str]:
    """Return a directory for this name, which is removed when the process ends."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return tempfile.TemporaryDirectory(prefix=f"ciuic-fuzz-{name}-", dir=place)


def scratch(name: str, data: bytes) -> str:
    """Return the path of a file with this content, alone in its directory."""
    path = Path(scratch_directory(name).name) / name
    path.write_bytes(data)
    return str(path)


# Frames and packs


def sealed_header(data: bytes) -> bytes:
    """Return the header and table of a frame, with correct magic and checksum, and the rest."""
    if len(data) < frame.HEADER_BYTES:
        return data
    bare = frame.MAGIC + data[4:64]
    length = frame.HEADER_BYTES + 36 * int.from_bytes(bare[8:12], "little")
    table = data[frame.HEADER_BYTES : length]
    own = checksum(bare + table).to_bytes(8, "little")
    return bare + own + data[frame.HEADER_BYTES :]


def fuzz_frame(data: bytes) -> None:
    """Parse a frame, as it is and sealed, and a payload with the checksum of its header."""
    call(frame.parse_header, data)
    data = sealed_header(data)
    one = call(frame.parse_header, data)
    if one is None:
        return
    assert one.plain_bytes <= frame.PLAIN_BYTES_MAX
    assert data.startswith(one.encode_header())
    payload = data[one.header_bytes :]
    call(frame.decode_frame, one, payload)
    sound = one._replace(
        payload_checksum=checksum(payload),
        plain_bytes=min(one.plain_bytes, 1 << 20),
        delta_bases=(),
    )
    plain = call(frame.decode_frame, sound, payload)
    assert plain is None or len(plain) == sound.plain_bytes


def fuzz_footer(data: bytes) -> None:
    """Parse a pack: frames, some with correct checksums, and a footer with a correct checksum."""
    source = Bytes(data)
    body, listed, behind = pack.MAGIC, b"", b""
    for _ in range(source.number(1) % 8):
        what, at, one = source.number(1), source.number(2), sealed_header(source.part())
        begin = len(body)
        body += one if what & 1 else source.part()
        table = frame.HEADER_BYTES + 36 * min(3, int.from_bytes(one[8:12], "little"))
        listed += (begin if what & 2 else at).to_bytes(8, "little") + one[:table]
        behind = source.part() if what & 4 else behind
    footer = listed + behind
    count = source.number(1)
    trailer = pack._TRAILER.pack(len(body), len(footer), count, checksum(footer), pack._END_MAGIC)
    whole = body + footer + trailer
    with opened(whole) as fd:
        for one in call(pack_file.read_footer, fd, pack_id_of(footer)) or []:
            assert len(pack.MAGIC) <= one.offset_bytes <= len(body) - one.frame.total_bytes
        walked = call(lambda: list(pack_file.walk_frames(fd))) or []
        assert all(one.offset_bytes + one.frame.total_bytes <= len(whole) for one in walked)
        found = salvage.salvage_frames(fd)
        assert len(found) <= len(whole) // frame.HEADER_BYTES


# Payloads


def fuzz_zstd(data: bytes) -> None:
    """Decode a zstd payload whose header claims anything."""
    source = Bytes(data)
    size = source.number(3) % 100_000
    plain = call(codec.decode, codec.ZSTD, source.rest, size)
    assert plain is None or len(plain) == size


def fuzz_planes(data: bytes) -> None:
    """Decode a payload of byte planes, with columns as long as its header says."""
    source = Bytes(data)
    size = source.number(2)
    call(codec.decode, codec.PLANES, source.rest, size)
    stored, bodies = source.take(2), b""
    for _ in range(source.number(1) % 9):
        kind, body = source.number(1), source.part()
        if kind & 1:
            body = codec.encode(body * (1 + kind // 2))[1]
        if kind & 2:
            body = bytes([kind]) + struct.pack("<I", len(body)) + bytes(body)
        stored += source.take(2) + struct.pack("<I", len(body))
        bodies += body
    plain = call(codec.decode, codec.PLANES, stored + bodies + source.rest, size)
    assert plain is None or len(plain) == size


def fuzz_delta(data: bytes) -> None:
    """Decode a delta. Its classes hold real byte planes if the input allows that."""
    source = Bytes(data)
    size, width = source.number(2) % 4096, (2, 4, 8)[source.number(1) % 3]
    reference = source.part()[:size].ljust(size, b"\x3f")
    call(codec.decode, codec.DELTA, source.rest, size, reference)
    call(codec.decode, codec.SPARSE, source.rest, size, reference)
    skip, cuts = source.number(1) % 9, source.part()[:8]
    stored = bytes([width, skip, len(cuts)]) + cuts + source.part()
    for _ in range(len(cuts) + 1):
        part = source.part()
        plan = Plan(width, 0, probing.plan(bytes(64), width).columns, 1.0)
        body = bytes(planes.encode(part, plan))
        stored += struct.pack("<IB", len(body), source.number(1)) + body
    plain = call(codec.decode, codec.DELTA, stored + source.rest, size, reference)
    assert plain is None or len(plain) == size
    # The same delta, as the changed elements of a longer chunk.
    count, gaps = size // width, source.part()
    stored = struct.pack("<BBIB", width, 0, count, 1) + struct.pack("<BI", 0, len(gaps)) + gaps
    plain = call(codec.decode, codec.SPARSE, stored + source.rest, 4 * size, reference * 4)
    assert plain is None or len(plain) == 4 * size


# Nodes


class Web:
    """Nodes that name each other as the input says: the first byte of an ID chooses a node."""

    def __init__(self, data: bytes) -> None:
        source = Bytes(data)
        self.level = source.number(1) % 16 - 2
        self.size_bytes = source.number(2)
        self.parts = []
        while source.rest and len(self.parts) < 40:
            self.parts.append(source.part())
        self.reads = 0

    def get(self, _kind: int, name: bytes) -> bytes:
        """Return a node."""
        self.reads += 1
        if not self.parts or not name:
            raise CorruptionError("missing")
        return self.parts[name[0] % len(self.parts)]


def fuzz_tree(data: bytes) -> None:
    """Read tree nodes. Work is bounded, however often nodes name each other."""
    web = Web(data)
    names = []
    with contextlib.suppress(*REFUSED):
        names.extend([one.name for one in tree_nodes.iter_tree(web.get, b"\0", web.level)])
    assert names == sorted(set(names))
    assert web.reads <= (len(data) + 1) * (nodes.LEVEL_MAX + 1)
    web.reads = 0
    call(lambda: tree_nodes.Lookup(web.get, b"\0", web.level).find(data[:4]))
    assert web.reads <= nodes.LEVEL_MAX + 1
    for part in web.parts[:4]:
        call(references, kinds.TREE, part, web.level)


def fuzz_recipe(data: bytes) -> None:
    """Read recipe nodes. There are at most as many pieces as the file has bytes."""
    web = Web(data)
    size = web.size_bytes % 500
    entry = Entry(b"f", 0o100644, 0, 0, 0, 0, 0, size_bytes=size, content=b"\0", level=web.level)
    found = call(lambda: list(recipe_nodes.iter_pieces(web.get, entry)))
    assert found is None or sum([one.length_bytes for one in found]) == size
    assert web.reads <= (size + 2) * (nodes.LEVEL_MAX + 1)
    for piece in found or []:
        with memoryview(data) as view:
            call(recipe_nodes.cut, view, piece)
    for part in web.parts[:4]:
        call(references, kinds.RECIPE, part, web.level)


# Sealed documents


def seal(text: bytes) -> bytes:
    """Return a sealed document with any bytes."""
    text += b'"checksum": "blake3:'
    return text + data_id(text + b"0" * 64 + b'"\n}\n').hex().encode() + b'"\n}\n'


def fuzz_manifest(data: bytes) -> None:
    """Decode a manifest, as it is and sealed."""
    call(manifest.decode_manifest, data, SNAPSHOT)
    found = call(manifest.decode_manifest, seal(data), SNAPSHOT)
    if found is not None:
        assert found.summary.id == SNAPSHOT
        assert all(one.path.startswith(b"/") and len(one.tree) in {0, 32} for one in found.roots)
        call(listing._decoder.decode, listing._encoder.encode(found.summary))


def fuzz_header(data: bytes) -> None:
    """Decode the header of a store, as it is and sealed."""
    for one in (data, seal(data)):
        path = scratch(layout.HEADER, one)
        found = call(find.read_header, os.path.dirname(path))
        if found is not None:
            cut = found.chunking
            assert 4096 <= cut.size_bytes <= 16 * 1024 * 1024
            if cut.kind == header.CONTENT:
                ContentChunker(cut.size_bytes, cut.average_bytes, cut.least_bytes)


def fuzz_mark(data: bytes) -> None:
    """Decode a mark with any tags and time, and any document as a mark and as retired IDs."""
    source = Bytes(data)
    forgotten_ns, tags = source.number(9), source.part()
    text = {"format": 1, "id": SNAPSHOT, "number": 1, "pinned": False}
    text["forgotten_ns"] = forgotten_ns
    begin = json.dumps(text).encode()[:-1] + b', "tags": '
    for one in (source.rest, begin + tags + b", "):
        found = call(mark.decode_mark, seal(one), SNAPSHOT, 1)
        if found is not None:
            assert mark.decode_mark(mark.encode_mark(found, SNAPSHOT, 2), SNAPSHOT, 2) == found
    ids = call(retired.decode_retired, seal(source.rest))
    assert all(layout.is_snapshot_id(one) for one in ids or [])


# Parity


def fuzz_parity(data: bytes) -> None:
    """Read a pack by a parity file whose headers and pages are sealed."""
    source = Bytes(data)
    name = bytes(32)
    size, segments, rows = source.number(3), source.number(1), source.number(1)
    sector, code, segment = source.number(3), source.number(1), source.number(4)
    fields = (encoding._MAGIC, size, segments, rows, 1 << sector % 18, code, segment, name)
    bare = encoding._HEADER.pack(*fields, 0)[: encoding._SUMMED_BYTES]
    head = bare + checksum(bare).to_bytes(8, "little")
    there, table = source.part(), source.part()
    page = table[: len(table) // 8 * 8]
    page += encoding._page_sum(name, 0, page)
    with opened(head + page + source.rest + page + head) as fd, opened(there) as pack_fd:
        made = call(parity_file.Parity, fd, name)
        if made is None:
            return
        made.problem()
        with contextlib.suppress(*REFUSED):
            reader = rebuild.ParityReader(pack_fd, made)
            assert len(reader.read(4096, 0)) <= 4096
            assert len(reader.read(100, max(0, size - 50))) <= 100


# Reflink copies


def fuzz_frozen(data: bytes) -> None:
    """Read a sealed record of reflink copies."""
    source = Bytes(data)
    length, raw = source.number(2), source.number(1) & 1
    if raw:
        body = source.rest
    else:
        text = source.part()
        body = records._MAGIC + records._HEAD.pack(length or len(text)) + text + source.rest
    path = scratch("record", body + data_id(body))
    found = records.Record.read(os.fsencode(path))
    for root in found.roots if found else []:
        assert len(root.copies.raw()) == 64 * len(root.copies) <= len(body)
        list(root.copies.numbers())
        root.copies.find(*copies._KEY.unpack(data[:24].ljust(24, b"\0")))


# Files of tensors


def fuzz_tensors(data: bytes) -> None:
    """Read the headers of a file that claims anything about its tensors, which are zeros."""
    first, *others = data.split(ZEROS)[:5]
    runs = [bytes(int.from_bytes(one[:3], "little") % 200_000) + one[3:] for one in others]
    whole = first + b"".join(runs)
    read_bytes = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal read_bytes
        assert 0 <= offset <= offset + length <= len(whole)
        read_bytes += length
        return whole[offset : offset + length]

    found = spans.layout(read, len(whole))
    assert read_bytes <= min(headers.HEADER_BYTES_MAX, len(whole))
    assert found is None or found
    end = 0
    for one in found or ():
        assert end <= one.offset_bytes < one.offset_bytes + one.length_bytes <= len(whole)
        end = one.offset_bytes + one.length_bytes
        assert len(one.name.encode(errors="surrogateescape")) <= headers.NAME_BYTES_MAX
        assert len(one.element) <= 16
    if zip_archive.begins(whole):
        _look_closely(whole)


def _look_closely(whole: bytes) -> None:
    """Read the parts that only archives have: places of small tensors, and pickles."""
    found = described(lambda offset, length: whole[offset : offset + length], len(whole))
    assert found is None or found
    assert len({one.name for one in found or ()}) == len(found or ())
    for one in found or ():
        assert 0 <= one.offset_bytes < one.offset_bytes + one.length_bytes <= len(whole)
        assert one.length_bytes % WIDTHS.get(one.element, 1) == 0


def fuzz_pickle(data: bytes) -> None:
    """Read the pickle of a checkpoint of ``torch.save``."""
    for key, one in torch_pickle.read(data).items():
        assert isinstance(key, str)
        assert len(one.name.encode(errors="surrogatepass")) <= headers.NAME_BYTES_MAX
        assert one.shape is None or math.prod(one.shape) == one.elements
    for parts in torch_pickle.parts(data).values():
        assert all(one.offset_bytes >= 0 < one.length_bytes for one in parts)
    whole = headers.Headers(lambda offset, length: data[offset : offset + length], len(data))
    with contextlib.suppress(headers.NoLayoutError):
        torch_legacy.end_bytes(whole)


# The catalog


def value(source: Bytes) -> object:
    """Return a value that a cell of a table may hold."""
    kind = source.number(1) % 6
    if kind == 0:
        return source.take(32)
    if kind == 1:
        return source.number(2)
    if kind == 2:
        return int.from_bytes(source.take(8), "little", signed=True)
    if kind == 3:
        return source.part()
    if kind == 4:
        return source.part().decode("utf-8", "replace")
    return struct.unpack("<d", source.take(8))[0]


def fuzz_rows(data: bytes) -> None:
    """Read rows of the chunk index that hold anything, because SQLite keeps values of any type."""
    source = Bytes(data)
    with contextlib.closing(chunk_index.ChunkIndex("", write=True)) as made:
        columns = {"pack": 3, "chunk": 7, "snapshot": 5, "pack_check": 4, "lost_chunk": 1}
        for _ in range(1 + source.number(1) % 6):
            table = sorted(columns)[source.number(1) % len(columns)]
            row = [value(source) for _ in range(columns[table])]
            with contextlib.suppress(sqlite3.Error):
                made._db.execute(
                    f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})",  # ours
                    row,
                )
        made._db.commit()
        # Callers ask for IDs that trees and recipes name. These are bytes, whatever the rows hold.
        ids = [
            chunk_id
            for (chunk_id,) in made._db.execute("SELECT id FROM chunk")
            if isinstance(chunk_id, bytes)
        ]
        for ask in (
            lambda: made.places(ids),
            lambda: made.usable(ids),
            made.checks,
            made.totals,
            made.lost_chunks,
            lambda: list(made.chunk_ids()),
            made.packs,
        ):
            with contextlib.suppress(chunk_index.IndexDamagedError):
                ask()
        for _, _, summary in made.snapshots().values():
            with contextlib.suppress(*catalog_errors()):
                listing._decoder.decode(summary)


def catalog_errors() -> tuple[type[Exception], ...]:
    """Return the errors after which ``ciuic.catalog.listing`` makes a row again."""
    import msgspec

    return msgspec.MsgspecError, UnicodeDecodeError


# Text that people write


def fuzz_config(data: bytes) -> None:
    """Parse a configuration: it gives settings, or an error that names the file and line."""
    path = scratch("ciuic.conf", data)
    for read in (read_store_path, load_settings):
        try:
            found = read(path)
        except ConfigError as error:
            assert error.message.startswith(path)
            continue
        assert isinstance(found, str) or found.snapshot_dir.startswith("/")


def fuzz_words(data: bytes) -> None:
    """Parse policies, durations, sizes, budgets, times, names in the store, paths in manifests."""
    text = data.decode("utf-8", "surrogateescape")
    for parse in (parse_policy, parse_duration_s, parse_size_bytes, parse_budget):
        with contextlib.suppress(ValueError):
            parse(text)
    moment = from_local_text(text)
    assert moment is None or isinstance(moment, int)
    for name in (text, f"{text}.json", f"cs-{text}"):
        found = layout.parse_pack_name(name)
        assert found is None or layout.pack_name(found) == name
        snapshot = layout.parse_manifest_name(name)
        assert snapshot is None or layout.manifest_name(snapshot) == name
    path = call(manifest._unescaped, text)
    assert path is None or manifest._unescaped(manifest._escaped(path)) == path


# Messages


def fuzz_request(data: bytes) -> None:
    """Parse a request of a client to the daemon."""
    try:
        request = control.parse_request(data)
        if isinstance(request, control.SnapshotRequest):
            request.scope()
    except UsageError as error:
        assert len(error.message) < 1000


def fuzz_reply(data: bytes) -> None:
    """Parse a reply of the daemon to a client."""
    try:
        daemon, client = socket.socketpair()
        with client:
            with daemon:
                daemon.sendall(data[: 64 * 1024])
            line = control_client._Replies(client, "/store").line(1.0)
        reply = control_client._decode_reply(line, "/store")
        control.error_from_document(reply.get("error"))
    except CiuicError:
        return


class _Client:
    """A connection that sends given bytes in pieces, and keeps the bytes that it receives."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.told = b""

    def settimeout(self, _duration_s: float) -> None:
        """Ignore the time limit, because nothing waits."""

    def recv(self, _length: int) -> bytes:
        """Return the next piece."""
        size = 1 + (self._data[0] if self._data else 0)
        piece, self._data = self._data[:size], self._data[size:]
        return piece


def fuzz_daemon(data: bytes) -> None:
    """Serve a client of the daemon: it returns at most one line, and reads up to the limit."""
    server = object.__new__(Server)
    server._clock = ManualClock(0)
    client = _Client(data * (1 + len(data) % 7 * 40))
    try:
        line = server._receive(client)
        assert line is None or b"\n" not in line
        if line is not None:
            control.parse_request(line)
    except UsageError:
        return


TARGETS: dict[str, Target] = {
    "config": fuzz_config,
    "daemon": fuzz_daemon,
    "footer": fuzz_footer,
    "frame": fuzz_frame,
    "frozen": fuzz_frozen,
    "header": fuzz_header,
    "manifest": fuzz_manifest,
    "mark": fuzz_mark,
    "parity": fuzz_parity,
    "delta": fuzz_delta,
    "pickle": fuzz_pickle,
    "planes": fuzz_planes,
    "recipe": fuzz_recipe,
    "reply": fuzz_reply,
    "request": fuzz_request,
    "rows": fuzz_rows,
    "tensors": fuzz_tensors,
    "tree": fuzz_tree,
    "words": fuzz_words,
    "zstd": fuzz_zstd,
}
