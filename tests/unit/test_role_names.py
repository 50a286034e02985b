"""Which file is the last version of another, by their names."""

import stat

import pytest

from ciuic.model import Entry
from ciuic.snapshot.bases.role_names import _RENAMED_MAX, RoleNames

MIB = 1024 * 1024


def entry(name: str, mtime_ns: int, *, size_bytes: int = MIB, mode: int = stat.S_IFREG) -> Entry:
    return Entry(name.encode(), mode, 0, 0, mtime_ns, 0, 0, size_bytes, content=b"x")


def names_of(*entries: Entry) -> RoleNames:
    names = RoleNames()
    for one in entries:
        names.add(one)
    return names


@pytest.mark.parametrize(
    ("there", "wanted", "found"),
    [
        (["a.pt", "b.pt"], "a.pt", "a.pt"),
        (["step_8.pt", "step_9.pt"], "step_10.pt", "step_9.pt"),
        (["step_9.pt", "step_10.pt"], "step_9.pt", "step_9.pt"),
        (["s1_rank0.pt", "s1_rank1.pt", "s1_rank2.pt"], "s2_rank1.pt", "s1_rank1.pt"),
        (["rank1_s1.pt", "rank2_s1.pt"], "rank1_s2.pt", "rank1_s1.pt"),
        (["m-1-of-2.bin", "m-2-of-2.bin"], "m-1-of-3.bin", "m-1-of-2.bin"),
        (["x1_y1.pt", "x2_y2.pt"], "x3_y3.pt", "x2_y2.pt"),
        (["1_1_1_1_1_1_1_1_1.pt"], "2_2_2_2_2_2_2_2_2.pt", "1_1_1_1_1_1_1_1_1.pt"),
        (["step_1.pt"], "step_1.bin", None),
        (["step.pt"], "other.pt", None),
    ],
)
def test_the_last_version_has_the_most_similar_name_and_is_the_newest(there, wanted, found):
    names = names_of(*[entry(name, number) for number, name in enumerate(there)])
    chosen = names.of_role(wanted.encode(), is_directory=False)
    assert (chosen and chosen.name.decode()) == found
    assert names.of_role(wanted.encode(), is_directory=True) is None


def test_directories_are_matched_with_directories():
    names = names_of(entry("step1", 1), entry("step2", 2, mode=stat.S_IFDIR))
    chosen = names.of_role(b"step3", is_directory=True)
    assert chosen is not None
    assert chosen.name == b"step2"


def test_a_renamed_file_is_recognized_by_its_ending_and_length():
    names = names_of(
        entry("old.pt", 1), entry("new.pt", 3), entry("b.bin", 4), entry("c.pt", 5, size_bytes=9)
    )
    chosen = names.renamed(b"best.pt", MIB + 100)
    assert chosen is not None
    assert chosen.name == b"new.pt"
    assert names.renamed(b"best.pt", 2 * MIB) is None
    assert names.renamed(b"best", MIB) is None


def test_only_the_newest_of_many_files_are_candidates():
    count = 20 * _RENAMED_MAX
    names = names_of(*[entry(f"a{number:b}.pt", number % 997) for number in range(count)])
    kept = names._by_suffix[b".pt"]
    assert len(kept) <= 2 * _RENAMED_MAX
    chosen = names.renamed(b"x.pt", MIB)
    assert chosen is not None
    assert chosen.mtime_ns == min(count - 1, 996)
