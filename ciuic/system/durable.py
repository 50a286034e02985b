"""Write files durably: the only module that fsyncs, renames and links.

Every process sees a rename at once, but the rename survives a power cut only after the directory
of the name has been synced. So every function here says whether the name is durable. No function
follows a symlink (``nofollow``): another user may own the directory. Sources: rename(2), fsync(2)
("a file's fsync does not sync its directory entry"), syncfs(2).
"""

import contextlib
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ciuic.system import nofollow
from ciuic.system.core import core

__all__ = [
    "NotSyncedError",
    "create_named",
    "create_whole",
    "keep_as",
    "link_name",
    "make_directory",
    "make_empty",
    "move_directory",
    "publish",
    "publish_name",
    "publish_names",
    "remove_file",
    "set_aside",
    "sync_directory",
    "sync_file_system",
    "temporary_name",
    "write_named",
    "write_open",
    "write_whole",
]


_NO_LINKS: Final = frozenset([errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
"""Errors of link(2) on a file system without hard links."""


class NotSyncedError(OSError):
    """A file was written under its final name, but the name may not survive a power cut."""


def temporary_name(prefix: str) -> str:
    """Return a random name that begins with a prefix."""
    return f"{prefix}{os.urandom(8).hex()}"


def make_directory(path: str, mode: int, *, like_above: bool = False) -> None:
    """Create the directory ``path`` if it is missing; its name is durable when this returns.

    Args:
        path: The directory.
        mode: Its mode.
        like_above: It gets the owner of the directory above it, or is removed if this process
            cannot give it away. One that was there gets that owner only if it is empty.
    """
    with nofollow.opened_parent(path) as (directory, name):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=directory)
        if like_above:
            _give_away(name, directory)
    sync_directory(os.path.dirname(path) or ".")


def _give_away(name: str, above: int) -> None:
    """Give an empty directory the owner of the one above it, or remove it."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        # That owner may put another directory of root's in its place meanwhile, and must not get
        # what is in that one.
        if not os.listdir(fd):
            _give(fd, above)
    except OSError:
        os.rmdir(name, dir_fd=above)
        raise
    finally:
        os.close(fd)


def _give(fd: int, above: int) -> None:
    owner = os.fstat(above)
    if os.fstat(fd).st_uid != owner.st_uid:
        os.fchown(fd, owner.st_uid, owner.st_gid)


def make_empty(path: str, mode: int, *, like_above: bool = False) -> None:
    """Create an empty file if it is missing; its name is durable when this returns.

    No process can see a part of an empty file, so it needs no temporary name.

    Args:
        path: The file.
        mode: Its mode.
        like_above: It is new, and gets the owner of its directory.
    """
    # O_NONBLOCK: if a FIFO has this name, opening it must not wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK
    if like_above:
        flags |= os.O_EXCL  # the owner must not get a file of root's that he has linked there
    fd = nofollow.open_file(path, flags, mode)
    try:
        if like_above:
            with nofollow.opened_parent(path) as (directory, _):
                _give(fd, directory)
    finally:
        os.close(fd)
    sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Make every creation, rename and removal in the directory ``path`` durable."""
    with nofollow.opened_directory(path) as fd:
        os.fsync(fd)


def publish(fd: int, temporary: str, final: str) -> None:
    """Sync a written file, then rename it to its final name.

    The content is durable before the name is visible. The name is durable only after
    ``sync_directory``, which a writer of many files calls once for all of them.
    """
    os.fsync(fd)
    _rename(temporary, final)


def write_whole(path: str, data: bytes, *, temporary_directory: str, mode: int) -> None:
    """Write ``data`` to ``path``; content and name are durable when this returns.

    Other processes see the old file or the new one, never a part.

    Args:
        path: The final name.
        data: The whole content.
        temporary_directory: On the same file system as ``path``.
        mode: Permission bits of the file.

    Raises:
        NotSyncedError: ``path`` is the new file, which may or may not survive a power cut.
        OSError: ``path`` is unchanged, and no temporary file is left.
    """
    write_named(path, data, temporary_directory=temporary_directory, mode=mode)
    _sync_name(path)


def create_whole(
    path: str, data: bytes, *, temporary_directory: str, mode: int, is_locked: bool = True
) -> None:
    """Like ``write_whole``, but only if the name is free: of two writers, one gets it.

    link(2) creates the name, because it never replaces a file. On a file system without hard links,
    two processes could both find the name free; there the caller's lock must exclude the other.

    Args:
        path: The final name.
        data: The whole content.
        temporary_directory: On the same file system as ``path``.
        mode: Permission bits of the file.
        is_locked: A lock of the caller excludes other writers. Without it, a file system without
            hard links is refused.

    Raises:
        FileExistsError: The name is taken; that file is unchanged.
        NotSyncedError: As ``write_whole``.
        OSError: The name is not created, and no temporary file is left.
    """
    publish_as = _publish_new if is_locked else _publish_linked
    _write(path, data, temporary_directory, mode, publish_as)
    _sync_name(path)


def create_named(
    directory: str, files: Mapping[str, bytes], *, temporary_directory: str, mode: int
) -> set[str]:
    """Like ``create_whole`` for several files; names are durable after ``sync_directory``.

    All contents are durable before the first name is there. So a disk without space for all of them
    gives no name.

    Args:
        directory: Gets the names.
        files: The name and the content of each.
        temporary_directory: On the same file system.
        mode: Permission bits of the files.

    Returns:
        The names that were free, and are these files now.

    Raises:
        OSError: A file cannot be written, or a name cannot be created; no temporary file is left.
    """
    temporaries = {
        name: os.path.join(temporary_directory, temporary_name("file-")) for name in files
    }
    created: set[str] = set()
    try:
        for name, data in files.items():
            _write(temporaries[name], data, temporary_directory, mode, publish)
        for name, temporary in temporaries.items():
            with contextlib.suppress(FileExistsError):
                _name_new(temporary, os.path.join(directory, name))
                created.add(name)
    finally:
        for name in files.keys() - created:
            with contextlib.suppress(OSError):
                remove_file(temporaries[name])
    return created


def write_named(path: str, data: bytes, *, temporary_directory: str, mode: int) -> None:
    """Like ``write_whole``, but the name is durable only after ``sync_directory``.

    Use it to write many files into one directory and sync that directory once.

    Raises:
        OSError: ``path`` is unchanged, and no temporary file is left.
    """
    _write(path, data, temporary_directory, mode, publish)


def write_open(fd: int, path: str, data: bytes) -> None:
    """Write ``data`` to an empty file that is open; content and name are durable when this returns.

    Other processes may see a part of it meanwhile, and a crash may leave one. So the content needs
    a checksum.

    Args:
        fd: The file, open for writing.
        path: Its name.
        data: The whole content.

    Raises:
        OSError: The file may have a part of the content.
    """
    _write_all(fd, data)
    os.fsync(fd)
    sync_directory(os.path.dirname(path))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write(
    path: str,
    data: bytes,
    temporary_directory: str,
    mode: int,
    publish_as: Callable[[int, str, str], None],
) -> None:
    temporary = os.path.join(temporary_directory, temporary_name("file-"))
    fd = nofollow.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            _write_all(fd, data)
            publish_as(fd, temporary, path)
        finally:
            os.close(fd)
    except BaseException:
        remove_file(temporary)
        raise


def _publish_new(fd: int, temporary: str, final: str) -> None:
    os.fsync(fd)
    _name_new(temporary, final)


def _name_new(temporary: str, final: str) -> None:
    """Move a complete file to a name that is free."""
    try:
        _link_new(temporary, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if nofollow.exists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final) from error
        _rename(temporary, final)


def _publish_linked(fd: int, temporary: str, final: str) -> None:
    os.fsync(fd)
    _link_new(temporary, final)


def _link_new(temporary: str, final: str) -> None:
    _link(temporary, final)
    with contextlib.suppress(OSError):  # the file has its name; a leftover only takes space
        remove_file(temporary)


def _sync_name(path: str) -> None:
    try:
        sync_directory(os.path.dirname(path))
    except OSError as error:
        raise NotSyncedError(error.errno, error.strerror, error.filename) from error


def keep_as(source: str, target: str) -> None:
    """Add a second, durable name to a file, so that it survives the removal of the first name.

    Raises:
        FileExistsError: The name is taken.
        OSError: The link failed; the file system may not support hard links.
    """
    _link(source, target)
    sync_directory(os.path.dirname(target))


def move_directory(source: str, target: str) -> None:
    """Rename a directory durably; the new name must not exist yet."""
    _rename(source, target)
    for path in {os.path.dirname(source), os.path.dirname(target)}:
        sync_directory(path)


def set_aside(path: str, kept: str, replacement: str | None) -> None:
    """Give a file another name in its directory, and its own name to a replacement, or to none.

    If the file system has hard links, the name leads to the old file or to the replacement at each
    moment. Both names are durable when this returns; the content of the replacement was synced.

    Raises:
        FileExistsError: The name ``kept`` is taken.
        OSError: The file has its name, unless going back failed as well.
    """
    if replacement is None:
        _name_new(path, kept)
    else:
        try:
            _link(path, kept)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _name_new(path, kept)
        try:
            _rename(replacement, path)
        except OSError:
            with contextlib.suppress(OSError):
                _rename(kept, path)
            raise
    sync_directory(os.path.dirname(path))


def remove_file(path: str) -> None:
    """Remove ``path`` if it exists; not durable until ``sync_directory``."""
    with contextlib.suppress(FileNotFoundError), nofollow.opened_parent(path) as (directory, name):
        os.unlink(name, dir_fd=directory)


def publish_name(temporary: bytes, final: bytes, *, dir_fd: int) -> None:
    """Rename within one directory; the caller must have synced the content."""
    os.rename(temporary, final, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def publish_names(names: Sequence[tuple[int, bytes, bytes]]) -> tuple[int, int]:
    """Rename files, each within one directory, until one fails. Their content must be synced.

    Args:
        names: The open directory, the temporary name and the final name of each file.

    Returns:
        How many have their final names, and the errno of the next; 0 if all have.
    """
    compiled = core()
    if compiled is not None and len(names) <= compiled.functions.FILES_MAX:
        return compiled.functions.files_rename(names)
    for number, (directory, temporary, final) in enumerate(names):
        try:
            publish_name(temporary, final, dir_fd=directory)
        except OSError as error:
            return number, error.errno or errno.EIO
    return len(names), 0


def link_name(source: bytes, source_dir_fd: int, name: bytes, dir_fd: int) -> None:
    """Add a hard link. A symlink at ``source`` is linked, never followed."""
    os.link(source, name, src_dir_fd=source_dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)


def sync_file_system(fd: int) -> None:
    """Make all earlier writes to the file system of ``fd`` durable: syncfs(2).

    One call for thousands of small files costs as much as a few fsyncs.

    Raises:
        OSError: A write did not reach the disk.
    """
    # Loading ctypes takes longer than most commands that never call this function.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _rename(source: str, target: str) -> None:
    with (
        nofollow.opened_parent(source) as (source_directory, source_name),
        nofollow.opened_parent(target) as (target_directory, target_name),
    ):
        os.rename(
            source_name, target_name, src_dir_fd=source_directory, dst_dir_fd=target_directory
        )


def _link(source: str, target: str) -> None:
    with (
        nofollow.opened_parent(source) as (source_directory, source_name),
        nofollow.opened_parent(target) as (target_directory, target_name),
    ):
        os.link(
            source_name,
            target_name,
            src_dir_fd=source_directory,
            dst_dir_fd=target_directory,
            follow_symlinks=False,
        )
