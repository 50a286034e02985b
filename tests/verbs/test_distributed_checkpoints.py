"""Snapshots of distributed checkpoints: the delta base of a tensor has the same name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ciuic.formats.names import NAMES_BYTES_MAX
from tests.kit.box import Box
from tests.kit.distributed import distributed

SIZE = 256 * 1024
FILE = "__0_0.distcp"

State = dict[str, bytes]


def state(names: str = "abcdef") -> State:
    """A state in which no part resembles another."""
    return {f"layer.{name}": os.urandom(SIZE) for name in names}


def stepped(old: State) -> State:
    """The same state with a little of each part changed."""
    return {name: os.urandom(64) + data[64:] for name, data in old.items()}


def save(directory: Path, *ranks: State) -> None:
    """Write a checkpoint of a file for each rank."""
    directory.mkdir(exist_ok=True)
    files = {f"__{rank}_0.distcp": tensors for rank, tensors in enumerate(ranks)}
    for name, data in distributed(files).items():
        (directory / name).write_bytes(data)


def inserted(old: State) -> State:
    return {"layer.Z": os.urandom(SIZE), **old}


def removed(old: State) -> State:
    return dict(list(old.items())[1:])


def reordered(old: State) -> State:
    return dict(reversed(old.items()))


@pytest.mark.parametrize("change", [inserted, removed, reordered])
def test_a_tensor_follows_the_one_of_its_name_wherever_in_the_file_it_was(
    box: Box, change: Callable[[State], State]
) -> None:
    first = state()
    save(box.source / "step_1", first)
    box.take()
    then = change(stepped(first))
    save(box.source / "step_2", then)
    taken = box.take()
    new = sum([len(data) for name, data in then.items() if name not in first])
    assert taken.new_bytes > len(then) * SIZE
    assert taken.stored_bytes < 1.1 * new + 64 * 1024
    file = box.source / "step_2" / FILE
    assert box.read(file) == file.read_bytes()
    assert box.verify().ok


def test_each_file_of_a_checkpoint_has_names_of_its_own(box: Box) -> None:
    ranks = [state(), state()]
    save(box.source / "step_1", *ranks)
    box.take()
    save(box.source / "step_2", *[reordered(stepped(one)) for one in ranks])
    assert box.take().stored_bytes < 128 * 1024


def test_the_file_with_the_names_is_read_once_for_each_directory(box: Box) -> None:
    ranks = [state("a") for _ in range(9)]
    save(box.source / "step_1", *ranks)
    box.take()
    # Padding: the pickle ends before the file does.
    save(box.source / "step_2", *[stepped(one) for one in ranks])
    metadata = box.source / "step_2" / ".metadata"
    metadata.write_bytes(metadata.read_bytes() + bytes(SIZE))
    files = sum([one.stat().st_size for one in metadata.parent.iterdir()])
    taken = box.take()
    assert taken.stored_bytes < 128 * 1024
    # Once as a file like others, and once more for the names.
    assert files + SIZE < taken.read_bytes < files + 1.5 * SIZE


def gone(metadata: Path) -> None:
    metadata.unlink()


def nonsense(metadata: Path) -> None:
    metadata.write_bytes(b"\x80\x05" + os.urandom(5000))


def too_long(metadata: Path) -> None:
    metadata.write_bytes(metadata.read_bytes() + bytes(NAMES_BYTES_MAX))


def pipe(metadata: Path) -> None:
    metadata.unlink()
    os.mkfifo(metadata)


def elsewhere(metadata: Path) -> None:
    other = metadata.rename(metadata.with_name("other"))
    metadata.symlink_to(other)


def of_another_save(metadata: Path) -> None:
    files = {FILE: reordered(state()), "__1_0.distcp": state()}
    metadata.write_bytes(distributed(files)[".metadata"])


def of_another_file(metadata: Path) -> None:
    metadata.write_bytes(distributed({"__7_0.distcp": state()})[".metadata"])


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("spoil", [gone, nonsense, too_long, pipe, elsewhere, of_another_file])
def test_without_names_on_both_sides_tensors_follow_each_other_in_their_order(
    box: Box, spoil: Callable[[Path], None], step: int
) -> None:
    first = state()
    for number, tensors in ((1, first), (2, stepped(first))):
        directory = box.source / f"step_{number}"
        save(directory, tensors)
        if number == step:
            spoil(directory / ".metadata")
        taken = box.take()
    assert taken.stored_bytes < 64 * 1024
    file = box.source / "step_2" / FILE
    assert box.read(file) == file.read_bytes()
    assert box.verify().ok


@pytest.mark.parametrize("step", [1, 2])
def test_names_that_take_too_long_to_read_are_not_read(box: Box, step: int) -> None:
    first = state()
    for number, tensors in ((1, first), (2, reordered(stepped(first)))):
        directory = box.source / f"step_{number}"
        save(directory, tensors)
        if number == step:
            too_long(directory / ".metadata")
        taken = box.take()
    # Otherwise, each of the six would have been found.
    assert taken.stored_bytes > 5 * SIZE


def test_wrong_names_cost_differences_and_nothing_else(box: Box) -> None:
    first = state()
    save(box.source / "step_1", first)
    box.take()
    save(box.source / "step_2", stepped(first))
    of_another_save(box.source / "step_2" / ".metadata")
    box.take()
    file = box.source / "step_2" / FILE
    assert box.read(file) == file.read_bytes()
    assert box.verify().ok
