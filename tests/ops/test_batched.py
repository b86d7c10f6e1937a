"""The batched routings against their references: values, gradients, precisions, transforms."""

from itertools import product

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap
from torch.testing import assert_close

from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import order
from mocapsnet.ops.em import batched as em
from mocapsnet.ops.em.reference import em as em_reference
from mocapsnet.ops.rba import batched as rba
from mocapsnet.ops.rba.reference import rba as rba_reference
from mocapsnet.ops.sda import batched as sda
from mocapsnet.ops.sda.reference import sda as sda_reference

OPS = {
    "rba": (rba.rba, rba_reference, {}),
    "leaky-rba": (rba.rba, rba_reference, {"leaky": True}),
    "sda-sample": (sda.sda, sda_reference, {"scope": "sample"}),
    "sda-batch": (sda.sda, sda_reference, {"scope": "batch"}),
    "em": (em.em, em_reference, {}),
}
# B, J, I, D, E
SHAPES = [
    (1, 1, 1, 1, 1),
    (3, 3, 5, 3, 8),
    (1, 32, 63, 8, 16),
    (3, 1, 100, 3, 1),
    (3, 32, 300, 1, 3),
    (3, 3, 300, 16, 8),
]


@pytest.fixture(params=OPS)
def pair(request):
    """The batched op and its reference, their options bound."""
    batched, reference, options = OPS[request.param]
    return [lambda *args, op=op, **more: op(*args, **options, **more) for op in (batched, reference)]


@pytest.fixture(params=[None, 2**12], ids=["whole", "tiled"])
def tiles(request, monkeypatch):
    """Votes formed at once, or in tiles of few kilobytes."""
    if request.param:
        monkeypatch.setattr(order, "CPU_BYTES", request.param)


def leaves(shape=(3, 3, 63, 3, 8), biased=True, dtype=torch.float64):
    B, J, I, D, E = shape  # noqa: E741
    tensors = [torch.randn(B, I, D), torch.randn(J, I, E, D), 0.3 * torch.randn(J, E)]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors[: 3 if biased else 2]]


def everything(op, inputs, **options):
    """v, c and all gradients."""
    v, c = op(*inputs, **options)
    weights = torch.linspace(-1, 2, v.numel(), dtype=torch.float64).view_as(v).to(v.dtype)
    return [v, c, *torch.autograd.grad((weights * v).sum(), inputs)]


def close(found, expected, rtol=1e-10, atol=1e-10):
    assert_close(tuple(found), tuple(expected), rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_values_and_gradients_are_the_references(pair, gradient, shape, iterations, tiles):
    for biased in (True, False):
        inputs = leaves(shape, biased)
        found, expected = (everything(op, inputs, iterations=iterations, gradient=gradient) for op in pair)
        close(found, expected)


# The median of nine draws: where a coupling is nearly a choice, one draw's ratio is luck.
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_float32_the_error_is_at_most_twice_the_references(pair, gradient, shape, tiles):
    ratios = []
    for seed in range(9):
        torch.manual_seed(seed)
        inputs = leaves(shape, dtype=torch.float32)
        exact = everything(pair[1], [x.detach().double().requires_grad_() for x in inputs], gradient=gradient)
        found, expected = (everything(op, inputs, gradient=gradient) for op in pair)
        assert {part.dtype for part in found} == {torch.float32}
        errors = [[(x - y).norm() for x, y in zip(parts, exact, strict=True)] for parts in (found, expected)]
        floor = torch.stack([1e-7 * (1 + truth.norm()) for truth in exact])
        ratios.append(torch.stack(errors[0]) / (torch.stack(errors[1]) + floor))
    assert (torch.stack(ratios).median(0).values <= 2).all()


def test_the_error_of_many_wide_capsules_is_at_most_twice_the_references():
    """Their first sum is dense matmuls, which add up no more products than some CPUs round well."""
    ratios = []
    for seed in range(9):
        torch.manual_seed(seed)
        inputs = [
            scale * x.detach() for scale, x in zip((3, 0.5, 1), leaves((1, 10, 257, 32, 16)), strict=True)
        ]
        exact = everything(rba_reference, [x.requires_grad_() for x in inputs], iterations=5)
        inputs = [x.detach().float().requires_grad_() for x in inputs]
        found, expected = (
            [(x - y).norm() for x, y in zip(everything(op, inputs, iterations=5), exact, strict=True)]
            for op in (rba.rba, rba_reference)
        )
        ratios.append(torch.stack(found) / torch.stack(expected))
    assert (torch.stack(ratios).median(0).values <= 2).all()


@pytest.mark.parametrize("zero", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_gradients_at_zero_are_finite_and_the_references(pair, gradient, zero, tiles):
    inputs = leaves()
    with torch.no_grad():
        for n in zero:
            inputs[n].zero_()
    found, expected = (everything(op, inputs, gradient=gradient) for op in pair)
    assert all(part.isfinite().all() for part in found)
    # Where EM's means have no direction, both gradients are rounding noise times 1e8.
    close(found[:1], expected[:1])


def test_second_derivatives_are_the_references(pair, gradient, tiles):
    inputs, found = leaves((2, 3, 5, 3, 4)), []
    for op in pair:
        first = torch.autograd.grad(
            op(*inputs, gradient=gradient)[0].square().sum(), inputs, create_graph=True
        )
        found.append(torch.autograd.grad(sum(part.square().sum() for part in first), inputs))
    close(*found, rtol=1e-8)


@pytest.mark.parametrize("needed", [False, True])
def test_one_compiled_graph_holds_rba_with_and_without_gradients(needed):
    inputs = [x.detach().requires_grad_(needed) for x in leaves((2, 3, 5, 3, 4))]
    compiled = torch.compile(lambda *inputs: rba.rba(*inputs)[0], backend="aot_eager", fullgraph=True)
    close([compiled(*inputs)], [rba.rba(*inputs)[0]])


TRANSFORMS = {
    "grad": lambda f, u, W: grad(lambda u, W: f(u, W).square().sum(), (0, 1))(u, W),
    "vmap": lambda f, u, W: vmap(f, (0, None))(u.unsqueeze(1), W),
    "vmap of grad": lambda f, u, W: vmap(grad(lambda W, u: f(u, W).square().sum()), (None, 0))(W, u[:, None]),
    "jvp": lambda f, u, W: jvp(f, (u, W), (W.sum((0, 2)).expand_as(u), W)),
    "frozen W": lambda f, u, W: torch.autograd.grad(f(u.requires_grad_(), W).square().sum(), u),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_give_what_they_give_of_the_reference(pair, gradient, transform, tiles):
    u, W = (tensor.detach() for tensor in leaves((3, 3, 5, 3, 4), biased=False))
    found = []
    for op in pair:
        found.append(TRANSFORMS[transform](lambda u, W, op=op: op(u, W, gradient=gradient)[0], u, W))
    close(*found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast_only_the_votes_are_of_low_precision(pair, gradient, dtype, tiles):
    inputs = leaves((3, 32, 63, 8, 8), dtype=torch.float32)
    expected = everything(pair[1], inputs, gradient=gradient)
    with torch.autocast("cpu", dtype):
        v, c = pair[0](*inputs, gradient=gradient)
        low = pair[0](inputs[0].to(dtype), *inputs[1:], gradient=gradient)[0]
    assert v.dtype == c.dtype == low.dtype == torch.float32
    weights = torch.linspace(-1, 2, v.numel()).view_as(v)
    for one, other in zip(
        [v, *torch.autograd.grad((weights * v).sum(), inputs)], [expected[0], *expected[2:]], strict=True
    ):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 0.05 * other.norm()


def test_the_same_input_gives_the_same_bits(pair, gradient, tiles):
    inputs = leaves((3, 32, 300, 8, 8), dtype=torch.float32)
    first, again = (everything(pair[0], inputs, gradient=gradient) for _ in range(2))
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_it_compiles_whole(pair, gradient, autocast, tiles):
    inputs = leaves((3, 3, 20, 3, 8), dtype=torch.float32)

    def run(op):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            v = op(*inputs, gradient=gradient)[0]
        return [v, *torch.autograd.grad(v.square().sum(), inputs)]

    torch._dynamo.reset()
    expected = run(pair[0])
    found = run(torch.compile(pair[0], fullgraph=True, backend="aot_eager"))
    close(found, expected, rtol=1e-2 if autocast else 1e-5, atol=1e-2 if autocast else 1e-5)


def test_votes_are_not_kept_for_backward():
    u, W, bias = leaves((3, 32, 300, 8, 8), dtype=torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        rba.rba(u, W, bias)
    assert max(kept) == W.numel()
    assert sum(kept) < u.numel() + W.numel() + 3 * 32 * 300 + 20 * 3 * 32 * 8


def test_a_layer_is_its_own_reference(routing, gradient):
    layer = CapsLayer(6, 3, 4, 5, routing, weight_std=0.7, gradient=gradient).double()
    plain = CapsLayer(6, 3, 4, 5, routing, gradient=gradient, backend="reference").double()
    u = torch.randn(2, 6, 3).double()
    close([layer(u)], [functional_call(plain, dict(layer.named_parameters()), (u,))])


def test_tiles_follow_the_size_of_the_votes():
    u, X = torch.empty(32, 2048, 8), torch.empty(2048, 8, 256)
    for dtype, size in product([torch.float32, torch.bfloat16], [32, 512]):
        assert (
            order.tile(u[:1].expand(size, -1, -1), X, dtype) * size * 256 * dtype.itemsize == order.CPU_BYTES
        )
    assert order.tile(u.to("meta"), X.to("meta"), torch.float32) >= 2048
