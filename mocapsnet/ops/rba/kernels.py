"""Triton programs of routing by agreement: votes live in registers alone, every sum has a fixed order.

Two regimes. Few input capsules: a program holds all votes of one image; it is here. Many: tiles.py. README.md
derives what they compute.

Sizes are padded to powers of two; what is padded is zero.
"""

import triton
import triton.language as tl

# Elements of W that a program of one image loads before anything else.
AHEAD = tl.constexpr(16384)
# Neighbours that a thread of such a program has; docs/kernels.md tells what others cost in the trunk.
EACH = tl.constexpr(2)


@triton.jit
def couple(b, real, LEAKY: tl.constexpr, AXIS: tl.constexpr = 1):
    """c = softmax over j of the logits b [N,J], or [J,N]; also, what it subtracts, and then multiplies with.

    Leaky: a zero logit joins in and its share is dropped.
    """
    b = tl.where(real, b, float("-inf"))
    top = tl.max(b, AXIS, keep_dims=True)
    if LEAKY:
        top = tl.maximum(top, 0.0)
    p = tl.exp(b - top)
    total = tl.sum(p, AXIS, keep_dims=True)
    if LEAKY:
        total += tl.exp(-top)
    total = 1 / total
    return p * total, top, total


@triton.jit
def product(x, y, PRECISION: tl.constexpr, start=None):
    """x y, added up in float32; "bf16" rounds to the nearest before, "tf32" cuts off, "ieee" does neither."""
    if PRECISION == "bf16":
        total = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), start)
    else:
        total = tl.dot(x, y, start, input_precision=PRECISION)
    return total


@triton.jit
def squash(s, AXIS: tl.constexpr, EPS: tl.constexpr = 0.0):
    """s · n / (1 + n²) with n = ‖s‖; times n / (n + EPS) where there is such an EPS."""
    square = tl.sum(s * s, AXIS, keep_dims=True) + 1e-20
    n = tl.sqrt_rn(square)
    return s * (n / (1 + square)) if EPS == 0 else s * (square / ((1 + square) * (n + EPS)))


@triton.jit
def unsquash(s, dv, AXIS: tl.constexpr, EPS: tl.constexpr = 0.0):
    """The gradient of s from that of squash(s) = g s: g dv + (g'/n) s (s · dv)."""
    square = tl.sum(s * s, AXIS, keep_dims=True) + 1e-20
    n = tl.sqrt_rn(square)
    along = tl.sum(s * dv, AXIS, keep_dims=True)
    if EPS == 0:
        # A power of n would overflow.
        h = 1 / (1 + square)
        g, slope = n * h, (1 - square) * h * (h / n)
    else:
        h = 1 / ((1 + square) * (n + EPS))
        g, slope = square * h, h * (2 / (1 + square) - n / (n + EPS))
    return dv * g + s * (along * slope)


@triton.jit
def lanes(N: tl.constexpr, MOST: tl.constexpr = EACH):
    """0 to N - 1, said to be aligned so little that a thread takes MOST, or what a warp makes it take."""
    return tl.multiple_of(tl.arange(0, N), max(MOST, N // 32))


@triton.jit
def of_votes(
    W, I: tl.constexpr, J: tl.constexpr, E: tl.constexpr, D: tl.constexpr,  # noqa: E741
    IP: tl.constexpr, JP: tl.constexpr, EP: tl.constexpr, MOST: tl.constexpr = EACH,
):  # fmt: skip
    """Where the first d of every vote's row of W [I,D,E,J] lies, [I,J,E], and whether it is real.

    Sums over e stay in a thread then, the softmax over j in a warp, and sums over i alone cross warps: these
    are the shorter, the fewer j a thread has at MOST, and sums over j the longer.
    """
    i, j, e = tl.arange(0, IP)[:, None, None], lanes(JP, MOST)[None, :, None], tl.arange(0, EP)[None, None, :]
    at = W + i * (D * E * J) + e * J + j
    if JP > 2:
        # Not true of i, along which no load is wide: else Triton 3.7 lays e over threads, not i.
        at = tl.max_contiguous(at, (2, JP, 1))
    return at, (i < I) & (j < J) & (e < E)


@triton.jit
def ahead(W, real, STEP: tl.constexpr, D: tl.constexpr, VOTES: tl.constexpr):
    """The first matrices of W, on their way while a program does something else."""
    first = (tl.load(W, real, 0.0),)
    for d in tl.static_range(1, min(D, AHEAD // VOTES)):
        first += (tl.load(W + d * STEP, real, 0.0),)
    return first


@triton.jit
def all_votes(u, W, first, real, ui, ud, I: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr):  # noqa: E741
    """û_{j|i} = W_ij u_i of one image, [I,J,E]; u points to its capsules, W to where of_votes says."""
    i = tl.arange(0, real.shape[0])[:, None, None]
    votes = tl.zeros(real.shape, tl.float32)
    for d in tl.static_range(D):
        w = first[d] if d < len(first) else tl.load(W + d * STEP, real, 0.0)
        votes += tl.load(u + i * ui + d * ud, i < I, 0.0).to(tl.float32) * w.to(tl.float32)
    return votes


@triton.jit
def agree(
    votes, offset, real, share, ITERATIONS: tl.constexpr, LEAKY: tl.constexpr, EPS: tl.constexpr = 0.0
):  # fmt: skip
    """The routing of one image's votes [I,J,E]: s with its offset, the sum of all v before it, and its c."""
    s = share * tl.sum(votes, 0) + offset
    so_far, c = tl.zeros_like(s), tl.zeros([votes.shape[0], votes.shape[1]], tl.float32) + share
    for _ in tl.static_range(ITERATIONS - 1):
        so_far += squash(s, 1, EPS)
        c, _, _ = couple(tl.sum(votes * so_far[None, :, :], 2), real, LEAKY)
        s = tl.sum(votes * c[:, :, None], 0) + offset
    return s, so_far, c


@triton.jit
def spread(s):
    """The same [J,E], of which all warps have all, as one element a thread.

    To gather it from itself is the way to tell the compiler so: else it converts all that is made of s.
    """
    return tl.gather(s, tl.broadcast_to(tl.arange(0, s.shape[1])[None, :], s.shape), 1)


@triton.jit
def image_forward(
    u, W, bias, v, s, so_far,
    ub, ui, ud, share,
    I: tl.constexpr, J: tl.constexpr, E: tl.constexpr, D: tl.constexpr,  # noqa: E741
    IP: tl.constexpr, JP: tl.constexpr, EP: tl.constexpr,
    ITERATIONS: tl.constexpr, LEAKY: tl.constexpr, BIASED: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Few input capsules: route one image."""
    n = tl.program_id(0).to(tl.int64)
    W, here = of_votes(W, I, J, E, D, IP, JP, EP)
    first = ahead(W, here, E * J, D, IP * JP * EP)
    j, e = tl.arange(0, JP)[:, None], lanes(EP)[None, :]
    at, real = j * E + e, (j < J) & (e < E)
    offset = tl.load(bias + at, real, 0.0).to(tl.float32) if BIASED else tl.zeros([JP, EP], tl.float32)
    votes = all_votes(u + n * ub, W, first, here, ui, ud, I, D, E * J)
    total, sums, _ = agree(votes, offset, lanes(JP)[None, :] < J, share, ITERATIONS, LEAKY, EPS)
    at, total = at + n * J * E, spread(total)
    tl.store(v + at, squash(total, 1, EPS), real)
    tl.store(s + at, total, real)
    tl.store(so_far + at, sums, real)


@triton.jit
def pull(
    W, c, ds, start, du, real, i, j,
    I: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, STARTED: tl.constexpr,  # noqa: E741
):  # fmt: skip
    """∂u_i = Σ_j W_ijᵀ (c_ij ds_j) of one image, added to a start: c [I,J], ds [J,E], start and du [I,D].

    The sums lie side by side, d in column d, and are stored JP at a time. The last d come first: the cache
    holds what was read last.
    """
    JP: tl.constexpr = c.shape[1]
    g = c[:, :, None] * ds[None, :, :]
    for k in tl.static_range((D - 1) // JP * JP, -1, -JP):
        at, here = i * D + k + j, (i < I) & (k + j < D)
        side = tl.load(start + at, here, 0.0) if STARTED else tl.zeros(c.shape, tl.float32)
        for d in tl.static_range(min(k + JP, D) - 1, k - 1, -1):
            w = tl.load(W + d * STEP, real, 0.0).to(tl.float32)
            side += tl.where(j == d - k, tl.sum(tl.sum(w * g, 2), 1, keep_dims=True), 0.0)
        tl.store(du + at, side, here)


@triton.jit
def image_backward(
    dv, u, W, s, so_far, c, ds, du,
    B, ub, ui, ud, vb, vj, ve,
    I: tl.constexpr, J: tl.constexpr, E: tl.constexpr, D: tl.constexpr,  # noqa: E741
    IP: tl.constexpr, JP: tl.constexpr, EP: tl.constexpr, LEAKY: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Few input capsules: ∂u of one image; its coupling c [I,B,J] and ds [B,E,J] are left for ∂W."""
    n = tl.program_id(0).to(tl.int64)
    # No sum is over i here.
    W, here = of_votes(W, I, J, E, D, IP, JP, EP, 4)
    first = ahead(W, here, E * J, D, IP * JP * EP)
    j, e = tl.arange(0, JP)[:, None], lanes(EP)[None, :]
    at, real = n * J * E + j * E + e, (j < J) & (e < E)
    sums = tl.load(so_far + at, real, 0.0)
    pulled = tl.load(dv + n * vb + j * vj + e * ve, real, 0.0).to(tl.float32)
    pulled = unsquash(tl.load(s + at, real, 0.0), pulled, 1, EPS)
    tl.store(ds + n * E * J + e * J + j, pulled, real)
    votes = all_votes(u + n * ub, W, first, here, ui, ud, I, D, E * J)
    i, j = tl.arange(0, IP)[:, None], lanes(JP, 4)[None, :]
    coupling, _, _ = couple(tl.sum(votes * sums[None, :, :], 2), j < J, LEAKY)
    tl.store(c + (i * B + n) * J + j, coupling, (i < I) & (j < J))
    pull(W, coupling, pulled, du, du + n * I * D, here, i, j, I, D, E * J, False)


@triton.jit
def weights_backward(
    u, c, ds, dW, dbias,
    B, I, E, J, ul, ub, ui, ud, wl, wj, wi, we, wd,  # noqa: E741
    D: tl.constexpr, DP: tl.constexpr, JP: tl.constexpr, BB: tl.constexpr, NB: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """∂W_ij = Σ_b c_ij ds_j u_iᵀ of one layer, one i and some columns (e,j), and ∂bias_j = Σ_b ds_j once."""
    layer = tl.program_id(2).to(tl.int64)
    u += layer * ul
    c += layer * I * B * J
    ds += layer * B * E * J
    dW += layer * wl
    dbias += layer * J * E
    i, n, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * NB + tl.arange(0, NB), tl.arange(0, DP)
    e, j = n // JP, n % JP
    real = (e < E) & (j < J)
    total = tl.zeros([DP, NB], tl.float32)
    whole = tl.zeros([NB], tl.float32)
    for first in range(0, B, BB):
        b = first + tl.arange(0, BB)
        here = (b[:, None] < B) & real[None, :]
        s = tl.load(ds + b[:, None].to(tl.int64) * E * J + (e * J + j)[None, :], here, 0.0)
        g = s * tl.load(c + (i * B + b[:, None]) * J + j[None, :], here, 0.0)
        u_i = tl.load(
            u + b[None, :].to(tl.int64) * ub + i * ui + d[:, None] * ud,
            (b[None, :] < B) & (d[:, None] < D),
            0.0,
        )
        total += product(u_i.to(tl.float32), g, PRECISION)
        whole += tl.sum(s, 0)
    at = dW + i * wi + d[:, None] * wd + (e * we + j * wj)[None, :]
    tl.store(at, total, (d[:, None] < D) & real[None, :])
    tl.store(dbias + j * E + e, whole, real & (i == 0))
