"""Every error has a kind, a sentence, an exit code, and passes the control socket."""

import ast
import errno
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ciuicd.service  # noqa: F401 - so that every subclass has been seen
from ciuic import errors
from ciuic.cli.error_output import report_error
from ciuic.control import error_document, error_from_document
from ciuic.errors import CiuicError, exit_code

REPOSITORY = Path(__file__).parents[2]

EXIT_CODES = {
    "CiuicError": 1,
    "UsageError": 2,
    "ConfigError": 2,
    "ResourceError": 1,
    "SourceError": 1,
    "TornReadError": 1,
    "VanishedError": 1,
    "StoreError": 1,
    "ChildDiedError": 1,
    "BusyError": 5,
    "UnresponsiveError": 1,
    "UnknownFormatError": 1,
    "StoreFullError": 1,
    "ReadOnlyError": 1,
    "CommitUncertainError": 1,
    "MissingError": 1,
    "LostRaceError": 1,
    "AccessDeniedError": 1,
    "OfflineError": 1,
    "UnsupportedError": 1,
    "CorruptionError": 4,
    "ChunkMissingError": 4,
    "DigestError": 4,
    "UnreachableError": 4,
    "SnapshotNotFoundError": 1,
    "PathNotFoundError": 1,
    "TargetError": 1,
    "CancelledError": 1,
}
"""The public table. Each new error needs a line here."""


def tree(top: type[CiuicError]) -> Iterator[type[CiuicError]]:
    """Return all public errors. Other modules see a private error as its public base."""
    if not top.__name__.startswith("_"):
        yield top
    for below in top.__subclasses__():
        yield from tree(below)


PUBLIC = [one for one in tree(CiuicError) if one.__module__ == "ciuic.errors"]


def test_the_table_of_exit_codes_is_total():
    assert {one.__name__ for one in PUBLIC} == set(EXIT_CODES)
    codes = {"BUSY", "DAMAGE", "DONE", "FAILED", "TROUBLE", "USAGE"}
    others = {*codes, "FILE_SIZE_HINT", "exit_code", "shortage"}
    assert set(errors.__all__) == {*EXIT_CODES, *others}


@pytest.mark.parametrize("kind", list(tree(CiuicError)), ids=lambda kind: kind.__name__)
def test_each_error_ends_a_command_with_its_exit_code(kind):
    public = next(one for one in kind.__mro__ if one.__module__ == "ciuic.errors")

    assert exit_code(kind("x")) == EXIT_CODES[public.__name__]
    assert exit_code(kind("x")) in {1, 2, 4, 5}


@pytest.mark.parametrize("kind", list(tree(CiuicError)), ids=lambda kind: kind.__name__)
def test_each_error_keeps_its_sentence_its_hint_and_its_class_over_the_socket(kind):
    error = kind("a|b \udcff\n", hint="do this")

    again = error_from_document(error_document(error)["error"])

    assert type(again) is kind
    assert (again.message, again.hint) == (error.message, error.hint)


def test_kinds_are_snake_case_and_unique():
    kinds = [one("x").kind for one in tree(CiuicError)]

    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind) for kind in kinds)
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_an_error_has_the_hint_of_its_class_unless_one_is_given(kind):
    assert kind("x").hint == kind.default_hint
    assert kind("x", hint="").hint == ""
    assert kind("x", hint="y").hint == "y"
    assert kind.__doc__


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_a_default_hint_is_a_complete_imperative_sentence(kind):
    hint = kind.default_hint

    assert hint == "" or (hint[0].isupper() and hint.endswith("."))


def test_an_error_can_be_sent_to_another_process():
    error = errors.BusyError("in use", hint="wait")

    again = pickle.loads(pickle.dumps(error))

    assert (type(again), again.message) == (errors.BusyError, "in use")


def test_the_docstring_draws_the_whole_tree():
    text = errors.__doc__ or ""

    for one in PUBLIC:
        depth = len(one.__mro__) - len(CiuicError.__mro__) + 1
        assert re.search(rf"^{'    ' * depth}{one.__name__}\b", text, re.MULTILINE), one


def test_reporting_prints_one_line_for_the_message_and_one_for_the_hint(capsys):
    report_error(errors.TargetError("\x1b[2J\nbad", hint="Do\tthis."), as_json=False)

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["ciuic: \\x1b[2J\\nbad", "       Do\\tthis."]


def test_every_raised_error_has_a_message_and_hints_are_sentences():
    """This reads the source: no message is empty, and each literal hint ends like a sentence."""
    for path in [*(REPOSITORY / "ciuic").rglob("*.py"), *(REPOSITORY / "ciuicd").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in EXIT_CODES:
                continue
            place = f"{path.name}:{node.lineno}"
            assert node.args, f"{place} has no message"
            for word in node.keywords:
                if word.arg == "hint" and isinstance(word.value, ast.Constant) and word.value.value:
                    hint = word.value.value
                    assert hint.endswith((".", "?")), f"{place}: {hint}"
                    assert hint[0].isupper() or hint[0] == "'", f"{place}: {hint}"


def test_the_edges_are_the_only_places_that_catch_everything():
    for path in [*(REPOSITORY / "ciuic").rglob("*.py"), *(REPOSITORY / "ciuicd").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                raise AssertionError(f"{path}:{node.lineno} has a bare except")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (MemoryError(), "not enough memory"),
        (OSError(errno.EMFILE, "Too many open files"), "too many files are open"),
        (OSError(errno.ENFILE, "Too many open files in system"), "too many files are open"),
        (OSError(errno.EFBIG, "File too large"), "the limit on file sizes"),
        (OSError(errno.EIO, "Input/output error"), None),
        (ImportError("\nIMPORTANT\n\nOriginal error was: no.so: failed to map segment\n"), "no.so"),
        (ModuleNotFoundError("No module named 'numpy'"), "'numpy'"),
        (ImportError(), "no reason"),
        (RuntimeError("can\x27t start new thread"), "threads"),
        (RuntimeError("dictionary changed size during iteration"), None),
        (RecursionError("maximum recursion depth exceeded"), None),
        (ValueError("no"), None),
    ],
)
def test_shortages_of_the_machine_are_distinguished_from_bugs(raised, said):
    short = errors.shortage(raised)
    assert (short is None) == (said is None)
    if short is not None:
        assert said in short.message
        assert "\n" not in short.message
        assert short.hint
        assert exit_code(short) == 1


def test_too_few_threads_may_mean_too_little_address_space():
    short = errors.shortage(RuntimeError("can\x27t start new thread"))
    assert short is not None
    assert "ulimit -u and -v" in short.hint


def test_a_private_error_has_the_kind_of_its_public_base():
    class _DeepError(errors.CorruptionError):
        pass

    assert _DeepError("too deep").kind == "corruption"
