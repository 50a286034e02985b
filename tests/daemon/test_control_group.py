"""Members of ``control_group`` may ask the daemon for snapshots, and for nothing else."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from ciuic.control import request_done, request_status
from ciuic.errors import CiuicError
from tests.kit.daemon import Daemon, Machine, wait_until
from tests.kit.program import Outcome, ciuic

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

USER = 65534
GROUP = 54_321


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine in a directory that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="ciuic-test-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        found = Machine(directory)
        found.configure(control_group=str(GROUP))
        yield found
        found.close()


def serve(machine: Machine) -> Daemon:
    """Start a daemon; return once it has taken the first snapshot of its schedule."""
    daemon = machine.start()
    daemon.wait_for_log("snapshot cs-")
    return daemon


def ask(machine: Machine, *arguments: str | Path, groups: tuple[int, ...] = (GROUP,)) -> Outcome:
    """Run a command as a user who is in further groups."""
    return ciuic("--config", machine.config, *arguments, user=USER, groups=groups)


def as_member(act: Callable[[], object]) -> str:
    """Run code in a process of a member; return its output, or its error."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "ended early"
        try:
            os.setgroups([GROUP])
            os.setgid(USER)
            os.setuid(USER)
            said = str(act())
        except (CiuicError, OSError) as error:
            said = str(error)
        finally:
            os.write(write_end, said.encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def test_a_member_gets_a_snapshot_and_cannot_read_the_store(machine: Machine) -> None:
    serve(machine)
    done = ask(machine, "snapshot", "--tag", "emergency")

    assert done.code == 0, done.err
    taken, _ = machine.snapshots()
    assert done.out == f"{taken.id}\n"
    assert (taken.tags, taken.roots) == (("emergency",), (os.fsencode(machine.source),))
    for arguments in (["list"], ["show", taken.id], ["cat", taken.id, "/x"], ["forget", taken.id]):
        refused = ask(machine, *arguments)
        assert refused.code == 1
        assert "ermission denied" in refused.err
    assert "ermission denied" in as_member(lambda: os.listdir(machine.store))
    header = machine.store / "ciuic-store.json"
    assert "ermission denied" in as_member(header.read_bytes)
    assert len(machine.snapshots()) == 2


def test_a_member_gets_no_snapshot_of_another_directory(machine: Machine) -> None:
    serve(machine)
    other = machine.directory / "other"
    other.mkdir()
    for arguments in ([other], ["--exclude", "*.tmp"]):
        done = ask(machine, "snapshot", *arguments)
        assert done.code == 1
        assert f"user {USER} may have this daemon take snapshots of the configured" in done.err
    assert len(machine.snapshots()) == 1


@pytest.mark.parametrize("do", ["pause", "resume", "reload"])
def test_a_member_can_ask_for_nothing_else(
    machine: Machine, do: Literal["pause", "resume", "reload"]
) -> None:
    serve(machine)
    said = as_member(lambda: request_done(str(machine.store), do))
    assert f"user {USER} may only ask this daemon for its status and for snapshots" in said
    assert as_member(lambda: (request_status(str(machine.store)) or {})["may_take"]) == "True"


def test_others_are_refused_before_and_after_a_reload(machine: Machine) -> None:
    daemon = serve(machine)
    done = ask(machine, "snapshot", groups=(GROUP + 1,))
    assert done.code == 1
    assert "ermission denied" in done.err

    machine.configure(control_group="")
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("reloaded")
    done = ask(machine, "snapshot")
    assert done.code == 1
    assert f"user {USER} may only ask this daemon for its status" in done.err

    machine.configure(control_group=str(GROUP + 1))
    daemon.signal(signal.SIGHUP)
    wait_until(
        "the other group is admitted",
        lambda: ask(machine, "snapshot", groups=(GROUP + 1,)).code == 0,
    )
    # Members of the first group can still connect. The daemon asks the kernel for their groups, and
    # refuses them.
    done = ask(machine, "snapshot")
    assert done.code == 1
    assert f"user {USER} may only ask this daemon for its status" in done.err
    assert len(machine.snapshots()) == 2


def test_a_job_says_at_its_start_whether_its_user_may_have_snapshots(machine: Machine) -> None:
    serve(machine)
    for groups, is_said in (((GROUP,), False), ((), True)):
        done = ask(machine, "run", "--", "true", groups=groups)
        assert done.code == 0
        assert ("no snapshot can be taken if the job fails: " in done.err) == is_said


def test_a_group_that_does_not_exist_is_a_mistake_in_the_configuration(machine: Machine) -> None:
    machine.configure(control_group="no-such-group")
    done = machine.once()
    assert done.returncode == 2
    assert "control_group: there is no group 'no-such-group' on this machine" in done.stderr
