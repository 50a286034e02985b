"""Stores that are written with the compiled core are read without it, and the other way round."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ciuic.store.parity.parity_writer import make_parity
from ciuic.system.core import VARIABLE
from tests.format.reader import DATA, frames_of_pack
from tests.kit.box import Box
from tests.kit.cores import VARIANTS, using
from tests.kit.program import ciuic
from tests.kit.trees import differences, photograph

OFF, ON, PORTABLE, AVX2 = "off", "", "portable", "avx2"
PARITY = 0.03


def run(box: Box, setting: str, *arguments: str | Path) -> dict[str, int]:
    """The report of a command that succeeds, with the core or without."""
    done = ciuic("--config", box.config, *arguments, "--json", more={VARIABLE: setting})
    assert done.code == 0, done.err
    report: dict[str, int] = json.loads(done.out)
    return report


def trained(box: Box, step: int) -> None:
    """Write a checkpoint of two element types, close to that of other steps, and small files."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal(400_000, dtype=np.float32) * np.float32(0.02)
    for _ in range(step):
        weights += rng.standard_normal(len(weights), dtype=np.float32) * np.float32(1e-6)
    half = (weights.view(np.uint32) >> 16).astype(np.uint16)
    (box.source / "weights.bin").write_bytes(weights.tobytes())
    (box.source / "half.bin").write_bytes(half.tobytes())
    (box.source / "logs").mkdir(exist_ok=True)
    for number in range(40):
        (box.source / "logs" / f"{number}").write_bytes(b"%d of %d\n" % (step, number) * number)


@pytest.mark.parametrize("settings", [(OFF, ON, OFF), (ON, OFF, PORTABLE), (AVX2, PORTABLE, ON)])
def test_each_core_reads_and_continues_a_store_of_the_other(
    box: Box, tmp_path: Path, settings: tuple[str, str, str]
) -> None:
    if not VARIANTS:
        pytest.skip("the compiled core is not built")
    for step, (writer, reader) in enumerate(pairwise(settings)):
        trained(box, step)
        taken = run(box, writer, "snapshot")
        # 2.4 MB: numbers in planes, then deltas against the snapshot of the other core.
        assert taken["stored_bytes"] < (2_000_000, 1_400_000)[step]
        out = tmp_path / f"out{step}"
        where = ("-s", "latest", "-p", box.source, "-d", out, "--no-hot")
        run(box, reader, "restore", *where)
        assert differences(photograph(box.source), photograph(out / "source")) == []
        run(box, reader, "verify")


def stored_payloads(store: Path) -> dict[bytes, tuple[int, bytes]]:
    """Codec and payload of each frame that holds data, by its first chunk."""
    found = {}
    for pack in (store / "packs").iterdir():
        content = pack.read_bytes()
        for offset, frame in frames_of_pack(content, pack.name):
            if frame.kind == DATA:
                begin = offset + frame.header_length
                payload = content[begin : begin + frame.stored_length]
                found[frame.chunks[0][0]] = frame.codec, payload
    return found


def test_a_processor_with_other_vector_instructions_writes_the_same_store(
    box: Box, tmp_path: Path
) -> None:
    """All payloads are the same, and the parity of each pack is what numpy computes."""
    if not VARIANTS:
        pytest.skip("the compiled core is not built")
    stores = {setting: tmp_path / f"store-{setting}" for setting in (OFF, PORTABLE, AVX2, ON)}
    for store in stores.values():
        shutil.copytree(box.store, store)
    for step in range(2):
        trained(box, step)
        for setting, store in stores.items():
            box.config.write_text(
                f"snapshot_paths = {box.source}\nsnapshot_dir = {store}\n"
                f"base_interval = 0\nparity = {PARITY:%}\nio_priority = none\n"
            )
            run(box, setting, "snapshot")

    expected = stored_payloads(stores[OFF])
    assert {codec for codec, _ in expected.values()} == {1, 2, 3, 4}
    for setting in (PORTABLE, AVX2, ON):
        assert stored_payloads(stores[setting]) == expected
        for pack in (stores[setting] / "packs").iterdir():
            with using(None), pack.open("rb") as file:
                pieces = make_parity(file.fileno(), PARITY).pieces(bytes.fromhex(pack.name))
                parity = b"".join(map(bytes, pieces))
            assert (stores[setting] / "parity" / pack.name).read_bytes() == parity
