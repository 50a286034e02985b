"""``ciuic rules``."""

from typing import Final

import click

from ciuic.cli.guarding import rules_of
from ciuic.cli.options import absolute, given, json_option, local_file
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.documents import Document
from ciuic.errors import UsageError
from ciuic.guard.logs.paths import log_files
from ciuic.guard.rules.language import Rule
from ciuic.guard.rules.replay import FOUND_MAX, replay
from ciuic.guard.rules.watching import Finding, Watching
from ciuic.units import counted

__all__ = ["command"]

_NOTHING: Final = (
    "ciuic: no line holds a step, so no rule was tested: give a log with a JSON object in each"
    " line, and 'step' in it"
)


@click.command("rules")
@click.argument("action", metavar="test", type=click.Choice(["test"]))
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    required=True,
    callback=given,
    shell_complete=local_file,
    help="A log with a JSON object in each line, or a pattern that names several; may be repeated.",
)
@json_option
@click.pass_obj
def command(session: Session, *, action: str, logs: tuple[str, ...], as_json: bool) -> None:
    """Run the rules of the configuration over old logs, and show where they would have fired.

    ciuic pauses nothing, and sends no alert. The step to go back to is the last step before the
    fault. Without a configuration, or if it has no [rule NAME] section, the default rules apply.
    """
    del action  # there is only one
    rules = rules_of(session)
    paths = log_files([absolute(log) for log in logs])
    if not paths:
        raise UsageError(
            f"no log matches {', '.join(map(repr, logs))}",
            hint="Name a file with a JSON object in each line.",
        )
    with progress("rules") as shown:
        watching, found, too_long = replay(
            rules, paths, read=lambda size_bytes, path: shown.update(0, size_bytes, path)
        )
    faults = _faults(found)
    if not watching.count:  # beside JSON too: an empty result looks like a test that passed
        click.echo(_NOTHING, err=True)
    if as_json:
        print_json(_document(paths, rules, watching, faults, too_long))
    else:
        _print(rules, watching, faults, too_long)


def _faults(found: list[Finding]) -> list[tuple[Finding, int | None]]:
    """Return each finding with the step at which its fault ended; None: it did not end."""
    ends: list[int | None] = [None] * len(found)
    open_at: dict[str, int] = {}
    for number, finding in enumerate(found):
        name = finding.rule.name
        if not finding.is_end:
            open_at[name] = number
        elif name in open_at:
            ends[open_at.pop(name)] = finding.step
    return [(one, end) for one, end in zip(found, ends, strict=True) if not one.is_end]


def _document(
    paths: list[bytes],
    rules: tuple[Rule, ...],
    watching: Watching,
    faults: list[tuple[Finding, int | None]],
    too_long: int,
) -> Document:
    return {
        "logs": [path.decode("utf-8", "surrogateescape") for path in paths],
        "steps": watching.count,
        "last_step": watching.steps.step,
        "rollbacks": watching.steps.rollbacks,
        "broken_lines": watching.decoder.broken,
        "lines_without_step": watching.decoder.without_step,
        "long_lines": too_long,
        "rules": [
            {
                "name": rule.name,
                "when": rule.when,
                "then": f"run {rule.command}" if rule.command else rule.action,
                "severity": rule.severity,
            }
            for rule in rules
        ],
        "fired": [
            {
                "rule": fault.rule.name,
                "severity": fault.rule.severity,
                "step": fault.step,
                "until_step": end,
                "go_back_step": fault.go_back_step,
                "what": fault.what,
            }
            for fault, end in faults
        ],
    }


def _print(
    rules: tuple[Rule, ...],
    watching: Watching,
    faults: list[tuple[Finding, int | None]],
    too_long: int,
) -> None:
    for fault, end in faults:
        back = (
            "there is no step to go back to"
            if fault.go_back_step is None
            else f"go back to step {fault.go_back_step}"
        )
        until = "" if end is None else f"; it ended at step {end}"
        line = f"step {fault.step}: {fault.rule.name}: {fault.what}; {back}{until}"
        click.echo(printable(line))
    if len(faults) >= FOUND_MAX:
        click.echo(f"ciuic: only the first {FOUND_MAX:,} findings are shown", err=True)
    fired = len({fault.rule.name for fault, _ in faults})
    over_logs = counted(sum(not rule.idle_s for rule in rules), "rule")
    click.echo(
        f"ciuic: {fired} of {over_logs} fired, {counted(len(faults), 'time')}"
        f" in {counted(watching.count, 'step')}",
        err=True,
    )
    for rule in rules:
        if rule.idle_s:
            click.echo(
                f"ciuic: rule {rule.name} looks at processes, which a log does not show", err=True
            )
    left_out = {
        "is not a JSON object": watching.decoder.broken,
        "has no step": watching.decoder.without_step,
        "is longer than 1 MiB": too_long,
    }
    for why, count in left_out.items():
        if count:
            click.echo(
                f"ciuic: left out {counted(count, 'line')} that {_plural(why, count)}", err=True
            )


def _plural(why: str, count: int) -> str:
    return why if count == 1 else why.replace("is ", "are ", 1).replace("has ", "have ", 1)
