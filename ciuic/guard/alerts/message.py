"""What an alert says, as JSON, for Slack, for PagerDuty, and as text."""

import json
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        event: A fault began, a fault ended, or a test.
        severity: ``warning`` or ``critical``.
        key: The same for the beginning and the end of one fault.
        text: One sentence.
        host: The name of this machine.
        time: When, in RFC 3339.
        facts: More, by name: job, rule, step.
    """

    event: Literal["began", "ended", "test"]
    severity: Literal["warning", "critical"]
    key: str
    text: str
    host: str
    time: str
    facts: dict[str, str | int | None] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """A line for a person."""
        mark = {"began": self.severity, "ended": "ended", "test": "test"}[self.event]
        return f"[{mark}] {self.text} ({self.host})"

    def as_json(self) -> dict[str, object]:
        """Return the document that a webhook gets."""
        own = {
            "event": self.event,
            "severity": self.severity,
            "key": self.key,
            "text": self.text,
            "host": self.host,
            "time": self.time,
        }
        return {**self.facts, **own}

    def for_slack(self) -> dict[str, object]:
        """Return the document of a Slack webhook; ``&<>`` are its markup."""
        text = self.title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return {"text": text}

    def for_pagerduty(self, routing_key: str) -> dict[str, object]:
        """Return the document of PagerDuty's Events API, version 2."""
        return {
            "routing_key": routing_key,
            "event_action": "resolve" if self.event == "ended" else "trigger",
            "dedup_key": self.key[:255],
            "payload": {
                "summary": self.title[:1024],
                "severity": self.severity,
                "source": self.host,
                "timestamp": self.time,
                "custom_details": dict(self.facts),
            },
        }

    def printable(self) -> "Message":
        """Return it with escapes for bytes that are not UTF-8: a mail cannot have them."""
        return replace(
            self,
            key=_printable(self.key),
            text=_printable(self.text),
            host=_printable(self.host),
            facts={
                name: _printable(one) if isinstance(one, str) else one
                for name, one in self.facts.items()
            },
        )

    def encoded(self) -> bytes:
        """Return it for ``decoded``, in another process."""
        return json.dumps(self.as_json() | {"facts": self.facts}).encode()

    @classmethod
    def decoded(cls, data: bytes) -> "Message":
        """Return the message that ``encoded`` wrote."""
        found = json.loads(data)
        names = ("event", "severity", "key", "text", "host", "time", "facts")
        return cls(**{name: found[name] for name in names})


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
