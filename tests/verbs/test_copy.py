"""``ciuic copy``: what it sends, what it does not send, and what the copy can do."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.report import CopyReport
from ciuic.errors import CancelledError
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.box import Box
from tests.kit.damage import flip_content, packs
from tests.kit.program import Outcome, ciuic
from tests.kit.pruning import forget, prune
from tests.kit.spelled import respell_summary
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def write_some(box: Box, seed: int) -> None:
    """Write small files, a large one, and one that differs each time."""
    rng = random.Random(seed)
    for number in range(40):
        path = box.source / f"d{number % 4}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(3000) if number % 5 == seed % 5 else b"%d" % number)
    large = box.source / "large"
    if not large.exists():
        large.write_bytes(rng.randbytes(3 * MIB + 7))
    (box.source / "step").write_bytes(rng.randbytes(70_000))


def copy_to(box: Box, *arguments: str | Path, code: int = 0) -> Outcome:
    outcome = box.ciuic("copy", "--to", box.directory / "copy", *arguments)
    assert outcome.code == code, outcome
    return outcome


def document(box: Box, *arguments: str | Path, code: int = 0) -> Any:
    return copy_to(box, *arguments, "--json", code=code).document


def boxed(box: Box) -> Box:
    """Return the copy as a box with the same source."""
    other = Box.__new__(Box)
    other.__dict__.update(box.__dict__)
    other.store = box.directory / "copy"
    other.config = box.directory / "copy.conf"
    other.configure()
    return other


def taken(box: Box, count: int = 3) -> dict[str, dict[bytes, Photo]]:
    known = {}
    for seed in range(count):
        write_some(box, seed)
        known[box.take(tags=(f"t{seed}",)).id] = photograph(box.source)
    return known


def assert_restores(box: Box, known: dict[str, dict[bytes, Photo]]) -> None:
    """Check that the store restores these snapshots, and no other store is needed."""
    assert {one.id for one in box.snapshots()} == set(known)
    report = box.verify()
    assert report.ok, report.as_json()
    out = box.directory / "out"
    for name, photo in known.items():
        box.restore(snapshot=name, to=out)
        assert differences(photo, photograph(out / "source")) == []
        shutil.rmtree(out)


def test_a_copy_restores_every_snapshot_without_its_source(box: Box) -> None:
    known = taken(box)
    done = document(box, "--init", "--verify")
    assert [one["id"] for one in done["copied"]] == list(known)
    assert done["verify"]["ok"]
    assert done["sent_bytes"] > 3 * MIB
    manifests = {path.name: path.read_bytes() for path in (box.store / "snapshots").iterdir()}
    there = box.directory / "copy" / "snapshots"
    assert {path.name: path.read_bytes() for path in there.iterdir()} == manifests
    box.store.rename(box.directory / "gone")
    assert_restores(boxed(box), known)


def test_chunks_that_the_copy_has_are_not_sent_again(box: Box) -> None:
    taken(box)
    first = document(box, "--init")
    again = document(box)
    assert (again["sent_bytes"], again["stored_bytes"], again["copied"]) == (0, 0, [])
    assert len(again["present"]) == 3
    known = taken(box, 1)
    more = document(box)
    assert [one["id"] for one in more["copied"]] == list(known)
    assert 0 < more["sent_bytes"] < first["sent_bytes"] / 3


def test_a_named_snapshot_that_is_there_is_not_copied_again(box: Box) -> None:
    newest = list(taken(box))[-1]
    document(box, "--init")

    for more in ((), ("--dry-run",)):
        again = document(box, newest, *more)
        assert (again["copied"], again["present"], again["sent_bytes"]) == ([], [newest], 0)


def test_chunks_that_a_prune_over_there_moved_to_other_packs_are_not_sent_again(box: Box) -> None:
    known = taken(box)
    document(box, "--init")
    there = boxed(box)
    oldest = next(iter(known))
    forget(there, oldest)
    before = {path.name for path in packs(there.store)}
    prune(there)
    for number in range(8):
        (box.source / "step").write_bytes(b"%d" % number * 5000)
        known[box.take().id] = photograph(box.source)
        document(box)
    prune(there)
    assert {path.name for path in packs(there.store)} != before
    again = document(box)
    assert (again["copied"], again["sent_bytes"]) == ([], 0)
    assert again["forgotten"] == [oldest]
    del known[oldest]
    assert_restores(there, known)


def test_a_dry_run_says_what_is_sent_and_makes_nothing(box: Box) -> None:
    taken(box)
    foreseen = document(box, "--init", "--dry-run")
    assert not (box.directory / "copy").exists()
    assert len(foreseen["copied"]) == 3
    done = document(box, "--init")
    assert foreseen["copied"] == done["copied"]
    assert foreseen["sent_bytes"] == done["sent_bytes"]
    taken(box, 1)
    names = sorted(path.name for path in (box.directory / "copy").rglob("*"))
    foreseen = document(box, "--dry-run")
    assert sorted(path.name for path in (box.directory / "copy").rglob("*")) == names
    assert foreseen["sent_bytes"] == document(box)["sent_bytes"] > 0


def tensors(box: Box, count: int) -> dict[str, dict[bytes, Photo]]:
    """Take snapshots of a tensor that changes a little each time: they are deltas."""
    dice = np.random.default_rng(1)
    weights = dice.normal(0, 0.02, MIB // 4).astype("<f4")
    box.chain_cost = 100.0
    known = {}
    for _ in range(count):
        weights = (weights + dice.normal(0, 1e-6, len(weights))).astype("<f4")
        (box.source / "weights.bin").write_bytes(weights.tobytes())
        known[box.take().id] = photograph(box.source)
    return known


def deltas_of(box: Box) -> int:
    with open_store(str(box.store)) as store:
        return sum(len(rows) for rows in store.index.delta_bases())


def test_deltas_are_copied_as_they_are_if_their_bases_are_there(box: Box) -> None:
    known = tensors(box, 4)
    assert deltas_of(box) == 3
    document(box, "--init")
    there = boxed(box)
    assert deltas_of(there) == 3
    assert_restores(there, known)


def test_a_delta_without_its_base_is_stored_anew(box: Box) -> None:
    known = tensors(box, 4)
    newest = list(known)[-1]
    assert document(box, newest, "--init")["copied"][0]["id"] == newest
    there = boxed(box)
    assert deltas_of(there) == 0
    assert_restores(there, {newest: known[newest]})
    # The older ones follow; the delta base of the first is not a delta.
    document(box)
    assert_restores(there, known)


def test_damage_that_parity_repairs_does_not_reach_the_copy(tmp_path: Path) -> None:
    box = Box(tmp_path, parity=0.04)
    known = taken(box)
    content = (box.source / "step").read_bytes()
    flip_content(box.store, content)
    document(box, "--init", "--verify")
    assert_restores(boxed(box), known)


def test_a_snapshot_that_is_damaged_is_refused_and_the_others_are_copied(box: Box) -> None:
    known = taken(box)
    flip_content(box.store, (box.source / "step").read_bytes())
    damaged = list(known)[-1]
    done = document(box, "--init", code=4)
    assert [one["id"] for one in done["refused"]] == [damaged]
    del known[damaged]
    assert_restores(boxed(box), known)


def test_a_manifest_that_cannot_be_read_is_named(box: Box) -> None:
    known = taken(box)
    name = list(known)[1]
    (box.store / "snapshots" / f"{name}.json").write_text("{}")
    done = document(box, "--init", code=4)
    assert [one["id"] for one in done["damaged_snapshots"]] == [name]
    del known[name]
    assert_restores(boxed(box), known)


def test_a_snapshot_that_the_copy_has_forgotten_is_sent_only_if_it_is_brought_back(
    box: Box,
) -> None:
    known = taken(box)
    document(box, "--init")
    there = boxed(box)
    first, second = list(known)[:2]
    forget(there, first)
    prune(there)
    forget(there, second)
    assert document(box)["forgotten"] == [first, second]
    for name, word in ((first, "for good"), (second, "forget --undo")):
        (refused,) = document(box, name, code=1)["refused"]
        assert word in refused["what"]


def test_a_named_snapshot_gets_back_what_the_copy_has_lost(box: Box) -> None:
    known = taken(box)
    document(box, "--init")
    there = boxed(box)
    packs(there.store)[0].unlink()
    assert not there.verify().ok
    assert document(box, *known)["sent_bytes"] > MIB
    assert_restores(there, known)


def test_chunks_that_a_scrub_of_the_copy_found_lost_are_sent_again(box: Box) -> None:
    known = taken(box)
    document(box, "--init")
    there = boxed(box)
    flip_content(there.store, (box.source / "step").read_bytes())
    assert ciuic("--store", there.store, "scrub").code == 4
    assert document(box)["mended_chunks"] == 1
    assert_restores(there, known)


@pytest.mark.parametrize("place", ["store", "store/packs/x"])
def test_a_store_is_not_copied_to_itself(box: Box, place: str) -> None:
    taken(box, 1)
    outcome = box.ciuic("copy", "--to", box.directory / place, "--init")
    assert outcome.code == 2, outcome
    assert "is the store itself" in outcome.err


def test_a_store_under_another_name_is_not_copied_to_itself(box: Box) -> None:
    taken(box, 1)
    (box.directory / "name").symlink_to(box.store)
    outcome = box.ciuic("copy", "--to", box.directory / "name")
    assert outcome.code == 2, outcome


def test_a_new_copy_in_a_root_is_refused_unless_a_pattern_excludes_it(box: Box) -> None:
    write_some(box, 1)
    box.take()
    fed = box.source / "logs" / "cp"

    for more in ((), ("--dry-run",)):
        outcome = box.ciuic("copy", "--to", fed, "--init", *more)
        assert outcome.code == 2, outcome
        assert (
            f"the copy {fed} is inside {box.source}, so snapshots would contain it" in outcome.err
        )
        assert f"Add {fed} to exclude_patterns" in outcome.err
        assert not fed.parent.exists()

    without = ciuic("--store", box.store, "copy", "--to", box.directory / "copy", "--init")
    assert without.code == 0, "no configuration names roots"

    box.configure(exclude="logs")
    assert box.ciuic("copy", "--to", fed, "--init").code == 0
    box.configure()
    assert box.ciuic("copy", "--to", fed, "--init").code == 0, "it is there already"


def test_a_place_without_a_store_is_one_sentence(box: Box) -> None:
    taken(box, 1)
    outcome = copy_to(box, code=1)
    assert outcome.err.splitlines()[0].startswith("ciuic: there is no store at ")
    assert "--init" in outcome.err
    assert not (box.directory / "copy").exists()
    outcome = box.ciuic("copy", "--to", "ftp://bucket/x")
    assert outcome.code == 2
    assert "'ftp:' is not a kind of store" in outcome.err


def test_a_copy_of_a_newer_format_is_refused_by_name(box: Box) -> None:
    taken(box, 1)
    copy_to(box, "--init")
    header = box.directory / "copy" / "ciuic-store.json"
    header.write_text(header.read_text().replace('"format": 1', '"format": 9'))
    outcome = copy_to(box, code=1)
    assert "9" in outcome.err


def test_another_snapshot_of_the_same_id_is_named_and_left_alone(box: Box) -> None:
    (name,) = taken(box, 1)
    copy_to(box, "--init")
    there = boxed(box)
    with open_store(str(there.store), write=True) as store:
        manifest = store.manifest(name)
        other = msgspec.structs.replace(manifest.summary, taken_ns=5)
        respell_summary(store, other)
    before = (there.store / "snapshots" / f"{name}.json").read_bytes()
    (refused,) = document(box, code=1)["refused"]
    assert "a different snapshot with this ID" in refused["what"]
    assert (there.store / "snapshots" / f"{name}.json").read_bytes() == before


def test_tags_and_pins_of_the_copy_are_its_own(box: Box) -> None:
    (name,) = taken(box, 1)
    copy_to(box, "--init")
    there = boxed(box)
    assert ciuic("--store", there.store, "tag", name, "--add", "kept").code == 0
    done = document(box)
    assert (done["present"], done["refused"]) == ([name], [])
    assert there.snapshots()[0].tags == ("t0", "kept")


def test_later_tags_pins_and_notes_of_a_snapshot_are_copied_once(box: Box) -> None:
    early, late = taken(box, 2)
    there = boxed(box)
    label(box, early)
    copy_to(box, "--init")
    assert labels_of(there)[early] == (("best",), True, "the good one")

    label(box, late)
    done = document(box)
    assert (len(done["present"]), done["notes"]) == (2, [])
    assert labels_of(there)[late] == (("best",), True, "the good one")

    assert ciuic("--store", there.store, "pin", late, "--remove").code == 0
    assert box.ciuic("tag", early, "--add", "later").code == 0
    assert document(box)["notes"] == []
    assert labels_of(there)[late] == (("best",), False, "the good one")
    assert labels_of(there)[early] == (("best",), True, "the good one")


def test_a_copy_that_was_killed_before_the_marks_gets_them_with_the_next(box: Box) -> None:
    (name,) = taken(box, 1)
    label(box, name)
    copy_to(box, "--init")
    there = boxed(box)
    # The copy ended before it could write a mark.
    shutil.rmtree(there.store / "marks")
    shutil.rmtree(there.store / "parity", ignore_errors=True)
    for leftover in there.store.glob("catalog.sqlite*"):
        leftover.unlink()
    assert labels_of(there)[name] == (("t0",), False, "")
    document(box)
    assert labels_of(there)[name] == (("best",), True, "the good one")


def label(box: Box, name: str) -> None:
    tags = [f"--remove={tag}" for tag in labels_of(box)[name][0]]
    assert box.ciuic("tag", name, "--add", "best", *tags).code == 0
    assert box.ciuic("pin", name).code == 0
    assert box.ciuic("note", name, "the good one").code == 0


def labels_of(box: Box) -> dict[str, tuple[tuple[str, ...], bool, str]]:
    return {one.id: (one.tags, one.pinned, one.note) for one in box.snapshots()}


def test_a_pipe_gets_a_line_for_each_snapshot(box: Box) -> None:
    known = taken(box)
    lines = copy_to(box, "--init").out.splitlines()
    assert [line.split()[0] for line in lines] == list(known)


def test_the_new_packs_have_parity_as_configured(tmp_path: Path) -> None:
    box = Box(tmp_path, parity=0.04)
    taken(box)
    copy_to(box, "--init")
    there = tmp_path / "copy"
    parity = {path.name for path in (there / "parity").iterdir()}
    assert {path.name for path in packs(there)} <= parity
    assert {path.name for path in (there / "snapshots").iterdir()} <= parity


def test_the_progress_goes_from_snapshot_to_snapshot_and_a_copy_can_be_cancelled_there(
    box: Box,
) -> None:
    known = list(taken(box))
    assert ciuic("--store", box.directory / "copy", "init").code == 0
    seen: list[tuple[str, int, int, int]] = []

    def copied(cancelled: Callable[[], bool]) -> CopyReport:
        report = CopyReport(copy="copy", dry_run=False)
        with (
            open_store(str(box.store)) as source,
            open_store(str(box.directory / "copy"), write=True) as copy,
        ):
            copy_snapshots(
                source,
                copy,
                CopyRequest(),
                report,
                clock=SystemClock(),
                cancelled=cancelled,
                progress=lambda *how_far: seen.append(how_far),
            )
        return report

    with pytest.raises(CancelledError):
        copied(lambda: any(done == 1 for _, done, _, _ in seen))
    assert {one[:3] for one in seen} == {(known[0], 0, 3), (known[1], 1, 3)}
    seen.clear()
    report = copied(lambda: False)
    assert list(dict.fromkeys(one[:3] for one in seen)) == [
        (snapshot_id, number, 3) for number, snapshot_id in enumerate(known)
    ]
    sent = [sent_bytes for _, _, _, sent_bytes in seen]
    assert sent == sorted(sent)
    assert 0 < sent[-1] <= report.sent_bytes


def test_a_limit_without_its_unit_is_refused(box: Box) -> None:
    taken(box, 1)
    refused = copy_to(box, "--init", "--limit", "5", code=2)
    assert "'5' is less than 1 KiB a second; write a unit" in refused.err
    assert not (box.directory / "copy").exists()
    copy_to(box, "--init", "--limit", "0")


def test_a_missing_copy_gets_the_hint_to_create_it_only_where_that_works(box: Box) -> None:
    taken(box, 1)
    assert "--init creates a store that cuts files like this one" in copy_to(box, code=1).err
    other = box.directory / "copy"
    other.mkdir()
    (other / "file").write_bytes(b"x")
    refused = copy_to(box, code=1)
    assert "--init" not in refused.err
    assert "Give the store's directory." in refused.err
