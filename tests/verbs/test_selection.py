"""Restoring a part of a path, or under another name: what is written, and what is not."""

import os
import random
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.errors import PathNotFoundError, TargetError, UsageError
from ciuic.restore.selection import Selection, Verdict
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.trees import differences, photograph


def write(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names(directory: Path) -> list[str]:
    """Every path below a directory, directories with a slash."""
    found = []
    for path in directory.rglob("*"):
        is_directory = path.is_dir() and not path.is_symlink()
        found.append(str(path.relative_to(directory)) + "/" * is_directory)
    return sorted(found)


@pytest.fixture
def taken(box: Box) -> Box:
    """Two runs with checkpoints, logs and a directory of samples."""
    for run in ("run1", "run2"):
        write(box.source / run / "ckpt" / "a.pt", b"a")
        write(box.source / run / "ckpt" / "b.pt", b"b")
        write(box.source / run / "ckpt" / "notes.txt", b"n")
        write(box.source / run / "logs" / "out.log", b"l")
        write(box.source / run / "samples" / "1" / "pic.png", b"p")
    (box.source / "run1" / "ckpt" / "latest.pt").symlink_to("a.pt")
    (box.source / "run1" / "empty").mkdir()
    (box.source / "run1" / "ckpt").chmod(0o750)
    os.utime(box.source / "run1" / "ckpt", ns=(10**18, 10**18))
    box.take()
    return box


# Which paths


def test_include_restores_what_it_matches_with_the_directories_on_the_way(
    taken: Box, tmp_path: Path
) -> None:
    report = taken.restore(to=tmp_path / "out", include=("*.pt",))
    assert names(tmp_path / "out" / "source") == [
        "run1/", "run1/ckpt/", "run1/ckpt/a.pt", "run1/ckpt/b.pt", "run1/ckpt/latest.pt",
        "run2/", "run2/ckpt/", "run2/ckpt/a.pt", "run2/ckpt/b.pt",
    ]  # fmt: skip
    assert (report.written_files, report.failed, report.unmatched) == (5, [], [])
    made = (tmp_path / "out" / "source" / "run1" / "ckpt").stat()
    assert stat.S_IMODE(made.st_mode) == 0o750
    assert made.st_mtime_ns == 10**18


def test_an_included_directory_comes_whole(taken: Box, tmp_path: Path) -> None:
    taken.restore(to=tmp_path / "out", include=("samples", "/*/nothing/here"))
    assert names(tmp_path / "out" / "source") == [
        "run1/", "run1/samples/", "run1/samples/1/", "run1/samples/1/pic.png",
        "run2/", "run2/samples/", "run2/samples/1/", "run2/samples/1/pic.png",
    ]  # fmt: skip


def test_exclude_leaves_out_a_match_with_all_below_it(taken: Box, tmp_path: Path) -> None:
    taken.restore(to=tmp_path / "out", exclude=("samples", "*.txt", "run2/logs", "empty"))
    assert names(tmp_path / "out" / "source") == [
        "run1/", "run1/ckpt/", "run1/ckpt/a.pt", "run1/ckpt/b.pt", "run1/ckpt/latest.pt",
        "run1/logs/", "run1/logs/out.log",
        "run2/", "run2/ckpt/", "run2/ckpt/a.pt", "run2/ckpt/b.pt",
    ]  # fmt: skip


def test_exclude_goes_before_include(taken: Box, tmp_path: Path) -> None:
    taken.restore(to=tmp_path / "out", include=("*.pt", "logs"), exclude=("b.pt", "run2"))
    assert names(tmp_path / "out" / "source") == [
        "run1/", "run1/ckpt/", "run1/ckpt/a.pt", "run1/ckpt/latest.pt",
        "run1/logs/", "run1/logs/out.log",
    ]  # fmt: skip


def test_an_absolute_pattern_is_matched_against_the_path_in_the_snapshot(
    taken: Box, tmp_path: Path
) -> None:
    taken.restore(to=tmp_path / "out", include=(f"{taken.source}/*/ckpt/a.*",))
    assert names(tmp_path / "out" / "source") == [
        "run1/", "run1/ckpt/", "run1/ckpt/a.pt", "run2/", "run2/ckpt/", "run2/ckpt/a.pt",
    ]  # fmt: skip


def test_a_pattern_that_matches_a_directory_above_the_path_counts(
    taken: Box, tmp_path: Path
) -> None:
    taken.restore(taken.source / "run1" / "ckpt", to=tmp_path / "out", include=("run1",))
    assert len(names(tmp_path / "out" / "ckpt")) == 4


def test_hard_links_are_joined_again_whichever_names_are_restored(box: Box, tmp_path: Path) -> None:
    write(box.source / "a" / "one.pt", b"shared")
    os.link(box.source / "a" / "one.pt", box.source / "a" / "two.pt")
    os.link(box.source / "a" / "one.pt", box.source / "a" / "a.txt")
    box.take()
    box.restore(to=tmp_path / "out", include=("*.pt",))
    out = tmp_path / "out" / "source" / "a"
    assert names(out) == ["one.pt", "two.pt"]
    assert (out / "one.pt").samefile(out / "two.pt")


# Messages


def test_a_pattern_that_matches_nothing_is_named(taken: Box, tmp_path: Path) -> None:
    report = taken.restore(
        to=tmp_path / "out", include=("*.pt", "*.nope"), exclude=("logs", "*.neither")
    )
    assert report.unmatched == ["--include '*.nope'", "--exclude '*.neither'"]
    assert report.as_json()["unmatched"] == report.unmatched


def test_a_pattern_that_matches_inside_an_included_directory_has_matched(
    taken: Box, tmp_path: Path
) -> None:
    report = taken.restore(to=tmp_path / "out", include=("ckpt", "a.pt"))
    assert report.unmatched == []


@pytest.mark.parametrize("over", [False, True])
def test_patterns_that_leave_nothing_are_refused_and_touch_nothing(
    taken: Box, tmp_path: Path, *, over: bool
) -> None:
    out = tmp_path / "out"
    if over:
        write(out / "source" / "mine", b"mine")
    before = photograph(tmp_path / "out") if over else None
    for include, exclude in [(("*.nope",), ()), ((), (str(taken.source),)), (("logs",), ("run*",))]:
        with pytest.raises(PathNotFoundError, match="leaves nothing of"):
            taken.restore(to=out, include=include, exclude=exclude, overwrite=over, delete=over)
    if before is None:
        assert not out.exists()
    else:
        assert differences(before, photograph(out)) == []


def test_a_range_that_runs_backwards_is_refused(taken: Box, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--exclude: the range"):
        taken.restore(to=tmp_path / "out", exclude=("[z-a]",))


def test_a_dry_run_counts_what_the_restore_does(taken: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out / "source" / "run1" / "ckpt" / "old.pt", b"old")
    asked = {"include": ("*.pt",), "exclude": ("b.pt",), "overwrite": True, "delete": True}
    before = photograph(out)
    planned = taken.restore(to=out, dry_run=True, **asked)  # type: ignore[arg-type]
    assert differences(before, photograph(out)) == []
    done = taken.restore(to=out, **asked)  # type: ignore[arg-type]
    assert (planned.written_files, planned.written_bytes, planned.deleted_files) == (3, 2, 1)
    assert (done.written_files, done.written_bytes, done.deleted_files) == (3, 2, 1)


# Files that stay


def test_overwrite_and_delete_leave_alone_what_the_filter_leaves_out(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "source"
    write(out / "run1" / "ckpt" / "a.pt", b"wrong")
    write(out / "run1" / "ckpt" / "notes.txt", b"my own notes")
    write(out / "run1" / "ckpt" / "extra.txt", b"extra")
    write(out / "run1" / "ckpt" / "extra.pt", b"goes")
    write(out / "run1" / "more" / "extra.pt", b"in a directory that is left out")
    write(out / "run3" / "logs" / "kept", b"kept")
    (out / "run1" / "ckpt").chmod(0o711)
    report = taken.restore(to=tmp_path / "out", include=("*.pt",), overwrite=True, delete=True)
    assert (out / "run1" / "ckpt" / "a.pt").read_bytes() == b"a"
    assert (out / "run1" / "ckpt" / "notes.txt").read_bytes() == b"my own notes"
    assert (out / "run1" / "ckpt" / "extra.txt").read_bytes() == b"extra"
    assert (out / "run1" / "more" / "extra.pt").exists()
    assert (out / "run3" / "logs" / "kept").exists()
    assert not (out / "run1" / "ckpt" / "extra.pt").exists()
    assert report.deleted_files == 1
    assert stat.S_IMODE((out / "run1" / "ckpt").stat().st_mode) == 0o711, "not restored itself"


def test_delete_keeps_what_is_excluded_inside_a_directory_that_goes(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "source"
    write(out / "extra" / "deep" / "out.log", b"kept")
    write(out / "extra" / "deep" / "gone", b"gone")
    for dry_run in (True, False):
        report = taken.restore(
            to=tmp_path / "out", exclude=("*.log",), overwrite=True, delete=True, dry_run=dry_run
        )
        assert report.deleted_files == 1
    assert names(out / "extra") == ["deep/", "deep/out.log"]


def test_a_directory_in_the_place_of_a_file_keeps_what_is_excluded_in_it(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "source" / "run1" / "ckpt" / "a.pt"
    write(out / "out.log", b"kept")
    report = taken.restore(to=tmp_path / "out", exclude=("*.log",), overwrite=True, delete=True)
    assert (out / "out.log").read_bytes() == b"kept"
    assert [os.path.basename(one.path) for one in report.failed] == [b"a.pt"]


@pytest.mark.parametrize("kind", ["file", "symlink"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_file_in_the_way_of_a_match_is_left_alone_and_named(
    taken: Box, tmp_path: Path, kind: str, *, dry_run: bool
) -> None:
    out = tmp_path / "out" / "source"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    way = out / "run1" / "ckpt"
    way.parent.mkdir(parents=True)
    if kind == "file":
        way.write_bytes(b"mine")
    else:
        way.symlink_to(elsewhere)
    report = taken.restore(to=tmp_path / "out", include=("*.pt",), overwrite=True, dry_run=dry_run)
    assert [one.path for one in report.failed] == [os.fsencode(taken.source / "run1" / "ckpt")]
    assert "not a directory in the target" in report.failed[0].what
    assert way.is_symlink() if kind == "symlink" else way.read_bytes() == b"mine"
    assert os.listdir(elsewhere) == []
    assert report.written_files == 2, "the other run came"


def test_without_a_filter_a_symlink_in_the_way_is_replaced_as_before(
    taken: Box, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "source" / "run1"
    out.mkdir(parents=True)
    (out / "ckpt").symlink_to(tmp_path)
    taken.restore(to=tmp_path / "out", overwrite=True)
    assert (out / "ckpt" / "a.pt").read_bytes() == b"a"
    assert not (out / "ckpt").is_symlink()


# Damage


def test_fallback_brings_a_match_whose_directory_was_not_made_yet(box: Box, tmp_path: Path) -> None:
    data = random.Random(7).randbytes(5_000)
    write(box.source / "run" / "ckpt" / "a.pt", data)
    old = box.take().id
    write(box.source / "run" / "ckpt" / "a.pt", data[:-1] + b"?")
    write(box.source / "run" / "ckpt" / "other", b"other")
    box.take()
    flip_content(box.store, data[:-1] + b"?")
    report = box.restore(to=tmp_path / "out", include=("a.pt",), fallback=True)
    assert (tmp_path / "out" / "source" / "run" / "ckpt" / "a.pt").read_bytes() == data
    assert names(tmp_path / "out" / "source") == ["run/", "run/ckpt/", "run/ckpt/a.pt"]
    assert old in report.notes[0].what


# Under another name


def test_a_file_is_restored_under_another_name(taken: Box, tmp_path: Path) -> None:
    place = tmp_path / "made" / "inspect.pt"
    report = taken.restore(taken.source / "run1" / "ckpt" / "a.pt", place=place)
    assert (place.read_bytes(), report.written_files) == (b"a", 1)
    assert names(tmp_path / "made") == ["inspect.pt"]


def test_a_directory_is_restored_under_another_name(taken: Box, tmp_path: Path) -> None:
    taken.restore(taken.source / "run1", place=tmp_path / "again", exclude=("*.txt",))
    assert "ckpt/a.pt" in names(tmp_path / "again")
    assert "ckpt/notes.txt" not in names(tmp_path / "again")


@pytest.mark.parametrize("kind", ["file", "symlink", "dangling"])
def test_a_place_that_exists_is_refused_and_replaced_only_when_asked(
    taken: Box, tmp_path: Path, kind: str
) -> None:
    mine = write(tmp_path / "mine", b"mine")
    place = tmp_path / "place"
    if kind == "file":
        place.write_bytes(b"old")
    else:
        place.symlink_to(mine if kind == "symlink" else tmp_path / "nothing")
    path = taken.source / "run1" / "ckpt" / "a.pt"
    with pytest.raises(TargetError, match="exists already; nothing was changed"):
        taken.restore(path, place=place)
    taken.restore(path, place=place, overwrite=True)
    assert not place.is_symlink()
    assert place.read_bytes() == b"a"
    assert mine.read_bytes() == b"mine"
    assert not (tmp_path / "nothing").exists()


def test_another_name_is_for_one_path_and_not_for_the_top(taken: Box, tmp_path: Path) -> None:
    run = taken.source / "run1"
    with pytest.raises(UsageError, match="one path only"):
        taken.restore(run / "ckpt", run / "logs", place=tmp_path / "place")
    with pytest.raises(UsageError, match="--as"):
        taken.restore(run / "ckpt", place=Path("/"), overwrite=True, delete=True)
    assert not (tmp_path / "place").exists()


def test_a_file_never_takes_the_place_of_a_directory_under_another_name(
    taken: Box, tmp_path: Path
) -> None:
    mine = write(tmp_path / "models" / "mine", b"mine")
    with pytest.raises(TargetError, match="is a directory, and"):
        taken.restore(
            taken.source / "run1" / "ckpt" / "a.pt",
            place=tmp_path / "models",
            overwrite=True,
            delete=True,
        )
    assert mine.read_bytes() == b"mine"


def test_the_store_is_no_place_for_another_name(taken: Box) -> None:
    with pytest.raises(TargetError, match="is inside the store"):
        taken.restore(taken.source / "run1" / "ckpt" / "a.pt", place=taken.store / "packs" / "x")


# The command


def test_the_command_filters_and_renames(taken: Box, tmp_path: Path) -> None:
    path = str(taken.source / "run1")
    common = ("restore", "-s", "latest", "-p", path)
    done = taken.ciuic(
        *common, "-d", tmp_path, "--as", "two", "--include", "a.pt", "--include", "q"
    )
    assert done.code == 0
    assert "--include 'q' matched nothing" in done.err
    assert names(tmp_path / "two") == ["ckpt/", "ckpt/a.pt"]
    for wrong in (
        ("--as", f"{tmp_path}/three/"),
        ("-d", tmp_path, "--as", "a/b"),
        ("-d", tmp_path, "--as", ".."),
        ("--as", "/"),
        ("--include", ""),
        ("--exclude", "[z-a]"),
    ):
        refused = taken.ciuic(*common, *wrong)
        assert refused.code == 2, wrong
        assert "Traceback" not in refused.err
    nothing = taken.ciuic(*common, "-d", tmp_path / "new", "--include", "*.zip", "--json")
    assert nothing.code == 1
    assert nothing.document["error"]["kind"] == "path_not_found"
    assert not (tmp_path / "new").exists()


# The rule, compared with a plain implementation of its definition

PARTS = st.sampled_from(["a", "b", "ab", "c.pt"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
PATTERNS = st.one_of(
    PARTS,
    st.sampled_from(["*", "*.pt", "a*", "?"]),
    st.lists(st.sampled_from(["a", "b", "*", "**", "a?", "c.pt"]), min_size=2, max_size=4).map(
        "/".join
    ),
    st.lists(st.sampled_from(["a", "b", "*", "**", "a?", "c.pt"]), min_size=1, max_size=4).map(
        lambda parts: "/" + "/".join(parts)
    ),
)


@given(PATHS, st.lists(PATTERNS, max_size=3), st.lists(PATTERNS, max_size=3))
def test_the_verdict_is_what_the_definition_says(
    path: str, include: list[str], exclude: list[str]
) -> None:
    from ciuic.source.exclusions import Exclusions

    def matches(pattern: str) -> bool:
        at = path
        while at != "/":
            directory, name = os.path.split(at)
            if Exclusions([pattern]).match_path(directory.encode(), name.encode()):
                return True
            at = directory
        return False

    taken = (not include or any(map(matches, include))) and not any(map(matches, exclude))
    selection = Selection(include, exclude)
    assert (selection.verdict(path.encode()) is Verdict.TAKEN) == taken
    if taken:
        above = Selection(include, exclude).verdict(os.path.dirname(path).encode())
        assert above is not Verdict.LEFT_OUT, "nothing that is taken lies below what is not entered"
