"""Triton programs of a strided convolution, no padding, channels last: a tile is many images at one place.

All images of a tile then take part in the same taps of the kernel, and no product is made with a zero.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import product


@triton.jit
def outputs(
    x, w, bias, y,
    B, H, W, OH, OW, CI, CO, K, STRIDE,
    BB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y_b[o] = Σ_t w[t] x_b[STRIDE o + t] + bias at one place o: BB images by BN of the CO channels."""
    places, tiles = OH * OW, CO // BN
    place, rest = tl.program_id(0) // tiles % places, tl.program_id(0) // (tiles * places)
    n = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    b, k = rest.to(tl.int64) * BB + tl.arange(0, BB), tl.arange(0, BK)
    top, left = place // OW * STRIDE, place % OW * STRIDE
    total = tl.zeros([BB, BN], tl.float32)
    pieces = CI // BK
    for step in range(K * K * pieces):
        tap, first = step // pieces, step % pieces * BK
        at = (b * H + top + tap // K) * W + left + tap % K
        some = tl.load(x + at[:, None] * CI + first + k[None, :], b[:, None] < B, 0.0)
        matrix = tl.load(w + (n[None, :] * K * K + tap) * CI + first + k[:, None])
        total += product(some, matrix, PRECISION)
    if BIASED:
        total += tl.load(bias + n)[None, :].to(tl.float32)
    tl.store(y + ((b * OH + place // OW) * OW + place % OW)[:, None] * CO + n[None, :], total, b[:, None] < B)


@triton.jit
def inputs(
    dy, w, dx,
    B, H, W, OH, OW, CI, CO, K, STRIDE,
    BB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """∂x_b[p] = Σ_t w[t]ᵀ ∂y_b[(p - t) / STRIDE] at one place p: BB images by BN of the CI channels."""
    places, tiles = H * W, CI // BN
    place, rest = tl.program_id(0) // tiles % places, tl.program_id(0) // (tiles * places)
    n = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    b, k = rest.to(tl.int64) * BB + tl.arange(0, BB), tl.arange(0, BK)
    row, column = place // W, place % W
    # The least tap of the kernel that an output reached this place by, and how many there are.
    top = tl.maximum(row - STRIDE * (OH - 1), row % STRIDE)
    left = tl.maximum(column - STRIDE * (OW - 1), column % STRIDE)
    rows = tl.maximum(tl.minimum(row, K - 1) - top + STRIDE, 0) // STRIDE
    columns = tl.maximum(tl.minimum(column, K - 1) - left + STRIDE, 0) // STRIDE
    total = tl.zeros([BB, BN], tl.float32)
    pieces = CO // BK
    for step in range(rows * columns * pieces):
        tap, first = step // pieces, step % pieces * BK
        r, c = top + tap // columns * STRIDE, left + tap % columns * STRIDE
        at = (b * OH + (row - r) // STRIDE) * OW + (column - c) // STRIDE
        some = tl.load(dy + at[:, None] * CO + first + k[None, :], b[:, None] < B, 0.0)
        matrix = tl.load(w + ((first + k[:, None]) * K * K + r * K + c) * CI + n[None, :])
        total += product(some, matrix, PRECISION)
    tl.store(dx + ((b * H + row) * W + column)[:, None] * CI + n[None, :], total, b[:, None] < B)
