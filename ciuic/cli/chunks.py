"""``ciuic show --chunks``: how files are stored, for people and for programs.

The output is printed as it is found: a snapshot may have more chunks than fit into memory.
"""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from ciuic.cli.render import as_json_text, printable
from ciuic.cli.table import print_pair, terminal_columns
from ciuic.documents import Document
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import path_text
from ciuic.report.chunks import Frames, StoredChunk, codec_name, file_chunks
from ciuic.store.records.layout import pack_name
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.units import format_bytes
from ciuic.view.listing import walk
from ciuic.view.located import Located, root_entry
from ciuic.view.locator import locate

__all__ = ["print_chunks"]

_COLUMNS: Final = (
    ("OFFSET", 16, 0),
    (" LENGTH", 12, 0),
    ("  CHUNK", -14, 2),
    ("  CODEC", -10, 1),
    (" STORED", 12, 0),
    ("  PACK", -14, 5),
    ("  DEPTH", 7, 3),
    (" READS", 13, 4),
    ("  FROM", -14, 6),
)
"""Each column's name, its width with the gap before it (negative: aligned left), and its rank: on a
narrow terminal the column with the highest rank is left out first; 0 always stays."""

_LINES: Final = 1000


def print_chunks(
    store: Store, manifest: Manifest, paths: Sequence[bytes], *, document: Document | None
) -> bool:
    """Print the chunks of files of a snapshot; return whether any cannot be read.

    Args:
        store: An open store.
        manifest: The snapshot.
        paths: Files, and directories for all that is below them; none: the whole snapshot.
        document: The fields of the JSON document besides its files; None: print a table for people.
    """
    frames = Frames(store)
    tops = [locate(store, manifest, path) for path in paths] or [
        Located(root.path, root_entry(store, root)) for root in manifest.roots if root.tree
    ]
    printer = _Printer(store, frames)
    files = printer.files(tops)
    if document is None:
        for file in files:
            printer.print(file)
    else:
        # The closing brace of the document follows the files.
        printer.write(as_json_text(document).removesuffix("\n}") + ',\n  "stored_files": [')
        for number, file in enumerate(files):
            printer.write(",\n" if number else "\n")
            printer.print_json(file)
        printer.write("\n  ]\n}\n")
    printer.flush()
    if document is None:
        printer.print_left_out()
    return printer.is_damaged


class _Printer:
    """Prints file by file, and remembers whether anything was damaged."""

    def __init__(self, store: Store, frames: Frames) -> None:
        self._store = store
        self._frames = frames
        self._lines: list[str] = []
        self.is_damaged = False
        self._columns = _fitting(terminal_columns())

    def write(self, text: str) -> None:
        """Print, many lines at once: click empties the stream's buffer each time."""
        self._lines.append(text)
        if len(self._lines) >= _LINES:
            self.flush()

    def flush(self) -> None:
        """Print the buffered text."""
        click.echo("".join(self._lines), nl=False)
        self._lines = []

    def print(self, file: Located) -> None:
        """Print a table."""
        self.write(f"{printable(file.path)}  {format_bytes(file.entry.size_bytes)}\n")
        for number, chunk in enumerate(self._chunks(file)):
            if not number:
                self.write(f"{self._line([name for name, _, _ in _COLUMNS])}\n")
            self.write(f"{self._line(_cells(chunk), _note(chunk))}\n")

    def print_left_out(self) -> None:
        """Name on stderr the columns that the terminal has no space for."""
        names = [
            name.strip() for at, (name, _, _) in enumerate(_COLUMNS) if at not in self._columns
        ]
        if names and sys.stderr.isatty():
            print_pair("", f"too narrow for {', '.join(names)}; --json has all", 0, err=True)

    def _line(self, cells: Sequence[str], note: str = "") -> str:
        """Return the cells in the columns that are shown, and the note behind them."""
        line = ""
        for at in self._columns:
            if at >= len(cells):
                break
            width = _COLUMNS[at][1]
            line += cells[at].rjust(width) if width > 0 else cells[at].ljust(-width)
        return f"{line.rstrip()}  {note}" if note else line.rstrip()

    def print_json(self, file: Located) -> None:
        """Print one element of ``stored_files``."""
        head = {"path": path_text(file.path), "size_bytes": file.entry.size_bytes}
        self.write(f'    {json.dumps(head)[:-1]}, "chunks": [')
        for number, chunk in enumerate(self._chunks(file)):
            self.write(f"{',' if number else ''}\n      {json.dumps(_chunk_json(chunk))}")
        self.write("]}")

    def files(self, tops: Iterable[Located]) -> Iterator[Located]:
        """Yield all files below some paths; a damaged tree ends the files below its path."""
        for top in tops:
            with self._damage(top.path):
                yield from (file for file in walk(self._store, top) if file.entry.is_file)

    def _chunks(self, file: Located) -> Iterator[StoredChunk]:
        with self._damage(file.path):
            for chunk in file_chunks(self._store, self._frames, file.entry):
                self.is_damaged |= bool(chunk.what)
                yield chunk

    @contextlib.contextmanager
    def _damage(self, path: bytes) -> Iterator[None]:
        """Report damage on stderr instead of raising it: a document must be closed."""
        try:
            yield
        except (CorruptionError, UnknownFormatError) as error:
            self.is_damaged = True
            click.echo(f"ciuic: {printable(path)}: {printable(error.message)}", err=True)


def _fitting(available: int | None) -> list[int]:
    """Return the numbers of the columns to print."""
    shown = list(range(len(_COLUMNS)))
    while available is not None and sum([abs(_COLUMNS[at][1]) for at in shown]) > available:
        last = max(shown, key=lambda at: _COLUMNS[at][2])
        if not _COLUMNS[last][2]:
            break
        shown.remove(last)
    return shown


def _cells(chunk: StoredChunk) -> list[str]:
    """Return a cell for each column that has a value."""
    place = [f"{chunk.offset_bytes:,}", f"{chunk.length_bytes:,}"]
    if not chunk.id:
        return place
    name = f"  {chunk.id.hex()[:12]}"
    if not chunk.chain:
        return [*place, name]
    frame = chunk.chain[0]
    return [
        *place,
        name,
        f"  {codec_name(frame.codec)}",
        f"{chunk.stored_bytes:,}",
        f"  {frame.pack_id.hex()[:12]}",
        str(len(chunk.delta_bases)),
        f"{chunk.read_bytes:,}",
        f"  {chunk.delta_bases[0].hex()[:12] if chunk.delta_bases else ''}",
    ]


def _note(chunk: StoredChunk) -> str:
    return printable(chunk.what) if chunk.id else "hole"


def _chunk_json(chunk: StoredChunk) -> Document:
    frame = chunk.chain[0] if chunk.chain else None
    return {
        "offset": chunk.offset_bytes,
        "length_bytes": chunk.length_bytes,
        "id": chunk.id.hex() or None,
        "start": chunk.start_bytes,
        "codec": codec_name(frame.codec) if frame else None,
        "stored_bytes": chunk.stored_bytes,
        "frame_bytes": frame.frame_bytes if frame else 0,
        "pack": pack_name(frame.pack_id) if frame else None,
        "references": _hex(chunk.delta_bases),
        "chain_depth": len(chunk.delta_bases),
        "read_bytes": chunk.read_bytes,
        "trouble": chunk.what or None,
    }


def _hex(names: Iterable[bytes]) -> list[str]:
    return [chunk_id.hex() for chunk_id in names]
