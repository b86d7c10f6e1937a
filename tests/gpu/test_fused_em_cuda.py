"""Fused EM routing at full size on a CUDA GPU: right, the same every time, and training goes the same way."""

import pytest
import torch

import mocapsnet as mc
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import order
from mocapsnet.ops.em import batched, fused
from mocapsnet.ops.em.reference import em as reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


# B, J, I, D, E: CapsLayer 1 of CIFAR-10 and MNIST, the trunk, 10 and 100 classes, 64 capsules, odd sizes.
SHAPES = [
    (128, 32, 2048, 8, 8),
    (100, 32, 1152, 8, 8),
    (128, 32, 32, 8, 8),
    (128, 10, 32, 8, 16),
    (128, 100, 32, 8, 16),
    (64, 64, 64, 8, 8),
    (63, 31, 100, 5, 7),
]


def draw(shape):
    B, J, I, D, E = shape  # noqa: E741
    u, W, bias = torch.randn(B, I, D), 0.1 * torch.randn(J, I, E, D), 0.1 * torch.randn(J, E)
    W = order.laid_out(W.cuda(), "em")
    inputs = [tensor.cuda().requires_grad_() for tensor in (u, W, bias, torch.randn(J), torch.randn(J))]
    return inputs, torch.randn(B, J, E).cuda()


def everything(op, inputs, weights):
    u, W, bias, beta_a, beta_u = inputs
    v = op(u, W, bias, 3, beta_a, beta_u)
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
            ours = everything(fused.em, inputs, weights)
            theirs = everything(batched.em if mixed else reference, inputs, weights)
        truth = everything(reference, [x.detach().double().requires_grad_() for x in inputs], weights)
        ratios.append(errors(ours, truth) / (errors(theirs, truth) + 2e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_repeats_to_the_bit(shape):
    inputs, weights = draw(shape)
    one, other = (everything(fused.em, inputs, weights) for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("mixed", [True, False])
def test_votes_never_reach_memory(mixed):
    inputs, weights = draw((128, 32, 2048, 8, 8))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
        everything(fused.em, inputs, weights)
    # The votes alone are 268 MB.
    assert torch.cuda.max_memory_allocated() - before < 150e6


def test_a_reversed_trunk_of_fused_layers_has_the_gradients_of_a_stored_one():
    found = []
    for memory in ("reverse", "store"):
        torch.manual_seed(0)
        layers = [CapsLayer(32, 8, 32, 8, "em", weight_std=0.3, backend="fused") for _ in range(8)]
        sequence = mc.MomentumSequence(layers, memory=memory).cuda()
        x = torch.randn(128, 32, 8).cuda().requires_grad_()
        y = sequence(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *sequence.parameters()])])
    assert all(map(torch.equal, *found))


def test_a_hundred_steps_go_the_same_way_with_either_backend(tmp_path):
    digits, losses = mc.data.load("mnist6k"), {}
    for backend in ("fused", "reference"):
        torch.manual_seed(0)
        options = {"blocks": 1, "capsules": 8, "channels": 32, "routing": "em", "backend": backend}
        model = mc.MoCapsNet((1, 28, 28), 10, **options)
        how = {"epochs": 2, "batch": 100, "limit": 5000, "device": "cuda", "compile": False}
        run = mc.fit(model, digits, **how, output=tmp_path / backend)
        rows = (run.folder / "metrics.csv").read_text().splitlines()[1:]
        losses[backend] = [float(row.split(",")[2]) for row in rows]
    assert losses["fused"] == pytest.approx(losses["reference"], rel=0.03)
