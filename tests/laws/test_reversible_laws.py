"""What holds for every memory and arithmetic of a momentum network, at weights of trained size."""

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mocapsnet as mc
from mocapsnet.measure.inspect import bytes_for_backward
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.nn.tape import Tape
from mocapsnet.ops.momentum import ExactArithmetic

MEMORIES = ["reverse", "checkpoint", "store"]
DEPTHS = [16, 100, 400, 1000]
GAMMAS = [0.5, 0.9, 0.99]


def steep(count, width=8, gain=1.5):
    """Layers tanh(Wx + b) that stretch: far from where such a layer starts."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)]
    for layer in layers:
        nn.init.normal_(layer[0].weight, std=gain / math.sqrt(width))
    return layers


def routed(count, capsules=4, size=4):
    return [CapsLayer(capsules, size, capsules, size, weight_std=0.7) for _ in range(count)]


def gradients(sequence, x, power=2):
    return torch.autograd.grad(sequence(x).pow(power).sum(), [x, *sequence.parameters()])


def relative_error(found, expected):
    wrong = sum(
        (one.double() - other.double()).square().sum() for one, other in zip(found, expected, strict=True)
    )
    return (wrong / sum(other.double().square().sum() for other in expected)).sqrt().item()


def forth_and_back(layers, gamma, x):
    """The kept integers before every layer, on the way there and on the way back."""
    arithmetic = ExactArithmetic(gamma, len(layers), x.dtype)
    tape = Tape(layers, arithmetic, (), {}, reverse=True)
    with torch.no_grad():
        state = arithmetic.begin(x, torch.zeros_like(x))
        there = []
        for n in range(len(layers)):
            there.append(state.kept)
            tape.spilled |= arithmetic.spilled(n, state)
            state = arithmetic.step(n, state, tape.first(n, state.x))
        back, spilled, kept = [], len(tape.spilled), state.kept
        for n in reversed(range(len(layers))):
            kept = arithmetic.unstep(n, kept, tape.spilled.pop(n, None), lambda x, n=n: tape.again(n, x))
            back.append(kept)
    return there, back[::-1], spilled


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_every_state_comes_back_to_the_bit(depth, gamma):
    there, back, spilled = forth_and_back(steep(depth), gamma, torch.randn(3, 8))
    assert any(grid.min() < 0 for grid, _ in there)
    assert any(word.min() < 0 for _, word in there)
    assert spilled == pytest.approx(depth * math.log2(1 / gamma) / 24, abs=1)
    for was, found in zip(there, back, strict=True):
        assert all(map(torch.equal, was, found))


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=3),
    gamma=st.floats(1e-9, 1, exclude_max=True),
    depth=st.integers(1, 60),
    scale=st.floats(1e-3, 30),
    seed=st.integers(0, 2**16),
)
def test_any_batch_and_shape_comes_back_to_the_bit(shape, gamma, depth, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(*shape, 4, generator=generator)
    layers = steep(depth, width=4)
    there, back, _ = forth_and_back(layers, gamma, x)
    for was, found in zip(there, back, strict=True):
        assert all(map(torch.equal, was, found))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("make", [steep, routed])
def test_memories_agree_to_the_bit(make, gamma):
    layers = make(30)
    x = torch.randn(3, 4, 4) if make is routed else torch.randn(3, 8)
    x.requires_grad_()
    sequences = [mc.MomentumSequence(layers, gamma, memory) for memory in MEMORIES]
    outputs = [sequence(x, return_velocity=True) for sequence in sequences]
    found = [gradients(sequence, x) for sequence in sequences]
    for output, gradient in zip(outputs[1:], found[1:], strict=True):
        assert all(map(torch.equal, output, outputs[0]))
        assert all(map(torch.equal, gradient, found[0]))


@pytest.mark.parametrize("gamma", GAMMAS)
def test_at_a_thousand_layers_reversed_gradients_are_the_stored_ones(gamma):
    layers, x = steep(1000), torch.randn(2, 8, requires_grad=True)
    reverse, store = (mc.MomentumSequence(layers, gamma, memory) for memory in ("reverse", "store"))
    for one, other in zip(gradients(reverse, x), gradients(store, x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_at_a_thousand_layers_gradients_are_those_of_float64_to_rounding(gamma):
    # Layers that hold the state back: the network forgets rounding instead of stretching it, so that what is
    # left between two precisions is rounding, not chaos.
    layers, x = steep(1000, gain=0.7), torch.randn(2, 8, requires_grad=True)
    for layer in layers:
        with torch.no_grad():
            layer[0].weight.sub_(1.5 * torch.eye(8))
    twins = [copy.deepcopy(layer).double() for layer in layers]
    expected = gradients(
        mc.MomentumSequence(twins, gamma, "store", "float"), x.detach().double().requires_grad_()
    )
    plain = relative_error(gradients(mc.MomentumSequence(layers, gamma, "store", "float"), x), expected)
    exact = relative_error(gradients(mc.MomentumSequence(layers, gamma, "reverse", "exact"), x), expected)
    assert plain < 1e-4
    assert exact < 1e-4


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_float_reverse_fails_where_exact_does_not(gamma):
    x = torch.randn(3, 8)
    for depth, broken in ((4, False), (150, True)):
        layers = steep(depth)
        exact, plain = (
            mc.MomentumSequence(layers, gamma, arithmetic=arithmetic).inversion_report(x)
            for arithmetic in ("exact", "float")
        )
        assert exact.exact
        assert exact.gradient_error == 0
        assert not plain.exact
        assert (plain.gradient_error > 0.1) == broken
        assert (plain.layers[0].error > 1e-2) == broken


def test_a_report_tells_each_layer_s_error_and_touches_nothing():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x, shift):
            return torch.dropout(torch.tanh(self.norm(self.linear(x)) + shift), 0.3, train=True)

    sequence = mc.MomentumSequence([Noisy() for _ in range(40)], 0.7, "store", "float")
    state, random = copy.deepcopy(sequence.state_dict()), torch.get_rng_state()
    report = sequence.inversion_report(torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), 0.1)
    assert len(report.layers) == 40
    assert report.layers[0].error > 100 * report.layers[-1].error
    assert report.layers[0].gradient_error > 10 * report.layers[-1].gradient_error
    assert all(torch.equal(value, state[name]) for name, value in sequence.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in sequence.parameters())
    sequence.arithmetic = "exact"
    assert sequence.inversion_report(torch.randn(5, 8), 0.1)[1] == 0


def in_use_after(function, *arguments):
    """The bytes that a call leaves allocated while its result lives, by the allocator's own count."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        result = function(*arguments)
    events = seen.profiler.kineto_results.events()
    assert result is not None
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


def test_depth_costs_no_memory_in_reverse():
    x = torch.randn(3, 4, 4, requires_grad=True)
    kept, used = {}, {}
    for memory, blocks in itertools.product(MEMORIES, (4, 64)):
        sequence = mc.MomentumSequence(routed(2 * blocks), 0.9, memory)
        kept[memory, blocks] = bytes_for_backward(lambda f=sequence: f(x), sequence)
        used[memory, blocks] = in_use_after(sequence, x)
    assert kept["reverse", 4] == kept["reverse", 64] == 12 * x.numel()
    assert used["reverse", 4] == used["reverse", 64] <= (12 + 4) * x.numel() + 64
    for counted in (kept, used):
        assert counted["store", 64] > 8 * counted["store", 4]
    assert used["checkpoint", 64] - used["checkpoint", 4] >= 120 * 4 * x.numel()
