"""Answers a shell that asks for completions.

A script in ``shells`` passes the line up to the cursor. This module splits the line by the rules of
shells, because paths may contain spaces, quotes and ``=``. The answer is a kind and then the
candidates, unquoted and each ended by NUL; the shell quotes them.
"""

import os
import sys
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem, ShellComplete

__all__ = ["answer"]


class _Line(NamedTuple):
    """A command line that ends at the cursor.

    Attributes:
        words: The words before the last one, unquoted.
        last: The word that is being typed, unquoted; may be empty.
        kept: How many characters of ``last`` precede the part that the shell will replace.
    """

    words: list[str]
    last: str
    kept: int


def answer(cli: click.Command, program: str) -> None:
    """Print the candidates for the end of the line that the environment hands over."""
    line = _parsed(os.environ.get("CIUIC_LINE", ""), os.environ.get("CIUIC_BREAKS", ""))
    asked = ShellComplete(cli, {}, program, "")
    items = asked.get_completions(line.words[1:], line.last)
    # The shell replaces only what follows --path= in --path=/data.
    option = line.last[: line.last.index("=") + 1] if _is_assignment(line.last) else ""
    kind = next((item.type for item in items if item.type != "plain"), "plain")
    reply = [kind] if kind in {"dir", "file"} else [kind, *_words(items, option, line.kept)]
    sys.stdout.buffer.write(b"".join([os.fsencode(word) + b"\0" for word in reply]))


def _words(items: list[CompletionItem[str]], option: str, kept: int) -> list[str]:
    return [(option + item.value)[kept:] for item in items]


def _is_assignment(word: str) -> bool:
    return word.startswith("--") and "=" in word


def _parsed(line: str, breaks: str) -> _Line:
    """Split a line into words, by the rules for quotes that shells have in common.

    Args:
        line: The line up to the cursor.
        breaks: The characters at which bash ends a word for completion, unless they are quoted.
    """
    words: list[str] = []
    word, kept, quote = "", 0, ""
    is_begun = is_escaped = False
    for char in line:
        if is_escaped:
            word += char if quote != '"' or char in '"\\$`' else "\\" + char
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_begun = is_escaped = True
        elif quote:
            quote, word = ("", word) if char == quote else (quote, word + char)
        elif char in "'\"":
            quote, is_begun, opened_at = char, True, len(word)
        elif char.isspace():
            words += [word] if is_begun else []
            word, kept, is_begun = "", 0, False
        else:
            word, is_begun = word + char, True
            kept = len(word) if char in breaks else kept
    # If a quote is open, bash replaces what follows it.
    return _Line(words, word, opened_at if quote and breaks else kept)
