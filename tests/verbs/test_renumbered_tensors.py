"""Snapshots of ``torch.save`` files: the delta base of a tensor has its name, not its number."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ciuic.formats.names import NAMES_BYTES_MAX
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.tensors import torch_zip
from tests.kit.torch_pickles import Pickles, Storage, Tensor, pickles_of_torch

SIZE = 256 * 1024

State = dict[str, bytes]
Save = Callable[..., None]


@pytest.fixture
def save(monkeypatch: pytest.MonkeyPatch) -> Save:
    """Writes a state as ``torch.save`` does: tensors are numbered in their order."""
    dumps: Pickles = pickles_of_torch(monkeypatch)

    def write(path: Path, state: State, *, filling: str = "") -> None:
        tensors = {
            name: Tensor(Storage("FloatStorage", str(number), len(data) // 4), len(data) // 4)
            for number, (name, data) in enumerate(state.items())
        }
        pickle = dumps({"model": tensors, "step": os.getpid(), "filling": filling})
        path.write_bytes(torch_zip(list(state.values()), pickle=pickle))

    return write


def state(names: str = "abcdef") -> State:
    """A state in which no tensor resembles another or has the length of another."""
    return {name: os.urandom(SIZE + 4096 * ord(name)) for name in names}


def stepped(old: State) -> State:
    """The same state with a little of each tensor changed."""
    return {name: os.urandom(64) + data[64:] for name, data in old.items()}


def inserted(old: State) -> State:
    return {**state("Z"), **old}


def removed(old: State) -> State:
    return dict(list(old.items())[1:])


def reordered(old: State) -> State:
    return dict(reversed(old.items()))


def size(some: State) -> int:
    return sum([len(data) for data in some.values()])


@pytest.mark.parametrize("change", [inserted, removed, reordered])
@pytest.mark.parametrize("name", ["last.pt", "step_2.pt", "best.pt", "best.bin"])
def test_a_tensor_follows_the_one_of_its_name(
    box: Box, save: Save, change: Callable[[State], State], name: str
) -> None:
    first = state()
    save(box.source / ("last.pt" if name == "last.pt" else "step_1.pt"), first)
    box.take()
    then = change(stepped(first))
    file = box.source / name
    save(file, then)
    taken = box.take()
    new = size({name: data for name, data in then.items() if name not in first})
    assert taken.new_bytes > size(then)
    assert taken.stored_bytes < 1.1 * new + 128 * 1024
    assert box.read(file) == file.read_bytes()
    assert box.verify().ok


@pytest.mark.parametrize("step", [1, 2])
def test_if_a_pickle_takes_too_long_to_read_the_numbers_of_tensors_count(
    box: Box, save: Save, step: int
) -> None:
    first = state()
    for number, tensors in ((1, first), (2, reordered(stepped(first)))):
        filling = "x" * (NAMES_BYTES_MAX if number == step else 0)
        save(box.source / f"step_{number}.pt", tensors, filling=filling)
        taken = box.take()
    # If it had been read, each tensor would have been found.
    assert taken.stored_bytes > size(first) * 5 // 6
    file = box.source / "step_2.pt"
    assert box.read(file) == file.read_bytes()


@pytest.mark.parametrize("step", [1, 2])
def test_without_names_on_both_sides_the_numbers_count(box: Box, save: Save, step: int) -> None:
    first = state()
    for number, tensors in ((1, first), (2, {**stepped(first), **state("Z")})):
        path = box.source / f"step_{number}.pt"
        save(path, tensors)
        if number == step:
            path.write_bytes(torch_zip(list(tensors.values()), pickle=b"nonsense"))
        taken = box.take()
    assert taken.stored_bytes < 1.1 * size(state("Z")) + 128 * 1024


def test_names_are_read_only_where_numbers_will_not_do(box: Box, save: Save) -> None:
    first = state()
    file = box.source / "last.pt"
    read = []
    for tensors in (first, stepped(first), inserted(stepped(first))):
        save(file, tensors, filling="x" * SIZE)
        read.append(box.take().read_bytes - file.stat().st_size)
    assert read[1] == read[0]
    assert read[1] + SIZE < read[2] < read[1] + 2 * SIZE


def test_names_are_read_once_however_many_files_may_have_the_last_version(
    box: Box, save: Save
) -> None:
    first = state()
    for number in range(4):
        save(box.source / f"{'x' * (number + 1)}.pt", state("ab"[: number % 2 + 1]))
    save(box.source / "part.pt", first)
    box.take()
    file = box.source / "best.pt"
    save(file, inserted(stepped(first)), filling="x" * SIZE)
    taken = box.take()
    assert taken.read_bytes < file.stat().st_size + 1.5 * SIZE
    assert taken.stored_bytes < 1.1 * size(state("Z")) + 128 * 1024


def test_a_last_version_that_is_damaged_is_no_reason_to_fail(box: Box, save: Save) -> None:
    first = state()
    file = box.source / "last.pt"
    save(file, first, filling="x" * SIZE)
    box.take()
    data = file.read_bytes()
    flip_content(box.store, data[: data.index(first["a"])])
    assert not box.verify().ok
    then = inserted(stepped(first))
    save(file, then)
    box.take()
    assert box.read(file) == file.read_bytes()
