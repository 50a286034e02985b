"""Messages about faults: one when a fault begins, one when it ends, to each channel.

If many begin together, as when a disk fails, they are one message (``telling``).

``alerts.json`` in ``$STATE_DIRECTORY`` records for each channel which messages it took. The next
run sends the others again.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ciuic.config.load import config_options
from ciuic.config.settings import Settings
from ciuic.errors import ConfigError, StoreError
from ciuic.guard.alerts.channels import Channel
from ciuic.guard.alerts.send import NotSent
from ciuic.hints import aimed
from ciuic.system import durable
from ciuic.system.clock import Clock
from ciuicd.alerting.faults import Fault, find_faults
from ciuicd.alerting.telling import Telling

__all__ = ["notify"]

_log = logging.getLogger(__name__)

_VARIABLE: Final = "STATE_DIRECTORY"
_FILE: Final = "alerts.json"
_BYTES_MAX: Final = 1 << 20

Told = dict[str, dict[str, str]]
"""What ``Telling`` knows of each channel."""


def notify(settings: Settings, environ: Mapping[str, str], clock: Clock) -> bool:
    """Look for faults once, and send each channel the messages that it has not received.

    Returns:
        Whether every message was taken.

    Raises:
        ConfigError: There is no channel, or no directory for the state.
        StoreError: The state cannot be kept, so the messages would be sent again and again.
    """
    channels: tuple[Channel, ...] = settings.channels
    directory = environ.get(_VARIABLE, "")
    if not channels:
        raise ConfigError(
            f"{settings.path} has no [alert NAME] section",
            hint="Add one, or disable the timer: systemctl disable --now ciuic-alerts.timer.",
        )
    if not directory:
        raise ConfigError(
            f"${_VARIABLE} is not set",
            hint="Start the unit ciuic-alerts, or set it to a directory that is kept.",
        )
    typed = config_options(settings.path)
    faults: dict[str, Fault] = {
        fault.key: replace(fault, text=aimed(fault.text, typed, settings.snapshot_dir))
        for fault in find_faults(settings, clock)
    }
    for fault in faults.values():
        _log.warning("%s: %s", fault.severity, fault.text)
    path = os.path.join(directory, _FILE)
    told = _read(path)
    all_taken = True
    for channel in channels:
        known = told.setdefault(channel.name, {})
        try:
            Telling(channel, known, settings.snapshot_dir, clock).tell(faults)
        except NotSent as error:
            all_taken = False
            _log.error("the alert %s was not delivered: %s", channel.name, error)
        _write(path, told)
    return all_taken


def _read(path: str) -> Told:
    try:
        with open(path, "rb") as file:
            found: Any = json.loads(file.read(_BYTES_MAX))  # JSON, checked below
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        str(channel): {str(key): str(text) for key, text in known.items()}
        for channel, known in found.items()
        if isinstance(known, dict)
    }


def _write(path: str, told: Told) -> None:
    data = json.dumps(told, indent=2).encode() + b"\n"
    try:
        durable.write_whole(path, data, temporary_directory=os.path.dirname(path), mode=0o600)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}",
            hint="Make the directory writable, or the same alerts are sent at every run.",
        ) from error
