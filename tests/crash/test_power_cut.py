"""A power cut at any moment: everything that a finished command reported is on the disk."""

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.filesystems import disk
from tests.kit.program import CIUIC, environment
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024
CUTS = 6

pytestmark = [pytest.mark.slow, pytest.mark.root]


def step(source: Path, rng: random.Random) -> None:
    """Change the source; it is on a disk without power cuts."""
    for number in range(40):
        (source / f"f{rng.randrange(80)}").write_bytes(rng.randbytes(rng.choice((5, 3000, 90_000))))
        del number
    (source / "model").write_bytes(rng.randbytes(4 * MIB))


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_every_snapshot_that_was_reported_survives_a_power_cut(kind: str, tmp_path: Path) -> None:
    if shutil.which("xfs_io") is None:
        pytest.skip("xfs_io is not installed")
    seed = drawn_seed()
    rng = random.Random(seed)
    known: dict[str, dict[bytes, Photo]] = {}
    with disk(kind, tmp_path) as mounted:
        box = Box(tmp_path)
        box.store = mounted.path / "store"
        box.configure()
        assert box.ciuic("init").code == 0
        for number in range(CUTS):
            step(box.source, rng)
            start = time.monotonic()
            done = box.ciuic("snapshot")
            usual_s = time.monotonic() - start
            assert done.code == 0, done.err
            known[done.out.strip()] = photograph(box.source)
            if number % 2:
                # Cut while the next command runs; before that, right after the finished one.
                step(box.source, rng)
                process = subprocess.Popen(
                    [*CIUIC, "--config", box.config, "snapshot"],
                    env=environment(),
                    cwd="/",
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                time.sleep(usual_s * rng.uniform(0.3, 1.0))
                mounted.cut_power()
                try:
                    out, _ = process.communicate(timeout=30)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    out, _ = process.communicate()
                if process.returncode == 0:
                    known[out.decode().strip()] = photograph(box.source)
            else:
                mounted.cut_power()
            mounted.unmount()
            mounted.mount()
            listed = {one.id for one in box.snapshots()}
            assert set(known) <= listed, "a snapshot that was reported is gone"
            report = box.verify()
            assert report.ok, report.as_json()
            for name in listed - set(known):
                # It was durable before the command reported it.
                known[name] = photograph(box.source)
        for name, photo in known.items():
            box.restore(snapshot=name, to=tmp_path / "out" / name)
            found = photograph(tmp_path / "out" / name / "source")
            assert differences(photo, found) == [], name
        assert box.take().trouble_count == 0
        assert box.verify().ok


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_in_a_forget_or_a_prune_costs_nothing_that_is_kept(
    kind: str, tmp_path: Path
) -> None:
    if shutil.which("xfs_io") is None:
        pytest.skip("xfs_io is not installed")
    seed = drawn_seed()
    rng = random.Random(seed)
    known: dict[str, dict[bytes, Photo]] = {}
    usual_s = {"forget": 0.5, "prune": 0.8}
    with disk(kind, tmp_path) as mounted:
        box = Box(tmp_path)
        box.store = mounted.path / "store"
        box.configure()
        assert box.ciuic("init").code == 0
        for number in range(CUTS + 2):
            step(box.source, rng)
            name = box.take().id
            known[name] = photograph(box.source)
            if number < 2:
                continue
            what = ("forget", "prune")[number % 2]
            leaves = min(known, key=lambda one: known[one][b"model"].mtime_ns)
            arguments = (leaves,) if what == "forget" else ("--trash", "0")
            start = time.monotonic()
            process = subprocess.Popen(
                [*CIUIC, "--config", box.config, what, *arguments],
                env=environment(),
                cwd="/",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            try:
                process.wait(usual_s[what] * rng.uniform(0.4, 1.1))
                usual_s[what] = time.monotonic() - start
            except subprocess.TimeoutExpired:
                usual_s[what] *= 1.05
            mounted.cut_power()
            _, said = process.communicate(timeout=60)
            # Without the disk, manifests cannot be read, and the last readable one counts; or a
            # pack cannot be read, which looks like lost chunks.
            refused = (
                b"forget every snapshot" in said
                or b"so nothing was removed" in said
                or b"Check the file system that the store is on" in said
            )
            assert process.returncode in {0, 1} or refused, said
            mounted.unmount()
            mounted.mount()
            listed = {one.id for one in box.snapshots()}
            assert listed <= known.keys(), "listed, and was never taken"
            left = known.keys() - ({leaves} if what == "forget" else set())
            assert left <= listed, "a snapshot that was kept is gone"
            if what == "forget" and leaves not in listed:
                with open_store(str(box.store)) as store:
                    assert leaves in {one.id for one in store.trash.read()}
                del known[leaves]
            elif what == "forget":
                assert process.returncode != 0, "forgotten, and still listed"
            report = box.verify()
            assert report.ok, report.as_json()
        for name, photo in known.items():
            box.restore(snapshot=name, to=tmp_path / "out" / name)
            found = photograph(tmp_path / "out" / name / "source")
            assert differences(photo, found) == [], name
        assert box.ciuic("prune", "--trash", "0").code == 0
        assert box.take().trouble_count == 0
        assert box.verify().ok


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_every_file_that_a_restore_reported_survives_a_power_cut(kind: str, tmp_path: Path) -> None:
    if shutil.which("xfs_io") is None:
        pytest.skip("xfs_io is not installed")
    box = Box(tmp_path)
    rng = random.Random(0)
    step(box.source, rng)
    (box.source / "sub" / "deep").mkdir(parents=True)
    (box.source / "sub" / "deep" / "file").write_bytes(b"file")
    (box.source / "sub" / "link").symlink_to("deep")
    (box.source / "sub" / "second name").hardlink_to(box.source / "model")
    box.take()
    with disk(kind, tmp_path) as mounted, disk("ext4", tmp_path / "other") as other:
        assert box.restore(to=mounted.path / "made" / "out").failed == []
        mounted.cut_power()
        mounted.unmount()
        mounted.mount()
        found = photograph(mounted.path / "made" / "out" / "source", holes=False)
        assert differences(photograph(box.source, holes=False), found) == []
        # Over existing files, and a single file to another file system.
        (mounted.path / "made" / "out" / "source" / "model").write_bytes(b"broken")
        box.restore(to=mounted.path / "made" / "out", overwrite=True)
        box.restore(box.source / "model", to=other.path)
        for one in (mounted, other):
            one.cut_power()
            one.unmount()
            one.mount()
        found = photograph(mounted.path / "made" / "out" / "source", holes=False)
        assert differences(photograph(box.source, holes=False), found) == []
        assert (other.path / "model").read_bytes() == (box.source / "model").read_bytes()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_in_a_restore_leaves_files_old_or_new(kind: str, tmp_path: Path) -> None:
    if shutil.which("xfs_io") is None:
        pytest.skip("xfs_io is not installed")
    box = Box(tmp_path)
    for number in range(30):
        (box.source / f"f{number}").write_bytes(b"new %d" % number * 30_000)
    (box.source / "model").write_bytes(b"new" * MIB * 10)
    box.take()
    with disk(kind, tmp_path) as mounted:
        out = mounted.path / "source"
        out.mkdir()
        for path in box.source.iterdir():
            (out / path.name).write_bytes(b"old " + path.name.encode())
        subprocess.run(["sync", "-f", mounted.path], check=True)
        for delay_s in (0.3, 0.5, 0.8):
            process = subprocess.Popen(
                [
                    *CIUIC,
                    "--config",
                    box.config,
                    "restore",
                    "-s",
                    "latest",
                    "-p",
                    box.source,
                    "-d",
                    mounted.path,
                    "--overwrite",
                ],
                env=environment(),
                cwd="/",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(delay_s)
            mounted.cut_power()
            process.communicate(timeout=60)
            mounted.unmount()
            mounted.mount()
            for path in box.source.iterdir():
                found = (out / path.name).read_bytes()
                assert found in {b"old " + path.name.encode(), path.read_bytes()}, path.name
        assert box.restore(to=mounted.path, overwrite=True).failed == []
        found = photograph(out, holes=False)
        assert differences(photograph(box.source, holes=False), found) == []
