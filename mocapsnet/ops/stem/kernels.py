"""Triton programs of the stem, a convolution of stride 1 and its ReLU: no whole patch reaches memory."""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import product


@triton.jit
def patches(
    rows, m, end,
    OH: tl.constexpr, OW: tl.constexpr, K: tl.constexpr, P: tl.constexpr,
    FIRST: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """COUNT of the K rows, from FIRST on, of the patches under places m = (image, row, column), [M,COUNT P].

    A row is P numbers, and lies OW places after the row above it.
    """
    k = tl.arange(0, COUNT * P) + FIRST * P
    corner = m + m // (OH * OW) * ((K - 1) * OW)
    at = corner[:, None] * P + (k // P * (OW * P) + k % P)[None, :]
    return tl.load(rows + at, (m < end)[:, None] & (k < K * P)[None, :], 0.0)


@triton.jit
def stem(
    rows, w, x,
    places, count,
    OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr, K: tl.constexpr, P: tl.constexpr,
    MANY: tl.constexpr, FEW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x = relu(W patch + bias), BM places and BN channels at a time: w is [KP,CO], the bias in it.

    One of `count` programs: its part of w stays on chip while it goes through its places.
    """
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    j, k = tl.arange(0, MANY * P), MANY * P + tl.arange(0, FEW * P)
    many = tl.load(w + j[:, None] * CO + n[None, :])
    few = tl.load(w + k[:, None] * CO + n[None, :], (k < K * P)[:, None], 0.0)
    for tile in range(tl.program_id(0), tl.cdiv(places, BM), count):
        m = tile * BM + tl.arange(0, BM)
        total = product(patches(rows, m, places, OH, OW, K, P, 0, MANY), many, PRECISION)
        total = product(patches(rows, m, places, OH, OW, K, P, MANY, FEW), few, PRECISION, total)
        at = m.to(tl.int64)[:, None] * CO + n[None, :]
        # What is not a number stays so, here and on the way back: a step that meets it makes no update.
        tl.store(x + at, tl.where(total < 0, 0.0, total), (m < places)[:, None])


@triton.jit
def stem_backward(
    rows, x, dx, dw,
    places, size,
    OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr, K: tl.constexpr, P: tl.constexpr,
    MANY: tl.constexpr, FEW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A part of ∂W and ∂bias [CO,KP], BN channels of it: the sum over `size` places."""
    part, n = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN)
    end = tl.minimum((part + 1) * size, places)
    many, few = tl.zeros([BN, MANY * P], tl.float32), tl.zeros([BN, FEW * P], tl.float32)
    for first in range(part * size, end, BM):
        m = first + tl.arange(0, BM)
        at, there = m.to(tl.int64)[:, None] * CO + n[None, :], (m < end)[:, None]
        g = tl.load(dx + at, there, 0.0)
        g = tl.trans(tl.where(tl.load(x + at, there, 0.0) <= 0, 0.0, g))
        many = product(g, patches(rows, m, end, OH, OW, K, P, 0, MANY), PRECISION, many)
        few = product(g, patches(rows, m, end, OH, OW, K, P, MANY, FEW), PRECISION, few)
    dw += (part * CO + n[:, None]) * (K * P)
    j, k = tl.arange(0, MANY * P), MANY * P + tl.arange(0, FEW * P)
    tl.store(dw + j[None, :], many)
    tl.store(dw + k[None, :], few, (k < K * P)[None, :])
