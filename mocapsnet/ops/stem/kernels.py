"""Triton programs of the stem, a convolution of stride 1 and its ReLU: no patch reaches memory."""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import product


@triton.jit
def patches(
    images, taps, m, k, end, ib, ih, iw,
    OH: tl.constexpr, OW: tl.constexpr, PATCH: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Numbers k of the patches under places m = (image, row, column), [K,M]; after a patch stands a one.

    taps says how far from its corner each number of a patch lies. Of the places, SIDE at a time are side by
    side in an image: neighbouring threads take them.
    """
    corner = m // (OH * OW) * ib + m % (OH * OW) // OW * ih + m % OW * iw
    at = tl.load(taps + k)[:, None] + tl.max_contiguous(corner, SIDE)[None, :]
    found = tl.load(images + at, (k < PATCH)[:, None] & (m < end)[None, :], 0.0).to(tl.float32)
    return tl.where((k == PATCH)[:, None], 1.0, found)


@triton.jit
def stem(
    images, taps, w, x,
    rows, count, ib, ih, iw,
    OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr, PATCH: tl.constexpr, KP: tl.constexpr,
    SIDE: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x = relu(W patch + bias), BM places at a time: w is [KP,CO], the bias in it, x [B,OH,OW,CO].

    One of `count` programs: w stays on chip while it goes through its places.
    """
    k, n = tl.arange(0, KP), tl.arange(0, CO)
    whole = tl.load(w + k[:, None] * CO + n[None, :])
    for tile in range(tl.program_id(0), tl.cdiv(rows, BM), count):
        m = tile * BM + tl.arange(0, BM)
        some = patches(images, taps, m, k, rows, ib, ih, iw, OH, OW, PATCH, SIDE)
        total = product(tl.trans(some), whole, PRECISION)
        at = m.to(tl.int64)[:, None] * CO + n[None, :]
        # What is not a number stays so, here and on the way back: a step that meets it makes no update.
        tl.store(x + at, tl.where(total < 0, 0.0, total), (m < rows)[:, None])


@triton.jit
def stem_backward(
    images, taps, x, dx, dw,
    rows, size, ib, ih, iw,
    OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr, PATCH: tl.constexpr, KP: tl.constexpr,
    SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A part of ∂W and ∂bias [KP,CO], BN channels of it: the sum over `size` places."""
    part, n = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN)
    k, end = tl.arange(0, KP), tl.minimum((part + 1) * size, rows)
    total = tl.zeros([KP, BN], tl.float32)
    for first in range(part * size, end, BM):
        m = first + tl.arange(0, BM)
        at, there = m.to(tl.int64)[:, None] * CO + n[None, :], (m < end)[:, None]
        g = tl.load(dx + at, there, 0.0)
        g = tl.where(tl.load(x + at, there, 0.0) <= 0, 0.0, g)
        some = patches(images, taps, m, k, end, ib, ih, iw, OH, OW, PATCH, SIDE)
        total += product(some, g, PRECISION)
    tl.store(dw + (part * KP + k[:, None]) * CO + n[None, :], total)
