"""A state is copied in the same way, whether its plan is new or from an earlier state."""

import gc
import resource
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic import Layer
from ciuic.errors import ResourceError
from ciuic.training.staging.buffer import StagingBuffer
from ciuic.training.staging.stage import Stager
from tests.kit.small_memory import small_memory

SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 3), (3, 2)])
DTYPES = st.sampled_from(["f4", "f8", "i8", "u1", ">f4", "U2"])


@pytest.fixture
def buffer():
    made = StagingBuffer()
    yield made
    made.close()


@st.composite
def states(draw: st.DrawFn) -> dict[str, object]:
    """Draw a small state; several of its arrays may share all or parts of their memory."""
    memory = np.frombuffer(draw(st.binary(min_size=64, max_size=64)), np.uint8)
    table: dict[str, object] = {}
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True)):
        dtype, shape = np.dtype(draw(DTYPES)), draw(SHAPES)
        size_bytes = int(np.prod(shape)) * dtype.itemsize
        if draw(st.booleans()):
            table[name] = memory[:size_bytes].view(dtype).reshape(shape)
        else:
            table[name] = np.zeros(shape, dtype)
    lists = draw(st.lists(st.just(memory[3:40:3]), max_size=2))
    number = draw(st.sampled_from([0, 1, -0.0, True, "text", None, 10**30]))
    return {"model_state_dict": table, "extra": [number, lists], "epoch": draw(st.integers(0, 99))}


def staged(stager: Stager, buffer: StagingBuffer, state: dict[str, object]) -> dict[str, bytes]:
    """Return the bytes of each file."""
    files = stager.stage(state)
    memory = buffer.reserve(0)
    return {
        file.name: b"".join(
            memory[begin : begin + length].tobytes() for begin, length in file.parts
        )
        for file in files
    }


@given(st.lists(states(), min_size=2, max_size=5))
def test_an_earlier_plan_changes_no_byte(drawn: list[dict[str, object]]) -> None:
    shared, alone = StagingBuffer(), StagingBuffer()
    stager = Stager(shared)
    # Each state twice: at least the second time, the plan of the one before fits.
    for state in [state for state in drawn for _ in range(2)]:
        assert staged(stager, shared, state) == staged(Stager(alone), alone, state)
    stager.close()
    shared.close()
    alone.close()


def test_long_arrays_are_copied_in_parts(buffer: StagingBuffer) -> None:
    """Several threads copy 8 MiB each; an array whose bytes are not in order is copied by numpy."""
    chance = np.random.default_rng(7)
    arrays = {
        "long": chance.integers(0, 256, 20_000_003, np.uint8),
        "short": chance.integers(0, 256, 5, np.uint8),
        "turned": chance.random((1500, 700)).T,
        "every second": chance.random(2_000_000)[::2],
        "longer": chance.random(3_000_000).astype(">f8"),
    }

    files = Stager(buffer).stage({"model_state_dict": arrays})

    (weights,) = [file for file in files if file.name == "weights.safetensors"]
    memory = buffer.reserve(0)
    found = [memory[begin : begin + length].tobytes() for begin, length in weights.parts[1:]]
    assert sorted(found) == sorted(array.tobytes() for array in arrays.values())


def test_a_plan_is_used_again_for_other_values(buffer: StagingBuffer, monkeypatch) -> None:
    made = []
    plan = "ciuic.training.staging.stage.make_plan"
    original = __import__("ciuic.training.staging.plan", fromlist=["make_plan"]).make_plan
    monkeypatch.setattr(plan, lambda *given: made.append(1) or original(*given))
    stager = Stager(buffer)
    for number in range(3):
        stager.stage({"model_state_dict": {"w": np.full(5, number)}, "epoch": number})
        stager.stage({"model_state_dict": {"w": np.full(5, number)}})
    assert len(made) == 2


def test_weights_that_are_tied_later_are_stored_once(buffer: StagingBuffer) -> None:
    stager = Stager(buffer)
    apart = {"extra": {"a": np.arange(4), "b": np.arange(4)}}
    one = np.arange(4)
    lengths = [
        sum(length for file in stager.stage(state)[1:] for _, length in file.parts[1:])
        for state in (apart, {"extra": {"a": one, "b": one}}, apart)
    ]
    assert lengths[0] == lengths[2] == 64
    names = [
        staged(Stager(buffer), buffer, state)["state.json"].count(b'"name": "extra.a"')
        for state in (apart, {"extra": {"a": one, "b": one}})
    ]
    assert names == [1, 2]


def test_the_memory_grows_with_the_state(buffer: StagingBuffer) -> None:
    stager = Stager(buffer)
    for length in (10, 3_000_000, 10, 6_000_000):
        state = {"extra": {"small": np.arange(5)}, "metrics": np.arange(length) % 251}
        assert np.arange(5).tobytes() in staged(stager, buffer, state)["extra.safetensors"]
        assert (np.arange(length) % 251).tobytes() in staged(stager, buffer, state)[
            "extra.safetensors"
        ]


def test_no_array_of_a_state_stays_in_memory(buffer: StagingBuffer) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stager = Stager(buffer)
    key = torch.zeros(2)
    trained = torch.ones(3, requires_grad=True)
    state = {"extra": {"a": trained, "keys": {key: torch.ones(3)}}, "x": np.ones(3)}
    dying = [weakref.ref(value) for value in (state["x"], state["extra"]["a"], key)]
    stager.stage({"extra": {"a": state["extra"]["a"]}, "x": state["x"]})
    stager.stage(state)
    del state, key, trained
    gc.collect()
    assert [alive() for alive in dying] == [None, None, None]


def test_a_plan_of_inference_mode_serves_training(buffer: StagingBuffer) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stager = Stager(buffer)
    with torch.inference_mode():
        staged(stager, buffer, {"model_state_dict": {"w": torch.zeros(3)}})
    trained = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    for value in (trained.detach(), trained):
        found = staged(stager, buffer, {"model_state_dict": {"w": value}})
        assert trained.detach().numpy().tobytes() in found["weights.safetensors"]
    with torch.inference_mode():
        found = staged(stager, buffer, {"model_state_dict": {"w": torch.ones(3)}})
    assert np.ones(3, np.float32).tobytes() in found["weights.safetensors"]


def test_a_conjugate_tensor_is_not_its_original(buffer: StagingBuffer) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stager = Stager(buffer)
    value = torch.tensor([1 + 2j, 3 - 4j])
    for state in ({"a": value, "b": value}, {"a": value, "b": value.conj()}):
        found = staged(stager, buffer, {"extra": state})["extra.safetensors"]
    assert value.numpy().tobytes() in found
    assert value.conj().resolve_conj().numpy().tobytes() in found


def test_a_state_that_finds_no_memory_is_refused_and_a_smaller_one_is_copied(buffer):
    """The limit of a file's length is a limit of shared memory as well."""
    stager = Stager(buffer)
    stager.stage({"model_state_dict": {"w": np.ones(300_000)}})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, hard))
    try:
        with pytest.raises(ResourceError, match="limit on file sizes") as refused:
            stager.stage({"model_state_dict": {"w": np.ones(3_000_000)}})
        assert "ulimit -f" in refused.value.hint
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    files = stager.stage({"model_state_dict": {"w": np.full(200_000, 7.0)}})
    parts = {file.name: file.parts for file in files}["weights.safetensors"]
    memory = buffer.reserve(0)
    assert set(memory[parts[-1][0] : sum(parts[-1])].view(np.float64)) == {7.0}


def test_frozen_layers_stay_in_memory_unless_their_places_have_changed(buffer):
    """The full state and the weights alone take turns, and the memory grows meanwhile."""
    stager = Stager(buffer, [Layer("old", "old", frozen=True), Layer("new", "new")])
    old, new = np.arange(900.0), np.arange(900.0)
    model = {"new": new, "old.a": old, "old.b": np.ones(3)}
    full = {"model_state_dict": model, "optimizer_state_dict": {"m": np.zeros(400_000)}}

    def arrays(state, *, copies_frozen):
        files = {file.name: file for file in stager.stage(state, copies_frozen=copies_frozen)}
        memory = buffer.reserve(0)
        found = []
        for name in ("new", "old"):
            begin, length = files[f"weights/{name}.safetensors"].parts[1]
            found.append(memory[begin : begin + length].view(np.float64)[0])
        return (*found, stager.has_copied_frozen)

    # Nothing is in the memory yet, so it is copied even if that was not asked for.
    assert arrays({"model_state_dict": model}, copies_frozen=False) == (0, 0, True)
    old += 1
    new += 1
    assert arrays({"model_state_dict": model}, copies_frozen=False) == (1, 0, False)
    new += 1
    assert arrays(full, copies_frozen=False) == (2, 0, False)
    assert arrays({"model_state_dict": model}, copies_frozen=True) == (2, 1, True)
    old += 1
    assert arrays(full, copies_frozen=False) == (2, 1, False)
    # Another array in the layer moves everything that follows, so all of it is copied.
    model["old.0"] = np.zeros(5)
    assert arrays(full, copies_frozen=False)[2]
    # An array that another layer has as well is not frozen.
    tied = {"model_state_dict": {"new": old, "old.a": old}}
    assert arrays(tied, copies_frozen=False) == (2, 2, True)
    old += 1
    assert arrays(tied, copies_frozen=False) == (3, 3, False)


STATES = """
import sys, numpy as np
from ciuic import SnapshotManager
from ciuic.errors import ResourceError
with open(sys.argv[1], "w") as procs:
    procs.write("0")
# Pages that nothing has written yet take no memory.
with SnapshotManager(sys.argv[2]) as manager:
    manager.save_snapshot({"w": np.zeros(1000)}, epoch=0, wait=True)
    try:
        manager.save_snapshot({"w": np.zeros(60_000_000)}, epoch=1)
    except ResourceError as error:
        print(error.message)
    manager.save_snapshot({"w": np.zeros(1000)}, epoch=2, wait=True)
    print(manager.load_latest_snapshot()["epoch"])
"""


@pytest.mark.root
def test_a_state_that_a_container_has_no_memory_for_does_not_end_the_training(tmp_path):
    with small_memory(300 * 1024 * 1024) as procs:
        done = subprocess.run(
            [sys.executable, "-c", STATES, procs, tmp_path / "store"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "not enough memory to copy a state of 48" in done.stdout
    assert done.stdout.splitlines()[-1] == "2"


LARGE = """
import os, resource, numpy as np
from ciuic.errors import ResourceError
from ciuic.training.staging.buffer import StagingBuffer
# If the room were not asked for, this limit would keep the machine's memory from being taken.
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
swap_bytes = sum(int(line.split()[2]) * 1024 for line in open("/proc/swaps").readlines()[1:])
try:
    StagingBuffer().reserve(machine_bytes + swap_bytes)
except ResourceError as error:
    print(error.message, "|", error.__cause__)
"""


def test_a_state_that_the_machine_has_no_memory_for_takes_none():
    done = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "not enough memory to copy a state of" in done.stdout
    assert "there is room for" in done.stdout


OPEN = """
import os, resource, sys
import numpy as np
from ciuic import SnapshotManager
from ciuic.errors import CiuicError
manager = SnapshotManager(sys.argv[1])
manager.save_snapshot({"w": np.ones(9)}, step=1, wait=True)
manager.close()
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
refused = set()
while True:
    try:
        with SnapshotManager(sys.argv[1]) as manager:
            manager.save_snapshot({"w": np.ones(300_000)}, step=2, wait=True)
            assert manager.load_latest_snapshot()["step"] == 2
        break
    except CiuicError as error:
        refused.add((error.message, error.hint))
    os.close(held.pop())
for fd in held:
    os.close(fd)
assert len(os.listdir("/proc/self/fd")) == before
for message, hint in refused:
    print(message, "|", hint)
"""


def test_a_limit_on_open_files_is_named_wherever_a_save_reaches_it(tmp_path):
    """A refusal leaves no file open. With enough free descriptors, the program saves."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, tmp_path / "store"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert any("snapshots cannot be started: too many files are open" in one for one in said)
    for one in said:
        assert one.partition(" | ")[2].startswith("Raise the limit (ulimit -n, "), one
