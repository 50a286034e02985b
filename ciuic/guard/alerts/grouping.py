"""Rules of one job that fire at once, as one message.

A training that diverges sets off many rules within a second. More than ``_APART_MAX`` of them are a
group. It has one message with a list, and another one with what is left when some of them end or
begin again, or when more than ``_APART_MAX`` others begin at once: these join it. All have the same
key, and the end of the last rule ends the group. A rule that was told apart also ends apart.
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from ciuic.units import counted

__all__ = ["Facts", "Grouping", "Notice", "Severity"]

_APART_MAX: Final = 3
_SEVERAL: Final = "several rules"

Facts = dict[str, str | int | None]
Severity = Literal["warning", "critical"]


class Notice(NamedTuple):
    """A fault began or ended.

    Attributes:
        event: Which of the two.
        fault: Its name.
        severity: How bad it is.
        text: What happened.
        facts: More, by name.
    """

    event: Literal["began", "ended"]
    fault: str
    severity: Severity
    text: str
    facts: Facts


class Grouping:
    """Collects notices about the rules of a job until ``flush``, and passes few of them on.

    Args:
        job: The name of the job.
        send: Takes what is passed on.
    """

    def __init__(self, job: str, send: Callable[[Notice], None]) -> None:
        self._about = f"job {job}: "
        self._send = send
        self._waiting: list[Notice] = []
        self._group: dict[str, Notice] = {}
        self._severity: Severity = "warning"

    def add(self, notice: Notice) -> None:
        """Keep a notice for ``flush``."""
        self._waiting.append(notice)

    def flush(self) -> None:
        """Pass on what was added: each notice, or what the group is now."""
        waiting, self._waiting = self._waiting, []
        begun = {one.fault for one in waiting if one.event == "began"}
        storm = (begun if len(begun) > _APART_MAX else set()) | (begun & self._group.keys())
        was_open, is_changed, over = bool(self._group), False, dict[str, Notice]()
        for one in waiting:
            if one.event == "began" and one.fault in storm:
                self._group[one.fault] = one
                is_changed = True
            elif one.event == "ended" and one.fault in self._group:
                over[one.fault] = self._group.pop(one.fault)
                is_changed = True
            else:
                self._send(one)
        if is_changed:
            gone = [one for name, one in over.items() if name not in self._group]
            self._tell(list(self._group.values()), gone, was_open=was_open)

    def _tell(self, left: list[Notice], over: list[Notice], *, was_open: bool) -> None:
        if not was_open:
            self._severity = "warning"
        # It never falls: a channel that wants critical messages alone also wants their end.
        if any(one.severity == "critical" for one in [*left, *over]):
            self._severity = "critical"
        ended = f"no longer: {self._listed(over)}"
        if left or not was_open:
            named = left or over
            text = f"{counted(len(named), 'rule')} fired: {self._listed(named)}"
            text += f"; {ended}" if left and over else ""
            self._say("began", text, _facts(named))
        if not left:
            self._say("ended", ended, {})

    def _say(self, event: Literal["began", "ended"], text: str, facts: Facts) -> None:
        self._send(Notice(event, _SEVERAL, self._severity, self._about + text, facts))

    def _listed(self, notices: Iterable[Notice]) -> str:
        return "; ".join(one.text.removeprefix(self._about) for one in notices)


def _facts(notices: list[Notice]) -> Facts:
    """Return the names of the rules, their first step, and the step before all of their faults."""
    rules = ", ".join(str(one.facts["rule"]) for one in notices if one.facts.get("rule"))
    found: Facts = {"rule": rules}
    for name in ("step", "go_back_step"):
        steps = [step for one in notices if isinstance(step := one.facts.get(name), int)]
        found[name] = min(steps) if steps else None
    # One of the faults began with the first step. A rule about an idle job has no such fact.
    if any(one.facts.get("go_back_step", 0) is None for one in notices):
        found["go_back_step"] = None
    return found
