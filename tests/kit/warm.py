"""Commands of ciuic in processes that start in a few milliseconds.

A process that has loaded Python and what every command loads forks a process for each command.
Each is a real process, which ends like one of a shell: with its own exit code, streams, environment
and descriptors. Only the load of the first modules is missing; ``tests/unit/test_start.py`` and
all tests of installed programs have it.
"""

import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

__all__ = ["run", "serve", "suits"]

_SERVER = "from tests.kit.warm import serve; serve({}); from ciuic.cli import main; main()"
_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "GLIBC_", "CIUIC_CORE", "OPENBLAS_")
"""Variables that take effect before a command begins."""
_LOADED = (
    "blake3",
    "sqlite3",
    "ciuic.cli.cmd_list",
    "ciuic.cli.session",
    "ciuic.config.load",
    "ciuic.store.store",
)


class _Server(NamedTuple):
    requests: socket.socket
    at_start: dict[str, str]
    process: "subprocess.Popen[bytes]"


_servers: dict[int, _Server] = {}
"""By process: a fork of this one must not use its server."""


def suits(environ: Mapping[str, str]) -> bool:
    """Return whether a command with this environment can be forked."""
    return _at_start(environ) == _server(environ).at_start


def run(
    arguments: Sequence[str | bytes | os.PathLike[str]],
    environ: Mapping[str, str],
    cwd: str | os.PathLike[str],
    limit_s: float,
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command to its end, as ``subprocess.run`` does with captured output."""
    args = ["ciuic", *map(os.fsdecode, arguments)]
    asked = os.memfd_create("request")
    mask = os.umask(0)
    os.umask(mask)
    os.pwrite(asked, pickle.dumps((args, dict(environ), os.fspath(cwd), mask)), 0)
    pipes = [os.pipe() for _ in range(3)]
    socket.send_fds(_server(environ).requests, [b"x"], [asked, *[end for _, end in pipes]])
    for fd in (asked, *[end for _, end in pipes]):
        os.close(fd)
    out, err, status = _drained([begin for begin, _ in pipes], limit_s, args)
    return subprocess.CompletedProcess(args, int(status.split()[1]), out, err)


def _drained(pipes: list[int], limit_s: float, args: list[str]) -> tuple[bytes, ...]:
    """Read pipes to their ends; kill the command, whose ID the last one begins with, if late."""
    read = {fd: bytearray() for fd in pipes}
    end_s = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        for fd in pipes:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, end_s - time.monotonic()))
            if not ready:
                os.kill(int(read[pipes[2]].split()[0]), signal.SIGKILL)
                raise subprocess.TimeoutExpired(args, limit_s)
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                read[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return tuple(bytes(read[fd]) for fd in pipes)


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_START)}


def _server(environ: Mapping[str, str]) -> _Server:
    if os.getpid() not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVER.format(theirs.fileno())],
                env=dict(environ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        _servers[os.getpid()] = _Server(ours, _at_start(environ), process)
    return _servers[os.getpid()]


def serve(fd: int) -> None:
    """Fork a process for each request, and return in each; end when no process can ask any more."""
    importlib.import_module("ciuic.cli")
    importlib.import_module("ciuic.system.lean_imports").load_msgspec()
    for name in _LOADED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=fd) as requests:
        while True:
            message, fds, _, _ = socket.recv_fds(requests, 1, 4)
            if not message:
                os._exit(0)
            if not os.fork():
                break
            for one in fds:
                os.close(one)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, out, err, status = fds
    pid = os.fork()
    if pid:
        _report(pid, status)
    with open(asked, "rb") as file:
        sys.argv, environ, cwd, mask = pickle.load(file)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for one in (out, err, status):
        os.close(one)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.umask(mask)
    os.chdir(cwd)


def _report(pid: int, status: int) -> NoReturn:
    """Write the ID of the command, and later how it has ended."""
    os.closerange(3, status)
    os.write(status, b"%d " % pid)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, b"%d" % code)
    os._exit(0)
