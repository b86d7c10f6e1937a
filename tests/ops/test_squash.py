import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

from mocapsnet.ops import length, squash
from mocapsnet.ops.squash import direction

coordinates = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=6)


@pytest.mark.parametrize(("s", "n"), [([3.0, 4.0], 5.0), ([0.0, -2.0], 2.0), ([1.0, 2.0, 2.0], 3.0)])
def test_length_is_euclidean(s, n):
    assert length(torch.tensor(s, dtype=torch.float64)).item() == n


@pytest.mark.parametrize(
    ("s", "v"),
    [
        ([0.0, 1.0], [0.0, 0.5]),
        ([3.0, 4.0], [3 * 5 / 26, 4 * 5 / 26]),
        ([-2.0], [-2 * 2 / 5]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e-3, 0.0], [1e-6 / (1 + 1e-6), 0.0]),
    ],
)
def test_squash_by_hand(s, v):
    assert squash(torch.tensor(s, dtype=torch.float64)).tolist() == pytest.approx(v, rel=1e-13, abs=1e-13)


@given(coordinates)
def test_squash_keeps_the_direction_and_maps_n_to_n2_over_1_plus_n2(s):
    n = math.hypot(*s)
    v = squash(torch.tensor(s, dtype=torch.float64)).tolist()
    assert v == pytest.approx([x * n / (1 + n * n) for x in s], rel=1e-12, abs=1e-9)
    assert math.hypot(*v) < 1


@given(coordinates.filter(lambda s: math.hypot(*s) > 1e-3))
def test_direction_is_the_unit_vector(s):
    n = math.hypot(*s)
    assert direction(torch.tensor(s, dtype=torch.float64)).tolist() == pytest.approx([x / n for x in s])


@pytest.mark.parametrize("n", [0.0, 1e-12, 9e-9])
def test_what_is_too_short_for_a_direction_stays_as_it_is(n):
    s = torch.tensor([0.0, -n], dtype=torch.float64, requires_grad=True)
    assert torch.equal(direction(s), s)
    direction(s).sum().backward()
    assert s.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 3, 4), (2, 3, 1, 5)], ids=str)
def test_the_last_axis_is_the_vector(shape):
    s = torch.randn(shape).double()
    rows = s.reshape(-1, shape[-1])
    assert_close(length(s), torch.stack([row.dot(row).sqrt() for row in rows]).reshape(shape[:-1]))
    assert_close(squash(s), torch.stack([squash(row) for row in rows]).reshape(shape))


@pytest.mark.parametrize("op", [length, squash, direction])
def test_gradients_agree_with_finite_differences(op):
    s = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(op, s, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("op", "limit"), [(length, 0), (squash, 0.01), (direction, 129)])
def test_the_gradient_at_zero_is_bounded(op, limit, dtype):
    s = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    op(s).sum().backward()
    assert s.grad.abs().max() <= limit


@pytest.mark.parametrize("exponent", range(-44, 18, 4))
@pytest.mark.parametrize("op", [length, squash, direction])
def test_output_and_gradient_are_finite_from_the_smallest_to_the_largest(op, exponent):
    s = torch.full((1, 4), 10.0**exponent, requires_grad=True)
    out = op(s)
    out.sum().backward()
    assert out.isfinite().all()
    assert s.grad.isfinite().all()
