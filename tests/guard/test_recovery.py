"""``ciuic recover``: which files are broken, what replaces them, and what stays as it is."""

import gzip
import os
import pickle
import subprocess
from pathlib import Path

import pytest

from ciuic.maintain.label import change_tags
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.filesystems import disk
from tests.kit.program import as_nobody
from tests.kit.tensors import safetensors, saved, torch_zip
from tests.kit.trees import photograph

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def model(letter: bytes, size_bytes: int = 200_000) -> bytes:
    return safetensors({"w": letter * size_bytes})


def cut(path: Path) -> bytes:
    """Cut a file, as a program that dies while it writes leaves it; returns the rest."""
    left = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(left)
    return left


def take(box: Box, *more: str) -> str:
    done = box.ciuic("snapshot", "--json", *more)
    assert done.code == 0, done.err
    return str(done.document["id"])


def identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_ctime_ns


def moment(time_ns: int) -> str:
    return f"@{time_ns // 10**9}.{time_ns % 10**9:09d}"


def aside(path: Path, number: int = 1) -> Path:
    return path.parent / f".{path.name}.broken-{number}"


def test_only_the_broken_files_come_back_and_they_are_kept_aside(box: Box) -> None:
    weights, other, log = (box.source / name for name in ("m.safetensors", "o.pt", "train.log"))
    weights.write_bytes(model(b"a"))
    other.write_bytes(torch_zip([b"o" * 5000]))
    first = take(box)
    weights.write_bytes(model(b"b"))
    left = cut(weights)
    other.write_bytes(torch_zip([b"p" * 5000]))
    log.write_bytes(b"step")
    before = {path: identity(path) for path in (other, log)}

    done = box.ciuic("recover", "--json")

    assert done.code == 0, done.err
    (found,) = done.document["broken"]
    assert (found["path"], found["from"]) == (str(weights), first)
    assert found["aside"] == str(aside(weights))
    assert weights.read_bytes() == model(b"a")
    assert aside(weights).read_bytes() == left
    assert {path: identity(path) for path in before} == before
    assert f"{weights} is broken: it is cut short: it has {len(left):,} of" in done.err
    assert sorted(os.listdir(box.source)) == sorted(
        [aside(weights).name, weights.name, other.name, log.name]
    )
    assert box.ciuic("recover", "--json").document["broken"] == []


def follows(box: Box) -> list[dict[str, str]]:
    """Take a snapshot, and return the snapshot that it says it follows."""
    taken = take(box)
    (found,) = [one for one in box.ciuic("list", "--json").document if one["id"] == taken]
    return list(found["follows"])


def test_the_next_snapshot_names_the_one_that_a_version_came_from(box: Box) -> None:
    weights, new = box.source / "m.safetensors", box.source / "n.pt"
    weights.write_bytes(model(b"a"))
    first = take(box)
    weights.write_bytes(model(b"b"))
    take(box)
    flip_content(box.store, model(b"b"))
    cut(weights)
    new.write_bytes(torch_zip([b"n" * 5000])[:-100])
    assert box.ciuic("recover", "--dry-run").code == 3
    assert follows(box) == []

    assert box.ciuic("recover", "--since", "@0").code == 3

    assert follows(box) == [{"path": str(weights), "snapshot": first}], "the other is moved aside"
    assert follows(box) == []
    (newest, *_) = box.ciuic("log", weights, "--json").document
    assert newest["before"] == first


def test_a_dry_run_shows_the_plan_and_changes_nothing(box: Box) -> None:
    weights = box.source / "m.safetensors"
    weights.write_bytes(model(b"a"))
    first = take(box)
    cut(weights)
    before = photograph(box.source)

    done = box.ciuic("recover", "--dry-run")

    assert done.code == 0
    assert first in done.out
    assert "nothing was changed" in done.out
    assert photograph(box.source) == before


def test_the_newest_valid_version_is_taken(box: Box) -> None:
    """In newer snapshots it is torn, newer than a fault, or damaged in the store."""
    weights = box.source / "m.safetensors"
    for letter in (b"a", b"b", b"c", b"d"):
        weights.write_bytes(model(letter))
        take(box, "--tag", letter.decode())
    cut(weights)
    take(box, "--tag", "emergency")
    ids = {one.tags[0]: one.id for one in box.snapshots()}
    with open_store(str(box.store), write=True) as store:
        change_tags(store, ids["d"], add=("suspect",))
    flip_content(box.store, model(b"c"))

    done = box.ciuic("recover", "--json")

    assert done.code == 0, done.err
    (found,) = done.document["broken"]
    assert found["from"] == ids["b"]
    assert weights.read_bytes() == model(b"b")


def test_a_version_whose_checksum_is_wrong_is_passed_over(box: Box) -> None:
    state = box.source / "o.pt"
    state.write_bytes(torch_zip([b"x" * 300_000]))
    good = take(box)
    data = bytearray(torch_zip([b"y" * 300_000]))
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    take(box)
    cut(state)

    done = box.ciuic("recover", "--json")

    assert [found["from"] for found in done.document["broken"]] == [good]
    assert state.read_bytes() == torch_zip([b"x" * 300_000])


def test_a_broken_file_that_no_snapshot_has_is_moved_aside(box: Box) -> None:
    (box.source / "a").write_bytes(b"a")
    take(box)
    new = box.source / "step_500.pt"
    new.write_bytes(torch_zip([b"n" * 9000]))
    left = cut(new)
    aside(new).write_bytes(b"of an earlier time")

    done = box.ciuic("recover")

    assert done.code == 3
    assert "no snapshot has a valid version" in done.out
    assert not new.exists()
    assert aside(new).read_bytes() == b"of an earlier time"
    assert aside(new, 2).read_bytes() == left


NOISE = bytes(range(1, 256)) * 40
"""Bytes of no format."""


def test_what_was_a_checkpoint_and_is_in_no_known_format_comes_back(box: Box) -> None:
    """A snapshot that has it as noise has no valid version; a pickle may have replaced another."""
    names = ("a.pt", "b.ckpt", "c.pth", "d.pt", "tokens.bin", "log")
    first, legacy, pickled, fresh, tokens, log = (box.source / name for name in names)
    for path in (first, pickled):
        path.write_bytes(torch_zip([b"x" * 9000]))
    legacy.write_bytes(saved("state.legacy.pt"))
    tokens.write_bytes(b"tokens" * 900)
    good = take(box)
    since = ("--since", moment(first.stat().st_ctime_ns))
    for path in (first, legacy, fresh):
        path.write_bytes(NOISE)
    pickled.write_bytes(pickle.dumps({"step": 1}))
    tokens.write_bytes(bytes(3000) + NOISE)
    log.write_bytes(b"step")
    take(box)

    plan = box.ciuic("recover", *since, "--dry-run", "--json").document
    assert (plan["checked"], plan["not_judged"]) == (6, 4)
    done = box.ciuic("recover", *since)

    assert done.code == 0, done.err
    assert f"{first} is broken: an older version is a sound checkpoint, and this one" in done.out
    assert "2 files were put back" in done.out
    assert done.out.endswith("; 4 files in no known format, not judged\n")
    assert [(found["path"], found["from"]) for found in plan["broken"]] == [
        (str(first), good),
        (str(legacy), good),
    ]
    assert first.read_bytes() == torch_zip([b"x" * 9000])
    assert legacy.read_bytes() == saved("state.legacy.pt")
    assert aside(first).read_bytes() == NOISE
    assert fresh.read_bytes() == NOISE, "it has never been a checkpoint"
    assert tokens.read_bytes() == bytes(3000) + NOISE
    again = box.ciuic("recover", *since, "--json").document
    assert (again["broken"], again["not_judged"]) == ([], 4)


def test_a_version_in_no_known_format_is_used_only_if_there_is_no_other(box: Box) -> None:
    known, other = box.source / "a.pt", box.source / "b.ckpt"
    known.write_bytes(torch_zip([b"x" * 9000]))
    other.write_bytes(NOISE)
    take(box)
    known.write_bytes(NOISE)
    other.write_bytes(NOISE[::-1])
    take(box)
    known.write_bytes(b"")
    other.write_bytes(b"")

    assert box.ciuic("recover").code == 0
    assert known.read_bytes() == torch_zip([b"x" * 9000])
    assert other.read_bytes() == NOISE[::-1]


def test_what_a_program_still_writes_is_not_broken_by_its_format(box: Box) -> None:
    states = [box.source / name for name in ("a.pt", "b.pt")]
    for state in states:
        state.write_bytes(torch_zip([b"x" * 9000]))
    take(box)
    states[0].write_bytes(NOISE)
    until_ns = states[0].stat().st_ctime_ns
    while states[1].write_bytes(NOISE) and states[1].stat().st_ctime_ns <= until_ns:
        pass

    with states[0].open("r+b"):
        done = box.ciuic("recover", "--until", moment(until_ns), "--json").document

    assert (done["broken"], done["not_judged"]) == ([], 2)
    assert [state.read_bytes() for state in states] == [NOISE, NOISE]


def test_what_a_user_names_is_looked_at_whenever_it_changed(box: Box) -> None:
    """The daemon took the broken file an hour ago: a newer snapshot does not make it whole."""
    weights, state = box.source / "m.safetensors", box.source / "o.pt"
    weights.write_bytes(model(b"a"))
    state.write_bytes(torch_zip([b"x" * 300_000]))
    first = take(box)
    cut(weights)
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    take(box)

    done = box.ciuic("recover", "--dry-run")
    assert "0 files looked at (those that changed since 20" in done.out
    assert "; --since TIME looks further back), none is broken" in done.out
    below = box.ciuic("recover", box.source, "--dry-run", "--json").document["broken"]
    assert [(found["path"], found["from"]) for found in below] == [(str(weights), first)]
    late = ("--since", "2999-01-01 00:00")
    named = box.ciuic("recover", weights, state, *late, "--json")
    assert [found["from"] for found in named.document["broken"]] == [first, first], named.err
    assert weights.read_bytes() == model(b"a")
    assert state.read_bytes() == torch_zip([b"x" * 300_000])


def test_files_of_other_programs_and_of_other_times_stay(box: Box) -> None:
    """One is open for writing, one changed after the job had ended, one before it began."""
    names = ("early.pt", "late.pt", "open.pt", "mine.pt")
    early, late, opened, mine = (box.source / name for name in names)
    early.write_bytes(torch_zip([b"x" * 9000])[:4000])
    since_ns = early.stat().st_ctime_ns + 1
    take(box)
    opened.write_bytes(torch_zip([b"x" * 9000])[:4000])
    mine.write_bytes(torch_zip([b"x" * 9000])[:4000])
    until_ns = mine.stat().st_ctime_ns
    while late.write_bytes(torch_zip([b"x" * 9000])[:4000]) and (
        late.stat().st_ctime_ns <= until_ns
    ):
        pass
    with opened.open("r+b"):
        done = box.ciuic(
            "recover", "--since", moment(since_ns), "--until", moment(until_ns), "--json"
        )

    assert [found["path"] for found in done.document["broken"]] == [str(mine)]
    assert {found["path"] for found in done.document["left_alone"]} == {str(late), str(opened)}
    assert all(path.exists() for path in (early, late, opened))


@ROOT
def test_a_file_that_cannot_be_replaced_stays_and_is_named(public_box: Box) -> None:
    weights = public_box.source / "m.safetensors"
    weights.write_bytes(model(b"a"))
    take(public_box)
    left = cut(weights)
    subprocess.run(["chmod", "-R", "a+rX", public_box.store], check=True)

    done = public_box.ciuic("recover", user=as_nobody())

    assert done.code == 1, done.err
    assert f"{weights} stays broken: " in done.out
    assert "ermission denied" in done.out
    assert weights.read_bytes() == left
    assert os.listdir(public_box.source) == [weights.name]


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_the_state_before_a_failure_comes_back_as_a_reflink_copy(kind: str, tmp_path: Path) -> None:
    """An emergency snapshot leaves the reflink copies of the snapshot before it."""
    with disk(kind, tmp_path / "disks") as mounted:
        directory = mounted.path / "box"
        directory.mkdir()
        box = Box(directory)
        weights = box.source / "m.safetensors"
        weights.write_bytes(model(b"a", 4_000_000))
        first = take(box)
        weights.write_bytes(model(b"b", 4_000_000))
        cut(weights)
        take(box, "--tag", "emergency")
        cut(weights)
        take(box, "--tag", "emergency")

        reused = box.ciuic("restore", "-s", first, "-p", weights, "--as", directory / "x", "--json")
        assert reused.document["cloned_bytes"] == weights_size(first, box, weights)
        assert box.ciuic("recover").code == 0
        assert weights.read_bytes() == model(b"a", 4_000_000)

        take(box)
        reused = box.ciuic("restore", "-s", first, "-p", weights, "--as", directory / "y", "--json")
        assert reused.document["cloned_bytes"] == 0


def weights_size(snapshot: str, box: Box, path: Path) -> int:
    return box.entries(snapshot)[os.fsencode(path)].size_bytes


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--since", "yesterday"], 2, "'yesterday' is not a time"),
        (["--until", "@x"], 2, "'@x' is not a time"),
        (["/nowhere/at/all"], 2, "does not exist"),
        ([], 1, "no snapshot has a version of any file"),
    ],
)
def test_wrong_requests_change_nothing(
    box: Box, arguments: list[str], code: int, said: str
) -> None:
    broken = box.source / "m.safetensors"
    broken.write_bytes(model(b"a")[:1000])
    done = box.ciuic("recover", *arguments)
    assert (done.code, said in done.err) == (code, True), done.err
    assert broken.exists()


def test_a_file_that_no_sound_version_shows_to_have_been_a_checkpoint_stays(box: Box) -> None:
    """The headers of the only version are sound, and one of its members is not."""
    path = box.source / "a.pt"
    content = bytearray(torch_zip([b"x" * 9000, b"y" * 9000]))
    content[content.index(b"x" * 9000) + 500] ^= 1
    path.write_bytes(content)
    take(box)
    path.write_bytes(gzip.compress(b"saved by another program" * 900))

    done = box.ciuic("recover", "--json")

    assert done.code == 0, done
    assert (done.document["broken"], done.document["not_judged"]) == ([], 1)
    assert path.read_bytes() == gzip.compress(b"saved by another program" * 900)
    assert os.listdir(box.source) == ["a.pt"]
