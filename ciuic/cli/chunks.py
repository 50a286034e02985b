"""``ciuic show --chunks``: how files are stored, for people and for programs.

Printed as it is found: a snapshot may have more chunks than fit into memory.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import click

from ciuic.cli.render import as_json_text, printable
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import path_text
from ciuic.store.layout import pack_name
from ciuic.units import format_bytes
from ciuic.verbs.browse import Located, locate, root_entry, walk
from ciuic.verbs.chunks import Frames, StoredChunk, codec_name, file_chunks

__all__ = ["print_chunks"]

_HEADER: Final = (
    f"{'OFFSET':>16} {'LENGTH':>11}  {'CHUNK':12}  {'CODEC':8} {'STORED':>11}"
    f"  {'PACK':12}  {'DEPTH':>5} {'READS':>12}  FROM\n"
)

_LINES: Final = 1000


def print_chunks(
    store: Any, manifest: Any, paths: Sequence[bytes], *, document: dict[str, Any] | None
) -> bool:
    """Print the chunks of files of a snapshot; returns whether any can't be had.

    Args:
        store: An open store.
        manifest: The snapshot.
        paths: Files, and directories for all that is below them; none: the whole snapshot.
        document: What a JSON document has besides its files; None: print a table for people.
    """
    frames = Frames(store)
    tops = [locate(store, manifest, path) for path in paths] or [
        Located(root.path, root_entry(store, root)) for root in manifest.roots if root.tree
    ]
    told = _Told(store, frames)
    files = told.files(tops)
    if document is None:
        for one in files:
            told.print(one)
    else:
        # The document's last brace waits for the files.
        told.write(as_json_text(document).removesuffix("\n}") + ',\n  "stored_files": [')
        for number, one in enumerate(files):
            told.write(",\n" if number else "\n")
            told.print_json(one)
        told.write("\n  ]\n}\n")
    told.flush()
    return told.is_damaged


class _Told:
    """Prints file by file, and remembers whether anything was amiss."""

    def __init__(self, store: Any, frames: Frames) -> None:
        self._store = store
        self._frames = frames
        self._lines: list[str] = []
        self.is_damaged = False

    def write(self, text: str) -> None:
        """Print, many lines at once: click empties the stream's buffer each time."""
        self._lines.append(text)
        if len(self._lines) >= _LINES:
            self.flush()

    def flush(self) -> None:
        """Print what waits."""
        click.echo("".join(self._lines), nl=False)
        self._lines = []

    def print(self, file: Located) -> None:
        """A table for people."""
        self.write(f"{printable(file.path)}  {format_bytes(file.entry.size_bytes)}\n")
        for number, chunk in enumerate(self._chunks(file)):
            self.write(f"{'' if number else _HEADER}{_line(chunk)}\n")

    def print_json(self, file: Located) -> None:
        """One element of ``stored_files``."""
        head = {"path": path_text(file.path), "size_bytes": file.entry.size_bytes}
        self.write(f'    {json.dumps(head)[:-1]}, "chunks": [')
        for number, chunk in enumerate(self._chunks(file)):
            self.write(f"{',' if number else ''}\n      {json.dumps(_chunk_json(chunk))}")
        self.write("]}")

    def files(self, tops: Iterable[Located]) -> Iterator[Located]:
        """All files below some paths; a damaged tree ends what is below one of them."""
        for top in tops:
            with self._damage(top.path):
                yield from (one for one in walk(self._store, top) if one.entry.is_file)

    def _chunks(self, file: Located) -> Iterator[StoredChunk]:
        with self._damage(file.path):
            for chunk in file_chunks(self._store, self._frames, file.entry):
                self.is_damaged |= bool(chunk.what)
                yield chunk

    @contextlib.contextmanager
    def _damage(self, path: bytes) -> Iterator[None]:
        """What is damaged is told on stderr: a document that has begun must have its end."""
        try:
            yield
        except (CorruptionError, UnknownFormatError) as error:
            self.is_damaged = True
            click.echo(f"ciuic: {printable(path)}: {printable(error.message)}", err=True)


def _line(chunk: StoredChunk) -> str:
    place = f"{chunk.offset_bytes:>16,} {chunk.length_bytes:>11,}"
    if not chunk.id:
        return f"{place}  hole"
    name = chunk.id.hex()[:12]
    if not chunk.chain:
        return f"{place}  {name}  {printable(chunk.what)}"
    frame = chunk.chain[0]
    told = (
        f"{place}  {name}  {codec_name(frame.codec):8} {chunk.stored_bytes:>11,}"
        f"  {frame.pack.hex()[:12]}  {len(chunk.references):>5} {chunk.read_bytes:>12,}"
        f"  {chunk.references[0].hex()[:12] if chunk.references else ''}"
    ).rstrip()
    return f"{told}  {printable(chunk.what)}" if chunk.what else told


def _chunk_json(chunk: StoredChunk) -> dict[str, Any]:
    frame = chunk.chain[0] if chunk.chain else None
    return {
        "offset": chunk.offset_bytes,
        "length_bytes": chunk.length_bytes,
        "id": chunk.id.hex() or None,
        "start": chunk.start_bytes,
        "codec": codec_name(frame.codec) if frame else None,
        "stored_bytes": chunk.stored_bytes,
        "frame_bytes": frame.frame_bytes if frame else 0,
        "pack": pack_name(frame.pack) if frame else None,
        "references": _hex(chunk.references),
        "chain_depth": len(chunk.references),
        "read_bytes": chunk.read_bytes,
        "trouble": chunk.what or None,
    }


def _hex(names: Iterable[bytes]) -> list[str]:
    return [one.hex() for one in names]
