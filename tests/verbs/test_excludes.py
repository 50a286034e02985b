"""Excludes by size and by markers, and their effect on nothing else."""

import os
import stat
from pathlib import Path

import pytest

from ciuic.config.load import load_settings
from ciuic.errors import UsageError
from ciuic.model import ExcludeRules
from tests.kit.box import Box
from tests.kit.program import Outcome

SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"
MIB = 1024 * 1024
CACHES = ExcludeRules(caches=True)
MARKED = ExcludeRules(if_present=(".nobackup",))


def write(path: Path, data: bytes | str = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def taken(box: Box) -> set[str]:
    """All paths below the source in the newest snapshot."""
    top = os.fsencode(box.source) + b"/"
    return {
        os.fsdecode(path.removeprefix(top)) for path in box.entries() if path.startswith(top)
    } - {""}


def test_files_that_are_longer_than_the_limit_are_left_out_and_counted(box: Box) -> None:
    write(box.source / "exact", bytes(1000))
    write(box.source / "longer", bytes(1001))
    (box.source / "link").symlink_to("longer")
    report = box.take(exclude=ExcludeRules(larger_than_bytes=1000))
    assert taken(box) == {"exact", "link"}
    assert (report.files, report.logical_bytes, report.excluded) == (1, 1000, 1)
    assert report.trouble_count == 0


def test_a_file_that_has_grown_past_the_limit_is_no_longer_taken(box: Box) -> None:
    write(box.source / "log", bytes(10))
    rules = ExcludeRules(larger_than_bytes=100)
    box.take(exclude=rules)
    write(box.source / "log", bytes(1000))
    box.take(exclude=rules)
    assert taken(box) == set()


def test_a_cache_directory_keeps_its_tag_and_nothing_else(box: Box) -> None:
    write(box.source / "pip" / "CACHEDIR.TAG", f"{SIGNATURE}\n# made by pip\n")
    write(box.source / "pip" / "wheel")
    write(box.source / "pip" / "deep" / "wheel")
    write(box.source / "kept")
    report = box.take(exclude=CACHES)
    assert taken(box) == {"kept", "pip", "pip/CACHEDIR.TAG"}
    assert report.excluded == 2, "a directory counts once"


@pytest.mark.parametrize("kind", ["wrong", "short", "late", "link", "pipe", "directory"])
def test_a_file_that_is_not_a_valid_tag_marks_no_cache(box: Box, kind: str) -> None:
    tag = box.source / "d" / "CACHEDIR.TAG"
    write(box.source / "d" / "file")
    if kind == "link":
        tag.symlink_to(write(box.source / "real", SIGNATURE))
    elif kind == "pipe":
        os.mkfifo(tag)
    elif kind == "directory":
        tag.mkdir()
    else:
        write(tag, {"wrong": SIGNATURE[:-1] + "6", "short": SIGNATURE[:-1], "late": " "}[kind])
    box.take(exclude=CACHES)
    assert "d/file" in taken(box)


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_marker_of_any_kind_leaves_out_what_is_beside_it(box: Box, kind: str) -> None:
    mark = box.source / "run" / ".nobackup"
    write(box.source / "run" / "deep" / "file")
    write(box.source / "other" / "file")
    if kind == "file":
        write(mark, b"")
    elif kind == "directory":
        mark.mkdir()
    else:
        mark.symlink_to("nowhere")
    report = box.take(exclude=MARKED)
    assert taken(box) == {"run", "run/.nobackup", "other", "other/file"}
    assert report.excluded == 1


def test_without_the_rules_marks_mean_nothing(box: Box) -> None:
    write(box.source / "d" / "CACHEDIR.TAG", SIGNATURE)
    write(box.source / "d" / ".nobackup", b"")
    write(box.source / "d" / "file")
    assert box.take().excluded == 0
    assert "d/file" in taken(box)


def test_a_root_that_is_marked_is_named(box: Box) -> None:
    write(box.source / ".nobackup", b"")
    write(box.source / "file")
    report = box.take(exclude=MARKED)
    assert taken(box) == {".nobackup"}
    assert report.trouble_count == 0, "it is what was asked for"
    assert [one.what for one in report.trouble] == [
        "the root holds .nobackup, so all its other content was excluded"
    ]


def test_a_marker_is_a_name_and_no_path(box: Box) -> None:
    for name in ("a/b", "..", "", "a\0"):
        with pytest.raises(UsageError, match="is not the name of a file"):
            box.take(exclude=ExcludeRules(if_present=(name,)))
    assert box.snapshots() == []


def test_the_manifest_says_what_was_left_out(box: Box) -> None:
    rules = ExcludeRules(("*.tmp",), 5 * MIB, caches=True, if_present=(".nobackup", "\udcff"))
    box.take(exclude=rules)
    shown = box.ciuic("show", "latest", "--json").document
    assert shown["exclude"] == ["*.tmp"]
    assert shown["exclude_larger_than_bytes"] == 5 * MIB
    assert shown["exclude_caches"] is True
    assert shown["exclude_if_present"] == [".nobackup", "\udcff"]


def test_delete_spares_what_size_and_marks_leave_out(box: Box) -> None:
    """A restore must not delete paths that were left out: no snapshot has them."""
    write(box.source / "cache" / "CACHEDIR.TAG", SIGNATURE)
    write(box.source / "cache" / "deep" / "wheel")
    write(box.source / "run" / ".nobackup")
    write(box.source / "run" / "scratch")
    write(box.source / "huge", bytes(2000))
    write(box.source / "small")
    rules = ExcludeRules(larger_than_bytes=1000, caches=True, if_present=(".nobackup",))
    box.take(exclude=rules)
    # Directories that the snapshot does not have may contain excluded files as well.
    write(box.source / "new" / "run" / ".nobackup")
    write(box.source / "new" / "run" / "scratch")
    write(box.source / "new" / "huge", bytes(2000))
    write(box.source / "new" / "goes")
    write(box.source / "goes")
    # The mark is gone from the target, and comes back with the restore.
    (box.source / "cache" / "CACHEDIR.TAG").unlink()
    box.restore(overwrite=True, delete=True)
    left = {
        str(path.relative_to(box.source)) for path in box.source.rglob("*") if not path.is_dir()
    }
    assert left == {
        "cache/CACHEDIR.TAG",
        "cache/deep/wheel",
        "run/.nobackup",
        "run/scratch",
        "huge",
        "small",
        "new/run/.nobackup",
        "new/run/scratch",
        "new/huge",
    }


def test_a_restored_cache_is_still_one(box: Box, tmp_path: Path) -> None:
    write(box.source / "cache" / "CACHEDIR.TAG", SIGNATURE)
    write(box.source / "cache" / "wheel")
    box.take(exclude=CACHES)
    box.restore(to=tmp_path / "out")
    restored = tmp_path / "out" / box.source.name / "cache"
    assert sorted(os.listdir(restored)) == ["CACHEDIR.TAG"]
    assert (restored / "CACHEDIR.TAG").read_text() == SIGNATURE


def run(box: Box, *options: str) -> Outcome:
    outcome = box.ciuic("snapshot", "--json", *options)
    assert outcome.code == 0, outcome.err
    return outcome


def test_the_configuration_and_the_command_line_say_it_in_the_same_words(box: Box) -> None:
    write(box.source / "cache" / "CACHEDIR.TAG", SIGNATURE)
    write(box.source / "cache" / "wheel")
    write(box.source / "run" / ".nosnapshot")
    write(box.source / "run" / "scratch")
    write(box.source / "huge", bytes(5000))
    write(box.source / "a.tmp")
    options = ["--exclude-larger-than", "4KiB", "--exclude-caches"]
    options += ["--exclude-if-present", ".nosnapshot", "--exclude", "*.tmp"]
    count = run(box, *options).document["excluded_count"]
    by_options = taken(box)
    with box.config.open("a") as file:
        file.write("exclude_larger_than = 4 KiB\nexclude_caches = yes\n")
        file.write("exclude_if_present = .nobackup, .nosnapshot\n")
    text = box.config.read_text().replace("exclude_patterns = ", "exclude_patterns = *.tmp")
    box.config.write_text(text)
    assert run(box).document["excluded_count"] == count == 4
    assert taken(box) == by_options
    assert by_options == {"cache", "cache/CACHEDIR.TAG", "run", "run/.nosnapshot"}


def test_an_option_adds_to_the_configuration_and_takes_nothing_from_it(box: Box) -> None:
    write(box.source / "a.tmp")
    write(box.source / "b.log")
    write(box.source / "large", bytes(3000))
    write(box.source / "middle", bytes(1500))
    box.configure(exclude="*.tmp")
    with box.config.open("a") as file:
        file.write("exclude_larger_than = 1 KiB\n")
    assert load_settings(str(box.config)).exclude_larger_than_bytes == 1024
    run(box, "--exclude", "*.log", "--exclude-larger-than", "2 KiB")
    assert taken(box) == set()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--exclude-larger-than", "much"], "'much' is not a size"),
        (["--exclude-if-present", "a/b"], "'a/b' is not the name of a file"),
        (["--exclude", "[5-1]"], "is reversed"),
        (["--exclude", ""], "is empty"),
    ],
)
def test_a_rule_without_a_meaning_is_wrong_usage(box: Box, options: list[str], said: str) -> None:
    outcome = box.ciuic("snapshot", *options)
    assert outcome.code == 2
    assert said in outcome.err
    assert box.snapshots() == []


def test_looking_for_a_mark_leaves_its_access_time_alone(box: Box) -> None:
    tag = write(box.source / "cache" / "CACHEDIR.TAG", SIGNATURE)
    os.utime(tag, (1, 2))
    box.take(exclude=CACHES)
    status = tag.stat()
    assert stat.S_ISREG(status.st_mode)
    assert status.st_atime == 1


def test_a_diff_does_not_call_removed_what_the_rules_leave_out(box: Box) -> None:
    for name in ("a.gz", "deep/b.gz", "large", "kept", "gone", "d/.nobackup", "d/file"):
        write(box.source / name, bytes(2000) if name == "large" else b"x")
    first = box.take().id
    (box.source / "gone").unlink()
    second = box.take(exclude=ExcludeRules(("*.gz",), 1000, if_present=(".nobackup",))).id
    done = box.ciuic("diff", first, second, "--json")
    found = {one["path"].removeprefix(f"{box.source}/"): one["change"] for one in done.document}
    left_out = dict.fromkeys(("a.gz", "deep/b.gz", "large", "d/file"), "left_out")
    assert {path: what for path, what in found.items() if what != "metadata"} == {
        "gone": "removed",
        **left_out,
    }
    done = box.ciuic("diff", first, second)
    assert "1 file removed (-1 B)" in done.err
    assert "4 paths left out by the rules of B" in done.err
    assert f"x {box.source}/a.gz" in done.out


def test_a_path_that_a_rule_leaves_out_is_reported_with_the_rule(box: Box) -> None:
    for name in ("a.gz", "dir/file", "d/.nobackup", "d/file"):
        write(box.source / name)
    first = box.take().id
    rules = ExcludeRules(("*.gz", "dir"), if_present=(".nobackup",))
    second = box.take(exclude=rules).id
    for name, rule in (
        ("a.gz", "'*.gz'"),
        ("dir/file", "'dir'"),
        ("d/file", f"the mark .nobackup in {box.source}/d"),
    ):
        path = box.source / name
        for command in (("ls", second, path), ("restore", "-s", second, "-p", path)):
            done = box.ciuic(*command)
            assert done.code == 1
            assert f"{path} is not in snapshot {second}: left out by {rule}" in done.err
            assert f"ciuic --config {box.config} list --path" in done.err
        listed = {
            one["id"]: one["path"] for one in box.ciuic("list", "--path", path, "--json").document
        }
        assert (listed[first]["state"], listed[second]["state"]) == ("whole", "left out")
        assert listed[second]["what"] == f"left out by {rule}"
    assert "left out  *.gz, dir, what is beside .nobackup" in box.ciuic("show", second).out
    assert "left out" not in box.ciuic("show", first).out
    missing = box.ciuic("ls", second, box.source / "never")
    assert "left out" not in missing.err
