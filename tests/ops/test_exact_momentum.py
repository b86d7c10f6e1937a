"""The integers of ops/momentum.py by themselves: exact both ways, for any γ, and close to real numbers."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from mocapsnet.ops.momentum import (
    RANGE,
    VELOCITY_BITS,
    WORD_BITS,
    X_BITS,
    ExactArithmetic,
    FloatArithmetic,
    from_bytes,
    schedule,
    to_bytes,
)

GAMMAS = [1e-12, 1e-3, 0.5, 0.9, 0.99, 0.999999]
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
FUNCTIONS = [
    lambda x: 3 * torch.sin(5 * x + 1),
    lambda x: (x * x - 2).clamp(-7, 7),
    lambda x: torch.where(x < 0.3, torch.full_like(x, -6.1), -x.clamp(-5, 5)),
    lambda x: -x.flip(-1).clamp(-2, 2) if x.ndim else -x.clamp(-2, 2),
    lambda x: 1e-6 * x,
]
gammas = st.sampled_from(GAMMAS) | st.floats(0, 1, exclude_min=True, exclude_max=True)
layers = st.lists(st.sampled_from(FUNCTIONS), min_size=1, max_size=60)
shapes = st.lists(st.integers(0, 4), max_size=3)


def forth(arithmetic, x, velocity, layers):
    states, spilled = [arithmetic.begin(x, velocity)], {}
    for n, f in enumerate(layers):
        spilled |= arithmetic.spilled(n, states[-1])
        states.append(arithmetic.step(n, states[-1], f(states[-1].x)))
    return states, spilled


def back(arithmetic, kept, spilled, layers):
    for n, f in reversed(list(enumerate(layers))):
        kept = arithmetic.unstep(n, kept, spilled.get(n), f)
        yield kept


@settings(max_examples=150)
@given(gammas, layers, shapes, st.sampled_from(DTYPES), st.integers(0, 99))
def test_the_way_back_is_the_way_forth_bit_for_bit(gamma, layers, shape, dtype, seed):
    torch.manual_seed(seed)
    x, velocity = (4 * torch.randn(shape)).to(dtype), torch.randn(shape).to(dtype)
    arithmetic = ExactArithmetic(gamma, len(layers), dtype)
    states, spilled = forth(arithmetic, x, velocity, layers)
    for found, was in zip(back(arithmetic, states[-1].kept, spilled, layers), states[-2::-1], strict=True):
        assert all(map(torch.equal, found, was.kept))


@pytest.mark.parametrize(("gamma", "depth"), [(1e-12, 9), (1e-3, 30), (0.5, 60), (0.9, 400)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_was_spilled_is_needed_and_is_enough(gamma, depth, dtype):
    arithmetic, layers = ExactArithmetic(gamma, depth, dtype), FUNCTIONS[:1] * depth
    x = torch.randn(50).to(dtype)
    states, spilled = forth(arithmetic, x, -x, layers)
    assert len(spilled) > 1
    *_, first = back(arithmetic, states[-1].kept, spilled, layers)
    assert all(map(torch.equal, first, states[0].kept))
    *_, lost = back(arithmetic, states[-1].kept, {n: torch.zeros_like(b) for n, b in spilled.items()}, layers)
    assert not torch.equal(lost[1], states[0].kept[1])


@pytest.mark.parametrize("bits", range(1, 64))
def test_numbers_of_any_bits_come_back_from_bytes(bits):
    half = 1 << (bits - 1)
    numbers = torch.tensor([[-half, half - 1, 0], [-1, half // 3, -half // 3]])
    packed = to_bytes(numbers, bits)
    assert (packed.dtype, packed.shape) == (torch.uint8, (2, 3, math.ceil(bits / 8)))
    assert torch.equal(from_bytes(packed), numbers)


@given(gammas, st.integers(0, 300), st.integers(0, 300))
def test_a_longer_schedule_begins_with_the_shorter(gamma, n, more):
    assert schedule(gamma, n + more)[:n] == schedule(gamma, n)


@given(gammas)
@example(0.9)
def test_the_scale_stays_below_24_bits_and_forgets_none(gamma):
    stages = schedule(gamma, 500)
    scales = [2.0 ** (X_BITS - VELOCITY_BITS) / stage.unit for stage in stages]
    assert all(1 - 1e-9 <= scale < 2**24 for scale in scales)
    if not any(stage.shift == WORD_BITS for stage in stages):
        bits = sum(stage.shift for stage in stages) + math.log2(scales[-1])
        assert bits == pytest.approx(500 * math.log2(1 / gamma), rel=1e-9, abs=1e-9)


def test_three_bytes_go_every_158_layers_at_the_paper_s_gamma():
    assert {n: s.shift for n, s in enumerate(schedule(0.9, 500)) if s.shift} == dict.fromkeys(
        (157, 315, 473), 24
    )


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_what_is_spilled_is_the_least_there_can_be(gamma):
    counts = [math.ceil(stage.shift / 8) for stage in schedule(gamma, 2000)]
    last = max(n for n, count in enumerate(counts) if count)
    assert sum(counts) / (last + 1) == pytest.approx(math.log2(1 / gamma) / 8, rel=0.05)


@settings(max_examples=150)
@given(gammas, st.lists(st.floats(-8, 8), min_size=1, max_size=60), st.sampled_from(DTYPES[::2]))
@example(0.999999, [8.0] * 60, torch.float32)
@example(0.9, [-7.3] * 60, torch.float32)
@example(1e-12, [1 / 3] * 60, torch.float32)
def test_the_state_stays_within_the_documented_distance_of_real_numbers(gamma, given_f, dtype):
    x, v = torch.tensor([-3.7, 11.1], dtype=dtype), torch.tensor([0.3, -1.9], dtype=dtype)
    values = torch.tensor(given_f, dtype=dtype).unsqueeze(-1) * torch.tensor([1, -0.77], dtype=dtype)
    states, _ = forth(ExactArithmetic(gamma, len(values), dtype), x, v, [lambda _, f=f: f for f in values])
    x, v, u = x.double(), v.double(), torch.finfo(dtype).eps / 2
    largest = max(v.abs().max().item(), values.abs().max().item())
    for n, (state, f) in enumerate(zip(states[1:], values, strict=True), 1):
        v = gamma * v + (1 - gamma) * f.double()
        x = x + v
        # The page has 1 / (1 − γ), which is what this sum comes to at any depth.
        off_v = 2**-28 + 2**-27 * (1 - gamma**n) / (1 - gamma) + 2 * u * largest
        off_x = 2**-23 + n * (2**-23 + off_v + 3 * u * largest)
        assert (state.kept[0].double() * 2**-22 - x).abs().max() <= 1.001 * off_x
        assert (state.velocity.double() - v).abs().max() <= 1.001 * (off_v + 4 * u * largest)


def test_after_a_thousand_layers_integers_are_closer_to_real_numbers_than_float32():
    values = [2 * torch.rand(2000) - 1 for _ in range(1000)]
    x, layers = torch.randn(2000), [lambda _, f=f: f for f in values]
    real, _ = forth(FloatArithmetic(0.9), x.double(), torch.zeros(2000).double(), layers)
    arithmetics = ExactArithmetic(0.9, 1000, torch.float32), FloatArithmetic(0.9)
    found = [forth(arithmetic, x, torch.zeros(2000), layers)[0][-1].x for arithmetic in arithmetics]
    off = [(x_hat - real[-1].x).abs().max().item() for x_hat in found]
    assert off[0] < 2e-5 < 4e-5 < off[1]


@pytest.mark.parametrize("gamma", [0, *GAMMAS])
def test_the_gradient_goes_straight_through_the_rounding(gamma):
    leaves = [torch.randn(2, 3, requires_grad=True) for _ in range(8)]
    found = []
    for arithmetic in (ExactArithmetic(gamma, 6, torch.float32), FloatArithmetic(gamma)):
        state = forth(arithmetic, *leaves[:2], [lambda _, f=f: f for f in leaves[2:]])[0][-1]
        found.append(torch.autograd.grad((state.x * 2 + state.velocity * 3).sum(), leaves))
    assert all(map(torch.equal, *found))


def test_gamma_zero_is_the_residual_update_on_the_grid():
    arithmetic, f = ExactArithmetic(0, 3, torch.float32), FUNCTIONS[0]
    states, spilled = forth(arithmetic, torch.linspace(-4, 4, 99), torch.randn(99), [f] * 3)
    for was, state in pairwise(states):
        push = (f(was.x).double() * 2**27).round()
        assert torch.equal(state.kept[0], was.kept[0] + (push / 32).round().int())
        step = (state.kept[0] - was.kept[0]).double() * 2**-22
        assert (step - f(was.x)).abs().max() <= 2**-23 + 2**-28
    assert {n: rest.shape[-1] for n, rest in spilled.items()} == {0: 8, 1: 8, 2: 8}


@pytest.mark.parametrize("f", [[math.nan], [math.inf], [-math.inf], [1e30], [2000, -4000, 1500, 0]], ids=str)
def test_a_state_that_leaves_the_range_is_seen_even_when_it_comes_back(f):
    layers, zero = [lambda _, f=f: torch.tensor([f, 1.0]) for f in (1.0, *f)], torch.zeros(2)
    states, _ = forth(ExactArithmetic(0.5, len(layers), torch.float32), zero, zero, layers)
    assert states[1].peak < RANGE <= states[-1].peak


@given(st.floats(-510, 510), st.floats(-1100, 1100), st.sampled_from(DTYPES))
@example(-500, 990, torch.float32)
@example(-489.9, 1001.9, torch.bfloat16)
def test_a_large_step_is_right_or_seen(x, move, dtype):
    x, f = torch.tensor([x], dtype=dtype), torch.tensor([2 * move], dtype=dtype)
    real = x.double() + f.double() / 2
    state = forth(ExactArithmetic(0.5, 1, dtype), x, torch.zeros_like(x), [lambda _: f])[0][-1]
    if state.peak < RANGE:
        assert (state.kept[0].double() * 2**-22 - real).abs() < 1e-3
    assert (state.peak < RANGE) == (real.abs() < 511) or abs(real.abs() - 511) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_float64_is_needed(dtype):
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            seen.add(getattr(made, "dtype", None))
            return made

    seen: set[torch.dtype | None] = set()
    arithmetic, x = ExactArithmetic(0.5, 30, dtype), torch.randn(5).to(dtype)
    with Seen():
        states, spilled = forth(arithmetic, x, x, FUNCTIONS[:3] * 10)
        list(back(arithmetic, states[-1].kept, spilled, FUNCTIONS[:3] * 10))
    assert {torch.int32, torch.int64, torch.uint8, dtype} <= seen
    assert torch.float64 not in seen
