"""Fused scaled-distance agreement at full size on a CUDA GPU: right, the same every time, and it trains."""

import pytest
import torch

import mocapsnet as mc
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import order
from mocapsnet.ops.sda import batched, fused
from mocapsnet.ops.sda.reference import sda as reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


# B, J, I, D, E: CapsLayer 1 of CIFAR-10 and MNIST, a layer of the trunk, 10 and 100 classes, odd sizes.
SHAPES = [
    (128, 32, 2048, 8, 8),
    (100, 32, 1152, 8, 8),
    (128, 32, 32, 8, 8),
    (128, 10, 32, 8, 16),
    (64, 100, 32, 8, 16),
    (63, 31, 100, 5, 7),
]


def draw(shape):
    B, J, I, D, E = shape  # noqa: E741
    u, W, bias = torch.randn(B, I, D), 0.1 * torch.randn(J, I, E, D), 0.1 * torch.randn(J, E)
    W = order.laid_out(W.cuda(), "sda")
    return [tensor.cuda().requires_grad_() for tensor in (u, W, bias)], torch.randn(B, J, E).cuda()


def everything(op, inputs, weights):
    v = op(*inputs)
    v = v[0] if isinstance(v, tuple) else v
    return [v.detach(), *torch.autograd.grad(v, inputs, weights.to(v.dtype))]


def errors(found, truth):
    return torch.stack([((x - y).norm() / y.norm()).float() for x, y in zip(found, truth, strict=True)])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mixed", [True, False])
def test_the_error_is_at_most_twice_that_of_the_same_precision(shape, mixed):
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        inputs, weights = draw(shape)
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            ours = everything(fused.sda, inputs, weights)
            theirs = everything(batched.sda if mixed else reference, inputs, weights)
        truth = everything(reference, [x.detach().double().requires_grad_() for x in inputs], weights)
        ratios.append(errors(ours, truth) / (errors(theirs, truth) + 2e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_repeats_to_the_bit(shape):
    inputs, weights = draw(shape)
    one, other = (everything(fused.sda, inputs, weights) for _ in range(2))
    assert all(map(torch.equal, one, other))


def test_a_reversed_trunk_equals_a_stored_one_to_the_bit():
    found = {}
    for memory in ("reverse", "store"):
        torch.manual_seed(0)
        layers = [CapsLayer(32, 8, 32, 8, "sda", weight_std=0.3, backend="fused") for _ in range(16)]
        sequence = mc.MomentumSequence(layers, memory=memory).cuda()
        x = torch.randn(128, 32, 8).cuda().requires_grad_()
        y = sequence(x)
        found[memory] = [y, *torch.autograd.grad(y.square().sum(), [x, *sequence.parameters()])]
    assert all(map(torch.equal, found["reverse"], found["store"]))


def losses_of(backend, precision, folder):
    torch.manual_seed(0)
    options = {"blocks": 2, "capsules": 8, "channels": 32, "routing": "sda", "backend": backend}
    how = {"epochs": 4, "batch": 100, "limit": 5000, "device": "cuda", "compile": False}
    model, output = mc.MoCapsNet((1, 28, 28), 10, **options), folder / backend / precision
    run = mc.fit(model, mc.data.load("mnist6k"), **how, precision=precision, output=output)
    rows = (run.folder / "metrics.csv").read_text().splitlines()[1:]
    return torch.tensor([float(row.split(",")[2]) for row in rows])


def test_two_hundred_steps_go_the_same_way_with_either_backend(tmp_path):
    truth = losses_of("reference", "fp32", tmp_path)
    assert losses_of("fused", "fp32", tmp_path).tolist() == pytest.approx(truth.tolist(), rel=0.03)
    ours, theirs = (losses_of(backend, "bf16-mixed", tmp_path) for backend in ("fused", "reference"))
    assert (ours - truth).norm() <= 2 * (theirs - truth).norm() + 0.01 * truth.norm()
    assert ours[-1] < ours[0] / 2
