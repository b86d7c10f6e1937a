import copy
import gc
import pickle
import weakref

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import functional_call
from torch.nn.utils.parametrizations import spectral_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from mocapsnet import MomentumSequence
from mocapsnet.errors import Irreproducible, OutOfRange, WrongArgument
from mocapsnet.nn.routing import CapsLayer

SHAPE = (5, 4, 6)
X = torch.linspace(-2, 2, 120).view(SHAPE)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["reverse", "checkpoint"])
def memory(request):
    return request.param


@pytest.fixture(params=["reverse", "checkpoint", "store"])
def any_memory(request):
    return request.param


class Function(nn.Module):
    """A layer without parameters."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Scaled(nn.Module):
    """tanh(a x · factor + shift), in any shape."""

    def __init__(self):
        super().__init__()
        self.a, self.never_used = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(2))

    def forward(self, x, shift=0.0, factor=1.0):
        return torch.tanh(self.a * x * factor + shift)


class Counting(nn.Module):
    """tanh(x + count / 10), where the count may be another layer's too."""

    def __init__(self, count=None, write=lambda counter: counter.count.add_(1)):
        super().__init__()
        self.write = write
        self.register_buffer("count", torch.ones(()) if count is None else count)

    def forward(self, x):
        self.write(self)
        return torch.tanh(x + 0.1 * self.count.clone())


def linear():
    layer = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    nn.init.normal_(layer[0].weight, std=1.5 / 6**0.5)
    return layer


def capsules():
    return CapsLayer(4, 6, 4, 6, weight_std=0.7)


def linear_and(last):
    return nn.Sequential(linear(), last)


def six(make):
    return lambda: [make() for _ in range(6)]


def frozen(*which):
    return [linear().requires_grad_(n not in which) for n in range(6)]


def one_weight_in_two_layers():
    layers = six(linear)()
    layers[4][0].weight = layers[1][0].weight
    return layers


def a_count_that_the_last_layer_writes():
    count = torch.ones(())
    return [linear_and(Counting(count, lambda counter: None)) for _ in range(5)] + [Counting(count)]


def replace_count(counter):
    counter.count = counter.count + 1


def cut_off(x):
    return torch.tanh(x).detach()


LAYERS = {
    "linear": six(linear),
    "capsules": six(capsules),
    "dropout": six(lambda: linear_and(nn.Dropout(0.4))),
    "dropout alone": lambda: [linear(), nn.Dropout(0.4), capsules(), nn.Dropout(), linear()],
    "batch norm": six(lambda: linear_and(nn.BatchNorm1d(4))),
    "one batch norm for all": lambda: [linear_and(norm) for norm in [nn.BatchNorm1d(4)] * 6],
    "spectral norm": six(lambda: spectral_norm(nn.Linear(6, 6))),
    "a buffer written": six(lambda: linear_and(Counting())),
    "a buffer replaced": six(lambda: linear_and(Counting(write=replace_count))),
    "every layer twice": lambda: [layer for layer in (linear(), capsules(), linear()) for _ in range(2)],
    "one weight in two layers": one_weight_in_two_layers,
    "parameters nobody uses": six(Scaled),
    "some frozen": lambda: frozen(0, 1, 3, 5),
    "all frozen": lambda: frozen(*range(6)),
    "few with parameters": lambda: [linear(), nn.Identity(), nn.Tanh(), linear(), *six(nn.Identity)()],
    "no parameters": six(nn.Identity),
    "no gradient of the answer": lambda: [linear(), Function(cut_off), linear(), Function(torch.sign)],
    "sequences": six(lambda: MomentumSequence([linear(), linear()])),
    "one layer": lambda: [linear()],
}


def loss(y):
    return (y * (y + 1)).sum()


def both_outputs(f, x, velocity, *_):
    return torch.cat(f(x, velocity=velocity, return_velocity=True))


def saved_elsewhere(f, x, *_):
    with save_on_cpu():
        return f(x)


def used_before(f, x, *_):
    y = f(x)
    loss(y).backward(retain_graph=True)
    torch.autograd.grad(loss(y), list(f.layers[-1].parameters()), retain_graph=True)
    return y


def two_in_flight(first):
    def use(f, *xs):
        ys = [f(x) for x in xs[:2]]
        loss(ys[first]).backward()
        return ys[1 - first]

    return use


def scaled(f, x, *_):
    optimizer, scaler = torch.optim.SGD(f.parameters(), 0.01), torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        y = f(x)
    scaler.scale(loss(y)).backward()
    scaler.step(optimizer)
    scaler.update()
    return f(x)


def gradients(f, x, *_):
    grads = torch.autograd.grad(loss(f(x)), [x, *f.parameters()], create_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


def gradient_penalty(f, x, *_):
    # A sum's gradient does not depend on the output, which is gone when the penalty is differentiated.
    return torch.autograd.grad(f(x).sum(), x, create_graph=True)[0]


def lent(values):
    def use(f, x, *_):
        return functional_call(f, {name: 0.7 * tensor + 0.1 for name, tensor in values(f)}, (x,))

    return use


USES = {
    "both outputs": both_outputs,
    "the velocity alone": lambda f, x, velocity, *_: f(x, velocity=velocity, return_velocity=True)[1],
    "no gradient of x": lambda f, x, *_: f(x.detach()),
    "twice in one graph": lambda f, x, *_: f(f(x)),
    "used before": used_before,
    "two in flight, the first first": two_in_flight(0),
    "two in flight, the last first": two_in_flight(1),
    "gradients of gradients": gradients,
    "a gradient penalty": gradient_penalty,
    "weights lent": lent(lambda f: f.named_parameters()),
    "buffers lent": lent(lambda f: f.eval().named_buffers()),
    "autocast": torch.autocast("cpu", torch.bfloat16)(lambda f, x, *_: f(x)),
    "a gradient scaler": scaled,
    "saved elsewhere": saved_elsewhere,
    "inside a checkpoint": lambda f, x, *_: checkpoint(f, x.exp(), use_reentrant=False),
    "output written to": lambda f, x, *_: f(x).mul_(2),
}


def all_kinds():
    normed = [linear_and(nn.BatchNorm1d(4)) for _ in range(2)]
    return [linear_and(nn.Dropout(0.3)), capsules(), normed[0], capsules(), normed[1], linear()]


def assert_like_store(memory, make, use, shape=SHAPE, dtype=torch.float32, **options):
    """Output and gradients are the same, and so are weights, buffers and the random generator afterwards."""
    found = []
    for kept in (memory, "store"):
        torch.manual_seed(1)
        f = MomentumSequence(make(), memory=kept, **options).to(dtype)
        leaves = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(4)]
        y = use(f, *leaves)
        assert y.isfinite().all()
        loss(y).backward()
        grads = [leaf.grad for leaf in (*leaves, *f.parameters())]
        found.append([y, *grads, *f.parameters(), *f.buffers(), torch.get_rng_state()])
    assert_equal(*found)


def assert_equal(found, expected):
    assert [part is None for part in found] == [part is None for part in expected]
    for a, b in zip(found, expected, strict=True):
        if a is not None:
            assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"gamma": 0.9}, {"gamma": 0.05, "check": "raise"}], ids=str)
@pytest.mark.parametrize("layers", LAYERS)
def test_any_layers_train_as_if_everything_were_stored(memory, layers, options):
    assert_like_store(memory, LAYERS[layers], both_outputs, **options)


@pytest.mark.parametrize("use", USES)
def test_any_use_gives_what_it_gives_when_everything_is_stored(memory, use):
    assert_like_store(memory, all_kinds, USES[use])


@pytest.mark.parametrize("shape", [(), (6,), (0, 6), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype_and_shape_trains_as_if_everything_were_stored(memory, dtype, shape):
    def use(f, x, velocity, shift, factor):
        y, velocity = f(x, shift, factor=factor, velocity=velocity, return_velocity=True)
        assert y.dtype == velocity.dtype == dtype
        return y + 2 * velocity

    assert_like_store(memory, six(Scaled), use, shape, dtype, gamma=0.05)


def test_a_third_backward_pass_without_the_graph_is_refused_by_autograd(memory):
    y = MomentumSequence(six(linear)(), memory=memory)(X).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__)
def test_without_gradients_the_values_are_the_same_and_nothing_is_kept(memory, mode):
    f, kept = MomentumSequence(six(linear)(), memory=memory), []
    with saved_tensors_hooks(kept.append, lambda packed: packed):
        with mode():
            y = f(X)
        assert (len(kept), y.grad_fn, y.is_inference()) == (0, None, mode is torch.inference_mode)
        assert torch.equal(y, f(X))
        assert kept


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))], ids=["copy", "pickle"]
)
def test_a_copy_made_before_the_backward_pass_is_a_sequence_of_its_own(memory, copied):
    f = MomentumSequence(six(linear)(), memory=memory)
    y, twin = f(X), copied(f)
    loss(y).backward()
    assert all(weight.grad is None for weight in twin.parameters())
    loss(twin(X)).backward()
    assert_equal([weight.grad for weight in twin.parameters()], [weight.grad for weight in f.parameters()])


@pytest.mark.parametrize("uses", [[], [False], [True, False]], ids=["unused", "once", "retained"])
def test_a_forward_that_is_let_go_is_freed_without_the_garbage_collector(uses):
    gc.disable()
    try:
        y = MomentumSequence(six(linear)())(X)
        tape = weakref.ref(y.grad_fn.tape)
        for retain in uses:
            y.sum().backward(retain_graph=retain)
        assert tape() is not None
        del y
        assert tape() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_after_the_backward_pass_no_state_is_kept_even_if_the_first_layers_are_frozen(count):
    y = MomentumSequence(frozen(*range(count)))(X)
    tape = y.grad_fn.tape
    y.sum().backward()
    assert len(tape.kept) == 0


@pytest.mark.parametrize("memory", ["reverse", "checkpoint"])
def test_a_buffer_that_another_layer_writes_is_an_error_and_never_a_wrong_gradient(memory):
    sequence = MomentumSequence(a_count_that_the_last_layer_writes(), memory=memory)
    y = sequence(torch.randn(2, 3, 6, requires_grad=True))
    with pytest.raises(Irreproducible, match=r"layer . cannot be computed again: .*count was written to"):
        y.sum().backward()


def test_a_layer_with_a_generator_of_its_own_is_caught(memory):
    generator = torch.Generator()
    noise = Function(lambda x: torch.tanh(x + torch.randn(x.shape, generator=generator)))
    y = MomentumSequence([linear(), noise, linear()], memory=memory, check="raise")(X)
    with pytest.raises(Irreproducible, match="layer 1 gave another result"):
        y.sum().backward()


@pytest.mark.parametrize("check", [None, "raise"])
def test_weights_changed_between_forward_and_backward_are_caught(memory, check):
    f = MomentumSequence(six(linear)(), memory=memory, check=check)
    y = f(X)
    with torch.no_grad():
        f.layers[3][0].weight[2, 1] += 1e-3
    with pytest.raises(
        Irreproducible,
        match=r"layer 3 cannot be computed again: .* was written to between forward and backward",
    ):
        y.sum().backward()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.mul_(0.5), "layer 1 writes to it"),
        (lambda x: x[..., :3], r"layer 1 makes \(5, 4, 3\) of \(5, 4, 6\)"),
        (lambda x: (x, x), "layer 1 makes a tuple"),
        (lambda x: None, "layer 1 makes a NoneType"),
    ],
    ids=["writes", "cuts", "tuple", "none"],
)
@pytest.mark.parametrize("grad", [True, False])
def test_a_layer_that_writes_to_its_input_or_changes_the_shape_is_refused(
    any_memory, function, message, grad
):
    f = MomentumSequence([linear(), Function(function), linear()], memory=any_memory)
    with torch.set_grad_enabled(grad), pytest.raises(WrongArgument, match=message):
        f(X)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e30, 2e4])
@pytest.mark.parametrize("grad", [True, False])
def test_what_exact_arithmetic_cannot_hold_is_refused(any_memory, bad, grad):
    spoil = Function(lambda x: torch.where(torch.arange(6) == 2, bad, x))
    f = MomentumSequence([linear()], memory=any_memory)
    spoiled = MomentumSequence([linear(), spoil, linear()], memory=any_memory)
    with torch.set_grad_enabled(grad):
        for call in (lambda: spoiled(X), lambda: f(spoil(X)), lambda: f(X, velocity=spoil(X))):
            with pytest.raises(OutOfRange, match=r"within ±511 .*arithmetic='float'"):
                call()


@given(
    st.floats(-3, 12),
    st.floats(0.01, 0.99),
    st.lists(st.floats(-1, 1), min_size=3, max_size=9),
    st.sampled_from([(torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 0.06)]),
)
def test_a_state_is_close_to_that_of_floats_or_refused(exponent, gamma, numbers, kind):
    dtype, tolerance = kind
    x, velocity, *pushes = (torch.tensor([10**exponent * number]).to(dtype) for number in numbers)
    layers = [Function(lambda x, push=push: push) for push in pushes]
    states = [(x.double(), velocity.double())]
    for layer in layers:
        f = MomentumSequence([layer], gamma, "store", "float")
        states.append(f(states[-1][0], velocity=states[-1][1], return_velocity=True))
    peak = max(part.abs().item() for state in states for part in state)
    try:
        found = MomentumSequence(layers, gamma)(x, velocity=velocity, return_velocity=True)
    except OutOfRange:
        assert peak > 500
    else:
        assert_close(torch.cat(found).double(), torch.cat(states[-1]), rtol=0, atol=tolerance * (1 + peak))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(st.floats(-510, 510), st.floats(-530, 530), st.floats(-530, 530), st.floats(0.01, 0.99))
# In bfloat16, states and steps are rounded to multiples of 2 and 4 there.
@example(-5.84, -1.89, 512.09, 0.5)
def test_two_steps_anywhere_in_the_range_are_right_or_refused(dtype, start, middle, end, gamma):
    x, *pushes = torch.tensor(
        [start, (middle - start) / (1 - gamma), (end - middle - gamma * (middle - start)) / (1 - gamma)]
    ).to(dtype)
    first = (1 - gamma) * pushes[0].item()
    second = gamma * first + (1 - gamma) * pushes[1].item()
    expected = x.item() + first + second
    f = MomentumSequence([Function(lambda x, push=push: push) for push in pushes], gamma)
    try:
        y = f(x)
    except OutOfRange:
        assert max(map(abs, (x.item() + first, expected, first, second))) > 500
    else:
        assert y.item() == pytest.approx(expected, abs=2)
