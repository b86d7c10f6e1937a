"""The fused scaled-distance agreement against its reference, interpreted on a CPU or compiled on a GPU."""

import pytest
import torch

import mocapsnet as mc
from mocapsnet.errors import CannotRun
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import order
from mocapsnet.ops.sda import fused
from mocapsnet.ops.sda.reference import sda as reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=["image", "tile"])
def regime(request, monkeypatch):
    """A program for an image, or programs for tiles of images and input capsules."""
    if request.param == "tile":
        monkeypatch.setattr(order, "IMAGE_VOTES", 0)
    # Few programs, so that each has several images and input capsules, and yet there are several.
    monkeypatch.setattr(fused, "PROGRAMS", 2)
    monkeypatch.setattr(fused, "WARPS", 1)
    return request.param


@pytest.fixture
def poisoned():
    """Every new buffer is full of NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def leaves(shape, biased=True, scale=0.5):
    B, J, I, D, E = shape  # noqa: E741
    tensors = [torch.randn(B, I, D), scale * torch.randn(J, I, E, D), 0.3 * torch.randn(J, E)]
    return [tensor.to(DEVICE).requires_grad_() for tensor in tensors[: 3 if biased else 2]]


def everything(op, inputs, **options):
    """v and all gradients."""
    v = op(*inputs, **options)
    v = v[0] if isinstance(v, tuple) else v
    weights = torch.linspace(-1, 2, v.numel(), dtype=torch.float64).view_as(v).to(v)
    return [v, *torch.autograd.grad((weights * v).sum(), inputs)]


def exactly(inputs, **options):
    """The same from the reference in float64."""
    return everything(reference, [x.detach().double().requires_grad_() for x in inputs], **options)


def errors(found, truth):
    return torch.stack([(x - y).norm() / (1e-30 + y.norm()) for x, y in zip(found, truth, strict=True)])


# B, J, I, D, E: one of everything; one image; one parent; one child; more images than in a program; long u.
@pytest.mark.parametrize(
    ("shape", "iterations", "gradient"),
    [
        ((1, 1, 1, 1, 1), 3, "all"),
        ((1, 4, 5, 3, 4), 5, "all"),
        ((3, 1, 5, 2, 3), 3, "all"),
        ((2, 5, 1, 3, 2), 2, "all"),
        ((5, 3, 7, 4, 5), 1, "all"),
        ((9, 3, 5, 2, 3), 4, "all"),
        ((2, 2, 3, 17, 2), 3, "all"),
        ((2, 3, 5, 3, 7), 3, "last"),
        ((2, 10, 5, 1, 4), 1, "last"),
    ],
    ids=str,
)
def test_values_and_gradients_are_the_references(shape, iterations, gradient, regime, poisoned):
    inputs = leaves(shape, biased=iterations != 2)
    options = {"iterations": iterations, "gradient": gradient}
    found = everything(fused.sda, inputs, **options)
    assert {x.dtype for x in found} == {torch.float32}
    assert (errors(found, exactly(inputs, **options)) < 3e-6).all()


def test_a_thread_that_holds_less_of_the_weights_computes_the_same(regime, monkeypatch, poisoned):
    inputs = leaves((2, 3, 4, 2, 7))
    whole = everything(fused.sda, inputs)
    monkeypatch.setattr(fused, "HELD", 20)
    assert all(map(torch.equal, everything(fused.sda, inputs), whole))


# No vote is longer than its capsule and cut, some are, nearly all are.
@pytest.mark.parametrize(("scale", "least", "most"), [(0.05, 0, 0), (0.5, 0.1, 0.9), (5.0, 0.9, 1)])
def test_the_error_is_at_most_twice_the_references(scale, least, most, regime, poisoned):
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = leaves((2, 4, 5, 3, 3), scale=scale)
        votes = torch.einsum("jied,bid->bjie", inputs[1], inputs[0])
        cut = (votes.norm(dim=-1) > inputs[0].norm(dim=-1)[:, None]).float().mean()
        assert least <= cut <= most
        truth = exactly(inputs)
        ours, theirs = (errors(everything(op, inputs), truth) for op in (fused.sda, reference))
        ratios.append(ours / (theirs + 1e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


def test_the_error_of_votes_that_are_nearly_all_cut_is_at_most_twice_the_references(regime):
    """A cut vote does not grow with its capsule: little but rounding is left of ∂u where D is small."""
    ratios = []
    for seed in range(5):
        torch.manual_seed(seed)
        inputs = leaves((3, 10, 4, 2, 8), biased=False, scale=1)
        truth = exactly(inputs)
        ours, theirs = (errors(everything(op, inputs), truth) for op in (fused.sda, reference))
        ratios.append(ours / theirs)
    assert (torch.stack(ratios).median(0).values <= 2).all()


def test_the_error_of_the_shortest_votes_is_at_most_twice_the_references(regime):
    """Their distances are the epsilon's: those that are stored must be those that the way back forms anew."""
    ratios = []
    for seed in range(7):
        torch.manual_seed(seed)
        inputs = leaves((3, 4, 6, 5, 7), biased=False, scale=0.3)
        with torch.no_grad():
            inputs[0] *= 1e-15
        truth = exactly(inputs)
        ours, theirs = (errors(everything(op, inputs), truth) for op in (fused.sda, reference))
        ratios.append(ours / theirs)
    assert (torch.stack(ratios).median(0).values <= 2).all()


def test_the_order_of_inputs_in_memory_changes_nothing(regime):
    u, W, bias = leaves((3, 4, 5, 2, 3))
    found = everything(fused.sda, [u, W, bias])
    turned = order.laid_out(W.detach()).requires_grad_()
    holes = torch.stack([W.detach(), W.detach()], -1)[..., 0].requires_grad_()
    apart = u.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0).requires_grad_()
    across = bias.detach().T.contiguous().T.requires_grad_()
    for inputs in ([u, turned, bias], [apart, holes, across]):
        assert all(map(torch.equal, everything(fused.sda, inputs), found))


def test_weights_that_are_laid_out_for_it_are_read_where_they_lie(regime):
    W = order.laid_out(torch.randn(4, 5, 3, 2))
    assert fused.matrices(W).data_ptr() == W.data_ptr()
    assert fused.gradients(torch.empty(2, 5, 2), W)[1].stride() == W.stride()


@pytest.mark.parametrize(
    ("shape", "gradient"),
    [
        ((9, 3, 7, 8, 8), "all"),
        ((8, 18, 3, 16, 3), "all"),
        ((3, 4, 5, 5, 8), "last"),
        ((17, 5, 4, 20, 3), "all"),
        ((2, 3, 1, 1, 1), "all"),
    ],
    ids=str,
)
def test_an_arranged_w_gives_what_another_gives(shape, gradient, monkeypatch, poisoned):
    monkeypatch.setattr(order, "IMAGE_VOTES", 0)
    monkeypatch.setattr(fused, "PROGRAMS", 2)
    monkeypatch.setattr(fused, "WARPS", 1)
    inputs = leaves(shape)
    found = []
    for dtypes in (set(), {torch.float32}):
        monkeypatch.setattr(fused, "ARRANGED", dtypes)
        found.append(everything(fused.sda, inputs, gradient=gradient))
    assert (errors(*found) < 1e-6).all()


@pytest.mark.parametrize(
    ("small", "value"),
    [("u", 0.0), ("W", 0.0), ("bias", 1e-25), ("u W bias", 0.0), ("u W bias", 1e-11), ("one", 1e-25)],
)
def test_output_and_gradients_are_finite_at_zero_length(small, value, regime):
    u, W, bias = leaves((2, 3, 3, 2, 2))
    with torch.no_grad():
        for name, tensor in (("u", u), ("W", W), ("bias", bias), ("one", u[0])):
            if name in small.split():
                tensor.fill_(value)
    assert all(x.isfinite().all() for x in everything(fused.sda, [u, W, bias]))


def test_an_empty_batch_has_gradients_of_zero(regime):
    v, du, dW, dbias = everything(fused.sda, leaves((0, 3, 5, 4, 4)))
    assert v.shape == (0, 3, 4)
    assert du.shape == (0, 5, 4)
    assert not dW.any()
    assert not dbias.any()


def test_it_repeats_to_the_bit_and_images_do_not_depend_on_each_other(regime):
    u, W, bias = leaves((3, 4, 5, 2, 3))
    one, again = (everything(fused.sda, [u, W, bias]) for _ in range(2))
    assert all(map(torch.equal, one, again))
    if regime == "image":
        assert torch.equal(fused.sda(u[1:2], W, bias), one[0][1:2])


def test_the_order_of_capsules_does_not_matter(regime):
    u, W, bias = leaves((2, 4, 5, 3, 4))
    i, j = torch.randperm(5), torch.randperm(4)
    v = fused.sda(u, W, bias)
    assert torch.allclose(fused.sda(u[:, i], W[:, i], bias), v, atol=1e-6)
    assert torch.allclose(fused.sda(u, W[j], bias[j]), v[:, j], atol=1e-6)


def test_low_precision_comes_in_and_goes_out(regime):
    inputs = [x.detach().bfloat16().requires_grad_() for x in leaves((2, 3, 4, 3, 4))]
    found = everything(fused.sda, inputs)
    assert {x.dtype for x in found} == {torch.bfloat16}
    assert (errors([x.double() for x in found], exactly(inputs)) < 2e-2).all()


def test_torch_knows_the_op(regime):
    u, W, bias = leaves((2, 3, 3, 2, 2))
    torch.library.opcheck(fused.route, (u, W, bias, 2, True, False))
    torch.library.opcheck(fused.route, (u, order.laid_out(W.detach()), None, 1, False, False))


def test_a_compiled_graph_holds_it_as_one_op(regime):
    inputs = leaves((2, 3, 3, 2, 2))
    compiled = torch.compile(
        lambda u, W, bias: mc.ops.sda(u, W, bias, backend="fused"), backend="aot_eager", fullgraph=True
    )
    assert all(map(torch.equal, everything(compiled, inputs), everything(fused.sda, inputs)))


def test_a_second_derivative_is_refused_and_not_wrong(regime):
    inputs = leaves((2, 3, 3, 2, 2))
    (first,) = torch.autograd.grad(fused.sda(*inputs).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients; use backend='reference'"):
        first.sum().backward()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda u, W: mc.ops.sda(u, W, scope="batch", backend="fused"),
            "scope must be 'sample', got 'batch'",
        ),
        (lambda u, W: mc.ops.sda(u.double(), W, backend="fused"), "u and W are torch.float64"),
        (lambda u, W: mc.ops.sda(u.to("meta"), W.to("meta"), backend="fused"), "u is on meta"),
        (lambda u, W: torch.func.vmap(lambda u: mc.ops.sda(u[None], W, backend="fused"))(u), "torch.func"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(change, why):
    u, W, _ = (x.detach() for x in leaves((2, 3, 5, 4, 4)))
    with pytest.raises(CannotRun, match=why):
        change(u, W)


def test_a_trunk_of_fused_layers_has_the_references_gradients_in_every_memory():
    found = {}
    for backend, memory in (
        ("reference", "store"),
        ("fused", "store"),
        ("fused", "checkpoint"),
        ("fused", "reverse"),
    ):
        torch.manual_seed(0)
        layers = [CapsLayer(3, 2, 3, 2, "sda", weight_std=0.5, backend=backend) for _ in range(3)]
        sequence = mc.MomentumSequence(layers, memory=memory).to(DEVICE)
        x = torch.randn(2, 3, 2, device=DEVICE, requires_grad=True)
        assert sequence.fused(x) is None
        y = sequence(x)
        found[backend, memory] = [y, *torch.autograd.grad(y.square().sum(), [x, *sequence.parameters()])]
    truth, stored, *again = found.values()
    assert (errors(stored, truth) < 3e-5).all()
    assert all(torch.equal(one, other) for result in again for one, other in zip(result, stored, strict=True))


def test_gradients_of_huge_capsules_are_right():
    inputs = leaves((2, 3, 4, 3, 5))
    with torch.no_grad():
        inputs[0] *= 1e8
    assert (errors(everything(fused.sda, inputs), exactly(inputs)) < 1e-5).all()
