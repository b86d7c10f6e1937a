"""The fused convolution on a CUDA GPU, at the size of the primary capsules."""

import pytest
import torch
import torch.nn.functional as F

import mocapsnet as mc

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def everything(op, x, w, bias, weights):
    y = op(x, w, bias, 2)
    return [y.detach(), *torch.autograd.grad(y, (x, w, bias), weights.to(y.dtype))]


@pytest.mark.parametrize(("B", "size"), [(128, 24), (70, 20)])
def test_the_error_is_at_most_twice_cudnns(B, size):
    from mocapsnet.ops.conv import fused

    torch.manual_seed(0)
    x, w = torch.randn(B, 256, size, size).cuda(), torch.randn(256, 256, 9, 9).cuda() / 144
    bias, weights = torch.randn(256).cuda(), torch.randn(B, 256, (size - 7) // 2, (size - 7) // 2).cuda()
    half = [t.bfloat16().requires_grad_() for t in (x, w, bias)]
    whole = [t.detach().float().requires_grad_() for t in half]
    ours, again = (everything(fused.conv, half[0], *whole[1:], weights) for _ in range(2))
    theirs = everything(F.conv2d, *half, weights)
    with torch.backends.cudnn.flags(allow_tf32=False):
        truth = everything(F.conv2d, *whole, weights.bfloat16())
    for one, other, same, right in zip(ours, theirs, again, truth, strict=True):
        assert torch.equal(one, same)
        assert (one - right).norm() <= 2 * (other - right).norm() + 1e-6 * right.norm()
    # Gradients of what is float32 are not rounded: bfloat16 is 2e-3 off.
    for one, right in zip(ours[2:], truth[2:], strict=True):
        assert one.dtype == torch.float32
        assert (one - right).norm() <= 1e-4 * right.norm()


def test_primary_capsules_take_it_under_autocast_alone(monkeypatch):
    from mocapsnet.ops.conv import fused

    taken, conv = [], fused.conv
    monkeypatch.setattr(fused, "conv", lambda *a: taken.append(len(a[0])) or conv(*a))
    model = mc.CapsNet((3, 32, 32), 10).cuda()
    for images, mixed in ((64, True), (64, False), (8, True)):
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed), torch.no_grad():
            model.lengths(torch.randn(images, 3, 32, 32).cuda())
    assert taken == [64]


@pytest.mark.parametrize(("B", "C", "size"), [(128, 3, 32), (70, 1, 28)])
def test_the_stems_error_is_at_most_twice_cudnns(B, C, size):
    from mocapsnet.ops.stem import fused

    torch.manual_seed(0)
    images, leaves = torch.randn(B, C, size, size).cuda(), [torch.randn(256, C, 9, 9) / 9, torch.randn(256)]
    leaves = [leaf.cuda().requires_grad_() for leaf in leaves]
    weights = torch.randn(B, 256, size - 8, size - 8).cuda()

    def everything(x):
        return [x.detach().double(), *torch.autograd.grad(x, leaves, weights.to(x.dtype))]

    half = torch.bfloat16
    ours, again = (everything(fused.stem(images, *leaves, half)) for _ in range(2))
    theirs = everything(F.conv2d(images.to(half), *(leaf.to(half) for leaf in leaves)).relu())
    truth = everything(F.conv2d(images.double(), *(leaf.double() for leaf in leaves)).relu())
    for one, other, same, right in zip(ours, theirs, again, truth, strict=True):
        assert torch.equal(one, same)
        assert (one - right).norm() <= 2 * (other - right).norm() + 1e-6 * right.norm()
