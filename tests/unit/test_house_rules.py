"""The house rules that no linter checks, each as a test of the source.

They cover every module, so a new module has to follow them too.
"""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciuic.config.settings import DEFAULTS

THIS_FILE = Path(__file__).resolve()
REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PACKAGES = ("ciuic", "ciuicd")
MODULES = sorted(path for name in PACKAGES for path in (REPOSITORY / name).rglob("*.py"))
NAMES = [str(path.relative_to(REPOSITORY)) for path in MODULES]

DURABLE = {"fsync", "fdatasync", "rename", "renames", "replace", "link", "sync"}
"""Functions of ``os`` that decide what survives a power cut."""

DURABLE_ANYWHERE = {"syncfs", "renameat2", "sync_file_range", "rename", "hardlink_to"}
"""Method names that mean the same on any object."""

LINES_MAX = 500
FUNCTION_LINES_MAX = 60
"""This counts the signature and the body. Decorators and the docstring are not read as code."""

MODULES_MAX = 15

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
    "jinja2": ("ciuic/web/pages.py",),
    "pydantic": ("ciuic/web/models.py", "ciuic/web/works.py"),
    "starlette": ("ciuic/web/",),
    "uvicorn": ("ciuic/web/server.py",),
    "psutil": ("ciuicd/", "ciuic/source/writers.py", "ciuic/system/priority.py"),
    "watchdog": ("ciuicd/",),
    "zstandard": ("ciuic/codec",),
    "blake3": ("ciuic/system/hashing.py",),
    "xxhash": ("ciuic/system/hashing.py",),
    "rich": ("ciuic/cli/progress.py",),
    "sqlite3": (
        "ciuic/store/index/database.py",
        "ciuic/store/index_keeper.py",
    ),
    "mfusepy": ("ciuic/mount/fuse.py",),
    "msgspec": (
        "ciuic/control/messages.py",
        "ciuic/model.py",
        "ciuic/restore/report.py",
        "ciuic/snapshot/report.py",
        "ciuic/verify/report.py",
        "ciuic/store/",
        "ciuic/catalog/",
        "ciuic/formats/",
        "ciuic/guard/logs/records.py",
        "ciuic/system/link_table.py",
    ),
    "numpy": (
        "ciuic/codec",
        "ciuic/chunking/",
        "ciuic/store/parity/gf256.py",
        "ciuic/training/",
        "ciuic/integrations/",
    ),
    "obstore": ("ciuic/store/place/",),
    "prometheus_client": ("ciuicd/metrics/gauges.py",),
    "pynvml": ("ciuic/guard/job/gpus.py",),
    "pyfastcdc": ("ciuic/chunking/content.py",),
    "torch": ("ciuic/training/", "ciuic/integrations/transformers.py"),
    "jax": ("ciuic/integrations/jax.py",),
    "keras": ("ciuic/integrations/keras.py",),
    "lightning": ("ciuic/integrations/lightning.py",),
    "transformers": ("ciuic/integrations/transformers.py",),
}
"""Where each package may be imported. A new package needs a line, and a reason."""


ANY = {
    "ciuic/cli/options.py": "what click converts",
    "ciuic/codec/columns.py": "numpy: words of any width",
    "ciuic/codec/differences.py": "numpy: words of any width",
    "ciuic/codec/elements.py": "numpy: elements of any width",
    "ciuic/config/load.py": "a value of the type of its field",
    "ciuic/config/settings.py": "ExcludeRules and Rule: their names would cost imports",
    "ciuic/config/values.py": "a value of the type of its field",
    "ciuic/copy/read_through.py": "PlaceOptions: its name would cost imports",
    "ciuic/documents.py": "JSON",
    "ciuic/drill/load.py": "a checkpoint holds values of every type",
    "ciuic/errors.py": "JSON",
    "ciuic/formats/pickle_machine.py": "a pickle holds values of every type",
    "ciuic/guard/logs/records.py": "JSON, checked field by field",
    "ciuic/formats/torch_pickle.py": "a pickle holds values of every type",
    "ciuic/restore/place/first_names.py": "msgspec: a type",
    "ciuic/source/freeze/records.py": "JSON, checked field by field",
    "ciuic/source/page_cache.py": "ctypes has no public types",
    "ciuic/store/index/chunk_index.py": "SQLite returns the types that the file holds",
    "ciuic/store/index/records.py": "SQLite returns the types that the file holds",
    "ciuic/store/place/address.py": "obstore: the configuration of each kind of store",
    "ciuic/store/place/uploads/s3.py": "obstore: the configuration of a store",
    "ciuic/system/link_table.py": "msgspec: a type",
    "ciuic/integrations/": "objects of frameworks that may not be installed",
    "ciuic/training/": "the state of a training program holds values of every type",
    "ciuicd/alerting/notices.py": "JSON, checked field by field",
    "ciuicd/upkeep/outcomes.py": "JSON",
}
"""Where ``Any`` may be a type, and why."""


@functools.cache
def parsed(name: str) -> ast.Module:
    return ast.parse((REPOSITORY / name).read_text(encoding="utf-8"), name)


def each_module(but: str = "") -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Make one test that checks every module: thousands of tests would take a minute longer."""

    def decorated(check: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            failures = []
            for name in NAMES:
                try:
                    if name != but:
                        check(name)
                except AssertionError as error:
                    failures.append(f"{name}: {error}")
            assert not failures, "\n".join(failures)

        test.__doc__ = check.__doc__
        return test

    return decorated


def exported(tree: ast.Module) -> list[str] | None:
    """Return ``__all__`` of a module; None if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the name of every imported module, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def attributes(tree: ast.Module, owner: str) -> Iterator[tuple[str, int]]:
    """Yield every ``owner.name`` in a module with its line, and names imported from ``owner``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            value = node.value
            last = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", None)
            if last == owner:
                yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == owner:
            yield from ((alias.name, node.lineno) for alias in node.names)


def test_the_source_was_found():
    assert {"ciuic/errors.py", "ciuic/store/store.py", "ciuicd/service.py"} <= set(NAMES)


@each_module()
def test_every_module_begins_with_a_docstring(name):
    text = ast.get_docstring(parsed(name))

    assert text
    assert text.splitlines()[0].endswith((".", ":", "?")), "the first line is a sentence"


@each_module()
def test_all_is_sorted_and_names_only_what_the_module_defines(name):
    listed = exported(parsed(name))
    if listed is None:
        return
    there = set()
    top = parsed(name).body
    for node in (
        inner for one in top for inner in (one.body if isinstance(one, ast.Try) else [one])
    ):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            there.add(node.name)
        elif isinstance(node, ast.ImportFrom) and name.endswith("__init__.py"):
            there |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            there |= {target.id for target in targets if isinstance(target, ast.Name)}

    # The linter sorts them too: constants, classes, other names.
    assert listed == sorted(
        set(listed), key=lambda name: (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
    )
    assert set(listed) <= there
    assert not [export for export in listed if re.match(r"_[^_]", export)]


@each_module()
def test_a_module_imports_only_what_another_exports(name):
    for node in ast.walk(parsed(name)):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module.split(".")[0] not in PACKAGES:
            continue
        place = node.module.replace(".", "/")
        file = f"{place}.py" if f"{place}.py" in NAMES else f"{place}/__init__.py"
        listed = exported(parsed(file))
        for alias in node.names:
            inner = f"{place}/{alias.name}"
            is_module = {f"{inner}.py", f"{inner}/__init__.py"} & set(NAMES)
            if listed is not None and not is_module:
                assert alias.name in listed, f"{name}:{node.lineno}: {alias.name} of {node.module}"


def durable_calls(tree: ast.Module) -> list[str]:
    """Return the calls that only ciuic/system/durable.py may make."""
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
    """Return the calls that only ciuic/system/clock.py may make."""
    return [
        f"{owner}.{name}:{line}"
        for owner, names in ASKS_THE_TIME.items()
        for name, line in attributes(tree, owner)
        if name in names
    ]


@each_module(but="ciuic/system/durable.py")
def test_only_durable_syncs_renames_and_links(name):
    assert durable_calls(parsed(name)) == []


@each_module(but="ciuic/system/clock.py")
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
def test_the_rule_about_durable_calls_finds_each_of_them(line):
    assert durable_calls(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    ["time.time()", "from time import monotonic", "datetime.datetime.now(UTC)", "time.sleep(1)"],
)
def test_the_rule_about_time_calls_finds_each_of_them(line):
    assert time_calls(ast.parse(line))
    assert not time_calls(ast.parse("clock.sleep(1)\nclock.now_ns()\ndatetime.strptime(a, b)"))


@each_module()
def test_each_package_has_one_home(name):
    standard = sys.stdlib_module_names - {"sqlite3"}
    for module in imports(parsed(name)):
        top = module.split(".")[0]
        if top in standard or top in PACKAGES:
            continue
        assert top in HOMES, f"{name} imports {top}, which has no home in HOMES"
        assert name.startswith(HOMES[top]), f"{name} imports {top}, at home in {HOMES[top]}"


def test_any_is_a_type_only_for_a_reason():
    found = {
        name
        for name in NAMES
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.Name) and node.id == "Any"
    }

    unexplained = {name for name in found if not name.startswith(tuple(ANY))}
    assert unexplained == set(), "say why in ANY, or name the type"


@each_module()
def test_no_module_is_imported_for_the_type_checker_alone(name):
    assert "TYPE_CHECKING" not in (REPOSITORY / name).read_text(encoding="utf-8")


@each_module()
def test_no_module_has_more_than_500_lines(name):
    lines = (REPOSITORY / name).read_text(encoding="utf-8").count("\n")

    assert lines <= LINES_MAX, "split it where it falls into parts"


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its decorators and its docstring."""
    assert node.end_lineno is not None
    total = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        assert first.end_lineno is not None
        total -= first.end_lineno - first.lineno + 1
    return total


def long_functions(tree: ast.Module) -> list[str]:
    """Return the functions of a module that are too long, each with its number of lines."""
    return [
        f"{node.name}: {function_lines(node)} lines"
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and function_lines(node) > FUNCTION_LINES_MAX
    ]


@each_module()
def test_no_function_has_more_than_60_lines(name):
    assert long_functions(parsed(name)) == [], "split it into its phases"


@pytest.mark.parametrize(
    "head", ["@d\ndef f():", "@d\nasync def f():", "class C:\n @d\n def f(self):"]
)
def test_the_rule_about_long_functions_counts_neither_decorators_nor_the_docstring(head):
    indent = "  " if head.startswith("class") else " "
    docstring = f'{indent}"""A docstring\n{indent}in two lines."""\n'
    body = f"{indent}pass\n" * (FUNCTION_LINES_MAX - 1)

    assert long_functions(ast.parse(f"{head}\n{docstring}{body}")) == []
    assert long_functions(ast.parse(f"{head}\n{docstring}{body}{indent}pass")) == [
        f"f: {FUNCTION_LINES_MAX + 1} lines"
    ]


def test_a_folder_holds_at_most_15_modules():
    """``ciuic/cli`` has one module for each command, and no limit."""
    folders = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    del folders[REPOSITORY / "ciuic" / "cli"]

    assert {folder: count for folder, count in folders.items() if count > MODULES_MAX} == {}


def test_a_store_is_never_called_a_repository():
    found = [
        f"{name}:{number}"
        for name in NAMES
        for number, line in enumerate((REPOSITORY / name).read_text().splitlines(), start=1)
        if re.search(r"\brepo(sitory|sitories)?\b", line, re.IGNORECASE)
    ]

    assert not found


RIDDLES = re.compile(
    r"\b(all the same|anew|be had|can't|hence|nobody|of which|so many|whoever)\b", re.IGNORECASE
)
"""Words that leave out who acts, or what is meant."""
USER = re.compile(r"\bNOBODY\b|``nobody``|= nobody\b|user nobody|as nobody|0 nobody")
"""The user of this name, in tests."""


def test_text_for_readers_names_the_actor():
    """CONTRIBUTING.md and this file, which have the rule, quote some of these words."""
    texts = [
        path
        for name in ("core", "docs", "etc", "examples", "scripts", "systemd", "tests")
        for path in REPOSITORY.glob(f"{name}/**/*")
    ]
    texts += [
        *MODULES,
        *(REPOSITORY / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")),
    ]
    for path in texts:
        if path.suffix in {".c", ".conf", ".h", ".md", ".py", ".service"} and path != THIS_FILE:
            assert RIDDLES.findall(USER.sub("", path.read_text())) == [], path


def test_every_dependency_is_imported_somewhere():
    text = (REPOSITORY / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    declared = {name.replace("-", "_") for name in re.findall(r'"([a-z0-9-]+)', block[1])}
    frameworks = ("jax", "keras", "lightning", "transformers")
    for extra in ("torch", "mount", "web", *frameworks):
        optional = re.search(rf"^{extra} = \[(.*?)\]", text, re.MULTILINE)
        assert optional is not None
        packages = {"jinja2", "mfusepy", "starlette", "torch", "uvicorn", *frameworks}
        declared |= packages & set(re.findall(r'"([a-z0-9-]+)', optional[1]))
    assert re.search(r'^gpu = \["nvidia-ml-py', text, re.MULTILINE)
    declared.add("pynvml")
    used = {module.split(".")[0] for name in NAMES for module in imports(parsed(name))}

    assert declared <= used, "a dependency that no module imports"
    third = used - sys.stdlib_module_names - set(PACKAGES)
    assert third <= declared, "an import that is not declared"


def test_the_layers_hold():
    done = subprocess.run(
        [BIN / "lint-imports", "--no-cache"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_layers_leave_no_module_out():
    """With ``exhaustive``, the linter refuses a module without a place in the layers."""
    text = (REPOSITORY / "pyproject.toml").read_text()

    contracts = text.split("[[tool.importlinter.contracts]]")[1:]
    layered = [contract for contract in contracts if 'type = "layers"' in contract]
    assert layered
    assert all("exhaustive = true" in contract for contract in layered)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("Only the store knows its bytes", set()),
        (
            "Only those who walk or build trees know how nodes are nested",
            {"ciuic.snapshot", "ciuic.view", "ciuic.mount"},
        ),
    ],
)
def test_restricted_modules_are_forbidden_to_every_other_module_above_the_store(name, allowed):
    """The linter has no layers for this: the contract lists the modules by hand."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    by_name = {contract["name"]: contract for contract in contracts["contracts"]}
    layers = by_name["Imports go down only"]["layers"]
    above = [one for layer in layers[: layers.index("store")] for one in layer.split(" | ")]

    assert set(by_name[name]["source_modules"]) == (
        {"ciuicd", *(f"ciuic.{one}" for one in above)} - allowed
    )


def test_the_reference_configuration_has_every_key_and_no_other():
    text = (REPOSITORY / "etc" / "ciuic.conf").read_text()
    keys = re.findall(r"^([a-z_]+)\s*=", text, re.MULTILINE)

    assert sorted(keys) == sorted(DEFAULTS)
    assert len(text.splitlines()) <= 50, "one screen"


COUNT = r"\{[^{}]*(?::,|\(|\bcount|_count|number)[^{}]*\} (?:more |hot |reflink )?"
NOUNS = (
    "chunks",
    "copies",
    "files",
    "links",
    "manifests",
    "packs",
    "paths",
    "pieces",
    "roots",
    "snapshots",
)
A_LIMIT = re.compile(r"\{_?[A-Z_]+:?,?\}")
"""A constant is not a count, because it is never 1."""


@each_module()
def test_messages_use_the_singular_and_the_plural(name):
    """Use ``counted``, so that no message says "1 chunks"."""
    for match in re.finditer(rf"{COUNT}(?:{'|'.join(NOUNS)})\b", (REPOSITORY / name).read_text()):
        assert A_LIMIT.match(match[0]), match[0]


def test_only_the_binding_of_the_core_knows_python():
    """Sanitizers, fuzzers and emulators of other machines run the rest alone."""
    sources = sorted((REPOSITORY / "core").glob("*.[ch]"))

    knowing = [
        path.name for path in sources if re.search(r"Python\.h|binding\.h", path.read_text())
    ]

    assert all(name.startswith("binding") for name in knowing), knowing
    assert len(sources) > len(knowing)


def test_no_function_of_the_core_has_more_than_60_lines():
    """A function ends at the first brace in the first column."""
    for path in (REPOSITORY / "core").glob("*.c"):
        for body in re.findall(r"^\{\n.*?^\}", path.read_text(), re.MULTILINE | re.DOTALL):
            assert body.count("\n") <= 60, f"{path.name}: {body[:80]}"
