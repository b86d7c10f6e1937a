import pytest
import torch

from mocapsnet import ops
from mocapsnet.measure.coupling import coupling
from mocapsnet.nn.routing import CapsLayer

OPS = {
    "rba": (ops.rba, {}, "last"),
    "leaky-rba": (ops.rba, {"leaky": True}, "last"),
    "sda": (ops.sda, {"scope": "sample"}, "all"),
    "em": (ops.em, {}, "all"),
}


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("routing_bias", [None, 0.3])
def test_a_layer_is_its_op_on_its_weights(routing, gradient, iterations, routing_bias):
    layer = CapsLayer(6, 3, 4, 5, routing, iterations, 0.8, routing_bias, gradient)
    op, options, _ = OPS[routing]
    if routing == "em":
        torch.nn.init.normal_(layer.beta_a, std=50)
        torch.nn.init.normal_(layer.beta_u)
        options = {"beta_a": layer.beta_a, "beta_u": layer.beta_u}
    u = torch.randn(2, 6, 3, requires_grad=True)
    expected = op(u, layer.W, layer.bias, iterations=iterations, gradient=gradient, **options)
    assert torch.equal(layer(u), expected)
    parameters = [u, *layer.parameters()]
    one, other = (torch.autograd.grad(v.square().sum(), parameters) for v in (layer(u), expected))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_a_layer_differentiates_as_its_routing_does_by_default(routing):
    assert CapsLayer(6, 3, 4, 5, routing).gradient == OPS[routing][2]


def test_parameters_start_as_documented(routing):
    torch.manual_seed(0)
    layer = CapsLayer(64, 8, 32, 8, routing, weight_std=0.25, routing_bias=0.7)
    assert layer.W.shape == (32, 64, 8, 8)
    assert layer.W.mean().item() == pytest.approx(0, abs=0.005)
    assert layer.W.std().item() == pytest.approx(0.25, rel=0.02)
    assert torch.equal(layer.bias, torch.full((32, 8), 0.7))
    betas = ["beta_a", "beta_u"] if routing == "em" else []
    assert [name for name, _ in layer.named_parameters()] == ["W", "bias", *betas]
    assert all(torch.equal(getattr(layer, name), torch.zeros(32)) for name in betas)


@pytest.mark.parametrize("routing_bias", [None, 0.0])
def test_no_bias_is_a_zero_bias_without_the_parameter(routing, routing_bias):
    torch.manual_seed(0)
    layer, u = CapsLayer(6, 3, 4, 5, routing, routing_bias=routing_bias), torch.randn(2, 6, 3)
    torch.manual_seed(0)
    assert torch.equal(layer(u), CapsLayer(6, 3, 4, 5, routing, routing_bias=0.0)(u))
    assert ("bias" in layer.state_dict()) == (routing_bias is not None)


def test_coupling_names_every_routed_layer(network, routing):
    model = network(routing=routing, blocks=2)
    found = coupling(model, torch.rand(2, 1, 9, 9))
    assert list(found) == ["caps1", *(f"trunk.layers.{n}" for n in range(4)), "caps2"]
    shapes = [(2, 3, model.caps1.W.shape[1]), *[(2, 3, 3)] * 4, (2, 4, 3)]
    assert [tuple(c.shape) for c in found.values()] == shapes
    for c in found.values():
        total = c.sum(1)
        assert (total < 1).all() if routing == "leaky-rba" else torch.allclose(total, torch.ones_like(total))


def test_coupling_is_what_the_layer_routed_with(network):
    model, images = network(routing="rba", weight_std=2.0), torch.rand(2, 1, 9, 9)
    c = coupling(model, images)["caps2"]
    x = model.trunk(model.caps1(model.primary(model.stem(images))))
    s = torch.einsum("bji,jied,bid->bje", c, model.caps2.W, x) + model.caps2.bias
    assert torch.allclose(ops.squash(s), model(images).capsules, atol=1e-6)
    assert c.std() > 0.01


def test_coupling_looks_into_any_module_of_layers(routing):
    first, second = CapsLayer(6, 3, 4, 5, routing), CapsLayer(4, 5, 2, 3, routing)
    u = torch.randn(2, 6, 3)
    found = coupling(torch.nn.Sequential(first, second), u)
    assert list(found) == ["0", "1"]
    assert torch.equal(found["0"], first.coupling(u))
    assert torch.equal(found["1"], second.coupling(first(u)))
    assert coupling(torch.nn.Sequential(), u) == {}


def test_coupling_starts_uniform(network, routing):
    for name, c in coupling(network(routing=routing, iterations=1), torch.rand(2, 1, 9, 9)).items():
        parents = (4 if name == "caps2" else 3) + (routing == "leaky-rba")
        assert torch.allclose(c, torch.full_like(c, 1 / parents))


def test_coupling_leaves_the_model_as_it_was(network):
    model, images = network(gradient="all"), torch.rand(2, 1, 9, 9)
    before = model(images).lengths
    found = coupling(model, images)
    assert not any(c.requires_grad for c in found.values())
    assert torch.is_grad_enabled()
    with pytest.raises(ValueError, match="images must be"):
        coupling(model, images[..., :5])
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(model(images).lengths, before)
    assert all(parameter.grad is None for parameter in model.parameters())
