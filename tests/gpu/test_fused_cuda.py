"""Fused routing at full size on a CUDA GPU: right, the same every time, and training goes the same way."""

from functools import partial

import pytest
import torch

import mocapsnet as mc
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import order

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
# B, J, I, D, E: CapsLayer 1 of CIFAR-10 and MNIST, a layer of the trunk, ten classes, odd sizes.
SHAPES = [
    (128, 32, 2048, 8, 8),
    (100, 32, 1152, 8, 8),
    (128, 32, 32, 8, 8),
    (128, 10, 32, 8, 16),
    (63, 31, 100, 5, 7),
]
# More images than a tile has, 64 capsules, 100 classes.
MORE = {
    "rba": [(300, 32, 1152, 8, 8), (64, 64, 64, 8, 8)],
    "sda": [(64, 100, 32, 8, 16)],
    "em": [(128, 100, 32, 8, 16), (64, 64, 64, 8, 8)],
}
CASES = pytest.mark.parametrize(
    ("routing", "shape"),
    [(routing, shape) for routing, more in MORE.items() for shape in SHAPES + more],
    ids=str,
)
MIXED = pytest.mark.parametrize("mixed", [True, False])


def ops(routing):
    """Fused, batched, and the specification."""
    from importlib import import_module

    names = ("fused", "batched", "reference")
    return [getattr(import_module(f"mocapsnet.ops.{routing}.{name}"), routing) for name in names]


def draw(routing, shape):
    B, J, I, D, E = shape  # noqa: E741
    W = order.laid_out(0.1 * torch.randn(J, I, E, D).cuda())
    others = [torch.randn(J), torch.randn(J)] if routing == "em" else []
    inputs = [torch.randn(B, I, D), W, 0.1 * torch.randn(J, E), *others]
    return [tensor.cuda().requires_grad_() for tensor in inputs], torch.randn(B, J, E).cuda()


def everything(op, inputs, weights):
    u, W, bias, *betas = inputs
    v = op(u, W, bias, 3, *betas)
    v = v[0] if isinstance(v, tuple) else v
    return [v.detach(), *torch.autograd.grad(v, inputs, weights.to(v.dtype))]


def errors(found, truth):
    return torch.stack([((x - y).norm() / y.norm()).float() for x, y in zip(found, truth, strict=True)])


@CASES
@MIXED
def test_the_error_is_at_most_twice_that_of_the_same_precision(routing, shape, mixed):
    fused, batched, reference = ops(routing)
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        inputs, weights = draw(routing, shape)
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            ours = everything(fused, inputs, weights)
            theirs = everything(batched if mixed else reference, inputs, weights)
        truth = everything(reference, [x.detach().double().requires_grad_() for x in inputs], weights)
        ratios.append(errors(ours, truth) / (errors(theirs, truth) + 2e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


@CASES
def test_it_repeats_to_the_bit(routing, shape):
    inputs, weights = draw(routing, shape)
    one, other = (everything(ops(routing)[0], inputs, weights) for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("routing", MORE)
@MIXED
def test_votes_never_reach_memory(routing, mixed):
    inputs, weights = draw(routing, (128, 32, 2048, 8, 8))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
        everything(ops(routing)[0], inputs, weights)
    # The votes alone are 268 MB.
    assert torch.cuda.max_memory_allocated() - before < 150e6


@pytest.mark.parametrize("routing", ["sda", "em"])
def test_a_reversed_trunk_equals_a_stored_one_to_the_bit(routing):
    found = []
    for memory in ("reverse", "store"):
        torch.manual_seed(0)
        layers = [CapsLayer(32, 8, 32, 8, routing, weight_std=0.3, backend="fused") for _ in range(16)]
        sequence = mc.MomentumSequence(layers, memory=memory).cuda()
        x = torch.randn(128, 32, 8).cuda().requires_grad_()
        y = sequence(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *sequence.parameters()])])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("B", [1, 7, 128])
def test_a_fused_trunk_does_what_the_driver_does(B):
    torch.manual_seed(0)
    layers = [CapsLayer(32, 8, 32, 8, weight_std=0.3) for _ in range(16)]
    sequence = mc.MomentumSequence(layers).cuda()
    x = torch.randn(B, 32, 8).cuda().requires_grad_()
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

    def watch(some, options, weights, state, moved_on, beside, back):
        before = [part.clone() for part in state[:2]]
        walk(some, options, weights, state, moved_on, beside, back)
        seen[back][some] = moved_on[:2] if back else before

    monkeypatch.setattr(momentum, "walk", watch)
    sequence(torch.randn(128, 32, 8).cuda().requires_grad_()).sum().backward()
    assert seen[0].keys() == seen[1].keys()
    assert sum(map(len, seen[0])) == layers
    assert all(
        map(torch.equal, (p for n in seen[0] for p in seen[0][n]), (p for n in seen[0] for p in seen[1][n]))
    )


@pytest.mark.parametrize("capsules", [(32, 8), (20, 6), (5, 4), (64, 4), (1, 1)], ids=str)
def test_how_many_layers_go_together_changes_nothing(capsules, monkeypatch):
    from mocapsnet.ops.rba import momentum

    torch.manual_seed(0)
    layers = [CapsLayer(*capsules, *capsules, weight_std=0.3) for _ in range(20)]
    sequence, x = mc.MomentumSequence(layers).cuda(), torch.randn(128, *capsules).cuda().requires_grad_()
    found, groups = [], momentum.groups
    for most in (1, 3, 8, 8):
        monkeypatch.setattr(momentum, "groups", partial(groups, most=most))
        y = sequence(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *sequence.parameters()])])
    assert all(all(map(torch.equal, found[0], other)) for other in found[1:])


def losses_of(routing, backend, precision, epochs, folder):
    torch.manual_seed(0)
    options = {"blocks": 2, "capsules": 8, "channels": 32, "routing": routing, "backend": backend}
    how = {"epochs": epochs, "batch": 100, "limit": 5000, "device": "cuda", "compile": False}
    model, output = mc.MoCapsNet((1, 28, 28), 10, **options), folder / backend / precision
    run = mc.fit(model, mc.data.load("mnist6k"), **how, precision=precision, output=output)
    rows = (run.folder / "metrics.csv").read_text().splitlines()[1:]
    return torch.tensor([float(row.split(",")[2]) for row in rows])


@pytest.mark.parametrize(("routing", "epochs"), [("rba", 4), ("em", 4)])
def test_fifty_steps_an_epoch_go_the_same_way_with_either_backend(routing, epochs, tmp_path):
    ours, theirs = (
        losses_of(routing, backend, "bf16-mixed", epochs, tmp_path) for backend in ("fused", "reference")
    )
    assert ours.tolist() == pytest.approx(theirs.tolist(), rel=0.03)
    assert ours[-1] < ours[0]


def test_two_hundred_steps_of_sda_go_the_same_way_with_either_backend(tmp_path):
    truth = losses_of("sda", "reference", "fp32", 4, tmp_path)
    assert losses_of("sda", "fused", "fp32", 4, tmp_path).tolist() == pytest.approx(truth.tolist(), rel=0.03)
    # In bfloat16 the reference's own losses are some percent off.
    ours, theirs = (
        losses_of("sda", backend, "bf16-mixed", 4, tmp_path) for backend in ("fused", "reference")
    )
    assert (ours - truth).norm() <= 2 * (theirs - truth).norm() + 0.01 * truth.norm()
    assert ours[-1] < ours[0] / 2
