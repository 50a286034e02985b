"""The messages to systemd, and its watchdog."""

import os
import socket

import pytest

from ciuic.config.load import load_settings
from ciuicd.notify import Notifier, Watchdog
from ciuicd.served_stores import ServedStores
from ciuicd.service import Service
from tests.kit.clock import ManualClock


@pytest.fixture
def ear(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify.sock"))
        listening.settimeout(20)
        yield listening


def test_messages_are_one_datagram_each_and_a_status_is_one_line(ear):
    notifier = Notifier({"NOTIFY_SOCKET": ear.getsockname()})
    notifier.ready()
    notifier.status("a\nb \udcff")
    notifier.stopping()
    heard = [ear.recv(1000) for _ in range(3)]
    assert heard == [b"READY=1", b"STATUS=a b \xff", b"STOPPING=1"]


def test_an_address_in_the_abstract_name_space_is_reached():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"ciuic-test-{os.getpid()}"
        listening.bind(f"\0{name}")
        listening.settimeout(20)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert listening.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_is_used_only_if_systemd_set_it_for_this_process(environ, expected):
    assert Notifier(environ).watchdog_s == expected


def test_without_a_listening_manager_nothing_happens(tmp_path):
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def test_the_watchdog_is_answered_only_while_the_main_thread_makes_progress(tmp_path, ear):
    config = tmp_path / "ciuic.conf"
    config.write_text(f"snapshot_dir = {tmp_path}/store\n")
    clock = ManualClock()
    environ = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "20000"}
    served_stores = ServedStores({})
    service = Service(
        load_settings(str(config)),
        clock=clock,
        notifier=Notifier(environ),
        served_stores=served_stores,
    )
    with service._watchdog.running():
        assert ear.recv(100) == b"WATCHDOG=1"
        # The main thread has been in one call for half an hour.
        clock.advance(2000)
        ear.settimeout(0.5)
        with pytest.raises(TimeoutError):
            # A message may be on its way.
            [ear.recv(100) for _ in range(10)]
        service._watchdog.note_progress()
        ear.settimeout(20)
        assert ear.recv(100) == b"WATCHDOG=1"


def test_work_that_hangs_is_seen_beside_work_that_goes_on_until_it_ends():
    clock = ManualClock()
    watchdog = Watchdog(Notifier({}), clock)
    with watchdog.watching() as other_goes_on:
        with watchdog.watching() as goes_on:
            for _ in range(4):
                clock.advance(600)
                other_goes_on()
            assert watchdog.stalled_s == 2400
            watchdog.note_progress()
            assert watchdog.stalled_s == 2400, "the main thread is not the work"
            goes_on()
            assert watchdog.stalled_s is None
            clock.advance(1700)
            other_goes_on()
            clock.advance(100)
            assert watchdog.stalled_s == 1800
        assert watchdog.stalled_s is None, "it has ended"
        clock.advance(1700)
        assert watchdog.stalled_s == 1800
    assert watchdog.stalled_s is None
    clock.advance(1800)
    assert watchdog.stalled_s == 1800, "the main thread has not gone on"
