"""On a terminal: progress, color, completion. In a pipe: none of them."""

import re
from pathlib import Path

import click
import pytest

from ciuic.cli import cli
from tests.kit import terminal
from tests.kit.installed import Place, run

ESCAPE = "\x1b"
DEADLINE_S = 60


def on_terminal(*command: str | Path, **more: str) -> tuple[int, str]:
    """Run a command whose three streams are a terminal; its exit code and what was shown."""
    shown = terminal.on_terminal(100, *command, env={"COLUMNS": "100", **more})
    return shown.code, shown.raw


def commands() -> dict[str, click.Command]:
    """Every command, including the group itself."""
    return {"": cli, **cli.commands}


def with_short_ids(piped: str) -> str:
    """Return a table from a pipe as a terminal shows it: six digits of each ID, not sixteen."""
    return re.sub(r"^(ID {7}|cs-[0-9a-f]{6})([ 0-9a-f]{10})", r"\1", piped, flags=re.MULTILINE)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize(
    "arguments",
    [["snapshot"], ["verify", "--checksum"], ["restore", "-s", "latest", "-p", "{s}", "-d", "{o}"]],
    ids=lambda arguments: arguments[0],
)
def test_long_work_shows_progress_on_a_terminal_and_nothing_of_it_in_a_pipe(taken, arguments):
    out = taken.directory / "out"
    filled = [one.format(s=taken.source, o=out) for one in arguments]
    piped = taken.run(*filled)
    filled = [one.format(s=taken.source, o=f"{out}2") for one in arguments]
    code, shown = on_terminal("ciuic", "--config", taken.config, *filled)

    assert piped.code == code == 0, piped.said()
    assert ESCAPE not in piped.out + piped.err
    assert "\r" not in piped.out + piped.err
    assert arguments[0] in plain(shown)
    assert ESCAPE in shown, "no progress bar"
    assert "\x1b[2K" in shown, "the bar is taken away at the end"
    assert shown.rstrip().endswith(" s"), "the last line is the result"


def test_a_bar_on_the_terminal_leaves_a_piped_stdout_clean(taken):
    line = f"ciuic --config {taken.config} snapshot > {taken.directory}/id"

    code, shown = on_terminal("bash", "-c", line)

    assert code == 0
    assert ESCAPE in shown
    assert re.fullmatch(r"cs-[0-9a-f]{6,}\n", (taken.directory / "id").read_text())


def test_hostile_names_do_not_reach_the_terminal_through_the_bar(taken):
    _, shown = on_terminal(
        "ciuic", "--config", taken.config, "restore", "-s", "latest", "-p", taken.source / "odd",
        "-d", taken.directory / "out",
    )  # fmt: skip

    assert "\x1b[31mred" not in shown
    assert "\x1b]0;" not in shown
    assert "\x07" not in shown


ODD_WORD = "\x1b]0;x\x07\x1b[2J\rError: all is well\n\x9b31m"


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--", ODD_WORD],
        ["list", f"--{ODD_WORD}"],
        ["list", f"-{ODD_WORD}"],
        [ODD_WORD],
        ["init", "--chunking", ODD_WORD],
        ["snapshot", "--wait", ODD_WORD],
        ["snapshot", "--tag", f"|{ODD_WORD}"],
    ],
    ids=range(7),
)
def test_an_argument_that_is_refused_moves_no_cursor(taken, arguments):
    done = taken.run_here(*arguments)

    assert done.code == 2, done.said()
    assert done.err.replace("\n", "").isprintable(), done.said()
    assert "\nError: all is well" not in done.err


def test_colour_is_for_terminals_only(taken):
    code, shown = on_terminal("ciuic", "--config", taken.config, "list", COLUMNS="200")
    piped = taken.run("list")

    assert code == piped.code == 0
    assert ESCAPE in shown
    assert ESCAPE not in piped.out
    assert plain(shown).replace("\r\n", "\n") == with_short_ids(piped.out)


@pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_colour_can_be_refused(taken, more):
    _, shown = on_terminal("ciuic", "--config", taken.config, "list", **more)

    assert ESCAPE not in shown


@pytest.mark.parametrize("name", commands())
def test_every_help_page_has_a_usage_line_and_a_sentence_for_every_option(name):
    command = commands()[name]
    context = click.Context(command, info_name=name or "ciuic")

    page = command.get_help(context)

    assert page.startswith("Usage: ")
    assert command.help, f"{name} has no help"
    assert command.help.strip().splitlines()[0].endswith((".", ":"))
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{name} {parameter.opts} has no help text"
            assert max(parameter.opts, key=len) in page


def test_the_help_of_the_program_names_every_command_in_a_whole_line_and_the_exit_codes():
    done = run("ciuic", "--help", env={"COLUMNS": "80"})

    assert done.code == 0
    assert done.err == ""
    for name in cli.commands:
        assert re.search(rf"^  {name} +[A-Z]", done.out, re.MULTILINE), name
    assert "..." not in done.out.replace("ARGS]...", ""), "a summary is cut short"
    assert "Exit codes" in done.out


def test_help_is_found_under_both_options_on_every_level():
    for arguments in (["-h"], ["list", "-h"], ["list", "--help"]):
        done = run("ciuic", *arguments)
        assert done.code == 0
        assert done.out.startswith("Usage: ciuic")


def test_without_a_command_the_usage_is_shown_and_the_exit_code_is_2():
    done = run("ciuic")

    assert done.code == 2
    assert "Usage: ciuic" in done.out + done.err


def test_the_version_is_printed():
    done = run("ciuic", "--version")

    assert done.code == 0
    assert re.fullmatch(r"ciuic, version \d+\.\d+\.\d+\S*\n", done.out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(shell):
    done = run("ciuic", "completion", shell)

    assert done.code == 0, done.said()
    assert "_CIUIC_COMPLETE" in done.out
    assert "ciuic" in done.out


def completed(place: Place, words: str) -> list[str]:
    """The candidates that bash would get after these words, the last of them unfinished."""
    done = run(
        "ciuic",
        env={
            "_CIUIC_COMPLETE": "bash_complete",
            "CIUIC_LINE": words,
            "CIUIC_BREAKS": " \t\n\"'><=;|&(:",
            "CIUIC_CONFIG": str(place.config),
        },
    )
    assert done.code == 0, done.said()
    assert done.err == ""
    return done.out.split("\0")[1:-1]


def test_bash_completes_commands_options_and_snapshots(taken):
    listed = taken.run("list", "--machine-readable").out.splitlines()
    ids = {line.split("|")[0][:9] for line in listed}
    first = min(ids)

    assert set(completed(taken, "ciuic sn")) == {"snapshot"}
    assert "--machine-readable" in completed(taken, "ciuic list --m")
    assert set(completed(taken, "ciuic show ")) >= ids | {"latest"}
    assert completed(taken, f"ciuic verify {first[:8]}") == [first]
    assert set(completed(taken, "ciuic restore -s cs-")) == ids
    assert set(completed(taken, f"ciuic --store {taken.store} show cs-")) == ids


def test_completion_without_a_usable_store_offers_nothing_and_says_nothing(tmp_path):
    place = Place(tmp_path)

    assert completed(place, "ciuic show cs-") == []
    place.configure("nonsense\n")
    assert completed(place, "ciuic show cs-") == []


def test_the_bash_script_works_in_a_real_bash(taken):
    listed = taken.run("list", "--machine-readable").out
    newest = listed.split("|")[0][:9]
    script = (
        'eval "$(ciuic completion bash)"; COMP_LINE="ciuic show cs-"; COMP_POINT=14; '
        '_ciuic_completion ciuic; printf "%s\\n" "${COMPREPLY[@]}"'
    )

    done = run("bash", "-c", script, env={"CIUIC_CONFIG": str(taken.config)})

    assert newest in done.out.splitlines(), done.said()


@pytest.mark.parametrize(
    ("columns", "heads"), [(100, "SNAPSHOT MODIFIED PATH"), (60, "SNAPSHOT PATH")]
)
def test_find_says_on_a_terminal_what_its_columns_are(taken, columns, heads):
    command = ["ciuic", "--config", taken.config, "find", "*"]
    found = terminal.on_terminal(columns, *command, env={"COLUMNS": str(columns)})
    piped = taken.run("find", "*")
    first, second = plain(found.raw).replace("\r", "").splitlines()[:2]

    assert found.code == piped.code == 0
    assert first.split() == heads.split()
    assert first.index("PATH") == second.index("/")
    assert "SNAPSHOT" not in piped.out
