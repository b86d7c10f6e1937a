"""The fused stem against torch's convolution and ReLU, on a GPU or in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

from mocapsnet.errors import CannotRun
from mocapsnet.ops import backend
from mocapsnet.ops.conv import fused as conv
from mocapsnet.ops.stem import fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for sizes in (*fused.FORTH, fused.BACK):
        for size in ("BM", "BN"):
            monkeypatch.setitem(sizes, size, 16)
    monkeypatch.setattr(fused, "PROGRAMS", 3)


@pytest.mark.parametrize(
    "shape",
    [
        (3, 1, 16, 9, 10, 5),
        (5, 3, 32, 8, 7, 3),
        (2, 1, 16, 10, 12, 5),
        (1, 3, 64, 12, 12, 9),
        (2, 2, 32, 8, 9, 7),
    ],
    ids=str,
)
@pytest.mark.parametrize("last", [True, False])
def test_the_stem_is_relu_of_torchs_convolution(shape, last):
    B, C, CO, H, W, K = shape
    torch.manual_seed(0)
    images = torch.randn(B, C, H, W, device=DEVICE)
    images = images.contiguous(memory_format=torch.channels_last) if last else images
    leaves = [
        torch.randn(CO, C, K, K, device=DEVICE, requires_grad=True),
        torch.randn(CO, device=DEVICE, requires_grad=True),
    ]
    ours, theirs = fused.stem(images, *leaves, torch.float32), F.conv2d(images, *leaves).relu()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    weights = torch.randn_like(theirs)
    pairs = zip(
        torch.autograd.grad(ours, leaves, weights), torch.autograd.grad(theirs, leaves, weights), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_compiled_graph_holds_it_whole():
    images, w = torch.randn(2, 3, 6, 6, device=DEVICE), torch.randn(16, 3, 3, 3, device=DEVICE)
    w = w.contiguous(memory_format=torch.channels_last)
    leaves = [leaf.requires_grad_() for leaf in (w, torch.randn(16, device=DEVICE))]
    compiled = torch.compile(fused.stem, backend="aot_eager", fullgraph=True)
    found, expected = (
        [x, *torch.autograd.grad(x.square().sum(), leaves)]
        for x in (op(images, *leaves, torch.float32) for op in (compiled, fused.stem))
    )
    assert all(map(torch.equal, found, expected))
    # As w lies in memory: whoever adds it up copies nothing.
    assert found[1].stride() == expected[1].stride() == w.stride()


def test_torch_knows_the_stem():
    images, w = torch.randn(2, 1, 6, 6, device=DEVICE), torch.randn(16, 1, 3, 3, device=DEVICE)
    bias = torch.randn(16, device=DEVICE)
    rows, matrix = fused.rows_of(images, w, torch.float32), fused.matrix(w, bias, torch.float32)
    inputs = w.requires_grad_(), bias.requires_grad_(), rows, matrix
    torch.library.opcheck(fused.stem_forward, inputs)
    x = fused.stem_forward(*inputs).detach()
    torch.library.opcheck(fused.stem_backward, (torch.randn_like(x), rows, x, w.detach()))


def test_the_programs_are_taken_where_they_are_made_for_it():
    images, w, half = torch.randn(2, 3, 12, 12), torch.randn(64, 3, 5, 5), torch.bfloat16
    assert backend.stem(images, w, half) is fused
    others = [(images, w, torch.float16), (images, w[:50], half), (images[:0], w, half)]
    others += [(images[:1].expand(2**23, 3, 12, 12), w, half)]
    others += [(images.clone().requires_grad_(), w, half), (images, torch.randn(256, 3, 11, 11), half)]
    assert [backend.stem(*other) for other in others] == [None] * len(others)


def test_a_transform_sees_a_convolution_of_torch():
    images, w = torch.randn(2, 3, 12, 12), torch.randn(64, 3, 5, 5)
    x, seen = torch.randn(64, 256, 9, 9, dtype=torch.bfloat16), []

    def look(w):
        seen.append((backend.stem(images, w, torch.bfloat16), backend.convolution(x, 256)))
        return w.sum()

    look(w)
    torch.func.grad(look)(w)
    with torch.autograd.forward_ad.dual_level():
        look(w)
    assert seen == [(fused, conv), (None, None), (None, None)]


def test_what_is_not_a_number_stays_so():
    images, w = torch.randn(2, 1, 6, 6, device=DEVICE), torch.randn(16, 1, 3, 3, device=DEVICE)
    images[1, 0, 2, 3] = torch.nan
    w, bias = w.requires_grad_(), torch.randn(16, device=DEVICE)
    ours, theirs = fused.stem(images, w, bias, torch.float32), F.conv2d(images, w, bias).relu()
    assert theirs.isnan().any()
    assert torch.equal(ours.isnan(), theirs.isnan())
    (dw,) = torch.autograd.grad(ours, w, torch.ones_like(ours))
    assert dw.isnan().all()


def test_a_second_derivative_is_refused_in_words():
    images, w = torch.randn(2, 1, 6, 6, device=DEVICE), torch.randn(16, 1, 3, 3, device=DEVICE)
    x = fused.stem(images, w.requires_grad_(), torch.randn(16, device=DEVICE), torch.float32).square().sum()
    (first,) = torch.autograd.grad(x, w, create_graph=True)
    with pytest.raises(CannotRun, match="a fused convolution have no gradients; compute in float32"):
        first.sum().backward()
