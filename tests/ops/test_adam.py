"""Adam and the check of gradients by programs against torch's, on a GPU or in Triton's interpreter."""

import copy

import pytest
import torch
from torch import nn

from mocapsnet.data import Split
from mocapsnet.errors import NotFinite, WrongArgument
from mocapsnet.ops import backend
from mocapsnet.ops.adam import fused
from mocapsnet.train.device import float32_products, make_fabric
from mocapsnet.train.optimizers import make_optimizer
from mocapsnet.train.step import Step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# More than one launch; blocks that are whole, not whole, and of fewer than four numbers; nothing at all.
SHAPES = [(100,), (7,), (8, 3, 5, 5), (64,), (1,), (8, 20), (0,), (3, 2, 4, 5), (300,), ()]
MOMENTS = ("exp_avg", "exp_avg_sq")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for sizes in (fused.CHECK, fused.UPDATE):
        monkeypatch.setitem(sizes, "BLOCK", 64)
    monkeypatch.setattr(fused, "AT_ONCE", 4)
    monkeypatch.setattr(fused, "CHUNK", 16)


def made():
    """Weights in several orders of memory, the same ones every time."""
    torch.manual_seed(0)
    weights = [torch.randn(shape, device=DEVICE) for shape in SHAPES]
    weights[2] = weights[2].contiguous(memory_format=torch.channels_last)
    weights[5] = weights[5].t()
    weights[7] = weights[7].permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1)
    return [nn.Parameter(weight) for weight in weights]


def gradients(weights, seed):
    """The same for weights of any dtype."""
    torch.manual_seed(seed)
    for weight in weights:
        found = torch.randn(weight.shape, device=DEVICE).to(weight)
        weight.grad = torch.empty_like(weight).copy_(found * 10.0 ** -(seed % 3))


def trained(adam, weights, steps):
    for n in range(steps):
        gradients(weights, n)
        adam.step()
    return adam


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"betas": (0.0, 0.5), "eps": 1e-3},
    ],
    ids=str,
)
def test_it_is_torchs_adam(options):
    ours, theirs = made(), [nn.Parameter(weight.detach().double()) for weight in made()]
    one = trained(fused.Adam(ours, torch.tensor(1e-2, device=DEVICE), **options), ours, 6)
    other = trained(torch.optim.Adam(theirs, 1e-2, **options), theirs, 6)
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), its, rtol=1e-6, atol=1e-6)
        for name in MOMENTS:
            torch.testing.assert_close(
                one.state[mine][name].double(), other.state[its][name], rtol=1e-6, atol=1e-7
            )
        assert one.state[mine]["step"] == other.state[its]["step"] == 6


def test_it_repeats_to_the_bit():
    found = []
    for _ in range(2):
        weights = made()
        adam = trained(fused.Adam(weights, 1e-2), weights, 3)
        found.append([*weights, *(adam.state[weight][name] for weight in weights for name in MOMENTS)])
    assert all(map(torch.equal, *found))


def test_a_weight_without_a_gradient_stays():
    weights = made()
    first = weights[0].detach().clone()
    adam = fused.Adam(weights, 1e-2)
    gradients(weights, 0)
    weights[0].grad = None
    adam.step()
    assert torch.equal(weights[0], first)
    assert weights[0] not in adam.state
    adam.zero_grad()
    adam.step()
    assert adam.state[weights[1]]["step"] == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("steps", [0, 2])
def test_a_step_that_is_stopped_changes_nothing(steps):
    weights = made()
    adam = trained(fused.Adam(weights, 1e-2, weight_decay=0.1), weights, steps)
    adam.found_inf = torch.ones((), device=DEVICE)
    before = copy.deepcopy([weight.detach() for weight in weights])
    moments = copy.deepcopy(adam.state_dict()["state"])
    gradients(weights, 5)
    weights[8].grad[100] = torch.nan
    adam.step()
    assert all(map(torch.equal, weights, before))
    for n, state in adam.state_dict()["state"].items():
        assert state["step"] == steps
        assert not steps or all(torch.equal(state[name], moments[n][name]) for name in MOMENTS)
    adam.found_inf.zero_()
    gradients(weights, 6)
    adam.step()
    assert adam.state[weights[0]]["step"] == steps + 1
    assert not torch.equal(weights[0], before[0])


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_its_state_and_torchs_are_one(kind):
    """Also what a CPU saved, whose counts and rate are not on the device."""
    weights, others = made(), made()
    options = {"weight_decay": 0.1}
    decoupled = {**options, "decoupled_weight_decay": kind is torch.optim.AdamW}
    start = trained(kind(weights, 1e-2, **options), weights, 2)
    mine, theirs = fused.Adam(others, 1.0, **decoupled), kind(weights, 1.0, **options)
    for weight, other in zip(weights, others, strict=True):
        other.data = torch.empty_like(other).copy_(weight.detach())
    for adam in (mine, theirs):
        # Moments that were saved before weights were laid out anew.
        saved = copy.deepcopy(start.state_dict())
        for name in MOMENTS:
            saved["state"][2][name] = saved["state"][2][name].contiguous()
        adam.load_state_dict(saved)
    theirs.state[weights[2]]["exp_avg"] = start.state[weights[2]]["exp_avg"].clone()
    trained(mine, others, 2)
    trained(theirs, weights, 2)
    assert mine.state[others[2]]["exp_avg"].stride() == others[2].stride()
    back = kind(others, 1.0, **options)
    back.load_state_dict(mine.state_dict())
    assert back.param_groups[0].keys() == theirs.param_groups[0].keys()
    for one, other in zip(others, weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        assert back.state[one].keys() == theirs.state[other].keys()
        assert back.state[one]["step"] == theirs.state[other]["step"] == 4
        for name in MOMENTS:
            torch.testing.assert_close(back.state[one][name], theirs.state[other][name], rtol=1e-5, atol=1e-7)


def test_a_rate_that_changes_is_read_from_the_device():
    ours, theirs = made(), made()
    rate = torch.tensor(1e-2, device=DEVICE)
    for weights, adam in (
        (ours, fused.Adam(ours, rate)),
        (theirs, torch.optim.Adam(theirs, rate.clone(), capturable=DEVICE == "cuda")),
    ):
        schedule = torch.optim.lr_scheduler.ExponentialLR(adam, 0.5)
        for n in range(3):
            gradients(weights, n)
            adam.step()
            schedule.step()
    assert rate == 1e-2 / 8
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-6)


def test_a_gradient_in_another_order_is_brought_into_that_of_its_weight():
    ours, theirs = made(), made()
    for weights in (ours, theirs):
        gradients(weights, 0)
    for weight in ours:
        weight.grad = weight.grad.contiguous()
    fused.Adam(ours, 1e-2).step()
    fused.Adam(theirs, 1e-2).step()
    assert all(map(torch.equal, ours, theirs))


def test_a_weight_with_holes_is_refused():
    weight = nn.Parameter(torch.zeros(4, 6, device=DEVICE)[:, ::2])
    weight.grad = torch.ones_like(weight)
    with pytest.raises(WrongArgument, match="weights must be float32 without holes"):
        fused.Adam([weight], 1e-2)
    weight.grad = torch.full((4, 6), torch.nan, device=DEVICE)[:, ::2]
    number, first_bad, stopped = (torch.zeros((), device=DEVICE) for _ in range(3))
    with pytest.raises(WrongArgument, match=r"no holes, got the strides \(6, 2\)"):
        fused.note([weight], torch.zeros((), device=DEVICE), number, first_bad, stopped)


@pytest.mark.parametrize("option", ["amsgrad", "maximize"])
def test_what_it_cannot_do_is_refused_in_every_group_and_after_loading(option):
    weights = made()
    with pytest.raises(WrongArgument, match=f"{option} must be False"):
        fused.Adam(weights, 1e-2, **{option: True})
    with pytest.raises(WrongArgument, match=f"{option} must be False"):
        fused.Adam([{"params": weights, option: True}], 1e-2)
    loaded = fused.Adam(weights, 1e-2)
    saved = torch.optim.Adam(weights, 1e-2, **{option: True}).state_dict()
    with pytest.raises(WrongArgument, match=f"{option} must be False"):
        loaded.load_state_dict(saved)
    with pytest.raises(WrongArgument, match=f"{option} must be False"):
        loaded.add_param_group({"params": made(), option: True})


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64"])
def test_weights_of_other_dtypes_are_refused(dtype):
    weight = nn.Parameter(torch.ones(3, dtype=getattr(torch, dtype), device=DEVICE))
    with pytest.raises(WrongArgument, match="weights must be float32"):
        fused.Adam([weight], 1e-2)


def test_groups_without_weights_and_frozen_weights_of_other_dtypes_are_passed_by():
    weight, frozen = (
        nn.Parameter(torch.ones(3, device=DEVICE)),
        nn.Parameter(torch.ones(2, dtype=torch.bfloat16, device=DEVICE), requires_grad=False),
    )
    optimizer = fused.Adam([{"params": [weight, frozen]}, {"params": []}], 0.5)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weight.tolist() == pytest.approx([0.5] * 3)


def test_a_sparse_gradient_is_refused():
    table = nn.Embedding(4, 3, sparse=True, device=DEVICE)
    table(torch.tensor([1], device=DEVICE)).sum().backward()
    with pytest.raises(WrongArgument, match="gradients must be dense"):
        fused.Adam(table.parameters(), 1e-2).step()


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU runs the programs")
def test_a_cpu_without_the_interpreter_does_without_the_programs(monkeypatch):
    weights = made()
    assert backend.adam(weights) is fused
    monkeypatch.setattr(fused, "INTERPRETED", False)
    assert backend.adam(weights) is None


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (torch.zeros(4, 6).T, True),
        (torch.zeros(0, 3), True),
        (torch.zeros(()), True),
        (torch.zeros(4, 1, 6).expand(4, 2, 6), False),
        (torch.zeros(4, 6)[:, ::2], False),
        (torch.zeros(4, 6)[:, :3], False),
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)
def test_dense_is_what_fills_its_memory(weight, expected):
    assert fused.dense(weight) is expected


def test_a_backward_pass_that_needs_the_old_weights_says_so():
    weight = nn.Parameter(torch.ones(3, device=DEVICE))
    loss = (weight * weight).sum()
    loss.backward(retain_graph=True)
    fused.Adam([weight], 1e-2).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Notes:
    """What the check has written, step after step."""

    def __init__(self):
        self.number = torch.zeros((), dtype=torch.int64, device=DEVICE)
        self.first_bad, self.stopped = torch.zeros_like(self.number), torch.zeros((), device=DEVICE)

    def __call__(self, weights, loss=1.0):
        self.number += 1
        loss = torch.tensor(loss, device=DEVICE)
        fused.note(weights, loss, self.number, self.first_bad, self.stopped)
        return int(self.first_bad), float(self.stopped)


# Where numbers overflow is what is looked for.
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 2e19])
def test_a_bad_number_is_found_wherever_it_is(value):
    weights = made()
    gradients(weights, 0)
    assert Notes()(weights) == (0, 0.0)
    for n, weight in enumerate(weights):
        for place in {0, weight.numel() // 2, weight.numel() - 1} if weight.numel() else ():
            gradients(weights, 0)
            torch.as_strided(weight.grad, (weight.numel(),), (1,))[place] = value
            assert Notes()(weights) == (1, 1.0), (n, place)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_gradients_that_are_too_large_together_are_found():
    weights = made()
    for value, expected in ((5e17, (0, 0.0)), (6e17, (1, 1.0))):
        for weight in weights:
            weight.grad = torch.full_like(weight, value)
            assert Notes()([weight]) == (0, 0.0)
        assert Notes()(weights) == expected


@pytest.mark.parametrize("loss", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_loss_is_found(loss):
    weights = made()
    gradients(weights, 0)
    assert Notes()(weights, loss) == (1, 1.0)
    assert Notes()([], loss) == (1, 1.0)
    assert Notes()([]) == (0, 0.0)


def test_the_first_bad_step_is_the_one_that_is_remembered():
    weights, notes = made(), Notes()
    gradients(weights, 0)
    losses = [1.0, 2.0, torch.nan, 1.0, torch.inf]
    assert [notes(weights, loss) for loss in losses] == [(0, 0.0)] * 2 + [(3, 1.0)] * 3


def test_the_programs_are_taken_for_float32():
    weights = made()
    assert backend.adam(weights) is fused
    assert backend.adam(iter(weights)) is fused
    assert backend.adam([*weights, torch.zeros(3, dtype=torch.float64, device=DEVICE)]) is None
    assert backend.adam([weight.detach().half() for weight in weights]) is None


def test_an_optimizer_of_a_device_that_has_no_programs_is_torchs():
    for decay, decoupled in ((0.0, False), (0.1, True)):
        adam, _ = make_optimizer("adam", [nn.Parameter(torch.zeros(3))], 1e-3, 0.9, 1, decay)
        assert type(adam) is torch.optim.Adam
        assert adam.defaults["decoupled_weight_decay"] is decoupled


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_training_step_is_the_one_by_torch_and_stops_where_it_is_not_finite(network, monkeypatch):
    for sizes in (fused.CHECK, fused.UPDATE):
        monkeypatch.setitem(sizes, "BLOCK", 65536 if DEVICE == "cpu" else 1024)
    images = torch.randint(0, 256, (6, 1, 9, 9), dtype=torch.uint8, device=DEVICE)
    data = Split(images, torch.arange(6, device=DEVICE) % 4)
    fabric = make_fabric(torch.device(DEVICE), "fp32")
    indices, offsets = torch.arange(6, device=DEVICE), torch.zeros(6, 2, dtype=torch.int64, device=DEVICE)

    def steps(kind):
        torch.manual_seed(0)
        model = network().to(DEVICE)
        adam = kind(model.parameters(), torch.tensor(1e-2, device=DEVICE), fused=True)
        wrapped, optimizer = fabric.setup(model, adam)
        return model, Step(fabric, wrapped, model, optimizer, data)

    (ours, one), (theirs, other) = steps(fused.Adam), steps(torch.optim.Adam)
    assert one.programs is fused
    other.programs = None
    with float32_products(tf32=False):
        for number in (1, 2):
            for step in (one, other):
                step(indices, offsets, number)
                step.check()
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    ours.caps2.W.data[0, 0, 0, 0] = torch.nan
    before = copy.deepcopy(ours.state_dict())
    for number in (3, 4):
        one(indices, offsets, number)
    assert all(
        torch.equal(value.nan_to_num(7), before[name].nan_to_num(7))
        for name, value in ours.state_dict().items()
    )
    with pytest.raises(
        NotFinite, match=r"step 3: the weight caps2\.W is not finite; the update was not made"
    ):
        one.check()
