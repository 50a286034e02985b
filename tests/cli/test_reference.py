"""docs/reference.md has every command, option and JSON field of the program, and no other."""

import re
from pathlib import Path

import click
import pytest

from ciuic.cli import cli
from tests.kit.installed import Place

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"


def sections() -> dict[str, str]:
    """The text about each command; the options before the command under the empty name."""
    text = REFERENCE.read_text(encoding="utf-8")
    found = dict(re.findall(r"^### ciuic (\S+)\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL))
    before = re.search(r"^## Before the command\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert before is not None
    return found | {"": before[1]}


def options_of(command: click.Command) -> set[str]:
    shown = [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    return {name for parameter in shown for name in parameter.opts}


def documented_options(section: str) -> set[str]:
    rows = re.findall(r"^\| (`-[^|]*) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(-[^`]+)`", row)}


def test_every_command_is_in_the_reference_and_no_other():
    assert sections().keys() == {"", *cli.commands}


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_every_option_is_in_the_reference_and_no_other(name):
    command = cli.commands[name] if name else cli
    help_options = set() if name else {"-h", "--help"}

    assert documented_options(sections()[name]) == options_of(command) | help_options


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_the_reference_says_of_an_option_what_its_help_says(name):
    command = cli.commands[name] if name else cli
    text = sections()[name].replace("&#124;", "|")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            sentence = (parameter.help or "").partition("  [default")[0].rstrip(".")

            assert sentence in text, f"{name} {parameter.opts}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["init"],
        ["snapshot"],
        ["snapshot", "--dry-run"],
        ["list"],
        ["show", "latest"],
        ["ls", "latest"],
        ["verify"],
        ["verify", "--hot"],
        ["forget", "--dry-run", "--policy", "7d"],
        ["copy", "--to", "/nowhere/copy", "--init", "--dry-run"],
        ["tag", "latest"],
        ["pin", "latest"],
        ["note", "latest"],
        ["prune", "--dry-run"],
        ["scrub"],
        ["repair"],
        ["stats"],
        ["stats", "--detail"],
        ["stats", "--by", "path"],
        ["status"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_every_field_of_a_document_is_in_the_reference(taken: Place, arguments: list[str]):
    section = sections()[arguments[0]] + sections()["list"] * (arguments[0] == "show")
    document = taken.run(*arguments, "--json").document
    items = document if isinstance(document, list) else [document]

    assert items
    for item in items:
        missing = [
            key
            for key in item
            if f"`{key}`" not in section
            # new_files, changed_files, ... of a dry run are described once for all
            and not re.fullmatch(r"(changed|unchanged|gone)_file(s|_bytes)", key)
        ]
        assert missing == []
