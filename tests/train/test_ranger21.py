"""Ranger21 on the device is pytorch-optimizer's, and reads nothing back."""

from copy import deepcopy
from itertools import pairwise

import pytest
import pytorch_optimizer
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils._python_dispatch import TorchDispatchMode

from mocapsnet.train.ranger21 import Ranger21

# A convolution, matrices of a routing, a decoder's layer, biases; too few numbers for a deviation.
SHAPES = [(8, 3, 3, 3), (5, 7, 4, 3), (4, 3, 2), (10, 16), (8,), (2,), (1,), ()]
STEPS = 60


def made(steps=STEPS, shapes=SHAPES, **options):
    """Both optimizers, each with weights of its own, alike."""
    generator = torch.Generator().manual_seed(0)
    start = [0.3 * torch.randn(shape, generator=generator) for shape in shapes]
    theirs, ours = ([nn.Parameter(weight.clone()) for weight in start] for _ in range(2))
    library = pytorch_optimizer.Ranger21(theirs, num_iterations=steps, lr=0.01)
    return (library, theirs), (Ranger21(ours, steps, 0.01, **options), ours)


def steps_of(pairs, numbers):
    """Steps of each optimizer on the same gradients, tiny ones and huge ones."""
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        scale = 10.0 ** (2 - number % 11)
        gradients = [scale * torch.randn(shape, generator=generator) for shape in SHAPES]
        for optimizer, weights in pairs:
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient.clone()
            optimizer.step()


def agree(pairs, tolerance=1e-6):
    """All weights and all that is kept for the next step."""
    for (first, mine), (second, other) in pairwise(pairs):
        for one, two in zip(mine, other, strict=True):
            torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)
            for name, value in first.state[one].items():
                torch.testing.assert_close(value, second.state[two][name], rtol=tolerance, atol=tolerance)
        assert float(first.current_lr) == pytest.approx(float(second.current_lr))


@pytest.mark.parametrize("steps", [STEPS, 2000])
def test_weights_and_state_are_those_of_pytorch_optimizer(steps):
    pairs = made(steps)
    for first in range(0, STEPS, 6):
        steps_of(pairs, range(first, first + 6))
        agree(pairs)


def test_each_goes_on_where_the_other_was_saved():
    pairs = library, ours = made()
    steps_of(pairs, range(13))
    crossed = made()
    for (fresh, weights), (saved, old) in zip(crossed, reversed(pairs), strict=True):
        fresh.load_state_dict(deepcopy(saved.state_dict()))
        for weight, value in zip(weights, old, strict=True):
            weight.data.copy_(value.data)
    steps_of([library, ours, *crossed], range(13, 30))
    agree([library, *crossed, ours])


def test_a_step_that_is_stopped_changes_nothing():
    _, (optimizer, weights) = made()
    steps_of([(optimizer, weights)], range(7))
    before = [weight.detach().clone() for weight in weights]
    kept = {name: value.clone() for name, value in optimizer.state[weights[0]].items()}
    optimizer.found_inf.fill_(1)
    for weight in weights:
        weight.grad = torch.full_like(weight, torch.nan)
    optimizer.step()
    assert all(torch.equal(weight, had) for weight, had in zip(weights, before, strict=True))
    assert all(torch.equal(value, kept[name]) for name, value in optimizer.state[weights[0]].items())
    assert optimizer.state_dict()["param_groups"][0]["step"] == 7


class NothingIsRead(TorchDispatchMode):
    """Refuses what would wait for a device, which a graph could not hold."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "a number was read back"
        return function(*args, **(kwargs or {}))


def test_a_step_reads_no_number_back():
    library, ours = made()
    steps_of([library, ours], range(2))
    with NothingIsRead():
        steps_of([ours], range(2, 12))
        with pytest.raises(AssertionError, match="a number was read back"):
            steps_of([library], range(2, 3))


def test_a_weight_without_a_gradient_stays():
    _, (optimizer, (first, *others)) = made()
    for weight in others:
        weight.grad = torch.ones_like(weight)
    before = first.detach().clone()
    optimizer.step()
    assert torch.equal(first, before)
    assert first not in optimizer.state


def test_without_any_gradient_nothing_happens():
    _, (optimizer, weights) = made()
    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    assert all(map(torch.equal, weights, before))


def test_what_torch_compile_fails_at_runs_as_written(monkeypatch, capsys):
    def failing(function, **_):
        def fail(*_):
            raise BackendCompilerFailed(lambda: None, RuntimeError("no compiler here"), None)

        return fail

    monkeypatch.setattr(torch, "compile", failing)
    pairs = made(compile=True)
    steps_of(pairs, range(6))
    agree(pairs)
    assert capsys.readouterr().out.count("not compiled: ") == 1


def test_compiled_it_is_the_same():
    pairs = made(shapes=SHAPES[:1], compile=True)
    for number in range(6):
        for optimizer, weights in pairs:
            weights[0].grad = torch.randn(SHAPES[0], generator=torch.Generator().manual_seed(number))
            optimizer.step()
    agree(pairs)
