"""Intervals, tests and lines that need no scipy are those of scipy."""

from statistics import stdev

import pytest
from scipy import stats

from mocapsnet.paper.statistics import (
    chi_square,
    interval,
    line,
    std_interval,
    t_quantile,
    two_sided,
    welch,
)


def test_statistics_are_those_of_scipy():
    a, b = [72.1, 71.3, 73.0], [70.2, 70.9, 71.6, 69.5]
    assert welch(a, b) == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    mean = stats.t.interval(0.95, 2, loc=sum(a) / 3, scale=stats.sem(a))
    assert interval(a) == pytest.approx(mean)
    for values in (a, b, [1.0, 4.0], [float(value % 7) for value in range(40)]):
        freedom = len(values) - 1
        ends = (stdev(values) * (freedom / stats.chi2.ppf(p, freedom)) ** 0.5 for p in (0.975, 0.025))
        assert std_interval(values) == pytest.approx((*ends,))
        for x in (0.0, 0.05, 3.0, 60.0):
            assert chi_square(x, freedom) == pytest.approx(stats.chi2.cdf(x, freedom))
    for freedom in (1, 2, 2.7, 30):
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom))
        assert two_sided(7.5, freedom) == pytest.approx(2 * stats.t.sf(7.5, freedom))
    fit, expected = line(range(4), b), stats.linregress(range(4), b)
    assert fit[:2] == pytest.approx((expected.slope, expected.stderr))
