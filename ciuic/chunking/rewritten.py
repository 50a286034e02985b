"""A file's first bytes -> whether programs write into its middle: databases, images of disks.

A file is told by what it begins with and nothing else. What may change in its life, holes or how
it was written last, would have it cut by two rules in turn, and stored twice (decision 0016).
"""

from typing import Final

from ciuic.chunking.tensors import Read

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
"""Offsets and bytes; docs/format.md has the same."""


def is_rewritten(read: Read) -> bool:
    """Whether a file begins like one that is written in place.

    Args:
        read: Gives the bytes at an offset, so many; fewer if the file ends before.
    """
    head = read(0, _HEAD_BYTES)
    return any(
        (head[at:] if at < _HEAD_BYTES else read(at, len(magic))).startswith(magic)
        for at, magic in MAGICS
    )
