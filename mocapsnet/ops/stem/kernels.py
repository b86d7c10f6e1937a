"""Triton programs of the stem, a convolution of stride 1 and its ReLU: no patch reaches memory."""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import product


@triton.jit
def patches(
    images, taps, m, k, rows, ib, ih, iw, OH: tl.constexpr, OW: tl.constexpr, PATCH: tl.constexpr
):  # fmt: skip
    """Numbers k of the patches under places m = (image, row, column), [M,K]; after a patch stands a one.

    taps says how far from its corner each number of a patch lies.
    """
    corner = m // (OH * OW) * ib + m % (OH * OW) // OW * ih + m % OW * iw
    at = corner[:, None] + tl.load(taps + k)[None, :]
    found = tl.load(images + at, (m < rows)[:, None] & (k < PATCH)[None, :], 0.0).to(tl.float32)
    return tl.where((k == PATCH)[None, :], 1.0, found)


@triton.jit
def stem(
    images, taps, w, x,
    rows, ib, ih, iw,
    OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr, PATCH: tl.constexpr, KP: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x = relu(W patch + bias) at BM places: w is [KP,CO], the bias in it, x [B,OH,OW,CO]."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, CO)
    total = tl.zeros([BM, CO], tl.float32)
    for first in range(0, KP, BK):
        k = first + tl.arange(0, BK)
        some = patches(images, taps, m, k, rows, ib, ih, iw, OH, OW, PATCH)
        total += product(some, tl.load(w + k[:, None] * CO + n[None, :]), PRECISION)
    at = m.to(tl.int64)[:, None] * CO + n[None, :]
    # What is not a number stays so, here and on the way back: a step that meets it makes no update.
    tl.store(x + at, tl.where(total < 0, 0.0, total), (m < rows)[:, None])


@triton.jit
def stem_backward(
    images, taps, x, dx, dw,
    rows, size, ib, ih, iw,
    OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr, PATCH: tl.constexpr, KP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A part of ∂W and ∂bias [CO,KP], BN columns of it: the sum over `size` places."""
    part, n = tl.program_id(0), tl.arange(0, CO)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([CO, BN], tl.float32)
    for first in range(part * size, tl.minimum((part + 1) * size, rows), BM):
        m = first + tl.arange(0, BM)
        at, there = m.to(tl.int64)[:, None] * CO + n[None, :], (m < rows)[:, None]
        g = tl.load(dx + at, there, 0.0)
        g = tl.where(tl.load(x + at, there, 0.0) <= 0, 0.0, g)
        some = patches(images, taps, m, k, rows, ib, ih, iw, OH, OW, PATCH)
        total += product(tl.trans(g), some, PRECISION)
    tl.store(dw + (part * CO + n[:, None]) * KP + k[None, :], total)
