import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck
from torch.testing import assert_close

from mocapsnet import MomentumSequence


class Scaled(nn.Module):
    """f(x) = a x, or a x · factor + shift when these are given."""

    def __init__(self, a):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(a), dtype=torch.float64))

    def forward(self, x, shift=0.0, factor=1.0):
        return self.a * x * factor + shift


def sequence(*factors, memory="store", arithmetic="float", **options):
    return MomentumSequence([Scaled(a) for a in factors], memory=memory, arithmetic=arithmetic, **options)


def test_equations_3_and_4_by_hand():
    # gamma = 1/2: v1 = 1/2·2·1 = 1, x1 = 2; v2 = 1/2·1 + 1/2·(-1)·2 = -1/2, x2 = 3/2;
    # v3 = -1/4 + 1/2·4·3/2 = 11/4, x3 = 17/4.
    x, velocity = sequence(2, -1, 4, gamma=0.5)(torch.ones(1).double(), return_velocity=True)
    assert (x.item(), velocity.item()) == (4.25, 2.75)


@given(
    st.lists(st.floats(-2, 2), max_size=6), st.floats(0, 0.99), st.floats(-3, 3), st.floats(-3, 3) | st.none()
)
def test_the_equations_hold_for_any_numbers(factors, gamma, start, pushed):
    x, v = start, pushed or 0.0
    for a in factors:
        v = gamma * v + (1 - gamma) * a * x
        x = x + v
    velocity = None if pushed is None else torch.tensor([pushed], dtype=torch.float64)
    found = sequence(*factors, gamma=gamma)(
        torch.tensor([start], dtype=torch.float64), velocity=velocity, return_velocity=True
    )
    assert [part.item() for part in found] == pytest.approx([x, v], rel=1e-9, abs=1e-9)


def test_the_default_is_the_paper_s_gamma_reversed_exactly():
    f = MomentumSequence([Scaled(1), Scaled(2)])
    assert (f.gamma, f.memory, f.arithmetic, f.check) == (0.9, "reverse", "exact", None)
    assert f(torch.ones(1).double()).item() == pytest.approx(1.1 + 0.9 * 0.1 + 0.1 * 2 * 1.1, abs=1e-6)


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_two_halves_that_hand_on_the_velocity_are_the_whole(cut, arithmetic):
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(5)]
    x = torch.randn(3, 4)
    first, second, all_of_them = (
        MomentumSequence(part, arithmetic=arithmetic) for part in (layers[:cut], layers[cut:], layers)
    )
    whole = all_of_them(x, return_velocity=True)
    half = first(x, return_velocity=True)
    found = second(half[0], velocity=half[1], return_velocity=True)
    # Handing on rounds the velocity once more in exact arithmetic, to the grid of 2^-27.
    within = {"rtol": 0, "atol": 0} if arithmetic == "float" else {"rtol": 1e-6, "atol": 1e-6}
    assert_close(found, whole, **within)
    if 0 < cut < 5:
        assert not torch.allclose(second(half[0]), whole[0])


def test_without_asking_the_state_comes_back_alone():
    x = torch.ones(1).double()
    assert torch.equal(sequence(2, 3)(x), sequence(2, 3)(x, return_velocity=True)[0])


def test_further_arguments_reach_every_layer_and_get_gradients():
    f = sequence(2, -1, gamma=0.5)
    x, shift, factor = (torch.tensor([n], dtype=torch.float64, requires_grad=True) for n in (1.0, 3.0, 2.0))
    # v1 = 1/2·(2·1·2 + 3) = 7/2, x1 = 9/2; v2 = 7/4 + 1/2·(-9/2·2 + 3) = -5/4, x2 = 13/4.
    y = f(x, shift, factor=factor)
    assert y.item() == 3.25
    # dx2 = dx1 + dv2 with dv1 = (factor·dx + dfactor + dshift/2), dx1 = dx + dv1,
    # dv2 = dv1/2 - (factor·dx1 + x1·dfactor)/2 + dshift/2.
    grads = torch.autograd.grad(y, [x, shift, factor])
    assert [grad.item() for grad in grads] == [3 + 1 - 3, 0.5 + 0.25 - 0.5 + 0.5, 1 + 0.5 - 1 - 2.25]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_gradients_agree_with_finite_differences(gamma):
    layers = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)]
    # The grid of exact arithmetic is coarser than a finite difference.
    f = MomentumSequence(layers, gamma, memory="checkpoint", arithmetic="float").double()
    x, velocity = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def call(x, velocity, *weights):
        named = dict(zip(dict(f.named_parameters()), weights, strict=True))
        options = {"velocity": velocity, "return_velocity": True}
        return torch.func.functional_call(f, named, (x,), options)

    assert gradcheck(call, (x, velocity, *f.parameters()), atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"gamma": 1}, ["gamma", "< 1", "got 1", "equation 3"]),
        ({"gamma": -0.1}, ["gamma", "[0, 1)", "got -0.1", "0 is the residual network"]),
        ({"gamma": 1.5}, ["gamma", "[0, 1)", "got 1.5"]),
        ({"gamma": float("nan")}, ["gamma", "[0, 1)", "got nan"]),
        ({"memory": "reversed"}, ["memory", "'checkpoint'", "got 'reversed'", "did you mean 'reverse'"]),
        ({"arithmetic": "int"}, ["arithmetic", "'exact', 'float'", "got 'int'"]),
        ({"gamma": 0, "memory": "reverse"}, ["gamma", "> 0", "got 0", "'checkpoint' or 'store'"]),
        ({"check": "warn"}, ["check", "'raise'", "got 'warn'"]),
        ({"check": "raise", "memory": "reverse"}, ["check", "None", "arithmetic='exact'"]),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_with_its_value_and_the_limit(options, parts):
    with pytest.raises(ValueError, match="must be") as error:
        sequence(1, 2, **options)
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))], ids=["copy", "pickle"]
)
def test_a_copy_computes_the_same_and_shares_nothing(copied):
    f, x = sequence(2, -1, 0.5, gamma=0.7), torch.randn(3).double()
    twin, before = copied(f), f(x)
    assert torch.equal(twin(x), before)
    nn.init.zeros_(twin.layers[0].a)
    assert torch.equal(f(x), before)


def test_a_state_dict_carries_the_layers_by_number():
    f, other = sequence(2, -1), sequence(5, 5)
    assert list(f.state_dict()) == ["layers.0.a", "layers.1.a"]
    other.load_state_dict(f.state_dict())
    assert torch.equal(other(torch.ones(1).double()), f(torch.ones(1).double()))


def test_a_layer_may_appear_twice():
    shared = Scaled(0.5)
    x = torch.ones(2).double()
    assert_close(MomentumSequence([shared, shared])(x), sequence(0.5, 0.5)(x), rtol=0, atol=1e-6)
    assert len(list(MomentumSequence([shared, shared]).parameters())) == 1


def test_printing_names_the_options():
    assert "gamma=0.7, memory='store', arithmetic='float'" in repr(sequence(1, gamma=0.7))
    assert "memory='reverse', arithmetic='exact', check='raise'" in repr(MomentumSequence([], check="raise"))
