"""Stores that are written with the compiled core are read without it, and the other way round."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ciuic.system.core import VARIABLE
from tests.kit.box import Box
from tests.kit.cores import VARIANTS
from tests.kit.program import ciuic
from tests.kit.trees import differences, photograph

OFF, ON, PORTABLE = "off", "", "portable"


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


@pytest.mark.parametrize("settings", [(OFF, ON, OFF), (ON, OFF, PORTABLE)])
def test_each_core_reads_and_goes_on_with_what_the_other_wrote(
    box: Box, tmp_path: Path, settings: tuple[str, str, str]
) -> None:
    if not VARIANTS:
        pytest.skip("the compiled core is not built")
    for step, (writer, reader) in enumerate(pairwise(settings)):
        trained(box, step)
        taken = run(box, writer, "snapshot")
        # Of 2.4 MB: numbers in planes, then deltas against the snapshot of the other core.
        assert taken["stored_bytes"] < (2_000_000, 1_400_000)[step]
        out = tmp_path / f"out{step}"
        where = ("-s", "latest", "-p", box.source, "-d", out, "--no-hot")
        run(box, reader, "restore", *where)
        assert differences(photograph(box.source), photograph(out / "source")) == []
        run(box, reader, "verify")
