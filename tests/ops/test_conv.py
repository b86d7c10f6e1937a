"""The fused strided convolution against torch's, on a GPU or in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

from mocapsnet.errors import CannotRun
from mocapsnet.ops.conv import fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    for sizes in (fused.TILE, fused.WEIGHTS):
        for name in {"BB", "BM", "BN", "BK"} & {*sizes}:
            monkeypatch.setitem(sizes, name, 16)


@pytest.fixture(params=[132, 5], autouse=True)
def programs(request, monkeypatch):
    """Fewer programs than tiles, so that some are whole; more, so that none is."""
    monkeypatch.setattr(fused, "PROGRAMS", request.param)


@pytest.mark.parametrize(
    "shape",
    [(3, 16, 32, 10, 11, 5, 2), (17, 32, 16, 7, 7, 3, 3), (1, 16, 16, 5, 6, 5, 2), (2, 16, 16, 6, 6, 2, 1)],
    ids=str,
)
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_torchs(shape, biased):
    B, CI, CO, H, W, K, stride = shape
    torch.manual_seed(0)
    x = torch.randn(B, CI, H, W, device=DEVICE, requires_grad=True)
    w = torch.randn(CO, CI, K, K, device=DEVICE, requires_grad=True)
    bias = torch.randn(CO, device=DEVICE, requires_grad=True) if biased else None
    leaves = [x, w, bias] if biased else [x, w]
    ours, theirs = fused.conv(x, w, bias, stride), F.conv2d(x, w, bias, stride)
    weights = torch.randn_like(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    pairs = zip(
        torch.autograd.grad(ours, leaves, weights), torch.autograd.grad(theirs, leaves, weights), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_it_writes_every_number(monkeypatch):
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    x, w = (
        torch.randn(2, 16, 8, 8, device=DEVICE, requires_grad=True),
        torch.randn(16, 16, 3, 3, device=DEVICE),
    )
    # The last row and column are reached by no output.
    (dx,) = torch.autograd.grad(fused.conv(x, w, None, 2).sum(), x)
    assert dx.isfinite().all()
    assert not dx[:, :, -1].any()
    assert not dx[..., -1].any()


def mixed(biased=True):
    """x in float16, as Triton's interpreter has no bfloat16 to trust; w and a bias in float32."""
    x, w = torch.randn(3, 16, 9, 9).half(), torch.randn(32, 16, 3, 3)
    given = [x, w, torch.randn(32)] if biased else [x, w]
    return [leaf.to(DEVICE).requires_grad_() for leaf in given]


def everything(op, leaves):
    """y and all gradients."""
    y = op(*leaves, *[None] * (3 - len(leaves)), 2)
    weights = torch.linspace(-1, 2, y.numel()).half().view(y.shape).to(y)
    return [y, *torch.autograd.grad(y, leaves, weights)]


@pytest.mark.parametrize("biased", [True, False])
def test_weights_are_rounded_to_what_x_is_and_their_gradients_are_not(biased):
    leaves = mixed(biased)
    found = everything(fused.conv, leaves)
    assert [part.dtype for part in found] == [torch.float16, *(leaf.dtype for leaf in leaves)]
    x, w, *bias = (leaf.detach() for leaf in leaves)
    truth = everything(F.conv2d, [leaf.double().requires_grad_() for leaf in (x, w.half(), *bias)])
    for one, other in zip(found, truth, strict=True):
        assert (one - other).norm() < (1e-6 if one.dtype == torch.float32 else 1e-3) * other.norm()


def test_a_compiled_graph_holds_it_as_one_op():
    leaves = mixed()
    compiled = torch.compile(fused.conv, backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, everything(compiled, leaves), everything(fused.conv, leaves)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_torch_knows_the_op(dtype):
    x, w = torch.randn(2, 16, 5, 5, device=DEVICE, dtype=dtype), torch.randn(16, 16, 3, 3, device=DEVICE)
    inputs = (x.requires_grad_(), w.requires_grad_(), torch.randn(16, device=DEVICE), 2)
    torch.library.opcheck(fused.conv_forward, inputs)
    y, copy = (out.detach() for out in fused.conv_forward(*inputs))
    torch.library.opcheck(fused.conv_weights, (torch.randn_like(y), x.detach(), copy, 2, torch.float32))


@pytest.mark.parametrize("of", ["x", "w"])
def test_a_second_derivative_is_refused_in_words(of):
    leaves = {"x": torch.randn(2, 16, 6, 6, device=DEVICE), "w": torch.randn(16, 16, 3, 3, device=DEVICE)}
    y = fused.conv(*(leaf.requires_grad_() for leaf in leaves.values()), None, 2).square().sum()
    (first,) = torch.autograd.grad(y, leaves[of], create_graph=True)
    with pytest.raises(CannotRun, match="a fused convolution have no gradients; compute in float32"):
        first.sum().backward()
