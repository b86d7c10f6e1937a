"""Student's t, chi-square, Welch's test and straight lines, without scipy."""

import math
from collections.abc import Callable, Sequence
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


def t_quantile(freedom: float) -> float:
    """How far from zero Student's t is with a probability of just the level, by bisection."""
    return up_to(lambda t: two_sided(t, freedom) > LEVEL, 1e7)


def up_to(holds: Callable[[float], bool], high: float) -> float:
    """The number up to which something holds, by bisection from zero."""
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


def chi_square(x: float, freedom: float) -> float:
    """The probability that chi-square is at most x: the incomplete gamma function, by its series."""
    a, x = freedom / 2, x / 2
    if x <= 0:
        return 0.0
    term = total = 1 / a
    while term > 1e-17 * total:
        a += 1
        term *= x / a
        total += term
    return math.exp(freedom / 2 * math.log(x) - x - math.lgamma(freedom / 2)) * total


def chi_square_quantile(probability: float, freedom: float) -> float:
    """Below it chi-square lies with this probability; for up to some hundred degrees of freedom."""
    return up_to(lambda x: chi_square(x, freedom) < probability, 1e3)


def std_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a standard deviation of normal numbers; without end below two values."""
    if len(values) < 2:
        return 0.0, math.inf
    freedom = len(values) - 1
    ends = (chi_square_quantile(probability, freedom) for probability in (1 - LEVEL / 2, LEVEL / 2))
    low, high = (stdev(values) * math.sqrt(freedom / end) for end in ends)
    return low, high


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean; without end below two values."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of equal means, where variances may differ; 1 below two values."""
    return apart(fmean(first) - fmean(second), (first, second))


def apart(difference: float, groups: Sequence[Sequence[float]]) -> float:
    """The two-sided p of a sum or difference of these groups' means being zero; 1 below two values."""
    if min(map(len, groups)) < 2:
        return 1.0
    return welch_printed(difference, [(stdev(values), len(values)) for values in groups])


def welch_printed(difference: float, groups: Sequence[tuple[float, int]]) -> float:
    """The same from the groups' standard deviations and n."""
    parts = [(std**2 / n, n - 1) for std, n in groups]
    if (variance := sum(part for part, _ in parts)) == 0:
        return float(difference == 0)
    freedom = variance**2 / sum(part**2 / freedom for part, freedom in parts)
    return two_sided(difference / math.sqrt(variance), freedom)


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    """The least-squares line through points, of which at least two differ in x."""
    middle, height = fmean(x), fmean(y)
    width = sum((a - middle) ** 2 for a in x)
    slope = sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / width
    freedom = len(x) - 2
    rest = sum((b - height - slope * (a - middle)) ** 2 for a, b in zip(x, y, strict=True))
    return Line(slope, math.sqrt(rest / freedom / width) if freedom > 0 else math.inf, freedom)
