"""The pacer slows readers down: on a simulated machine, and with pressure files."""

import itertools
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.errors import CancelledError
from ciuic.snapshot.pace.pacer import Pacer
from ciuic.snapshot.pace.pressure import Pressure, pressure_of_others
from tests.kit.clock import ManualClock

MIB = 1024 * 1024
BLOCK = 4 * MIB
MINIMUM = 16 * MIB
DISK = ("io", "disk")


class Machine(ManualClock):
    """A machine on which other programs wait for a share of the time, and longer beside a reader.

    Args:
        usual: The share without the reader.
        added: What a reader adds while it reads.
    """

    def __init__(self, *, usual: float, added: float) -> None:
        super().__init__(0)
        self.usual = usual
        self.added = added
        self._is_reading = False
        self._waited_us = 0.0

    def waited_us(self) -> dict[tuple[str, str], int]:
        return {DISK: int(self._waited_us)}

    def advance(self, duration_s: float) -> None:
        share = self.usual + (self.added if self._is_reading else 0.0)
        self._waited_us += duration_s * 1e6 * min(1.0, share)
        super().advance(duration_s)

    def read(self, duration_s: float) -> None:
        self._is_reading = True
        self.advance(duration_s)
        self._is_reading = False


def pacer_of(machine: Machine, limit: float = 0.1) -> Pacer:
    return Pacer([machine], machine, limit=limit, minimum_rate_bytes=MINIMUM)


def go_on() -> None:
    """Never stop a wait."""


def read(machine: Machine, pacer: Pacer, blocks: int, *, block_s: float = 0.01) -> float:
    """Read blocks, each in this time; return the total time."""
    began_s = machine.monotonic_s()
    for _ in range(blocks):
        machine.read(block_s)
        pacer.pace(BLOCK, go_on)
    return machine.monotonic_s() - began_s


def test_nothing_waits_if_no_other_program_waits():
    machine = Machine(usual=0.0, added=0.0)
    pacer = pacer_of(machine)

    assert read(machine, pacer, 1000) == pytest.approx(10.0)
    assert pacer.waited_s == 0
    assert pacer.rate_bytes is None


def test_a_reader_that_disturbs_others_slows_down_until_it_adds_no_more_than_the_limit():
    machine = Machine(usual=0.0, added=0.8)
    pacer = pacer_of(machine)
    read(machine, pacer, 500)
    before_us, before_s = machine.waited_us()[DISK], machine.monotonic_s()
    read(machine, pacer, 500)

    share = (machine.waited_us()[DISK] - before_us) / 1e6 / (machine.monotonic_s() - before_s)
    assert share < 0.15
    assert pacer.waited_s > 0


def test_waits_that_the_reader_does_not_cause_do_not_slow_it_down():
    machine = Machine(usual=0.7, added=0.02)
    pacer = pacer_of(machine)
    duration_s = read(machine, pacer, 4000)

    assert duration_s < 40 * 1.15, "only the moments in which it measures"
    assert pacer.rate_bytes is None


def test_the_end_of_other_load_does_not_hide_what_the_reader_adds():
    machine = Machine(usual=0.9, added=0.0)
    pacer = pacer_of(machine)
    read(machine, pacer, 2000)
    assert pacer.rate_bytes is None

    # The others now wait only because of the reader, and in total as long as before.
    machine.usual, machine.added = 0.0, 0.9
    read(machine, pacer, 3000)
    assert pacer.rate_bytes is not None


class Loaders(Machine):
    """A machine whose waiting programs are replaced by new ones again and again.

    Args:
        epoch_s: How long each of them runs.
    """

    def __init__(self, *, usual: float, added: float, epoch_s: float) -> None:
        super().__init__(usual=usual, added=added)
        self._epoch_s = epoch_s

    def waited_us(self) -> dict[tuple[str, str], int]:
        return {("io", f"loader {self.monotonic_s() // self._epoch_s}"): int(self._waited_us)}


def test_programs_that_begin_while_it_reads_count_only_once_a_probe_has_measured_them():
    machine = Loaders(usual=0.7, added=0.0, epoch_s=1.5)
    pacer = pacer_of(machine)
    took_s = 0.0
    for _ in range(400):
        took_s += read(machine, pacer, 10)
        assert pacer.rate_bytes is None, "they wait as long without the readers"
    assert took_s < 40 * 1.2, "only the moments in which it measures"

    machine = Loaders(usual=0.0, added=0.8, epoch_s=30)
    pacer = pacer_of(machine)
    took_s = slow_s = 0.0
    while took_s < 300:
        block_s = read(machine, pacer, 1)
        took_s += block_s
        slow_s += block_s if pacer.rate_bytes is not None else 0.0
    assert slow_s > 0.7 * took_s, "from the first probe of each on"


def test_a_reader_is_fast_again_once_it_disturbs_no_others():
    machine = Machine(usual=0.0, added=0.8)
    pacer = pacer_of(machine)
    read(machine, pacer, 500)
    assert pacer.rate_bytes is not None

    machine.added = 0.0
    read(machine, pacer, 500)
    assert pacer.rate_bytes is None
    waited_s = pacer.waited_s
    read(machine, pacer, 500)
    assert pacer.waited_s == waited_s


shares = st.floats(0.0, 1.0)


@given(
    stretches=st.lists(st.tuples(shares, shares), min_size=1, max_size=8),
    block_s=st.sampled_from([0.001, 0.01, 0.2]),
    limit=st.sampled_from([0.01, 0.1, 0.9]),
)
def test_every_snapshot_ends_in_a_time_that_its_size_bounds(stretches, block_s, limit):
    machine = Machine(usual=0.0, added=0.0)
    pacer = pacer_of(machine, limit)
    blocks, took_s = 100, 0.0
    for usual, added in stretches:
        machine.usual, machine.added = usual, added
        took_s += read(machine, pacer, blocks, block_s=block_s)

    reading_s = len(stretches) * blocks * block_s
    size_bytes = len(stretches) * blocks * BLOCK
    slowest_s = reading_s + size_bytes / MINIMUM
    probes = took_s / 4.0 + 1
    assert took_s <= slowest_s + probes * 0.6
    assert pacer.waited_s == pytest.approx(took_s - reading_s, abs=1e-6)


def test_a_wait_ends_at_once_when_the_snapshot_is_stopped():
    machine = Machine(usual=1.0, added=0.0)
    pacer = pacer_of(machine)
    calls = itertools.count()

    def stop() -> None:
        if next(calls):
            raise CancelledError("stopped")

    with pytest.raises(CancelledError):
        for _ in range(1000):
            machine.read(0.01)
            pacer.pace(BLOCK, stop)
    assert pacer.waited_s < 1


def test_readers_in_several_threads_share_one_rate_and_their_wait_counts_once():
    """Several threads of a snapshot call the pacer at once, and the pressure never ends."""

    class Squeezed:
        def __init__(self) -> None:
            self.us = itertools.count(0, 10**9)

        def waited_us(self) -> dict[tuple[str, str], int]:
            return {DISK: next(self.us)}

    clock, lock = ManualClock(0), threading.Lock()

    class Shared:
        now_ns = clock.now_ns

        def monotonic_s(self) -> float:
            with lock:
                return clock.monotonic_s()

        def sleep(self, duration_s: float) -> None:
            with lock:
                clock.advance(duration_s)

    shared = Shared()
    pacer = Pacer([Squeezed()], shared, limit=0.1, minimum_rate_bytes=MINIMUM)
    began_s = shared.monotonic_s()

    def work() -> None:
        for _ in range(200):
            pacer.pace(BLOCK, go_on)
            shared.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    took_s = shared.monotonic_s() - began_s
    assert 0 < pacer.waited_s <= took_s


def write_pressure(path: Path, some_us: int) -> None:
    path.write_text(
        f"some avg10=1.00 avg60=2.00 avg300=3.00 total={some_us}\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )


def test_pressure_is_read_from_files_that_come_and_go(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    pressure = Pressure({"io": [str(first)], "cpu": [str(second)]})
    assert not pressure.is_known

    write_pressure(first, 12)
    second.write_text("no such thing\n")
    assert pressure.waited_us() == {("io", str(first)): 12}
    first.unlink()
    write_pressure(second, 5)
    assert pressure.waited_us() == {("cpu", str(second)): 5}


def test_the_counter_in_a_pressure_file_makes_a_reader_wait(tmp_path):
    path = tmp_path / "io.pressure"

    class Kernel(Machine):
        def advance(self, duration_s: float) -> None:
            super().advance(duration_s)
            write_pressure(path, self.waited_us()[DISK])

    machine = Kernel(usual=0.0, added=0.8)
    waits = [Pressure({"io": [str(path)]})]
    pacer = Pacer(waits, machine, limit=0.1, minimum_rate_bytes=MINIMUM)
    assert read(machine, pacer, 500) > 10
    assert pacer.rate_bytes is not None


def fake_proc(tmp_path: Path, own: str, pids: dict[str, str]) -> Path:
    """Make a procfs and cgroups. ``pids`` has the processes of each cgroup."""
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(f"1:cpu:/\n0::{own}\n")
    (proc / "self" / "mountinfo").write_text(
        "20 1 0:1 / / rw - ext4 /dev/vda rw\n"
        f"30 20 0:26 / {mount} rw,relatime - cgroup2 cgroup2 rw\n"
    )
    (proc / "pressure").mkdir()
    for name in ("io", "cpu"):
        write_pressure(proc / "pressure" / name, 1)
    for group, members in pids.items():
        (mount / group).mkdir(parents=True, exist_ok=True)
        (mount / group / "cgroup.procs").write_text(members)
        for name in ("io", "cpu"):
            write_pressure(mount / group / f"{name}.pressure", 2)
    return proc


def groups(pressure: Pressure, tmp_path: Path) -> set[str]:
    return {
        os.path.relpath(os.path.dirname(path), tmp_path)
        for resource, path in pressure.waited_us()
        if resource == "io"
    }


def test_alone_in_its_cgroup_a_daemon_looks_at_all_others_and_not_at_its_own(tmp_path):
    proc = fake_proc(
        tmp_path,
        "/system.slice/ciuicd.service",
        {
            "system.slice": "",
            "system.slice/ciuicd.service": f"{os.getpid()}\n",
            "system.slice/training.service": "1\n",
            "user.slice": "1\n",
            "user.slice/user-1000.slice": "1\n",
        },
    )
    assert groups(pressure_of_others(str(proc)), tmp_path) == {
        "cgroup/system.slice/training.service",
        "cgroup/user.slice",
    }


def test_a_daemon_with_others_in_its_cgroup_looks_at_the_entire_machine(tmp_path):
    own = "/user.slice"
    proc = fake_proc(tmp_path, own, {"user.slice": f"{os.getpid()}\n1\n", "other": ""})
    (proc / "1").mkdir()
    (proc / "1" / "stat").write_text("1 (tr) aining) S 0 1 1 0")
    assert groups(pressure_of_others(str(proc)), tmp_path) == {"proc/pressure"}


def test_a_hook_in_the_cgroup_of_the_daemon_is_not_another_program(tmp_path):
    own = "/ciuicd.service"
    members = f"{os.getpid()}\n77\n"
    proc = fake_proc(tmp_path, own, {"ciuicd.service": members, "other": ""})
    (proc / "77").mkdir()
    (proc / "77" / "stat").write_text(f"77 (sh) S {os.getpid()} 1 1 0")
    assert groups(pressure_of_others(str(proc)), tmp_path) == {"cgroup/other"}


def test_without_cgroups_the_entire_machine_counts_and_without_psi_nothing(tmp_path):
    proc = fake_proc(tmp_path, "/ciuicd.service", {"ciuicd.service": f"{os.getpid()}\n"})
    (proc / "self" / "mountinfo").write_text("20 1 0:1 / / rw - ext4 /dev/vda rw\n")
    assert groups(pressure_of_others(str(proc)), tmp_path) == {"proc/pressure"}
    for name in ("io", "cpu"):
        (proc / "pressure" / name).unlink()
    assert not pressure_of_others(str(proc)).is_known
