"""Fused EM routing against its reference, interpreted on a CPU or compiled on a GPU."""

import pytest
import torch

import mocapsnet as mc
from mocapsnet.errors import CannotRun
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import length, order
from mocapsnet.ops.em import fused
from mocapsnet.ops.em.reference import em as reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("u", "W", "bias", "beta_a", "beta_u")


def programs(name, monkeypatch):
    """A program for an image; programs for tiles of all capsules j; programs for tiles of some."""
    if name != "image":
        monkeypatch.setattr(order, "IMAGE_VOTES", 0)
    if name == "narrow":
        monkeypatch.setattr(fused, "ROWS", 16)


@pytest.fixture(params=["image", "tile"])
def regime(request, monkeypatch):
    programs(request.param, monkeypatch)


@pytest.fixture(params=["image", "tile", "narrow"])
def every_regime(request, monkeypatch):
    programs(request.param, monkeypatch)


@pytest.fixture
def poisoned():
    """Every new buffer is full of NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def leaves(shape, without=(), scale=0.2):
    """What em takes, by name."""
    B, J, I, D, E = shape  # noqa: E741
    drawn = torch.randn(B, I, D), scale * torch.randn(J, I, E, D), 0.3 * torch.randn(J, E)
    tensors = dict(zip(NAMES, (*drawn, 50 * torch.randn(J), torch.randn(J)), strict=True))
    return {name: x.to(DEVICE).requires_grad_() for name, x in tensors.items() if name not in without}


def everything(op, inputs, **options):
    """v and all gradients."""
    v = op(**inputs, **options)
    v = v[0] if isinstance(v, tuple) else v
    weights = torch.linspace(-1, 2, v.numel(), dtype=torch.float64).view_as(v).to(v)
    return [v, *torch.autograd.grad((weights * v).sum(), list(inputs.values()))]


def exactly(inputs, **options):
    """The same from the reference in float64."""
    return everything(
        reference, {name: x.detach().double().requires_grad_() for name, x in inputs.items()}, **options
    )


def errors(found, truth):
    # A direction of one component is a sign: some gradients are nothing but rounding.
    return torch.stack([(x - y).norm() / (1e-6 + y.norm()) for x, y in zip(found, truth, strict=True)])


@pytest.mark.parametrize(
    ("shape", "iterations", "without", "gradient"),
    [
        ((1, 1, 1, 1, 1), 2, (), "all"),
        ((2, 1, 3, 2, 3), 3, ("beta_a",), "all"),
        ((1, 5, 3, 3, 6), 1, ("bias", "beta_u"), "all"),
        ((3, 4, 4, 3, 8), 2, (), "all"),
        ((1, 5, 5, 9, 5), 3, ("bias",), "all"),
        ((2, 3, 5, 4, 3), 4, ("beta_a", "beta_u"), "all"),
        ((1, 3, 6, 2, 4), 5, (), "all"),
        ((1, 3, 2, 2, 4), 1, (), "last"),
        ((2, 3, 3, 3, 4), 3, (), "last"),
    ],
    ids=str,
)
def test_values_and_gradients_are_the_references(
    shape, iterations, without, gradient, every_regime, poisoned
):
    inputs = leaves(shape, without)
    options = {"iterations": iterations, "gradient": gradient}
    found = everything(fused.em, inputs, **options)
    assert {x.dtype for x in found} == {torch.float32}
    assert (errors(found, exactly(inputs, **options)) < 3e-6).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("value", "iterations", "without"),
    [(torch.nan, 3, ()), (torch.inf, 1, ()), (torch.inf, 3, ("beta_a",))],
    ids=str,
)
def test_a_bias_that_is_not_finite_spoils_what_it_spoils_of_the_reference(
    value, iterations, without, regime, gradient
):
    inputs = leaves((2, 4, 5, 3, 3), without)
    with torch.no_grad():
        inputs["bias"][1, 1] = value
    options = {"iterations": iterations, "gradient": gradient}
    found, expected = (everything(op, inputs, **options) for op in (fused.em, reference))
    assert [x.isnan().tolist() for x in found] == [x.isnan().tolist() for x in expected]


def test_images_that_fill_several_blocks_of_a_gradient_all_count(poisoned):
    inputs = leaves((70, 3, 5, 4, 3))
    options = {"iterations": 2}
    assert (errors(everything(fused.em, inputs, **options), exactly(inputs, **options)) < 3e-6).all()


# Votes that are near their means: W's gradient is of their differences.
@pytest.mark.parametrize(
    ("shape", "scales", "options"),
    [
        ((1, 7, 5, 2, 9), (1, 2), {"iterations": 4, "gradient": "last"}),
        ((2, 4, 5, 3, 6), (100, 0.5), {"iterations": 3}),
    ],
    ids=str,
)
def test_the_error_of_near_votes_is_at_most_twice_the_references(shape, scales, options):
    ratios = []
    for seed in range(9):
        torch.manual_seed(seed)
        inputs = leaves(shape, scale=scales[1])
        with torch.no_grad():
            inputs["u"] *= scales[0]
        truth = exactly(inputs, **options)
        ours = errors(everything(fused.em, inputs, **options), truth)
        theirs = errors(everything(lambda **all: reference(**all)[0], inputs, **options), truth)
        ratios.append(ours / (theirs + 1e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


@pytest.mark.parametrize("shape", [(2, 17, 16, 7, 7), (2, 32, 32, 8, 8)], ids=str)
def test_the_error_of_a_capsule_of_one_vote_is_at_most_twice_the_references(shape, regime):
    """Its Gaussian has no width but the floor, whose gradient is steep: the mean's rounding counts."""
    ratios = []
    for seed in range(5):
        torch.manual_seed(seed)
        inputs = leaves(shape, ("beta_a", "beta_u"), scale=1.0)
        with torch.no_grad():
            inputs["u"] *= 3
        options = {"iterations": 5, "gradient": "last"}
        truth = exactly(inputs, **options)
        ours, theirs = (errors(everything(op, inputs, **options), truth) for op in (fused.em, reference))
        ratios.append(ours / (theirs + 1e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


def test_more_images_and_capsules_than_a_tile_holds(monkeypatch, poisoned):
    monkeypatch.setattr(order, "IMAGE_VOTES", 0)
    # Three parts, two of them joined at once; images in two halves.
    monkeypatch.setattr(fused, "PROGRAMS", 9)
    monkeypatch.setattr(fused, "JOINED", 64)
    monkeypatch.setattr(fused, "FORTH", {False: (2, 1)})
    monkeypatch.setattr(fused, "BACK", {False: (2, 2)})
    inputs = leaves((18, 3, 5, 2, 3))
    options = {"iterations": 2}
    assert (errors(everything(fused.em, inputs, **options), exactly(inputs, **options)) < 3e-6).all()


def test_warps_share_the_capsules_of_which_a_program_has_some(monkeypatch, poisoned):
    monkeypatch.setattr(order, "IMAGE_VOTES", 0)
    monkeypatch.setattr(fused, "ROWS", 32)
    inputs = leaves((2, 5, 3, 2, 7))
    shape, _, _, groups = fused.sizes(fused.matrices(inputs["W"]), 2, 8)
    assert (shape["G"], shape["JQ"], groups) == (2, 2, 2)
    assert (errors(everything(fused.em, inputs), exactly(inputs)) < 3e-6).all()


def test_weights_that_are_laid_out_for_it_are_read_where_they_lie(monkeypatch):
    monkeypatch.setattr(order, "IMAGE_VOTES", 0)
    W = order.laid_out(torch.randn(4, 5, 3, 2))
    assert fused.matrices(W).data_ptr() == W.data_ptr()
    assert fused.gradients(torch.empty(2, 5, 2), W)[1].stride() == W.stride()


def test_a_spread_that_is_small_beside_the_mean_is_as_exact_as_the_references(regime):
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = leaves((2, 3, 6, 4, 4))
        with torch.no_grad():
            # Each capsule's votes lie near one of two places that are apart by far more than they spread.
            inputs["u"].copy_(torch.eye(4)[0] + 0.01 * torch.randn(2, 6, 4))
            where = 3 * torch.randn(3, 2, 4).repeat(1, 3, 1)
            inputs["W"].mul_(0.02)[..., 0].add_(where.to(DEVICE))
        truth = exactly(inputs)
        ours = errors(everything(fused.em, inputs), truth)
        ratios.append(ours / (errors(everything(reference, inputs), truth) + 1e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


def test_the_error_is_at_most_twice_the_references(regime):
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = leaves((1, 4, 5, 3, 4), scale=0.5)
        truth = exactly(inputs)
        ours = errors(everything(fused.em, inputs), truth)
        ratios.append(ours / (errors(everything(reference, inputs), truth) + 1e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


def test_a_capsule_that_gets_next_to_nothing_keeps_its_mean(every_regime):
    inputs = leaves((1, 2, 4, 2, 3), scale=1.0)
    with torch.no_grad():
        # Capsule 1 costs so much that its share is below the smallest float.
        inputs["beta_a"].copy_(torch.tensor([0.0, -1e5]))
    found, truth = everything(fused.em, inputs), exactly(inputs)
    assert (errors(found, truth) < 3e-5).all()
    assert reference(**inputs)[1][:, 1].max() < 1e-38


@pytest.mark.parametrize("holes", ["", "in", "in another order with"])
def test_the_order_of_tensors_in_memory_changes_nothing(regime, holes):
    inputs = leaves((2, 3, 4, 2, 3))
    found = everything(fused.em, inputs)
    again = {name: x.detach() for name, x in inputs.items()}
    if holes == "in":
        again = {name: torch.stack([x, x], -1)[..., 0] for name, x in again.items()}
    else:
        twice = torch.cat([again["W"]] * (2 if holes else 1))
        again["W"] = twice.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1)[:3]
    assert again["W"].stride() != inputs["W"].stride()
    again = everything(fused.em, {name: x.requires_grad_() for name, x in again.items()})
    assert (errors(again, found) < 2e-6).all()


@pytest.mark.parametrize("value", [0.0, 1e-11])
@pytest.mark.parametrize("small", [("u", "bias"), NAMES])
def test_gradients_at_zero_are_finite(small, value, regime):
    inputs = leaves((1, 2, 2, 2, 2))
    with torch.no_grad():
        for name in small:
            inputs[name].fill_(value)
    assert all(x.isfinite().all() for x in everything(fused.em, inputs, iterations=2))


def test_an_empty_batch_has_gradients_of_zero(regime):
    v, _, *others = everything(fused.em, leaves((0, 3, 5, 4, 4)))
    assert v.shape == (0, 3, 4)
    assert not any(gradient.any() for gradient in others)


def test_it_repeats_to_the_bit(regime):
    inputs = leaves((2, 3, 4, 2, 3))
    assert all(map(torch.equal, everything(fused.em, inputs), everything(fused.em, inputs)))


def test_torch_knows_the_op(regime):
    u, W, bias, beta_a, beta_u = leaves((1, 2, 3, 2, 2)).values()
    torch.library.opcheck(fused.route, (u, W, bias, beta_a, beta_u, 2, True, False))
    torch.library.opcheck(fused.route, (u, W.detach(), None, None, None, 1, False, False))


def test_a_compiled_graph_holds_it_as_one_op(regime):
    inputs = leaves((1, 3, 4, 2, 3))
    compiled = torch.compile(
        lambda **given: mc.ops.em(**given, backend="fused"), backend="aot_eager", fullgraph=True
    )
    assert all(map(torch.equal, everything(compiled, inputs), everything(fused.em, inputs)))


def test_a_second_derivative_is_refused_and_not_wrong(regime):
    inputs = leaves((1, 2, 3, 2, 2))
    (first,) = torch.autograd.grad(fused.em(**inputs).square().sum(), inputs["u"], create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients; use backend='reference'"):
        first.sum().backward()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda u, W: mc.ops.em(u.double(), W, backend="fused"), "u and W are torch.float64"),
        (lambda u, W: mc.ops.em(u.to("meta"), W.to("meta"), backend="fused"), "u is on meta"),
        (lambda u, W: torch.func.vmap(lambda u: mc.ops.em(u[None], W, backend="fused"))(u), "torch.func"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(change, why):
    u, W = (x.detach() for x in list(leaves((2, 3, 5, 4, 4)).values())[:2])
    with pytest.raises(CannotRun, match=why):
        change(u, W)


def test_it_is_invariant_to_the_order_of_inputs_and_equivariant_to_that_of_outputs(regime):
    u, W, bias, beta_a, beta_u = (x.detach() for x in leaves((2, 4, 5, 3, 3)).values())
    v, i, j = fused.em(u, W, bias, 3, beta_a, beta_u), torch.randperm(5), torch.randperm(4)
    found = fused.em(u[:, i], W[j][:, i], bias[j], 3, beta_a[j], beta_u[j])
    assert (found - v[:, j]).abs().max() < 2e-6
    assert (length(fused.em(10 * u, 10 * W, bias)) < 1).all()


def test_rows_of_the_batch_are_independent(regime):
    inputs = {name: x.detach() for name, x in leaves((3, 3, 4, 2, 3)).items()}
    alone = torch.cat([fused.em(**(inputs | {"u": row})) for row in inputs["u"].split(1)])
    assert torch.equal(fused.em(**inputs), alone)


def test_a_momentum_trunk_takes_it_and_reverses_to_the_bit():
    found = {}
    for backend, memory in (("fused", "reverse"), ("fused", "store"), ("reference", "store")):
        torch.manual_seed(0)
        layers = [CapsLayer(4, 3, 4, 3, "em", weight_std=0.5, backend=backend) for _ in range(3)]
        sequence = mc.MomentumSequence(layers, memory=memory).to(DEVICE)
        x = torch.randn(2, 4, 3).to(DEVICE).requires_grad_()
        y = sequence(x)
        assert sequence.fused(x) is None
        found[backend, memory] = [y, *torch.autograd.grad(y.square().sum(), [x, *sequence.parameters()])]
    reverse, store, reference = found.values()
    assert all(map(torch.equal, reverse, store))
    assert (errors(store, reference) < 3e-5).all()
