"""Tell one channel which faults began and ended: one by one, or a storm as one message.

More than ``_APART_MAX`` faults that are found at once are a group. The group has one message, with
a list, and another one with what is left whenever one of its faults ends or gets worse. All have
the same key, and the end of the last fault ends the group: so PagerDuty has one incident. A fault
that was told apart also ends apart.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from ciuic.guard.alerts.channels import Channel
from ciuic.guard.alerts.message import Message
from ciuic.guard.alerts.send import send
from ciuic.system.clock import Clock, rfc3339
from ciuic.units import counted
from ciuicd.alerting.faults import Fault

__all__ = ["Telling"]

_APART_MAX: Final = 3
_SEVERAL: Final = "several"
_GROUPED: Final = "grouped "
_CRITICAL: Final = "critical "
_WARNING: Final = "warning "

Severity = Literal["warning", "critical"]


class Telling:
    """Tells a channel what it does not know.

    Args:
        channel: Takes the messages.
        known: For each fault that the channel knows, "grouped" if it is in the group, the severity
            and the text. It changes with each message that the channel took.
        store: The store of the faults.
        clock: The time of the messages.
    """

    def __init__(self, channel: Channel, known: dict[str, str], store: str, clock: Clock) -> None:
        self._channel = channel
        self._known = known
        self._host = os.uname().nodename
        self._where = f"ciuic/{self._host}{store}"
        self._moment = rfc3339(clock.now_ns())

    def tell(self, faults: Mapping[str, Fault]) -> None:
        """Send what is new.

        Raises:
            NotSent: A message was not taken; the rest waits for the next run.
        """
        for key, line in list(self._known.items()):
            if key not in faults and not line.startswith(_GROUPED):
                severity, text = _parts(line)
                self._send("ended", severity, key, f"no longer: {text}")
                del self._known[key]
        new = [fault for fault in faults.values() if self._is_new(fault)]
        # A fault that got worse is told apart from now on, and so is its end.
        first = [fault for fault in new if fault.key not in self._known]
        storm = first if len(first) > _APART_MAX else []
        self._tell_group(faults, storm)
        for fault in [fault for fault in new if fault not in storm]:
            self._send("began", fault.severity, fault.key, fault.text)
            self._known[fault.key] = f"{fault.severity} {fault.text}"

    def _is_new(self, fault: Fault) -> bool:
        """Return whether to tell the channel of a fault: it wants it, and does not know it."""
        line = self._known.get(fault.key)
        is_worse = line is not None and line.startswith(_WARNING) and fault.severity == "critical"
        return (line is None or is_worse) and self._channel.wants(fault.severity)

    def _tell_group(self, faults: Mapping[str, Fault], new: list[Fault]) -> None:
        grouped = {key: line for key, line in self._known.items() if line.startswith(_GROUPED)}
        over = {key: line for key, line in grouped.items() if key not in faults}
        left = [faults[key] for key in grouped if key in faults]
        is_worse = any(
            fault.severity == "critical" and _parts(grouped[fault.key])[0] == "warning"
            for fault in left
        )
        if not (new or over or is_worse):
            return
        ended = "; ".join(_parts(line)[1] for line in over.values())
        all_of_it = [*left, *new]
        if all_of_it:
            listed = "; ".join(fault.text for fault in all_of_it)
            text = f"{counted(len(all_of_it), 'fault')}: {listed}"
            text += f"; no longer: {ended}" if ended else ""
            self._send("began", _worst(fault.severity for fault in all_of_it), _SEVERAL, text)
        else:
            severity = _worst(_parts(line)[0] for line in over.values())
            self._send("ended", severity, _SEVERAL, f"no longer: {ended}")
        for key in over:
            del self._known[key]
        for fault in all_of_it:
            self._known[fault.key] = f"{_GROUPED}{fault.severity} {fault.text}"

    def _send(
        self, event: Literal["began", "ended"], severity: Severity, key: str, text: str
    ) -> None:
        name = f"{self._where}/{key}"
        send(self._channel, Message(event, severity, name, text, self._host, self._moment))


def _parts(line: str) -> tuple[Severity, str]:
    """Return the severity and the text of a known fault."""
    line = line.removeprefix(_GROUPED)
    if line.startswith(_CRITICAL):
        return "critical", line.removeprefix(_CRITICAL)
    return "warning", line.removeprefix(_WARNING)


def _worst(severities: Iterable[Severity]) -> Severity:
    return "critical" if "critical" in severities else "warning"
