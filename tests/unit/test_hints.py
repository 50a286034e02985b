"""Commands inside messages reach the store that the messages are about."""

import shlex

from ciuic.config.load import config_options
from ciuic.hints import aimed


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
