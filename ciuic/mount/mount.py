"""Mounts the snapshots of an open store, and shows them until they are unmounted."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ciuic.errors import CiuicError, TargetError
from ciuic.hints import pip_install
from ciuic.ids import SnapshotId
from ciuic.mount.files import Files
from ciuic.mount.names import Top
from ciuic.mount.nodes import Node, Owned
from ciuic.mount.snapshots import MountedSnapshot, added_entry
from ciuic.mount.trees import Trees
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = ["MountRequest", "check_point", "mount_snapshots", "require_fuse"]

_DEVICE: Final = "/dev/fuse"
_HELPER: Final = "fusermount3"
_WAIT_AND_UNMOUNT: Final = f'trap "" HUP INT TERM; read -r _ || exec {_HELPER} -u -q -z -- "$1"'
_TOLD_MAX: Final = 1000
"""How many paths are named; then a last message says that there are more."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class MountRequest(NamedTuple):
    """What to mount, and where.

    Attributes:
        point: The mount point: an absolute path.
        snapshot: The only snapshot; None: all of them, in directories by ID, time and tag.
        is_for_all: Other users may read it as well, as far as owners and modes allow.
    """

    point: str
    snapshot: SnapshotId | None = None
    is_for_all: bool = False


def require_fuse() -> None:
    """Check that what a mount needs is installed.

    Raises:
        CiuicError: Something is missing; the hint says what to install.
    """
    if not os.path.exists(_DEVICE):
        raise CiuicError(
            f"mounting needs {_DEVICE}, which this machine does not have",
            hint="Load the kernel's module with 'modprobe fuse'; give a container the device.",
        )
    if shutil.which(_HELPER) is None:
        raise CiuicError(
            f"mounting needs the program {_HELPER}, which is not installed",
            hint="Install the package fuse3: 'apt install fuse3'.",
        )
    try:
        import ciuic.mount.fuse  # noqa: F401 - the import is the check
    except ModuleNotFoundError as error:
        raise CiuicError(
            "mounting needs the Python package mfusepy, which is not installed",
            hint=f"Install it: {pip_install('ciuic[mount]')}",
        ) from error
    except (OSError, AttributeError) as error:
        raise CiuicError(
            f"mounting needs libfuse 3, which cannot be loaded: {error}",
            hint="Install the package fuse3: 'apt install fuse3'.",
        ) from error


def check_point(point: str, store_path: str) -> None:
    """Refuse a mount point that cannot be used.

    Raises:
        TargetError: It is not a directory, is in use, or would hide the store.
    """
    try:
        names = os.listdir(point)
    except FileNotFoundError as error:
        raise TargetError(
            f"{point} does not exist", hint="Create an empty directory, and mount there."
        ) from error
    except NotADirectoryError as error:
        raise TargetError(f"{point} is not a directory", hint="Name an empty directory.") from error
    except OSError as error:
        # ENOTCONN: the process of an earlier mount was killed.
        raise TargetError(
            f"{point} cannot be read: {error.strerror}",
            hint=f"If it is an old mount, run '{_HELPER} -u {point}' first.",
        ) from error
    real, store = os.path.realpath(point), os.path.realpath(store_path)
    if os.path.commonpath([real, store]) == real:
        raise TargetError(
            f"a mount at {point} would hide the store {store_path}",
            hint="Name a directory that does not contain the store.",
        )
    if os.path.commonpath([real, store]) == store:
        raise TargetError(f"{point} is inside the store", hint="Name a directory outside it.")
    if os.path.ismount(point):
        raise TargetError(
            f"something is mounted at {point} already",
            hint=f"Unmount it with '{_HELPER} -u {point}', or name another directory.",
        )
    if names:
        raise TargetError(
            f"{point} is not empty", hint="A mount would hide its files: name an empty directory."
        )


def mount_snapshots(
    store: Store,
    request: MountRequest,
    *,
    clock: Clock,
    ready: Callable[[], None],
    told: Callable[[Owned, str], None],
) -> bool:
    """Mount snapshots and answer the kernel; returns when they are unmounted.

    SIGINT, SIGTERM and SIGHUP unmount them. ``require_fuse`` and ``check_point`` come before.

    Args:
        store: The open store.
        request: What, and where.
        clock: The machine's clock.
        ready: Called when the snapshots are mounted.
        told: Called once with each path that cannot be read, and why.

    Returns:
        False if the kernel or libfuse refused; libfuse has said why on stderr.
    """
    from ciuic.mount.fuse import serve

    once = _Once(told)
    trees = Trees(store.reader)
    if request.snapshot is None:
        top = Top(store, trees, clock, lambda one, what: once.tell(Owned(one, b""), what))
        first = Node(
            added_entry(b".", stat.S_IFDIR | 0o755, clock.now_ns()),
            Owned(SnapshotId(""), b"/"),
            top,
        )
        files = Files(first, store.reader, lambda: top.generation, once.tell)
    else:
        manifest = store.manifest(request.snapshot)
        first = MountedSnapshot(store, trees, manifest).top
        files = Files(first, store.reader, lambda: 0, once.tell)
    try:
        with _unmounted_at_death(request.point), _default_signals():
            return serve(files, request.point, ready=ready, is_for_all=request.is_for_all)
    finally:
        files.close()


class _Once:
    """Names each path once, and only the first ones."""

    def __init__(self, told: Callable[[Owned, str], None]) -> None:
        self._told = told
        self._known: set[Owned] = set()

    def tell(self, owned: Owned, what: str) -> None:
        if owned in self._known or len(self._known) > _TOLD_MAX:
            return
        self._known.add(owned)
        if len(self._known) > _TOLD_MAX:
            owned, what = Owned(SnapshotId(""), b""), "more paths cannot be read, and are not named"
        self._told(owned, what)


@contextlib.contextmanager
def _unmounted_at_death(point: str) -> Iterator[None]:
    """Start a small process that waits, and unmounts the mount if this process is killed.

    libfuse has an option for that. But its helper looks whether the mount is dead, and may look
    before the kernel has noticed; then the dead mount stays.
    """
    with subprocess.Popen(
        ["/bin/sh", "-c", _WAIT_AND_UNMOUNT, "sh", point],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    ) as helper:
        try:
            yield
        finally:
            # Anything else may be mounted there from now on.
            with contextlib.suppress(BrokenPipeError):
                helper.communicate(b"unmounted\n")


@contextlib.contextmanager
def _default_signals() -> Iterator[None]:
    """Leave signals to libfuse, which sets its handlers only where there are none."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
