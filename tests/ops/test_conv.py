"""The fused strided convolution against torch's, on a GPU or in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

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


def test_torch_knows_the_op():
    x, w = torch.randn(2, 16, 5, 5, device=DEVICE), torch.randn(16, 16, 3, 3, device=DEVICE)
    inputs = (x.requires_grad_(), w.requires_grad_(), torch.randn(16, device=DEVICE), 2)
    torch.library.opcheck(fused.conv, inputs)
