"""Too few descriptors are reported, and a store is never taken for an empty one."""

import os
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import ciuic

COMMANDS = (
    ("list", "--machine-readable"),
    ("verify", "--all"),
    ("stats",),
    ("status",),
    ("prune", "--trash", "0", "--dry-run"),
)


@pytest.mark.parametrize("descriptors", [5, 6, 7, 8, 9])
def test_a_store_looks_the_same_or_is_not_read_at_all(box: Box, descriptors: int) -> None:
    (box.source / "file").write_bytes(b"content")
    assert ciuic("--store", box.store, "snapshot", box.source).code == 0

    for command in COMMANDS:
        free = ciuic("--store", box.store, *command)
        limited = ciuic(
            "--store", box.store, *command, wrapper=("prlimit", f"--nofile={descriptors}")
        )

        assert limited.code in {0, 1}, (command, limited.err)
        if limited.code == 0:
            assert limited.out.count("\n") == free.out.count("\n"), command
            assert "0 verified" not in limited.out
        else:
            assert "Too many open files" in limited.err, (command, limited.err)
            assert "ulimit -n" in limited.err


@pytest.mark.parametrize("descriptors", range(5, 15))
def test_a_restore_with_too_few_descriptors_advises_no_other_place(
    box: Box, tmp_path: Path, descriptors: int
) -> None:
    (box.source / "a" / "b").mkdir(parents=True)
    (box.source / "a" / "b" / "file").write_bytes(b"content")
    assert ciuic("--store", box.store, "snapshot", box.source).code == 0
    words = ("restore", "-s", "latest", "-p", box.source, "-d", tmp_path / "out")

    done = ciuic("--store", box.store, *words, wrapper=("prlimit", f"--nofile={descriptors}"))

    assert done.code in {0, 1}, done.err
    assert "another place" not in done.err
    if done.code == 1 and "not restored: " not in done.err:  # else some paths alone
        assert "ulimit -n" in done.err


def test_a_limit_on_file_sizes_is_named_as_what_to_raise(box: Box) -> None:
    (box.source / "file").write_bytes(os.urandom(2_000_000))
    done = ciuic(
        "--store", box.store, "snapshot", box.source, wrapper=("prlimit", "--fsize=1000000")
    )

    assert done.code == 1
    assert "File too large" in done.err
    assert "ulimit -f" in done.err
    assert "disk" not in done.err
