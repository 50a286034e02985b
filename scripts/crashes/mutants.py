"""Mistakes that somebody could make, each put into a copy of the source: a named test must fail.

A test that passes whatever the code does proves nothing. These are the mistakes that cost other
tools' users their data: a sync left out, two steps in the wrong order, a digest not looked at, a
cache that is believed. A mutant that survives is a fault of the tests, and fails the run; so is one
whose text is not in the source any more.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["list_all", "run_all"]

_REPOSITORY: Final = Path(__file__).parents[2]
_COPIED: Final = ("ciuic", "ciuicd", "tests", "scripts", "docs", "etc", "pyproject.toml")
_LIMIT_S: Final = 1800
_TOO_LONG: Final = 124
_STATES: Final = "tests/crash/test_states.py"
_TAKE: Final = "tests/verbs/test_take.py::"
_CHAINS: Final = "tests/verbs/test_chains.py::"
_RESTORE: Final = "tests/verbs/test_restore.py::"
_EVERY_PROMISE: Final = "test_every_promise_holds_in_whatever_a_power_cut_leaves"


class Mutant(NamedTuple):
    """One mistake: what to replace in which file, and the test that must notice."""

    title: str
    file: str
    old: str
    new: str
    test: str


def _story(name: str) -> str:
    return f"{_STATES}::{_EVERY_PROMISE}[{name}]"


MUTANTS: Final = (
    Mutant(
        "a pack or a manifest gets its name before its content is synced",
        "ciuic/durable.py",
        ("    os.fsync(fd)\n    os.rename(temporary, final)\n"),
        ("    os.rename(temporary, final)\n    os.fsync(fd)\n"),
        _story("first snapshots"),
    ),
    Mutant(
        "the content of packs and manifests is not synced",
        "ciuic/durable.py",
        ("    os.fsync(fd)\n    os.rename(temporary, final)\n"),
        "    os.rename(temporary, final)\n",
        _story("first snapshots"),
    ),
    Mutant(
        "names in directories are never synced",
        "ciuic/durable.py",
        ("    with _opened_directory(path) as fd:\n        os.fsync(fd)\n"),
        ("    with _opened_directory(path) as fd:\n        del fd\n"),
        _story("first snapshots"),
    ),
    Mutant(
        "a manifest's name is not synced before the snapshot is reported",
        "ciuic/durable.py",
        (
            "    write_named(path, data, temporary_directory=temporary_directory, mode=mode)\n"
            "    sync_directory(os.path.dirname(path))\n"
        ),
        "    write_named(path, data, temporary_directory=temporary_directory, mode=mode)\n",
        _story("first snapshots"),
    ),
    Mutant(
        "the store's own name is not synced when it is made",
        "ciuic/durable.py",
        ('        os.mkdir(path, mode)\n    sync_directory(os.path.dirname(path) or ".")\n'),
        "        os.mkdir(path, mode)\n",
        _story("first snapshots"),
    ),
    Mutant(
        "a file is written under its final name",
        "ciuic/durable.py",
        "            publish(fd, temporary, path)\n",
        (
            "            os.rename(temporary, path)\n"
            "            os.ftruncate(fd, 0)\n"
            "            os.pwrite(fd, data, 0)\n"
            "            os.fsync(fd)\n"
        ),
        _story("first snapshots"),
    ),
    Mutant(
        "what was written to many files at once is not synced",
        "ciuic/durable.py",
        "    if libc.syncfs(fd) != 0:\n",
        "    if fd < 0:\n",
        _story("restore into a new place"),
    ),
    Mutant(
        "the manifest is written before the packs are finished",
        "ciuic/verbs/take.py",
        "        totals = writer.finish()\n",
        "        totals = writer.totals\n",
        _story("first snapshots"),
    ),
    Mutant(
        "packs have no durable names when the manifest is written",
        "ciuic/store/writer.py",
        ("    def _barrier(self) -> None:\n        sync_packs(self._store_path)\n"),
        "    def _barrier(self) -> None:\n",
        _story("first snapshots"),
    ),
    Mutant(
        "files of a restore get their names before their content is synced",
        "ciuic/verbs/placing.py",
        ("        self._filler.flush()\n        self._sync()\n"),
        "        self._filler.flush()\n",
        _story("restore over what is there"),
    ),
    Mutant(
        "a restore is reported before its names are synced",
        "ciuic/verbs/placing.py",
        ("        self._barrier()\n        self._sync()\n"),
        "        self._barrier()\n",
        _story("restore into a new place"),
    ),
    Mutant(
        "a chunk is given out without a look at its digest",
        "ciuic/store/frame.py",
        "    actual = chunk_id(kind, plain)\n",
        "    actual = name\n",
        "tests/verbs/test_lying_store.py::test_a_chunk_under_another_ones_name_is_never_restored",
    ),
    Mutant(
        "verify reads chunks and does not hash them",
        "ciuic/store/frame.py",
        "        if identify(view[start : start + length]) != name:\n",
        "        if False:\n",
        "tests/verbs/test_lying_store.py::test_a_chunk_under_another_ones_name_is_found_by_verify",
    ),
    Mutant(
        "verify believes the catalog about what a frame holds",
        "ciuic/verbs/checking.py",
        "    is_sound = all(\n",
        "    is_sound = True or all(\n",
        "tests/verbs/test_checking.py::test_a_catalog_that_lies_is_no_damage",
    ),
    Mutant(
        "verify takes whatever frame stands at the place of another one",
        "ciuic/store/reader.py",
        "                if header_id:\n",
        "                if False:\n",
        "tests/verbs/test_listed.py::test_a_sound_frame_at_the_place_of_another_one_is_damage",
    ),
    Mutant(
        "verify takes from the cache what parity has given back",
        "ciuic/store/reader.py",
        "if heal or key not in self._mended_frames else None\n",
        "if True else None\n",
        "tests/verbs/test_listed.py::test_a_node_that_parity_gives_back_is_damaged_all_the_same",
    ),
    Mutant(
        "a process that verifies finds everything sound",
        "ciuic/verbs/checking.py",
        "            if frame is None:\n",
        "            if False:\n",
        "tests/verbs/test_checking.py",
    ),
    Mutant(
        "a sealed document is believed without a look at its checksum",
        "ciuic/store/sealed.py",
        "    if data_id(data[:start] + _ZEROS + _END).hex().encode() != digest:\n",
        "    if not digest:\n",
        "tests/unit/test_sealed.py",
    ),
    Mutant(
        "a catalog that names packs which are gone is believed",
        "ciuic/store/store.py",
        "        if any(present.get(name) != size for name, size in recorded.items()):\n",
        "        if recorded and not present:\n",
        _TAKE + "test_the_next_snapshot_heals_one_lost_pack",
    ),
    Mutant(
        "the catalog's transactions are not synced",
        "ciuic/store/index.py",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = OFF",
        _story("first snapshots"),
    ),
    Mutant(
        "what the catalog says of a manifest is believed without a look at its file",
        "ciuic/catalog.py",
        "        if row and status and row[:2] == (status.st_size, status.st_mtime_ns):\n",
        "        if row:\n",
        "tests/cli/test_broken_stores.py",
    ),
    Mutant(
        "a chunk that is damaged in one pack is not looked for in another",
        "ciuic/store/reader.py",
        "                again = self.another_place(name, place)\n",
        "                again = None\n",
        "tests/verbs/test_damage.py",
    ),
    Mutant(
        "a snapshot is forgotten before it is in the trash",
        "ciuic/store/store.py",
        "            self._trash.put(files, now_ns)\n",
        (
            "            for one in map(layout.manifest_name, snapshot_ids):\n"
            "                durable.remove_file(os.path.join(self.path, layout.SNAPSHOTS, one))\n"
            "            self._trash.put(files, now_ns)\n"
        ),
        _story("forget"),
    ),
    Mutant(
        "a snapshot is forgotten, and the removal is not synced",
        "ciuic/store/store.py",
        ("layout.manifest_name(one)))\n            durable.sync_directory(directory)\n"),
        "layout.manifest_name(one)))\n",
        _story("forget"),
    ),
    Mutant(
        "a snapshot leaves the trash before it is listed again",
        "ciuic/store/store.py",
        "            _, _, manifest, data = self._forgotten(snapshot_id)\n",
        (
            "            _, _, manifest, data = self._forgotten(snapshot_id)\n"
            "            self._trash.remove([snapshot_id])\n"
        ),
        _story("forget"),
    ),
    Mutant(
        "the trash is written without a sync",
        "ciuic/store/trash.py",
        "                durable.write_named(\n",
        (
            '                with open(self._entry_path(snapshot_id), "wb") as file:\n'
            "                    file.write(seal(entry))\n"
            "                continue\n"
            "                durable.write_named(\n"
        ),
        _story("forget"),
    ),
    Mutant(
        "snapshots are forgotten before their names in the trash are synced",
        "ciuic/store/trash.py",
        (
            "                    mode=_FILE_MODE,\n"
            "                )\n"
            "            durable.sync_directory(self._path)\n"
        ),
        "                    mode=_FILE_MODE,\n                )\n",
        _story("forget"),
    ),
    Mutant(
        "a pack gets its name before its parity",
        "ciuic/store/writer.py",
        (
            "        parity = pack.parity()\n"
            "    if parity is not None:\n"
            "        write_parity(store_path, name, parity)\n"
            '    with store_faults("write to", place):\n'
            "        durable.publish(pack.fd, pack.path, final)\n"
        ),
        (
            "        durable.publish(pack.fd, pack.path, final)\n"
            "        parity = pack.parity()\n"
            "    if parity is not None:\n"
            "        write_parity(store_path, name, parity)\n"
        ),
        "tests/verbs/test_repair.py::test_no_pack_is_seen_without_its_parity",
    ),
    Mutant(
        "an ID that was forgotten for good is used again",
        "ciuic/store/store.py",
        "        self._trash.retire(gone)\n",
        "",
        _story("prune"),
    ),
    Mutant(
        "old packs are removed before the new ones have durable names",
        "ciuic/store/rewrite.py",
        (
            "        publish_pack(self._store_path, sink, name)\n"
            "        sync_packs(self._store_path)\n"
        ),
        "        publish_pack(self._store_path, sink, name)\n",
        _story("prune"),
    ),
    Mutant(
        "old packs are removed before the new ones are written",
        "ciuic/store/rewrite.py",
        ("            publishing = self._helper.submit(self._make_durable, sink, name)\n"),
        (
            "            for one in emptied:\n"
            "                unlink_pack(self._store_path, one)\n"
            "            publishing = self._helper.submit(self._make_durable, sink, name)\n"
        ),
        _story("prune"),
    ),
    Mutant(
        "that a new pack can't be written is not noticed",
        "ciuic/store/rewrite.py",
        "            publishing.result()\n",
        "",
        "tests/verbs/test_prune.py::test_a_new_pack_that_can_not_be_written_costs_nothing",
    ),
    Mutant(
        "packs are removed while the trash still needs them",
        "ciuic/verbs/prune.py",
        "            removals.begin_with(functools.partial(_expire, store, plan))\n",
        "            functools.partial(_expire, store, plan)\n",
        _story("prune"),
    ),
    Mutant(
        "packs do not wait until the trash is empty",
        "ciuic/store/removal.py",
        "            self._first.result()\n        unlink",
        "            pass\n        unlink",
        "tests/verbs/test_prune.py::test_no_pack_goes_while_the_trash_still_needs_it",
    ),
    Mutant(
        "what is in the trash is not marked",
        "ciuic/verbs/prune.py",
        "    found = [one for one in trash if one.id not in expired]\n",
        "    found: list[_Roots] = []\n",
        _story("prune"),
    ),
    Mutant(
        "what repair sets aside may be gone before it is durable",
        "ciuic/durable.py",
        (
            "    os.link(source, target, follow_symlinks=False)\n"
            "    sync_directory(os.path.dirname(target))\n"
        ),
        "    os.link(source, target, follow_symlinks=False)\n",
        _story("repair"),
    ),
    Mutant(
        "a second writer is let in",
        "ciuic/store/lock.py",
        "                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        _TAKE + "test_a_second_writer_is_refused_while_the_first_writes",
    ),
    Mutant(
        "a changed file with its old time and size is believed",
        "ciuic/verbs/gather.py",
        "            and old.ctime_ns == status.st_ctime_ns\n",
        "",
        _TAKE + "test_a_changed_file_with_the_old_time_and_size_is_read",
    ),
    Mutant(
        "a name that leads out of the target is written",
        "ciuic/verbs/placing.py",
        "    return bool(name) and name not in",
        "    return bool(name) or name not in",
        _RESTORE + "test_names_that_no_file_can_have_are_named_and_write_nothing",
    ),
    Mutant(
        "a prune goes on where a tree can't be read",
        "ciuic/verbs/prune.py",
        '            raise _unreadable(error, f"the trees of {snapshot}") from error\n',
        "            del error, snapshot\n",
        "tests/verbs/test_prune.py::test_what_can_not_be_read_stops_it_before_anything_is_removed",
    ),
    Mutant(
        "a delta counts as there without what it builds on",
        "ciuic/store/index.py",
        "            found -= {name for name in deltas if name not in whole}\n",
        "            del whole\n",
        f"{_CHAINS}test_what_builds_on_a_lost_chunk_is_stored_again",
    ),
    Mutant(
        "prune does not ask what deltas build on",
        "ciuic/store/sweep.py",
        "    marks.follow_references()\n",
        "",
        f"{_CHAINS}test_forgetting_what_is_built_upon_keeps_what_is_needed_of_it",
    ),
    Mutant(
        "prune keeps a difference and drops the chunk that stands alone",
        "ciuic/store/sweep.py",
        "    return found if len(references) == 1 else alone\n",
        "    return found\n",
        f"{_CHAINS}test_two_chunks_are_never_each_left_as_a_difference_from_the_other",
    ),
    Mutant(
        "prune does not ask what a pack that parity can mend builds on",
        "ciuic/store/sweep.py",
        "                _add_references(marks, read_frames(store_path, name, heal=True))\n",
        "                pass\n",
        f"{_CHAINS}test_what_is_built_upon_waits_for_a_repair",
    ),
    Mutant(
        "the catalog is not told which copy a prune keeps",
        "ciuic/store/rewrite.py",
        "        index.point(pack, read_frames(store_path, pack), names)\n",
        "        del pack, names\n",
        "tests/verbs/test_prune.py::test_the_catalog_is_right_without_being_made_anew",
    ),
    Mutant(
        "a new pack does not wait for an old one of its name to be gone",
        "ciuic/store/rewrite.py",
        "            self._removals.make_way(name)\n",
        "            pass\n",
        "tests/verbs/test_prune.py"
        "::test_a_new_pack_is_not_taken_for_the_old_one_of_its_name_that_goes",
    ),
    Mutant(
        "a new pack goes for the old one of its name that nobody needed",
        "ciuic/store/rewrite.py",
        "        return [pack for pack in self.dead if pack not in self._made]\n",
        "        return list(self.dead)\n",
        "tests/verbs/test_prune.py"
        "::test_a_new_pack_is_not_taken_for_the_old_one_of_its_name_that_goes",
    ),
    Mutant(
        "packs that nobody needs stay where others can't be emptied",
        "ciuic/verbs/prune.py",
        "                if not rewriter.dead:\n",
        "                if rewriter.dead or not rewriter.dead:\n",
        "tests/verbs/test_prune.py"
        "::test_packs_that_nobody_needs_go_although_a_worn_one_can_not_be_emptied",
    ),
    Mutant(
        "a base snapshot builds on older ones",
        "ciuic/verbs/gather.py",
        "if self._believe and self._writer.makes_deltas:",
        "if self._writer.makes_deltas:",
        f"{_CHAINS}test_what_a_base_snapshot_has_to_store_stands_alone",
    ),
    Mutant(
        "a delta may cost whatever it likes to read",
        "ciuic/codec/__init__.py",
        "            chain_cost * fraction * size - reference.cost_bytes,\n",
        "",
        f"{_CHAINS}test_a_chain_is_bounded_by_what_it_costs_to_read",
    ),
    Mutant(
        "a file in flux is built upon",
        "ciuic/verbs/earlier.py",
        "entry.content and entry.state == WHOLE and",
        "entry.content and",
        f"{_CHAINS}test_a_file_in_flux_is_nothing_to_build_upon",
    ),
    Mutant(
        "a delta is not decoded before it counts",
        "ciuic/codec/__init__.py",
        "if len(stored) <= room and _survives(coded, stored, old, plain):",
        "if len(stored) <= room:",
        "tests/unit/test_delta.py::test_what_does_not_come_back_is_not_kept",
    ),
    Mutant(
        "a clone made before the freeze is believed, whatever became of its file",
        "ciuic/capture/early.py",
        "found[1] if found is not None and same_content(found[0], status) else None",
        "found[1] if found is not None else None",
        "tests/filesystems/test_freezing.py::"
        "test_what_changes_after_its_early_clone_is_cloned_by_the_freeze",
    ),
)


def run_all(wanted: str) -> int:
    """Try every mutant whose title has ``wanted`` in it; 1 if one survives."""
    chosen = [one for one in MUTANTS if wanted in one.title]
    bad = 0
    with tempfile.TemporaryDirectory(prefix="ciuic-mutants-") as directory:
        copy = Path(directory) / "ciuic"
        _copy_source(copy)
        for test in dict.fromkeys(one.test for one in chosen):
            if _run_test(copy, test, Path(directory)) != 0:
                print(f"{test}\n    fails without any mutant", flush=True)
                return 1
        for one in chosen:
            began_s = time.monotonic()
            result = _try(one, copy, Path(directory))
            bad += result != "killed"
            took_s = time.monotonic() - began_s
            print(f"{result:<9}{took_s:6.1f} s  {one.title}\n{'':20}{one.test}", flush=True)
    print(f"\n{len(chosen) - bad} of {len(chosen)} mutants killed")
    return 1 if bad or not chosen else 0


def list_all() -> int:
    """Name every mutant and its test; 1 if the text of one is not in the source any more."""
    outdated = 0
    for one in MUTANTS:
        is_there = (_REPOSITORY / one.file).read_text().count(one.old) == 1
        outdated += not is_there
        print(f"{'' if is_there else 'OUTDATED: '}{one.title}\n    {one.file}: {one.test}")
    return 1 if outdated else 0


def _copy_source(copy: Path) -> None:
    copy.mkdir()
    for name in _COPIED:
        source = _REPOSITORY / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source, copy / name)


def _try(mutant: Mutant, copy: Path, scratch: Path) -> str:
    path = copy / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        return "outdated"
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        # All states that there are: whoever is killed is killed early.
        code = _run_test(copy, mutant.test, scratch, long=mutant.test.startswith(_STATES))
    finally:
        path.write_text(text)
    # 1: tests have failed. Anything else means that the test was not even run.
    return {0: "SURVIVED", 1: "killed"}.get(code, f"error {code}")


def _run_test(copy: Path, test: str, scratch: Path, *, long: bool = False) -> int:
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environ["CIUIC_LONG"] = "1" if long else ""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    # A limit of pytest's own would end a test that goes through all states, as if it had failed.
    command += ["-o", "timeout=0"]
    try:
        done = subprocess.run(
            [*command, "--basetemp", scratch / "t", test],
            cwd=copy,
            env=environ,
            capture_output=True,
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return _TOO_LONG  # it has not noticed either
    return done.returncode
