"""Adam's programs on a CUDA GPU: torch's fused Adam at full size, eager and in a graph."""

import pytest
import torch
from torch import nn

from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed.networks import build
from mocapsnet.ops.adam import fused
from mocapsnet.train.culprit import is_finite
from mocapsnet.train.device import in_fast_order
from mocapsnet.train.optimizers import make_optimizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
MOMENTS = ("exp_avg", "exp_avg_sq")


def whole(blocks=1):
    """The network that is timed, its weights as a step lays them out."""
    torch.manual_seed(0)
    model = build(BenchSettings(), "mocapsnet", blocks).cuda()
    in_fast_order(model, torch.device("cuda"))
    return model


def gradients(model, seed):
    torch.manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight) * 1e-3


def three(**options):
    """Networks with our Adam and with torch's, a rate for each on the device, and one in float64."""
    rate, fast = torch.tensor(1e-3, device="cuda"), {"fused": True, "capturable": True}
    ours, theirs, exact = whole(), whole(), whole().double()
    return [
        (ours, fused.Adam(ours.parameters(), rate.clone(), **fast, **options)),
        (theirs, torch.optim.Adam(theirs.parameters(), rate.clone(), **fast, **options)),
        (exact, torch.optim.Adam(exact.parameters(), 1e-3, **options)),
    ]


def step(networks, seed):
    """A step of each on the same gradients."""
    gradients(networks[0][0], seed)
    for model, adam in networks:
        for weight, one in zip(model.parameters(), networks[0][0].parameters(), strict=True):
            weight.grad = one.grad.to(weight)
        adam.step()


def assert_no_worse(networks):
    """At most twice as far from float64 as torch's, in weights and moments, beside their own last digit."""
    for weights in zip(*(model.parameters() for model, _ in networks), strict=True):
        states = [adam.state[weight] for (_, adam), weight in zip(networks, weights, strict=True)]
        assert len({float(state["step"]) for state in states}) == 1
        for ours, theirs, exact in (weights, *([state[name] for state in states] for name in MOMENTS)):
            errors = [(found.double() - exact).abs().max() for found in (ours, theirs)]
            assert errors[0] <= 2 * errors[1] + 2**-24 * exact.abs().max()


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.05}, {"weight_decay": 0.05, "decoupled_weight_decay": True}],
    ids=str,
)
def test_it_is_no_worse_than_torchs_fused_adam_at_full_size(options):
    networks = three(**options)
    for seed in range(5):
        step(networks, seed)
    assert_no_worse(networks)


def test_states_are_interchanged():
    networks = three()
    step(networks, 0)
    (_, ours), (_, theirs), _ = networks
    one, other = ours.state_dict(), theirs.state_dict()
    ours.load_state_dict(other)
    theirs.load_state_dict(one)
    step(networks, 1)
    assert_no_worse(networks)


@pytest.mark.parametrize("blocks", [1, 20])
def test_a_graph_of_check_and_update_does_what_torch_does_and_stops(blocks):
    """With twenty blocks there are more weights than one launch takes."""
    model, other = whole(blocks), whole(blocks)
    adam, schedule = make_optimizer("adam", model.parameters(), 1e-3, 0.5, steps=1)
    its = torch.optim.Adam(other.parameters(), torch.tensor(1e-3, device="cuda"), fused=True)
    its_schedule = torch.optim.lr_scheduler.ExponentialLR(its, 0.5)
    assert type(adam) is fused.Adam
    number, first_bad = (torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2))
    loss, adam.found_inf = (torch.zeros((), device="cuda") for _ in range(2))
    for one in (model, other):
        gradients(one, 0)

    def step():
        number.add_(1)
        fused.note(model.parameters(), loss, number, first_bad, adam.found_inf)
        adam.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
        schedule.step()
    for n in range(4):
        its.step()
        if n:
            its_schedule.step()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
        assert adam.state[one]["step"] == its.state[two]["step"]
    assert (int(first_bad), float(adam.found_inf)) == (0, 0.0)
    before = [weight.detach().clone() for weight in model.parameters()]
    gradient = list(model.parameters())[-1].grad
    gradient[-1] = torch.nan
    assert not is_finite(loss, model)
    graph.replay()
    gradient[-1] = 0
    graph.replay()
    # The capture counted nothing: this was the fifth.
    assert (int(first_bad), float(adam.found_inf)) == (5, 1.0)
    assert all(map(torch.equal, model.parameters(), before))
    assert {float(state["step"]) for state in adam.state.values()} == {4.0}


def test_it_repeats_to_the_bit():
    found = []
    for _ in range(2):
        model = whole()
        adam = fused.Adam(model.parameters(), torch.tensor(1e-3, device="cuda"))
        for step in range(3):
            gradients(model, step)
            adam.step()
        found.append(
            [*model.parameters(), *(state[name] for state in adam.state.values() for name in MOMENTS)]
        )
    assert all(map(torch.equal, *found))


def test_tensors_that_begin_anywhere_are_updated():
    """Views that are not aligned to 16 bytes."""
    room = torch.randn(3, 10_001, device="cuda")
    ours, theirs = ([nn.Parameter(row[1:].clone()) for row in room] for _ in range(2))
    for weight, row in zip(ours, room.clone(), strict=True):
        weight.data = row[1:]
    for weights, kind in ((ours, fused.Adam), (theirs, torch.optim.Adam)):
        torch.manual_seed(0)
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        kind(weights, torch.tensor(1e-3, device="cuda"), fused=True).step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
