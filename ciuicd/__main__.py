"""Entry point of ``ciuicd``: arguments, logging, signals, exit code.

0  stopped as asked; with --once: a snapshot was taken
1  failed
2  wrong usage, or the configuration cannot be used
3  --once: a snapshot was taken, with warnings
4  damage found in the store
5  another process holds the store
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Final

# First: it notes the files of the program before the others are imported.
from ciuicd.program import PAUSED_VARIABLE, start_again

# isort: split
import ciuic
from ciuic.config.load import (
    CONFIG_VARIABLE,
    SYSTEM_PATHS,
    config_options,
    find_config,
    load_settings,
    read_store_owner,
    read_store_path,
)
from ciuic.config.settings import Settings
from ciuic.control import request_done
from ciuic.errors import (
    DONE,
    FAILED,
    TROUBLE,
    CiuicError,
    ConfigError,
    StoreError,
    UsageError,
    exit_code,
)
from ciuic.snapshot.hooks import refuse_in_hook
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.source.freeze.methods import SUBVOLUME, choose
from ciuic.source.freeze.private import make_top
from ciuic.source.roots import absent_roots
from ciuic.store.addressed import (
    absolute_address,
    control_directory,
    local_directory,
    refuse_unusable,
    short_limits,
)
from ciuic.store.directory.cache import cache_directory
from ciuic.store.place.keys import is_url
from ciuic.system import durable
from ciuic.system.clock import SystemClock
from ciuicd.attempt import sentence
from ciuicd.logs.lines import set_up_logging
from ciuicd.notify import Notifier
from ciuicd.served_stores import ServedStores
from ciuicd.service import Service

__all__ = ["main"]

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until a signal stops it; return the exit code."""
    options = _parse(arguments)
    config = find_config(options.config, os.environ)
    store = ""
    with contextlib.suppress(CiuicError):  # what reads the configuration next says why
        store = read_store_path(config) if config is not None else ""
    set_up_logging(
        os.environ,
        SystemClock(),
        as_json=options.log == "json",
        typed=config_options(config),
        configured=store,
    )
    try:
        return _run(options)
    except CiuicError as error:
        _log.error(sentence(error))
        return exit_code(error)
    except OSError as error:
        _log.error("%s", error)
        return FAILED


def _run(options: argparse.Namespace) -> int:
    if options.reload is not None:
        _reload(options.reload, find_config(options.config, os.environ))
        return DONE
    found = find_config(options.config, os.environ)
    if found is None:
        raise ConfigError(
            f"there is no configuration: neither {' nor '.join(SYSTEM_PATHS)}",
            hint=f"Copy etc/ciuic.conf there, or use --config FILE or ${CONFIG_VARIABLE}.",
        )
    path = os.path.abspath(found)
    if options.link_store is not None:
        _link_store(path, options.link_store)
        return DONE
    if options.link_frozen is not None:
        _link_frozen(path, options.link_frozen)
        return DONE
    if options.link_metrics is not None:
        _link_metrics(path, options.link_metrics)
        return DONE
    if options.link_copies is not None:
        _link_copies(path, options.link_copies)
        return DONE
    if options.serve_metrics:
        _serve_metrics(load_settings(path))
        return DONE
    if options.alert:
        from ciuicd.alerting.notices import notify

        return DONE if notify(load_settings(path), os.environ, SystemClock()) else FAILED
    if options.copy:
        return DONE if _copy(load_settings(path)) else FAILED
    if options.check:
        _check(load_settings(path))
        return DONE
    refuse_in_hook(os.environ)
    settings = load_settings(path)
    service = Service(
        settings,
        clock=SystemClock(),
        notifier=Notifier(os.environ),
        served_stores=ServedStores(os.environ),
        # Not for the hooks, and not for a second time.
        is_paused=bool(os.environ.pop(PAUSED_VARIABLE, "")),
    )
    signals = _Signals(service)
    if options.once:
        has_trouble = any(report.trouble_count for report in service.run_once())
        return TROUBLE if has_trouble else DONE
    _serve(service, signals)
    return DONE


def _serve(service: Service, signals: "_Signals") -> None:
    """Take snapshots until a signal comes, or go on as the program that has replaced this one."""
    try:
        if service.serve() and not signals.end():
            start_again(is_paused=service.is_paused)
    except (CiuicError, OSError):
        if service.is_paused:
            _log.warning("the pause ends here: the next ciuicd takes scheduled snapshots")
        raise


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ciuicd",
        description="Take a snapshot whenever one is due. The first start creates the store. If"
        " $STATE_DIRECTORY is set (the systemd unit sets it), ciuicd records in stores.json there"
        " which paths have held a store, and never creates a new store at any of them.",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"default: ${CONFIG_VARIABLE}, then {', then '.join(SYSTEM_PATHS)}",
    )
    parser.add_argument(
        "--log",
        choices=("text", "json"),
        default="text",
        help="how to write the log on stderr: lines of text (the default), or a JSON object a line",
    )
    _add_actions(parser)
    parser.add_argument("--version", action="version", version=f"ciuicd {ciuic.__version__}")
    return parser.parse_args(arguments)


def _add_actions(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to do instead of serving; one of them can be given."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--once",
        action="store_true",
        help="take one snapshot now (with several schedules: of each that is due, or of the"
        " first if none is), apply retention_policy, and exit",
    )
    what.add_argument(
        "--check",
        action="store_true",
        help="check configuration and credentials, name missing directories, and exit; 2 if wrong",
    )
    what.add_argument(
        "--link-store",
        metavar="PATH",
        help="create the store if it is missing, make PATH a symlink to it (to the directory that "
        "this machine keeps of a bucket), and exit: "
        "a service manager can then allow writing to the store and nowhere else",
    )
    what.add_argument(
        "--link-frozen",
        metavar="DIRECTORY",
        help="create the directories for reflink copies, make DIRECTORY/0, /1 and so on symlinks "
        "to them, and exit: for the same purpose",
    )
    what.add_argument(
        "--link-metrics",
        metavar="PATH",
        help="make PATH a symlink to the directory of metrics_file, if it is set, and exit: for "
        "the same purpose",
    )
    what.add_argument(
        "--serve-metrics",
        action="store_true",
        help="take no snapshots: serve metrics_file at metrics_listen until a signal comes",
    )
    what.add_argument(
        "--alert",
        action="store_true",
        help="look once for faults, such as missing snapshots or drills, or damage; send each "
        "[alert NAME] its new messages, and exit; $STATE_DIRECTORY holds what each has received",
    )
    what.add_argument(
        "--copy",
        action="store_true",
        help="take no snapshots: bring the configured copies up to date, and exit",
    )
    what.add_argument(
        "--link-copies",
        metavar="DIRECTORY",
        help="make DIRECTORY/0, /1 and so on symlinks to the store and to the copies in "
        "directories, and exit: for the same purpose as --link-store",
    )
    what.add_argument(
        "--reload",
        metavar="STORE",
        help="tell the daemon of STORE (a directory, a symlink to it, or a URL) to reload its "
        "configuration, and exit; with 2 if the new one cannot be used (the old one stays)",
    )


def _check(settings: Settings) -> None:
    """Name what a configuration lacks on this machine.

    Raises:
        UsageError: Every command and the daemon would refuse the credentials of the store.
    """
    _warn_of_absent(settings.all_paths, settings.path)
    for copy in settings.copies:
        try:
            refuse_unusable(copy.address, os.environ, copy.settings.place_options)
        except UsageError as error:
            # Only a warning, too: the daemon takes snapshots without its copies.
            _log.warning("%s: the copy %s: %s", settings.path, copy.name, sentence(error))
    refuse_unusable(settings.snapshot_dir, os.environ, settings.place_options)


def _warn_of_absent(roots: Iterable[str], config: str) -> None:
    for root in absent_roots(roots):
        # Only a warning: the daemon may start before the directory is made or mounted.
        _log.warning("%s: there is no directory %s", config, root)


def _reload(store: str, config: str | None) -> None:
    """Ask the daemon and wait for its reply; after a signal, systemd would see no failure.

    Args:
        store: The store's directory, a symlink to it, or the URL of its bucket.
        config: The configuration that may say how to reach the bucket; None: there is none.

    Raises:
        ConfigError: The new configuration cannot be used; the old configuration stays in effect.
        StoreError: No daemon answers.
    """
    options = None
    if is_url(store) and config is not None:
        # One with a mistake is for the daemon to refuse.
        with contextlib.suppress(CiuicError):
            settings = load_settings(config)
            if settings.snapshot_dir == absolute_address(store):
                options = settings.place_options
    control = control_directory(store, os.environ, options)
    status = None if control is None else request_done(os.path.realpath(control), "reload")
    if status is None:
        whose = " of this user" if is_url(store) else ""
        raise StoreError(
            f"no daemon{whose} serves {store}",
            hint="Start it: 'systemctl start ciuicd'; without systemd, start ciuicd.",
        )
    roots = status.get("snapshot_paths")
    if isinstance(roots, list):
        _warn_of_absent(filter(_is_text, roots), str(status.get("config")))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _link_store(config: str, link: str) -> None:
    # Errors are left to the daemon that starts next: it would repeat them, and only its own exit
    # code tells the service manager whether to try again.
    with contextlib.suppress(CiuicError):
        store, owner = read_store_path(config), read_store_owner(config)
        served_stores = ServedStores(os.environ)
        if is_url(store):
            settings = load_settings(config)
            # Also if the bucket cannot be reached now: the sandbox opens only what is there.
            os.makedirs(cache_directory(os.environ), mode=0o700, exist_ok=True)
            served_stores.prepare_bucket(settings, SystemClock(), waits=False)
            options = short_limits(settings.place_options)
            store, _ = local_directory(store, os.environ, options)
        else:
            served_stores.prepare(store, SystemClock(), owner=owner)
        link = os.path.join(os.path.realpath(os.path.dirname(link)), os.path.basename(link))
        durable.remove_file(link)
        os.symlink(store, link)


def _link_frozen(config: str, directory: str) -> None:
    with contextlib.suppress(CiuicError, OSError):
        roots = [os.fsencode(path) for path in load_settings(config).all_paths]
        choices = [choose(root) for root in roots]
        subvolumes = {choice.place for choice in choices if choice.how == SUBVOLUME}
        os.makedirs(directory, mode=0o700, exist_ok=True)
        directory = os.path.realpath(directory)
        for number, place in enumerate(sorted({found.place for found in choices if found.place})):
            area = os.path.join(place, AREA_NAME)
            make_top(place, in_subvolume=place in subvolumes)
            link = os.path.join(directory, str(number))
            durable.remove_file(link)
            os.symlink(area, link)


def _link_metrics(config: str, link: str) -> None:
    with contextlib.suppress(CiuicError, OSError):
        path = load_settings(config).metrics_file
        if path:
            link = os.path.join(os.path.realpath(os.path.dirname(link)), os.path.basename(link))
            durable.remove_file(link)
            os.symlink(os.path.dirname(path), link)


def _link_copies(config: str, directory: str) -> None:
    with contextlib.suppress(CiuicError, OSError):
        settings = load_settings(config)
        store = settings.snapshot_dir
        if is_url(store):
            store, _ = local_directory(store, os.environ, settings.place_options)
        copies = [copy.address for copy in settings.copies if not is_url(copy.address)]
        os.makedirs(directory, mode=0o700, exist_ok=True)
        directory = os.path.realpath(directory)
        for number, place in enumerate([store, *copies]):
            link = os.path.join(directory, str(number))
            durable.remove_file(link)
            os.symlink(place, link)


def _copy(settings: Settings) -> bool:
    """Bring the copies up to date, until a signal comes; returns whether they are."""
    from ciuicd.copying.run import copy_all

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    return copy_all(settings, SystemClock(), stopped.is_set)


def _serve_metrics(settings: Settings) -> None:
    """Serve the metrics until a signal comes.

    Raises:
        ConfigError: The configuration sets no address.
        OSError: The address cannot be used.
    """
    if not settings.metrics_listen:
        raise ConfigError(
            f"{settings.path}: metrics_listen is not set",
            hint="Add a line such as metrics_listen = 127.0.0.1:9741.",
        )
    from ciuicd.metrics.serving import MetricsServer

    # Not the handlers of the daemon: this process has nothing to finish.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with MetricsServer(settings.metrics_listen, settings.metrics_file) as server:
        host, port = server.server_address[:2]
        _log.info("metrics are served at http://%s:%s/metrics", host, port)
        Notifier(os.environ).ready()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


class _Signals:
    """Turns signals into calls, on a thread that only waits for them.

    Python runs a signal handler in the main thread, at its next step. If the signal comes just
    before a long wait of that thread, or reaches another thread, the handler may never run.
    """

    _NUMBERS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self, service: Service) -> None:
        self._service = service
        self._is_over = False
        self._is_asked_to_end = False
        # A starter that ignores it would leave no exit status of a child to wait for.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Threads that start later inherit this, so none of them can swallow a signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._NUMBERS)
        self._thread = threading.Thread(target=self._wait, name="signals", daemon=True)
        self._thread.start()

    def end(self) -> bool:
        """Wait for no more signals; return whether one has asked the daemon to end.

        Later ones stay pending for the program that this process becomes.
        """
        self._is_over = True
        os.kill(os.getpid(), signal.SIGHUP)
        self._thread.join()
        return self._is_asked_to_end

    def _wait(self) -> None:
        while True:
            if signal.sigwait(self._NUMBERS) != signal.SIGHUP:
                self._is_asked_to_end = True
                self._service.stop()
            elif self._is_over:
                return
            else:
                self._service.reload_soon()


if __name__ == "__main__":
    sys.exit(main())
