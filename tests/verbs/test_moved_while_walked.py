"""Names that move while a snapshot walks the directories: none is lost without a word."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ciuic.model import CONSISTENT
from ciuic.snapshot.walk.read_queue import ReadQueue
from ciuic.snapshot.walk.second_look import SecondLook
from ciuic.snapshot.walk.visitor import Visitor
from ciuic.source.directory import DirectoryHandle
from ciuic.source.faults import CHANGED_TYPE
from ciuic.store.packs.writer import StoreWriter
from tests.kit.box import Box

MODEL = os.urandom(100_000)


def at_listing(
    monkeypatch: pytest.MonkeyPatch, place: Path, action: Callable[[], object], *, times: int = 1
) -> None:
    """Call ``action`` each of the first times that ciuic has listed a directory."""
    names, left = DirectoryHandle.names, [times]

    def listed(handle: DirectoryHandle) -> list[bytes]:
        found = names(handle)
        if handle.path == os.fsencode(place) and left[0]:
            left[0] -= 1
            action()
        return found

    monkeypatch.setattr(DirectoryHandle, "names", listed)


def checkpoints(box: Box) -> tuple[Path, Path, Path]:
    """Make three directories, which are walked in this order; the last one has a checkpoint."""
    first, middle, last = (box.source / name for name in ("a", "m", "z"))
    for directory in (first, middle, last):
        directory.mkdir()
    (first / "old.pt").write_bytes(b"old")
    (middle / "log").write_bytes(b"log")
    (last / "ckpt").mkdir()
    (last / "ckpt" / "model").write_bytes(MODEL)
    return first, middle, last


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_directory_that_moves_to_one_that_was_listed_is_captured_there(
    live_box: Box, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    first, middle, last = checkpoints(live_box)
    for _ in range(earlier):
        live_box.take()
    at_listing(monkeypatch, middle, lambda: (last / "ckpt").rename(first / "ckpt"))

    report = live_box.take()

    assert live_box.read(first / "ckpt" / "model") == MODEL
    assert live_box.read(first / "old.pt") == b"old"
    assert live_box.read(middle / "log") == b"log"
    assert report.trouble == ()
    assert report.files == 3
    assert live_box.ciuic("verify", "--checksum").code == 0


def test_a_name_that_is_replaced_after_it_was_captured_is_captured_again(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, last = checkpoints(live_box)
    (first / "best").symlink_to("old.pt")
    (last / "best").symlink_to("new.pt")
    at_listing(monkeypatch, middle, lambda: (last / "best").replace(first / "best"))

    report = live_box.take()

    assert live_box.entries()[os.fsencode(first / "best")].content == b"new.pt"
    assert report.trouble_count == 0
    assert report.files == 3
    assert report.logical_bytes == len(MODEL) + len(b"old") + len(b"log")


def test_a_name_that_is_renamed_before_it_is_captured_is_found_by_its_new_name(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, last = checkpoints(live_box)
    (last / "tmp").mkdir()
    (last / "tmp" / "model").write_bytes(MODEL[::-1])
    at_listing(monkeypatch, last, lambda: (last / "tmp").rename(last / "final"))

    report = live_box.take()

    assert live_box.read(last / "final" / "model") == MODEL[::-1]
    assert [warning.path for warning in report.trouble] == [os.fsencode(last / "tmp")]


def test_what_was_captured_stays_if_it_is_gone_when_its_directory_is_listed_again(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, last = checkpoints(live_box)

    (first / "best").symlink_to("old.pt")

    def move() -> None:
        (last / "ckpt").rename(first / "ckpt")
        (first / "best").unlink()

    at_listing(monkeypatch, middle, move)

    live_box.take()

    assert live_box.read(first / "ckpt" / "model") == MODEL
    assert live_box.entries()[os.fsencode(first / "best")].content == b"old.pt"


def before_call(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    owner: type,
    action: Callable[[], object],
    *,
    number: int,
    about: bytes | None = None,
) -> None:
    """Call ``action`` before a call of a method, the nth of those with an argument."""
    original, left = getattr(owner, method), [number]

    def called(*arguments: object, **named: object) -> object:
        if about is None or about in arguments:
            left[0] -= 1
            if left[0] == 0:
                action()
        return original(*arguments, **named)

    monkeypatch.setattr(owner, method, called)


@pytest.mark.parametrize("is_read_later", [False, True])
def test_what_was_captured_stays_if_what_replaces_it_vanishes(
    live_box: Box, monkeypatch: pytest.MonkeyPatch, is_read_later: bool
) -> None:
    first, _, last = checkpoints(live_box)
    best, new = first / "best", live_box.directory / "new"
    best.write_bytes(b"captured")
    new.write_bytes(b"never captured")
    last.chmod(0o700)  # as if a name had left it
    before_call(monkeypatch, "find", SecondLook, lambda: new.replace(best), number=1)
    if is_read_later:
        before_call(monkeypatch, "release", ReadQueue, best.unlink, number=2)
    else:
        before_call(monkeypatch, "visit", Visitor, best.unlink, number=2, about=b"best")

    report = live_box.take()

    assert live_box.read(best) == b"captured"
    assert [warning.path for warning in report.trouble] == [os.fsencode(best)]
    assert "vanished" in report.trouble[0].what
    assert report.files == 4
    assert report.logical_bytes == len(MODEL) + len(b"captured") + len(b"old") + len(b"log")
    assert live_box.ciuic("verify", "--checksum").code == 0


def test_a_name_that_leaves_a_directory_found_at_the_second_look_is_captured(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, last = checkpoints(live_box)
    listed = [0]

    def move() -> None:
        listed[0] += 1
        if listed[0] == 2:
            (first / "ckpt" / "model").rename(first / "model")

    at_listing(monkeypatch, middle, lambda: (last / "ckpt").rename(first / "ckpt"))
    at_listing(monkeypatch, first, move, times=2)

    report = live_box.take()

    assert live_box.read(first / "model") == MODEL
    assert report.trouble == ()


def test_a_name_that_moves_to_a_directory_of_a_very_long_path_is_captured(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, last = checkpoints(live_box)
    fd = os.open(first, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("n" * 200, dir_fd=fd)
        inner = os.open("n" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    try:
        move = lambda: os.rename(last / "ckpt", "ckpt", dst_dir_fd=fd)  # noqa: E731
        at_listing(monkeypatch, middle, move)
        report = live_box.take()
    finally:
        os.close(fd)

    assert [path for path in live_box.entries() if path.endswith(b"/ckpt/model")]
    assert report.trouble == ()


@pytest.mark.parametrize("is_read_later", [False, True])
def test_what_was_captured_stays_if_what_replaces_it_cannot_be_read(
    live_box: Box, monkeypatch: pytest.MonkeyPatch, is_read_later: bool
) -> None:
    first, _, last = checkpoints(live_box)
    best, new = first / "best", live_box.directory / "new"
    best.write_bytes(b"captured")
    last.chmod(0o700)  # as if a name had left it

    def replace() -> None:
        best.unlink()
        new.rename(best)

    def no_file_any_more() -> None:
        best.unlink()
        best.symlink_to("old.pt")

    before_call(monkeypatch, "find", SecondLook, replace, number=1)
    if is_read_later:
        new.write_bytes(b"never captured")
        before_call(monkeypatch, "release", ReadQueue, no_file_any_more, number=2)
    else:
        new.mkdir()
        failing(monkeypatch, "child", lambda _, name: name == b"best")

    report = live_box.take()

    assert live_box.read(best) == b"captured"
    assert [warning.path for warning in report.trouble] == [os.fsencode(best)]
    assert report.files == 4
    assert report.logical_bytes == len(MODEL) + len(b"captured") + len(b"old") + len(b"log")
    assert live_box.ciuic("verify", "--checksum").code == 0


def failing(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    is_broken: Callable[[DirectoryHandle, bytes], bool],
) -> None:
    """Let a method of directories fail as on a broken disk, for some directories and names."""
    original = getattr(DirectoryHandle, method)

    def called(handle: DirectoryHandle, *name: bytes) -> object:
        if is_broken(handle, *name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(handle, *name)

    monkeypatch.setattr(DirectoryHandle, method, called)


@pytest.mark.parametrize(
    ("method", "name", "broken"),
    [("names", b"", "a"), ("child", b"a", "a"), ("status", b"a", "a"), ("names", b"", "")],
)
def test_a_directory_that_cannot_be_listed_again_gets_one_warning(
    live_box: Box, monkeypatch: pytest.MonkeyPatch, method: str, name: bytes, broken: str
) -> None:
    first, middle, last = checkpoints(live_box)
    second_look: list[bool] = []
    failing(
        monkeypatch,
        method,
        lambda handle, *names: (
            bool(second_look)
            and os.fsencode(live_box.source / broken) == b"/".join([handle.path, *names])
        ),
    )

    def move() -> None:
        (last / "ckpt").rename((live_box.source / broken) / "ckpt")

    at_listing(monkeypatch, middle, move)
    before_call(monkeypatch, "find", SecondLook, lambda: second_look.append(True), number=1)

    report = live_box.take()

    assert [(warning.path, warning.what) for warning in report.trouble] == [
        (
            os.fsencode(live_box.source / broken),
            "could not be listed again: Input/output error; "
            "what was moved into it meanwhile may be missing",
        )
    ]
    assert live_box.read(first / "old.pt") == b"old"
    assert live_box.read(middle / "log") == b"log"
    assert live_box.ciuic("verify", "--checksum").code == 0


def test_a_captured_name_that_cannot_be_looked_at_again_stays_with_a_warning(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, last = checkpoints(live_box)
    second_look: list[bool] = []
    failing(monkeypatch, "status", lambda _, name: bool(second_look) and name == b"old.pt")
    at_listing(monkeypatch, middle, lambda: (last / "ckpt").rename(first / "ckpt"))
    before_call(monkeypatch, "find", SecondLook, lambda: second_look.append(True), number=1)

    report = live_box.take()

    assert live_box.read(first / "ckpt" / "model") == MODEL
    assert live_box.read(first / "old.pt") == b"old"
    assert [(warning.path, warning.what) for warning in report.trouble] == [
        (
            os.fsencode(first / "old.pt"),
            "could not be looked at again: Input/output error; "
            "the snapshot has what was captured before",
        )
    ]


def test_a_name_that_moves_to_the_top_of_a_root_that_is_a_symlink_is_captured_there(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, last = checkpoints(live_box)
    link = live_box.directory / "link"
    link.symlink_to(live_box.source)
    move = (last / "ckpt").rename
    at_listing(monkeypatch, link / "m", lambda: move(live_box.source / "ckpt"))

    report = live_box.take(link)

    assert live_box.read(link / "ckpt" / "model") == MODEL
    assert report.trouble == ()
    assert report.files == 3


def test_a_directory_that_is_elsewhere_each_time_leaves_a_warning(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, last = checkpoints(live_box)
    names = DirectoryHandle.names

    def listed(handle: DirectoryHandle) -> list[bytes]:
        away = {os.fsencode(first): last, os.fsencode(last): first}.get(handle.path)
        if away is not None and not (away / "ckpt").exists():
            (Path(os.fsdecode(handle.path)) / "ckpt").rename(away / "ckpt")
        return names(handle)

    monkeypatch.setattr(DirectoryHandle, "names", listed)

    report = live_box.take()

    assert not [path for path in live_box.entries() if path.endswith(b"/ckpt")]
    assert report.trouble_count >= 1
    assert {warning.path for warning in report.trouble} <= {
        os.fsencode(first),
        os.fsencode(last),
    }
    assert all("moved into it" in warning.what for warning in report.trouble)


def test_files_that_come_into_one_directory_all_the_time_are_no_trouble(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, last = checkpoints(live_box)
    at_listing(monkeypatch, last, lambda: os.close(tempfile.mkstemp(dir=last)[0]), times=99)

    report = live_box.take()

    assert report.trouble_count == 0


def test_a_tree_whose_nodes_are_not_kept_gets_a_warning(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, last = checkpoints(live_box)
    monkeypatch.setattr(StoreWriter, "keep_trees", lambda _: None)
    at_listing(monkeypatch, middle, lambda: (last / "ckpt").rename(first / "ckpt"))

    report = live_box.take()

    assert [warning.path for warning in report.trouble] == [os.fsencode(first)]


def test_a_directory_of_many_names_keeps_them_all_when_it_is_listed_again(
    live_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, last = checkpoints(live_box)
    for number in range(3_000):
        (first / f"shard-{number}").write_bytes(b"%d" % number)
    shutil.copytree(last / "ckpt", first / "sub")
    at_listing(monkeypatch, middle, lambda: (last / "ckpt").rename(first / "sub" / "ckpt"))

    report = live_box.take()

    entries = live_box.entries()
    assert report.files == 3_004
    assert len([path for path in entries if b"/shard-" in path]) == 3_000
    assert entries[os.fsencode(first / "shard-77")].state == CONSISTENT
    assert live_box.read(first / "sub" / "ckpt" / "model") == MODEL


@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize("moment", ["walk", "reading"])
@pytest.mark.parametrize("successor", ["file", "link"])
def test_a_checkpoint_whose_name_has_another_one_by_then_is_found_where_it_went(
    live_box: Box, monkeypatch: pytest.MonkeyPatch, earlier: int, moment: str, successor: str
) -> None:
    """As programs rotate their checkpoints: no name is ever missing."""
    archive, latest = live_box.source / "archive", live_box.source / "latest.pt"
    archive.mkdir()
    (archive / "x").write_bytes(b"x")
    latest.write_bytes(MODEL)
    for _ in range(earlier):
        live_box.take()
    new = live_box.source / "latest.tmp"

    def rotate() -> None:
        if successor == "file":
            new.write_bytes(MODEL[::-1])
        else:
            new.symlink_to("archive/previous.pt")
        latest.rename(archive / "previous.pt")
        new.rename(latest)

    if moment == "walk":
        before_call(monkeypatch, "visit", Visitor, rotate, number=1, about=b"x")
    else:
        before_call(monkeypatch, "release", ReadQueue, rotate, number=1)
    report = live_box.take()

    if (earlier, moment) == (1, "reading"):
        # All is as the snapshot before has it, so nothing is opened.
        assert live_box.read(latest) == MODEL
        assert report.trouble_count == 0
        return
    assert live_box.read(archive / "previous.pt") == MODEL
    if (successor, moment) == ("link", "reading"):
        assert [warning.what for warning in report.trouble] == [CHANGED_TYPE]
    else:
        assert live_box.entries()[os.fsencode(latest)].is_file == (successor == "file")
        assert report.trouble_count == 0
