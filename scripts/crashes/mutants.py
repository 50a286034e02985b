"""Bugs that a developer could make, each with a named test that must catch it.

A test that passes for any code proves nothing. These are the bugs that cost users of other tools
their data: a missing sync, two steps in the wrong order, an unchecked digest, a cache that is
trusted. ``mutation`` puts each into a copy of the source.
"""

from typing import Final, NamedTuple

__all__ = ["MUTANTS", "STATES", "Mutant"]

STATES: Final = "tests/crash/test_power_cut_states.py"
_TAKE: Final = "tests/verbs/test_take.py::"
_CHAINS: Final = "tests/verbs/test_delta_chains.py::"
_RINGS: Final = "tests/verbs/test_rings_of_deltas.py::"
_RACES: Final = "tests/verbs/test_forget_races.py::"
_TOGETHER: Final = "tests/crash/test_adding_together.py::"
_OWNERS: Final = "tests/verbs/test_owners.py::"
_RESTORE: Final = "tests/verbs/test_restore.py::"
_EVERY_PROMISE: Final = "test_every_promise_holds_in_every_state_after_a_power_cut"


class Mutant(NamedTuple):
    """One bug: the text to replace in a file, and the test that must fail."""

    title: str
    file: str
    old: str
    new: str
    test: str


def _story(name: str) -> str:
    return f"{STATES}::{_EVERY_PROMISE}[{name}]"


MUTANTS: Final = (
    Mutant(
        "a pack gets its name before its content is synced",
        "ciuic/system/durable.py",
        ("    os.fsync(fd)\n    _rename(temporary, final)\n"),
        ("    _rename(temporary, final)\n    os.fsync(fd)\n"),
        _story("first snapshots"),
    ),
    Mutant(
        "a manifest gets its name before its content is synced",
        "ciuic/system/durable.py",
        "    os.fsync(fd)\n    _name_new(temporary, final)\n",
        "    _name_new(temporary, final)\n",
        _story("first snapshots"),
    ),
    Mutant(
        "the content of packs is not synced",
        "ciuic/system/durable.py",
        ("    os.fsync(fd)\n    _rename(temporary, final)\n"),
        "    _rename(temporary, final)\n",
        _story("first snapshots"),
    ),
    Mutant(
        "names in directories are never synced",
        "ciuic/system/durable.py",
        ("    with nofollow.opened_directory(path) as fd:\n        os.fsync(fd)\n"),
        ("    with nofollow.opened_directory(path) as fd:\n        del fd\n"),
        _story("first snapshots"),
    ),
    Mutant(
        "a manifest's name is not synced before the snapshot is reported",
        "ciuic/system/durable.py",
        (
            "def _sync_name(path: str) -> None:\n"
            "    try:\n"
            "        sync_directory(os.path.dirname(path))\n"
        ),
        ("def _sync_name(path: str) -> None:\n    try:\n        pass\n"),
        _story("first snapshots"),
    ),
    Mutant(
        "the store's own name is not synced when it is made",
        "ciuic/system/durable.py",
        (
            "            _give_away(name, directory)\n"
            '    sync_directory(os.path.dirname(path) or ".")\n'
        ),
        "            _give_away(name, directory)\n",
        _story("first snapshots"),
    ),
    Mutant(
        "a file is written under its final name",
        "ciuic/system/durable.py",
        "            publish_as(fd, temporary, path)\n",
        (
            "            _rename(temporary, path)\n"
            "            os.ftruncate(fd, 0)\n"
            "            os.pwrite(fd, data, 0)\n"
            "            os.fsync(fd)\n"
        ),
        _story("first snapshots"),
    ),
    Mutant(
        "a restore of many files does not sync them",
        "ciuic/system/durable.py",
        "    if libc.syncfs(fd) != 0:\n",
        "    if fd < 0:\n",
        _story("restore into a new place"),
    ),
    Mutant(
        "the manifest is written before the packs are finished",
        "ciuic/snapshot/take.py",
        "        totals = self._writer.finish(index_waits=self._store.bucket is None)\n",
        "        totals = self._writer.totals\n",
        _story("first snapshots"),
    ),
    Mutant(
        "packs have no durable names when the manifest is written",
        "ciuic/store/packs/writer.py",
        ("    def _make_durable(self, *, index: bool = True) -> None:\n        self._sync()\n"),
        "    def _make_durable(self, *, index: bool = True) -> None:\n",
        _story("first snapshots"),
    ),
    Mutant(
        "files of a restore get their names before their content is synced",
        "ciuic/restore/place/barrier.py",
        ("        self._filler.flush()\n        self._sync()\n"),
        "        self._filler.flush()\n",
        _story("restore over what is there"),
    ),
    Mutant(
        "a restore is reported before its names are synced",
        "ciuic/restore/place/barrier.py",
        ("        self.pass_through()\n        self._sync()\n"),
        "        self.pass_through()\n",
        _story("restore into a new place"),
    ),
    Mutant(
        "a chunk is returned without a check of its digest",
        "ciuic/store/records/kinds.py",
        "    actual = chunk_id_of(kind, plain)\n",
        "    actual = chunk_id\n",
        "tests/verbs/test_wrong_chunk_id.py::test_a_chunk_under_another_ones_name_is_never_restored",
    ),
    Mutant(
        "verify reads chunks without hashing them",
        "ciuic/store/format/frame.py",
        "        if identify(view[start : start + length]) != chunk_id:\n",
        "        if False:\n",
        "tests/verbs/test_wrong_chunk_id.py::test_a_chunk_under_another_ones_name_is_found_by_verify",
    ),
    Mutant(
        "verify trusts the chunk index about the content of a frame",
        "ciuic/verify/frame_worker.py",
        "    is_sound = all(\n",
        "    is_sound = True or all(\n",
        "tests/verbs/test_frame_checks.py::test_a_wrong_chunk_index_is_no_damage",
    ),
    Mutant(
        "verify accepts any frame at the place of another one",
        "ciuic/store/packs/frame_reader.py",
        "        if header_id:\n",
        "        if False:\n",
        "tests/verbs/test_by_footers.py::test_a_sound_frame_at_the_place_of_another_one_is_damage",
    ),
    Mutant(
        "verify accepts a cached frame that parity rebuilt",
        "ciuic/store/packs/frame_cache.py",
        "            if not repair and key in self.restored:\n",
        "            if False:\n",
        "tests/verbs/test_by_footers.py::test_a_node_that_parity_rebuilds_still_counts_as_damaged",
    ),
    Mutant(
        "a verifying process finds every frame sound",
        "ciuic/verify/frame_worker.py",
        "            if frame is None:\n",
        "            if False:\n",
        "tests/verbs/test_frame_checks.py",
    ),
    Mutant(
        "a sealed document is accepted without a check of its checksum",
        "ciuic/store/records/sealed.py",
        "    if data_id(data[:start] + _ZEROS + _END).hex().encode() != digest:\n",
        "    if not digest:\n",
        "tests/unit/test_sealed.py",
    ),
    Mutant(
        "a chunk index that names missing packs is trusted",
        "ciuic/store/index_keeper.py",
        "        if changed:\n",
        "        if recorded and not present:\n",
        _TAKE + "test_the_next_snapshot_repairs_a_lost_pack",
    ),
    Mutant(
        "the chunk index's transactions are not synced",
        "ciuic/store/index/database.py",
        "PRAGMA synchronous = NORMAL",
        "PRAGMA synchronous = OFF",
        _story("first snapshots"),
    ),
    Mutant(
        "the chunk index's copy of a manifest is trusted without a look at the file",
        "ciuic/catalog/listing.py",
        "    return bool(row and status and row[:2] == (status.st_size, status.st_mtime_ns))\n",
        "    return bool(row)\n",
        "tests/cli/test_broken_stores.py",
    ),
    Mutant(
        "a chunk that is damaged in one pack is not read from another",
        "ciuic/store/packs/reader.py",
        "                again = self.another_place(chunk_id, *tried)\n",
        "                again = None\n",
        "tests/verbs/test_damage.py",
    ),
    Mutant(
        "marks that forget snapshots are not synced",
        "ciuic/system/durable.py",
        "            _write(temporaries[name], data, temporary_directory, mode, publish)\n",
        (
            "            _write(temporaries[name], data, temporary_directory, mode,"
            " lambda _, old, new: _rename(old, new))\n"
        ),
        _story("forget"),
    ),
    Mutant(
        "the names of marks that forget snapshots are not synced",
        "ciuic/store/directory/folder.py",
        '        with store_faults("sync", self.path):\n'
        "            durable.sync_directory(self.path)\n",
        '        with store_faults("sync", self.path):\n            pass\n',
        _story("forget without copies"),
    ),
    Mutant(
        "a prune does not wait for processes that add",
        "ciuic/store/directory/locks.py",
        "        if self._add.try_alone():\n            self._write.sign()\n",
        "        if True:\n            self._write.sign()\n",
        f"{_TOGETHER}test_a_process_that_removes_is_refused_while_another_adds",
    ),
    Mutant(
        "a process that adds removes the unfinished files of another",
        "ciuic/store/store.py",
        "            if is_alone:\n                self.stuck",
        "            if True:\n                self.stuck",
        f"{_TOGETHER}test_a_process_that_adds_leaves_the_unfinished_files_of_another_alone",
    ),
    Mutant(
        "the chunk index is removed while another process has it open",
        "ciuic/store/index_keeper.py",
        "            if not self.is_alone:\n                # Its file must stay",
        "            if False:\n                # Its file must stay",
        f"{_TOGETHER}test_a_chunk_index_that_another_process_has_open_is_not_removed",
    ),
    Mutant(
        "a snapshot keeps the chunk index locked until its end",
        "ciuic/catalog/listing.py",
        "            store.index.commit()\n    except StoreFullError:",
        "            pass\n    except StoreFullError:",
        f"{_TOGETHER}test_a_small_snapshot_is_taken_in_the_middle_of_a_large_one",
    ),
    Mutant(
        "a mark that forgets a snapshot replaces the mark that pins it",
        "ciuic/system/durable.py",
        "                _name_new(temporary, os.path.join(directory, name))\n",
        "                _rename(temporary, os.path.join(directory, name))\n",
        f"{_RACES}test_a_snapshot_that_is_pinned_meanwhile_is_not_forgotten",
    ),
    Mutant(
        "a snapshot that is brought back meanwhile is deleted",
        "ciuic/store/snapshots/trash.py",
        "            left = [found.id for found in new if found.id not in created]\n",
        "            left = []\n",
        f"{_RACES}test_a_snapshot_that_is_brought_back_meanwhile_is_not_deleted",
    ),
    Mutant(
        "a snapshot that is purged meanwhile is brought back without its manifest",
        "ciuic/store/snapshots/trash.py",
        "            if not self._manifests.is_there(snapshot_id):\n                # A prune",
        "            if False:\n                # A prune",
        f"{_RACES}test_a_snapshot_that_is_purged_meanwhile_is_not_brought_back",
    ),
    Mutant(
        "a pin is reported as done for a snapshot that is gone",
        "ciuic/maintain/label.py",
        "        if not store.manifests.is_there(old.id):\n",
        "        if False:\n",
        f"{_RACES}test_a_pin_comes_too_late_for_a_snapshot_that_is_removed_meanwhile",
    ),
    Mutant(
        "a snapshot whose mark is damaged counts as forgotten because a cache says so",
        "ciuic/catalog/listing.py",
        "        if summary.forgotten_ns is not None:\n",
        "        if False:\n",
        "tests/verbs/test_forget.py::test_a_damaged_mark_of_a_forgotten_snapshot_loses_nothing",
    ),
    Mutant(
        "the ID of an expired snapshot is used again",
        "ciuic/store/snapshots/trash.py",
        "        self.retired.add(snapshot_ids)\n        # The copies",
        "        # The copies",
        "tests/verbs/test_forget.py::test_an_expiry_that_ends_anywhere_gives_no_id_away",
    ),
    Mutant(
        "the manifest of an expired snapshot goes before its ID is retired",
        "ciuic/store/snapshots/trash.py",
        "        self.retired.add(snapshot_ids)\n        # The copies",
        (
            "        self._manifests.remove(snapshot_ids)\n"
            "        self._manifests.sync()\n"
            "        self.retired.add(snapshot_ids)\n"
            "        # The copies"
        ),
        "tests/verbs/test_forget.py::test_an_expiry_that_ends_anywhere_gives_no_id_away",
    ),
    Mutant(
        "chunks of snapshots in the trash are not marked",
        "ciuic/maintain/prune/plan.py",
        "    going = expired | store.trash.purged()\n",
        "    going = expired | store.trash.unlisted()\n",
        _story("prune"),
    ),
    Mutant(
        "a snapshot whose pin cannot be read counts as not pinned",
        "ciuic/store/snapshots/marks.py",
        "                summary,\n                pinned=True,\n",
        "                summary,\n",
        "tests/verbs/test_marks.py",
    ),
    Mutant(
        "of two processes that mark a snapshot at once, one loses its change",
        "ciuic/store/snapshots/marks.py",
        (
            "            if not with_reserve(self._store_path,"
            " lambda: self._create(old.id, number, data)):\n"
            "                return None\n"
        ),
        (
            "            with_reserve(self._store_path,"
            " lambda: self._create(old.id, number, data))\n"
        ),
        "tests/verbs/test_marks.py",
    ),
    Mutant(
        "a pack gets its name before its parity",
        "ciuic/store/packs/pack_writer.py",
        (
            "        parity = pack.parity()\n"
            "    if parity is not None:\n"
            "        write_parity(store_path, pack_id, parity)\n"
            '    with store_faults("write to", place):\n'
            "        durable.publish(pack.fd, pack.path, final)\n"
        ),
        (
            "        durable.publish(pack.fd, pack.path, final)\n"
            "        parity = pack.parity()\n"
            "    if parity is not None:\n"
            "        write_parity(store_path, pack_id, parity)\n"
        ),
        "tests/verbs/test_repair.py::test_no_pack_is_seen_without_its_parity",
    ),
    Mutant(
        "old packs are removed before the new ones have durable names",
        "ciuic/store/gc/rewrite_output.py",
        (
            "        publish_pack(self._store_path, pack, pack_id)\n"
            "        sync_packs(self._store_path)\n"
        ),
        "        publish_pack(self._store_path, pack, pack_id)\n",
        _story("prune"),
    ),
    Mutant(
        "old packs are removed before the new ones are written",
        "ciuic/store/gc/rewrite_output.py",
        ("        publishing = self._helper.submit(self._make_durable, pack, pack_id)\n"),
        (
            "        for one in emptied:\n"
            "            unlink_pack(self._store_path, one)\n"
            "        publishing = self._helper.submit(self._make_durable, pack, pack_id)\n"
        ),
        _story("prune"),
    ),
    Mutant(
        "a failure to write a new pack goes unnoticed",
        "ciuic/store/gc/rewrite_output.py",
        "        publishing.result()\n",
        "",
        "tests/verbs/test_prune.py::test_a_new_pack_that_cannot_be_written_costs_nothing",
    ),
    Mutant(
        "packs are removed while the trash still needs them",
        "ciuic/maintain/prune/apply.py",
        "        removals.begin_with(functools.partial(_expire, store, plan))\n",
        "        functools.partial(_expire, store, plan)\n",
        _story("prune"),
    ),
    Mutant(
        "packs do not wait until the trash is empty",
        "ciuic/store/gc/remove.py",
        "            self._first.result()\n        unlink",
        "            pass\n        unlink",
        "tests/verbs/test_prune.py::test_no_pack_goes_while_the_trash_still_needs_it",
    ),
    Mutant(
        "repair removes a quarantined file before its copy is durable",
        "ciuic/system/durable.py",
        "    _link(source, target)\n    sync_directory(os.path.dirname(target))\n",
        "    _link(source, target)\n",
        _story("repair"),
    ),
    Mutant(
        "two writers may hold the lock",
        "ciuic/store/directory/locks.py",
        "            fcntl.flock(fd, kind | fcntl.LOCK_NB)\n",
        "            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        _TAKE + "test_a_second_writer_is_refused_while_the_first_writes",
    ),
    Mutant(
        "a changed file with its old time and size counts as unchanged",
        "ciuic/snapshot/walk/unchanged.py",
        "        old.ctime_ns == status.st_ctime_ns\n        and old.mtime_ns",
        "        old.mtime_ns",
        _TAKE + "test_a_changed_file_with_the_old_time_and_size_is_read",
    ),
    Mutant(
        "a name that leads out of the target is written",
        "ciuic/store/records/tree_nodes.py",
        "        not _NO_NAMES.isdisjoint(names)\n        or joined",
        "        joined",
        _RESTORE + "test_names_that_no_file_can_have_are_named_and_write_nothing",
    ),
    Mutant(
        "a prune continues after a tree that cannot be read",
        "ciuic/maintain/prune/plan.py",
        '            raise _unreadable(error, f"the trees of {snapshot}") from error\n',
        "            del error, snapshot\n",
        "tests/verbs/test_prune.py::test_an_unreadable_file_stops_prune_before_anything_is_removed",
    ),
    Mutant(
        "a delta counts as readable without its base",
        "ciuic/store/index/chunk_index.py",
        "            found -= {chunk_id for chunk_id in deltas if chunk_id not in whole}\n",
        "            del whole\n",
        f"{_CHAINS}test_deltas_of_a_lost_chunk_are_stored_again",
    ),
    Mutant(
        "the chunk index takes the last of two deltas, whose chain may be a ring",
        "ciuic/store/index/chains.py",
        "    if not disputed:\n        return set()\n",
        "    if disputed is not None:\n        return set()\n",
        f"{_RINGS}test_two_writers_that_record_a_ring_leave_an_index_without_one",
    ),
    Mutant(
        "a chunk index that is built again takes deltas in the order of the packs",
        "ciuic/store/index/chunk_index.py",
        "        if not again:\n            return\n",
        "        if again is not None:\n            return\n",
        f"{_RINGS}test_an_index_that_is_built_from_packs_in_any_order_has_no_ring",
    ),
    Mutant(
        "prune removes the bases of needed deltas",
        "ciuic/store/gc/usage.py",
        "    marks.follow_delta_bases()\n",
        "",
        f"{_CHAINS}test_forgetting_a_snapshot_keeps_its_chunks_that_are_delta_bases",
    ),
    Mutant(
        "prune keeps a delta and removes the copy without a base",
        "ciuic/store/gc/usage.py",
        "    return copies if len(delta_bases) == 1 else alone\n",
        "    return copies\n",
        f"{_CHAINS}test_two_chunks_are_never_left_as_deltas_of_each_other",
    ),
    Mutant(
        "prune removes the bases of deltas in a pack that parity can repair",
        "ciuic/store/gc/usage.py",
        "                _add_delta_bases(marks, read_frames(packs, pack_id, repair=True))\n",
        "                pass\n",
        f"{_CHAINS}test_delta_bases_of_a_damaged_pack_stay_until_it_is_repaired",
    ),
    Mutant(
        "the chunk index does not learn which copy a prune keeps",
        "ciuic/store/gc/rewrite.py",
        "        index.replace_places(pack_id, read_frames(packs, pack_id), chunk_ids)\n",
        "        del pack_id, chunk_ids\n",
        "tests/verbs/test_prune.py::test_the_chunk_index_is_right_without_being_rebuilt",
    ),
    Mutant(
        "packs with the same frames have the same name",
        "ciuic/store/format/pack.py",
        "    return session_id + os.urandom(PACK_LABEL_BYTES - SESSION_BYTES)\n",
        "    return bytes(PACK_LABEL_BYTES)\n",
        "tests/verbs/test_prune.py::test_a_new_pack_never_has_the_name_of_another_pack",
    ),
    Mutant(
        "unneeded packs stay if other packs cannot be rewritten",
        "ciuic/maintain/prune/apply.py",
        "            elif not output.unneeded:\n",
        "            elif output.unneeded or not output.unneeded:\n",
        "tests/verbs/test_prune.py"
        "::test_unneeded_packs_are_removed_although_a_fragmented_one_cannot_be_rewritten",
    ),
    Mutant(
        "a full snapshot uses delta bases of older snapshots",
        "ciuic/snapshot/take.py",
        "find_delta_bases=skip_unchanged and self._writer.makes_deltas,",
        "find_delta_bases=self._writer.makes_deltas,",
        f"{_CHAINS}test_a_full_snapshot_stores_chunks_without_an_older_base",
    ),
    Mutant(
        "a delta has no limit on the bytes to read",
        "ciuic/codec/choose_delta.py",
        "            chain_cost * sampled.fraction * size - base.cost_bytes,\n",
        "",
        f"{_CHAINS}test_a_chain_is_bounded_by_what_it_costs_to_read",
    ),
    Mutant(
        "a file that was being written is a delta base",
        "ciuic/snapshot/bases/old_directory.py",
        "entry.content and entry.state == CONSISTENT and",
        "entry.content and",
        f"{_CHAINS}test_a_file_that_was_being_written_is_never_a_delta_base",
    ),
    Mutant(
        "a delta is stored without decoding it as a check",
        "ciuic/codec/choose_delta.py",
        "if len(stored) <= bytes_max and round_trips(codec, stored, old, plain):",
        "if len(stored) <= bytes_max:",
        "tests/unit/test_dense_delta.py::test_a_delta_that_does_not_decode_to_the_chunk_is_not_kept",
    ),
    Mutant(
        "a reflink copy from before the freeze is trusted without a look at its file",
        "ciuic/source/freeze/early.py",
        "found[1] if found is not None and same_content(found[0], status) else None",
        "found[1] if found is not None else None",
        "tests/filesystems/test_freezing.py::"
        "test_a_file_that_changes_after_its_early_copy_is_copied_by_the_freeze",
    ),
    Mutant(
        "a policy forgets snapshots of every machine",
        "ciuic/maintain/forget.py",
        "[[found for found in snapshots if found.owner.is_same(own)]]",
        "[[found for found in snapshots if own]]",
        f"{_OWNERS}test_no_policy_forgets_a_snapshot_of_another_machine_or_of_the_library",
    ),
    Mutant(
        "a snapshot is compared with those of another machine",
        "ciuic/snapshot/plan.py",
        "[snapshot for snapshot in snapshots if snapshot.owner.is_same(owner)]",
        "[snapshot for snapshot in snapshots if owner]",
        f"{_OWNERS}test_a_snapshot_is_not_compared_with_one_of_another_machine",
    ),
    Mutant(
        "a fallback takes files of other machines",
        "ciuic/restore/older_snapshots.py",
        "        is_same = summary.owner.is_same(own.owner)\n",
        "        is_same = True\n",
        f"{_OWNERS}test_a_fallback_takes_no_file_of_another_machine",
    ),
    Mutant(
        "a full snapshot of another schedule counts",
        "ciuic/snapshot/plan.py",
        "[snapshot for snapshot in own if snapshot.schedule == request.schedule]",
        "own",
        f"{_OWNERS}test_a_full_snapshot_of_another_schedule_does_not_count",
    ),
    Mutant(
        "a manual snapshot uses up places of the schedule",
        "ciuic/retention.py",
        "series.setdefault((snapshot.schedule, snapshot.roots), [])",
        'series.setdefault(("", snapshot.roots), [])',
        f"{_OWNERS}test_a_manual_snapshot_uses_up_nothing_of_the_schedule",
    ),
    Mutant(
        "the daemon counts snapshots of other machines as its own",
        "ciuicd/taking.py",
        "                and summary.owner.is_same(own)\n",
        "",
        f"{_OWNERS}test_the_daemon_takes_its_own_snapshot_although_another_machine_took_one",
    ),
    Mutant(
        "a commit replaces a snapshot of the same ID",
        "ciuic/system/durable.py",
        "def _link_new(temporary: str, final: str) -> None:\n    _link(temporary, final)\n",
        "def _link_new(temporary: str, final: str) -> None:\n    _rename(temporary, final)\n",
        "tests/verbs/test_snapshot_ids.py::test_a_commit_never_replaces_a_snapshot",
    ),
)
