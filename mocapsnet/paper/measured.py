"""How measured steps and inferences decide on a claim."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from mocapsnet.paper.benches import Measured
from mocapsnet.paper.evidence import Evidence
from mocapsnet.paper.printed import DEPTHS, NAMES, counted
from mocapsnet.paper.rules import ENOUGH, Finding, OfTheCode, Rule, files_of
from mocapsnet.paper.statistics import Line, line, t_quantile

# A metric's unit in words, and how many of it are one.
UNITS = {"peak_mib": ("MiB", 1.0), "kept_mib": ("MiB", 1.0), "seconds": ("ms", 1e3)}
# Depths below which a line of times is only indicative.
LINE = 6
# What stays the same when it is measured again: one measurement decides.
STEADY = ("peak_mib", "kept_mib")


class Curve(NamedTuple):
    """Which steps or inferences are meant, and what of them: a line over depth."""

    what: str
    metric: str
    dataset: str
    model: str
    routing: str = "rba"
    capsules: int = 32

    def points(self, evidence: Evidence, recipe: str) -> tuple[list[Measured], list[tuple[float, float]]]:
        """Rows, and 1 to 8 blocks against the metric; only ours and the released networks are measured."""
        if recipe not in ("stable", "released"):
            return [], []
        wanted = {
            "dataset": self.dataset,
            "model": self.model,
            "routing": self.routing,
            "capsules": self.capsules,
        }
        rows = evidence.steps(self.what, recipe == "released", **wanted)
        rows = [row for row in rows if row.blocks in DEPTHS and getattr(row, self.metric) is not None]
        return rows, [(row.blocks, getattr(row, self.metric)) for row in rows]

    def at(self, evidence: Evidence, recipe: str, blocks: int) -> tuple[list[Measured], float | None]:
        """Rows and value at one depth."""
        rows, points = self.points(evidence, recipe)
        return [row for row in rows if row.blocks == blocks], dict(points).get(blocks)


def finding(holds: bool | None, n: int, told: str, *groups: list[Measured]) -> Finding:
    """What rows say, whose they are where another data set was measured, and their files."""
    others = dict.fromkeys(NAMES[row.like] for group in groups for row in group if row.like)
    told += "".join(f"; measured on {name}" for name in others)
    found = Finding(holds, n, told, files_of(*groups))
    # That the other would measure the same is no measurement.
    return found.weaker() if others else found


def in_units(finding: Finding, curve: Curve, recipe: str) -> Finding:
    """A size or a time is that of the paper's code: what ours takes is told and decides nothing.

    Nor do peaks that its code allocates: the paper read sizes from nvidia-smi, with the allocator's reserve.
    """
    if recipe != "released":
        return Finding(None, 1, f"ours: {finding.told}", finding.files)
    return finding if curve.metric == "seconds" else finding.weaker()


@dataclass(frozen=True)
class Slope(OfTheCode):
    """What a block adds: the 95 % interval of the fitted line's slope contains the value."""

    curve: Curve
    value: float
    steps: int = 1
    """In as many, where what is meant is an epoch."""

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Fit a line over depth."""
        rows, points = self.curve.points(evidence, recipe)
        # Through two points a line has no interval.
        if len({blocks for blocks, _ in points}) < 3:
            return Finding()
        fit = line(*zip(*points, strict=True))
        low, high = fit.interval()
        unit, scale = UNITS[self.curve.metric] if self.steps == 1 else ("s an epoch", self.steps)
        told = f"{scale * fit.slope:.4g} {unit} per block ({len(points)} depths)"
        holds = low <= self.value / self.steps <= high
        return in_units(over_depths(self.curve, finding(holds, len(points), told, rows)), self.curve, recipe)


def over_depths(curve: Curve, finding: Finding) -> Finding:
    """What n depths say: of times, a few of them decide nothing."""
    return finding if curve.metric in STEADY or finding.n >= LINE else finding.weaker()


def fitted(
    first: Curve, second: Curve, evidence: Evidence, recipe: str
) -> tuple[tuple[Line, Line], int, list[Measured]] | None:
    """Two lines over depth, the depths of the shorter one and all rows; needs two depths."""
    (rows, points), (others, beside) = (curve.points(evidence, recipe) for curve in (first, second))
    if min(len({blocks for blocks, _ in found}) for found in (points, beside)) < 2:
        return None
    lines = line(*zip(*points, strict=True)), line(*zip(*beside, strict=True))
    return lines, min(len(points), len(beside)), [*rows, *others]


def over(first: Line, second: Line) -> float:
    """How many times as steep as the second the first is; without end where the second does not rise."""
    return first.slope / second.slope if second.slope > 0 else math.inf


def above(first: Line, second: Line, times: float) -> float:
    """How far the first slope is above so many times the second, in half widths of a 95 % interval."""
    error = math.hypot(first.error, times * second.error)
    far = first.slope - times * second.slope
    if error == 0:
        return math.copysign(math.inf, far)
    return far / error / t_quantile(min(first.freedom, second.freedom)) if math.isfinite(error) else 0.0


@dataclass(frozen=True)
class SlopeRatio(Rule):
    """How many times steeper the first line is than the second: between the limits."""

    first: Curve
    second: Curve
    low: float
    high: float

    def decided_by(self) -> tuple[str, ...]:
        """Of times, those of the paper's code."""
        return ("released",) if self.first.metric == "seconds" else super().decided_by()

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Fit two lines."""
        if (lines := fitted(self.first, self.second, evidence, recipe)) is None:
            return Finding()
        (first, second), n, rows = lines
        unit, scale = UNITS[self.first.metric]
        told = f"{scale * first.slope:.4g} against {scale * second.slope:.4g} {unit} per block ({n} depths), "
        told += f"{over(first, second):.2f} times; {limits(self.low, self.high)}"
        holds = self.low * second.slope <= first.slope <= self.high * second.slope
        inside = min(above(first, second, self.low), -above(first, second, self.high))
        found = over_depths(self.first, finding(holds, n, told, rows))
        # A ratio whose interval contains a limit may lie on either side of it.
        return found if abs(inside) > 1 else found.weaker()


@dataclass(frozen=True)
class Outweighs(OfTheCode):
    """Memory is flatter by a factor that is so many times the one by which time is steeper, or more."""

    memory: tuple[Curve, Curve]
    """The steeper one first, as in time."""
    time: tuple[Curve, Curve]
    times: float

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Fit four lines."""
        memory, time = (fitted(*pair, evidence, recipe) for pair in (self.memory, self.time))
        if memory is None or time is None:
            return Finding()
        flatter, steeper = (over(*slopes) for slopes, _, _ in (memory, time))
        n = min(memory[1], time[1])
        told = f"memory {flatter:.2f} times less steep, time {steeper:.2f} times steeper ({n} depths); "
        told += f"{self.times:g} times as much would confirm it"
        found = finding(flatter >= self.times * steeper, n, told, memory[2], time[2])
        return over_depths(self.time[0], found)


@dataclass(frozen=True)
class Beside(Rule):
    """Two measurements at one depth, and what they give together: between the limits."""

    first: Curve
    second: Curve
    blocks: int
    low: float
    high: float

    @abstractmethod
    def together(self, a: float, b: float) -> tuple[float, str]:
        """A number for the limits, and what is told of it and of them."""

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Put them together; times are of one bench and indicative."""
        (rows, a), (others, b) = (x.at(evidence, recipe, self.blocks) for x in (self.first, self.second))
        if a is None or b is None:
            return Finding()
        unit, scale = UNITS[self.first.metric]
        found, told = self.together(a, b)
        told = f"{scale * a:.4g} against {scale * b:.4g} {unit} at {counted(self.blocks)}, {told}"
        n = ENOUGH if self.first.metric in STEADY else 1
        return finding(self.low <= found <= self.high, n, told, rows, others)


class Ratio(Beside):
    """How many times larger the first measurement is than the second."""

    def together(self, a: float, b: float) -> tuple[float, str]:
        """Divide."""
        return a / b, f"{a / b:.2f} times; {limits(self.low, self.high)}"


class Difference(OfTheCode, Beside):
    """How much larger the first measurement is than the second."""

    def together(self, a: float, b: float) -> tuple[float, str]:
        """Subtract."""
        unit, scale = UNITS[self.first.metric]
        return a - b, f"{scale * (a - b):+.4g} {unit}; {limits(scale * self.low, scale * self.high)}"

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Put them together."""
        found = super().find(evidence, recipe)
        return found if found.holds is None else in_units(found, self.first, recipe)


@dataclass(frozen=True)
class Read(OfTheCode):
    """A size that nvidia-smi read: the peak that was allocated is another quantity, told and not judged."""

    curve: Curve
    blocks: int

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Tell a size."""
        rows, found = self.curve.at(evidence, recipe, self.blocks)
        if found is None:
            return Finding()
        return in_units(finding(None, 1, f"{found:,.0f} MiB allocated", rows), self.curve, recipe)


def limits(low: float, high: float) -> str:
    """What a ratio may be."""
    return f"{f'at most {high:g}' if low <= 0 else f'{low:g} to {high:g}'} would confirm it"


@dataclass(frozen=True)
class Inverts(Rule):
    """So many layers are reconstructed in float32 with gradients off by less than a thousandth."""

    layers: int
    gamma: float = 0.9

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare with the depth at which floats broke."""
        rows = [row for row in evidence.broken if (row.arithmetic, row.gamma) == ("float32", self.gamma)]
        depths = [row.layers for row in rows if row.layers is not None]
        if recipe != "stable" or not rows:
            return Finding()
        told = f"float32 is off by 1e-3 from {min(depths)} layers on" if depths else "float32 never broke"
        files = tuple(dict.fromkeys(row.file for row in rows))
        return Finding(not depths or min(depths) > self.layers, len(rows), told, files)
