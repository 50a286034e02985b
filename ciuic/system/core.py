"""Loads the compiled core, ``ciuic._core``: the home of that extension.

It is optional. Where it was not built, each caller does the same work in Python and numpy, with
the same result to the bit, slower. ``core/`` has the sources; a header there says what each
function promises. ``CIUIC_CORE`` is for tests and for debugging: ``off`` runs without the core,
``portable`` runs it without vector instructions that only some processors have, and ``avx2`` with
none but AVX2, as on a processor without AVX-512.
"""

import functools
import importlib
import os
from array import array
from collections.abc import Sequence
from mmap import mmap
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

__all__ = ["VARIABLE", "Core", "FileRead", "Functions", "State", "buffer", "core", "load", "state"]

VARIABLE: Final = "CIUIC_CORE"
_OFF: Final = "off"
_PORTABLE: Final = "portable"
_AVX2: Final = "avx2"
_EXTENSION: Final = "ciuic._core"
_INTERFACE: Final = 12
"""Of ``core/binding.c``: an extension that was built from other sources is not used."""


Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap | array[int]"
FileRead: TypeAlias = tuple[bytes, tuple[tuple[bytes, bytes], ...], int, int, int, int, int, int]
"""Content, extended attributes in any order, mode, owner, group, mtime, ctime, and inode."""


class Functions(Protocol):
    """The functions of the extension. ``targets`` is the mask of ``core/targets.h``."""

    AVX2: int
    FILES_MAX: int
    GFNI: int
    NEON: int
    READ_FROZEN: int
    READ_OWNED: int
    interface: int

    def targets(self) -> int:
        """Return the vector instructions of this processor."""

    def buffer(self, length: int) -> bytearray:
        """Return a buffer with arbitrary content, without the time that clearing it takes."""

    def copy(self, out: Buffer, at: int, data: Buffer) -> None:
        """Copy ``data`` to ``out`` from byte ``at`` on, without the interpreter's lock."""

    def copy_arrays(self, out: Buffer, arrays: Buffer) -> None:
        """Copy bytes at addresses to their places in ``out``: ``core/copies.h``.

        Args:
            out: The memory.
            arrays: For each array its place in ``out``, its address and its length, 8 bytes each.
        """

    def equal(self, left: Buffer, right: Buffer) -> bool:
        """Return whether two buffers hold the same bytes."""

    def planes_split(  # noqa: PLR0917 - what the C function takes
        self,
        targets: int,
        plan: bytes,
        plain: Buffer,
        skip: int,
        count: int,
        out: Buffer,
        begin: int,
    ) -> int:
        """Split elements into columns: ``core/planes.h``."""

    def planes_join(  # noqa: PLR0917 - what the C function takes
        self,
        targets: int,
        plan: bytes,
        bodies: Sequence[Buffer],
        count: int,
        plain: Buffer,
        skip: int,
    ) -> None:
        """Undo ``planes_split``: ``core/planes.h``."""

    def planes_match(  # noqa: PLR0917 - what the C function takes
        self,
        targets: int,
        plan: bytes,
        bodies: Sequence[Buffer],
        count: int,
        plain: Buffer,
        skip: int,
    ) -> bool:
        """Return whether ``planes_join`` would write what ``plain`` holds: ``core/planes.h``."""

    def planes_tally(
        self, width: int, sample: Buffer, skip: int
    ) -> tuple[tuple[int, int, int], ...]:
        """Tell how the bytes of elements are spread: ``core/planes.h``."""

    def delta_sizes(self, classes: bytes, old: Buffer, skip: int) -> tuple[int, ...]:
        """Count the elements of each class: ``core/deltas.h``."""

    def delta_split(  # noqa: PLR0917 - what the C function takes
        self, targets: int, classes: bytes, plain: Buffer, old: Buffer, skip: int, out: Buffer
    ) -> tuple[int, ...]:
        """Sort differences by class; returns the sizes of the classes: ``core/deltas.h``."""

    def delta_join(  # noqa: PLR0917 - what the C function takes
        self,
        targets: int,
        classes: bytes,
        bodies: Sequence[Buffer],
        old: Buffer,
        skip: int,
        plain: Buffer,
    ) -> None:
        """Undo ``delta_split``: ``core/deltas.h``."""

    def sparse_count(self, targets: int, width: int, plain: Buffer, old: Buffer, skip: int) -> int:
        """Count the elements that differ: ``core/sparse.h``."""

    def sparse_split(  # noqa: PLR0917 - what the C function takes
        self,
        width: int,
        plain: Buffer,
        old: Buffer,
        skip: int,
        gaps: Buffer,
        now: Buffer,
        before: Buffer,
    ) -> int:
        """Write gaps and values of the elements that differ: ``core/sparse.h``."""

    def sparse_take(
        self, width: int, gaps: Sequence[Buffer], old: Buffer, skip: int, out: Buffer
    ) -> bool:
        """Copy changed elements; False if a gap leads beyond the end: ``core/sparse.h``."""

    def sparse_join(  # noqa: PLR0917 - what the C function takes
        self,
        width: int,
        gaps: Sequence[Buffer],
        values: Buffer,
        old: Buffer,
        skip: int,
        plain: Buffer,
    ) -> bool:
        """Undo ``sparse_split``; False if a gap leads beyond the end: ``core/sparse.h``."""

    def files_create(
        self, files: Sequence[tuple[int, bytes, Buffer, int, int, int, int]]
    ) -> list[int]:
        """Create files; returns an errno, or 0, for each: ``core/files.h``.

        Args:
            files: At most ``FILES_MAX``: directory, name, content, mode, owner, group, time in ns.
        """

    def files_read(
        self, buffer: Buffer, files: Sequence[tuple[int, bytes, int, int]]
    ) -> list[int | FileRead]:
        """Read small files; an errno stands for one that was not read: ``core/reading.h``.

        Args:
            buffer: Each file gets pages of its own, for one byte more than its maximum length.
            files: At most ``FILES_MAX``: directory, name, maximum length, ``READ_*`` flags.
        """

    def files_rename(self, names: Sequence[tuple[int, bytes, bytes]]) -> tuple[int, int]:
        """Rename files until one fails; returns how many, and its errno or 0: ``core/files.h``.

        Args:
            names: At most ``FILES_MAX``: directory, old name, new name.
        """

    def names_fill(  # noqa: PLR0917 - what the C function takes
        self,
        fill: int,
        buffer: int,
        entries: Sequence[object],
        inodes: Buffer,
        begin: int,
        offset: int,
        plus: bool,
    ) -> int:
        """Give names to libfuse until it takes no more; returns how many: ``core/binding_names.c``.

        Args:
            fill: The address of libfuse's function.
            buffer: Its first argument.
            entries: The entries of a directory; those from ``begin`` on are given.
            inodes: The number of each, eight bytes; 0: unknown.
            begin: How many entries are left out.
            offset: That of the first entry in the directory.
            plus: Give attributes where no tree or recipe is read for them.
        """

    def gf_add(
        self,
        targets: int,
        coefficients: Buffer,
        source: Buffer,
        rows: Sequence[Buffer],
    ) -> None:
        """Add a segment, times its coefficients, to rows: ``core/galois.h``."""

    def parity_add(  # noqa: PLR0917 - what the C function takes
        self,
        targets: int,
        shape: tuple[int, int, int, int],
        matrix: Buffer,
        offset: int,
        data: Buffer,
        parity: Buffer,
        sums: Buffer,
    ) -> None:
        """Add the next bytes of a pack to its parity: ``core/parity.h``."""

    def sector_sums(self, targets: int, data: Buffer, sector_bytes: int, sums: Buffer) -> None:
        """Compute the checksums of whole sectors: ``core/checksum.h``."""


class Core(NamedTuple):
    """The compiled core.

    Attributes:
        functions: The extension.
        targets: The vector instructions that its functions may use; each takes it first.
    """

    functions: Functions
    targets: int


class State(NamedTuple):
    """Whether the compiled core runs.

    Attributes:
        core: None if it does not.
        what: How it runs, or why it does not, as a clause.
        is_chosen: ``CIUIC_CORE`` decided it.
    """

    core: Core | None
    what: str
    is_chosen: bool = False


def load(setting: str, interface: int = _INTERFACE) -> State:
    """Load the extension.

    Args:
        setting: The value of ``CIUIC_CORE``; any but those that the module names means nothing.
        interface: The number that the extension must have.
    """
    if setting == _OFF:
        return State(None, f"switched off by {VARIABLE}", is_chosen=True)
    try:
        functions = cast("Functions", importlib.import_module(_EXTENSION))
    except ModuleNotFoundError:
        return State(None, "not built")
    except ImportError as error:
        return State(None, f"not loadable ({error})")
    if functions.interface != interface:
        return State(None, "built from the sources of another version")
    targets = functions.targets()
    allowed = {_PORTABLE: 0, _AVX2: functions.AVX2}.get(setting, targets)
    is_chosen = setting in {_PORTABLE, _AVX2}
    targets &= allowed
    named = [name for name in ("AVX2", "GFNI", "NEON") if targets & getattr(functions, name)]
    what = f"compiled, with {' and '.join(named) or 'plain C'}"
    why = f" because of {VARIABLE}" if is_chosen else ""
    return State(Core(functions, targets), what + why, is_chosen)


@functools.cache
def state() -> State:
    """Return whether the compiled core runs in this process."""
    return load(os.environ.get(VARIABLE, ""))


def core() -> Core | None:
    """Return the compiled core; None if Python and numpy have to do its work."""
    return state().core


def buffer(size_bytes: int) -> memoryview:
    """Return memory with arbitrary content; without the core it is cleared, which takes time."""
    compiled = core()
    if compiled is None:
        return memoryview(bytearray(size_bytes))
    return memoryview(compiled.functions.buffer(size_bytes))
