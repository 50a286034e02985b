"""Finds by tracing which lines of ciuic an input reaches, to measure and reduce a corpus."""

import contextlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["least", "lines_reached", "run_at_most"]

_PARSERS = {
    "config": ["config/lines.py", "config/values.py", "retention.py", "units.py"],
    "daemon": ["control/messages.py"],
    "footer": [
        "store/directory/pack_file.py",
        "store/format/pack.py",
        "store/health/inspect.py",
        "store/health/salvage.py",
        "store/health/window.py",
        "store/format/frame.py",
    ],
    "frame": ["store/format/frame.py"],
    "frozen": ["source/freeze/records.py", "source/freeze/copies.py"],
    "header": ["store/directory/find.py", "store/records/header.py", "store/records/sealed.py"],
    "manifest": ["store/records/manifest.py", "store/records/sealed.py"],
    "mark": ["store/records/mark.py", "store/records/retired.py", "store/records/sealed.py"],
    "parity": [
        "store/parity/encoding.py",
        "store/parity/parity_file.py",
        "store/parity/rebuild.py",
    ],
    "delta": ["codec/dense_delta.py", "codec/planes.py"],
    "pickle": ["formats/torch_pickle.py", "formats/pickle_machine.py"],
    "planes": ["codec/planes.py", "codec/zstd.py"],
    "recipe": ["store/records/nodes.py", "store/records/recipe_nodes.py"],
    "reply": ["control/client.py", "control/messages.py"],
    "request": ["control/messages.py"],
    "rows": ["store/index/chunk_index.py", "store/index/records.py"],
    "tensors": [
        f"formats/{one}.py"
        for one in (
            "gguf",
            "hdf5",
            "headers",
            "names",
            "npy",
            "pickle_machine",
            "safetensors",
            "torch_pickle",
            "zip_archive",
        )
    ],
    "tree": ["store/records/nodes.py", "store/records/tree_nodes.py"],
    "words": ["retention.py", "units.py", "system/clock.py", "store/records/layout.py"],
    "zstd": ["codec/zstd.py"],
}
Arc = tuple[str, int, int]


class _Trace:
    """Collects steps from line to line in the code of ciuic."""

    def __init__(self, limit: int = 0) -> None:
        self.arcs: set[Arc] = set()
        self.codes: set[CodeType] = set()
        self.count = 0
        self._limit = limit
        self._last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> "_Trace | None":
        name = frame.f_code.co_filename
        if event == "call":
            self.codes.add(frame.f_code)
            return self if "/ciuic" in name else None
        if event == "line":
            self.count += 1
            if self._limit and self.count > self._limit:
                raise AssertionError(f"more than {self._limit} lines were run")
            self.arcs.add((name, self._last.get(frame, 0), frame.f_lineno))
            self._last[frame] = frame.f_lineno
        elif event == "return":
            self._last.pop(frame, None)
        return self


def run_at_most(limit: int, work: Callable[[], object]) -> None:
    """Run ``work``; fail if it runs more than this number of lines of ciuic."""
    _steps(work, _Trace(limit))


def _steps(work: Callable[[], object], trace: _Trace) -> None:
    """Return the steps from line to line that ``work`` takes."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)


def least(target: str, inputs: Iterable[bytes]) -> list[bytes]:
    """Return the inputs, in their order, that take a step that no earlier input takes."""
    from tests.fuzz.targets import TARGETS

    seen: set[Arc] = set()
    chosen = []
    for data in inputs:
        trace = _Trace()
        with contextlib.suppress(Exception):  # another test covers inputs that fail
            _steps(lambda data=data: TARGETS[target](data), trace)
            if not trace.arcs <= seen:
                seen |= trace.arcs
                chosen.append(data)
    return chosen


def lines_reached(target: str, corpus: Path) -> tuple[int, int]:
    """Return how many lines of the target's parsers a corpus runs, and how many there are.

    Only functions that some input enters count, because a module also has writers.
    """
    from tests.fuzz.targets import TARGETS

    codes: set[CodeType] = set()
    lines: set[tuple[str, int]] = set()
    for one in sorted(corpus.glob("*")):
        data = one.read_bytes()
        trace = _Trace()
        with contextlib.suppress(Exception):  # the test of the corpus reports inputs that fail
            _steps(lambda data=data: TARGETS[target](data), trace)
        codes |= trace.codes
        lines |= {(name, line) for name, _, line in trace.arcs}
    parsers = (*[f"/ciuic/{name}" for name in _PARSERS[target]], "/ciuicd/control.py")
    there = {
        (code.co_filename, line)
        for code in codes
        if code.co_filename.endswith(parsers)
        for _, _, line in code.co_lines()
        if line is not None and line != code.co_firstlineno
    }
    return len(lines & there), len(there)
