"""What is on stable storage when: the only module that fsyncs, renames and links.

A rename is seen at once by every process, and survives a power cut only after the directory
that holds the name has been synced. So every function here says which of the two it gives.
Sources: rename(2), fsync(2), syncfs(2); "a file's fsync does not sync its directory entry".
"""

import contextlib
import os
from collections.abc import Iterator

__all__ = [
    "keep_as",
    "link_name",
    "make_directory",
    "make_empty",
    "move_directory",
    "publish",
    "publish_name",
    "remove_file",
    "sync_directory",
    "sync_file_system",
    "temporary_name",
    "write_named",
    "write_whole",
]


def temporary_name(prefix: str) -> str:
    """A name that nobody else uses at this moment."""
    return f"{prefix}{os.urandom(8).hex()}"


def make_directory(path: str, mode: int) -> None:
    """Create ``path`` if it is not there; its name is durable when this returns."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    sync_directory(os.path.dirname(path) or ".")


def make_empty(path: str, mode: int) -> None:
    """Make an empty file if there is none; its name is durable when this returns.

    There is nothing in it that could be seen in part, so it needs no other name before.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode))
    sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Every name that was made, renamed or removed in ``path`` until now is durable."""
    with _opened_directory(path) as fd:
        os.fsync(fd)


def publish(fd: int, temporary: str, final: str) -> None:
    """Give a written file its final name, content first.

    The content is durable before the name can be seen. The name itself is durable only after
    ``sync_directory``: writers of many files do that once for all of them.
    """
    os.fsync(fd)
    os.rename(temporary, final)


def write_whole(path: str, data: bytes, *, temporary_directory: str, mode: int) -> None:
    """Make ``path`` hold ``data``, durable in content and name when this returns.

    Other processes see the old file or the new one, never a part.

    Args:
        path: The final name.
        data: All of it.
        temporary_directory: On the same file system as ``path``.
        mode: Permission bits of the file.

    Raises:
        OSError: ``path`` is as it was, and no temporary file is left, unless the very last
            step failed: then the new file may or may not survive a power cut.
    """
    write_named(path, data, temporary_directory=temporary_directory, mode=mode)
    sync_directory(os.path.dirname(path))


def write_named(path: str, data: bytes, *, temporary_directory: str, mode: int) -> None:
    """As ``write_whole``, but the name is durable only after ``sync_directory``.

    For many files in one directory, which then is synced once.

    Raises:
        OSError: ``path`` is as it was, and no temporary file is left.
    """
    temporary = os.path.join(temporary_directory, temporary_name("file-"))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            publish(fd, temporary, path)
        finally:
            os.close(fd)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def keep_as(source: str, target: str) -> None:
    """Give a file a second name, durably: what happens to the first one, it stays.

    Raises:
        FileExistsError: The name is taken.
        OSError: It can't be done, on a file system without hard links too.
    """
    os.link(source, target, follow_symlinks=False)
    sync_directory(os.path.dirname(target))


def move_directory(source: str, target: str) -> None:
    """Give a directory another name, durably; there is nothing of that name yet."""
    os.rename(source, target)
    for path in {os.path.dirname(source), os.path.dirname(target)}:
        sync_directory(path)


def remove_file(path: str) -> None:
    """Remove ``path`` if it is there; not durable until ``sync_directory``."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def publish_name(temporary: bytes, final: bytes, *, dir_fd: int) -> None:
    """Rename within one directory; the caller has synced the content before."""
    os.rename(temporary, final, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def link_name(source: bytes, source_dir_fd: int, name: bytes, dir_fd: int) -> None:
    """Add a hard link. A symlink at ``source`` is linked, never followed."""
    os.link(source, name, src_dir_fd=source_dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)


def sync_file_system(fd: int) -> None:
    """All that was written to the file system of ``fd`` until now is durable: syncfs(2).

    One call for thousands of small files costs what a few fsyncs cost.

    Raises:
        OSError: Some write could not be brought to the disk.
    """
    # Takes longer to load than most commands that never come here run.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def _opened_directory(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
