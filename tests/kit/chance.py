"""Repeatable random numbers: the seed of a test is printed, and the environment can set it."""

import os
import random

__all__ = ["SEED_VARIABLE", "drawn_seed"]

SEED_VARIABLE = "CIUIC_SEED"


def drawn_seed() -> int:
    """Return the seed from the environment, or a random one; pytest shows it if the test fails."""
    given = os.environ.get(SEED_VARIABLE)
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    print(f"{SEED_VARIABLE}={seed}")
    return seed
