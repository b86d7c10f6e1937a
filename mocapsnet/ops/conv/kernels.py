"""Triton programs of a strided convolution and its gradients: channels are last everywhere."""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import product


@triton.jit
def outputs(
    x, w, bias, y,
    B, parts, size,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr,
    BB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y_b[p] = Σ_t w[t] x_b[STRIDE p + t] + bias at one place p: BB images by BN of the CO channels.

    Not WHOLE: `size` steps of the sum, without the bias, into one of so many parts of [parts,B,OH,OW,CO].
    """
    place, tile = tl.program_id(0) % (OH * OW), tl.program_id(0) // (OH * OW)
    part, tile = tile % parts, tile // parts
    n = tile % (CO // BN) * BN + tl.arange(0, BN)
    b, k = (tile // (CO // BN)).to(tl.int64) * BB + tl.arange(0, BB), tl.arange(0, BK)
    corner = (place // OW * STRIDE * W + place % OW * STRIDE) * CI
    some = x + (b * (H * W * CI))[:, None] + k[None, :] + corner
    matrices = w + (n * (K * K * CI))[:, None] + k[None, :]
    total = tl.zeros([BB, BN], tl.float32)
    for step in range(part * size, tl.minimum((part + 1) * size, K * K * (CI // BK))):
        tap, first = step // (CI // BK), step % (CI // BK) * BK
        total += product(
            tl.load(some + (tap // K * W + tap % K) * CI + first, b[:, None] < B, 0.0),
            tl.trans(tl.load(matrices + tap * CI + first)),
            PRECISION,
        )
    at = (b * (OH * OW) + place)[:, None] * CO + n[None, :]
    if WHOLE:
        total += tl.load(bias + n).to(tl.float32)[None, :]
    else:
        at += part.to(tl.int64) * B * (OH * OW * CO)
    tl.store(y + at, total, b[:, None] < B)


@triton.jit
def join(parts, bias, y, count, size, CO: tl.constexpr, N: tl.constexpr):
    """N of the `size` numbers of y, CO channels last, from their parts and the bias."""
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    total, real = tl.load(bias + at % CO).to(tl.float32), at < size
    for _ in range(count):
        total += tl.load(parts + at, real, 0.0)
        parts += size
    tl.store(y + at, total, real)


@triton.jit
def inputs(
    dy, w, dx, B,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr,
    BB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """∂x_b[p] = Σ_t w[t]ᵀ ∂y_b[(p - t) / STRIDE] at one place p: BB images by BN of the CI channels.

    All images of a tile take part in the same taps of the kernel, and no product is made with a zero.
    ∂y is [B,OH,OW,CO], w [CO,K,K,CI], ∂x [B,H,W,CI].
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


@triton.jit
def weights(
    dy, x, dw,
    rows, tile, parts, size,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """∂w[t] = Σ_p ∂y[p] x[STRIDE p + t]ᵀ at one tap t, BM by BN channels, over all places p of all images.

    Tiles are counted by tap and then by channels, from `tile` on. WHOLE: into ∂w [CO,K,K,CI]; else over one
    of so many `parts` of the places, into [tiles,parts,BM,BN].
    """
    tile += tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    tap, within = tile // (CO // BM * (CI // BN)), tile % (CO // BM * (CI // BN))
    o, n = within // (CI // BN) * BM + tl.arange(0, BM), within % (CI // BN) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(part * size, tl.minimum((part + 1) * size, rows), BK):
        p = first + tl.arange(0, BK)
        row, column = p % (OH * OW) // OW * STRIDE + tap // K, p % OW * STRIDE + tap % K
        at = ((p // (OH * OW) * H + row) * W + column).to(tl.int64) * CI
        there = (p < rows)[:, None]
        total += product(
            tl.trans(tl.load(dy + p.to(tl.int64)[:, None] * CO + o[None, :], there, 0.0)),
            tl.load(x + at[:, None] + n[None, :], there, 0.0),
            PRECISION,
        )
    if WHOLE:
        tl.store(dw + (o[:, None] * (K * K) + tap) * CI + n[None, :], total)
    else:
        local = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        tl.store(dw + tl.program_id(0) * (BM * BN) + local, total)


@triton.jit
def join_weights(
    parts, dw, tile, count,
    CI: tl.constexpr, CO: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N numbers of one tile of ∂w [CO,K,K,CI] from its parts [tiles,count,BM,BN]; tiles as in weights."""
    local = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for part in range(count):
        total += tl.load(parts + (tl.program_id(0) * count + part) * (BM * BN) + local)
    tile += tl.program_id(0)
    tap, within = tile // (CO // BM * (CI // BN)), tile % (CO // BM * (CI // BN))
    o, n = within // (CI // BN) * BM + local // BN, within % (CI // BN) * BN + local % BN
    tl.store(dw + (o * (K * K) + tap) * CI + n, total)
