"""Kills training programs and the processes that write for them, many times, over one store."""

import random
import tempfile
import time
import traceback
from pathlib import Path

from tests.kit.kills import EPOCHS, VICTIMS, kill_once

__all__ = ["kill_often"]


def kill_often(count: int, seed: int) -> bool:
    """Kill ``count`` programs, in turn with their writers; returns whether the store survived.

    After each kill the newest snapshot must load, be right, and be no older than the last one that
    was reported as durable; every byte of every snapshot is checked.
    """
    chance = random.Random(seed)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ciuic-kills-") as directory:
        store, durable = Path(directory) / "store", -1
        for number in range(count):
            victim = VICTIMS[number % len(VICTIMS)]
            try:
                durable = kill_once(store, chance, victim, EPOCHS * number, durable)
            except Exception as error:  # noqa: BLE001 - every failure is a result
                print(f"kill {number + 1} of {count} ({victim}): {error!r}", flush=True)
                traceback.print_exception(error)
                return False
            if (number + 1) % 10 == 0:
                took_s = time.monotonic() - began_s
                print(f"{number + 1:>5} of {count} kills survived, {took_s:.0f} s", flush=True)
    return True
