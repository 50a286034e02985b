"""Hooks: commands before and after a snapshot, and the effects of their failures."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ciuic.errors import CancelledError
from ciuic.snapshot.hook_process import run_hook
from ciuic.snapshot.hooks import Hooks, take_with_hooks
from ciuic.snapshot.plan import TakeRequest
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.box import Box
from tests.kit.daemon import wait_until
from tests.kit.program import CIUIC, Outcome, environment
from tests.kit.strace import strace


def with_hooks(box: Box, **values: str) -> None:
    box.configure()
    with box.config.open("a") as file:
        file.writelines(f"{key} = {value}\n" for key, value in values.items())


def snapshot(box: Box, *options: str) -> Outcome:
    return box.ciuic("snapshot", *options)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_hooks_run_around_a_snapshot_and_get_its_variables(box: Box, tmp_path: Path) -> None:
    (box.source / "file").write_text("x")
    seen = tmp_path / "seen"
    told = 'printenv | grep "^CIUIC_" | grep -v -e CONFIG -e HOOK_RUN | sort'
    with_hooks(
        box,
        before=f"{told} > {seen}.before; cp {box.source}/file {box.source}/dump",
        after=f"{told} > {seen}.after; test -e {box.source}/dump",
    )
    outcome = snapshot(box, "--json", "--tag", "x")
    assert outcome.code == 0, outcome.err
    report = outcome.document
    assert report["files"] == 2, "what 'before' writes is in the snapshot"
    common = [f"CIUIC_ROOTS={box.source}", f"CIUIC_STORE={box.store}", "CIUIC_TAGS=x"]
    assert lines(Path(f"{seen}.before")) == sorted(["CIUIC_HOOK=before", *common])
    assert lines(Path(f"{seen}.after")) == sorted(
        [
            "CIUIC_HOOK=after",
            "CIUIC_EXIT_STATUS=0",
            "CIUIC_KIND=base",
            f"CIUIC_SNAPSHOT_ID={report['id']}",
            "CIUIC_TROUBLE_COUNT=0",
            *common,
        ]
    )


def test_a_snapshot_is_taken_although_before_fails_and_says_so(box: Box) -> None:
    (box.source / "file").write_text("x")
    with_hooks(box, before="echo starting; echo no database >&2; exit 7")
    outcome = snapshot(box)
    assert outcome.code == 3
    newest = box.snapshots()[0]
    assert (newest.files, newest.trouble_count) == (1, 1)
    shown = box.ciuic("show", "latest", "--json").document
    what = "the hook 'before' failed with exit status 7: no database"
    assert shown["trouble"] == [{"path": str(box.source), "what": what}]
    assert what in outcome.err
    assert "before: starting" in outcome.err


def test_a_failure_of_after_is_reported_and_the_snapshot_exists(box: Box) -> None:
    with_hooks(box, after="kill -9 $$")
    outcome = snapshot(box, "--json")
    assert outcome.code == 3
    assert outcome.document["trouble_count"] == 1
    assert "the hook 'after' was killed by signal 9" in outcome.document["trouble"][0]["what"]
    assert box.snapshots()[0].trouble_count == 0, "there is nothing wrong with what it holds"


def test_after_can_use_the_store(box: Box) -> None:
    program = shlex.join(CIUIC)
    with_hooks(box, after=f'{program} --store "$CIUIC_STORE" tag "$CIUIC_SNAPSHOT_ID" --add done')
    assert snapshot(box).code == 0
    assert box.snapshots()[0].tags == ("done",)


def test_a_hook_that_hangs_is_killed_with_all_that_it_has_started(box: Box, tmp_path: Path) -> None:
    """The shell ignores SIGTERM, and so does the program that it waits for."""
    pids = tmp_path / "pids"
    before = f"trap '' TERM; sleep 1000 & echo $! >> {pids}; echo $$ >> {pids}; wait"
    with_hooks(box, before=before, hook_timeout="1s")
    began_s = time.monotonic()
    outcome = snapshot(box)
    assert outcome.code == 3
    assert time.monotonic() - began_s < 2000
    assert "the hook 'before' took longer than 1.00 s and was killed" in outcome.err
    assert len(lines(pids)) == 2
    wait_until("both are gone", lambda: not any(is_running(int(one)) for one in lines(pids)))


def test_a_process_that_has_left_the_group_of_a_hook_is_killed_when_its_time_is_up(
    box: Box, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    inner = f"echo $$ >> {pids}; exec sleep 1000"
    before = f"setsid sh -c '{inner}' & (setsid sh -c '{inner}' &); sleep 1000"
    with_hooks(box, before=before, hook_timeout="2s")
    assert snapshot(box).code == 3
    assert len(lines(pids)) == 2
    wait_until("both are gone", lambda: not any(is_running(int(one)) for one in lines(pids)))


@pytest.mark.parametrize("hook", ["before", "after"])
def test_a_hook_that_takes_a_snapshot_is_refused(box: Box, hook: str) -> None:
    """Otherwise each snapshot would run the hook that takes the next one."""
    command = f"{shlex.join(CIUIC)} --config {box.config} snapshot"
    with_hooks(box, **{hook: command, "hook_timeout": "20s"})
    outcome = snapshot(box)
    assert outcome.code == 3
    assert f"the hook '{hook}' may not take a snapshot; no snapshot was taken" in outcome.err
    assert f"the hook '{hook}' failed with exit status 2" in outcome.err
    assert len(box.snapshots()) == 1


def test_a_hook_may_look_at_what_a_snapshot_would_take(box: Box) -> None:
    with_hooks(box, after=f"{shlex.join(CIUIC)} --config {box.config} snapshot --dry-run")
    assert snapshot(box).code == 0


def test_ciuicd_does_not_run_in_a_hook(box: Box) -> None:
    with_hooks(box)
    command = [CIUIC[0], "-m", "ciuicd", "--config", box.config, "--once"]
    environ = {**environment(), "CIUIC_HOOK": "after"}
    once = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert once.returncode == 2
    assert b"the hook 'after' may not take a snapshot" in once.stderr
    assert box.snapshots() == []


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_store_that_is_held_by_another_process_runs_no_hook(box: Box, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with_hooks(box, before=f"touch {seen}", after=f"touch {seen}")
    with open_store(str(box.store), write=True):
        assert snapshot(box, "--wait", "0").code == 5
    assert not seen.exists()


def test_after_runs_when_the_snapshot_fails(box: Box, tmp_path: Path) -> None:
    """The program that 'before' has stopped must start again."""
    seen = tmp_path / "seen"
    with_hooks(
        box,
        before=f"chmod 0 {box.store}/packs; rm -r {box.store}/packs; touch {box.store}/packs",
        after=f'echo "$CIUIC_EXIT_STATUS:$CIUIC_SNAPSHOT_ID" > {seen}',
    )
    (box.source / "file").write_bytes(os.urandom(100_000))
    assert snapshot(box).code not in {0, 3}
    assert seen.read_text() == "1:\n"


def test_a_snapshot_that_is_interrupted_in_its_hook_takes_nothing_and_runs_after(
    box: Box, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    with_hooks(box, before=f"touch {seen}; sleep 1000", after=f"touch {seen}.after")
    running = subprocess.Popen(
        [*CIUIC, "--config", box.config, "snapshot"], env=environment(), stderr=subprocess.PIPE
    )
    wait_until("the hook runs", seen.exists)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 143
    assert b"interrupted" in err
    assert Path(f"{seen}.after").exists()
    assert box.snapshots() == []


def test_a_dozen_megabytes_of_output_are_passed_on_in_part(box: Box) -> None:
    short, long = "yes | head -c 1000000", "yes $(printf %2000s | tr ' ' x) | head -c 12000000"
    with_hooks(box, before=f"{short}; {long}; echo; echo last; exit 1")
    outcome = snapshot(box)
    assert outcome.code == 3
    assert len(outcome.err) < 200_000
    assert "further output is omitted" in outcome.err
    assert "exit status 1: last" in outcome.err


def test_the_output_of_a_hook_cannot_control_the_terminal(box: Box) -> None:
    with_hooks(box, before=r"printf '\033[31mred\n\377'; exit 1")
    outcome = snapshot(box)
    assert "\033" not in outcome.err
    assert outcome.code == 3
    assert box.ciuic("show", "latest").code == 0


def test_a_background_process_that_holds_the_output_open_is_not_waited_for(
    box: Box, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    with_hooks(box, before=f"sleep 1000 & echo $! > {pid}; echo started", hook_timeout="300s")
    began_s = time.monotonic()
    try:
        assert snapshot(box).code == 0
        assert time.monotonic() - began_s < 200
        assert is_running(int(pid.read_text())), "it is the user's"
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_hook_has_the_signals_of_a_fresh_program(box: Box, tmp_path: Path) -> None:
    """The daemon blocks signals, and Python ignores some; the hook inherits neither."""
    seen = tmp_path / "seen"
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP])
    try:
        what = run_hook(
            f"grep -E '^Sig(Blk|Ign)' /proc/self/status > {seen}",
            dict(os.environb),
            timeout_s=60,
            clock=SystemClock(),
            cancelled=lambda: False,
            say=print,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGHUP])
    assert what is None
    blocked, ignored = (int(line.split()[1], 16) for line in lines(seen))
    assert blocked == 0
    assert not ignored & 1 << signal.SIGPIPE - 1


def test_a_hook_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(CancelledError):
        run_hook(
            f"echo $$ > {pid}; sleep 1000",
            dict(os.environb),
            timeout_s=60,
            clock=SystemClock(),
            cancelled=pid.exists,
            say=print,
        )
    wait_until("it is gone", lambda: not pid.read_text() or not is_running(int(pid.read_text())))


def test_without_hooks_no_shell_is_started(box: Box) -> None:
    assert Hooks() == Hooks("", "")
    outcome = box.ciuic("snapshot")
    assert outcome.code == 0
    trace = subprocess.run(
        [*strace("execve", to="/dev/stdout"), *CIUIC, "--config", box.config, "snapshot"],
        env=environment(),
        capture_output=True,
        check=True,
    )
    assert b'"/bin/sh"' not in trace.stdout


@pytest.mark.root
def test_a_hook_of_a_configuration_that_others_can_write_is_not_run(
    public_box: Box, tmp_path: Path
) -> None:
    """Otherwise another user's command line would run with root's rights."""
    seen = tmp_path / "seen"
    with_hooks(public_box, before=f"touch {seen}", after=f"touch {seen}")
    for mode, owner in ((0o666, 0), (0o664, 0), (0o644, 65534)):
        public_box.config.chmod(mode)
        os.chown(public_box.config, owner, -1 if owner else 0)
        outcome = public_box.ciuic("snapshot")
        assert outcome.code == 2, outcome.err
        once = subprocess.run(
            [CIUIC[0], "-m", "ciuicd", "--config", public_box.config, "--once"],
            env=environment(),
            capture_output=True,
            check=False,
        )
        assert once.returncode == 2, once.stderr
    assert not seen.exists()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_caller_sees_that_after_runs_and_does_not_cancel_it(
    box: Box, tmp_path: Path, is_cancelled: bool
) -> None:
    (box.source / "file").write_text("x")
    begun, gate, over = (tmp_path / name for name in ("begun", "gate", "over"))
    wait = f"touch {begun}; while [ ! -e {gate} ]; do sleep 0.05; done; touch {over}"

    def cancelled() -> bool:
        if begun.exists():
            gate.touch()
        return is_cancelled

    with pytest.raises(CancelledError) if is_cancelled else contextlib.nullcontext():
        take_with_hooks(
            lambda: open_store(str(box.store), write=True),
            TakeRequest((os.fsencode(box.source),)),
            Hooks(after=wait, timeout_s=20),
            clock=SystemClock(),
            say=print,
            cancelled=cancelled,
        )
    assert over.exists()
