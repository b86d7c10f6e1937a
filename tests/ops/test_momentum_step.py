import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from mocapsnet.ops.momentum import step

numbers = st.floats(-10, 10)


@given(x=numbers, velocity=numbers, f=numbers, gamma=st.floats(0, 0.99))
def test_a_step_is_equations_3_and_4(x, velocity, f, gamma):
    tensors = (torch.tensor([number], dtype=torch.float64) for number in (x, velocity, f))
    new_x, new_velocity = step(*tensors, gamma)
    expected = gamma * velocity + (1 - gamma) * f
    assert new_velocity.item() == pytest.approx(expected, rel=1e-14, abs=1e-14)
    assert new_x.item() == pytest.approx(x + expected, rel=1e-14, abs=1e-14)


def test_a_step_by_hand():
    x, velocity = step(torch.tensor([2.0]), torch.tensor([-1.0]), torch.tensor([6.0]), gamma=0.75)
    assert velocity.item() == 0.75 * -1 + 0.25 * 6 == 0.75
    assert x.item() == 2.75


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_gradients_agree_with_finite_differences(gamma):
    tensors = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert gradcheck(lambda *t: step(*t, gamma), tensors, atol=1e-8, rtol=1e-6)


def test_a_step_leaves_its_arguments_alone():
    x, velocity, f = (torch.randn(2, 3) for _ in range(3))
    before = [t.clone() for t in (x, velocity, f)]
    step(x, velocity, f, 0.9)
    assert all(torch.equal(*pair) for pair in zip(before, (x, velocity, f), strict=True))
