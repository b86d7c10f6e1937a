"""Triton programs of Adam's update and of the check of gradients, of many tensors in one launch.

A program takes a block of BLOCK numbers, whichever tensor it lies in. STARTS are the first blocks of all
tensors, SIZES their numbers.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.momentum_kernels import pick


@triton.jit
def owner(block, STARTS: tl.constexpr):
    """Which tensor a block belongs to."""
    found = 0
    for i in tl.static_range(1, len(STARTS)):
        found = tl.where(block >= STARTS[i], i, found)
    return found


@triton.jit
def place(block, i, STARTS: tl.constexpr, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    """How far into tensor i a block begins, its numbers in whole fours, and how many are left.

    Threads read four at a time; what is left would make all of them read one by one.
    """
    first = (block - pick(STARTS, i)).to(tl.int64) * BLOCK
    size = tl.minimum(pick(SIZES, i) - first, BLOCK).to(tl.int32)
    return first, size // 4 * 4, size % 4


@triton.jit(do_not_specialize=("parts",))
def squares(gradients, parts, STARTS: tl.constexpr, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of squares of a block."""
    block, at, few = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, 4)
    i = owner(block, STARTS)
    first, fours, rest = place(block, i, STARTS, SIZES, BLOCK)
    some = pick(gradients, i) + first
    g = tl.load(some + at, at < fours, 0.0)
    last = tl.load(some + fours + few, few < rest, 0.0)
    tl.store(parts + block, tl.sum(g * g) + tl.sum(last * last))


@triton.jit
def judge(parts, loss, number, first_bad, stopped, count, CHUNK: tl.constexpr):
    """Whether loss and norm of all gradients are finite; from the first step where not, all are stopped."""
    total = tl.zeros([CHUNK], tl.float32)
    for first in range(0, count, CHUNK):
        at = first + tl.arange(0, CHUNK)
        total += tl.load(parts + at, at < count, 0.0)
    finite = tl.abs(tl.load(loss).to(tl.float32) + tl.sqrt(tl.sum(total))) < float("inf")
    before = tl.load(first_bad)
    bad = tl.where(finite | (before > 0), before, tl.load(number))
    tl.store(first_bad, bad)
    tl.store(stopped, (bad > 0).to(tl.float32))


@triton.jit
def advance(steps, factors, lr, stopped, LOG1: tl.constexpr, LOG2: tl.constexpr):
    """Count a step of each tensor unless stopped, and write lr / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ).

    LOG1 and LOG2 are the logarithms of β₁ and β₂.
    """
    i = tl.program_id(0)
    step = pick(steps, i)
    t = tl.load(step) + 1 - tl.load(stopped)
    tl.store(step, t)
    # In float64: 1 − β₂ᵗ is small at first.
    t = t.to(tl.float64)
    tl.store(factors + 2 * i, (tl.load(lr).to(tl.float64) / (1 - tl.exp(t * LOG1))).to(tl.float32))
    tl.store(factors + 2 * i + 1, (1 / tl.sqrt(1 - tl.exp(t * LOG2))).to(tl.float32))


@triton.jit
def move(
    w, g, m, v, at, count, rate, unit, shrink, goes_on,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Adam's update of the first `count` numbers, written if it goes on: loads do not wait for that."""
    there = at < count
    x, dx = tl.load(w + at, there), tl.load(g + at, there)
    mean, square = tl.load(m + at, there), tl.load(v + at, there)
    if DECOUPLED:
        x -= shrink * x
    elif DECAY != 0:
        dx += DECAY * x
    mean = BETA1 * mean + (1 - BETA1) * dx
    square = BETA2 * square + (1 - BETA2) * dx * dx
    changed = at < tl.where(goes_on, count, 0)
    tl.store(w + at, x - rate * mean / (tl.sqrt(square) * unit + EPS), changed)
    tl.store(m + at, mean, changed)
    tl.store(v + at, square, changed)


@triton.jit
def update(
    weights, gradients, means, squares, factors, lr, stopped,
    STARTS: tl.constexpr, SIZES: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    DECAY: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adam's update of a block, unless stopped; the last one first, whose gradient was looked at just now."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    i = owner(block, STARTS)
    first, fours, rest = place(block, i, STARTS, SIZES, BLOCK)
    w, g, m, v = (
        pick(weights, i) + first, pick(gradients, i) + first, pick(means, i) + first, pick(squares, i) + first
    )  # fmt: skip
    rate, unit = tl.load(factors + 2 * i), tl.load(factors + 2 * i + 1)
    shrink, goes_on = tl.load(lr) * DECAY, tl.load(stopped) == 0
    move(
        w, g, m, v, tl.arange(0, BLOCK), fours, rate, unit, shrink, goes_on,
        BETA1, BETA2, EPS, DECAY, DECOUPLED,
    )  # fmt: skip
    if rest > 0:
        move(
            w + fours, g + fours, m + fours, v + fours, tl.arange(0, 4), rest, rate, unit, shrink, goes_on,
            BETA1, BETA2, EPS, DECAY, DECOUPLED,
        )  # fmt: skip
