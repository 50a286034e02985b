"""A short comparison of numpy with the compiled core, and a proof that it finds faults."""

import pytest

from ciuic.system.core import Core
from tests.core.compare import CASES, DifferenceError, compare
from tests.kit.chance import drawn_seed
from tests.kit.cores import VARIANTS


def test_numpy_and_the_core_give_the_same_results():
    if not VARIANTS:
        pytest.skip("the compiled core is not built")

    (*_, done) = compare(50 * len(CASES), drawn_seed(), [VARIANTS[0], VARIANTS[-1]])

    assert done == dict.fromkeys(CASES, 50)


class Faulty:
    """The core with one broken function, which does not write its output."""

    def __init__(self, functions: object, name: str, answer: object) -> None:
        self._functions = functions
        self._name = name
        self._answer = answer

    def __getattr__(self, name: str) -> object:
        return (lambda *_: self._answer) if name == self._name else getattr(self._functions, name)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("planes_split", 0),
        ("planes_join", None),
        ("planes_match", True),
        ("planes_tally", ()),
        ("delta_split", (0,)),
        ("delta_join", None),
        ("sparse_count", 0),
        ("sparse_join", True),
        ("sparse_take", True),
        ("sector_sums", None),
        ("gf_add", None),
        ("parity_add", None),
    ],
)
def test_a_broken_function_is_found(name, answer):
    if not VARIANTS:
        pytest.skip("the compiled core is not built")
    functions, targets = VARIANTS[0]
    faulty = Core(Faulty(functions, name, answer), targets)

    with pytest.raises((DifferenceError, ValueError, TypeError)):
        list(compare(50 * len(CASES), 1, [faulty]))
