"""What a training loses to snapshots: statistics of slices of time, and the table of them."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["NONE", "Arm", "Pair", "Ratio", "mean_of", "p99_of", "table"]

NONE = "none"
RESAMPLED = 1000
MEAN_MARK, P99_MARK = 1.01, 1.05


def mean_of(took_s: Sequence[float]) -> float:
    """Return the mean of iterations."""
    return statistics.fmean(took_s)


def p99_of(took_s: Sequence[float]) -> float:
    """Return the time that 99 of 100 iterations take at most."""
    return sorted(took_s)[max(0, -(-len(took_s) * 99 // 100) - 1)]


class Pair(NamedTuple):
    """Two slices, one after the other: the iterations while the tool ran, and while it stood."""

    running: list[float]
    standing: list[float]


@dataclass
class Arm:
    """The measurements of one tool.

    Attributes:
        pairs: Its slices.
        snapshots: How many it was asked for.
        committed: How many it has committed.
        ran_s: How long it ran, without the slices in which it stood.
        cpu_s: Its processor time.
        stored_bytes: What its store grew by.
    """

    pairs: list[Pair] = field(default_factory=list)
    snapshots: int = 0
    committed: int = 0
    ran_s: float = 0.0
    cpu_s: float = 0.0
    stored_bytes: int = 0

    @property
    def counts(self) -> bool:
        """Whether it has committed each snapshot, and was measured."""
        return self.snapshots == self.committed and any(
            pair.running and pair.standing for pair in self.pairs
        )


class Ratio(NamedTuple):
    """A figure, and its 95 % interval."""

    middle: float
    low: float
    high: float

    def shown(self, digits: int) -> str:
        """Return it for the table."""
        return f"{self.middle:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def ratio(pairs: Sequence[Pair], figure: Callable[[Sequence[float]], float]) -> Ratio:
    """Compare the iterations beside a tool with those while it stood.

    The interval comes from resampling the pairs of slices (bootstrap).
    """

    def of(drawn: Sequence[Pair]) -> float:
        running, standing = ([took_s for pair in drawn for took_s in pair[side]] for side in (0, 1))
        return figure(running) / figure(standing) if running and standing else 1.0

    draw = random.Random(1)
    found = sorted(of(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLED))
    return Ratio(of(pairs), found[int(0.025 * RESAMPLED)], found[int(0.975 * RESAMPLED)])


def table(arms: dict[str, Arm]) -> str:
    """Return the table, and its verdicts on the marks."""
    lines = [
        "| arm | snapshots | pairs of slices | mean, x standing (95 %) | p99, x standing (95 %)"
        " | s a snapshot takes | s lost to a snapshot (95 %) | processor s | MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    means: dict[str, Ratio] = {}
    p99s: dict[str, Ratio] = {}
    lost_s: dict[str, Ratio] = {}
    for name, arm in arms.items():
        cells = [name, f"{arm.committed} of {arm.snapshots}", str(len(arm.pairs))]
        if not arm.counts:
            lines.append(f"| {' | '.join(cells)} | | | | | | |")
            continue
        mean, p99 = (ratio(arm.pairs, figure) for figure in (mean_of, p99_of))
        took_s = arm.ran_s / max(1, arm.snapshots)
        lost = Ratio(*(took_s * (1 - 1 / times) for times in mean))
        cells += [mean.shown(3), p99.shown(2)]
        if name != NONE:
            means[name], p99s[name], lost_s[name] = mean, p99, lost
            cells += [f"{took_s:.1f}", lost.shown(2), f"{arm.cpu_s / arm.snapshots:.2f}"]
            cells.append(f"{arm.stored_bytes / arm.snapshots / 1e6:.1f}")
        else:
            cells += [""] * 4
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_marks(means, p99s, lost_s)]) + "\n"


def _marks(means: dict[str, Ratio], p99s: dict[str, Ratio], lost_s: dict[str, Ratio]) -> list[str]:
    own = means.get("ciuic")
    if own is None:
        return ["ciuic has no snapshot that counts."]
    said = [
        f"- mean at most {MEAN_MARK} x while ciuic takes one snapshot after the other:"
        f" {_verdict(own, MEAN_MARK)}",
        f"- p99 at most {P99_MARK} x: {_verdict(p99s['ciuic'], P99_MARK)}",
    ]
    peers = [lost.middle for arm, lost in lost_s.items() if not arm.startswith("ciuic")]
    if peers:
        half_s = max(0.0, min(peers)) / 2
        said.append(
            f"- a snapshot costs the training less than half of the best peer's, {half_s:.2f} s:"
            f" {_verdict(lost_s['ciuic'], half_s)}"
        )
    every_s = [max(0.0, one) / (MEAN_MARK - 1) for one in lost_s["ciuic"]]
    said.append(
        f"- with a snapshot every {every_s[0]:.0f} s ({every_s[1]:.0f} to {every_s[2]:.0f}), ciuic"
        f" adds {MEAN_MARK - 1:.0%} to the mean"
    )
    return said


def _verdict(found: Ratio, mark: float) -> str:
    """Say whether a mark is met; if it lies within the interval, there were too few slices."""
    if found.high <= mark:
        return "met"
    if found.low > mark:
        return "missed"
    nearer = "met" if found.middle <= mark else "missed"
    return f"not decided, the interval has the mark in it; rather {nearer}"
