"""The rules of this project that no linter knows, each as a test.

They are read from the source as it is, so that a new module is bound by them from its first day.
"""

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.config import DEFAULTS

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PACKAGES = ("ciuic", "ciuicd")
MODULES = sorted(path for name in PACKAGES for path in (REPOSITORY / name).rglob("*.py"))
NAMES = [str(path.relative_to(REPOSITORY)) for path in MODULES]

DURABLE = {"fsync", "fdatasync", "rename", "renames", "replace", "link", "sync"}
"""Functions of ``os`` that decide what survives a power cut."""

DURABLE_ANYWHERE = {"syncfs", "renameat2", "sync_file_range", "rename", "hardlink_to"}
"""Names that mean the same on whatever object they are called."""

COPIES = {"move", "copytree", "copyfile", "copy", "copy2", "rmtree"}

ASKS_THE_TIME = {
    "time": {
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "sleep",
        "localtime",
        "gmtime",
        "ctime",
        "clock_gettime",
        "clock_gettime_ns",
    },
    "datetime": {"now", "utcnow", "today", "fromtimestamp"},
    "date": {"today", "fromtimestamp"},
}

HOMES = {
    "click": ("ciuic/cli/",),
    "pydantic": ("ciuic/control.py",),
    "psutil": ("ciuicd/", "ciuic/capture/holders.py", "ciuic/priority.py"),
    "watchdog": ("ciuicd/",),
    "zstandard": ("ciuic/codec",),
    "blake3": ("ciuic/hashing.py",),
    "xxhash": ("ciuic/hashing.py",),
    "rich": ("ciuic/cli/progress.py",),
    "sqlite3": ("ciuic/store/index.py", "ciuic/store/store.py"),
    "msgspec": ("ciuic/model.py", "ciuic/store/", "ciuic/catalog.py", "ciuic/chunking/tensors/"),
    "numpy": ("ciuic/codec", "ciuic/chunking/", "ciuic/training/"),
    "pyfastcdc": ("ciuic/chunking/content.py",),
    "pyeclib": ("ciuic/store/galois.py",),
    "torch": ("ciuic/training/",),
}
"""Where each package may be imported. One that is not here needs a line, and a reason for it."""


@functools.cache
def parsed(name: str) -> ast.Module:
    return ast.parse((REPOSITORY / name).read_text(encoding="utf-8"), name)


def exported(tree: ast.Module) -> list[str] | None:
    """``__all__`` of a module; None if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def imports(tree: ast.Module) -> Iterator[str]:
    """The name of every module that is imported, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def attributes(tree: ast.Module, owner: str) -> Iterator[tuple[str, int]]:
    """Every ``owner.name`` in a module, however deep, with its line; imported names as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            value = node.value
            last = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", None)
            if last == owner:
                yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == owner:
            yield from ((one.name, node.lineno) for one in node.names)


def loaded_after(program: str) -> set[str]:
    """The top names of all modules that a fresh Python has loaded after a program."""
    shown = "import sys, json; print(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{shown}"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_source_was_found():
    assert {"ciuic/errors.py", "ciuic/store/store.py", "ciuicd/service.py"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_module_begins_with_a_docstring(name):
    text = ast.get_docstring(parsed(name))

    assert text
    assert text.splitlines()[0].endswith((".", ":", "?")), "the first line is a sentence"


@pytest.mark.parametrize("name", NAMES)
def test_all_is_sorted_and_names_only_what_is_there(name):
    listed = exported(parsed(name))
    if listed is None:
        return
    there = set()
    for node in parsed(name).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            there.add(node.name)
        elif isinstance(node, ast.ImportFrom) and name.endswith("__init__.py"):
            there |= {one.asname or one.name for one in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            there |= {one.id for one in targets if isinstance(one, ast.Name)}

    # As the linter sorts them: constants, classes, the rest.
    assert listed == sorted(
        set(listed), key=lambda one: (0 if one.isupper() else 1 if one[0].isupper() else 2, one)
    )
    assert set(listed) <= there
    assert not [one for one in listed if one.startswith("_") and not one.startswith("__")]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_module_takes_from_another_is_what_that_one_offers(name):
    for node in ast.walk(parsed(name)):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module.split(".")[0] not in PACKAGES:
            continue
        place = node.module.replace(".", "/")
        file = f"{place}.py" if f"{place}.py" in NAMES else f"{place}/__init__.py"
        listed = exported(parsed(file))
        for one in node.names:
            is_module = {f"{place}/{one.name}.py", f"{place}/{one.name}/__init__.py"} & set(NAMES)
            if listed is not None and not is_module:
                assert one.name in listed, f"{name}:{node.lineno}: {one.name} of {node.module}"


def test_importing_ciuic_is_light():
    heavy = {"torch", "click", "pydantic", "numpy", "msgspec", "blake3", "rich", "sqlite3"}

    assert heavy & loaded_after("import ciuic") == set()


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["list"], ["--version"]])
def test_commands_that_must_feel_instant_import_nothing_heavy(arguments, tmp_path):
    config = tmp_path / "ciuic.conf"
    config.write_text(
        f"snapshot_dir = {tmp_path / 'store'}\nsnapshot_paths = /etc\nretention_policy = 7d\n"
    )
    made = subprocess.run(
        [BIN / "ciuic", "--config", config, "init"], capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    command = ["ciuic", "--config", str(config), *arguments]
    program = (
        "import sys, contextlib, io\n"
        f"sys.argv = {command!r}\n"
        "from ciuic.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main()\n"
    )
    heavy = {"pydantic", "pydantic_core", "rich", "numpy", "torch", "psutil", "watchdog"}
    heavy |= {"zstandard"}

    assert heavy & loaded_after(program) == set()


def durable_calls(tree: ast.Module) -> list[str]:
    """What only ciuic/durable.py may do, wherever it is done."""
    found = [f"os.{name}:{line}" for name, line in attributes(tree, "os") if name in DURABLE]
    found += [
        f"shutil.{name}:{line}" for name, line in attributes(tree, "shutil") if name in COPIES
    ]
    return found + [
        f"{node.attr}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in DURABLE_ANYWHERE
    ]


def time_calls(tree: ast.Module) -> list[str]:
    """What only ciuic/clock.py may ask."""
    return [
        f"{owner}.{name}:{line}"
        for owner, names in ASKS_THE_TIME.items()
        for name, line in attributes(tree, owner)
        if name in names
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ciuic/durable.py"])
def test_only_durable_syncs_renames_and_links(name):
    assert durable_calls(parsed(name)) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ciuic/clock.py"])
def test_only_the_clock_asks_for_the_time(name):
    assert time_calls(parsed(name)) == []


@pytest.mark.parametrize(
    "line",
    [
        "os.fsync(fd)",
        "def f():\n    os.replace(a, b)",
        "from os import link as harmless",
        "sync = os.fdatasync",
        "libc.syncfs(fd)",
        "shutil.move(a, b)",
        "Path(a).rename(b)",
    ],
)
def test_the_search_sees_what_it_forbids_to_all_but_durable(line):
    assert durable_calls(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    ["time.time()", "from time import monotonic", "datetime.datetime.now(UTC)", "time.sleep(1)"],
)
def test_the_search_sees_what_it_forbids_to_all_but_the_clock(line):
    assert time_calls(ast.parse(line))
    assert not time_calls(ast.parse("clock.sleep(1)\nclock.now_ns()\ndatetime.strptime(a, b)"))


@pytest.mark.parametrize("name", NAMES)
def test_each_package_has_one_home(name):
    standard = sys.stdlib_module_names - {"sqlite3"}
    for module in imports(parsed(name)):
        top = module.split(".")[0]
        if top in standard or top in PACKAGES:
            continue
        assert top in HOMES, f"{name} imports {top}, which has no home in HOMES"
        assert name.startswith(HOMES[top]), f"{name} imports {top}, at home in {HOMES[top]}"


@pytest.mark.parametrize("name", NAMES)
def test_no_module_is_imported_for_the_type_checker_alone(name):
    assert "TYPE_CHECKING" not in (REPOSITORY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_no_file_grows_beyond_what_one_reads_in_a_sitting(name):
    lines = (REPOSITORY / name).read_text(encoding="utf-8").count("\n")

    assert lines <= 800, "read it again, and cut it where it falls apart by itself"


def test_a_store_is_never_called_a_repository():
    found = [
        f"{name}:{number}"
        for name in NAMES
        for number, line in enumerate((REPOSITORY / name).read_text().splitlines(), start=1)
        if re.search(r"\brepo(sitory|sitories)?\b", line, re.IGNORECASE)
    ]

    assert not found


def test_every_dependency_is_imported_somewhere():
    text = (REPOSITORY / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    declared = set(re.findall(r'"([a-z0-9-]+)', block[1]))
    used = {module.split(".")[0] for name in NAMES for module in imports(parsed(name))}

    assert declared <= used, "a dependency that nobody needs"
    third = {one for one in used if one not in sys.stdlib_module_names and one not in PACKAGES}
    assert third <= declared, "an import that nobody declared"


def test_the_layers_hold():
    done = subprocess.run(
        [BIN / "lint-imports", "--no-cache"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_a_place_in_the_layers():
    text = (REPOSITORY / "pyproject.toml").read_text()
    placed = {name for line in re.findall(r'^    "(ciuic.*)",$', text, re.MULTILINE)
              for name in line.split(" | ")}  # fmt: skip
    for path in (REPOSITORY / "ciuic").iterdir():
        module = f"ciuic.{path.stem}"
        if path.suffix == ".py" or (path / "__init__.py").exists():
            assert module in placed or path.name == "__init__.py", f"{module} is in no layer"


def test_the_reference_configuration_has_every_key_and_no_other():
    text = (REPOSITORY / "etc" / "ciuic.conf").read_text()
    keys = re.findall(r"^([a-z_]+)\s*=", text, re.MULTILINE)

    assert sorted(keys) == sorted(DEFAULTS)
    assert len(text.splitlines()) <= 40, "one screen"
