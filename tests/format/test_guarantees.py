"""docs/guarantees.md: every guarantee has a test, and every test that it names exists."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "guarantees.md").read_text()
SECTIONS = re.split(r"^\*\*(?=[GN]\d+\. )", PAGE, flags=re.MULTILINE)[1:]
NAMED = sorted(set(re.findall(r"^- `(tests/.+)::(\w+)`$", PAGE, re.MULTILINE)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_test_that_is_named_exists(file, name):
    tree = ast.parse((REPOSITORY / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: one.split(".")[0])
def test_each_guarantee_has_a_test_and_nothing_else_has(section):
    assert section.startswith("G") == ("- `tests/" in section)


def test_the_numbers_have_no_gaps():
    for letter in "GN":
        numbers = [
            int(number) for number in re.findall(rf"^\*\*{letter}(\d+)\. ", PAGE, re.MULTILINE)
        ]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(ciuic/[\w/]+\.py)`", PAGE))))
def test_each_file_of_the_code_exists(path):
    assert (REPOSITORY / path).is_file()


@pytest.mark.parametrize(
    ("name", "path"), sorted(set(re.findall(r"`([\w.]+)`\s+in\s+`(ciuic/[\w/]+\.py)`", PAGE)))
)
def test_each_place_in_the_code_exists(name, path):
    last = name.rpartition(".")[2]
    source = (REPOSITORY / path).read_text()
    assert re.search(rf"^\s*(def|class) {last}\b", source, re.MULTILINE)
