"""Fused routing at full size on a CUDA GPU: right, the same every time, and training goes the same way."""

import pytest
import torch

import mocapsnet as mc
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import order
from mocapsnet.ops.rba import batched, fused
from mocapsnet.ops.rba.reference import rba as reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
# B, J, I, D, E: CapsLayer 1 of CIFAR-10 and MNIST, a layer of the trunk, the classes, 64 capsules, odd sizes.
SHAPES = [
    (128, 32, 2048, 8, 8),
    (100, 32, 1152, 8, 8),
    (128, 32, 32, 8, 8),
    (128, 10, 32, 8, 16),
    (64, 64, 64, 8, 8),
    (63, 31, 100, 5, 7),
]


def draw(shape):
    B, J, I, D, E = shape  # noqa: E741
    u, W, bias = torch.randn(B, I, D), 0.1 * torch.randn(J, I, E, D), 0.1 * torch.randn(J, E)
    W = order.laid_out(W.cuda(), "rba")
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
            ours = everything(fused.rba, inputs, weights)
            theirs = everything(batched.rba if mixed else reference, inputs, weights)
        truth = everything(reference, [x.detach().double().requires_grad_() for x in inputs], weights)
        ratios.append(errors(ours, truth) / (errors(theirs, truth) + 2e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_repeats_to_the_bit(shape):
    inputs, weights = draw(shape)
    one, other = (everything(fused.rba, inputs, weights) for _ in range(2))
    assert all(map(torch.equal, one, other))


def test_a_fused_trunk_does_what_the_driver_does():
    torch.manual_seed(0)
    layers = [CapsLayer(32, 8, 32, 8, weight_std=0.3) for _ in range(16)]
    sequence = mc.MomentumSequence(layers).cuda()
    x = torch.randn(128, 32, 8).cuda().requires_grad_()
    leaves = [x, *sequence.parameters()]

    def gradients():
        y = sequence(x)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]

    fast, again = gradients(), gradients()
    assert sequence.fused(x) is not None
    assert all(map(torch.equal, fast, again))
    layers[0].register_forward_hook(lambda *_: None)
    assert sequence.fused(x) is None
    driven = gradients()
    assert (errors(fast, driven) < 1e-4).all()


@pytest.mark.parametrize("layers", [16, 400])
def test_a_fused_trunk_comes_back_to_where_it_began(layers, monkeypatch):
    from mocapsnet.ops.rba import momentum

    torch.manual_seed(0)
    sequence = mc.MomentumSequence([CapsLayer(32, 8, 32, 8, weight_std=0.3) for _ in range(layers)]).cuda()
    seen, walk = {0: {}, 1: {}}, momentum.walk

    def watch(n, options, weights, state, moved_on, beside, back):
        walk(n, options, weights, state, moved_on, beside, back)
        seen[back][n] = [part.clone() for part in (moved_on if back else state)[:2]]

    monkeypatch.setattr(momentum, "walk", watch)
    sequence(torch.randn(128, 32, 8).cuda().requires_grad_()).sum().backward()
    assert seen[0].keys() == seen[1].keys() == set(range(layers))
    assert all(
        map(torch.equal, (p for n in seen[0] for p in seen[0][n]), (p for n in seen[0] for p in seen[1][n]))
    )


def test_two_hundred_steps_go_the_same_way_with_either_backend(tmp_path):
    digits, losses = mc.data.load("mnist6k"), {}
    for backend in ("fused", "reference"):
        torch.manual_seed(0)
        model = mc.MoCapsNet((1, 28, 28), 10, blocks=2, capsules=8, channels=32, backend=backend)
        run = mc.fit(
            model,
            digits,
            epochs=4,
            batch=100,
            limit=5000,
            device="cuda",
            compile=False,
            output=tmp_path / backend,
        )
        rows = (run.folder / "metrics.csv").read_text().splitlines()[1:]
        losses[backend] = [float(row.split(",")[2]) for row in rows]
    assert losses["fused"] == pytest.approx(losses["reference"], rel=0.03)
    assert losses["fused"][-1] < losses["fused"][0] / 2
