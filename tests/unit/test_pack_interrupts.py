"""An interrupt of one thread, or a slow listing, does not hold up the other readers of a pack."""

import os
import signal
import sys
import threading

import pytest

from ciuic.store.records import layout
from tests.unit.test_pack_objects import MIB, CountingPlace, opened

WAIT_S = 30


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return CountingPlace(str(tmp_path / "place"))


def wait_for(is_true):
    """Ask again and again, for a bounded time."""
    pause = threading.Event()
    for _ in range(WAIT_S * 1000):
        if is_true():
            return
        pause.wait(0.001)
    raise AssertionError("it did not come true")


def functions_of(thread):
    """Return the names of the functions that a thread is in, the innermost first."""
    frame, names = sys._current_frames().get(thread.ident), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_an_interrupt_of_the_thread_that_fetches_is_none_of_those_that_wait(place, tmp_path):
    data = os.urandom(4 * MIB)
    pack = opened(place, tmp_path, data)
    get_ranges, found = place.get_ranges, []
    waiting = threading.Thread(target=lambda: found.append(pack.read(700, 8)))

    def interrupted(key, ranges):
        place.get_ranges = get_ranges
        waiting.start()
        wait_for(lambda: "_awaited" in functions_of(waiting))
        raise KeyboardInterrupt

    place.get_ranges = interrupted
    with pytest.raises(KeyboardInterrupt):
        pack.read(700, 8)
    waiting.join()

    assert found == [data[8:708]]


def test_an_interrupt_while_a_part_is_noted_leaves_the_pack_readable(place, tmp_path):
    """The interrupt is a real one: it comes while the main thread waits for the pack's lock."""
    data = os.urandom(4 * MIB)
    pack = opened(place, tmp_path, data)
    main, is_held = threading.main_thread(), threading.Event()
    get_ranges, interrupter = place.get_ranges, None

    def interrupt():
        with pack._lock:
            is_held.set()
            wait_for(
                lambda: pack._parts.find(pack._pack_id, 8) and functions_of(main)[0] == "_fetch"
            )
            signal.pthread_kill(main.ident, signal.SIGINT)
            wait_for(lambda: "_fetch" not in functions_of(main))

    def held(key, ranges):
        interrupter.start()
        assert is_held.wait(WAIT_S)
        return get_ranges(key, ranges)

    interrupter = threading.Thread(target=interrupt)
    place.get_ranges = held
    with pytest.raises(KeyboardInterrupt):
        pack.read(700, 8)
    interrupter.join()
    place.get_ranges = get_ranges

    assert pack._under_way == []
    assert pack.doubt(0, len(data))
    assert pack.read(700, 8) == data[8:708]


def test_readers_of_a_pack_do_not_wait_until_segments_are_listed(place, tmp_path):
    data = os.urandom(4 * MIB)
    pack = opened(place, tmp_path, data)
    assert pack.read(700, 8) == data[8:708]
    has_begun, may_end = threading.Event(), threading.Event()
    in_time, found, listing = [], [], place.list

    def slow(folder="", after=""):
        if folder == layout.SEGMENTS:
            has_begun.set()
            in_time.append(may_end.wait(WAIT_S))
        return listing(folder, after)

    place.list = slow
    reader = threading.Thread(target=lambda: found.append(pack.read(40, len(data) - 40)))
    reader.start()
    assert has_begun.wait(WAIT_S)

    assert pack.read(700, 8) == data[8:708]

    may_end.set()
    reader.join()
    assert in_time == [True]
    assert found == [data[-40:]]
