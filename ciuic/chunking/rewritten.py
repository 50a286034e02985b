"""Recognizes files that programs write into: databases and disk images.

Only the first bytes of a file count. Properties that may change, such as holes or the last writer,
would apply two rules to one file in turn, and store it twice (decision 0016).
"""

from typing import Final

from ciuic.formats.headers import Read

__all__ = ["MAGICS", "is_rewritten"]

_HEAD_BYTES: Final = 2048
MAGICS: Final[tuple[tuple[int, bytes], ...]] = (
    (0, b"SQLite format 3\0"),
    (16, b"\xde\xc0\xef\xbe"),  # LMDB, behind the first page's header
    (12, b"\x61\x15\x06\x00"),  # Berkeley DB, hash
    (12, b"\x62\x31\x05\x00"),  # Berkeley DB, B-tree
    (1, b"\x9a\x57\x13"),  # GDBM, all widths
    (0, b"TDB file\n"),
    (0, b"\x89HDF\r\n\x1a\n"),
    (0, b"QFI\xfb"),  # qcow2
    (0, b"KDMV"),  # VMDK
    (0, b"vhdxfile"),
    (64, b"\x7f\x10\xda\xbe"),  # VDI
    (0, b"LUKS\xba\xbe"),
    (0, b"XFSB"),
    (1080, b"\x53\xef"),  # ext2, ext3, ext4
    (536, b"LVM2 001"),
    (510, b"\x55\xaa"),  # a partition table, FAT, NTFS
    (65_600, b"_BHRfS_M"),  # btrfs
)
"""Offsets and bytes, as in docs/format.md."""


def is_rewritten(read: Read) -> bool:
    """Return whether a file begins like one that is written in place.

    Args:
        read: Reads (offset, length) of the file; returns fewer bytes at its end.
    """
    head = read(0, _HEAD_BYTES)
    return any(
        (head[at:] if at < _HEAD_BYTES else read(at, len(magic))).startswith(magic)
        for at, magic in MAGICS
    )
