"""Triton programs of the momentum trunk: exact steps around routed layers, one program for one image.

What kernels.py says of sizes holds here.
"""

import triton
import triton.language as tl

from mocapsnet.ops.momentum import RANGE, VELOCITY_BITS, X_BITS
from mocapsnet.ops.rba.kernels import (
    agree,
    ahead,
    all_votes,
    lanes,
    of_votes,
    pull,
    spread,
    squash,
    unsquash,
)

# What one unit of x's grid is worth, and of a velocity's before the first layer.
GRID = tl.constexpr(2.0**-X_BITS)
SPEED = tl.constexpr(2.0**-VELOCITY_BITS)
LIMIT = tl.constexpr(RANGE)
# What differs between the directions: a program compiled anew for how it is aligned might round otherwise.
STATE = ("grid", "word", "gx", "gv", "peak", "x", "c", "ds")
NEW = ("new_grid", "new_word", "new_gx", "new_gv")


@triton.jit
def whole(x):
    """The nearest integer, half to even; NaN and what is too large become so large that the range is left."""
    size = tl.abs(x)
    near = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
    near = tl.minimum(tl.where(near == near, near, 4.6e18), 4.6e18)
    return tl.where(x < 0, -near, near).to(tl.int64)


@triton.jit
def floats(state):
    """x as the layers read it."""
    return state.to(tl.int32).to(tl.float32) * GRID


@triton.jit
def enter(x, velocity, grid, word, peak, size, N: tl.constexpr, MOVING: tl.constexpr):
    """One image's state before the first layer, on the grid; a velocity may be twice as large as x.

    There is none but where it is MOVING.
    """
    k = tl.arange(0, N)
    at, real = tl.program_id(0).to(tl.int64) * size + k, k < size
    state = whole(tl.load(x + at, real, 0.0) * (1 / GRID))
    speed = whole(tl.load(velocity + at, real & MOVING, 0.0) * (1 / SPEED))
    tl.store(grid + at, state.to(tl.int32), real)
    tl.store(word + at, speed, real)
    reached = tl.maximum(tl.abs(state.to(tl.float32)) * GRID, tl.abs(speed.to(tl.float32)) * (SPEED / 2))
    tl.store(peak + at, reached, real)


@triton.jit
def leave(grid, word, peak, x, velocity, lost, size, unit, N: tl.constexpr):
    """One image's x and velocity after the last layer; NaN if it left the range on its way, and lost is."""
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, N)
    real = tl.arange(0, N) < size
    held = tl.max(tl.load(peak + at, real, 0.0), 0) < LIMIT
    tl.store(x + at, tl.where(held, floats(tl.load(grid + at, real, 0)), float("nan")), real)
    speed = tl.load(word + at, real, 0).to(tl.float32) * unit * GRID
    tl.store(velocity + at, tl.where(held, speed, float("nan")), real)
    tl.store(lost + tl.program_id(0), tl.where(held, 0.0, float("nan")))


@triton.jit
def pick(these, k):
    """these[k], where k is known as the program runs."""
    found = these[0]
    for n in tl.static_range(1, len(these)):
        found = tl.where(k == n, these[n], found)
    return found


@triton.jit(do_not_specialize=("count", "back", *STATE, *NEW))
def momentum_layers(
    grid, word, gx, gv, weights, biases, gains, units, new_grid, new_word, new_gx, new_gv, peak, x, c, ds,
    B, count, share, gamma, back,
    J: tl.constexpr, E: tl.constexpr, JP: tl.constexpr, EP: tl.constexpr,
    ITERATIONS: tl.constexpr, LEAKY: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Exact steps of one image around some routed layers, or their inverses together with their gradients.

    Both directions are this one program, so that a layer computed again gives the same bits. Forth: the state
    (grid, word) after the layers, and the largest |x| of each element. Back: the state before them, the
    gradients of x and the velocity there, and every layer's x, c and ds for the gradient of its W. weights to
    units have the layers in the order of the way, and count says how many there are.

    A thread has an element of the state; what others need of it goes through memory: x [·,B,J,E], and its
    gradient, by turns, through the halves of new_gx [2,B,J,E]. One barrier a layer is enough for both, since
    nothing is written where a thread that has not yet come to it may read.
    """
    n = tl.program_id(0).to(tl.int64)
    j2, e2 = tl.arange(0, JP)[:, None], lanes(EP)[None, :]
    at, real = n * J * E + j2 * E + e2, (j2 < J) & (e2 < E)
    i, j = tl.arange(0, JP)[:, None], lanes(JP)[None, :]
    state, speed = tl.load(grid + at, real, 0), tl.load(word + at, real, 0)
    reached, push = tl.zeros([JP, EP], tl.float32), tl.load(gv + at, real & (back != 0), 0.0)
    place, here = of_votes(0, J, J, E, E, JP, JP, EP)
    after = weights[0]
    first = ahead(after + place, here, E * J, E, JP * JP * EP)
    for step in range(count):
        W, gain, unit = after + place, pick(gains, step), pick(units, step)
        offset = tl.load(pick(biases, step) + j2 * E + e2, real & BIASED)
        if back != 0:
            state = (state - whole(speed.to(tl.float32) * unit)).to(tl.int32)
        k = tl.where(back == 0, step, count - 1 - step)
        image = (k * B + n) * (J * E)
        tl.store(x + image + j2 * E + e2, floats(state), real)
        tl.debug_barrier()
        pulled = tl.load(gx + at, real & (back != 0), 0.0)
        votes = all_votes(x + image, W, first, here, E, 1, J, E, E * J)
        # The next layer's are on their way while this one's votes are routed; past the last, any will do.
        after = pick(weights, step + 1)
        first = ahead(after + place, here, E * J, E, JP * JP * EP)
        # Only now: as soon as it is made, it goes to other threads, and all wait.
        offset = tl.where(real & BIASED, offset, 0.0)
        s, _, coupling = agree(votes, offset, j < J, share, ITERATIONS, LEAKY)
        s = spread(s)
        added = whole(squash(s, 1) * gain)
        if back == 0:
            speed += added
            moved = state + whole(speed.to(tl.float32) * unit)
            reached = tl.maximum(reached, tl.abs(moved).to(tl.float32) * GRID)
            state = moved.to(tl.int32)
        else:
            speed -= added
            pulled += push
            push = gamma * pulled
            pulled = unsquash(s, (1 - gamma) * pulled, 1)
            new = new_gx + step % 2 * B * (J * E)
            pull(W, coupling, pulled, gx + n * J * E, new + n * J * E, here, i, j, J, E, E * J, True)
            gx = new
            tl.store(ds + image + e2 * J + j2, pulled, real)
            tl.store(c + ((k * J + i) * B + n) * J + j, coupling, (i < J) & (j < J))
    tl.store(new_grid + at, state, real)
    tl.store(new_word + at, speed, real)
    if back == 0:
        tl.store(peak + at, tl.maximum(tl.load(peak + at, real, 0.0), reached), real)
    else:
        tl.store(new_gv + at, push, real)
