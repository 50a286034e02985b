"""``ciuic run --restart``: when a job starts again, and when it does not."""

import json
import os
import signal
from pathlib import Path

from tests.kit.box import Box
from tests.kit.daemon import wait_until
from tests.kit.jobs import Run, state
from tests.kit.tensors import safetensors, torch_zip

LIFE = """echo start >> {place}/starts
n=$(wc -l < {place}/starts)
{more}
"""


def job(place: Path, more: str) -> list[str]:
    """A command that counts its starts in ``n``."""
    return ["sh", "-c", LIFE.format(place=place, more=more)]


def starts(place: Path) -> int:
    return len((place / "starts").read_text().splitlines())


def test_a_job_starts_again_after_its_state_was_saved(box: Box, tmp_path: Path) -> None:
    (box.source / "a").write_bytes(b"a")
    command = job(tmp_path, f"echo $n > {box.source}/a; [ $n = 3 ] || exit 7")
    done = box.ciuic("run", "--job", "j", "--restart", "5", "--", *command)

    assert done.code == 0
    assert starts(tmp_path) == 3
    found = [box.read(box.source / "a", one.id) for one in box.snapshots()]
    assert found == [b"2\n", b"1\n"]
    assert "restart 2 of 5" in done.err


def test_restarts_are_counted_and_the_last_failure_is_that_of_ciuic(tmp_path: Path) -> None:
    with Run("run", "--restart", "1", "--", *job(tmp_path, "exit $((n + 10))")) as run:
        assert run.end() == 12
    assert starts(tmp_path) == 2


def test_a_job_that_fails_twice_at_the_same_step_is_not_started_a_third_time(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    steps = f"for s in 1 2 3; do echo '{{\"step\": '$s'}}' >> {log}; done; exit 9"
    with Run("run", "--restart", "5", "--log", log, "--", *job(tmp_path, steps)) as run:
        assert run.end() == 9
    assert starts(tmp_path) == 2
    assert "failed twice at step 3, and is not started again" in run.err


def told(directory: Path) -> list[tuple[str, str]]:
    """Return event and text of each message of the channel ``alert_to``, in order."""
    found = [json.loads(path.read_bytes()) for path in directory.glob("*.json")]
    return [(one["event"], one["text"]) for one in sorted(found, key=lambda one: one["time"])]


def alert_to(directory: Path) -> str:
    directory.mkdir()
    return (
        "[alert all]\ntype = command\n"
        f"command = cat > {directory}/$$ && mv {directory}/$$ {directory}/$$.json\n"
    )


def test_each_failure_each_restart_and_the_last_refusal_are_told(tmp_path: Path) -> None:
    config, heard = tmp_path / "ciuic.conf", tmp_path / "heard"
    config.write_text(f"snapshot_dir = {tmp_path}/none\n{alert_to(heard)}")
    words = ["--config", config, "run", "--job", "j", "--restart", "1", "--"]
    with Run(*words, *job(tmp_path, "exit 5")) as run:
        assert run.end() == 5
    wait_until("all messages came", lambda: len(told(heard)) == 4)
    failed = ("began", "job j failed with exit status 5")
    assert told(heard) == [
        failed,
        ("ended", "job j was started again: restart 1 of 1"),
        failed,
        ("began", "job j failed after 1 restart, and is not started again"),
    ]
    assert "job j failed after 1 restart, and is not started again" in run.err


def test_an_emergency_snapshot_that_fails_is_told(box: Box, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    box.config.write_text(box.config.read_text() + alert_to(heard))
    words = ["--config", box.config, "run", "--job", "j", "--restart", "1", "--"]
    with Run(*words, "sh", "-c", f"mv {box.store} {tmp_path}/away; exit 5") as run:
        assert run.end() == 5
    wait_until("all messages came", lambda: len(told(heard)) == 3)
    assert [text for _, text in told(heard)] == [
        "job j failed with exit status 5",
        "job j failed, and its emergency snapshot failed too",
        "job j is not started again, because its state could not be saved first",
    ]


def test_every_process_has_ended_before_the_job_starts_again(tmp_path: Path) -> None:
    """A worker in a session of its own outlives the first failure."""
    worker = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 300' >/dev/null 2>&1 &"
    wait = f"while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done; exit 1"
    check = f"kill -0 $(cat {tmp_path}/pid) 2>/dev/null && exit 99; exit 0"
    more = f"if [ $n = 1 ]; then {worker} {wait}; else {check}; fi"
    with Run("run", "--restart", "1", "--", *job(tmp_path, more)) as run:
        assert run.end() == 0, run.err
    assert state(int((tmp_path / "pid").read_text())) == "gone"


def test_an_end_that_was_asked_for_is_no_reason_to_start_again(tmp_path: Path) -> None:
    more = f"touch {tmp_path}/up; while :; do sleep 0.02; done"
    with Run("run", "--restart", "5", "--", *job(tmp_path, more)) as run:
        wait_until("it runs", (tmp_path / "up").exists)
        run.send(signal.SIGTERM)
        assert run.end() == -signal.SIGTERM
    assert starts(tmp_path) == 1


def test_a_job_whose_state_cannot_be_saved_is_not_started_again(box: Box, tmp_path: Path) -> None:
    """The store is lost while the job runs."""
    away = tmp_path / "away"
    more = f"mv {box.store} {away}; exit 5"
    done = box.ciuic("run", "--restart", "3", "--", *job(tmp_path, more))

    assert done.code == 5
    assert starts(tmp_path) == 1
    assert "is not started again, because its state could not be saved first" in done.err
    assert os.listdir(away)


def test_a_checkpoint_that_was_cut_short_comes_back_before_the_job_starts_again(
    box: Box, tmp_path: Path
) -> None:
    """But only after every process of the job has ended: one writes to it until then."""
    weights = box.source / "m.safetensors"
    whole = safetensors({"w": b"a" * 100_000})
    weights.write_bytes(whole)
    first = box.ciuic("snapshot", "--json").document["id"]
    torn, seen = tmp_path / "torn", tmp_path / "seen"
    torn.write_bytes(safetensors({"w": b"b" * 100_000})[:50_000])
    # The worker is in a session of its own. On SIGTERM, it notes the present content, and writes.
    worker = (
        f"trap 'cp {weights} {seen}; cp {torn} {weights}; exit 0' TERM; touch {tmp_path}/up;"
        " while :; do sleep 0.05; done"
    )
    (tmp_path / "worker").write_text(worker)
    begin = f"setsid sh {tmp_path}/worker >/dev/null 2>&1 & cp {torn} {weights}"
    wait = f"while [ ! -e {tmp_path}/up ]; do sleep 0.01; done"
    check = f"cmp {weights} {tmp_path}/whole"
    (tmp_path / "whole").write_bytes(whole)
    more = f"if [ $n = 1 ]; then {begin}; {wait}; exit 9; fi; {check}"

    done = box.ciuic("run", "--job", "j", "--restart", "1", "--", *job(tmp_path, more))

    assert done.code == 0, done.err
    assert seen.read_bytes() == torn.read_bytes(), "it came back while a process still ran"
    assert (box.source / ".m.safetensors.broken-1").read_bytes() == torn.read_bytes()
    assert f"{weights} is broken: it is cut short" in done.err
    plan, start = (done.err.index(text) for text in ("is broken", "starts again"))
    assert done.err.index("emergency snapshot") < plan < start
    assert box.ciuic("snapshot").code == 0
    follows = [one["follows"] for one in box.ciuic("list", "--json").document]
    assert follows == [[{"path": str(weights), "snapshot": first}], [], []]


def test_a_checkpoint_that_became_noise_comes_back_before_the_job_starts_again(
    box: Box, tmp_path: Path
) -> None:
    state, whole = box.source / "last.pt", tmp_path / "whole"
    for path in (state, whole):
        path.write_bytes(torch_zip([b"a" * 5000]))
    assert box.ciuic("snapshot").code == 0
    (tmp_path / "noise").write_bytes(bytes(range(1, 251)) * 4)
    more = f"[ $n = 1 ] && cp {tmp_path}/noise {state}; cmp {state} {whole}"

    done = box.ciuic("run", "--job", "j", "--restart", "2", "--", *job(tmp_path, more))

    assert done.code == 0, done.err
    assert starts(tmp_path) == 2
    assert "1 file was put back" in done.err


def test_without_restart_broken_files_stay(box: Box, tmp_path: Path) -> None:
    weights = box.source / "m.safetensors"
    weights.write_bytes(safetensors({"w": b"a" * 1000}))
    assert box.ciuic("snapshot").code == 0
    done = box.ciuic("run", "--", *job(tmp_path, f"truncate -s 500 {weights}; exit 9"))

    assert done.code == 9
    assert os.listdir(box.source) == [weights.name]
    assert weights.stat().st_size == 500
