"""Exact inversion on a CUDA GPU: the same bits, no waiting, no memory per layer."""

import pytest
import torch
from torch import nn

import mocapsnet as mc
from mocapsnet.errors import OutOfRange
from mocapsnet.nn.routing import CapsLayer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
MIB = 2**20


def routed(count, routing="rba", backend="auto"):
    options = {"routing": routing, "weight_std": 0.3, "backend": backend}
    return [CapsLayer(32, 8, 32, 8, **options).cuda() for _ in range(count)]


def gradients(sequence, x):
    return torch.autograd.grad(sequence(x).square().sum(), [x, *sequence.parameters()])


def test_reversed_gradients_are_the_stored_ones(routing):
    # The fused trunk rounds as it likes.
    layers = routed(60, routing, backend="reference")
    x = torch.randn(16, 32, 8, device="cuda", requires_grad=True)
    reverse, store = (mc.MomentumSequence(layers, 0.9, memory) for memory in ("reverse", "store"))
    assert all(map(torch.equal, gradients(reverse, x), gradients(store, x)))
    assert reverse.inversion_report(x).exact


def test_a_thousand_layers_come_back_to_the_bit():
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()).cuda() for _ in range(1000)]
    for layer in layers:
        nn.init.normal_(layer[0].weight, std=0.5)
    report = mc.MomentumSequence(layers).inversion_report(torch.randn(64, 8, device="cuda"))
    assert report.exact
    assert report.gradient_error == 0


def test_dropout_draws_the_same_numbers_again():
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.4)).cuda() for _ in range(20)]
    x, found = torch.randn(4, 8, device="cuda", requires_grad=True), []
    for memory in ("reverse", "checkpoint", "store"):
        torch.manual_seed(3)
        found.append(gradients(mc.MomentumSequence(layers, 0.9, memory, check="raise"), x))
        found[-1] += (torch.cuda.get_rng_state(),)
    assert all(map(torch.equal, found[0], found[2]))
    assert all(map(torch.equal, found[1], found[2]))


def test_nobody_waits_for_the_gpu():
    sequence = mc.MomentumSequence(routed(6))
    x = torch.randn(16, 32, 8, device="cuda", requires_grad=True)
    sequence(x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sequence(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("scale", [1e4, float("inf"), float("nan")])
def test_leaving_the_range_gives_nan_and_an_error_at_the_next_read_out(scale):
    sequence = mc.MomentumSequence(routed(2))
    x = torch.randn(4, 32, 8, device="cuda")
    assert sequence(x * scale).isnan().all()
    with pytest.raises(OutOfRange, match="±511"):
        sequence.read_range()
    sequence.read_range()
    sequence(x * scale)
    torch.cuda.synchronize()
    with pytest.raises(OutOfRange, match="±511"):
        sequence(x)
    assert sequence(x).isfinite().all()


def peak_beyond_parameters(blocks):
    """The peak of a training step's forward and backward, less parameters and gradients."""
    model = mc.MoCapsNet((3, 32, 32), 10, blocks=blocks).cuda()
    images, labels = torch.randn(128, 3, 32, 32, device="cuda"), torch.randint(10, (128,), device="cuda")
    for _ in range(2):
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        mc.capsule_loss(model(images, labels), labels, images.sigmoid()).backward()
    sizes = sum(-(-parameter.numel() * 4 // 512) * 512 for parameter in model.parameters())
    return torch.cuda.max_memory_allocated() - 2 * sizes


def test_a_block_costs_no_memory():
    few, many = peak_beyond_parameters(1), peak_beyond_parameters(41)
    assert many - few <= 40 * 0.02 * MIB


def test_a_step_can_be_captured():
    sequence = mc.MomentumSequence(routed(8))
    x = torch.randn(16, 32, 8, device="cuda", requires_grad=True)
    expected = gradients(sequence, x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gradients(sequence, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(sequence, x)
    for gradient in found:
        gradient.zero_()
    graph.replay()
    assert all(map(torch.equal, found, expected))
