"""Entry point of ``ciuicd``: arguments, logging, signals, exit code.

0  stopped as asked; with --once: a snapshot was taken
1  failed
2  wrong usage, or the configuration can't be used
3  --once: a snapshot was taken, and some paths were unreadable or in flux
4  damage found in the store
5  another process holds the store
"""

import argparse
import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

import ciuic
from ciuic import durable
from ciuic.capture.frozen import AREA_NAME
from ciuic.capture.providers import choose
from ciuic.clock import SystemClock
from ciuic.config import CONFIG_VARIABLE, SYSTEM_PATHS, find_config, load_settings, read_store_path
from ciuic.errors import BusyError, CiuicError, ConfigError, CorruptionError, UsageError
from ciuicd.known import KnownStores
from ciuicd.notify import Notifier
from ciuicd.service import Service, sentence

__all__ = ["main"]

_log = logging.getLogger(__name__)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SYSLOG = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until it is told to stop; returns the exit code."""
    options = _parse(arguments)
    _set_up_logging(os.environ)
    try:
        return _run(options)
    except (UsageError, ConfigError) as error:
        _log.error(sentence(error))
        return 2
    except BusyError as error:
        _log.error(sentence(error))
        return 5
    except CorruptionError as error:
        _log.error(sentence(error))
        return 4
    except CiuicError as error:
        _log.error(sentence(error))
        return 1
    except OSError as error:
        _log.error("%s", error)
        return 1


def _run(options: argparse.Namespace) -> int:
    found = find_config(options.config, os.environ)
    if found is None:
        raise ConfigError(
            f"there is no configuration: neither {' nor '.join(SYSTEM_PATHS)}",
            hint=f"Copy etc/ciuic.conf there, or use --config FILE or ${CONFIG_VARIABLE}.",
        )
    path = os.path.abspath(found)
    if options.link_store is not None:
        _link_store(path, options.link_store)
        return 0
    if options.link_frozen is not None:
        _link_frozen(path, options.link_frozen)
        return 0
    service = Service(
        load_settings(path),
        clock=SystemClock(),
        notifier=Notifier(os.environ),
        known=KnownStores(os.environ),
    )
    _handle_signals(service)
    if options.once:
        return 3 if service.run_once().trouble_count else 0
    service.serve()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ciuicd",
        description="Takes a snapshot whenever one is due. Makes the store on the first start, and"
        " never again: it remembers in $STATE_DIRECTORY/stores.json where one was.",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"default: ${CONFIG_VARIABLE}, then {', then '.join(SYSTEM_PATHS)}",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--once",
        action="store_true",
        help="take one snapshot now, forget by retention_policy, and exit",
    )
    what.add_argument(
        "--link-store",
        metavar="PATH",
        help="make the store if it is missing, make PATH a symlink to it, and exit: "
        "with it a service manager can open the store, and nothing else, for writing",
    )
    what.add_argument(
        "--link-frozen",
        metavar="DIRECTORY",
        help="make the directories that take frozen copies, make DIRECTORY/0, /1 and so on "
        "symlinks to them, and exit: for the same end",
    )
    parser.add_argument("--version", action="version", version=f"ciuicd {ciuic.__version__}")
    return parser.parse_args(arguments)


def _link_store(config: str, link: str) -> None:
    # Whatever is wrong is left to the daemon that is started next: it would say it again, and
    # only its own exit code tells the service manager whether trying again makes sense.
    with contextlib.suppress(CiuicError):
        store = read_store_path(config)
        KnownStores(os.environ).prepare(store, SystemClock())
        durable.remove_file(link)
        os.symlink(store, link)


def _link_frozen(config: str, directory: str) -> None:
    with contextlib.suppress(CiuicError, OSError):
        roots = [os.fsencode(path) for path in load_settings(config).snapshot_paths]
        places = {choose(root).place for root in roots}
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for number, place in enumerate(sorted(filter(None, places))):
            area = os.path.join(place, AREA_NAME)
            with contextlib.suppress(FileExistsError):
                os.mkdir(area, 0o700)
            link = os.path.join(directory, str(number))
            durable.remove_file(link)
            os.symlink(area, link)


def _handle_signals(service: Service) -> None:
    """Turn signals into calls, on a thread that does nothing but wait for them.

    A handler of Python runs when the main thread gets round to it. If the signal comes while
    that thread is on its way into a long wait, or reaches another thread, this can be never.
    """
    numbers = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    # Threads that start after this inherit it: none of them may swallow a signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def wait() -> None:
        while True:
            if signal.sigwait(numbers) == signal.SIGHUP:
                service.reload_soon()
            else:
                service.stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()


class _OneLine(logging.Formatter):
    """One line a record, whatever a path in it is called; with its level if the journal reads."""

    def __init__(self, *, with_level: bool) -> None:
        super().__init__("%(message)s")
        self._with_level = with_level

    def format(self, record: logging.LogRecord) -> str:
        lines = [_CONTROL.sub(_escaped, record.getMessage())]
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        prefix = f"<{_SYSLOG.get(record.levelno, 6)}>" if self._with_level else "ciuicd: "
        return "\n".join(prefix + line for line in lines)


def _escaped(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


def _set_up_logging(environ: Mapping[str, str]) -> None:
    # Standard error may be gone, a pipe to a program that has ended: not a reason to say more.
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(with_level=_is_journal(environ)))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _is_journal(environ: Mapping[str, str]) -> bool:
    """Standard error is the very stream that the service manager connected to its journal."""
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


if __name__ == "__main__":
    sys.exit(main())
