"""MomentumSequence where it is used in ways that nobody planned."""

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import mocapsnet as mc
from mocapsnet.errors import Irreproducible, WrongArgument

X = torch.linspace(-1, 1, 24).view(4, 6)


class Energy(nn.Module):
    """Minus the gradient of an energy that the layer computes, and differentiates, itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        with torch.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            energy = torch.dropout(self.linear(x), 0.2, train=True).tanh().square().sum()
            return -torch.autograd.grad(energy, x, create_graph=True)[0]


def test_a_layer_may_differentiate_itself():
    layers, x, found = [Energy() for _ in range(5)], X.clone().requires_grad_(), []
    for memory in ("store", "checkpoint", "reverse"):
        torch.manual_seed(0)
        sequence = mc.MomentumSequence(layers, memory=memory)
        weights = [layer.linear.weight for layer in layers]
        found.append(torch.autograd.grad(sequence(x).square().sum(), [x, *weights]))
    for gradients in found[1:]:
        assert all(map(torch.equal, gradients, found[0]))


@pytest.fixture
def normed():
    return mc.MomentumSequence([nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)) for _ in range(3)])


def test_a_report_between_forward_and_backward_disturbs_neither(normed):
    normed.eval()
    y = normed(X)
    with torch.no_grad():
        assert normed.inversion_report(X, velocity=torch.ones_like(X)).exact
    y.sum().backward()


def test_a_report_takes_a_velocity_and_counts_the_gradients_of_further_arguments():
    class Shifted(nn.Module):
        def forward(self, x, shift):
            return torch.sin(3 * x) + shift

    sequence = mc.MomentumSequence([Shifted() for _ in range(80)], arithmetic="float")
    shift = torch.zeros(6, requires_grad=True)
    still, pushed = (sequence.inversion_report(X, shift, velocity=v) for v in (None, torch.ones_like(X)))
    assert all(layer.gradient_error is None for layer in still.layers)
    assert still.gradient_error > 0
    assert still.layers[0].error != pushed.layers[0].error


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f, shift: f.eval(), "train"),
        (lambda f, shift: shift.add_(1), "a further argument was written to"),
        (lambda f, shift: f.layers[1][0].weight.data.add_(1), "layer 1 gave another result"),
    ],
    ids=["mode", "argument", "data"],
)
@pytest.mark.parametrize("memory", ["reverse", "checkpoint"])
def test_what_changes_between_forward_and_backward_is_named(memory, change, why):
    class Both(nn.Sequential):
        def forward(self, x, shift):
            return super().forward(x) + shift

    shift = torch.ones(6)
    layers = [Both(nn.Linear(6, 6), nn.Dropout(0.1)) for _ in range(3)]
    sequence = mc.MomentumSequence(layers, memory=memory, check="raise")
    y = sequence(X.clone().requires_grad_(), shift)
    change(sequence, shift)
    with pytest.raises(Irreproducible, match=why):
        y.sum().backward()


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        (None, {}, "layers must be a list of modules, got None"),
        (nn.Tanh(), {}, "layers must be a list of modules, got Tanh"),
        ([torch.tanh], {}, "layers must be modules, got .*wrap a function in an nn.Module"),
        ([], {"gamma": torch.tensor(0.9)}, "gamma must be a number"),
        ([], {"check": "x"}, "check must be None or 'raise', got 'x'"),
    ],
    ids=["none", "module", "function", "tensor", "check"],
)
def test_what_cannot_be_meant_is_refused(layers, options, message):
    with pytest.raises(WrongArgument, match=message):
        mc.MomentumSequence(layers, **options)


def test_gamma_may_be_a_number_of_numpy_s():
    assert mc.MomentumSequence([], gamma=np.float64(0.9)).gamma == 0.9


@pytest.mark.parametrize("memory", ["reverse", "checkpoint", "store"])
def test_tensors_without_data_pass(memory):
    model = mc.MoCapsNet((1, 9, 9), 4, kernel_size=3, channels=8, capsules=3, memory=memory)
    assert model.to("meta")(torch.empty(2, 1, 9, 9, device="meta")).lengths.shape == (2, 4)
    with FakeTensorMode():
        model = mc.MoCapsNet((1, 9, 9), 4, kernel_size=3, channels=8, capsules=3, memory=memory)
        assert model(torch.empty(2, 1, 9, 9)).lengths.shape == (2, 4)


def test_what_is_frozen_stays_frozen_with_momentum():
    residual = mc.ResCapsNet((1, 9, 9), 4, kernel_size=3, channels=8, capsules=3)
    residual.stem.requires_grad_(False)
    pairs = zip(residual.parameters(), mc.to_momentum(residual).parameters(), strict=True)
    assert all(one.requires_grad == other.requires_grad for one, other in pairs)
