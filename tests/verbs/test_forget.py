"""Forget, the trash, undo, IDs that are never reused; tags and pins."""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ciuic.catalog import find_snapshot, list_snapshots, lost_snapshots
from ciuic.errors import (
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
    UsageError,
)
from ciuic.ids import SnapshotId
from ciuic.maintain.forget import (
    ForgetPlan,
    apply_forget,
    bring_back,
    plan_forget,
    plan_forget_by_id,
)
from ciuic.maintain.label import change_tags, set_pinned
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.scrub.scrub import scrub
from ciuic.model import ExcludeRules, SnapshotSummary, newest_first
from ciuic.retention import parse_policy
from ciuic.store import store as store_module
from ciuic.store.records.mark import Mark, encode_mark
from ciuic.store.records.sealed import seal
from ciuic.store.snapshots.manifests import Manifests
from ciuic.store.store import Store, open_store
from ciuic.system import durable
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.damage import flip_byte, flip_content
from tests.kit.filesystems import disk
from tests.kit.spelled import respell_summary
from tests.kit.trees import differences, photograph

NOW_NS = 2_000_000_000_123_456_789
PROTECTED = 0.04


@pytest.fixture
def taken(box: Box) -> Box:
    """Four snapshots."""
    return fill(box)


@pytest.fixture
def copied(tmp_path: Path) -> Box:
    """Four snapshots of a store that keeps copies of manifests."""
    (tmp_path / "box").mkdir()
    return fill(Box(tmp_path / "box", parity=PROTECTED))


def fill(box: Box) -> Box:
    for number in range(4):
        (box.source / "file").write_bytes(content(number))
        box.take(tags=(f"number-{number}",))
    return box


def content(number: int) -> bytes:
    return b"%d" % number * 20_000


def names(box: Box) -> list[str]:
    """The listed snapshots, oldest first."""
    return [one.id for one in reversed(box.snapshots())]


def trash(box: Box) -> list[str]:
    """The snapshots in the trash, oldest first."""
    with open_store(str(box.store)) as store:
        return [one.id for one in store.trash.read()]


def forget(box: Box, *wanted: str, last_whole: bool = False) -> ForgetPlan:
    with open_store(str(box.store), write=True) as store:
        plan = plan_forget_by_id(store, wanted, NOW_NS, last_whole=last_whole)
        apply_forget(store, plan, NOW_NS)
        return plan


def forget_by(box: Box, policy: str, now_ns: int = NOW_NS) -> ForgetPlan:
    with open_store(str(box.store), write=True) as store:
        plan = plan_forget(store, parse_policy(policy), now_ns)
        apply_forget(store, plan, now_ns)
        return plan


def undo(box: Box, name: str) -> SnapshotSummary:
    with open_store(str(box.store), write=True) as store:
        return bring_back(store, name)


def expire(box: Box, *wanted: str) -> None:
    with open_store(str(box.store), write=True) as store:
        store.trash.empty(wanted)


def manifest_file(box: Box, name: str) -> Path:
    return box.store / "snapshots" / f"{name}.json"


def mark_file(box: Box, name: str, number: int = 1) -> Path:
    return box.store / "marks" / f"{name}-{number}.json"


def retired(box: Box) -> set[str]:
    """The IDs in all records of retired IDs."""
    records = box.store.glob("retired/*.json")
    return {one for path in records for one in json.loads(path.read_bytes())["ids"]}


def copy_file(box: Box, name: str) -> Path:
    return box.store / "parity" / f"{name}.json"


def files(box: Box) -> dict[str, bytes]:
    """Every file of the store that is not a cache or a lock."""
    found = [*box.store.glob("*/*"), *box.store.glob("*.json")]
    return {str(one): one.read_bytes() for one in sorted(found) if one.is_file()}


# By a policy and by name


def test_a_policy_forgets_exactly_the_snapshots_that_no_rule_keeps(taken: Box) -> None:
    known = names(taken)
    plan = forget_by(taken, "last:2")
    assert [one.id for one, _ in plan.forgotten] == [known[1], known[0]]
    assert [one.id for one, _ in plan.kept] == [known[3], known[2]]
    assert {why for _, why in plan.forgotten} == {"no rule of last:2 keeps it"}
    assert names(taken) == known[2:]
    assert trash(taken) == known[:2]
    assert taken.verify().ok


def test_a_plan_alone_changes_nothing(taken: Box) -> None:
    before = files(taken)
    with open_store(str(taken.store)) as store:
        assert len(plan_forget(store, parse_policy("last:1"), NOW_NS).forgotten) == 3
        assert len(plan_forget_by_id(store, [names(taken)[0]], NOW_NS).forgotten) == 1
    assert files(taken) == before


def test_a_duration_says_that_it_was_the_age(taken: Box) -> None:
    plan = forget_by(taken, "1d", now_ns=taken.clock.now_ns() + 10**15)
    assert {why for _, why in plan.forgotten} == {"older than 1d"}
    assert names(taken) == [plan.kept[0][0].id]


def test_by_name_those_named_are_forgotten(taken: Box) -> None:
    known = names(taken)
    plan = forget(taken, known[2], known[0].removeprefix("cs-"), known[0])
    assert [one.id for one, _ in plan.forgotten] == [known[2], known[0]]
    assert names(taken) == [known[1], known[3]]


@pytest.mark.parametrize("wanted", ["newest", "latest", "pinned", "all", "unknown", "forgotten"])
def test_a_protected_snapshot_makes_forget_refuse_all_that_were_named(
    taken: Box, wanted: str
) -> None:
    known = names(taken)
    forget(taken, known[1])
    with open_store(str(taken.store), write=True) as store:
        set_pinned(store, known[2], pinned=True)
    before = files(taken)
    asked, error, says = {
        "newest": ([known[3]], UsageError, "is the newest snapshot"),
        "latest": (["latest"], UsageError, "is the newest snapshot"),
        "pinned": ([known[0], known[2]], UsageError, "is pinned"),
        "all": ([known[0], known[2], known[3]], UsageError, "every snapshot"),
        "unknown": ([known[0], "cs-ffffffffff"], SnapshotNotFoundError, "there is no snapshot"),
        "forgotten": ([known[0], known[1]], SnapshotNotFoundError, f"{known[1]} was forgotten"),
    }[wanted]
    with pytest.raises(error, match=says):
        forget(taken, *asked)
    assert files(taken) == before


def test_the_only_snapshot_is_never_forgotten(box: Box) -> None:
    name = box.take().id
    with pytest.raises(UsageError, match="every snapshot"):
        forget(box, name)
    assert forget_by(box, "1s").forgotten == ()
    assert names(box) == [name]


def test_the_newest_that_is_whole_is_kept_by_a_policy_and_refused_by_name(taken: Box) -> None:
    known = names(taken)
    for number in (2, 3):
        flip_content(taken.store, content(number))
    scrub(str(taken.store), clock=taken.clock)
    plan = forget_by(taken, "1s")
    assert names(taken) == [known[1], known[3]]
    assert {one.id: why for one, why in plan.kept} == {
        known[3]: "the newest",
        known[1]: "the newest without damage",
    }
    with pytest.raises(UsageError, match="newest snapshot without damage"):
        forget(taken, known[1])


def test_whole_means_without_warnings_if_a_snapshot_has_none(taken: Box) -> None:
    known = names(taken)
    with open_store(str(taken.store), write=True) as store:
        for name in known[2:]:
            summary = find_snapshot(store, name)
            respell_summary(store, msgspec.structs.replace(summary, trouble_count=1, flux_count=1))
    plan = forget_by(taken, "1s")
    assert {one.id: why for one, why in plan.kept} == {
        known[3]: "the newest",
        known[1]: "the newest without damage",
    }


def test_the_newest_whole_snapshot_of_each_set_of_roots_is_kept_and_refused_by_name(
    taken: Box,
) -> None:
    """A whole snapshot of another directory does not make up for damage in this one."""
    known = names(taken)
    with (taken.source / "open").open("wb"):  # in flux for as long as it is open
        troubled = [taken.take().id for _ in range(2)]
    elsewhere = taken.directory / "elsewhere"
    elsewhere.mkdir()
    alone = [taken.take(elsewhere).id for _ in range(2)]
    of_source = f"the newest of {taken.source} without damage"
    with pytest.raises(
        UsageError, match=f"is {of_source}".replace("newest of", "newest snapshot of")
    ):
        forget(taken, known[3])
    for policy in ("last:1", "1s"):
        plan = forget_by(taken, policy)
        assert known[3] in names(taken), policy
        assert {one.id: why for one, why in plan.kept}[known[3]] == of_source
        assert (troubled[1] in names(taken)) == (policy == "last:1")
    assert names(taken) == [known[3], alone[1]]
    with pytest.raises(UsageError, match=f"is the only snapshot of {taken.source}"):
        forget(taken, known[3])
    # If a later snapshot has this root and others, the one of this root alone is not protected.
    (taken.source / "open").unlink()
    both = taken.take(taken.source, elsewhere).id
    forget_by(taken, "1s")
    assert names(taken) == [both]


def test_the_newest_whole_snapshot_of_a_set_of_roots_can_be_forgotten_on_request(
    taken: Box,
) -> None:
    known = names(taken)
    elsewhere = taken.directory / "elsewhere"
    elsewhere.mkdir()
    alone = taken.take(elsewhere).id
    newest = taken.take().id
    with pytest.raises(UsageError, match=f"is the only snapshot of {elsewhere}"):
        forget(taken, alone)
    forget(taken, alone, last_whole=True)
    assert names(taken) == [*known, newest]
    assert undo(taken, alone).id == alone
    # But not the newest undamaged snapshot of all.
    with (taken.source / "open").open("wb"):
        taken.take()
    with pytest.raises(UsageError, match="is the newest snapshot without damage"):
        forget(taken, newest, last_whole=True)


def test_a_damaged_manifest_is_never_forgotten_and_counts_for_nothing(taken: Box) -> None:
    known = names(taken)
    flip_byte(manifest_file(taken, known[3]), 100)
    forget_by(taken, "1s")
    assert trash(taken) == known[:2]
    assert manifest_file(taken, known[3]).exists()
    with pytest.raises(CorruptionError) as caught:
        forget(taken, known[3][:-1])
    assert "ciuic forget" in caught.value.hint
    assert manifest_file(taken, known[3]).exists()
    assert not list(taken.store.glob(f"marks/{known[3]}*"))
    assert forget(taken, known[3]).given_up == (known[3],)  # by its whole ID, on purpose
    assert (taken.store / "quarantine" / f"{known[3]}.json").exists()


def test_a_damaged_manifest_with_a_copy_is_forgotten_whole(copied: Box) -> None:
    known = names(copied)
    flip_byte(manifest_file(copied, known[1]), 100)
    forget(copied, known[1])
    with open_store(str(copied.store)) as store:
        (one,) = store.trash.read()
    assert one.manifest.summary.tags == ("number-1",)
    assert undo(copied, known[1]).id == known[1]
    assert names(copied) == known


@pytest.mark.parametrize("what", ["symlink", "fifo", "socket", "directory"])
def test_something_else_in_place_of_a_manifest_is_damage(taken: Box, what: str) -> None:
    known = names(taken)
    path = manifest_file(taken, known[1])
    path.rename(taken.directory / "aside")
    if what == "symlink":
        path.symlink_to(taken.directory / "aside")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as one:
            os.chdir(path.parent)
            one.bind(path.name)
            os.chdir("/")
    done = taken.ciuic("list", "--machine-readable")
    assert done.code == 4
    assert len(done.out.splitlines()) == 3
    assert f"{known[1]} cannot be read" in done.err
    with pytest.raises(CorruptionError, match="not a regular file"):
        forget(taken, known[1])
    assert forget_by(taken, "last:2").forgotten[0][0].id == known[0]


# The trash


def test_a_forgotten_snapshot_is_complete_in_the_trash(taken: Box) -> None:
    known = names(taken)
    before = {name: data for name, data in files(taken).items() if "catalog" not in name}
    forget(taken, known[1])
    after = files(taken)
    assert {name: after[name] for name in before} == before, "nothing is replaced"
    assert set(after) - set(before) == {str(mark_file(taken, known[1]))}
    with open_store(str(taken.store)) as store:
        (one,) = store.trash.read()
        assert find_snapshot(store, known[2]).parent == known[1]
    assert (one.id, one.forgotten_ns) == (known[1], NOW_NS)
    assert one.manifest.summary.tags == ("number-1",)
    document = json.loads(mark_file(taken, known[1]).read_bytes())
    assert document["forgotten"] == "2033-05-18T03:33:20.123456+00:00"


@pytest.mark.parametrize("now_ns", [-(1 << 62), 0, (1 << 63) - 1])
def test_a_clock_that_is_wrong_hinders_nothing(taken: Box, now_ns: int) -> None:
    known = names(taken)
    with open_store(str(taken.store), write=True) as store:
        store.trash.forget([known[0]], now_ns)
        assert [one.forgotten_ns for one in store.trash.read()] == [max(0, now_ns)]
        store.trash.bring_back(known[0])
    assert names(taken) == known


def test_what_alone_shows_the_order_after_a_wrong_clock_stays(box: Box) -> None:
    def taken_after(seconds: int) -> SnapshotId:
        (box.source / "file").write_text(str(seconds))
        return box.take(clock=ManualClock(NOW_NS + seconds * 10**9)).id

    def in_order() -> list[SnapshotId]:
        return [one.id for one in newest_first(box.snapshots())]

    ahead, between, newest = map(taken_after, (-50, -100, -200))
    assert in_order() == [newest, between, ahead]
    with open_store(str(box.store)) as store, pytest.raises(UsageError) as caught:
        plan_forget_by_id(store, [between], NOW_NS)
    assert str(caught.value).startswith(f"{between} shows that {newest} is newer than {ahead}")

    latest = taken_after(0)
    forget(box, between)
    assert in_order()[0] == latest


def test_a_forgotten_snapshot_is_not_found_and_the_hint_says_how_to_bring_it_back(
    taken: Box,
) -> None:
    known = names(taken)
    forget(taken, known[1])
    with open_store(str(taken.store)) as store:
        assert known[1] not in {one.id for one in list_snapshots(store)}
        with pytest.raises(SnapshotNotFoundError) as caught:
            find_snapshot(store, known[1])
    assert caught.value.hint == f"'ciuic forget --undo {known[1]}' brings it back."


def test_a_snapshot_that_is_brought_back_is_the_same_to_the_byte(copied: Box) -> None:
    photo = photograph(copied.source)
    known = names(copied)
    before = files(copied)
    copied.take()
    forget(copied, known[3])
    assert copy_file(copied, known[3]).exists(), "repair needs it as long as it lies in the trash"
    summary = undo(copied, known[3])
    assert summary.id == known[3]
    assert {name: files(copied)[name] for name in before} == before
    assert trash(copied) == []
    copied.restore(snapshot=known[3], to=copied.directory / "out")
    assert differences(photo, photograph(copied.directory / "out" / "source")) == []


def test_a_snapshot_can_be_forgotten_and_brought_back_again_and_again(taken: Box) -> None:
    known = names(taken)
    for _ in range(3):
        forget(taken, known[0])
        assert names(taken) == known[1:]
        undo(taken, known[0][:-1])
        assert names(taken) == known
    with pytest.raises(SnapshotNotFoundError, match="is not in the trash"):
        undo(taken, known[0])
    with pytest.raises(SnapshotNotFoundError, match="is not in the trash"):
        undo(taken, "cs-0123456789")


def test_a_prefix_of_two_ids_in_the_trash_is_refused(taken: Box) -> None:
    known = names(taken)
    forget(taken, known[0], known[1])
    with pytest.raises(SnapshotNotFoundError, match="ambiguous in the trash"):
        undo(taken, "cs-")
    assert trash(taken) == known[:2]


def test_a_damaged_entry_does_not_affect_others(taken: Box) -> None:
    known = names(taken)
    forget(taken, known[0], known[1])
    flip_byte(manifest_file(taken, known[0]), 200)
    with open_store(str(taken.store)) as store:
        found, damaged = store.trash.survey()
        assert [one.id for one in found] == [known[1]]
        assert list(damaged) == [known[0]]
        with pytest.raises(CorruptionError) as caught:
            store.trash.read()
    assert f"ciuic forget {known[0]}" in caught.value.hint
    before = manifest_file(taken, known[0]).read_bytes()
    undo(taken, known[1])
    forget(taken, known[2])
    with pytest.raises(CorruptionError, match=known[0]):
        undo(taken, known[0])
    assert manifest_file(taken, known[0]).read_bytes() == before


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_a_damaged_mark_of_a_forgotten_snapshot_loses_nothing(
    taken: Box, harm: str, has_index: bool
) -> None:
    """Listed and in the trash are never both true, whatever is damaged."""
    known = names(taken)
    forget(taken, known[1])
    path = mark_file(taken, known[1])
    path.unlink() if harm == "gone" else flip_byte(path, 40)
    if not has_index:
        (taken.store / "catalog.sqlite").unlink()
    assert names(taken) == known
    assert trash(taken) == []
    is_in_doubt = has_index or harm == "flipped"
    assert [one.pinned for one in taken.snapshots() if one.id == known[1]] == [is_in_doubt]
    with pytest.raises(SnapshotNotFoundError):
        undo(taken, known[1])
    assert taken.ciuic("prune", "--trash", "0").code == 0
    assert taken.verify().ok
    assert taken.ciuic("repair", "--apply").code == 0
    assert names(taken) == known


def test_a_damaged_mark_of_a_forgotten_snapshot_is_read_from_its_copy(copied: Box) -> None:
    known = names(copied)
    forget(copied, known[1])
    flip_byte(mark_file(copied, known[1]), 40)
    assert (names(copied), trash(copied)) == ([known[0], *known[2:]], [known[1]])
    assert copied.ciuic("repair", "--apply").code == 0
    undo(copied, known[1])
    assert names(copied) == known


def test_the_mark_of_a_later_version_is_left_alone(taken: Box) -> None:
    known = names(taken)
    forget(taken, known[1])
    data = seal({"format": 2, "state": "unknown", "checksum": ""})
    mark_file(taken, known[1]).write_bytes(data)
    with pytest.raises(UnknownFormatError, match="format 2"):
        undo(taken, known[1])
    assert names(taken) == known, "it may be listed"
    assert mark_file(taken, known[1]).read_bytes() == data


def test_a_purged_snapshot_cannot_be_brought_back(taken: Box) -> None:
    """A prune was interrupted after its first step."""
    known = names(taken)
    forget(taken, known[1])
    purged = Mark(("number-1",), pinned=False, forgotten_ns=NOW_NS, purged=True)
    mark_file(taken, known[1], 2).write_bytes(encode_mark(purged, SnapshotId(known[1]), 2))
    assert trash(taken) == []
    assert known[1] not in names(taken)
    with pytest.raises(SnapshotNotFoundError, match="gone for good"):
        undo(taken, known[1])
    with pytest.raises(SnapshotNotFoundError, match="there is no snapshot"):
        forget(taken, known[1])
    assert taken.ciuic("prune").code == 0
    assert not manifest_file(taken, known[1]).exists()
    assert os.listdir(taken.store / "marks") == []
    assert retired(taken) == {known[1]}


# IDs


def test_an_id_is_never_used_again(taken: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random ID is drawn again: that of a listed, a forgotten or a removed snapshot."""
    known = names(taken)
    forget(taken, known[0], known[1])
    expire(taken, known[0])
    drawn = [*known, "cs-5e77ed", *known, "cs-0123456789abcdef"]
    monkeypatch.setattr(store_module, "random_snapshot_id", lambda: SnapshotId(drawn.pop(0)))
    assert taken.take().id == "cs-5e77ed"
    assert taken.take().id == "cs-0123456789abcdef"
    assert drawn == []


def test_a_snapshot_that_went_for_good_left_its_id_and_nothing_else(copied: Box) -> None:
    known = names(copied)
    forget(copied, known[0], known[1])
    expire(copied, known[0])
    expire(copied, known[1], known[0])
    assert trash(copied) == []
    assert not copy_file(copied, known[0]).exists()
    assert retired(copied) == set(known[:2])
    assert os.listdir(copied.store / "marks") == []
    with pytest.raises(SnapshotNotFoundError):
        undo(copied, known[0])
    assert names(copied) == known[2:]
    assert copied.verify().ok


@pytest.mark.parametrize("what", ["flipped", "cut", "later", "symlink", "directory"])
def test_a_list_of_ids_that_cannot_be_read_is_not_overwritten(taken: Box, what: str) -> None:
    known = names(taken)
    forget(taken, known[0], known[1])
    expire(taken, known[0])
    (path,) = (taken.store / "retired").iterdir()
    if what == "flipped":
        flip_byte(path, 20)
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif what == "later":
        path.write_bytes(seal({"format": 2, "ids": {}, "checksum": ""}))
    else:
        path.rename(taken.directory / "aside")
        path.symlink_to(taken.directory / "aside") if what == "symlink" else path.mkdir()
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(UnknownFormatError if what == "later" else CorruptionError) as caught:
        expire(taken, known[1])
    assert what == "later" or "ciuic repair" in caught.value.hint
    assert trash(taken) == [known[1]], "what cannot be retired can still be brought back"
    assert (path.read_bytes() if path.is_file() else b"") == before
    # A snapshot does not fail because of this list: one ID in millions would come up again.
    taken.take()
    forget(taken, known[2])
    undo(taken, known[1])


# Tags and pins


def test_tags_and_pins_are_in_marks_and_in_the_chunk_index(copied: Box) -> None:
    name = names(copied)[1]
    manifest = manifest_file(copied, name).read_bytes()
    with open_store(str(copied.store), write=True) as store:
        change_tags(store, name, add=["good", "number-1", "good"], remove=["gone"])
        set_pinned(store, name, pinned=True)
    assert manifest_file(copied, name).read_bytes() == manifest, "a manifest is written once"
    mark = copied.store / "marks" / f"{name}-2.json"
    document = json.loads(mark.read_bytes())
    assert (document["tags"], document["pinned"]) == (["number-1", "good"], True)
    assert (copied.store / "parity" / mark.name).read_bytes() == mark.read_bytes()
    (copied.store / "catalog.sqlite").unlink()
    for _ in range(2):  # from the manifests, and then from the catalog
        (one,) = [one for one in copied.snapshots() if one.id == name]
        assert (one.tags, one.pinned) == (("number-1", "good"), True)
        with open_store(str(copied.store), write=True) as store:
            list_snapshots(store)
            store.index.commit()
    forget_by(copied, "1s")
    assert name in names(copied)
    with open_store(str(copied.store), write=True) as store:
        set_pinned(store, name, pinned=False)
        change_tags(store, name, remove=["number-1"])
    forget(copied, name)
    assert undo(copied, name).tags == ("good",)
    assert copied.verify().ok


def test_only_the_label_changes(taken: Box) -> None:
    name = names(taken)[0]
    before = files(taken)
    for tags in (["x"], []):
        with open_store(str(taken.store), write=True) as store:
            kept = {"add": tags, "remove": [] if tags else ["x"]}
            change_tags(store, name, **kept)
    after = files(taken)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 2
    assert not (taken.store / "parity").exists(), "no copies in a store that keeps none"


def test_a_label_that_is_set_already_is_not_written(taken: Box) -> None:
    name = names(taken)[0]
    before = manifest_file(taken, name).stat()
    os.utime(manifest_file(taken, name), ns=(5, 5))
    with open_store(str(taken.store), write=True) as store:
        change_tags(store, name, add=["number-0"], remove=["none"])
        set_pinned(store, name, pinned=False)
    after = manifest_file(taken, name).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, 5)


@pytest.mark.parametrize("tag", ["", "x" * 65, "a|b", "a,b", "a\nb", "\x1b[31m", "\udcff", "a\0b"])
def test_a_tag_that_a_list_could_not_show_is_refused(taken: Box, tag: str) -> None:
    name = names(taken)[0]
    before = files(taken)
    with (
        open_store(str(taken.store), write=True) as store,
        pytest.raises(UsageError, match="cannot be a tag"),
    ):
        change_tags(store, name, add=["fine", tag])
    assert files(taken) == before


def test_the_chunk_index_drops_forgotten_snapshots(taken: Box) -> None:
    """Otherwise it would grow for ten years, and every list reads it."""
    known = names(taken)
    forget(taken, known[0])
    taken.take()
    with open_store(str(taken.store)) as store:
        assert store.index.snapshots().keys() == store.manifests.files().keys()


@pytest.mark.parametrize("what", ["undo", "tag", "pin"])
def test_a_list_after_a_change_of_tags_reads_no_manifest(taken: Box, what: str) -> None:
    name = names(taken)[0]
    forget(taken, name)
    summary = undo(taken, name)
    with open_store(str(taken.store), write=True) as store:
        if what == "tag":
            summary = change_tags(store, name, add=["new"])
        elif what == "pin":
            summary = set_pinned(store, name, pinned=True)
    status = manifest_file(taken, name).stat()
    with open_store(str(taken.store)) as store:
        row = store.index.snapshots()[name]
    assert row[:2] == (status.st_size, status.st_mtime_ns)
    assert msgspec.msgpack.decode(row[2], type=SnapshotSummary) == summary


# Stores that cannot be written to


@pytest.mark.root
def test_a_read_only_store_is_planned_for_and_not_changed(tmp_path: Path) -> None:
    with disk("ext4", tmp_path, size_mib=64) as place:
        box = Box(place.path)
        fill(box)
        known = names(box)
        forget(box, known[0])
        place.remount("ro")
        try:
            with open_store(str(box.store)) as store:
                assert len(plan_forget(store, parse_policy("last:1"), NOW_NS).forgotten) == 2
                assert [one.id for one in store.trash.read()] == [known[0]]
            for act in (lambda: forget(box, known[1]), lambda: undo(box, known[0])):
                with pytest.raises(StoreError, match="Read-only file system") as caught:
                    act()
                assert "for writing" in caught.value.hint
            assert names(box) == known[1:]
        finally:
            place.remount("rw")


@pytest.mark.root
def test_on_a_full_disk_nothing_is_lost_and_nothing_half_done(tmp_path: Path) -> None:
    with disk("ext4", tmp_path, size_mib=64, mkfs=("-b", "4096")) as place:
        box = Box(place.path)
        fill(box)
        known = names(box)
        forget(box, known[0])
        # Many long tags make a manifest of several blocks.
        with open_store(str(box.store), write=True) as store:
            change_tags(store, known[1], add=[f"{number:060}" for number in range(400)])
        (box.store / "reserve").unlink()
        before = files(box)
        place.leave_free(0)
        for act in (
            lambda: forget(box, known[1]),
            lambda: undo(box, known[0]),
            lambda: expire(box, known[0]),
        ):
            with pytest.raises(StoreError, match="No space left"):
                act()
        assert files(box).items() >= before.items()
        assert (names(box), trash(box)) == (known[1:], known[:1])
        (place.path / "ballast").unlink()
        forget(box, known[1])
        undo(box, known[0])
        assert (names(box), trash(box)) == ([known[0], *known[2:]], [known[1]])
        assert box.verify().ok


@pytest.mark.root
def test_if_the_trash_has_no_space_for_all_none_is_forgotten(tmp_path: Path) -> None:
    with disk("ext4", tmp_path, size_mib=64, mkfs=("-b", "4096")) as place:
        box = Box(place.path)
        fill(box)
        known = names(box)
        box.take(tags=tuple(f"{number:060}" for number in range(400)))
        box.take()
        known = names(box)
        long = known[-2]
        (box.store / "reserve").unlink()
        place.leave_free(5 * 4096)
        with pytest.raises(StoreError, match="No space left"):
            forget(box, known[0], long)
        assert names(box) == known
        assert not list(box.store.glob("marks/*")), "what the first one took is given back"
        (place.path / "ballast").unlink()
        forget(box, known[0], long)
        assert (names(box), trash(box)) == ([*known[1:-2], known[-1]], [known[0], long])


# Stops between any two durable calls


class Stop(BaseException):
    """The process ends here."""


CALLS = (
    *("write_whole", "write_named", "publish", "create_whole", "create_named"),
    *("remove_file", "sync_directory", "make_directory"),
)


def stopped(path: Path, act: Callable[[Store], object], after: int) -> bool:
    """Whether ``act`` has finished when the process ends before a durable call.

    ``write_whole`` makes more of them: a file without its name, a name that is not synced.
    """
    made = 0

    def limited(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal made
            if made == after:
                raise Stop
            made += 1
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch, open_store(str(path), write=True) as store:
        for name in CALLS:
            patch.setattr(durable, name, limited(getattr(durable, name)))
        try:
            act(store)
        except Stop:
            return False
    return True


def stops(box: Box, act: Callable[[Store], object]) -> Iterator[Box]:
    """A copy of the box for each moment at which ``act`` can be interrupted."""
    for after in range(1000):
        run = Box.__new__(Box)
        run.__dict__.update(box.__dict__)
        run.store = box.directory / "run"
        shutil.copytree(box.store, run.store)
        done = stopped(run.store, act, after)
        if done:
            assert after >= 4, "hardly a call was seen"
            shutil.rmtree(run.store)
            return
        yield run
        shutil.rmtree(run.store)


def assert_listed_or_in_the_trash(box: Box, known: list[str]) -> None:
    """Each snapshot is either listed or in the trash, and its data exists."""
    assert sorted([*names(box), *trash(box)]) == sorted(known)
    with open_store(str(box.store)) as store:
        for one in store.trash.read():
            assert one.manifest.summary.id == one.id
    report = box.verify()
    assert report.ok, report.as_json()


def test_a_forget_that_ends_anywhere_leaves_each_snapshot_listed_or_in_the_trash(
    copied: Box,
) -> None:
    known = names(copied)

    def act(store: Store) -> None:
        apply_forget(store, plan_forget_by_id(store, known[:2], NOW_NS), NOW_NS)

    for run in stops(copied, act):
        assert_listed_or_in_the_trash(run, known)
        left = [one for one in names(run) if one in known[:2]]
        if left:
            forget(run, *left)
        assert (names(run), trash(run)) == (known[2:], known[:2])


def test_an_undo_that_ends_anywhere_leaves_the_snapshot_listed_or_in_the_trash(
    copied: Box,
) -> None:
    known = names(copied)
    forget(copied, known[0])
    for run in stops(copied, lambda store: bring_back(store, known[0])):
        assert_listed_or_in_the_trash(run, known)
        if known[0] in trash(run):
            undo(run, known[0])
        assert names(run) == known


def test_an_expiry_that_ends_anywhere_gives_no_id_away(copied: Box) -> None:
    known = names(copied)
    forget(copied, known[0], known[1])
    for run in stops(copied, lambda store: store.trash.empty(known[:2])):
        assert names(run) == known[2:]
        with open_store(str(run.store)) as store:
            assert store.trash.used_ids() == set(known[:2])
            lone = store.trash.orphaned_copies()
            assert lost_snapshots(store) == []
        assert not [name for name, gone in lone.items() if not gone], "taken for a lost manifest"
        with open_store(str(run.store), write=True) as store:
            plan = plan_prune(store, trash_s=0, now_ns=NOW_NS)
            apply_prune(store, plan, clock=ManualClock())
        assert retired(run) == set(known[:2])
        assert os.listdir(run.store / "marks") == []
        assert trash(run) == []
        assert not copy_file(run, known[0]).exists()
        assert run.verify().ok


def test_a_label_that_ends_anywhere_is_the_old_one_or_the_new_one(copied: Box) -> None:
    known = names(copied)

    def act(store: Store) -> None:
        change_tags(store, known[1], add=["new"])
        set_pinned(store, known[1], pinned=True)

    seen = set()
    for run in stops(copied, act):
        assert_listed_or_in_the_trash(run, known)
        (one,) = [one for one in run.snapshots() if one.id == known[1]]
        seen.add((one.tags, one.pinned))
    old = ("number-1",)
    assert seen == {(old, False), ((*old, "new"), False), ((*old, "new"), True)}


def test_a_snapshot_that_leaves_the_trash_while_it_is_listed_is_not_reported_as_lost(
    taken: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = names(taken)
    forget(taken, first, second)
    read = Manifests.read

    def reads_while_a_prune_ends(manifests: Manifests, name: SnapshotId, **options: Any) -> Any:
        monkeypatch.setattr(Manifests, "read", read)
        expire(taken, first)
        return read(manifests, name, **options)

    monkeypatch.setattr(Manifests, "read", reads_while_a_prune_ends)
    assert trash(taken) == [second]


def test_a_snapshot_that_leaves_out_more_is_not_the_newest_whole_one(box: Box) -> None:
    (box.source / "file").write_bytes(b"content")
    whole = box.take()
    partial = box.take(exclude=ExcludeRules(("*",)))

    with open_store(str(box.store)) as store:
        plan = plan_forget(store, parse_policy("last:1"), NOW_NS, rules=ExcludeRules())
        as_before = plan_forget(store, parse_policy("last:1"), NOW_NS)

    assert [one.id for one, _ in plan.kept] == [partial.id, whole.id]
    assert [one.id for one, _ in as_before.forgotten] == [whole.id]


def test_a_rule_that_all_snapshots_follow_keeps_no_old_one(box: Box) -> None:
    (box.source / "file").write_bytes(b"content")
    rules = ExcludeRules(("*.log",))
    old = box.take(exclude=rules)
    box.take(exclude=rules)

    with open_store(str(box.store)) as store:
        for wanted in (rules, ExcludeRules()):
            plan = plan_forget(store, parse_policy("last:1"), NOW_NS, rules=wanted)
            assert [one.id for one, _ in plan.forgotten] == [old.id]
