"""``ciuic drill`` on sound and on damaged stores."""

import importlib.util
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic.catalog import find_snapshot
from ciuic.drill.choose import choose
from ciuic.drill.compare import difference
from ciuic.drill.loading import load_checkpoint
from ciuic.ids import ChunkId
from ciuic.store.store import open_store
from ciuic.view.located import Located
from ciuic.view.locator import Locator
from tests.kit.box import Box
from tests.kit.damage import flip_content, flip_node
from tests.kit.filesystems import tmpfs
from tests.kit.program import CIUIC, as_nobody, environment
from tests.kit.tensors import npy, safetensors

_LIMIT_S = 120.0


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The scratch directory; each test must leave it empty."""
    path = tmp_path / "scratch"
    path.mkdir()
    yield path
    assert not list(path.iterdir())


needs_safetensors = pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None, reason="safetensors is not installed"
)


def fill(box: Box) -> None:
    """Write text files, and checkpoints that numpy and safetensors load."""
    for number in range(30):
        (box.source / f"{number}.txt").write_bytes(b"%d" % number * (50 + number))
    (box.source / "deep").mkdir()
    (box.source / "deep" / "weights.safetensors").write_bytes(
        safetensors({"a": os.urandom(4000), "b": os.urandom(80)})
    )
    np.save(box.source / "loss.npy", np.arange(100.0))
    box.take()


def entry_of(box: Box, path: Path) -> Located:
    """Return the entry of a path in the newest snapshot."""
    with open_store(str(box.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        return Locator(store, manifest).locate(os.fsencode(path))


def chosen(box: Box, *, files_max: int, size_max_bytes: int, seed: int) -> list[Located]:
    """Return the sample that a drill takes of the newest snapshot."""
    with open_store(str(box.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        return choose(
            store,
            manifest,
            files_max=files_max,
            size_max_bytes=size_max_bytes,
            seed=seed,
            on_damage=lambda path, error: pytest.fail(f"{path!r}: {error}"),
        )


def practice(box: Box) -> str:
    """Return what doctor says about drills."""
    document = box.ciuic("doctor", "--json").document
    (found,) = [one for one in document["findings"] if one["about"] == "practice"]
    return f"{found['level']}: {found['what']}"


@needs_safetensors
def test_a_full_drill_restores_compares_and_loads_everything(box: Box, scratch: Path) -> None:
    fill(box)

    done = box.ciuic("drill", "--full", "--scratch", scratch, "--json")

    assert done.code == 0, done.err
    found = done.document
    assert found["ok"]
    assert found["recorded"]
    assert found["files"] == 32
    assert found["restored_bytes"] == sum(
        path.stat().st_size for path in box.source.rglob("*") if path.is_file()
    )
    loaded = {Path(one["path"]).name: (one["by"], one["tensors"]) for one in found["loaded"]}
    assert loaded == {"weights.safetensors": ("safetensors", 2), "loss.npy": ("numpy", 1)}


@needs_safetensors
def test_checkpoints_load_from_paths_that_packages_and_the_kernel_refuse(
    box: Box, scratch: Path, tmp_path: Path
) -> None:
    """safetensors refuses a path that is not UTF-8, and open(2) refuses more than 4096 bytes."""
    odd = os.path.join(os.fsencode(box.source), b"run\xff")
    os.mkdir(odd)
    with open(os.path.join(odd, b"weights.safetensors"), "wb") as file:
        file.write(safetensors({"a": os.urandom(4000)}))
    fd = os.open(box.source, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    with open("loss.npy", "wb", opener=lambda name, flags: os.open(name, flags, dir_fd=fd)) as file:
        np.save(file, np.arange(100.0))
    os.close(fd)
    box.take()
    link = tmp_path / "link"
    link.symlink_to(scratch)

    done = box.ciuic("drill", "--full", "--scratch", str(link), "--json")

    assert done.code == 0, done.err
    assert [loaded["by"] for loaded in done.document["loaded"]] == ["numpy", "safetensors"]
    assert done.document["unrestored"] == []


def test_doctor_shows_the_last_drill(box: Box, scratch: Path) -> None:
    fill(box)
    assert practice(box).startswith("note: no drill is on record")

    box.ciuic("drill", "--scratch", scratch, "--files", "7")

    assert "restored 7 files" in practice(box)
    assert practice(box).startswith("ok: ")


def test_a_rebuilt_chunk_index_keeps_the_record(box: Box, scratch: Path) -> None:
    fill(box)
    box.ciuic("drill", "--scratch", scratch, "--files", "7")
    with open_store(str(box.store), write=True) as store:
        store.index_keeper.renew()

    assert "restored 7 files" in practice(box)


def test_damage_is_named_and_the_rest_is_restored(box: Box, scratch: Path) -> None:
    lost = os.urandom(300_000)
    (box.source / "lost.bin").write_bytes(lost)
    fill(box)
    flip_content(box.store, lost)

    done = box.ciuic("drill", "--full", "--scratch", scratch, "--json")

    assert done.code == 4
    found = done.document
    assert [one["path"] for one in found["damaged"]] == [str(box.source / "lost.bin")]
    assert found["files"] == 32
    assert not found["different"]
    assert practice(box).startswith("problem: ")
    said = box.ciuic("drill", "--full", "--scratch", scratch)
    assert f"{box.source / 'lost.bin'}: DAMAGED: " in said.out


@pytest.mark.parametrize("how", [["--full"], [], ["--dry-run"]], ids=["full", "sample", "dry run"])
def test_a_damaged_directory_is_named_and_the_drill_covers_the_rest(
    box: Box, scratch: Path, how: list[str]
) -> None:
    (box.source / "lost").mkdir()
    (box.source / "lost" / "a.txt").write_bytes(b"lost")
    box.take()
    fill(box)  # these files put the other directories into another frame
    node_id = ChunkId(entry_of(box, box.source / "lost").entry.content)
    flip_node(box.store, node_id)

    done = box.ciuic("drill", *how, "--files", "100", "--scratch", scratch, "--json")

    assert done.code == 4, done.err
    (found,) = done.document["damaged"]
    assert found["path"] == str(box.source / "lost")
    assert found["what"].startswith("the directory cannot be read: ")
    assert done.document["files"] == (0 if how == ["--dry-run"] else 32)
    if how != ["--dry-run"]:
        assert practice(box).startswith("problem: ")
    said = box.ciuic("drill", *how, "--scratch", scratch)
    assert f"{box.source / 'lost'}: DAMAGED: the directory cannot be read: " in said.out


@needs_safetensors
def test_a_checkpoint_that_does_not_load_is_named(box: Box, scratch: Path) -> None:
    whole = safetensors({"a": os.urandom(4000)})
    (box.source / "cut.safetensors").write_bytes(whole[:2000])
    fill(box)

    done = box.ciuic("drill", "--scratch", scratch)

    assert done.code == 3
    assert f"{box.source / 'cut.safetensors'}: restored, but it does not load: " in done.out
    assert "1 not loadable" in done.out


def test_a_dry_run_restores_nothing_and_leaves_no_record(box: Box, scratch: Path) -> None:
    fill(box)

    done = box.ciuic("drill", "--dry-run", "--files", "4", "--scratch", scratch)

    assert done.code == 0
    assert len(done.out.splitlines()) == 4
    assert practice(box).startswith("note: no drill")


def test_a_snapshot_of_empty_roots_is_no_error(box: Box, scratch: Path) -> None:
    box.take()

    done = box.ciuic("drill", "--scratch", scratch)
    assert done.code == 0
    assert "no complete file to practice on" in done.out
    assert box.ciuic("drill", "--full", "--scratch", scratch).code == 0
    assert "nothing shows that a restore works" in practice(box)
    assert practice(box).startswith("note: ")


def test_a_snapshot_that_lost_all_files_is_no_success(box: Box, scratch: Path) -> None:
    fill(box)
    for path in [path for path in box.source.rglob("*") if not path.is_dir()]:
        path.unlink()
    box.take()
    empty, full = [one.id for one in box.snapshots()]
    said = f"ciuic: {empty} has no complete file, so nothing shows that a restore works, and {full}"

    for more in ([], ["--full"], ["--dry-run"]):
        done = box.ciuic("drill", "--scratch", scratch, "--json", *more)
        assert done.code == 3, done.err
        assert said in done.err
        assert (done.document["ok"], done.document["files"]) == (False, 0)
        assert f"ciuic: {done.document['problem']}\n" == done.err
    assert "no complete file to practice on" in box.ciuic("drill", "--scratch", scratch).out
    assert practice(box).startswith("note: ")
    earlier = box.ciuic("drill", "-s", full, "--scratch", scratch, "--json")
    assert (earlier.code, earlier.document["problem"]) == (0, None)


def test_another_user_may_practice_without_a_record(public_box: Box) -> None:
    box, user = public_box, as_nobody()
    if user is None:
        pytest.skip("only root can run a command as another user")
    (box.source / "a").write_bytes(b"a" * 5000)
    box.take()
    for path in [box.store, *box.store.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    scratch = box.directory / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)

    done = box.ciuic("drill", "--scratch", scratch, user=user)

    assert done.code == 0, done.err
    assert "1 file restored and compared" in done.out
    assert "the result could not be recorded: " in done.err
    assert not list(scratch.iterdir())


def test_a_scratch_directory_that_cannot_be_used_is_one_sentence(box: Box, tmp_path: Path) -> None:
    fill(box)
    file = tmp_path / "file"
    file.touch()

    for place in (tmp_path / "missing", file):
        done = box.ciuic("drill", "--scratch", place)
        assert done.code == 1
        assert done.err.startswith(f"ciuic: the scratch directory {place} cannot be used: ")
        assert "--scratch DIR" in done.err


def test_too_little_space_refuses_a_full_drill_and_limits_a_sample(
    box: Box, tmp_path: Path
) -> None:
    for number in range(8):
        (box.source / f"{number}.bin").write_bytes(os.urandom(1 << 20))
    box.take()
    with tmpfs(tmp_path / "small", size_mib=4) as small:
        full = box.ciuic("drill", "--full", "--scratch", small)
        some = box.ciuic("drill", "--scratch", small, "--json")
        assert not list(small.iterdir())

    assert full.code == 1
    assert "a full drill needs 8.00 MiB" in full.err
    assert some.code == 0, some.err
    assert 1 <= some.document["files"] <= 2


def test_a_drill_that_could_restore_nothing_is_refused_and_not_recorded(
    box: Box, scratch: Path, tmp_path: Path
) -> None:
    (box.source / "weights.bin").write_bytes(os.urandom(3 << 20))
    box.take()
    assert box.ciuic("drill", "--scratch", scratch).code == 0
    before = practice(box)

    little = box.ciuic("drill", "--scratch", scratch, "--size", "1MiB")
    with tmpfs(tmp_path / "small", size_mib=4) as small:
        full = box.ciuic("drill", "--scratch", small)
        assert not list(small.iterdir())

    assert little.code == 2
    assert "the smallest file has 3.00 MiB" in little.err
    assert full.code == 1
    assert f"{small} has too little space for a drill" in full.err
    assert "--scratch DIR" in full.err
    assert before.startswith("ok: ")
    assert "1 file " in practice(box)


def test_a_stopped_drill_leaves_nothing_in_the_scratch_directory(box: Box, scratch: Path) -> None:
    for number in range(3000):
        (box.source / f"{number}.txt").write_bytes(b"%d" % number)
    box.take()
    command = [*CIUIC, "--config", str(box.config), "drill", "--full", "--scratch", str(scratch)]
    with subprocess.Popen(command, env=environment(), stdout=-3, stderr=-3) as process:
        until_s = time.monotonic() + _LIMIT_S
        while not list(scratch.iterdir()) and time.monotonic() < until_s:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        code = process.wait(_LIMIT_S)

    assert code == 128 + signal.SIGTERM


@settings(deadline=None, max_examples=30)
@given(files_max=st.integers(1, 40), size=st.integers(0, 12_000), seed=st.integers(0, 2**32))
def test_a_sample_obeys_its_limits(
    tmp_path_factory: pytest.TempPathFactory, files_max: int, size: int, seed: int
) -> None:
    box = _made(tmp_path_factory)

    found = chosen(box, files_max=files_max, size_max_bytes=size, seed=seed)

    assert len(found) <= files_max
    assert sum(one.entry.size_bytes for one in found) <= size
    assert len({one.path for one in found}) == len(found)
    assert found == chosen(box, files_max=files_max, size_max_bytes=size, seed=seed)
    if size >= 5000:
        newest = max((box.source / "deep").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        assert found[0].path == os.fsencode(newest)


_BOXES: list[Box] = []


def _made(factory: pytest.TempPathFactory) -> Box:
    if not _BOXES:
        box = Box(factory.mktemp("drill"))
        fill(box)
        _BOXES.append(box)
        os.utime(box.source / "deep" / "weights.safetensors", ns=(1 << 60, 2 << 60))
        box.take()
    return _BOXES[0]


def test_a_file_that_was_being_written_is_not_chosen(live_box: Box) -> None:
    (live_box.source / "still").write_bytes(b"s" * 100)
    with open(live_box.source / "log", "wb") as log:
        log.write(b"l" * 100)
        log.flush()
        live_box.take()

    found = chosen(live_box, files_max=9, size_max_bytes=10_000, seed=1)

    assert [os.path.basename(one.path) for one in found] == [b"still"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: os.truncate(path, 99), "99 bytes instead of 5,000"),
        (os.utime, "its time of modification differs"),
        (lambda path: path.chmod(0o777), "its permissions differ"),
    ],
)
def test_a_restored_file_that_differs_is_noticed(
    box: Box, tmp_path: Path, spoil: object, says: str
) -> None:
    file = box.source / "a"
    file.write_bytes(os.urandom(5000))
    box.take()
    box.restore(file, to=tmp_path)
    entry = entry_of(box, file).entry
    with open_store(str(box.store)) as store:
        assert difference(store, entry, os.fsencode(tmp_path / "a")) == ""
        spoil(tmp_path / "a")
        if "permissions" in says and os.geteuid():
            pytest.skip("only root compares permissions")
        assert says in difference(store, entry, os.fsencode(tmp_path / "a"))


def test_a_restored_file_with_other_bytes_but_the_same_length_and_time_is_noticed(
    box: Box, tmp_path: Path
) -> None:
    file = box.source / "a"
    file.write_bytes(os.urandom(3_000_000))
    box.take()
    box.restore(file, to=tmp_path)
    copy = tmp_path / "a"
    status = copy.stat()
    data = bytearray(copy.read_bytes())
    data[2_500_000] ^= 1
    copy.write_bytes(data)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))

    with open_store(str(box.store)) as store:
        said = difference(store, entry_of(box, file).entry, os.fsencode(copy))

    assert said == "its bytes differ after byte 2,097,152"


def test_a_package_that_hangs_or_crashes_is_reported_as_a_load_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(npy(b"12345678"))

    found = load_checkpoint(b"/a.npy", os.fsencode(path), limit_s=0.001)

    assert found is not None
    assert found.is_bad
    assert "more than 0 s" in found.what


def test_a_pickle_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.npy"
    np.save(path, np.array([_Evil(str(tmp_path / "ran"))], dtype=object), allow_pickle=True)

    found = load_checkpoint(b"/evil.npy", os.fsencode(path))

    assert found is not None
    assert found.is_bad
    assert not (tmp_path / "ran").exists()


class _Evil:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._path,)


def test_a_file_that_is_no_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"text")

    assert load_checkpoint(b"/a.pt", os.fsencode(path)) is None
