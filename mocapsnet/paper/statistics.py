"""Student's t, Welch's test and straight lines, without scipy."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

LEVEL = 0.05


class Line(NamedTuple):
    """A least-squares line: its slope, and the slope's standard error."""

    slope: float
    error: float
    freedom: int

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the slope."""
        half = t_quantile(self.freedom) * self.error if self.freedom > 0 else math.inf
        return self.slope - half, self.slope + half


def two_sided(t: float, freedom: float) -> float:
    """The probability that Student's t is at least so far from zero."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) if math.isfinite(t) else 0.0


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    value = 1.0
    # The fraction from its end: 1 / (1 + d1 / (1 + d2 / ...)); 200 terms are far more than it needs here.
    for m in range(200, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        value = 1 + odd / (1 + even / value)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) / (a * value)


def t_quantile(freedom: float, level: float = LEVEL) -> float:
    """How far from zero Student's t is with a probability of just the level, by bisection."""
    low, high = 0.0, 1e7
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > level else (low, middle)
    return high


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean; without end below two values."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of equal means, where variances may differ; 1 below two values."""
    if min(len(first), len(second)) < 2:
        return 1.0
    return welch_printed(
        (fmean(first), stdev(first), len(first)), (fmean(second), stdev(second), len(second))
    )


def welch_printed(first: tuple[float, float, int], second: tuple[float, float, int]) -> float:
    """The same from mean, standard deviation and n."""
    a, b = (std**2 / n for _, std, n in (first, second))
    difference = first[0] - second[0]
    if a + b == 0:
        return float(difference == 0)
    freedom = (a + b) ** 2 / (a**2 / (first[2] - 1) + b**2 / (second[2] - 1))
    return two_sided(difference / math.sqrt(a + b), freedom)


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    """The least-squares line through points, of which at least two differ in x."""
    middle, height = fmean(x), fmean(y)
    width = sum((a - middle) ** 2 for a in x)
    slope = sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / width
    freedom = len(x) - 2
    rest = sum((b - height - slope * (a - middle)) ** 2 for a, b in zip(x, y, strict=True))
    return Line(slope, math.sqrt(rest / freedom / width) if freedom > 0 else math.inf, freedom)
