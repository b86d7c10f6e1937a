"""A Triton program for the input gradient of a strided convolution: a tile is many images at one place.

All images of a tile then take part in the same taps of the kernel, and no product is made with a zero.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import product


@triton.jit
def inputs(
    dy, w, dx, B,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr,
    BB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """∂x_b[p] = Σ_t w[t]ᵀ ∂y_b[(p - t) / STRIDE] at one place p: BB images by BN of the CI channels.

    Channels are last: ∂y [B,OH,OW,CO], w [CO,K,K,CI], ∂x [B,H,W,CI].
    """
    place, tile = tl.program_id(0) % (H * W), tl.program_id(0) // (H * W)
    n = tile % (CI // BN) * BN + tl.arange(0, BN)
    b, k = (tile // (CI // BN)).to(tl.int64) * BB + tl.arange(0, BB), tl.arange(0, BK)
    row, column = place // W, place % W
    # The least tap of the kernel that an output reached this place by, and how many there are.
    top = tl.maximum(row - STRIDE * (OH - 1), row % STRIDE)
    left = tl.maximum(column - STRIDE * (OW - 1), column % STRIDE)
    rows = tl.maximum(tl.minimum(row, K - 1) - top + STRIDE, 0) // STRIDE
    columns = tl.maximum(tl.minimum(column, K - 1) - left + STRIDE, 0) // STRIDE
    some = dy + (b * (OH * OW * CO))[:, None] + k[None, :]
    matrices = w + (k * (K * K * CI))[:, None] + n[None, :]
    total = tl.zeros([BB, BN], tl.float32)
    for step in range(rows * columns * (CO // BK)):
        tap, first = step // (CO // BK), step % (CO // BK) * BK
        r, c = top + tap // columns * STRIDE, left + tap % columns * STRIDE
        at = ((row - r) // STRIDE * OW + (column - c) // STRIDE) * CO + first
        total += product(
            tl.load(some + at, b[:, None] < B, 0.0),
            tl.load(matrices + (first * (K * K) + r * K + c) * CI),
            PRECISION,
        )
    tl.store(dx + ((b * H + row) * W + column)[:, None] * CI + n[None, :], total, b[:, None] < B)
