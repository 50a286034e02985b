"""The checklist for a recovery: six questions, each answered by the findings about it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ciuic.report.doctor.findings import LEVELS, NOTE, OK, PROBLEM, WARNING, Finding, Plan

__all__ = ["NOT_KNOWN", "checklist", "examine_contacts"]

NOT_KNOWN: Final = "not known: the check could not be made, or there is nothing to check yet"
"""The answer to a question that no finding is about."""

_QUESTIONS: Final[Sequence[tuple[str, Callable[[Finding], bool]]]] = (
    ("the snapshot system runs", lambda one: one.about == "daemon"),
    (
        "the key paths are covered",
        lambda one: one.about == "coverage" or (one.about.startswith("/") and one.level == PROBLEM),
    ),
    ("the stored state is checked", lambda one: one.about == "checks"),
    (
        "alerting works",
        lambda one: one.about in {"alerting", "alerts"} or one.about.startswith("alert "),
    ),
    ("recovery is practiced", lambda one: one.about == "practice"),
    ("steps and contacts are written down", lambda one: one.about == "contacts"),
)


def checklist(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield six findings, each about one question: the worst finding about it."""
    for question, is_about in _QUESTIONS:
        answers = [finding for finding in findings if is_about(finding)]
        if not answers:
            advice = "Name a configuration, start the daemon, and run doctor again."
            yield Finding(WARNING, question, NOT_KNOWN, advice)
            continue
        worst = max(answers, key=lambda one: LEVELS.index(one.level))
        yield Finding(worst.level, question, worst.what, worst.advice)


def examine_contacts(plan: Plan | None) -> Iterator[Finding]:
    """Check whether the page of ``ciuic runbook`` names people."""
    if plan is None:
        return
    if plan.contacts:
        what = f"{plan.contacts}; 'ciuic runbook' writes the page with the steps"
        yield Finding(OK, "contacts", what)
    else:
        what = "the configuration does not say who can help with a recovery"
        advice = "Set 'contacts', and keep what 'ciuic runbook' prints on another machine."
        yield Finding(NOTE, "contacts", what, advice)
