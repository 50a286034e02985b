"""Commands inside messages reach the store that the messages are about."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ciuic.cli.group import COMMANDS, cli
from ciuic.config.load import config_options
from ciuic.copy.record import Standing
from ciuic.hints import aimed

REPOSITORY = Path(__file__).parents[2]
FILLED_IN = "FILLED_IN"
QUOTED = re.compile(r"'ciuic ([^']+)'")


def test_each_quoted_command_gets_the_options() -> None:
    text = "Run 'ciuic repair --apply', or 'ciuic forget cs-1'. 'fsck' helps, too."

    assert aimed(text, ["--store", "/s"]) == (
        "Run 'ciuic --store /s repair --apply', or 'ciuic --store /s forget cs-1'."
        " 'fsck' helps, too."
    )
    assert aimed(text, []) == text


def test_a_command_about_another_store_keeps_its_own_option() -> None:
    text = "'ciuic --store /copy list' shows it; 'ciuicd --check' and 'ciuic[web]' are no commands"

    assert aimed(text, ["--config", "/c"]) == text


def test_a_shell_reads_the_options_as_they_were_typed() -> None:
    typed = ["--store", "/my snapshots/it's"]

    told = aimed("Run 'ciuic list'", typed)

    assert shlex.split(told.removeprefix("Run '").removesuffix("'")) == ["ciuic", *typed, "list"]


def test_a_configuration_that_commands_find_by_themselves_needs_no_option() -> None:
    assert config_options("/etc/ciuic.conf") == config_options(None) == []
    assert config_options("/srv/ciuic.conf") == ["--config", "/srv/ciuic.conf"]


def test_a_command_about_the_configured_bucket_uses_the_configuration() -> None:
    """``--store`` would leave out the credentials and the server that the configuration names."""
    text = "Create it with 'ciuic --store s3://train/run7/ init'."
    copy = "'ciuic --store s3://train/run70 list' shows the copy."

    told = aimed(text, ["--config", "/c"], "s3://train/run7")
    assert told == "Create it with 'ciuic --config /c init'."
    assert aimed(text, [], "s3://train/run7") == "Create it with 'ciuic init'."
    assert aimed(copy, [], "s3://train/run7") == copy
    assert aimed(text, ["--store", "s3://train/run7"], "s3://train/run7") == text
    spaced = "Create it with 'ciuic --store 's3://train/run 7' init'."
    assert aimed(spaced, [], "s3://train/run 7/") == "Create it with 'ciuic init'."


def test_the_advice_about_a_copy_can_be_pasted() -> None:
    copy = Standing("/mnt/my copy", "/mnt/my copy", 0, 0.0, 0.0, None, None, "")

    assert copy.advice.startswith("Run 'ciuic copy --to '/mnt/my copy' --init', and ")


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the string literals, with a word for what an f-string or the logger fills in."""
    inner = {
        id(part) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in one.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [
                str(part.value) if isinstance(part, ast.Constant) else FILLED_IN
                for part in node.values
            ]
            yield node.lineno, "".join(parts)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner
        ):
            yield node.lineno, re.sub(r"%s|\{\}", FILLED_IN, node.value)


def fault(line: str) -> str:
    """Say why a shell could not run a command; a name alone only mentions the command."""
    words = shlex.split(line.partition(" > ")[0])
    group = click.Context(cli, info_name="ciuic")
    try:
        _, (name, *rest), _ = cli.make_parser(group).parse_args([*words])
        if name not in COMMANDS:
            return f"{name} is no command"
        if words == [name]:
            return ""
        command = cli.commands[name]
        context = click.Context(command, group, name)
        if set(rest) & set(context.help_option_names):
            return ""
        values, more, _ = command.make_parser(context).parse_args(rest)
    except (click.UsageError, ValueError) as error:
        return str(error)
    if set(more) - {FILLED_IN}:
        return f"{more} is too much"
    lacks = [
        one.name
        for one in command.params
        if one.required and (one.name not in values or one.value_is_missing(values[one.name]))
    ]
    return f"it lacks {lacks}" if lacks else ""


@pytest.mark.parametrize("package", ["ciuic", "ciuicd"])
def test_each_command_that_a_text_quotes_runs_as_it_is(package: str) -> None:
    """Capitals stand for what a user fills in."""
    wrong: list[str] = []
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        for number, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            wrong += [
                f"{path.relative_to(REPOSITORY)}:{number}: ciuic {line}: {why}"
                for line in QUOTED.findall(text)
                if (why := fault(" ".join(line.split())))
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("restore", ""),
        ("restore -s latest -p PATH", ""),
        ("restore -p PATH", "it lacks"),
        ("--store DIR restore", "it lacks"),
        ("restore --hotter", "No such option"),
        ("restart", "no command"),
        ("ls -R", "it lacks"),
        ("list --path", "requires an argument"),
        ("resume NOW", "too much"),
    ],
)
def test_a_command_that_would_fail_is_found(line: str, what: str) -> None:
    assert what in fault(line)
    assert bool(what) == bool(fault(line))
