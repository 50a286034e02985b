"""Compares numpy with the compiled core on many inputs; see ``scripts/compare-cores``."""

import argparse
import random
import sys
from collections import Counter

from tests.core.compare import DifferenceError, compare
from tests.kit.cores import VARIANTS

EVERY = 100


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="scripts/compare-cores", description=__doc__)
    parser.add_argument("inputs", nargs="?", type=int, default=1_000_000)
    parser.add_argument("seed", nargs="?", type=int, default=random.randrange(10**9))
    chosen = parser.parse_args()
    if not VARIANTS:
        print("the compiled core is not built: .venv/bin/pip install -e .", file=sys.stderr)
        return 2
    print(f"seed {chosen.seed}", flush=True)
    done: Counter[str] = Counter()
    try:
        batches = compare(chosen.inputs, chosen.seed, [VARIANTS[0], VARIANTS[-1]])
        for number, done in enumerate(batches, 1):
            if number % EVERY == 0:
                print(f"{done.total():,} inputs", flush=True)
    except DifferenceError as error:
        print(f"numpy and the core differ: {error}", file=sys.stderr)
        return 1
    print(f"{done.total():,} inputs ({', '.join(f'{n:,} {kind}' for kind, n in done.items())})")
    print("numpy, plain C and the vector instructions of this processor agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
