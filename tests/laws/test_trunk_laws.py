"""What holds for every trunk (plain, residual by layer or block, momentum) and every network around it."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mocapsnet as mc
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.nn.trunk import PlainTrunk, ResidualTrunk

TRUNKS = {
    "plain": PlainTrunk,
    "residual": ResidualTrunk,
    "residual-block": lambda layers: ResidualTrunk(layers, skip="block"),
    "momentum": mc.MomentumSequence,
    "momentum-float": lambda layers: mc.MomentumSequence(layers, memory="store", arithmetic="float"),
}
SMALL = {"image_shape": (1, 9, 9), "classes": 4, "kernel_size": 3, "channels": 8}
SMALL |= {"capsule_dim": 4, "capsules": 3, "class_dim": 5}
LABELS = torch.tensor([1, 3, 0])


@pytest.fixture(params=TRUNKS)
def trunk(request):
    return TRUNKS[request.param]


def routed_layers(count, routing="rba", **options):
    return [CapsLayer(3, 4, 3, 4, routing=routing, weight_std=0.7, **options) for _ in range(count)]


def shaken(model):
    """The model with weights of a trained size, none of them at its first value."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def loss_of(model, images):
    pixels = torch.full_like(images, 0.5)
    return mc.capsule_loss(model(images, LABELS), LABELS, pixels)


def assert_same_output(model, other, images):
    for found, expected in zip(model(images), other(images), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("memory", ["checkpoint", "store"])
@pytest.mark.parametrize("count", [0, 1, 2, 6])
def test_gamma_zero_is_the_residual_trunk(routing, gradient, count, memory):
    layers = routed_layers(count, routing, gradient=gradient)
    residual, momentum = ResidualTrunk(copy.deepcopy(layers)), mc.MomentumSequence(layers, 0, memory)
    x = torch.randn(5, 3, 4, requires_grad=True)
    assert torch.equal(momentum(x), residual(x))
    one, other = (
        torch.autograd.grad(t(x).square().sum(), [x, *t.parameters()]) for t in (momentum, residual)
    )
    for found, expected in zip(one, other, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_gamma_zero_is_the_residual_network(routing, blocks):
    residual = shaken(mc.ResCapsNet(**SMALL, blocks=blocks, routing=routing))
    momentum = mc.MoCapsNet(**SMALL, blocks=blocks, routing=routing, gamma=0.0, memory="store")
    momentum.load_state_dict(residual.state_dict())
    images = torch.rand(3, 1, 9, 9)
    assert_same_output(momentum, residual, images)
    assert_same_output(mc.to_momentum(residual, gamma=0.0, memory="store"), residual, images)


@pytest.mark.parametrize("gamma", [0.3, 0.9])
def test_gamma_above_zero_is_not_the_residual_network(routing, gamma):
    residual = shaken(mc.ResCapsNet(**SMALL, routing=routing))
    images = torch.rand(3, 1, 9, 9)
    assert not torch.allclose(mc.to_momentum(residual, gamma)(images).lengths, residual(images).lengths)


def test_a_trunk_of_no_layers_is_the_identity(trunk):
    x = torch.randn(2, 3, 4)
    assert torch.equal(trunk([])(x), x)


def test_layers_that_answer_zero_leave_the_state_except_in_the_plain_trunk(trunk):
    layers = routed_layers(4, routing_bias=None)
    for layer in layers:
        nn.init.zeros_(layer.W)
    x = torch.randn(2, 3, 4)
    # Exact arithmetic rounds its input to steps of 2^-22.
    within = 2.0**-23 if trunk is mc.MomentumSequence else 0
    assert_close(trunk(layers)(x), torch.zeros_like(x) if trunk is PlainTrunk else x, rtol=0, atol=within)


def test_trunks_name_their_layers_alike(trunk):
    names = [f"layers.{n}.{kind}" for n in range(4) for kind in ("W", "bias")]
    assert list(trunk(routed_layers(4)).state_dict()) == names


def test_batch_rows_of_a_trunk_are_independent(trunk, routing):
    f = trunk(routed_layers(4, routing)).double()
    x = torch.randn(5, 3, 4).double()
    # A last digit that differs may round to the next step of exact arithmetic's grid.
    within = 4 * 2.0**-22 if trunk is mc.MomentumSequence else 1e-12
    assert_close(torch.cat([f(row) for row in x.split(1)]), f(x), rtol=1e-10, atol=within)


def test_batch_rows_of_a_network_are_independent(network, routing):
    model = shaken(network(blocks=2, routing=routing)).double()
    images = torch.rand(3, 1, 9, 9).double()
    alone = [torch.cat(rows) for rows in zip(*map(model, images.split(1)), strict=True)]
    for found, expected in zip(alone, model(images), strict=True):
        assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_without_blocks_the_three_networks_are_one(routing):
    images = torch.rand(3, 1, 9, 9)
    models = []
    for kind in (mc.CapsNet, mc.ResCapsNet, mc.MoCapsNet):
        torch.manual_seed(5)
        models.append(kind(**SMALL, blocks=0, routing=routing))
    assert_same_output(models[0], models[1], images)
    assert_same_output(models[0], models[2], images)


def test_the_same_seed_gives_the_same_weights(network, routing):
    states = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        states.append(network(blocks=2, routing=routing).state_dict())
    first, again, other = states
    assert list(first) == list(again)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["caps1.W"], other["caps1.W"])


def test_the_three_networks_start_from_the_same_weights(routing):
    states = []
    for kind in (mc.CapsNet, mc.ResCapsNet, mc.MoCapsNet):
        torch.manual_seed(7)
        states.append(kind(**SMALL, blocks=2, routing=routing).state_dict())
    for state in states[1:]:
        assert list(state) == list(states[0])
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_the_same_seed_gives_the_same_loss_and_gradients(network, routing):
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        model, images = network(routing=routing), torch.rand(3, 1, 9, 9)
        loss = loss_of(model, images)
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_a_save_and_load_round_trip_changes_nothing(network, routing, tmp_path):
    model = shaken(network(blocks=2, routing=routing))
    model.save(tmp_path / "run")
    images = torch.rand(3, 1, 9, 9)
    for loaded in (mc.load(tmp_path / "run"), type(model).from_pretrained(tmp_path / "run")):
        assert type(loaded) is type(model)
        assert loaded.config == model.config
        assert_same_output(loaded, model, images)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_save_and_load_round_trip_keeps_the_dtype(network, dtype, tmp_path):
    model = shaken(network().to(dtype))
    model.save(tmp_path)
    for loaded in (mc.load(tmp_path), type(model).from_pretrained(tmp_path)):
        for name, value in loaded.state_dict().items():
            assert value.dtype == dtype
            assert torch.equal(value, model.state_dict()[name])


def test_every_parameter_gets_a_gradient(network, routing, gradient):
    model = shaken(network(blocks=2, routing=routing, gradient=gradient))
    loss_of(model, torch.rand(3, 1, 9, 9)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("silent", [False, True], ids=["as-built", "zero-convolutions"])
@pytest.mark.parametrize("routing_bias", [None, 0.0, 0.1])
def test_a_black_image_gives_finite_gradients(network, routing, gradient, silent, routing_bias):
    model = network(blocks=2, routing=routing, gradient=gradient, routing_bias=routing_bias)
    if silent:
        for parameter in (*model.stem.parameters(), *model.primary.parameters()):
            nn.init.zeros_(parameter)
    loss = loss_of(model, torch.zeros(3, 1, 9, 9))
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
