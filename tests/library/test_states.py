"""States of the library come back exact to the last bit: every element type and container."""

import json
import math
import random
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.training.manager import SnapshotManager
from ciuic.training.values import structure
from ciuic.training.values.arrays import describe
from ciuic.training.values.structure import StructureWriter, read_structure
from tests.kit.program import ciuic

PLAIN = ["f8", "f4", "f2", "c16", "c8", "b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]
DTYPES = [*PLAIN, ">f4", ">i8", "g", "U3", "S5", "M8[ns]", "m8[s]"]


@pytest.fixture
def manager(tmp_path):
    with SnapshotManager(tmp_path / "store") as made:
        yield made


def through_json(value: object) -> object:
    arrays: list[object] = []

    def add(array: object, _: object) -> object:
        arrays.append(array)
        return {"$": "numpy.ndarray", "at": len(arrays) - 1}

    text = json.dumps(StructureWriter(add).write(value, ("extra",)), allow_nan=False)
    return read_structure(json.loads(text), lambda found: arrays[found["at"]])


def same(left: object, right: object) -> bool:
    """Compare types as well, NaNs by their bits, and the order of dicts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return (left.dtype.str, left.shape) == (right.dtype.str, right.shape) and (
            left.tobytes() == right.tobytes()
        )
    return left == right


keys = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.complex_numbers(allow_nan=True)
    | st.text(st.characters())
    | st.binary(max_size=20)
    | st.binary(max_size=20).map(bytearray)
    | st.frozensets(st.integers()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.just("$") | st.text(max_size=2), inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=25,
)


@given(values)
@settings(max_examples=300)
def test_every_value_comes_back_as_it_was(value):
    assert same(through_json(value), value)


def test_values_of_schedulers_come_back():
    value = {
        "milestones": Counter({10: 1, 20: 2}),
        "best": math.inf,
        "seen": {1, 2},
        "by_name": defaultdict(list, {"a": [1]}),
        "scalar": np.float64(0.1),
        "count": np.int16(-3),
        "huge": 1 << 200,
        "negative": -(1 << 90),
    }

    back = through_json(value)

    assert back == value
    assert back["by_name"]["new"] == []
    assert [type(inner) for inner in back.values()] == [type(inner) for inner in value.values()]


class Custom:
    pass


class Subclass(np.ndarray):
    pass


class Convertible:
    """As an array of JAX."""

    def __array__(self) -> np.ndarray:
        return np.zeros(3)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"a": [Custom()]}, "extra['a'][0] cannot be stored: it is a "),
        ({"a": lambda: 1}, "extra['a'] cannot be stored"),
        ({"a": Convertible()}, "and containers; numpy.asarray makes an array of it"),
        ({("x", 1): print}, "extra[('x', 1)] cannot be stored"),
        ({Custom: 1}, "cannot be stored"),
        ({"a": np.array([Custom()])}, "extra['a'] cannot be stored: it is an array of object"),
        ({"a": np.zeros(2, [("x", "f4")])}, "extra['a'] cannot be stored: it is an array of ["),
        ({"a": np.zeros(3).view(Subclass)}, "a subclass of numpy.ndarray"),
        (defaultdict(Custom), "whose factory"),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_what_cannot_be_stored_is_a_type_error_that_names_the_key(manager, value, what):
    with pytest.raises(TypeError) as caught:
        manager.save_snapshot({"w": np.zeros(3)}, epoch=1, extra=value)

    assert what in str(caught.value)
    assert manager.list() == []
    manager.save_snapshot({"w": np.zeros(3)}, epoch=1, wait=True)
    assert len(manager.list()) == 1


def test_a_value_that_contains_itself_is_refused(manager):
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        manager.save_snapshot({}, extra=loop)

    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(TypeError, match="nested too deep"):
        manager.save_snapshot({}, extra=deep)


def test_a_value_that_would_be_stored_without_end_is_refused(manager, monkeypatch):
    monkeypatch.setattr(structure, "_SHARED_MAX", 1000)
    doubled: list[object] = [1]
    for _ in range(40):
        doubled = [doubled, doubled]
    with pytest.raises(TypeError, match=r"extra\['x'\] cannot be stored: .* again and again"):
        manager.save_snapshot({}, extra={"x": doubled})

    # However often one value is named, each name takes memory of the program as well.
    pair = (0, 0)
    manager.save_snapshot({}, extra=[pair] * 5000, wait=True)
    assert manager.load_latest_snapshot()["extra"] == [pair] * 5000


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_element_type_come_back(manager, dtype, tmp_path):
    source = np.random.default_rng(1).integers(0, 2**7, 24)
    array = source.astype(dtype)
    state = {
        "plain": array,
        "matrix": array.reshape(2, 3, 4),
        "transposed": array.reshape(4, 6).T,
        "strided": array[::-3],
        "empty": array[:0].reshape(0, 7),
        "single": array[:1].reshape(()),
    }

    manager.save_snapshot(state, epoch=1, wait=True)
    back = manager.load_latest_snapshot()["model_state_dict"]

    assert same(back, {key: np.ascontiguousarray(v).reshape(v.shape) for key, v in state.items()})
    # The safetensors library must accept the restored file.
    done = ciuic(
        "--store", manager._path, "restore", "-s", "latest", "-p", "/state", "-d", tmp_path
    )
    assert done.code == 0, done.err
    safetensors = pytest.importorskip("safetensors.numpy")
    loaded = safetensors.load_file(tmp_path / "state/weights.safetensors")
    assert set(loaded) == set(state)
    assert loaded["strided"].tobytes() == np.ascontiguousarray(state["strided"]).tobytes()


def test_the_state_is_copied_before_the_call_returns(manager):
    weights = np.arange(2_000_000, dtype=np.float32)
    expected = weights.copy()

    handle = manager.save_snapshot({"w": weights}, epoch=1)
    handle.wait_staged()
    weights[:] = -1

    handle.wait()
    assert np.array_equal(manager.load_latest_snapshot()["model_state_dict"]["w"], expected)


def test_one_memory_under_two_names_is_one_array_again(manager):
    shared = np.arange(1000.0)
    state = {"a": shared, "b": shared, "view": shared[:10], "equal": shared.copy()}

    manager.save_snapshot(state, {"master": shared}, 1, wait=True)
    loaded = manager.load_latest_snapshot()
    back = loaded["model_state_dict"]

    assert back["a"] is back["b"] is loaded["optimizer_state_dict"]["master"]
    assert back["equal"] is not back["a"]
    assert same(back, state)


def test_names_that_no_safetensors_file_can_have_come_back(manager, tmp_path):
    state = {
        "__metadata__": np.ones(1),
        "a.b": np.ones(2),
        "a": {"b": np.ones(3), "\udcff": np.ones(4)},
        "x" * 5000: np.ones(5),
        1: np.ones(6),
        "1": np.ones(7),
    }

    manager.save_snapshot(state, epoch=1, wait=True)

    assert same(manager.load_latest_snapshot()["model_state_dict"], state)
    ciuic("--store", manager._path, "restore", "-s", "latest", "-p", "/state", "-d", tmp_path)
    safetensors = pytest.importorskip("safetensors.numpy")
    found = safetensors.load_file(tmp_path / "state/weights.safetensors")
    assert sorted(map(len, found.values())) == [1, 2, 3, 4, 5, 6, 7]


def test_random_numbers_go_on_where_they_were(manager):
    random.seed(7)
    np.random.seed(7)
    random.gauss(0, 1)
    np.random.normal()
    manager.save_snapshot({}, epoch=1, wait=True)
    expected = random.random(), random.gauss(0, 1), np.random.normal(), np.random.rand()
    random.seed(1)
    np.random.seed(1)

    manager.load_latest_snapshot().restore_rng()

    assert (random.random(), random.gauss(0, 1), np.random.normal(), np.random.rand()) == expected


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (b"not JSON", CorruptionError),
        (b"[]", CorruptionError),
        (b'{"format": 2}', UnknownFormatError),
        (b'{"format": 1, "versions": {}, "state": {"epoch": {"$": "new"}}}', UnknownFormatError),
        (b'{"format": 1, "versions": {}, "state": {"epoch": {"$": "tuple"}}}', CorruptionError),
        (
            b'{"format": 1, "versions": {}, "state": {"a": {"$": "numpy.ndarray",'
            b' "file": "../../etc/passwd", "name": "a", "dtype": "<f4", "shape": [1]}}}',
            CorruptionError,
        ),
    ],
    ids=["text", "list", "later", "unknown", "short", "hostile"],
)
def test_a_state_of_a_wrong_version_or_form_is_refused(box, document, error):
    from ciuic.snapshot.memory import MemoryFile, MemoryRequest, take_from_memory
    from ciuic.store.store import open_store

    request = MemoryRequest((MemoryFile(b"state.json", (document,)),), tags=("full",))
    with open_store(str(box.store), write=True) as store:
        taken = take_from_memory(store, request, clock=box.clock)

    with SnapshotManager(box.store) as manager, pytest.raises(error):
        manager.load_snapshot(taken.id)
    with SnapshotManager(box.store) as manager, pytest.raises(CorruptionError, match=taken.id):
        manager.load_latest_snapshot()


def test_importing_the_manager_does_not_import_torch():
    program = (
        "import sys, ciuic; assert 'numpy' not in sys.modules\n"
        "from ciuic import SnapshotManager\n"
        "assert not {'torch', 'click', 'pydantic', 'rich'} & set(sys.modules), sys.modules\n"
        "try:\n    ciuic.Missing\nexcept AttributeError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "no attribute 'Missing'" in done.stdout
    assert Path(SnapshotManager.__module__.replace(".", "/")).name == "manager"


def of_package(name):
    """Return an element type that numpy itself lacks, as the arrays of JAX and of Keras have it."""
    try:
        import ml_dtypes
    except ImportError:
        pytest.skip("needs ml_dtypes")
    return np.dtype(getattr(ml_dtypes, name))


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("bfloat16", "BF16"),
        ("float8_e5m2", "F8_E5M2"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e8m0fnu", "F8_E8M0"),
        ("float8_e4m3fnuz", "U8"),
        ("int4", "U8"),
    ],
)
def test_arrays_of_types_that_numpy_lacks_come_back_with_their_type(manager, name, stored):
    dtype = of_package(name)
    array = np.arange(6).reshape(2, 3).astype(dtype)
    manager.save_snapshot({"w": array, "turned": array.T, "one": array[1, 2]}, epoch=1, wait=True)

    loaded = manager.load_latest_snapshot()["model_state_dict"]
    assert loaded["w"].dtype == loaded["turned"].dtype == loaded["one"].dtype == dtype
    assert loaded["w"].tobytes() == array.tobytes()
    assert loaded["turned"].tobytes() == array.T.tobytes()
    assert loaded["one"].tobytes() == array[1, 2].tobytes()
    leaf = describe(array)
    assert leaf.stored_dtype == stored
    assert leaf.description["dtype"] == name


@pytest.mark.parametrize("name", ["bfloat16", "finfo", "__name__"])
def test_a_type_that_no_installed_package_has_is_named(monkeypatch, name):
    if name == "bfloat16":
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    scalar = {"$": "numpy.scalar", "dtype": name, "base64": "AAA="}
    with pytest.raises(UnknownFormatError, match=f"type {name} of numpy needs the package ml_dty"):
        read_structure(scalar, lambda _: None)
