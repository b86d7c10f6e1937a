"""forward_intermediates: every layer of capsules on the way, as the network computed it."""

from itertools import pairwise

import pytest
import torch

from mocapsnet import ops
from mocapsnet.errors import WrongArgument


@pytest.fixture
def images():
    return torch.rand(2, 1, 9, 9)


def test_intermediates_are_every_layer_of_capsules_in_order(network, routing, images):
    model = network(routing=routing, blocks=2)
    output, layers = model.forward_intermediates(images)
    for ours, theirs in zip(output, model(images), strict=True):
        assert torch.equal(ours, theirs)
    assert [layer.name for layer in layers] == [
        "primary",
        "caps1",
        *(f"trunk.layers.{n}" for n in range(4)),
        "caps2",
    ]
    assert layers[0].coupling is None
    assert torch.equal(layers[-1].capsules, output.capsules)
    for below, layer in pairwise(layers):
        assert torch.equal(layer.coupling, model.get_submodule(layer.name).coupling(below.x))


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_x_is_the_state_that_the_next_layer_is_given(network, blocks, images):
    model = network(blocks=blocks, weight_std=1.0)
    layers = model.forward_intermediates(images, intermediates_only=True)
    for layer, name in zip(
        layers[2:], ["caps1", *(f"trunk.layers.{n}" for n in range(2 * blocks))], strict=True
    ):
        below = next(other for other in layers if other.name == name)
        assert torch.equal(model.get_submodule(layer.name)(below.x), layer.capsules)
    assert torch.equal(layers[-2].x, model.trunk(layers[1].x))


def test_states_of_a_momentum_trunk_obey_the_equations(images):
    import mocapsnet as mc

    model = mc.MoCapsNet(
        (1, 9, 9),
        4,
        blocks=2,
        kernel_size=3,
        channels=8,
        capsule_dim=4,
        capsules=3,
        gamma=0.8,
        weight_std=1.0,
    )
    _, (first, *trunk) = model.forward_intermediates(images, indices=[1, 2, 3, 4, 5])
    x, velocity = first.x, torch.zeros_like(first.x)
    for layer in trunk:
        velocity = 0.8 * velocity + 0.2 * layer.capsules
        x = x + velocity
        torch.testing.assert_close(layer.x, x, atol=1e-5, rtol=0)


def test_indices_choose_layers_as_timm_s_do(network, images):
    model = network(blocks=1)
    everything = [layer.name for layer in model.forward_intermediates(images, intermediates_only=True)]
    for indices, names in (
        (2, everything[-2:]),
        ([0, 3], [everything[0], everything[3]]),
        ([-1], everything[-1:]),
    ):
        found = model.forward_intermediates(images, indices=indices, intermediates_only=True)
        assert [layer.name for layer in found] == names


@pytest.mark.parametrize("indices", [0, -1, 6, [5], [-6], [0, 9]])
def test_indices_that_are_not_there_are_refused(network, images, indices):
    with pytest.raises(WrongArgument, match=r"from 1 to 5, or a list of some from -5 to 4, got"):
        network(blocks=1).forward_intermediates(images, indices=indices)


def test_gradients_flow_through_the_capsules_and_not_through_the_coupling(network, images):
    model = network(blocks=1)
    layers = model.forward_intermediates(images, intermediates_only=True)
    sum(ops.length(layer.capsules).sum() for layer in layers).backward()
    assert model.stem.conv.weight.grad.abs().sum() > 0
    assert not any(layer.coupling.requires_grad for layer in layers[1:])
    assert not any(module._forward_hooks for module in model.modules())
