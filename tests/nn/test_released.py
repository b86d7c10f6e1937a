"""from_released against what the released code computes, written out here on its own state dict."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import mocapsnet as mc
from mocapsnet.nn.released import ReleasedLayer, ReleasedNetwork

IMAGE, CLASSES = (2, 10, 11), 4
# Sizes unlike the paper's, so that they can only come from the weights.
CHANNELS, KERNEL, CAPSULES, DIM, CLASS_DIM = 16, 3, 5, 8, 6
PRIMARY = CHANNELS * 3 * 4 // DIM
TRUNKS, ROUTINGS = ("plain", "residual", "momentum"), ("rba", "sda")


def checkpoint(trunk="momentum", routing="rba", blocks=1, scale=0.5, seed=0):
    """A state dict with the released code's keys and shapes."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape, std=1.0):
        return std * torch.randn(*shape, generator=draw)

    layers = {"caps1": (CAPSULES, PRIMARY, DIM)}
    for n in range(blocks):
        for f in range(2):
            name = f"functions.0.network.{f}.0" if trunk == "momentum" else f"functions.{f}.0"
            layers[f"blocks.{n}.{name}"] = (CAPSULES, CAPSULES, DIM)
    layers["caps2"] = (CLASSES, CAPSULES, CLASS_DIM)
    state = {}
    for name, (J, I, E) in layers.items():  # noqa: E741
        state[f"{name}.W"] = normal(1, J, I, E, DIM, std=scale)
        if routing == "sda":
            state[f"{name}.bias"] = 0.1 + normal(1, J, E, std=0.05)
    shapes = {
        "conv1": (CHANNELS, IMAGE[0], KERNEL, KERNEL),
        "primary.conv": (CHANNELS, CHANNELS, KERNEL, KERNEL),
    }
    shapes |= {"decoder.0": (512, CLASSES * CLASS_DIM), "decoder.2": (1024, 512)}
    shapes |= {"decoder.4": (math.prod(IMAGE), 1024)}
    for name, shape in shapes.items():
        state[f"{name}.weight"] = normal(*shape, std=0.2 if len(shape) == 4 else 0.1)
        state[f"{name}.bias"] = normal(shape[0], std=0.1)
    return state


def squash(s):
    n2 = (s * s).sum(-1, keepdim=True)
    return n2 / (1 + n2) * (s / (n2.sqrt() + 1e-8))


def routed(state, name, u, iterations):
    """One routed layer of the released code; SDA when it has a bias."""
    W, bias = state[f"{name}.W"], state.get(f"{name}.bias")
    votes = (W @ u[:, None, :, :, None])[..., 0]
    J = W.shape[1]
    if bias is not None:
        long, limit = votes.norm(dim=-1, keepdim=True), u.norm(dim=-1)[:, None, :, None]
        votes = votes / long * torch.minimum(long, limit)
    s_bias = 0 if bias is None else bias
    with torch.no_grad():
        b = torch.zeros(votes.shape[:3]).to(votes)
        for _ in range(iterations - 1):
            v = squash((b.softmax(1)[..., None] * votes).sum(2) + s_bias)
            if bias is None:
                b = b + (votes * v[:, :, None]).sum(-1)
            else:
                d = (v[:, :, None] - votes).norm(dim=-1)
                d_o = d.mean().item()
                b = (math.log(0.9 * (J - 1)) - math.log(1 - 0.9) / (d_o / 2 - d_o + 1e-12)) * d
    return squash((b.softmax(1)[..., None] * votes).sum(2) + s_bias)


def released(state, images, trunk, gamma=0.9, iterations=3, carried=False):
    """Capsules and reconstruction of the released network; carried keeps the velocity between blocks."""
    x = F.relu(F.conv2d(images, state["conv1.weight"], state["conv1.bias"]))
    x = F.conv2d(x, state["primary.conv.weight"], state["primary.conv.bias"], stride=2)
    x = routed(state, "caps1", squash(x.contiguous().view(len(x), -1, 8)), iterations)
    velocity = torch.zeros_like(x)
    for n in range(len({key.split(".")[1] for key in state if key.startswith("blocks.")})):
        block_input = x
        velocity = velocity if carried else torch.zeros_like(x)
        for f in range(2):
            if trunk == "momentum":
                out = routed(state, f"blocks.{n}.functions.0.network.{f}.0", x, iterations)
                velocity = gamma * velocity + (1 - gamma) * out
                x = x + velocity
            else:
                out = routed(state, f"blocks.{n}.functions.{f}.0", x, iterations)
                x = x + out if trunk == "residual" else out
        if trunk == "momentum":
            x = block_input + x
    capsules = routed(state, "caps2", x, iterations)
    lengths = capsules.norm(dim=-1)
    seen = (capsules * F.one_hot(lengths.argmax(1), CLASSES)[..., None]).flatten(1)
    for n in (0, 2):
        seen = F.relu(F.linear(seen, state[f"decoder.{n}.weight"], state[f"decoder.{n}.bias"]))
    pixels = torch.sigmoid(F.linear(seen, state["decoder.4.weight"], state["decoder.4.bias"]))
    return capsules, pixels.view(len(images), *IMAGE)


def loaded(state, trunk="momentum", **options):
    return mc.from_released(state, IMAGE, CLASSES, residual=trunk != "plain", **options)


def double(state):
    return {name: value.double() for name, value in state.items()}


# Weights at which lengths neither vanish nor all come near one.
SCALES = {"plain": 1.5, "residual": 0.3, "momentum": 0.2}


@pytest.mark.parametrize("blocks", range(4))
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("trunk", TRUNKS)
def test_lengths_are_those_of_the_released_code(trunk, routing, blocks):
    state, images = checkpoint(trunk, routing, blocks, SCALES[trunk]), torch.rand(3, *IMAGE)
    output, (capsules, pixels) = (
        loaded(state, trunk).double()(images.double()),
        released(double(state), images.double(), trunk),
    )
    lengths = capsules.norm(dim=-1)
    assert lengths.min() > 1e-4
    assert lengths.min() < 0.9
    assert_close(output.capsules, capsules, rtol=1e-6, atol=1e-12)
    assert_close(output.reconstruction, pixels, rtol=1e-6, atol=1e-12)
    assert_close(output.lengths, lengths, rtol=1e-6, atol=0)
    # Components near zero have fewer digits in float32, and how many hangs on the CPU.
    assert_close(loaded(state, trunk)(images).lengths.double(), lengths, rtol=1e-4, atol=0)


# The plain network of two blocks or more is silent at this start, in float64 too.
@pytest.mark.parametrize(
    ("trunk", "blocks"), [(trunk, n) for trunk in TRUNKS for n in range(4) if trunk != "plain" or n < 2]
)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_lengths_agree_at_the_released_start_where_capsules_vanish(trunk, blocks, routing):
    state, images = checkpoint(trunk, routing, blocks, scale=0.01), torch.rand(3, *IMAGE).double()
    lengths = released(double(state), images, trunk)[0].norm(dim=-1)
    assert (lengths > 0).all()
    assert_close(loaded(state, trunk).double()(images).lengths, lengths, rtol=1e-4, atol=0)
    if lengths.min() > 1e-20:
        assert_close(loaded(state, trunk)(images.float()).lengths.double(), lengths, rtol=1e-4, atol=0)
    if routing == "rba":
        assert lengths.max() < 1e-6


@pytest.mark.parametrize(
    "options", [{"gamma": 0.5}, {"iterations": 1}, {"gamma": 0.0, "iterations": 2}], ids=str
)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_gamma_and_iterations_are_honoured(routing, options):
    state, images = checkpoint(routing=routing, blocks=2), torch.rand(3, *IMAGE)
    lengths = released(state, images, "momentum", **options)[0].norm(dim=-1)
    assert_close(loaded(state, **options)(images).lengths, lengths, rtol=1e-4, atol=0)
    assert not torch.allclose(loaded(state)(images).lengths, lengths, rtol=1e-3)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("trunk", TRUNKS)
def test_gradients_take_the_coupling_as_a_constant(trunk, routing):
    state, images = checkpoint(trunk, routing), torch.rand(3, *IMAGE).double()
    exact = {name: value.requires_grad_() for name, value in double(state).items()}
    names = [name for name in state if name.startswith(("caps", "conv1", "primary"))]
    lengths = released(exact, images, trunk)[0].norm(dim=-1)
    expected = torch.autograd.grad(lengths.square().sum(), [exact[name] for name in names])
    model = loaded(state, trunk).double()
    own = [model.get_parameter(name.replace("conv1", "stem.conv")) for name in names]
    found = torch.autograd.grad(model(images).lengths.square().sum(), own)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other.reshape(one.shape), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_the_doubled_skip_doubles_the_state_with_every_block(blocks):
    state, images = checkpoint(blocks=blocks), torch.rand(3, *IMAGE)
    silent = {name: value * (not name.startswith("blocks")) for name, value in state.items()}
    shallow = {name: value for name, value in state.items() if not name.startswith("blocks")}
    shallow["caps2.W"] = 2**blocks * shallow["caps2.W"]
    assert_close(loaded(silent)(images).lengths, loaded(shallow)(images).lengths, rtol=1e-5, atol=0)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_velocity_restarts_in_every_block(routing):
    state, images = checkpoint(routing=routing, blocks=2), torch.rand(3, *IMAGE)
    restarted, carried = (
        released(state, images, "momentum", carried=c)[0].norm(dim=-1) for c in (False, True)
    )
    assert not torch.allclose(carried, restarted, rtol=1e-3)
    assert_close(loaded(state)(images).lengths, restarted, rtol=1e-4, atol=0)


def test_a_bias_means_sda_and_its_batch_is_one():
    images = torch.rand(3, *IMAGE)
    for routing, alike in (("rba", True), ("sda", False)):
        model = loaded(checkpoint(routing=routing))
        alone = torch.cat([model(image[None]).lengths for image in images])
        assert torch.allclose(model(images).lengths, alone, rtol=1e-5, atol=1e-7) == alike


def test_labels_choose_the_reconstruction():
    model, images = loaded(checkpoint()), torch.rand(2, *IMAGE)
    guess = model(images)
    chosen = guess.lengths.argmax(1)
    assert torch.equal(model(images, chosen).reconstruction, guess.reconstruction)
    assert not torch.allclose(model(images, (chosen + 1) % CLASSES).reconstruction, guess.reconstruction)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("trunk", ["residual", "momentum"])
def test_a_missing_key_is_refused_by_its_name(trunk, routing):
    state = checkpoint(trunk, routing, blocks=2)
    unnamed = []
    for key in state:
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the key is looked for below
            loaded({name: value for name, value in state.items() if name != key}, trunk)
        if key not in str(error.value):
            unnamed.append(key)
    assert not unnamed


@pytest.mark.parametrize(
    ("image_shape", "classes", "parts"),
    [
        (IMAGE, 5, ["classes", "must be 4", "got 5"]),
        ((2, 12, 11), CLASSES, ["image_shape", "(2, 12, 11)"]),
        ((2, 10, 14), CLASSES, ["image_shape", "(2, 10, 14)"]),
        ((1, 10, 11), CLASSES, ["image_shape", "(1, 10, 11)"]),
        ((2, 4, 11), CLASSES, ["(2, 4, 11)", "5x5"]),
        ((10, 11), CLASSES, ["image_shape", "(10, 11)"]),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_the_weights_are_refused(image_shape, classes, parts):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the parts below are the match
        mc.from_released(checkpoint(), image_shape, classes)
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize("options", [{"iterations": 0}, {"gamma": 1.5}], ids=str)
def test_wrong_options_are_refused(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=f"{name} must be .*got {value}"):
        loaded(checkpoint(), **options)


@pytest.mark.parametrize("extra", ["optimizer.step", "blocks.5.functions.0.network.0.0.W", "caps3.W"])
def test_a_key_of_another_network_is_refused_by_its_name(extra):
    with pytest.raises(ValueError, match=extra):
        loaded(checkpoint() | {extra: torch.zeros(1, 2, 2, 2, 2)})


def test_one_thing_at_a_time_can_be_unlike_the_released_code():
    """Doubled or not, with a bias or none, for both skips: computed here from f_1 and f_2."""
    x = torch.rand(3, CAPSULES, DIM)
    sizes = {"channels": CHANNELS, "kernel_size": KERNEL, "capsules": CAPSULES, "class_dim": CLASS_DIM}
    for trunk, doubled, bias in itertools.product(("residual", "momentum"), (False, True), (None, 0.3)):
        network = ReleasedNetwork(
            IMAGE, CLASSES, trunk=trunk, doubled=doubled, routing_bias=bias, weight_std=0.5, **sizes
        )
        modules = [m for m in network.trunk.modules() if type(m).__name__ == "ReleasedLayer"]
        if trunk == "residual":
            middle = x + modules[0](x)
            expected = middle + modules[1](middle)
        else:
            velocity = 0.1 * modules[0](x)
            middle = x + velocity
            expected = middle + 0.9 * velocity + 0.1 * modules[1](middle)
        assert_close(network.trunk(x), x + expected if doubled else expected)
        assert (modules[0].bias is None) == (bias is None)
        assert bias is None or (network.caps2.bias == bias).all()
        assert modules[0].W.std().item() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("trunk", TRUNKS)
def test_it_is_saved_and_loaded(trunk, routing, tmp_path):
    model, images = loaded(checkpoint(trunk, routing, blocks=2), trunk), torch.rand(2, *IMAGE)
    model.save(tmp_path)
    again = mc.load(tmp_path)
    assert again.config == model.config
    assert torch.equal(again.lengths(images), model(images).lengths)


def test_a_plain_trunk_has_no_skip_to_double():
    with pytest.raises(ValueError, match="no skip to double"):
        ReleasedNetwork(IMAGE, CLASSES, trunk="plain", doubled=True, kernel_size=KERNEL)


def test_many_input_capsules_are_routed_the_same():
    """At the released start, W of 0.01, sums are small but not zero, and so are their gradients."""
    torch.manual_seed(0)
    layer, u = ReleasedLayer(600, DIM, 32, DIM, "rba", 3), 0.3 * torch.randn(3, 600, DIM)
    u, weights = u.requires_grad_(), torch.randn(3, 32, DIM)
    exact_u, exact_W = (t.detach().double().requires_grad_() for t in (u, layer.W))
    ours, theirs = layer(u), routed({"caps1.W": exact_W[None]}, "caps1", exact_u, 3)
    found = torch.autograd.grad(ours, (u, layer.W), weights)
    right = torch.autograd.grad(theirs, (exact_u, exact_W), weights.double())
    for one, other in zip((ours, *found), (theirs, *right), strict=True):
        assert (one - other).norm() < 1e-4 * other.norm()
