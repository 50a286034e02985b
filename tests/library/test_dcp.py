"""Checkpoints of ``torch.distributed.checkpoint`` in a store: real ranks, real shards."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ciuic import SnapshotManager
from ciuic.errors import (
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
    UsageError,
)
from ciuic.store.store import open_store
from ciuic.training.finding import dcp_snapshots
from ciuic.training.retention.keeping import Keeper
from tests.kit.program import ciuic

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from ciuic.dcp import CiuicReader, CiuicWriter  # noqa: E402
from ciuic.training.dcp.document import read_document  # noqa: E402
from ciuic.training.dcp.handover import Connection, the_exchange  # noqa: E402
from ciuic.training.staging.buffer import StagingBuffer  # noqa: E402

RANKS = Path(__file__).with_name("dcp_ranks.py")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def ended(directory: Path, *steps: str) -> tuple[list[list[int]], str]:
    """Run the steps, which leave files; returns the exit codes of their ranks, and the output."""
    done = subprocess.run(
        [sys.executable, RANKS, directory / "store", f"{directory}/", *steps],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


def run(directory: Path, *steps: str) -> None:
    codes, output = ended(directory, *steps)
    assert not any(itertools.chain(*codes)), output


def listed(store: Path) -> list[str]:
    with open_store(str(store)) as opened:
        return [summary.id for summary in dcp_snapshots(opened)]


def save(state: dict, store: Path, **more) -> str:
    return dcp.save(state, storage_writer=CiuicWriter(store), **more).storage_meta.save_id


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_four_ranks_save_two_one_and_three_ranks_load_to_the_bit(tmp_path):
    store = tmp_path / "store"
    run(tmp_path, "save:4:1", "load:2:2", "load:1:2", "load:3:2")
    saved = torch.load(tmp_path / "save-4.saved-0")
    assert len(listed(store)) == 1
    assert len(saved) > 10

    for ranks in (2, 1, 3):
        for rank in range(ranks):
            assert torch.load(tmp_path / f"load-{ranks}.loaded-{rank}") == saved

    done = ciuic("--store", store, "verify", "--all", "--checksum")
    assert done.code == 0, done.err
    done = ciuic("--store", store, "restore", "-s", "latest", "-p", "/state", "-d", tmp_path)
    assert done.code == 0, done.err
    files = sorted((tmp_path / "state").rglob("*.*"))
    assert [str(file.relative_to(tmp_path / "state")) for file in files] == [
        "dcp.json",
        *[f"rank-{rank:05}/shards.safetensors" for rank in range(4)],
    ]
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    assert "model.0.weight" in safetensors.load_file(files[1])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["thread", "process", "cached"])
def test_ranks_save_in_the_background_and_with_cached_plans(tmp_path, mode):
    run(tmp_path, f"{mode}:2:1", "load:1:2")

    saved = torch.load(tmp_path / f"{mode}-2.saved-0")
    assert torch.load(tmp_path / "load-1.loaded-0") == saved


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rank_that_is_killed_leaves_no_snapshot(tmp_path):
    store = tmp_path / "store"
    codes, output = ended(tmp_path, "save:2:1", "die:2:2")

    assert codes[0] == [0, 0], output
    assert codes[1][0] != 0, output
    assert codes[1][1] == -9
    assert len(listed(store)) == 1
    done = ciuic("--store", store, "verify", "--all", "--checksum")
    assert done.code == 0, done.err


def test_every_kind_of_item_comes_back(tmp_path):
    state = {
        "scalar": torch.tensor(7, dtype=torch.int64),
        "bits": torch.tensor([1.5, float("nan"), -0.0]).to(torch.float8_e5m2fnuz),
        "pairs": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128),
        "empty": torch.empty(0, 5),
        "strided": torch.arange(24.0).view(4, 6).T,
        "nested": {"list": [torch.ones(3), 5, "text"], "none": None, "tuple": (1, 2.5)},
        "large": torch.arange(3_000_000, dtype=torch.float32),
    }
    expected = torch.arange(24.0).view(4, 6).T.clone()
    save(state, tmp_path / "store")
    back = {
        "scalar": torch.tensor(0),
        "bits": torch.zeros(3).to(torch.float8_e5m2fnuz),
        "pairs": torch.zeros(2, dtype=torch.complex128),
        "empty": torch.empty(0, 5),
        "strided": torch.zeros(6, 4),
        "nested": {"list": [torch.zeros(3), 0, ""], "none": 1, "tuple": ()},
        "large": torch.zeros(3_000_000),
    }

    dcp.load(back, storage_reader=CiuicReader(tmp_path / "store"))

    for key in ("scalar", "pairs", "empty", "large"):
        assert torch.equal(back[key], state[key]), key
    assert back["bits"].view(torch.uint8).tolist() == state["bits"].view(torch.uint8).tolist()
    assert torch.equal(back["strided"], expected)
    assert torch.equal(back["nested"]["list"][0], torch.ones(3))
    assert back["nested"]["list"][1:] == [5, "text"]
    assert back["nested"]["none"] is None
    assert back["nested"]["tuple"] == (1, 2.5)


def test_a_checkpoint_is_found_by_its_name_and_older_ones_stay(tmp_path):
    for number in (1, 2):
        save({"w": torch.full((4,), float(number))}, tmp_path, checkpoint_id=f"runs/step-{number}")

    for given, number in (({"checkpoint_id": "runs/step-1"}, 1), ({}, 2)):
        back = {"w": torch.zeros(4)}
        dcp.load(back, storage_reader=CiuicReader(tmp_path), **given)
        assert back["w"].tolist() == [number] * 4
    back = {"w": torch.zeros(4)}
    dcp.load(back, storage_reader=CiuicReader(tmp_path, "step-1"))
    assert back["w"].tolist() == [1] * 4


@pytest.mark.parametrize("count", [0, 2.0, True])
def test_a_count_that_is_none_is_refused_before_anything_is_saved(tmp_path, count):
    with pytest.raises(UsageError, match=f"max_snapshots={count!r} is not a number"):
        CiuicWriter(tmp_path, max_snapshots=count)


def test_max_snapshots_removes_the_oldest_checkpoints(tmp_path):
    writer = CiuicWriter(tmp_path, max_snapshots=2)
    made = [
        dcp.save({"w": torch.full((4,), float(at))}, storage_writer=writer).storage_meta.save_id
        for at in range(4)
    ]

    assert sorted(listed(tmp_path)) == sorted(made[2:])


def test_a_checkpoint_exists_even_if_older_ones_cannot_be_removed(tmp_path, monkeypatch):
    def fails(*_):
        raise StoreError("the disk failed")

    monkeypatch.setattr(Keeper, "overdue", fails)
    writer = CiuicWriter(tmp_path, max_snapshots=1)
    with pytest.warns(UserWarning, match="was saved, but older .* the disk failed"):
        metadata = dcp.save({"w": torch.ones(2)}, storage_writer=writer)

    assert listed(tmp_path) == [metadata.storage_meta.save_id]


class Trap:
    def __reduce__(self):
        return print, ("code of a pickle ran",)


def test_an_object_that_needs_code_is_refused_by_name_and_nothing_is_saved(tmp_path):
    with pytest.raises(
        CheckpointException, match=r"state\.trap cannot be stored or loaded without running"
    ):
        save({"state": {"trap": Trap()}, "w": torch.ones(2)}, tmp_path)

    assert listed(tmp_path) == []


def test_a_pickle_with_code_in_a_store_is_never_run(tmp_path, monkeypatch, capfd):
    """A store of someone who changed the writer."""
    with monkeypatch.context() as patch:
        patch.setattr("ciuic.training.dcp.shards.check_bytes", lambda *_: None)
        save({"trap": Trap()}, tmp_path)
    capfd.readouterr()

    with pytest.raises(
        CheckpointException, match="trap cannot be stored or loaded without running code"
    ):
        dcp.load({"trap": 0}, storage_reader=CiuicReader(tmp_path))

    assert "code of a pickle ran" not in capfd.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_without_plain_bytes_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointException, match="w cannot be stored: it is a sparse tensor"):
        save({"w": torch.eye(3).to_sparse()}, tmp_path)

    assert listed(tmp_path) == []


def test_damage_is_an_error_and_no_wrong_tensor(tmp_path):
    save({"w": torch.randn(300_000)}, tmp_path)
    for kind in ("parity", "packs"):
        for file in (tmp_path / kind).rglob("*"):
            if file.is_file():
                data = bytearray(file.read_bytes())
                data[: len(data) // 2] = bytes(len(data) // 2)
                file.chmod(0o600)
                file.write_bytes(data)

    back = {"w": torch.zeros(300_000)}
    with pytest.raises(CheckpointException):
        dcp.load(back, storage_reader=CiuicReader(tmp_path))
    assert not back["w"].any()


def test_the_manager_and_the_checkpoints_share_a_store_and_stay_apart(tmp_path):
    with SnapshotManager(tmp_path) as manager:
        kept = manager.save_snapshot({"w": torch.ones(3)}, epoch=1, wait=True).id
        other = save({"w": torch.zeros(3)}, tmp_path)

        assert [found.id for found in manager.list()] == [kept]
        assert manager.load_latest_snapshot().snapshot_id == kept
        with pytest.raises(UsageError, match=r"is a checkpoint of torch\.distributed"):
            manager.load_snapshot(other)
    with pytest.raises(CheckpointException, match=r"is not a checkpoint of torch\.distributed"):
        dcp.load({"w": torch.zeros(3)}, storage_reader=CiuicReader(tmp_path, kept))


def test_without_a_checkpoint_the_load_says_so(tmp_path):
    with SnapshotManager(tmp_path) as manager:
        manager.wait()

    with pytest.raises(
        CheckpointException, match=r"no snapshot is a checkpoint of torch\.distributed"
    ):
        dcp.load({"w": torch.zeros(3)}, storage_reader=CiuicReader(tmp_path))


def test_a_command_in_an_error_reaches_the_store(tmp_path):
    with SnapshotManager(tmp_path) as manager:
        manager.wait()
    reader = CiuicReader(tmp_path, ref="cs-123456")

    with pytest.raises(SnapshotNotFoundError) as caught:
        reader.read_metadata()

    assert f"'ciuic --store {tmp_path} list'" in caught.value.hint


def test_saving_without_a_rank_that_commits_is_refused(tmp_path):
    with pytest.raises(UsageError, match="with use_collectives=False no rank commits"):
        save({"w": torch.zeros(3)}, tmp_path, use_collectives=False)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"{", CorruptionError),
        (b"[]", CorruptionError),
        (b'{"format": 1}', CorruptionError),
        (b'{"format": 2}', UnknownFormatError),
        (
            b'{"format": 1, "version": null, "planner": null, "stored": [],'
            b' "items": {"w": {"dtype": "save"}}}',
            UnknownFormatError,
        ),
    ],
)
def test_a_hostile_document_is_refused(data, error):
    with pytest.raises(error):
        read_document(data)


def test_a_shard_lives_as_long_as_its_rank_is_connected():
    buffer = StagingBuffer()
    buffer.reserve(4096)[:5] = list(b"shard")
    kept, dropped = (Connection(the_exchange().address, rank) for rank in (1, 2))
    key = kept.hand_over(buffer.fd, "a", ((0, 5),))
    gone = dropped.hand_over(buffer.fd, "b", ((0, 5),))
    buffer.close()

    dropped.close()
    deadline_s = time.monotonic() + 60
    while gone in the_exchange()._shards and time.monotonic() < deadline_s:
        time.sleep(0.01)

    assert [bytes(part) for part in the_exchange().take(key).parts] == [b"shard"]
    with pytest.raises(StoreError, match="rank 2 ended before the save was committed"):
        the_exchange().take(gone)
    kept.close()


def test_a_rank_that_reaches_no_coordinator_says_what_is_needed():
    with pytest.raises(StoreError, match="rank 3 cannot reach the rank that commits") as caught:
        Connection("ciuic-no-such-address", 3)

    assert "one machine" in caught.value.hint
