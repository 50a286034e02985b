"""ARCHITECTURE.md: every file, folder and name of code in it exists."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "ARCHITECTURE.md").read_text()
PATHS = sorted(set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)))
PLACES = sorted(set(re.findall(r"`([A-Za-z_][\w.]*)`\s+in\s+`([\w/]+\.py)`", PAGE)))
DRAWN = re.findall(r"^ {6}([a-z/ ]+?)  +\S", PAGE, re.MULTILINE)


def found(path: str) -> Path:
    """Return the place of a path, which is relative to the repository or to the package."""
    full = REPOSITORY / path
    return full if full.exists() else REPOSITORY / "ciuic" / path


def names(source: str) -> set[str]:
    """Return every function, class and method of a module; methods have their class in front."""
    tree = ast.parse(source)
    kinds = (ast.FunctionDef, ast.ClassDef)
    found_names = {node.name for node in tree.body if isinstance(node, kinds)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
            found_names |= {f"{node.name}.{name}" for name in methods}
    return found_names


@pytest.mark.parametrize("path", [path for path in PATHS if "NAME" not in path])
def test_each_path_exists(path: str) -> None:
    assert found(path).exists()


@pytest.mark.parametrize(("name", "path"), PLACES)
def test_each_name_is_where_the_page_says(name: str, path: str) -> None:
    assert name in names(found(path).read_text())


def test_the_page_names_the_places_that_a_stranger_looks_for() -> None:
    """Otherwise, the tests above would pass for a page without places."""
    assert len(PATHS) > 40
    assert {name for name, _ in PLACES} >= {
        "Store.commit",
        "StoreWriter",
        "PackOutput",
        "EarlyCopies.make",
        "ReflinkView.copy",
        "Store.lock",
        "Placer.place",
        "is_due",
    }


def test_each_folder_of_the_package_is_in_the_drawing() -> None:
    drawn = set(re.findall(r"[a-z]+(?=/)", " ".join(DRAWN)))
    folders = {path.parent.name for path in (REPOSITORY / "ciuic").glob("*/__init__.py")}
    assert folders <= drawn


def test_each_decision_has_a_number_of_its_own() -> None:
    pages = sorted((REPOSITORY / "docs" / "decisions").glob("*.md"))
    numbers = [page.name[:4] for page in pages]
    assert len(set(numbers)) == len(numbers), numbers
    for page in pages:
        assert page.read_text().startswith(f"# {int(page.name[:4])}. "), page.name
